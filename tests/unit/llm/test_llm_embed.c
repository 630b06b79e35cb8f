/* Embeddings: hidden states that give the golden logits, pooling by its definition, encoders against a plain
 * reference in doubles. */
#include "models/reference_models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tn_session_params embedding_params(tn_pooling pooling) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 128;
    p.n_seqs = 3;
    p.n_threads = 2;
    p.cache_k = p.cache_v = TN_F32;
    p.embeddings = true;
    p.pooling = pooling;
    return p;
}

static const float *weight(const tn_model *m, const char *name, int64_t *rows) {
    const tn_gguf_tensor *t = tn_gguf_find_tensor(tn_model_file(m), name);
    if (!t) return NULL;
    assert_int_equal(t->type, TN_F32);
    if (rows) *rows = t->ne[1];
    return t->data;
}

static void states_times_the_output_matrix_are_the_logits(void **state) {
    (void)state;
    reference_model g;
    reference_load("qwen3-dense", &g);
    tn_model *model;
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_NONE);
    p.n_ubatch = 7; /* several micro-batches, the last with padding */
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = g.n_tokens, .tokens = g.tokens}));
    assert_int_equal(tn_session_output_count(session), g.n_tokens);
    assert_null(tn_session_logits(session, 0));
    assert_null(tn_session_embedding(session, g.n_tokens));
    const float *out = weight(model, "output.weight", NULL);
    if (!out) out = weight(model, "token_embd.weight", NULL);
    int32_t n = tn_session_embedding_size(session);
    assert_int_equal(n, tn_model_get_info(model).n_embd);
    float *logits = malloc((size_t)g.n_vocab * sizeof *logits);
    nmse sum = {0};
    for (int32_t t = 0; t < g.n_tokens; t++) {
        const float *x = tn_session_embedding(session, t);
        for (int32_t v = 0; v < g.n_vocab; v++) {
            double dot = 0;
            for (int32_t i = 0; i < n; i++) dot += (double)x[i] * (double)out[(size_t)v * (size_t)n + (size_t)i];
            logits[v] = (float)dot;
        }
        nmse_add(&sum, logits, g.logits + (size_t)t * (size_t)g.n_vocab, g.n_vocab);
    }
    assert_true(nmse_value(&sum) <= 1e-6);
    free(logits);
    tn_session_free(session);
    tn_model_close(model);
    reference_free(&g);
}

/* Decodes two interleaved sequences of a causal model in several micro-batches, and compares each kind of pooling
 * with the states of the single tokens. */
static void pooling_is_what_it_says(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    enum { N = 20, WIDTH = 128 };
    int32_t seqs[N];
    static float states[N][WIDTH];
    for (int32_t i = 0; i < N; i++) seqs[i] = i % 3 ? 2 : 0;
    tn_model *model;
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_int_equal(tn_model_get_info(model).n_embd, WIDTH);
    for (tn_pooling pooling = TN_POOLING_MODEL; pooling <= TN_POOLING_LAST; pooling++) {
        if (pooling == TN_POOLING_MODEL) continue;
        tn_session *session;
        tn_session_params p = embedding_params(pooling);
        p.n_ubatch = 6;
        assert_ok(tn_session_open(model, &p, &session));
        for (int again = 0; again < 2; again++) { /* clearing removes everything of the first round */
            tn_session_clear(session);
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = N, .tokens = g.tokens, .seqs = seqs}));
        }
        assert_int_equal(tn_session_output_count(session), pooling == TN_POOLING_NONE ? N : 2);
        if (pooling == TN_POOLING_NONE) memcpy(states, tn_session_embedding(session, 0), sizeof states);
        for (int32_t r = 0; r < 2 && pooling != TN_POOLING_NONE; r++) {
            const float *got = tn_session_embedding(session, r);
            for (int32_t k = 0; k < WIDTH; k++) {
                double sum = 0, first = 0, last = 0;
                int count = 0;
                for (int32_t i = 0; i < N; i++) {
                    if (seqs[i] != 2 * r) continue;
                    if (!count++) first = states[i][k];
                    sum += last = states[i][k];
                }
                double want = pooling == TN_POOLING_MEAN ? sum / count : pooling == TN_POOLING_CLS ? first : last;
                assert_true(fabs(got[k] - want) <= 2e-5 * (1 + fabs(want)));
            }
        }
        tn_session_free(session);
    }
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_RANK);
    assert_fails(TN_E_UNSUPPORTED, tn_session_open(model, &p, &session));
    p = embedding_params(TN_POOLING_MODEL); /* the file says nothing: the last token's */
    assert_ok(tn_session_open(model, &p, &session));
    assert_int_equal(tn_session_get_params(session).pooling, TN_POOLING_LAST);
    assert_fails(TN_E_STATE, tn_session_prompt(session, 0, "x", 1));
    tn_session_free(session);
    tn_model_close(model);
    reference_free(&g);
}

/* All rows but one are outputs: the rows match. */
static void logits_of_all_rows_but_one(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 64;
    p.n_outputs = 8;
    p.cache_k = p.cache_v = TN_F32;
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    bool outputs[6] = {true, false, true, true, true, true};
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 6, .tokens = g.tokens, .outputs = outputs}));
    assert_int_equal(tn_session_output_count(session), 5);
    for (int32_t i = 0; i < 5; i++) {
        nmse sum = {0};
        int32_t row = i == 0 ? 0 : i + 1;
        nmse_add(&sum, tn_session_logits(session, i), g.logits + (size_t)row * (size_t)g.n_vocab, g.n_vocab);
        assert_true(nmse_value(&sum) <= 1e-6);
    }
    tn_session_free(session);
    tn_model_close(model);
    reference_free(&g);
}

/* Text and embeddings from one loaded model. */
static void sessions_share_a_model(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    tn_model *model;
    tn_session *text, *vectors;
    tn_session_params p = embedding_params(TN_POOLING_MEAN);
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &vectors));
    p.embeddings = false;
    p.n_outputs = 64;
    assert_ok(tn_session_open(model, &p, &text));
    float first[128];
    bool outputs[64];
    memset(outputs, 1, sizeof outputs);
    for (int round = 0; round < 2; round++) {
        nmse sum = {0};
        tn_session_clear(vectors);
        tn_session_clear(text);
        assert_ok(tn_session_decode(vectors, &(tn_batch){.n_tokens = 20, .tokens = g.tokens}));
        if (round == 0) memcpy(first, tn_session_embedding(vectors, 0), sizeof first);
        assert_memory_equal(first, tn_session_embedding(vectors, 0), sizeof first);
        assert_ok(
            tn_session_decode(text, &(tn_batch){.n_tokens = g.n_tokens, .tokens = g.tokens, .outputs = outputs}));
        nmse_add(&sum, tn_session_logits(text, 0), g.logits, g.n_tokens * g.n_vocab);
        assert_true(nmse_value(&sum) <= 1e-6);
    }
    tn_session_free(vectors);
    tn_session_free(text);
    tn_model_close(model);
    reference_free(&g);
}

static void normalisation_divides_by_the_norm(void **state) {
    (void)state;
    const float given[4] = {3, -4, 0, 12};
    const double norms[] = {12.0 / 32760, 19, 13, cbrt(27 + 64 + 1728)};
    for (int norm = -1; norm <= 3; norm++) {
        float row[4];
        memcpy(row, given, sizeof row);
        tn_embedding_normalize(row, 4, norm);
        for (int i = 0; i < 4; i++) {
            double want = norm < 0 ? given[i] : given[i] / norms[norm];
            assert_true(fabs(row[i] - want) <= 1e-6 * (1 + fabs(want)));
        }
    }
    float zeros[2] = {0, 0};
    tn_embedding_normalize(zeros, 2, 2);
    assert_true(zeros[0] == 0 && zeros[1] == 0);
}

/* ---- Encoders ---- */

/* A small model of random weights, compared with the formulas in doubles. */

enum { LAYERS = 2, W = 32, HEADS = 4, HEAD = W / HEADS, FF = 48, VOCAB = 50, POSITIONS = 40, LABELS = 2, MOST = 64 };

typedef struct encoder {
    char path[64];
    const char *arch;
    bool nomic;
    int pooling;   /* -1: the file does not say */
    int separator; /* 0: the file has none */
    struct {
        char name[64];
        int64_t ne[2];
        float *data;
    } tensors[MOST];
    int n_tensors;
    rng r;
} encoder;

static void put(encoder *e, const char *name, int layer, int64_t n0, int64_t n1, float scale, float centre) {
    int i = e->n_tensors++;
    assert_true(i < MOST);
    if (layer < 0)
        snprintf(e->tensors[i].name, sizeof e->tensors[i].name, "%s", name);
    else
        snprintf(e->tensors[i].name, sizeof e->tensors[i].name, "blk.%d.%s", layer, name);
    size_t count = (size_t)n0 * (size_t)n1;
    e->tensors[i].ne[0] = n0;
    e->tensors[i].ne[1] = n1;
    e->tensors[i].data = malloc(count * sizeof(float));
    for (size_t k = 0; k < count; k++) e->tensors[i].data[k] = centre + scale * rng_normal(&e->r);
}

static const float *get(const encoder *e, const char *name, int layer) {
    char full[64];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    for (int i = 0; i < e->n_tensors; i++)
        if (strcmp(e->tensors[i].name, full) == 0) return e->tensors[i].data;
    return NULL;
}

static void make_encoder(encoder *e) {
    e->r = (rng){e->nomic ? 5u : 3u};
    const float small = 0.1f;
    put(e, "token_embd.weight", -1, W, VOCAB, 1, 0);
    put(e, "token_types.weight", -1, W, 2, small, 0);
    put(e, "token_embd_norm.weight", -1, W, 1, small, 1);
    put(e, "token_embd_norm.bias", -1, W, 1, small, 0);
    if (!e->nomic) put(e, "position_embd.weight", -1, W, POSITIONS, 1, 0);
    for (int l = 0; l < LAYERS; l++) {
        if (e->nomic) {
            put(e, "attn_qkv.weight", l, W, 3 * W, 0.3f, 0);
            put(e, "ffn_gate.weight", l, W, FF, 0.3f, 0);
        } else {
            static const char *const names[][2] = {
                {"attn_q.weight", "attn_q.bias"}, {"attn_k.weight", "attn_k.bias"}, {"attn_v.weight", "attn_v.bias"}};
            for (int i = 0; i < 3; i++) {
                put(e, names[i][0], l, W, W, 0.3f, 0);
                put(e, names[i][1], l, W, 1, small, 0);
            }
            put(e, "attn_output.bias", l, W, 1, small, 0);
            put(e, "ffn_up.bias", l, FF, 1, small, 0);
            put(e, "ffn_down.bias", l, W, 1, small, 0);
        }
        put(e, "attn_output.weight", l, W, W, 0.3f, 0);
        put(e, "ffn_up.weight", l, W, FF, 0.3f, 0);
        put(e, "ffn_down.weight", l, FF, W, 0.3f, 0);
        put(e, "attn_output_norm.weight", l, W, 1, small, 1);
        put(e, "attn_output_norm.bias", l, W, 1, small, 0);
        put(e, "layer_output_norm.weight", l, W, 1, small, 1);
        put(e, "layer_output_norm.bias", l, W, 1, small, 0);
    }
    if (e->pooling == TN_POOLING_RANK) {
        put(e, "cls.weight", -1, W, W, 0.3f, 0);
        put(e, "cls.bias", -1, W, 1, small, 0);
        put(e, "cls.output.weight", -1, W, LABELS, 0.3f, 0);
        put(e, "cls.output.bias", -1, LABELS, 1, small, 0);
    }
    strcpy(e->path, "/tmp/tenon-encoder-XXXXXX");
    int file = mkstemp(e->path);
    assert_true(file >= 0);
    close(file);
    tn_gguf_writer *w;
    assert_ok(tn_gguf_writer_new(e->path, NULL, &w));
    assert_ok(tn_gguf_writer_set_cstr(w, "general.architecture", e->arch));
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", LAYERS},
                   {"embedding_length", W},
                   {"context_length", POSITIONS},
                   {"attention.head_count", HEADS},
                   {"feed_forward_length", FF}};
    char key[96];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", e->arch, numbers[i].key);
        assert_ok(tn_gguf_writer_set_u32(w, key, numbers[i].value));
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_epsilon", e->arch);
    assert_ok(tn_gguf_writer_set_f32(w, key, 1e-12f));
    snprintf(key, sizeof key, "%s.attention.causal", e->arch);
    assert_ok(tn_gguf_writer_set_bool(w, key, false));
    snprintf(key, sizeof key, "%s.pooling_type", e->arch);
    if (e->pooling >= 0) assert_ok(tn_gguf_writer_set_u32(w, key, (uint32_t)e->pooling));
    if (e->separator)
        assert_ok(tn_gguf_writer_set_u32(w, "tokenizer.ggml.seperator_token_id", (uint32_t)e->separator));
    for (int i = 0; i < e->n_tensors; i++) {
        const int64_t *ne = e->tensors[i].ne;
        assert_ok(tn_gguf_writer_add(w, e->tensors[i].name, TN_F32, ne[1] > 1 ? 2 : 1, ne));
    }
    assert_ok(tn_gguf_writer_begin(w));
    for (int i = 0; i < e->n_tensors; i++)
        assert_ok(tn_gguf_writer_write(w, e->tensors[i].data,
                                       (size_t)(e->tensors[i].ne[0] * e->tensors[i].ne[1]) * sizeof(float)));
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
}

static void free_encoder(encoder *e) {
    for (int i = 0; i < e->n_tensors; i++) free(e->tensors[i].data);
    unlink(e->path);
}

/* y = M x + b, M with `out` rows of `in`. */
static void affine(const float *m, const float *b, int in, int out, const double *x, double *y) {
    for (int o = 0; o < out; o++) {
        y[o] = b ? b[o] : 0;
        for (int i = 0; i < in; i++) y[o] += (double)m[o * in + i] * x[i];
    }
}
static void layer_norm(const float *w, const float *b, double *x) {
    double mean = 0, var = 0;
    for (int i = 0; i < W; i++) mean += x[i] / W;
    for (int i = 0; i < W; i++) var += (x[i] - mean) * (x[i] - mean) / W;
    for (int i = 0; i < W; i++) x[i] = (x[i] - mean) / sqrt(var + 1e-12) * w[i] + b[i];
}
static void rotate(double *head, int position) { /* halves, as GPT-NeoX */
    for (int i = 0; i < HEAD / 2; i++) {
        double angle = position * pow(10000, -2.0 * i / HEAD), a = head[i], b = head[i + HEAD / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + HEAD / 2] = a * sin(angle) + b * cos(angle);
    }
}

static void encode(const encoder *e, int n, const tn_token *tokens, double (*x)[W]) {
    static double q[POSITIONS][W], k[POSITIONS][W], v[POSITIONS][W];
    int type = 0; /* of the second text 1 */
    for (int t = 0; t < n; t++) {
        if (e->separator && t > 0 && tokens[t - 1] == e->separator) type = 1;
        for (int i = 0; i < W; i++) {
            x[t][i] = (double)get(e, "token_embd.weight", -1)[tokens[t] * W + i] +
                      get(e, "token_types.weight", -1)[type * W + i];
            if (!e->nomic) x[t][i] += get(e, "position_embd.weight", -1)[t * W + i];
        }
        layer_norm(get(e, "token_embd_norm.weight", -1), get(e, "token_embd_norm.bias", -1), x[t]);
    }
    for (int l = 0; l < LAYERS; l++) {
        for (int t = 0; t < n; t++) {
            double(*parts[3])[W] = {q, k, v};
            static const char *const w[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"}, *const b[] = {
                                                                                                    "attn_q.bias",
                                                                                                    "attn_k.bias",
                                                                                                    "attn_v.bias"};
            for (int p = 0; p < 3; p++) {
                affine(e->nomic ? get(e, "attn_qkv.weight", l) + p * W * W : get(e, w[p], l), get(e, b[p], l), W, W,
                       x[t], parts[p][t]);
                for (int h = 0; h < HEADS && e->nomic && p < 2; h++) rotate(parts[p][t] + h * HEAD, t);
            }
        }
        for (int t = 0; t < n; t++) {
            double mixed[W] = {0}, out[W], up[FF], gate[FF];
            for (int h = 0; h < HEADS; h++) {
                double score[POSITIONS], sum = 0;
                for (int c = 0; c < n; c++) {
                    double dot = 0;
                    for (int i = 0; i < HEAD; i++) dot += q[t][h * HEAD + i] * k[c][h * HEAD + i];
                    sum += score[c] = exp(dot / sqrt(HEAD));
                }
                for (int c = 0; c < n; c++)
                    for (int i = 0; i < HEAD; i++) mixed[h * HEAD + i] += score[c] / sum * v[c][h * HEAD + i];
            }
            affine(get(e, "attn_output.weight", l), get(e, "attn_output.bias", l), W, W, mixed, out);
            for (int i = 0; i < W; i++) x[t][i] += out[i];
            layer_norm(get(e, "attn_output_norm.weight", l), get(e, "attn_output_norm.bias", l), x[t]);
            affine(get(e, "ffn_up.weight", l), get(e, "ffn_up.bias", l), W, FF, x[t], up);
            if (e->nomic) affine(get(e, "ffn_gate.weight", l), NULL, W, FF, x[t], gate);
            for (int i = 0; i < FF; i++)
                up[i] = e->nomic ? gate[i] / (1 + exp(-gate[i])) * up[i] : 0.5 * up[i] * (1 + erf(up[i] / sqrt(2)));
            affine(get(e, "ffn_down.weight", l), get(e, "ffn_down.bias", l), FF, W, up, out);
            for (int i = 0; i < W; i++) x[t][i] += out[i];
            layer_norm(get(e, "layer_output_norm.weight", l), get(e, "layer_output_norm.bias", l), x[t]);
        }
    }
}

static void check_rows(const float *got, const double *want, int n) {
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-4 * (1 + fabs(want[i])))) fail_msg("%d: %g, not %g", i, got[i], want[i]);
}

static void encoders_agree_with_the_formulas(void **state) {
    (void)state;
    static const tn_token tokens[] = {7, 1, 49, 0, 12, 12, 33, 5, 21, 40, 3};
    enum { FIRST = 4, N = sizeof tokens / sizeof *tokens, SECOND = N - FIRST };
    for (int nomic = 0; nomic < 2; nomic++) {
        for (tn_pooling pooling = TN_POOLING_MODEL; pooling <= TN_POOLING_RANK; pooling++) {
            encoder e = {.arch = nomic ? "nomic-bert" : "bert", .nomic = nomic, .pooling = pooling};
            make_encoder(&e);
            static double states[2][POSITIONS][W];
            encode(&e, FIRST, tokens, states[0]);
            encode(&e, SECOND, tokens + FIRST, states[1]);
            tn_model *model;
            tn_session *session;
            tn_session_params p = embedding_params(TN_POOLING_MODEL);
            p.n_ubatch = 8; /* one text per micro-batch: they do not fit together */
            assert_ok(tn_model_open(e.path, NULL, &model));
            assert_true(tn_model_get_info(model).is_encoder);
            assert_ok(tn_session_open(model, &p, &session));
            int32_t seqs[N];
            for (int i = 0; i < N; i++) seqs[i] = i < FIRST ? 2 : 1;
            for (int again = 0; again < 2; again++)
                assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = N, .tokens = tokens, .seqs = seqs}));
            assert_int_equal(tn_session_cache_usage(session).used, 0);
            assert_int_equal(tn_session_output_count(session), pooling == TN_POOLING_NONE ? N : 2);
            for (int r = 0; r < 2; r++) {
                int n = r ? SECOND : FIRST;
                double want[W] = {0}, inner[W];
                switch (pooling) {
                case TN_POOLING_NONE:
                    for (int t = 0; t < n; t++)
                        check_rows(tn_session_embedding(session, r * FIRST + t), states[r][t], W);
                    continue;
                case TN_POOLING_MODEL: /* encoders: the mean */
                case TN_POOLING_MEAN:
                    for (int t = 0; t < n; t++)
                        for (int i = 0; i < W; i++) want[i] += states[r][t][i] / n;
                    break;
                case TN_POOLING_CLS: memcpy(want, states[r][0], sizeof want); break;
                case TN_POOLING_LAST: memcpy(want, states[r][n - 1], sizeof want); break;
                case TN_POOLING_RANK:
                    affine(get(&e, "cls.weight", -1), get(&e, "cls.bias", -1), W, W, states[r][0], inner);
                    for (int i = 0; i < W; i++) inner[i] = tanh(inner[i]);
                    affine(get(&e, "cls.output.weight", -1), get(&e, "cls.output.bias", -1), W, LABELS, inner, want);
                    break;
                }
                assert_int_equal(tn_session_embedding_size(session), pooling == TN_POOLING_RANK ? LABELS : W);
                check_rows(tn_session_embedding(session, r), want, tn_session_embedding_size(session));
            }
            tn_session_free(session);
            tn_model_close(model);
            free_encoder(&e);
        }
    }
}

/* A query and a document with a separator after each: the document's tokens have another type. */
static void pairs_of_texts_have_two_types(void **state) {
    (void)state;
    enum { SEPARATOR = 9, N = 12 };
    static const tn_token tokens[N] = {1, 5, SEPARATOR, 7, 8, SEPARATOR, 1, 30, 31, SEPARATOR, 4, SEPARATOR};
    static const int32_t seqs[N] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
    encoder e = {.arch = "bert", .pooling = TN_POOLING_RANK, .separator = SEPARATOR};
    make_encoder(&e);
    tn_model *model;
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_MODEL);
    assert_ok(tn_model_open(e.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = N, .tokens = tokens, .seqs = seqs}));
    for (int r = 0; r < 2; r++) {
        static double states[POSITIONS][W];
        double want[W], inner[W];
        encode(&e, N / 2, tokens + r * N / 2, states);
        affine(get(&e, "cls.weight", -1), get(&e, "cls.bias", -1), W, W, states[0], inner);
        for (int i = 0; i < W; i++) inner[i] = tanh(inner[i]);
        affine(get(&e, "cls.output.weight", -1), get(&e, "cls.output.bias", -1), W, LABELS, inner, want);
        check_rows(tn_session_embedding(session, r), want, LABELS);
        /* Without labels "yes" and "no" the first score is the relevance. */
        assert_true(tn_session_relevance(session, r) == tn_session_embedding(session, r)[0]);
    }
    assert_true(isnan(tn_session_relevance(session, 2)));
    tn_session_free(session);
    tn_model_close(model);
    free_encoder(&e);
}

static void encoders_refuse_what_they_cannot_read(void **state) {
    (void)state;
    encoder e = {.arch = "bert", .pooling = -1};
    make_encoder(&e);
    tn_model *model;
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_MODEL);
    p.n_ubatch = 8;
    p.embeddings = false; /* an encoder gives nothing else */
    assert_ok(tn_model_open(e.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    static const tn_token tokens[POSITIONS + 1];
    assert_fails(TN_E_TOO_BIG, tn_session_decode(session, &(tn_batch){.n_tokens = 9, .tokens = tokens}));
    assert_fails(
        TN_E_INVALID,
        tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = tokens, .seqs = (int32_t[]){0, 1, 0}}));
    assert_fails(TN_E_INVALID,
                 tn_session_decode(
                     session, &(tn_batch){.n_tokens = 1, .tokens = tokens, .positions = (int32_t[]){POSITIONS}}));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 8, .tokens = tokens}));
    tn_session_free(session);
    tn_model_close(model);
    free_encoder(&e);
}

static tn_status make_and_use(void *user) {
    tn_model *model;
    tn_session *session;
    tn_session_params p = embedding_params(TN_POOLING_MODEL);
    p.n_threads = 1;
    TN_TRY(tn_model_open(user, NULL, &model));
    tn_status status = tn_session_open(model, &p, &session);
    if (status == TN_OK)
        status = tn_session_decode(session, &(tn_batch){.n_tokens = 3, .tokens = (tn_token[]){1, 2, 3}});
    if (status == TN_OK && !tn_session_embedding(session, 0)) status = TN_E_INTERNAL;
    tn_session_free(session);
    tn_model_close(model);
    return status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    encoder e = {.arch = "nomic-bert", .nomic = true, .pooling = TN_POOLING_CLS};
    make_encoder(&e);
    check_every_allocation_failure(make_and_use, e.path);
    free_encoder(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_times_the_output_matrix_are_the_logits),
        cmocka_unit_test(pooling_is_what_it_says),
        cmocka_unit_test(logits_of_all_rows_but_one),
        cmocka_unit_test(sessions_share_a_model),
        cmocka_unit_test(normalisation_divides_by_the_norm),
        cmocka_unit_test(encoders_agree_with_the_formulas),
        cmocka_unit_test(pairs_of_texts_have_two_types),
        cmocka_unit_test(encoders_refuse_what_they_cannot_read),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return RUN_ON_MODELS(tests, NULL, NULL);
}
