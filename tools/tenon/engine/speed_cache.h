/* Measured peaks of devices, remembered in a file beside the user's other caches. */
#ifndef TENON_TOOL_SPEED_CACHE_H
#define TENON_TOOL_SPEED_CACHE_H

#include "cli/cli.h"

#include "tenon/net/net.h"
#include "tenon/speed.h"

/* $XDG_CACHE_HOME/tenon/NAME, or ~/.cache/tenon/NAME. False: no home is known, or it is too long. */
bool user_cache_path(const char *name, char *path, size_t size);
/* devices.json there. */
bool speed_cache_path(char *path, size_t size);
/* Declares the remembered peaks of this machine's devices to the library. Entries of other devices, versions and
 * kernels are left out; a file that is missing or makes no sense counts as empty, with a line in the log. */
void speed_cache_load(void);
/* Declares a device's peaks and remembers them. Prints a message and returns an exit code on failure. */
int speed_cache_store(tn_device *device, int n_threads, const tn_device_speed *speed);
/* Measures a device with a progress bar and remembers what was found. Returns an exit code. */
int speed_measure(tn_device *device, int n_threads, double seconds);
/* A collective: all ranks measure a device at the same time, step by step, because ranks of one machine share its
 * memory. Returns an exit code. */
int speed_measure_together(tn_device *device, int n_threads, tn_net *net);

#endif
