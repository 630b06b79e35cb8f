/* What the registry needs from the backends that are built in. */
#ifndef TN_BACKEND_REGISTRY_H
#define TN_BACKEND_REGISTRY_H

#include "tenon/backend_impl.h"

/* The CPU; the same object every time, never NULL, needs no memory. */
tn_device *tn__cpu_device(void);
size_t tn__cpu_buffer_bytes(void); /* in this process's buffers in host memory, without wrapped ones */

/* Makes a simulated device from "sim:8G,align=256". The caller owns it and adds it to the registry. */
tn_status tn__sim_device_new(const char *specification, tn_device **device);
bool tn__sim_is(const tn_device *device, const char *specification); /* made from just that */

/* The first registered device of a card; NULL if there is none. */
tn_device *tn__registry_first_of_card(const char *card);

#endif
