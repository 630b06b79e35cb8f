/* The adapters of a session: their tensors on the session's devices, and which of them a graph contains. */
#ifndef TN_LLM_ADAPTERS_SESSION_ADAPTERS_H
#define TN_LLM_ADAPTERS_SESSION_ADAPTERS_H

#include "llm/adapters/adapter.h"

/* The matrices of one adapter for one weight. Their rank is padded with zeros to a multiple of TN__RANK_STEP, which
 * the matmuls of GPUs need. */
typedef struct tn__adapted_weight {
    const tn_tensor *weight;
    const tn__low_rank *pair;
    tn_tensor *a, *b;
    uint32_t adapter; /* its number in the session */
    float factor;     /* of this weight, beside the factor of the whole adapter */
    bool applied;     /* a graph that was built uses it */
} tn__adapted_weight;
enum { TN__RANK_STEP = 8 };

typedef struct tn__adapter_buffer {
    tn_buffer *buffer;
    size_t device;
} tn__adapter_buffer;

typedef struct tn__session_adapters {
    size_t n; /* adapters */
    tn_adapter_use *uses;
    float factors[TN_ADAPTERS_MOST]; /* alpha / rank of the first weight of each */
    tn__adapted_weight *list;        /* by address of the weight, then by adapter */
    size_t n_list;
    tn_control_use *controls;
    size_t n_controls;
    tn_tensor **directions; /* by layer: what is added to the state after it, or NULL; NULL: none at all */
    int32_t n_layer;
    tn_arena *arena;
    tn__adapter_buffer *buffers;
    size_t n_buffers;
} tn__session_adapters;

struct tn_session_plan;
struct tn_session;

/* Makes the tensors for plan->params, which must have their defaults. Takes no device memory. */
tn_status tn__session_adapters_new(struct tn_session_plan *plan);
void tn__session_adapters_end(tn__session_adapters *x); /* frees all but what the parameters point to */
void tn__session_adapters_free(tn__session_adapters *x);

/* ---- Variants of graphs ---- */

/* A graph contains the adapters of a set, one bit each. Sessions run graphs of these sets only: none, each adapter
 * alone, and all together. */
enum { TN__ADAPTER_VARIANTS_MOST = TN_ADAPTERS_MOST + 2 };
uint32_t tn__adapters_all(size_t n);
/* The smallest of these sets that contains `used`. */
uint32_t tn__adapters_variant(size_t n, uint32_t used);
/* All of them, the largest first; returns their number. */
size_t tn__adapters_variants(size_t n, uint32_t sets[TN__ADAPTER_VARIANTS_MOST]);
/* The set of the adapters that sequences begin with. */
uint32_t tn__adapters_default(const tn__session_adapters *x);
/* What `set` adapts in a weight: the entries from the returned one on, up to *n; those of other adapters among them
 * do not belong to the set. */
tn__adapted_weight *tn__adapters_of(const tn__session_adapters *x, const tn_tensor *weight, size_t *n);

/* ---- Memory ---- */

/* The i-th tensor, from 0 on, with its device; NULL after the last. */
tn_tensor *tn__adapter_tensor(const struct tn_session_plan *plan, size_t i, size_t *device);
/* Adds the bytes that a layer's tensors would take on a device to bytes[layer × stride]; n_layer is the output. */
void tn__adapters_add_layers(const struct tn_session_plan *plan, size_t device, size_t *bytes, size_t stride);
/* Bytes per device. TN_E_TOO_BIG where one tensor is larger than the largest allocation. */
tn_status tn__adapters_sizes(const struct tn_session_plan *plan, size_t *sizes);
tn_status tn__adapters_take(struct tn_session_plan *plan);
/* TN_E_UNSUPPORTED if an adapter changes a weight that no graph multiplies in a way that can be adapted. */
tn_status tn__adapters_check_applied(struct tn_session_plan *plan);

/* ---- Identity ---- */

/* Of adapters and control vectors with their first scales, for saved plans. */
uint64_t tn__adapters_params_hash(const tn_session_params *params);
/* Of the control vectors, which act on all sequences; 0: none. */
uint64_t tn__controls_hash(const tn_session_params *params);
/* Of the adapters of a sequence, with their scales; 0: none is on. */
uint64_t tn__sequence_adapters_hash(const struct tn_session *session, int32_t seq);
/* The key of what a sequence computes: the caller's, with that of its adapters. */
uint64_t tn__sequence_key(const struct tn_session *session, int32_t seq, uint64_t key);

#endif
