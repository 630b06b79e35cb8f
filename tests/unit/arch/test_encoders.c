/* Encoders: the states of tiny models against the formulas of their families, in doubles. */
#include "support.h"

#include "models/tiny_models.h"
#include "tenon/arch.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 30, W = 32, HEADS = 2, HEAD = 16, FF = 64, WINDOW = 6, EXPERTS = 4, USED = 2, MOST = 2 * FF };
typedef enum position_kind { NO_POSITIONS, NEIGHBOURS, HALVES, DISTANCES, BUCKETS } position_kind;
typedef enum gate_kind { PLAIN, GELU_GATE, TANH_GATE, SILU_GATE } gate_kind;

typedef struct family {
    const char *arch;
    bool bert;  /* norms after the sums */
    bool means; /* norms subtract the mean */
    position_kind positions;
    gate_kind gate;
    int full_layer; /* with windows: layers % period == full_layer see everything */
    int period;     /* 0: no windows */
    bool gemma;     /* scaled embeddings, norms of q and k and after each part */
} family;

static const family families[] = {
    {"bert", true, true, NO_POSITIONS, PLAIN, 0, 0, false},
    {"nomic-bert", true, true, HALVES, SILU_GATE, 0, 0, false},
    {"t5encoder", false, false, BUCKETS, TANH_GATE, 0, 0, false},
    {"modern-bert", false, true, HALVES, GELU_GATE, 0, 3, false},
    {"nomic-bert-moe", true, true, HALVES, PLAIN, 0, 0, false},
    {"jina-bert-v2", true, true, DISTANCES, GELU_GATE, 0, 0, false},
    {"jina-bert-v3", true, true, HALVES, PLAIN, 0, 0, false},
    {"gemma-embedding", false, false, HALVES, TANH_GATE, 5, 6, true},
    {"neo-bert", false, false, NEIGHBOURS, SILU_GATE, 0, 0, false},
    {"eurobert", false, false, HALVES, SILU_GATE, 0, 0, false},
};

static const tn_model *model;

static const float *weight(int layer, const char *name) {
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const tn_gguf_tensor *t = tn_gguf_find_tensor(tn_model_file(model), full);
    if (!t && layer >= 0) { /* T5 */
        snprintf(full, sizeof full, "enc.blk.%d.%s", layer, name);
        t = tn_gguf_find_tensor(tn_model_file(model), full);
    }
    return t ? t->data : NULL;
}

/* y = M x + b */
static void multiply(const float *m, const float *b, int in, int out, const double *x, double *y) {
    for (int o = 0; o < out; o++) {
        y[o] = b ? b[o] : 0;
        for (int i = 0; i < in; i++) y[o] += (double)m[o * in + i] * x[i];
    }
}

static void norm(const family *f, const float *w, const float *b, int n, double *x) {
    double mean = 0, square = 0;
    if (!w) return;
    for (int i = 0; i < n; i++) mean += f->means ? x[i] / n : 0;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) x[i] = (x[i] - mean) / sqrt(square + 1e-5) * w[i] + (b ? b[i] : 0);
}

static double gelu(double x) { return x / 2 * (1 + erf(x / sqrt(2))); }
static double activate(gate_kind kind, double x) {
    if (kind == SILU_GATE) return x / (1 + exp(-x));
    if (kind == TANH_GATE) return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return gelu(x);
}

static void rotate(const family *f, double base, int position, double *x) {
    for (int i = 0; i < HEAD / 2; i++) {
        const int a = f->positions == HALVES ? i : 2 * i, b = f->positions == HALVES ? i + HEAD / 2 : 2 * i + 1;
        const double angle = position * pow(base, -2.0 * i / HEAD), u = x[a], v = x[b];
        x[a] = u * cos(angle) - v * sin(angle);
        x[b] = u * sin(angle) + v * cos(angle);
    }
}

/* T5's bias of position s for token t: near distances have an entry each, far ones share them by their logarithm. */
static double bucket_bias(int head, int t, int s) {
    enum { SIDE = 16, NEAR = SIDE / 2, FAR = 128 };
    const int distance = abs(s - t);
    int bucket = distance;
    if (distance >= NEAR)
        bucket = NEAR + (int)(log((double)distance / NEAR) / log((double)FAR / NEAR) * (SIDE - NEAR) + 1e-9);
    if (bucket >= SIDE) bucket = SIDE - 1;
    return (double)weight(0, "attn_rel_b.weight")[((s > t ? SIDE : 0) + bucket) * HEADS + head];
}

static void attend(const family *f, int layer, double x[TOKENS][W]) {
    static double q[TOKENS][W], kv[TOKENS][2][HEAD], out[TOKENS][W];
    const bool full = f->period == 0 || layer % f->period == f->full_layer;
    for (int t = 0; t < TOKENS; t++) {
        double qkv[W + 2 * HEAD];
        if (weight(layer, "attn_qkv.weight")) {
            multiply(weight(layer, "attn_qkv.weight"), weight(layer, "attn_qkv.bias"), W, W + 2 * HEAD, x[t], qkv);
        } else {
            multiply(weight(layer, "attn_q.weight"), weight(layer, "attn_q.bias"), W, W, x[t], qkv);
            multiply(weight(layer, "attn_k.weight"), weight(layer, "attn_k.bias"), W, HEAD, x[t], qkv + W);
            multiply(weight(layer, "attn_v.weight"), weight(layer, "attn_v.bias"), W, HEAD, x[t], qkv + W + HEAD);
        }
        for (int h = 0; h <= HEADS; h++) { /* the heads of q, then k */
            if (f->gemma)
                norm(f, weight(layer, h < HEADS ? "attn_q_norm.weight" : "attn_k_norm.weight"), NULL, HEAD,
                     qkv + h * HEAD);
            if (f->positions == HALVES || f->positions == NEIGHBOURS) rotate(f, 10000, t, qkv + h * HEAD);
        }
        memcpy(q[t], qkv, sizeof q[t]);
        memcpy(kv[t], qkv + W, sizeof kv[t]);
    }
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++) {
            double total = 0, sum[HEAD] = {0};
            for (int s = 0; s < TOKENS; s++) {
                if (!full && abs(s - t) > WINDOW / 2) continue;
                double score = 0;
                for (int i = 0; i < HEAD; i++)
                    score += q[t][h * HEAD + i] * kv[s][0][i] / (f->positions == BUCKETS ? 1 : sqrt(HEAD));
                if (f->positions == BUCKETS) score += bucket_bias(h, t, s);
                if (f->positions == DISTANCES) score -= pow(2, -8.0 * (h + 1) / HEADS) * abs(s - t);
                total += exp(score);
                for (int i = 0; i < HEAD; i++) sum[i] += exp(score) * kv[s][1][i];
            }
            for (int i = 0; i < HEAD; i++) out[t][h * HEAD + i] = sum[i] / total;
        }
    for (int t = 0; t < TOKENS; t++)
        multiply(weight(layer, f->positions == BUCKETS ? "attn_o.weight" : "attn_output.weight"),
                 weight(layer, "attn_output.bias"), W, W, out[t], x[t]);
}

/* The two likeliest of the experts, weighted by their probabilities. */
static void experts(int layer, double *x) {
    double logits[EXPERTS], total = 0, sum[W] = {0};
    multiply(weight(layer, "ffn_gate_inp.weight"), NULL, W, EXPERTS, x, logits);
    for (int e = 0; e < EXPERTS; e++) total += exp(logits[e]);
    for (int e = 0; e < EXPERTS; e++) {
        int better = 0;
        for (int o = 0; o < EXPERTS; o++) better += logits[o] > logits[e];
        if (better >= USED) continue;
        double up[FF], y[W];
        multiply(weight(layer, "ffn_up_exps.weight") + e * W * FF, NULL, W, FF, x, up);
        for (int i = 0; i < FF; i++) up[i] = gelu(up[i]);
        multiply(weight(layer, "ffn_down_exps.weight") + e * W * FF, NULL, FF, W, up, y);
        for (int i = 0; i < W; i++) sum[i] += exp(logits[e]) / total * y[i];
    }
    memcpy(x, sum, sizeof sum);
}

static void feed(const family *f, int layer, double *x) {
    double up[MOST], gate[MOST], *g = up, *u = up + FF; /* gate and up may be one matrix */
    if (weight(layer, "ffn_gate_inp.weight")) {
        experts(layer, x);
        return;
    }
    const float *own = weight(layer, "ffn_gate.weight");
    const bool fused = f->gate != PLAIN && !own;
    multiply(weight(layer, "ffn_up.weight"), weight(layer, "ffn_up.bias"), W, fused ? MOST : FF, x, up);
    if (own) {
        multiply(own, weight(layer, "ffn_gate.bias"), W, FF, x, gate);
        g = gate, u = up;
    }
    for (int i = 0; i < FF; i++) up[i] = f->gate == PLAIN ? gelu(up[i]) : activate(f->gate, g[i]) * u[i];
    multiply(weight(layer, "ffn_down.weight"), weight(layer, "ffn_down.bias"), FF, W, up, x);
}

static void encode(const family *f, int layers, const tn_token *tokens, double x[TOKENS][W]) {
    static double y[TOKENS][W];
    const float *types = weight(-1, "token_types.weight"), *places = weight(-1, "position_embd.weight");
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < W; i++) {
            x[t][i] = weight(-1, "token_embd.weight")[tokens[t] * W + i] * (f->gemma ? sqrt(W) : 1);
            if (types) x[t][i] += types[i];
            if (places) x[t][i] += places[t * W + i];
        }
        norm(f, weight(-1, "token_embd_norm.weight"), weight(-1, "token_embd_norm.bias"), W, x[t]);
    }
    for (int l = 0; l < layers; l++) {
        memcpy(y, x, sizeof y);
        for (int t = 0; t < TOKENS && !f->bert; t++) norm(f, weight(l, "attn_norm.weight"), NULL, W, y[t]);
        attend(f, l, y);
        for (int t = 0; t < TOKENS; t++) {
            norm(f, weight(l, "post_attention_norm.weight"), NULL, W, y[t]);
            for (int i = 0; i < W; i++) x[t][i] += y[t][i];
            norm(f, weight(l, "attn_output_norm.weight"), weight(l, "attn_output_norm.bias"), W, x[t]);
            memcpy(y[t], x[t], sizeof y[t]);
            norm(f, weight(l, "ffn_norm.weight"), NULL, W, y[t]);
            feed(f, l, y[t]);
            norm(f, weight(l, "post_ffw_norm.weight"), NULL, W, y[t]);
            for (int i = 0; i < W; i++) x[t][i] += y[t][i];
            norm(f, weight(l, "layer_output_norm.weight"), weight(l, "layer_output_norm.bias"), W, x[t]);
        }
    }
    const float *last = weight(-1, "output_norm.weight");
    for (int t = 0; t < TOKENS; t++) norm(f, last ? last : weight(-1, "enc.output_norm.weight"), NULL, W, x[t]);
}

static void states_are_those_of_the_formulas(void **state) {
    (void)state;
    static const tn_token tokens[TOKENS] = {7,  1, 49, 0,  12, 12, 33, 5,  21, 40, 3,  60, 63, 17, 8,
                                            29, 8, 54, 31, 2,  11, 44, 56, 6,  5,  20, 38, 19, 61, 4};
    char path[] = "/tmp/tenon-encoders-XXXXXX";
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const family *f = &families[i];
        static double want[TOKENS][W];
        tn_model *opened;
        tn_session *session;
        tn_session_params p = tn_session_params_default();
        p.n_ctx = 64, p.devices[0] = "cpu", p.cache_k = p.cache_v = TN_F32, p.pooling = TN_POOLING_NONE;
        assert_ok(
            tiny_model_write(path, &(tiny_options){.arch = f->arch, .window = f->period ? WINDOW : 0, .seed = 9}));
        assert_ok(tn_model_open(path, NULL, &opened));
        model = opened;
        assert_true(tn_model_get_info(model).is_encoder);
        assert_ok(tn_session_open(opened, &p, &session));
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS, .tokens = tokens}));
        encode(f, tn_model_get_info(model).n_layer, tokens, want);
        for (int t = 0; t < TOKENS; t++) {
            const float *got = tn_session_embedding(session, t);
            for (int k = 0; k < W; k++)
                if (!(fabs(got[k] - want[t][k]) <= 1e-4 * (1 + fabs(want[t][k]))))
                    fail_msg("%s: token %d, element %d is %g, not %g", f->arch, t, k, (double)got[k], want[t][k]);
        }
        tn_session_free(session);
        tn_model_close(opened);
    }
    unlink(path);
}

/* No encoder is without its row above. */
static void every_encoder_is_here(void **state) {
    (void)state;
    for (size_t i = 0; tn_arch_at(i); i++) {
        bool found = !(tn_arch_at(i)->traits & TN_ARCH_ENCODER);
        for (size_t k = 0; k < sizeof families / sizeof *families; k++)
            found = found || strcmp(families[k].arch, tn_arch_at(i)->name) == 0;
        if (!found) fail_msg("%s has no formulas", tn_arch_at(i)->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_those_of_the_formulas),
                                       cmocka_unit_test(every_encoder_is_here)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
