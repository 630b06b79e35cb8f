/* What the registry needs from the backends that are built in. */
#ifndef TN_BACKEND_REGISTRY_H
#define TN_BACKEND_REGISTRY_H

#include "tenon/backend_impl.h"

/* The CPU; the same object every time, never NULL, needs no memory. */
tn_device *tn__cpu_device(void);

/* Makes a simulated device from "sim:8G,align=256". The caller owns it and adds it to the registry. */
tn_status tn__sim_device_new(const char *specification, tn_device **device);

/* The first registered device of a card; NULL if there is none. */
tn_device *tn__registry_first_of_card(const char *card);

#endif
