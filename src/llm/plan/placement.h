/* A session's placement: layers are assigned by the runtime's policy, single weights by the caller's overrides. */
#ifndef TN_LLM_PLAN_PLACEMENT_H
#define TN_LLM_PLAN_PLACEMENT_H

#include "llm/model_internal.h"
#include "tenon/placement.h"

/* The device of one weight, if that is not its layer's. */
typedef struct tn__weight_placement {
    int16_t device, override; /* override: index in the caller's list; -1: none */
} tn__weight_placement;

typedef struct tn__session_placement {
    size_t n_devices;              /* = streams of the scheduler; the last is the host's */
    tn_buffer_type **types;        /* per device */
    tn_device **list;              /* the devices */
    tn_device_budget *budgets;     /* bytes that they may take, as of the last check */
    size_t *limits;                /* the caller's budgets; SIZE_MAX: none */
    int *device_of_layer;          /* n_layer + 2: input side, layers, output side */
    tn__weight_placement *weights; /* by number in the model */
    bool ends_together;            /* the embedding is placed with the output, if that is off the host */
    bool repack;                   /* weights are put in the buffer type with the fastest layout… */
    int32_t repack_rows;           /* …when this many rows are multiplied at once; 0: repeatable */
    /* The search for a placement that fits. */
    tn_placement_params params; /* points to the fields below; the output side is the last layer */
    tn_placement_device *devices;
    tn_placement_layer *layers;
    char *names;
    size_t *bytes, *needed, *domain_free;
    size_t *before; /* per device: `fixed` before the last tn__placement_learn */
    tn_placement *chosen;
} tn__session_placement;

struct tn_session_plan;
tn_status tn__placement_new(struct tn_session_plan *plan); /* after the scheduler exists */
void tn__placement_free(tn__session_placement *placement);
/* Fills device_of_layer with this many layers off the host; -1: as many as fit according to current knowledge. */
tn_status tn__placement_choose(struct tn_session_plan *plan, int32_t n_gpu_layers);
int32_t
tn__placement_count(const tn__session_placement *placement); /* layers off the host, including the output side */
/* Whether there is only one device beside the host and all weights would fit it, with two copies of the embedding. */
bool tn__placement_has_room(struct tn_session_plan *plan);
/* Updates the fixed needs of devices (compute buffers, scratch) from the current plan: increases them and, with
 * `exactly`, also decreases them. False: nothing changed, so another attempt would give the same result.
 * tn__placement_unlearn undoes the last call. */
bool tn__placement_learn(struct tn_session_plan *plan, bool exactly);
void tn__placement_unlearn(tn__session_placement *placement);
/* Updates the bytes that every device and domain may take now. The host is the last. */
tn_status tn__placement_budgets(const struct tn_session_plan *plan, tn_device_budget *budgets);
/* Reads the caller's budgets; lowers what devices and domains may take to them (limits.c). */
tn_status tn__limits_read(struct tn_session_plan *plan);
bool tn__limits_host(const struct tn_session_plan *plan); /* whether the host has a budget */
void tn__limits_apply(const struct tn_session_plan *plan, tn_device_budget *budgets);
/* Fills device_of_layer from the weights that an earlier session loaded. */
tn_status tn__placement_follow(struct tn_session_plan *plan);
int tn__placement_of_weight(const struct tn_session_plan *plan, const tn__weight *weight);
/* Prints the device of every weight and why, one line each. */
tn_status tn__placement_explain(const struct tn_session_plan *plan, FILE *out);

#endif
