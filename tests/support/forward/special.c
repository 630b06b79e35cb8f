/* The reference's families whose layers are put together in ways of their own. */
#include "forward/forward.h"

#include <math.h>
#include <string.h>

enum { COPIES = 4 }; /* of the state, in Gemma 3n */
static double copies[FORWARD_TOKENS][COPIES][FORWARD_MOST];

static bool is_residual(const forward_model *m) { return forward_is(m, "kimi-k3"); }

/* ---- Embeddings of every layer (Gemma 3n and 4) ---- */

static int layer_width(const forward_model *m) { return (int)forward_key(m, "embedding_length_per_layer_input", 0); }

static void embed_layers(forward_model *m, forward_rows x) {
    const float *table = forward_weight(m, -1, "per_layer_token_embd.weight"),
                *norm = forward_weight(m, -1, "per_layer_proj_norm.weight");
    const int size = layer_width(m), n = size * m->layers;
    for (int t = 0; t < m->tokens; t++) {
        double *y = m->per_layer[t];
        forward_linear(m, -1, "per_layer_model_proj", 0, x[t], y);
        for (int i = 0; i < n; i++) y[i] /= sqrt(m->width);
        for (int l = 0; l < m->layers; l++) forward_norm(m, false, norm, NULL, size, m->eps, y + l * size);
        for (int i = 0; i < n; i++) y[i] = (y[i] + (double)table[m->token[t] * n + i] * sqrt(size)) * sqrt(0.5);
    }
}

/* What the layer makes of its own embedding and x. */
static void layer_embedding(const forward_model *m, int il, int t, const double *x, double *y) {
    double gate[FORWARD_MOST];
    const int size = layer_width(m);
    forward_linear(m, il, "inp_gate", 0, x, gate);
    for (int i = 0; i < size; i++) gate[i] = forward_gelu(gate[i]) * m->per_layer[t][il * size + i];
    forward_linear(m, il, "proj", 0, gate, y);
    forward_norm_named(m, il, "post_norm", m->width, y);
}

/* ---- Gemma 3n ---- */

static double size_of(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}
static void resize(double *x, const double *like, int n) {
    const double scale = size_of(like, n) / fmax(size_of(x, n), sqrt(1e-5 * n));
    for (int i = 0; i < n; i++) x[i] *= scale;
}

static void altup_shares(const forward_model *m, int il, const double *x, double *shares) {
    double in[FORWARD_MOST];
    memcpy(in, x, sizeof in);
    forward_norm_named(m, il, "altup_router_norm", m->width, in);
    for (int i = 0; i < m->width; i++) in[i] /= m->width;
    forward_linear(m, il, "altup_router", 0, in, shares);
    for (int c = 0; c < COPIES; c++) shares[c] = tanh(shares[c]);
}

static void sparse_gates(const forward_model *m, int il, double *x) {
    double gate[FORWARD_MOST], up[FORWARD_MOST], mean = 0, square = 0;
    const int n = forward_linear(m, il, "ffn_gate", 0, x, gate);
    forward_linear(m, il, "ffn_up", 0, x, up);
    for (int i = 0; i < n; i++) mean += gate[i] / n;
    for (int i = 0; i < n; i++) square += (gate[i] - mean) * (gate[i] - mean) / n;
    for (int i = 0; i < n; i++) {
        if (il < 10) gate[i] = fmax(0, gate[i] - mean - sqrt(square) * 1.6448533535);
        up[i] *= forward_gelu(gate[i]);
    }
    forward_linear(m, il, "ffn_down", 0, up, x);
}

static void gemma3n_layer(forward_model *m, int il) {
    static forward_rows in;
    static double predicted[FORWARD_TOKENS][COPIES][FORWARD_MOST];
    const int W = m->width;
    for (int t = 0; t < m->tokens; t++) {
        double shares[COPIES], mix[COPIES * COPIES];
        altup_shares(m, il, copies[t][0], shares);
        forward_linear(m, il, "altup_predict_coef", 0, shares, mix);
        for (int c = 0; c < COPIES; c++)
            for (int i = 0; i < W; i++) {
                predicted[t][c][i] = copies[t][c][i];
                for (int o = 0; o < COPIES; o++) predicted[t][c][i] += copies[t][o][i] * mix[c * COPIES + o];
            }
        memcpy(in[t], predicted[t][0], sizeof in[t]);
        forward_norm_named(m, il, "attn_norm", W, in[t]);
    }
    static forward_rows y;
    memcpy(y, in, sizeof y);
    forward_attention(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        double low[FORWARD_MOST], laurel[FORWARD_MOST], ffn[FORWARD_MOST], own[FORWARD_MOST], shares[COPIES],
            factors[COPIES];
        forward_linear(m, il, "laurel_l", 0, in[t], low);
        forward_linear(m, il, "laurel_r", 0, low, laurel);
        forward_norm_named(m, il, "laurel_post_norm", W, laurel);
        forward_norm_named(m, il, "post_attention_norm", W, y[t]);
        for (int i = 0; i < W; i++) y[t][i] = (y[t][i] + predicted[t][0][i] + laurel[i] + in[t][i]) * sqrt(0.5);
        memcpy(ffn, y[t], sizeof ffn);
        forward_norm_named(m, il, "ffn_norm", W, ffn);
        sparse_gates(m, il, ffn);
        forward_norm_named(m, il, "post_ffw_norm", W, ffn);
        for (int i = 0; i < W; i++) y[t][i] += ffn[i];
        altup_shares(m, il, y[t], shares);
        forward_linear(m, il, "altup_correct_coef", 0, shares, factors);
        for (int c = 0; c < COPIES; c++)
            for (int i = 0; i < W; i++)
                copies[t][c][i] = predicted[t][c][i] + (y[t][i] - predicted[t][0][i]) * (factors[c] + 1);
        const float *scale = forward_weight(m, il, "altup_correct_scale.weight");
        for (int i = 0; i < W; i++) own[i] = copies[t][0][i] * (double)scale[i];
        layer_embedding(m, il, t, own, ffn);
        for (int c = 1; c < COPIES; c++)
            for (int i = 0; i < W; i++) copies[t][c][i] += ffn[i];
    }
}

static void gemma3n_end(const forward_model *m, forward_rows x) {
    for (int t = 0; t < m->tokens; t++) {
        memcpy(x[t], copies[t][0], sizeof x[t]);
        for (int c = 1; c < COPIES; c++) {
            double y[FORWARD_MOST];
            forward_linear(m, -1, "altup_unembd_proj", c - 1, copies[t][c], y);
            resize(y, copies[t][0], m->width);
            for (int i = 0; i < m->width; i++) x[t][i] += y[i];
        }
        for (int i = 0; i < m->width; i++) x[t][i] /= COPIES;
    }
}

/* ---- Gemma 4, Arctic, Nemotron-H, MiniMax-01 ---- */

static void gemma4_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows y;
    const int W = m->width;
    const float *scale = forward_weight(m, il, "layer_output_scale.weight");
    memcpy(y, x, sizeof y);
    for (int t = 0; t < m->tokens; t++) forward_norm_named(m, il, "attn_norm", W, y[t]);
    forward_attention(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        double z[FORWARD_MOST];
        forward_norm_named(m, il, "post_attention_norm", W, y[t]);
        for (int i = 0; i < W; i++) z[i] = x[t][i] += y[t][i];
        forward_norm_named(m, il, "ffn_norm", W, z);
        forward_dense(m, il, z);
        forward_norm_named(m, il, "post_ffw_norm", W, z);
        for (int i = 0; i < W; i++) x[t][i] += z[i];
        layer_embedding(m, il, t, x[t], z);
        for (int i = 0; i < W; i++) x[t][i] = (x[t][i] + z[i]) * (scale ? (double)*scale : 1);
    }
}

/* The experts read the state before attention, the dense part the one after it. */
static void arctic_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows y;
    const int W = m->width;
    memcpy(y, x, sizeof y);
    for (int t = 0; t < m->tokens; t++) forward_norm_named(m, il, "attn_norm", W, y[t]);
    forward_attention(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        double in[FORWARD_MOST], dense[FORWARD_MOST], experts[FORWARD_MOST];
        memcpy(in, x[t], sizeof in);
        forward_norm_named(m, il, "ffn_norm_exps", W, in);
        memcpy(experts, in, sizeof in);
        forward_experts(m, il, in, experts);
        for (int i = 0; i < W; i++) dense[i] = x[t][i] += y[t][i];
        forward_norm_named(m, il, "ffn_norm", W, dense);
        forward_dense(m, il, dense);
        for (int i = 0; i < W; i++) x[t][i] += dense[i] + experts[i];
    }
}

/* Every layer is one thing: a mixer or a feed-forward part. */
static void single_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows y;
    memcpy(y, x, sizeof y);
    for (int t = 0; t < m->tokens; t++) forward_norm_named(m, il, "attn_norm", m->width, y[t]);
    if (m->layer[il].kind != MIX_NOTHING) forward_mix(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        if (m->layer[il].kind == MIX_NOTHING) forward_feed(m, il, y[t], y[t]);
        for (int i = 0; i < m->width; i++) x[t][i] += y[t][i];
    }
}

/* What is added to a part is its normalised input. */
static void minimax_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows in, y;
    const double scale = forward_key(m, "residual_scale", 1);
    const int W = m->width;
    for (int t = 0; t < m->tokens; t++) forward_norm_named(m, il, "attn_norm", W, x[t]);
    memcpy(in, x, sizeof in);
    memcpy(y, x, sizeof y);
    forward_mix(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        double z[FORWARD_MOST];
        for (int i = 0; i < W; i++) x[t][i] = y[t][i] + scale * in[t][i];
        forward_norm_named(m, il, "ffn_norm", W, x[t]);
        memcpy(z, x[t], sizeof z);
        forward_feed(m, il, z, z);
        for (int i = 0; i < W; i++) x[t][i] = z[i] + scale * x[t][i];
    }
}

/* ---- Attention residuals (Kimi K3) ---- */

/* A mixture of the kept states and x, by their scores. */
static void mix_states(const forward_model *m, int il, const char *name, int t, double *x) {
    const float *w = forward_weight(m, il, name);
    double scores[FORWARD_LAYERS + 1], total = 0, y[FORWARD_MOST] = {0};
    if (!m->n_kept || !w) return;
    for (int k = 0; k <= m->n_kept; k++) {
        const double *state = k < m->n_kept ? m->kept[k][t] : x;
        double copy[FORWARD_MOST];
        memcpy(copy, state, sizeof copy);
        forward_norm(m, false, w, NULL, m->width, m->eps, copy);
        scores[k] = 0;
        for (int i = 0; i < m->width; i++) scores[k] += copy[i];
        total += exp(scores[k]);
    }
    for (int k = 0; k <= m->n_kept; k++)
        for (int i = 0; i < m->width; i++) y[i] += exp(scores[k]) / total * (k < m->n_kept ? m->kept[k][t][i] : x[i]);
    memcpy(x, y, sizeof y);
}

static void residual_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows y;
    const int W = m->width, every = (int)forward_key(m, "attn_res.block_size", 0);
    const bool keeps = every > 0 && il % every == 0;
    memcpy(y, x, sizeof y);
    for (int t = 0; t < m->tokens; t++) mix_states(m, il, "attn_res_score.weight", t, y[t]);
    if (keeps) memcpy(m->kept[m->n_kept++], x, sizeof m->kept[0]);
    for (int t = 0; t < m->tokens; t++) forward_norm_named(m, il, "attn_norm", W, y[t]);
    forward_mix(m, il, y);
    for (int t = 0; t < m->tokens; t++) {
        double z[FORWARD_MOST];
        for (int i = 0; i < W; i++) z[i] = x[t][i] = y[t][i] + (keeps ? 0 : x[t][i]);
        mix_states(m, il, "ffn_res_score.weight", t, z);
        forward_norm_named(m, il, "ffn_norm", W, z);
        forward_feed(m, il, z, z);
        for (int i = 0; i < W; i++) x[t][i] += z[i];
    }
}

/* ---- All of them ---- */

bool forward_special_begin(forward_model *m, forward_rows x) {
    static const char *const archs[] = {"gemma3n",        "gemma4",     "arctic", "nemotron_h",
                                        "nemotron_h_moe", "minimax-01", "rwkv6",  "rwkv7"};
    if (forward_is(m, "gemma3n") || forward_is(m, "gemma4")) embed_layers(m, x);
    for (int t = 0; t < m->tokens && forward_is(m, "gemma3n"); t++) {
        memcpy(copies[t][0], x[t], sizeof x[t]);
        for (int c = 1; c < COPIES; c++) {
            forward_linear(m, -1, "altup_proj", c - 1, x[t], copies[t][c]);
            resize(copies[t][c], x[t], m->width);
        }
    }
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (forward_is(m, archs[i])) return true;
    return is_residual(m);
}

void forward_special_layer(forward_model *m, int il, forward_rows x) {
    if (forward_is(m, "gemma3n"))
        gemma3n_layer(m, il);
    else if (forward_is(m, "gemma4"))
        gemma4_layer(m, il, x);
    else if (forward_is(m, "arctic"))
        arctic_layer(m, il, x);
    else if (forward_is(m, "minimax-01"))
        minimax_layer(m, il, x);
    else if (strncmp(m->f->arch, "rwkv", 4) == 0)
        forward_rwkv_layer(m, il, x);
    else if (is_residual(m))
        residual_layer(m, il, x);
    else
        single_layer(m, il, x);
}

void forward_special_end(forward_model *m, forward_rows x) {
    if (forward_is(m, "gemma3n")) gemma3n_end(m, x);
    for (int t = 0; t < m->tokens && is_residual(m); t++) mix_states(m, -1, "output_res_score.weight", t, x[t]);
}
