/* RWKV 6 and 7: time mixing with one state per head, then channel mixing. Both read the current and the previous
 * token; the last token is part of the state. */
#include "llm/parts/mixers.h"

#include <stddef.h>

#define HEAD_NORM_EPS 64e-5f /* of the norm over each head's output */

static void rwkv_memory(const tn__hparams *h, int32_t il, tn__layer_memory *m) {
    (void)il;
    m->state[0] = 2 * h->n_embd; /* the last inputs of time mixing and of channel mixing */
    m->state[1] = h->n_embd * h->rwkv.head;
}

/* The weights of the convolution that gives the token before: (1, 0) for every channel. */
tn_tensor *tn__rwkv_begin(tn__builder *b, tn_tensor *x) {
    const int64_t each[] = {2, b->h->n_embd, 1, 1};
    b->shared = tn_repeat(b->a, tn_scale(b->a, tn_arange(b->a, 0, 2, 1), -1, 1), each);
    b->shared = tn__name_node(b, b->shared, "shift");
    return x;
}

/* The token before minus x. Part 0 or 1 of the state holds the last token. */
static tn_tensor *build_shift(tn__builder *b, int32_t il, int part, tn_tensor *x, const char *what) {
    tn_tensor *all = tn__layer_state(b, il, 0);
    if (!all) return NULL;
    const int64_t n = b->h->n_embd;
    tn_tensor *state = tn_view(b->a, all, 2, (const int64_t[]){n, all->ne[1]}, (const size_t[]){4, all->nb[1]},
                               (size_t)(part * n) * 4);
    tn_tensor *before = tn_causal_conv(b->a, x, b->shared, NULL, state, tn__builder_input(b, TN__INPUT_STEPS), false);
    return tn__name_node(b, tn_sub(b->a, before, x), what);
}

/* x, moved towards the token before by a share for every channel. */
static tn_tensor *build_lerp(const tn__builder *b, tn_tensor *x, tn_tensor *shift, tn_tensor *share) {
    return tn_add(b->a, x, tn_mul(b->a, shift, share));
}
/* Share number i of the fused ones. */
static tn_tensor *fused_share(const tn__builder *b, const tn__layer *l, int i) {
    if (!l->time_lerp) return NULL;
    const int64_t n = b->h->n_embd;
    return tn_view(b->a, l->time_lerp, 1, (const int64_t[]){n}, NULL, (size_t)(i * n) * 4);
}

static tn_tensor *to_heads(const tn__builder *b, tn_tensor *x) {
    return x ? tn_reshape(b->a, x, b->h->rwkv.head, b->h->n_embd / b->h->rwkv.head, x->ne[1]) : NULL;
}

/* Normalises the output of every head. */
static tn_tensor *finish_heads(const tn__builder *b, const tn__layer *l, tn_tensor *y, int64_t tokens) {
    y = tn_reshape(b->a, tn_norm(b->a, y, NULL, NULL, HEAD_NORM_EPS), b->h->n_embd, tokens);
    return tn_add(b->a, tn_mul(b->a, y, l->time_ln), l->time_ln_b);
}

/* ---- RWKV 7 ---- */

/* b + second · first · x, with f between the two. */
static tn_tensor *build_low_rank(const tn__builder *b, tn_tensor *first, tn_tensor *second, tn_tensor *bias,
                                 tn_tensor *x, tn_tensor *(*f)(tn_arena *a, tn_tensor *x), const char *what) {
    tn_tensor *inner = tn_mul_mat(b->a, first, x);
    tn_tensor *y = tn_mul_mat(b->a, second, f ? f(b->a, inner) : inner);
    return tn__name_node(b, bias ? tn_add(b->a, y, bias) : y, what);
}

static tn_tensor *build_rwkv7(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    if (!x) return NULL;
    const int64_t tokens = x->ne[1], head = b->h->rwkv.head, heads = b->h->n_embd / head;
    tn_tensor *shift = build_shift(b, il, 0, x, "time_shift"), *in[6];
    for (int i = 0; i < 6; i++) in[i] = build_lerp(b, x, shift, fused_share(b, l, i)); /* r w k v a g */
    tn_tensor *r = tn__build_linear(b, l->time_receptance, NULL, NULL, in[0], "r");
    tn_tensor *w = build_low_rank(b, l->time_w1, l->time_w2, l->time_w0, in[1], tn_tanh, "decay");
    tn_tensor *k = tn__build_linear(b, l->time_key, NULL, NULL, in[2], "k");
    tn_tensor *v = tn__build_linear(b, l->time_value, NULL, NULL, in[3], "v");
    if (!b->first_value) {
        b->first_value = v;
    } else { /* moved towards the values of the first layer */
        tn_tensor *share =
            tn_sigmoid(a, build_low_rank(b, l->time_v1, l->time_v2, l->time_v0, in[3], NULL, "value_share"));
        v = tn_add(a, v, tn_mul(a, tn_sub(a, b->first_value, v), share));
    }
    tn_tensor *rate = tn_sigmoid(a, build_low_rank(b, l->time_a1, l->time_a2, l->time_a0, in[4], NULL, "rate"));
    tn_tensor *gate = build_low_rank(b, l->time_g1, l->time_g2, NULL, in[5], tn_sigmoid, "gate");
    tn_tensor *removed = tn_l2_norm(a, to_heads(b, tn_mul(a, k, l->time_k_k)), 1e-12f);
    tn_tensor *scaled = tn_mul(a, k, l->time_k_a);
    k = tn_add(a, k, tn_sub(a, tn_mul(a, rate, scaled), scaled));
    /* The decay is exp(-sigmoid(w) / √e). */
    w = tn_exp(a, tn_scale(a, tn_sigmoid(a, w), -0.606531f, 0));
    const tn_rwkv7_sources sources = {.r = to_heads(b, r),
                                      .w = to_heads(b, w),
                                      .k = to_heads(b, k),
                                      .v = to_heads(b, v),
                                      .a = tn_neg(a, removed),
                                      .b = tn_mul(a, removed, to_heads(b, rate)),
                                      .state = tn__layer_state(b, il, 1),
                                      .steps = tn__builder_input(b, TN__INPUT_STEPS)};
    tn_tensor *y = finish_heads(b, l, tn__name_node(b, tn_rwkv7(a, &sources), "time_scan"), tokens);
    tn_tensor *own = tn_mul(a, tn_mul(a, sources.k, sources.r), tn_reshape(a, l->time_r_k, head, heads));
    own = tn_reshape(a, tn_mul(a, sources.v, tn_sum_rows(a, own)), b->h->n_embd, tokens);
    y = tn_mul(a, tn_add(a, y, own), gate);
    return tn__build_linear(b, l->time_output, NULL, NULL, y, "attn_out");
}

const tn__mixer tn__rwkv7 = {.name = "RWKV 7", .kinds = TN__MIXES_RWKV7, .memory = rwkv_memory, .build = build_rwkv7};

/* ---- RWKV 6 ---- */

static tn_tensor *build_rwkv6(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    if (!x) return NULL;
    const int64_t tokens = x->ne[1], n = b->h->n_embd, low = b->h->rwkv.mix;
    tn_tensor *shift = build_shift(b, il, 0, x, "time_shift"), *in[5];
    /* The shares depend on the token: five small matmuls. */
    tn_tensor *small = tn_tanh(a, tn_mul_mat(a, l->time_w1, build_lerp(b, x, shift, l->time_lerp_x)));
    small = tn_cont(a, tn_permute(a, tn_reshape(a, small, low, 5, tokens), 0, 2, 1, 3));
    tn_tensor *shares = tn__name_node(b, tn_mul_mat(a, l->time_w2, small), "time_shares");
    tn_tensor *const single[] = {l->time_lerp_w, l->time_lerp_k, l->time_lerp_v, l->time_lerp_r, l->time_lerp_g};
    if (!shares) return NULL;
    for (int i = 0; i < 5; i++) {
        tn_tensor *own = tn_view(a, shares, 2, (const int64_t[]){n, tokens}, (const size_t[]){4, shares->nb[1]},
                                 (size_t)i * shares->nb[2]);
        tn_tensor *usual = l->time_lerp ? fused_share(b, l, i) : tn_reshape(a, single[i], n);
        in[i] = build_lerp(b, x, shift, tn_add(a, own, usual)); /* w k v r g */
    }
    tn_tensor *r = tn__build_linear(b, l->time_receptance, NULL, NULL, in[3], "r");
    tn_tensor *k = tn__build_linear(b, l->time_key, NULL, NULL, in[1], "k");
    tn_tensor *v = tn__build_linear(b, l->time_value, NULL, NULL, in[2], "v");
    tn_tensor *gate = tn_silu(a, tn__build_linear(b, l->time_gate, NULL, NULL, in[4], "gate"));
    tn_tensor *w = build_low_rank(b, l->time_decay_w1, l->time_decay_w2, l->time_decay, in[0], tn_tanh, "decay");
    const tn_linear_attention_sources sources = {.q = to_heads(b, r),
                                                 .k = to_heads(b, k),
                                                 .v = to_heads(b, v),
                                                 .g = to_heads(b, tn_neg(a, tn_exp(a, w))),
                                                 .u = l->time_first,
                                                 .state = tn__layer_state(b, il, 1),
                                                 .steps = tn__builder_input(b, TN__INPUT_STEPS)};
    const tn_linear_attention_params p = {.scale = 1};
    tn_tensor *y = tn__name_node(b, tn_linear_attention(a, &sources, &p), "time_scan");
    y = tn_mul(a, finish_heads(b, l, y, tokens), gate);
    return tn__build_linear(b, l->time_output, NULL, NULL, y, "attn_out");
}

const tn__mixer tn__rwkv6 = {.name = "RWKV 6", .kinds = TN__MIXES_RWKV6, .memory = rwkv_memory, .build = build_rwkv6};

/* ---- The layer ---- */

tn_tensor *tn__build_rwkv_layer(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn_tensor *in = tn__name_node(b, tn__build_norm(b, x, l->attn_norm, l->attn_norm_b), "attn_norm");
    x = tn__name_node(b, tn_add(a, tn__build_mixer(b, il, in), x), "attn_sum");
    in = tn__name_node(b, tn__build_norm(b, x, l->attn_norm_2, l->attn_norm_2_b), "ffn_norm");
    /* All tokens pass through the state; the output rows alone are computed further. */
    tn_tensor *shift = build_shift(b, il, 1, in, "channel_shift");
    shift = tn__build_wanted(b, il, shift, "channel_shift_wanted");
    in = tn__build_wanted(b, il, in, "ffn_norm_wanted");
    x = tn__build_wanted(b, il, x, "x_wanted");
    tn_tensor *k = build_lerp(b, in, shift, tn_reshape(a, l->channel_lerp_k, b->h->n_embd));
    k = tn_sqr(a, tn_relu(a, tn__build_linear(b, l->channel_key, NULL, NULL, k, "ffn_up")));
    tn_tensor *y = tn__build_linear(b, l->channel_value, NULL, NULL, k, "ffn_out");
    if (l->channel_receptance) {
        tn_tensor *r = build_lerp(b, in, shift, tn_reshape(a, l->channel_lerp_r, b->h->n_embd));
        y = tn_mul(a, tn_sigmoid(a, tn__build_linear(b, l->channel_receptance, NULL, NULL, r, "receptance")), y);
    }
    x = tn_add(a, y, x);
    /* The weights of some files grow so that halving keeps the state in the range of half floats. */
    const int32_t every = b->h->rwkv.halve_every;
    return every > 0 && (il + 1) % every == 0 ? tn_scale(a, x, 0.5f, 0) : x;
}

tn_status tn__read_rwkv(const tn_gguf *file, tn__hparams *h, const tn__mixer *mixer) {
    static const struct {
        const char *name;
        size_t offset;
        uint32_t kind;
    } keys[] = {
        {"time_mix_extra_dim", offsetof(tn__hparams, rwkv.mix), TN__MIXES_RWKV6},
        {"time_decay_extra_dim", offsetof(tn__hparams, rwkv.decay), TN__MIXES_RWKV6},
        {"attention.decay_lora_rank", offsetof(tn__hparams, rwkv.decay), TN__MIXES_RWKV7},
        {"attention.iclr_lora_rank", offsetof(tn__hparams, rwkv.rate), TN__MIXES_RWKV7},
        {"attention.value_residual_mix_lora_rank", offsetof(tn__hparams, rwkv.value), TN__MIXES_RWKV7},
        {"attention.gate_lora_rank", offsetof(tn__hparams, rwkv.gate), TN__MIXES_RWKV7},
    };
    h->rwkv.head = tn_gguf_get_i32(file, tn__arch_key(file, "wkv.head_size"), 0);
    h->rwkv.channels = h->layers[0].n_ff;
    h->rwkv.halve_every = tn_gguf_get_i32(file, tn__arch_key(file, "rescale_every_n_layers"), 0);
    if (h->rwkv.head < 1 || h->rwkv.head > 256 || h->n_embd % h->rwkv.head || h->rwkv.channels < 1 ||
        (int64_t)h->n_embd * h->rwkv.head > INT32_MAX)
        return tn_fail(TN_E_FORMAT, "%s: RWKV with a width of %d, heads of %d and %d channels is not valid",
                       tn_gguf_path(file), h->n_embd, h->rwkv.head, h->rwkv.channels);
    if (tn_gguf_get_i32(file, tn__arch_key(file, "token_shift_count"), 2) != 2)
        return tn_fail(TN_E_UNSUPPORTED, "%s: RWKV without a mixer over channels is not supported",
                       tn_gguf_path(file));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!(mixer->kinds & keys[i].kind)) continue;
        const int32_t value = tn_gguf_get_i32(file, tn__arch_key(file, keys[i].name), 0);
        if (value < 1 || value > 1 << 20)
            return tn_fail(TN_E_FORMAT, "%s: %s is %d", tn_gguf_path(file), tn__arch_key(file, keys[i].name), value);
        *(int32_t *)((char *)h + keys[i].offset) = value;
    }
    for (int32_t i = 0; i < h->n_layer; i++) {
        h->layers[i].n_head_kv = h->layers[i].n_ff = 0;
        h->layers[i].mixer = mixer;
    }
    return TN_OK;
}
