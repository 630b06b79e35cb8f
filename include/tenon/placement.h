/* The placement of a model's layers: chosen from sizes alone, before anything is loaded.
 *
 * Pure arithmetic: no device is queried, and only temporary memory is used. Thread-safe. */
#ifndef TENON_PLACEMENT_H
#define TENON_PLACEMENT_H

#include "tenon/base.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_placement_device {
    const char *name;
    size_t free;   /* bytes that may be taken */
    size_t fixed;  /* bytes that the first layer on the device adds: compute buffers, scratch */
    double speed;  /* in any unit: faster devices are filled first, equal ones in the order given */
    double share;  /* requested share of the layers; all 0: by speed and free bytes */
    size_t domain; /* 0: its own memory; n: shares domain_free[n - 1] with the other devices of that number */
} tn_placement_device;

enum { TN_PLACEMENT_FREE = -1 };
typedef struct tn_placement_layer {
    const char *name;
    int device; /* the caller's choice, or TN_PLACEMENT_FREE */
    bool late;  /* offloaded after all others: the output matrix */
} tn_placement_layer;

typedef struct tn_placement_params {
    const tn_placement_device *devices; /* the last is the host, which gets the remaining layers */
    size_t n_devices;
    const tn_placement_layer *layers; /* in the order they run */
    size_t n_layers;
    const size_t *bytes;       /* [layer * n_devices + device]: weights and cache of the layer on that device */
    int64_t n_off_host;        /* layers to offload, the last ones first; -1: as many as fit */
    const size_t *domain_free; /* bytes that all devices of a domain may take together */
    size_t n_domains;
} tn_placement_params;

/* Why a layer is on its device: X(NAME, "text"). */
#define TN_PLACEMENT_CAUSE_TABLE(X)                                                                                  \
    X(PINNED, "assigned by the caller")                                                                              \
    X(SHARE, "the caller's shares")                                                                                  \
    X(FASTEST, "the fastest device with free memory")                                                                \
    X(NEXT, "faster devices are full")                                                                               \
    X(LIMIT, "the caller keeps it on the host")                                                                      \
    X(FULL, "no other device has free memory")                                                                       \
    X(ONLY, "there is no other device")
typedef enum tn_placement_cause {
#define TN_X(name, text) TN_PLACEMENT_##name,
    TN_PLACEMENT_CAUSE_TABLE(TN_X)
#undef TN_X
} tn_placement_cause;
TN_API const char *tn_placement_cause_text(tn_placement_cause cause);

typedef struct tn_placement {
    int device;
    tn_placement_cause cause;
} tn_placement;

/* Chooses a device for every layer. The layers of a device are contiguous, so that data changes devices as seldom as
 * possible. Of the placements that fit it takes the one with the most layers off the host, the fastest devices filled
 * first. Numbers and shares given by the caller are kept even when they do not fit. `placements`: n_layers of them;
 * `needed`: bytes per device; `fits`: whether no device and no domain needs more than it has free. */
TN_API tn_status tn_placement_choose(const tn_placement_params *params, tn_placement *placements, size_t *needed,
                                     bool *fits) TN_MUST_CHECK;
/* Prints one line per layer: its name, bytes, device, and why. */
TN_API tn_status tn_placement_explain(const tn_placement_params *params, const tn_placement *placements, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
