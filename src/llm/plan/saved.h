/* The content of a saved session plan. */
#ifndef TN_LLM_PLAN_SAVED_H
#define TN_LLM_PLAN_SAVED_H

#include "llm/plan/session_plan.h"

/* The inputs of a plan. A saved plan is stale if one of them has changed. */
typedef struct tn__plan_keys {
    uint64_t version, model, params, devices;
} tn__plan_keys;
tn__plan_keys tn__plan_keys_of(const tn_session_plan *plan);

/* One covered graph with the plan of its class. */
typedef struct tn__saved_graph {
    tn__shape shape;
    tn_fingerprint print;
    uint64_t same_as;        /* number of an earlier graph whose plan fits this one; its own number: none */
    tn_plan_offset *entries; /* of the tensors of the scheduled graph */
    uint64_t n_entries;
} tn__saved_graph;

typedef struct tn__saved_device {
    uint64_t weights, mapped, cache, compute, scratch, staging, own;
    uint64_t free; /* bytes that the device, within its domain, could take when the placement was chosen */
} tn__saved_device;

typedef struct tn__saved_plan {
    tn__plan_keys keys;
    int32_t n_ctx; /* for callers that do not choose it */
    bool ends_together, repack, sequential;
    int32_t *device_of_layer; /* n_layers: input side, layers, output side */
    tn__saved_device *devices;
    tn__saved_graph *graphs;
    uint64_t n_layers, n_devices, n_graphs;
} tn__saved_plan;

/* Copies a plan from which no session was made. */
tn_status tn__saved_from(tn_session_plan *plan, tn__saved_plan *saved);
/* While plan->saved is adopted: covers the next graph with the file's packing. */
tn_status tn__saved_cover(tn_session_plan *plan, tn__shape shape, tn_graph *graph);
/* Adopts placement and packing of plan->saved. The list of graphs is computed as for any plan. */
tn_status tn__saved_adopt_into(tn_session_plan *plan);
/* Bytes that a device may take by the last check, within its domain. */
size_t tn__saved_free_of(const tn_session_plan *plan, size_t device);
/* Makes a plan from a saved one. TN_E_STATE: it is stale; the message says why. */
tn_status tn__saved_adopt(tn_model *model, const tn_session_params *params, const tn__saved_plan *saved,
                          tn_session_plan **plan);

tn_status tn__saved_write(const tn__saved_plan *saved, const char *path);
/* TN_E_FORMAT, TN_E_VERSION, TN_E_CHECKSUM: not a plan, of another version of the format, or damaged. */
tn_status tn__saved_read(const char *path, tn__saved_plan *saved);
void tn__saved_free(tn__saved_plan *saved);

#endif
