/* The reference's frame: what a file says of its layers, embedding, layers one after the other, logits. */
#include "forward/forward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The file ---- */

bool forward_is(const forward_model *m, const char *arch) { return strcmp(m->f->arch, arch) == 0; }

static const char *full_key(const forward_model *m, const char *name) {
    static char text[128];
    snprintf(text, sizeof text, "%s.%s", m->f->arch, name);
    return text;
}
bool forward_has_key(const forward_model *m, const char *name) { return tn_gguf_find(m->file, full_key(m, name)); }

double forward_key_at(const forward_model *m, const char *name, int layer, double missing) {
    const char *key = full_key(m, name);
    const uint64_t i = (uint64_t)layer;
    const double real = (double)tn_gguf_get_f32_at(m->file, key, i, NAN);
    if (!isnan(real)) return real;
    const uint32_t whole = tn_gguf_get_u32_at(m->file, key, i, UINT32_MAX);
    if (whole != UINT32_MAX) return whole;
    if (!tn_gguf_find(m->file, key)) return missing;
    return tn_gguf_get_bool_at(m->file, key, i, false);
}
double forward_key(const forward_model *m, const char *name, double missing) {
    return forward_key_at(m, name, 0, missing);
}

const tn_gguf_tensor *forward_tensor(const forward_model *m, int layer, const char *name) {
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer % m->stored, name);
    return tn_gguf_find_tensor(m->file, full);
}
const float *forward_weight(const forward_model *m, int layer, const char *name) {
    const tn_gguf_tensor *t = forward_tensor(m, layer, name);
    return t ? t->data : NULL;
}

int forward_linear(const forward_model *m, int layer, const char *name, int e, const double *x, double *y) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    const tn_gguf_tensor *t = forward_tensor(m, layer, full);
    if (!t) return 0;
    const int in = (int)t->ne[0], out = (int)t->ne[1];
    snprintf(full, sizeof full, "%s.bias", name);
    const float *w = (const float *)t->data + (size_t)e * (size_t)in * (size_t)out,
                *b = forward_weight(m, layer, full);
    for (int o = 0; o < out; o++) {
        y[o] = b ? (double)b[e * out + o] : 0;
        for (int i = 0; i < in; i++) y[o] += (double)w[o * in + i] * x[i];
    }
    return out;
}

/* ---- Functions ---- */

double forward_sigmoid(double x) { return 1 / (1 + exp(-x)); }
double forward_silu(double x) { return x * forward_sigmoid(x); }
double forward_softplus(double x) { return x > 30 ? x : log1p(exp(x)); }
double forward_gelu(double x) { return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double forward_gated(const forward_model *m, double gate, double up) {
    switch (m->f->act) {
    case ACT_GELU_GATE: return forward_gelu(gate) * up;
    case ACT_RELU_GATE: return fmax(0, gate) * up;
    case ACT_OAI_GATE: {
        const double g = fmin(gate, 7), u = fmax(-7, fmin(up, 7));
        return g * forward_sigmoid(1.702 * g) * (u + 1);
    }
    case ACT_SITU_GATE: {
        const double b = forward_key(m, "activation.situ_beta", 0),
                     l = forward_key(m, "activation.situ_linear_beta", 0);
        return b * tanh(gate / b) * forward_sigmoid(gate) * l * tanh(up / l);
    }
    default: return forward_silu(gate) * up;
    }
}

void forward_norm(const forward_model *m, bool mean, const float *w, const float *b, int n, double eps, double *x) {
    (void)m;
    double middle = 0, square = 0;
    for (int i = 0; i < n; i++) middle += mean ? x[i] / n : 0;
    for (int i = 0; i < n; i++) square += (x[i] - middle) * (x[i] - middle) / n;
    for (int i = 0; i < n; i++)
        x[i] = (x[i] - middle) / sqrt(square + eps) * (w ? (double)w[i] : 1) + (b ? (double)b[i] : 0);
}

bool forward_norm_named(const forward_model *m, int layer, const char *name, int n, double *x) {
    char full[80];
    snprintf(full, sizeof full, "%s.weight", name);
    const float *w = forward_weight(m, layer, full);
    if (!w) return false;
    snprintf(full, sizeof full, "%s.bias", name);
    forward_norm(m, m->f->mean, w, forward_weight(m, layer, full), n, m->eps, x);
    return true;
}

void forward_rotate(forward_rope kind, int dims, double base, int position, double *x) {
    for (int i = 0; i < dims / 2 && kind != ROPE_NONE; i++) {
        const int a = kind == ROPE_HALVES ? i : 2 * i, b = kind == ROPE_HALVES ? i + dims / 2 : 2 * i + 1;
        const double angle = position * pow(base, -2.0 * i / dims), u = x[a], v = x[b];
        x[a] = u * cos(angle) - v * sin(angle);
        x[b] = u * sin(angle) + v * cos(angle);
    }
}

/* ---- Layers as the file describes them ---- */

static bool has_window(const forward_model *m, int il) {
    const char *pattern = "attention.sliding_window_pattern";
    const int period = m->f->period;
    if (forward_has_key(m, pattern)) return forward_key_at(m, pattern, il, 0) != 0;
    if (m->f->listed) return false;
    return period == 0 || (m->f->full_first ? il % period != 0 : il % period != period - 1);
}

/* Families whose layers without RoPE follow from their numbers. */
static bool has_rope(const forward_model *m, int il, const forward_layer *l) {
    const bool fourth = il % 4 == 3;
    if (m->f->rope_in_windows) return l->window > 0;
    if (forward_is(m, "smollm3") || forward_is(m, "afmoe") || forward_is(m, "llama4")) return !fourth;
    if (forward_is(m, "smallthinker")) return il % 4 != 0;
    if (forward_is(m, "cohere2moe")) return l->window > 0 || il < forward_key(m, "leading_dense_block_count", 0);
    return m->f->rope != ROPE_NONE;
}

static forward_kind mixer_of(const forward_model *m, int il, const forward_layer *l) {
    if (forward_is(m, "mamba") || forward_is(m, "mamba2")) return m->f->without_heads;
    if (forward_is(m, "falcon-h1")) return MIX_BOTH;
    if (forward_is(m, "qwen3next") || forward_is(m, "qwen35") || forward_is(m, "qwen35moe"))
        return (il + 1) % (int)forward_key(m, "full_attention_interval", 4) ? MIX_DELTA : MIX_ATTENTION;
    if (forward_is(m, "minimax-01"))
        return (il + 1) % (int)forward_key(m, "full_attention_interval", 8) ? MIX_LIGHTNING : MIX_ATTENTION;
    if (l->kv_heads == 0) return m->f->without_heads ? m->f->without_heads : l->heads ? MIX_MATRIX : MIX_NOTHING;
    return forward_tensor(m, il, "attn_kv_a_mqa.weight") ? MIX_LATENT : MIX_ATTENTION;
}

static void describe_layer(forward_model *m, int il) {
    forward_layer *l = &m->layer[il];
    const bool gemma4 = forward_is(m, "gemma4");
    l->heads = (int)forward_key_at(m, "attention.head_count", il % m->stored, 0);
    l->kv_heads = (int)forward_key_at(m, "attention.head_count_kv", il % m->stored, l->heads);
    l->window = has_window(m, il) ? (int)forward_key(m, "attention.sliding_window", 0) : 0;
    l->rope = has_rope(m, il, l);
    if (forward_is(m, "smallthinker") && l->window) l->window = 4096;
    if (forward_is(m, "llama4")) l->window = 0; /* chunks of 8192 positions */
    l->kind = mixer_of(m, il, l);
    if (strncmp(m->f->arch, "nemotron_h", 10) == 0 && forward_key_at(m, "feed_forward_length", il, 0) > 0)
        l->kind = MIX_NOTHING;
    if (l->kind == MIX_KDA) l->heads = l->kv_heads = (int)forward_key_at(m, "attention.head_count", 1, 0);
    l->head_k = (int)forward_key(m, gemma4 && l->window ? "attention.key_length_swa" : "attention.key_length", 0);
    l->head_v = (int)forward_key(m, gemma4 && l->window ? "attention.value_length_swa" : "attention.value_length", 0);
    if (l->kind == MIX_KDA) l->head_k = l->head_v = (int)forward_key(m, "kda.head_dim", 0);
    l->rotated =
        (int)forward_key(m, gemma4 && l->window ? "rope.dimension_count_swa" : "rope.dimension_count", l->head_k);
    if (forward_is(m, "step35") && !l->window) l->rotated = l->rotated / 2 & ~1;
    l->base = forward_key(m, "rope.freq_base", 10000);
    l->experts = forward_tensor(m, il, "ffn_gate_inp.weight") != NULL;
    l->cells_of = -1;
    const int shared = (int)forward_key(m, "attention.shared_kv_layers", 0), first = m->layers - shared;
    if (il >= first)
        for (int from = 0; from < first; from++)
            if ((m->layer[from].window > 0) == (l->window > 0)) l->cells_of = from;
}

static bool describe(forward_model *m) {
    m->f = forward_find(tn_gguf_get_cstr(m->file, "general.architecture", ""));
    if (!m->f) return false;
    m->stored = (int)forward_key(m, "block_count", 0);
    m->layers = m->stored * (int)forward_key(m, "num_loops", 1);
    m->width = (int)forward_key(m, "embedding_length", 0);
    m->vocab = (int)forward_key(m, "vocab_size", 0);
    m->causal = forward_key(m, "attention.causal", 1) != 0;
    m->eps = forward_key(m, m->f->mean ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5);
    if (m->layers > FORWARD_LAYERS || m->width > FORWARD_WIDTH || m->tokens > FORWARD_TOKENS) return false;
    for (int il = 0; il < m->layers; il++) describe_layer(m, il);
    return true;
}

/* ---- From tokens to states ---- */

static double embedding_scale(const forward_model *m) {
    double missing = 1;
    if (strncmp(m->f->arch, "gemma", 5) == 0 || forward_is(m, "afmoe")) missing = sqrt(m->width);
    if (forward_is(m, "grok")) missing = 78.38367176906169;
    if (forward_is(m, "minicpm") || forward_is(m, "minicpm3")) missing = 12;
    return forward_key(m, "embedding_scale", missing);
}

static void embed(const forward_model *m, forward_rows x) {
    const float *table = forward_weight(m, -1, "token_embd.weight"),
                *positions = forward_weight(m, -1, "position_embd.weight");
    const bool last_norm = strncmp(m->f->arch, "lfm2", 4) == 0; /* whose name is that of the embedding's */
    for (int t = 0; t < m->tokens; t++) {
        for (int i = 0; i < m->width; i++) {
            x[t][i] = (double)table[m->token[t] * m->width + i] * embedding_scale(m);
            if (positions) x[t][i] += (double)positions[t * m->width + i];
        }
        if (forward_is(m, "muse-glimmer") || forward_is(m, "talkie"))
            forward_norm(m, false, NULL, NULL, m->width, m->eps, x[t]);
        if (!last_norm) forward_norm_named(m, -1, "token_embd_norm", m->width, x[t]);
    }
}

static double residual_scale(const forward_model *m) {
    if (forward_is(m, "minicpm") || forward_is(m, "minicpm3"))
        return forward_key(m, "residual_scale", 1.4 / sqrt(m->layers));
    return forward_key(m, "residual_scale", 1);
}

/* A norm after a part, before it is added. */
static void post_norm(const forward_model *m, int il, const char *name, double *x) {
    const float *w = forward_weight(m, il, name);
    if (w) forward_norm(m, m->f->mean, w, NULL, m->width, forward_is(m, "muse-glimmer") ? 1e-8 : m->eps, x);
}

void forward_mix(forward_model *m, int il, forward_rows x) {
    static forward_rows both;
    switch (m->layer[il].kind) {
    case MIX_ATTENTION: forward_attention(m, il, x); break;
    case MIX_LATENT: forward_latent(m, il, x); break;
    case MIX_MATRIX:
        for (int t = 0; t < m->tokens; t++) {
            double y[FORWARD_MOST];
            forward_linear(m, il, "attn_output", 0, x[t], y);
            memcpy(x[t], y, (size_t)m->width * sizeof *y);
        }
        break;
    case MIX_BOTH:
        memcpy(both, x, sizeof both);
        forward_attention(m, il, both);
        forward_recurrent(m, il, x);
        for (int t = 0; t < m->tokens; t++)
            for (int i = 0; i < m->width; i++) x[t][i] += both[t][i];
        break;
    default: forward_recurrent(m, il, x);
    }
}

static bool feeds(const forward_model *m, int il) {
    return m->layer[il].experts || forward_tensor(m, il, "ffn_down.weight");
}

/* The norm before the feed-forward part. */
static void feed_norm(const forward_model *m, int il, double *x) {
    if (m->f->bare)
        forward_norm(m, m->f->mean, NULL, NULL, m->width, m->eps, x);
    else if (m->f->post_names)
        forward_norm_named(m, il, "post_attention_norm", m->width, x);
    else if (forward_is(m, "dbrx"))
        forward_norm_named(m, il, "attn_output_norm", m->width, x);
    else
        forward_norm_named(m, il, "ffn_norm", m->width, x);
}

static void run_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows in, y;
    const int W = m->width;
    const bool grok = forward_is(m, "grok");
    const bool parallel = m->f->flow == FLOW_PARALLEL ||
                          (forward_is(m, "stablelm") && !forward_tensor(m, il, "ffn_norm.weight")) ||
                          (m->f->flow == FLOW_PARALLEL_NORM && forward_key(m, "use_parallel_residual", 1) != 0);
    const bool mixes = m->layer[il].kind != MIX_NOTHING;
    memcpy(in, x, sizeof in);
    for (int t = 0; t < m->tokens && mixes; t++) {
        if (m->f->bare) forward_norm(m, m->f->mean, NULL, NULL, W, m->eps, in[t]);
        forward_norm_named(m, il, "attn_norm", W, in[t]);
    }
    memcpy(y, in, sizeof y);
    for (int t = 0; t < m->tokens && mixes; t++) forward_norm_named(m, il, "attn_norm_2", W, y[t]);
    if (mixes) forward_mix(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        double sum[FORWARD_MOST], z[FORWARD_MOST];
        if (mixes && !m->f->post_names)
            post_norm(m, il, grok ? "attn_output_norm.weight" : "post_attention_norm.weight", y[t]);
        for (int i = 0; i < W; i++) sum[i] = x[t][i] + (mixes ? residual_scale(m) * y[t][i] : 0);
        if (feeds(m, il)) {
            const bool own = parallel && m->f->flow == FLOW_PARALLEL_NORM;
            memcpy(z, own ? x[t] : parallel ? in[t] : sum, sizeof z);
            if (!parallel || own) feed_norm(m, il, z);
            forward_feed(m, il, forward_is(m, "smallthinker") ? x[t] : z, z);
            post_norm(m, il, grok ? "layer_output_norm.weight" : "post_ffw_norm.weight", z);
            for (int i = 0; i < W; i++) sum[i] += residual_scale(m) * z[i];
        }
        const float *again = forward_is(m, "talkie") ? forward_weight(m, il, "layer_output_scale.weight") : NULL;
        for (int i = 0; i < W; i++) x[t][i] = sum[i] + (again ? (double)*again * m->embedding[t][i] : 0);
        const bool loop_ends = (il + 1) % m->stored == 0 && il + 1 < m->layers;
        if (loop_ends) forward_norm_named(m, -1, "output_norm", W, x[t]);
    }
}

/* ---- Logits ---- */

static double logit_scale(const forward_model *m) {
    const double value = forward_key(m, "logit_scale", 0);
    const bool divides = strncmp(m->f->arch, "granite", 7) == 0 || forward_is(m, "minicpm");
    if (value != 0) return divides ? 1 / value : value;
    if (forward_is(m, "grok")) return 0.5773502691896257;
    return forward_is(m, "minicpm3") ? 256.0 / m->width : 1;
}

static void head(const forward_model *m, double *x, double *logits) {
    const bool lfm2 = strncmp(m->f->arch, "lfm2", 4) == 0;
    const bool capped = forward_is(m, "gemma2") || forward_is(m, "gemma4") || forward_is(m, "gemma3n") ||
                        forward_is(m, "muse-glimmer");
    const double cap = forward_key(m, "final_logit_softcapping", capped ? 30 : 0);
    if (m->f->bare) forward_norm(m, m->f->mean, NULL, NULL, m->width, m->eps, x);
    forward_norm_named(m, -1, lfm2 ? "token_embd_norm" : "output_norm", m->width, x);
    if (!forward_linear(m, -1, "output", 0, x, logits)) forward_linear(m, -1, "token_embd", 0, x, logits);
    for (int i = 0; i < m->vocab; i++) {
        logits[i] *= logit_scale(m);
        if (cap > 0) logits[i] = cap * tanh(logits[i] / cap);
    }
}

bool forward_logits(const tn_gguf *file, const tn_token *tokens, int n, double *logits) {
    static forward_rows x;
    forward_model *m = calloc(1, sizeof *m);
    if (!m) return false;
    m->file = file, m->token = tokens, m->tokens = n;
    const bool known = describe(m);
    if (known) {
        embed(m, x);
        memcpy(m->embedding, x, sizeof x);
        const bool special = forward_special_begin(m, x);
        for (int il = 0; il < m->layers; il++) {
            if (special)
                forward_special_layer(m, il, x);
            else
                run_layer(m, il, x);
        }
        if (special) forward_special_end(m, x);
        for (int t = 0; t < n; t++) head(m, x[t], logits + (size_t)t * (size_t)m->vocab);
    }
    free(m);
    return known;
}
