/* Measured peak memory bandwidth of the host and of devices. */
#ifndef TENON_TOOL_BANDWIDTH_H
#define TENON_TOOL_BANDWIDTH_H

#include "tenon/base.h"

/* Bytes per second that `threads` threads read together from the host's memory; takes about half a second. 0 when it
 * cannot be measured. */
double bandwidth_host(int threads);
/* Memory bandwidth of a device, measured by adding large tensors there. */
tn_status bandwidth_device(const char *device, double *bytes_per_second);

#endif
