/* Which tensors a model has, and how large they are. */
#include "llm/arch/tensors.h"

#include "base/checked.h"
#include "llm/model_internal.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- Words of the tables ---- */

#define D1(a) a
#define D2(a, b) a, b
#define D3(a, b, c) a, b, c
#define D4(a, b, c, d) a, b, c, d

/* Conditions. No family without weights in its norms has other norms than those below. */
#define HAS(trait) ((c->f & TN_ARCH_##trait) != 0)
#define OPTIONAL TN__OPTIONAL
#define USUAL TN__USUAL
#define EITHER(condition) ((condition) ? USUAL : OPTIONAL) /* models may differ from their family */
#define ATTENDS tn__layer_attends(l)
#define HAS_MIXER tn__layer_mixes(l)
#define OWN_HEAD_GATE (ATTENDS && HAS(ATTN_GATE) && HAS(HEAD_GATE)) /* some models do without */
#define MIXER_GATE (MIXES(DELTA_NET) || MIXES(LIGHTNING) || (LATENT && HAS(GATED_LATENT)))
#define HAS_GATE (OWN_HEAD_GATE ? USUAL : (ATTENDS && HAS(ATTN_GATE)) || MIXER_GATE ? true : OPTIONAL)
#define PRE_NORM (!HAS(BARE_NORMS) && !HAS(BERT) && !HAS(NO_PRE_NORMS))
/* The norm of the embedding may serve as the first layer's. Layers that are one thing each have this norm alone. */
#define FIRST_NORM                                                                                                   \
    (!(PRE_NORM && (HAS_MIXER || (HAS(NO_FFN_NORM) && FEEDS))) ? false                                               \
     : l == h->layers && HAS(EMBEDDING_NORM) && HAS(ENCODER)   ? OPTIONAL                                            \
                                                               : true)
#define OTHER_FFN_NORM (HAS(RENAMED_FFN_NORM) || HAS(FFN_NORM_OUT) || HAS(ATTN_NORM_2))
#define HAS_FFN_NORM (PRE_NORM && FEEDS && !HAS(NO_FFN_NORM) && !OTHER_FFN_NORM)
#define NORM_OF_FFN (HAS_FFN_NORM && HAS(FFN_NORM_OR_PARALLEL) ? USUAL : HAS_FFN_NORM)
#define EMBEDDING_NORM (HAS(BERT) || HAS(EMBEDDING_NORM) || HAS(RENAMED_LAST_NORM))
#define FINAL_NORM (!HAS(BARE_NORMS) && !HAS(BERT) && !HAS(RENAMED_LAST_NORM))
#define ANY_QK_NORM (ATTENDS && (HAS(QK_NORM) || HAS(QK_NORM_WIDE) || HAS(QK_NORM_HEADS)))
#define FUSED_QKV ((ATTENDS && HAS(FUSED_QKV)) || MIXES(DELTA_NET) || MIXES(LIGHTNING))
#define SPLIT_QKV ((ATTENDS && !HAS(FUSED_QKV)) || MIXES(KDA))
#define OWN_KV (SPLIT_QKV ? EITHER(!l->cells_of) : false) /* also of layers that read the cells of others */
#define OWN_Q (SPLIT_QKV || (LATENT && h->q_rank == 0))
#define OWN_OUTPUT                                                                                                   \
    ((ATTENDS && !HAS(RELATIVE_BIAS)) || MIXES(LIGHTNING) || LATENT || MIXES(KDA) || l->mixer == &tn__linear_mixer)
#define OWN_GATE (!HAS(NO_GATE) && !HAS(FUSED_UP) && !h->plain_ffn)
#define FEEDS tn__layer_feeds(l)
#define MOE l->moe
#define DENSE ((!l->moe || HAS(DENSE_TOO)) && l->n_ff > 0)
#define SHARED (MOE && h->n_ff_shared > 0)
#define NEXTN (h->head_layer || l >= h->layers + h->n_layer) /* of layers that predict further tokens */

/* Dimensions. */
#define LOOSE(size) (c->file ? TN__ANY : (size)) /* files may have another size */
#define GIVEN(size) ((size) > 0 ? (size) : TN__ANY)
#define ONE 1
#define ANY TN__ANY
#define EMBD h->n_embd
#define VOCAB h->n_vocab
#define TEXT_VOCAB tn__n_text_vocab(h)
#define EAGLE (h->n_target_layers > 0) /* a head that reads states of several layers (arch/heads.c) */
#define FEATURES tn__feature_width(h)
#define GUESSED_VOCAB (EAGLE && !c->file ? TN__ANY : h->n_vocab) /* d2t says it */
#define ATTN_IN (EAGLE ? 2 * EMBD : EMBD)
#define LAST_NORM_IN (EAGLE ? FEATURES : EMBD)
#define CTX h->n_ctx_train
#define TYPES GIVEN(h->n_token_types)
#define HEADS l->n_head
#define Q ((int64_t)l->n_head * l->head_k) /* all heads of q, k, v together */
#define K ((int64_t)l->n_head_kv * l->head_k)
#define V ((int64_t)l->n_head_kv * l->head_v)
#define QKV (MIXES(DELTA_NET) ? SSM_CHANNELS : Q + K + V)
#define WQ (MIXES(LATENT) ? LATENT_Q : HAS(GATED_Q) ? 2 * Q : Q) /* maybe with a gate for every query */
#define ATTN_OUT ((int64_t)l->n_head * (LATENT ? l->latent_v : l->head_v))
#define Q_NORM LOOSE(HAS(Q_GAIN) ? 1 : HAS(QK_NORM_WIDE) ? Q : l->head_k) /* a head, or all heads */
#define K_NORM LOOSE(HAS(QK_NORM_WIDE) ? K : LATENT ? l->n_rot : l->head_k)
#define Q_NORM_HEADS LOOSE(HAS(QK_NORM_HEADS) || HAS(Q_GAIN) ? HEADS : 0) /* 0: the tensor has one dimension less */
#define K_NORM_HEADS LOOSE(HAS(QK_NORM_HEADS) ? l->n_head_kv : 0)
#define SECOND_NORM (MIXES(LIGHTNING) ? ATTN_OUT : EMBD)
#define HALF_ROTATED LOOSE(h->n_rot / 2)
#define FF l->n_ff
#define UP LOOSE(HAS(FUSED_UP) ? 2 * (int64_t)l->n_ff : l->n_ff) /* maybe gate and up together: see weights.c */
#define EXPERT h->n_expert
#define EXPERT_EMBD (h->n_expert_latent > 0 ? h->n_expert_latent : h->n_embd)
#define FF_EXPERT h->n_ff_expert
#define FF_CHUNK h->n_ff_chunk
#define CHUNK_EXPERTS (h->experts_per_group > 0 ? h->n_expert / h->experts_per_group : 0)
#define FF_SHARED GIVEN(h->n_ff_shared)

/* Of latent attention (parts/latent.h). */
#define LATENT (MIXES(LATENT) || MIXES(EXPANDED_LATENT))
#define Q_RANK h->q_rank
#define KV_RANK l->kv_rank
#define ROTATED l->n_rot
#define LATENT_HEADS l->n_head
#define LATENT_Q ((int64_t)l->n_head * l->latent_k)
#define LATENT_NOPE (l->latent_k - l->n_rot)
#define LATENT_V l->latent_v
#define LATENT_KV ((int64_t)l->n_head * (LATENT_NOPE + l->latent_v))

/* Of indexers (parts/indexer.h). */
#define OWN_INDEXER (l->indexer == TN__INDEXER_OWN)
#define INDEX_SIZE h->index.size
#define INDEX_HEADS h->index.heads
#define INDEX_Q ((int64_t)h->index.heads * h->index.size)

/* Of recurrent mixers (parts/recurrent.h). */
#define MIXES(kind) (l->mixer && (l->mixer->kinds & TN__MIXES_##kind) != 0)
#define STATE_SPACE (MIXES(MAMBA) || MIXES(MAMBA2) || MIXES(PLAMO_MAMBA))
#define NORMED_DT (MIXES(PLAMO_MAMBA) ? true : MIXES(MAMBA) ? (HAS(NORMED_DT) ? true : OPTIONAL) : false)
#define SSM_NORMED (MIXES(MAMBA2) ? EITHER(true) : MIXES(DELTA_NET) || MIXES(KDA))
#define SSM_WIDTH h->ssm.width
#define SSM_INNER ((int64_t)h->ssm.inner)
#define SSM_STATE ((int64_t)h->ssm.state)
#define SSM_HEADS ((int64_t)(MIXES(KDA) ? l->n_head : h->ssm.heads))
#define SSM_CHANNELS                                                                                                 \
    (MIXES(MAMBA) || MIXES(PLAMO_MAMBA) ? SSM_INNER : SSM_INNER + 2 * (int64_t)h->ssm.groups * SSM_STATE)
#define SSM_IN                                                                                                       \
    (MIXES(MAMBA) || MIXES(PLAMO_MAMBA) ? 2 * SSM_INNER                                                              \
     : MIXES(MAMBA2)                    ? SSM_INNER + SSM_CHANNELS + SSM_HEADS                                       \
                                        : LOOSE(0))
#define DT_RANK (MIXES(PLAMO_MAMBA) ? TN__MAX(64, h->n_embd / 16) : SSM_HEADS)
#define SSM_X (DT_RANK + 2 * SSM_STATE)
#define SSM_DT (MIXES(KDA) ? Q : MIXES(MAMBA) ? SSM_INNER : SSM_HEADS)
#define SSM_A (MIXES(KDA) ? LOOSE(SSM_HEADS) : MIXES(MAMBA) ? SSM_STATE : MIXES(MAMBA2) ? 1 : SSM_HEADS)
#define SSM_A_ROWS (MIXES(KDA) ? LOOSE(0) : MIXES(MAMBA) ? SSM_INNER : MIXES(MAMBA2) ? SSM_HEADS : 0)
#define SSM_D (MIXES(PLAMO_MAMBA) ? SSM_HEADS : MIXES(MAMBA) ? SSM_INNER : 1)
#define SSM_D_ROWS (MIXES(MAMBA) || MIXES(PLAMO_MAMBA) ? 0 : SSM_HEADS)
#define KDA_LOW (HAS(WIDE_KDA) ? Q : l->head_k) /* between the two matrices of a gate */
#define SSM_NORM                                                                                                     \
    (MIXES(KDA)      ? l->head_v                                                                                     \
     : MIXES(MAMBA2) ? SSM_INNER / TN__MAX(h->ssm.groups, 1)                                                         \
                     : SSM_INNER / TN__MAX(SSM_HEADS, 1))
#define SSM_NORM_ROWS (MIXES(MAMBA2) ? h->ssm.groups : 0)
#define SHORT_WIDTH h->short_conv

/* Of RWKV (parts/rwkv/rwkv.h). In the first layer of RWKV 7 nothing reads the matrices for values. */
#define RWKV_HEADS (h->rwkv.head > 0 ? h->n_embd / h->rwkv.head : 0)
#define RWKV_SHARES (MIXES(RWKV6) ? 5 : 6)
#define RWKV_W1 (MIXES(RWKV6) ? 5 * h->rwkv.mix : h->rwkv.decay)
#define RWKV_W2 (MIXES(RWKV6) ? h->rwkv.mix : h->rwkv.decay)
#define RWKV_W2_PARTS (MIXES(RWKV6) ? 5 : 0)
#define RWKV_VALUE (l == h->layers ? h->rwkv.rate : h->rwkv.value)

/* Of alternating updates (parts/residual/altup.h). */
#define ALTUP h->n_altup
#define LAUREL h->laurel_rank

/* Of embeddings of every layer (parts/layer_embedding.h). */
#define LAYER_EMBD h->n_embd_layer
#define ALL_LAYER_EMBD ((int64_t)h->n_embd_layer * h->n_layer)

#define GATE (MIXES(DELTA_NET) ? SSM_INNER : LOOSE(HAS(HEAD_GATE) ? HEADS : ATTN_OUT)) /* per head or per element */

#define DEFINE_ROW(prefix, member, condition, ...)                                                                   \
    static void prefix##_dims_##member(const tn__tensor_context *c, int64_t ne[4]) {                                 \
        const tn__hparams *h = c->h;                                                                                 \
        const tn__layer_hparams *l = c->l;                                                                           \
        const int64_t dims[] = {__VA_ARGS__};                                                                        \
        (void)h, (void)l;                                                                                            \
        memcpy(ne, dims, sizeof dims);                                                                               \
    }                                                                                                                \
    static int prefix##_has_##member(const tn__tensor_context *c) {                                                  \
        const tn__hparams *h = c->h;                                                                                 \
        const tn__layer_hparams *l = c->l;                                                                           \
        (void)h, (void)l;                                                                                            \
        return (int)(condition);                                                                                     \
    }
#define COUNT_DIMS_(a, b, c, d, n, ...) n
#define COUNT_DIMS(...) COUNT_DIMS_(__VA_ARGS__, 4, 3, 2, 1, 0)

#define TN_X(member, name, dims, kind, condition) DEFINE_ROW(layer, member, condition, dims)
TN__LAYER_TENSORS(TN_X)
#undef TN_X
#define TN_X(member, name, dims, kind, condition) DEFINE_ROW(model, member, condition, dims)
TN__MODEL_TENSORS(TN_X)
#undef TN_X

const tn__tensor_row tn__layer_rows[] = {
#define TN_X(member, name, dims, kind, condition)                                                                    \
    {name, offsetof(tn__layer, member), TN_ARCH_##kind, COUNT_DIMS(dims), layer_dims_##member, layer_has_##member},
    TN__LAYER_TENSORS(TN_X)
#undef TN_X
};
const tn__tensor_row tn__model_rows[] = {
#define TN_X(member, name, dims, kind, condition)                                                                    \
    {name, offsetof(tn__weights, member), TN_ARCH_##kind, COUNT_DIMS(dims), model_dims_##member, model_has_##member},
    TN__MODEL_TENSORS(TN_X)
#undef TN_X
};
#define TN_X(...) +1
const size_t tn__n_common_layer_rows = 0 TN__COMMON_TENSORS(TN_X);
#undef TN_X
const size_t tn__n_layer_rows = sizeof tn__layer_rows / sizeof *tn__layer_rows;
const size_t tn__n_model_rows = sizeof tn__model_rows / sizeof *tn__model_rows;

bool tn__in_head(const char *name) { return strcmp(name, "fc.weight") == 0; }
bool tn__after_layers(const char *name) { return strncmp(name, "output", 6) == 0 || strncmp(name, "cls", 3) == 0; }

/* ---- Listing ---- */

static tn_status visit_row(const tn__tensor_row *row, const char *name, const tn__tensor_context *context,
                           tn_arch_tensor_fn fn, void *user) {
    const int present = row->present(context);
    int64_t ne[4] = {0};
    if (!present) return TN_OK;
    tn_arch_tensor t = {.name = name, .kind = row->kind, .ne = {1, 1, 1, 1}};
    if (present != true) t.need = present == TN__USUAL ? TN_ARCH_USUAL : TN_ARCH_OPTIONAL;
    row->dims(context, ne);
    for (int i = 0; i < row->n_dims && ne[i]; i++) t.ne[t.n_dims++] = ne[i] > 0 ? ne[i] : 0;
    return t.n_dims ? fn(user, &t) : TN_OK;
}

static tn_status visit_model_rows(bool after_layers, const tn__tensor_context *context, tn_arch_tensor_fn fn,
                                  void *user) {
    for (size_t i = 0; i < tn__n_model_rows; i++)
        if (tn__after_layers(tn__model_rows[i].name) == after_layers)
            TN_TRY(visit_row(&tn__model_rows[i], tn__model_rows[i].name, context, fn, user));
    return TN_OK;
}

static tn_status visit_tensors(const tn__arch *arch, const tn__hparams *h, tn_arch_tensor_fn fn, void *user) {
    tn__tensor_context context = {.f = arch->info.traits, .h = h, .l = h->layers};
    char name[128];
    TN_TRY(visit_model_rows(false, &context, fn, user));
    for (int32_t layer = 0; layer < h->n_layer + h->n_nextn; layer++)
        for (size_t i = 0; i < tn__n_layer_rows && (layer < h->n_stored_layers || layer >= h->n_layer); i++) {
            context.l = &h->layers[layer];
            snprintf(name, sizeof name, "%sblk.%" PRId32 ".%s", tn__layer_prefix(arch), layer,
                     tn__layer_rows[i].name);
            TN_TRY(visit_row(&tn__layer_rows[i], name, &context, fn, user));
        }
    context.l = h->layers;
    return visit_model_rows(true, &context, fn, user);
}

tn_status tn_arch_tensors(const tn_gguf *metadata, tn_arch_tensor_fn fn, void *user) {
    if (!metadata || !fn) return tn_fail(TN_E_INVALID, "tn_arch_tensors: NULL argument");
    const char *name = tn_gguf_get_cstr(metadata, "general.architecture", "");
    const tn__arch *arch = tn__arch_find(name);
    if (!arch) return tn_fail(TN_E_UNSUPPORTED, "unknown architecture '%s'", name);
    tn__hparams h;
    tn_status status = tn__hparams_read(metadata, arch, &h);
    if (status == TN_OK) status = visit_tensors(arch, &h, fn, user);
    tn__hparams_free(&h);
    return status;
}
