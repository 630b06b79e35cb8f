/* Which tensors a model has, and how large they are. */
#include "llm/arch/tensors.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The words of the table's dimensions … */
#define D1(a)                                                                                                        \
    { TN__DIM_##a }
#define D2(a, b)                                                                                                     \
    { TN__DIM_##a, TN__DIM_##b }
#define D3(a, b, c)                                                                                                  \
    { TN__DIM_##a, TN__DIM_##b, TN__DIM_##c }
/* … and conditions. No family without weights in its norms has other norms than those below. */
#define HAS(trait) (f & TN_ARCH_##trait)
#define OPTIONAL false
#define PRE_NORM (!HAS(BARE_NORMS) && !HAS(ENCODER) && !HAS(NO_PRE_NORMS))
#define FFN_NORM (PRE_NORM && !HAS(NO_FFN_NORM) && !HAS(SINKS) && !HAS(ATTN_NORM_2))
#define FINAL_NORM (!HAS(BARE_NORMS) && !HAS(ENCODER))
#define ANY_QK_NORM (HAS(QK_NORM) || HAS(QK_NORM_WIDE) || HAS(QK_NORM_HEADS))
#define SPLIT_QKV !HAS(FUSED_QKV)
#define OWN_GATE (!HAS(NO_GATE) && !HAS(FUSED_UP))
#define MOE (s->experts > 0)
#define DENSE (s->experts == 0)
#define SHARED (MOE && HAS(SHARED_EXPERT) && s->shared_ffn > 0)
#define LONG_SHORT (HAS(ROPE_FACTORS) && HAS(ROPE_LONG_SHORT))

#define TN_X(member, name, dimensions, kind, condition)                                                              \
    static bool layer_has_##member(uint32_t f, const tn_arch_sizes *s) {                                             \
        (void)f, (void)s;                                                                                            \
        return condition;                                                                                            \
    }
TN__LAYER_TENSORS(TN_X)
#undef TN_X
#define TN_X(member, name, dimensions, kind, condition)                                                              \
    static bool model_has_##member(uint32_t f, const tn_arch_sizes *s) {                                             \
        (void)f, (void)s;                                                                                            \
        return condition;                                                                                            \
    }
TN__MODEL_TENSORS(TN_X)
#undef TN_X

const tn__tensor_row tn__layer_rows[] = {
#define TN_X(member, name, dimensions, kind, condition)                                                              \
    {name, offsetof(tn__layer, member), dimensions, TN_ARCH_##kind, layer_has_##member},
    TN__LAYER_TENSORS(TN_X)
#undef TN_X
};
const tn__tensor_row tn__model_rows[] = {
#define TN_X(member, name, dimensions, kind, condition)                                                              \
    {name, offsetof(tn__weights, member), dimensions, TN_ARCH_##kind, model_has_##member},
    TN__MODEL_TENSORS(TN_X)
#undef TN_X
};
const size_t tn__n_layer_rows = sizeof tn__layer_rows / sizeof *tn__layer_rows;
const size_t tn__n_model_rows = sizeof tn__model_rows / sizeof *tn__model_rows;

int64_t tn__dim_size(tn__dim dim, uint32_t f, const tn_arch_sizes *s) {
    const int64_t q = s->heads * s->head_k, k = s->kv_heads * s->head_k, v = s->kv_heads * s->head_v;
    switch (dim) {
    case TN__DIM_NONE:
    case TN__DIM_ANY: return 0;
    case TN__DIM_ONE: return 1;
    case TN__DIM_EMBD: return s->width;
    case TN__DIM_VOCAB: return s->vocab;
    case TN__DIM_CTX: return s->context;
    case TN__DIM_TYPES: return s->token_types;
    case TN__DIM_HEADS: return s->heads;
    case TN__DIM_Q: return q;
    case TN__DIM_K: return k;
    case TN__DIM_V: return v;
    case TN__DIM_QKV: return q + k + v;
    case TN__DIM_ATTN_OUT: return s->heads * s->head_v;
    case TN__DIM_Q_NORM: return HAS(QK_NORM_WIDE) ? q : s->head_k;
    case TN__DIM_K_NORM: return HAS(QK_NORM_WIDE) ? k : s->head_k;
    case TN__DIM_Q_NORM_HEADS: return HAS(QK_NORM_HEADS) ? s->heads : 0;
    case TN__DIM_K_NORM_HEADS: return HAS(QK_NORM_HEADS) ? s->kv_heads : 0;
    case TN__DIM_HALF_ROTATED: return s->rotated / 2;
    case TN__DIM_FF: return s->ffn;
    case TN__DIM_UP: return HAS(FUSED_UP) ? 2 * s->ffn : s->ffn;
    case TN__DIM_EXPERT: return s->experts;
    case TN__DIM_FF_EXPERT: return s->expert_ffn;
    case TN__DIM_FF_SHARED: return s->shared_ffn;
    }
    return 0;
}

bool tn__after_layers(const char *name) { return strncmp(name, "output", 6) == 0 || strncmp(name, "cls", 3) == 0; }

static tn_status visit_row(const tn__tensor_row *row, const char *name, uint32_t traits, const tn_arch_sizes *sizes,
                           tn_arch_tensor_fn fn, void *user) {
    int64_t ne[3];
    int n_dims = 0;
    while (n_dims < 3 && (ne[n_dims] = tn__dim_size(row->dims[n_dims], traits, sizes)) > 0) n_dims++;
    return fn(user, name, row->kind, n_dims, ne);
}

static tn_status visit_model_rows(bool after_layers, uint32_t traits, const tn_arch_sizes *sizes,
                                  tn_arch_tensor_fn fn, void *user) {
    for (size_t i = 0; i < tn__n_model_rows; i++) {
        const tn__tensor_row *row = &tn__model_rows[i];
        if (tn__after_layers(row->name) == after_layers && row->present(traits, sizes))
            TN_TRY(visit_row(row, row->name, traits, sizes, fn, user));
    }
    return TN_OK;
}

tn_status tn_arch_tensors(uint32_t traits, const tn_arch_sizes *sizes, tn_arch_tensor_fn fn, void *user) {
    char name[128];
    TN_TRY(visit_model_rows(false, traits, sizes, fn, user));
    for (int64_t layer = 0; layer < sizes->layers; layer++)
        for (size_t i = 0; i < tn__n_layer_rows; i++) {
            const tn__tensor_row *row = &tn__layer_rows[i];
            if (!row->present(traits, sizes)) continue;
            snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, row->name);
            TN_TRY(visit_row(row, name, traits, sizes, fn, user));
        }
    return visit_model_rows(true, traits, sizes, fn, user);
}
