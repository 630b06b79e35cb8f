/* zoo MODEL.gguf FILE.logits [MODE …]: compares a model's logits with those of a reference.
 *
 * The reference file holds int32 n_tokens, int32 n_vocab, int32 tokens[n_tokens], f32 logits[n_tokens][n_vocab].
 * Modes: `batch` (24 tokens at once, then one by one; the default), `cuts` (the batch cut at every position),
 * `pairs` (two interleaved sequences, the second one token behind), `fit` (the bytes of sessions on the CPU and on a
 * simulated device are those planned), `rows` and `layers` (2, 3 and 4 ranks against one, within 1e-10 and with the
 * same bits). Prints the NMSE of the rows of the first batch
 * and of the single tokens, for the worst run of each mode, and exits with 1 if one is above $TENON_ZOO_BAR (1e-6).
 * $TENON_ZOO_DEVICE names the device, $TENON_ZOO_CACHE the type of the KV cache (f32).
 * $TENON_ZOO_TIES names the reference's order of positions with equal scores (ties.h). A model that is not causal
 * (text diffusion) reads all tokens as a whole: nothing is cut, and the two sequences hold the same tokens. Of an
 * encoder the reference has the states of the tokens. */
#include "ranks.h"
#include "ties.h"

#include "tenon/llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BATCH = 24 };

typedef struct zoo_case {
    int32_t n_tokens, n_vocab, first; /* rows computed in the first batch */
    tn_token *tokens;
    float *logits;
    bool causal, states;
} zoo_case;

typedef struct zoo_error {
    double difference[2], scale[2]; /* of the first batch, of single tokens */
} zoo_error;

static int fail(const char *what, const char *path) {
    fprintf(stderr, "%s: %s: %s\n", path, what, tn_error());
    return 2;
}

static bool read_case(const char *path, zoo_case *c) {
    FILE *in = fopen(path, "rb");
    int32_t head[2];
    if (!in || fread(head, sizeof head, 1, in) != 1) return false;
    c->n_tokens = head[0], c->n_vocab = head[1];
    c->tokens = malloc((size_t)c->n_tokens * sizeof *c->tokens);
    c->logits = malloc((size_t)c->n_tokens * (size_t)c->n_vocab * sizeof *c->logits);
    const bool whole = c->tokens && c->logits &&
                       fread(c->tokens, sizeof *c->tokens, (size_t)c->n_tokens, in) == (size_t)c->n_tokens &&
                       fread(c->logits, sizeof(float), (size_t)c->n_tokens * (size_t)c->n_vocab, in) ==
                           (size_t)c->n_tokens * (size_t)c->n_vocab;
    fclose(in);
    c->first = c->n_tokens < FIRST_BATCH ? c->n_tokens : FIRST_BATCH;
    return whole;
}

static void compare_row(const zoo_case *c, int32_t row, const float *got, zoo_error *e) {
    const float *want = c->logits + (size_t)row * (size_t)c->n_vocab;
    const int part = row >= c->first;
    for (int32_t i = 0; i < c->n_vocab; i++) {
        const double difference = (double)got[i] - want[i];
        e->difference[part] += isfinite(difference) ? difference * difference : INFINITY;
        e->scale[part] += (double)want[i] * want[i];
    }
}

/* Decodes tokens begin … end-1 of sequence 0 and, with `pairs`, the tokens one before of sequence 1. */
static tn_status decode_range(tn_session *s, const zoo_case *c, int32_t begin, int32_t end, bool pairs,
                              zoo_error *error) {
    tn_token tokens[128];
    int32_t seqs[128], rows[128], n = 0;
    bool outputs[128];
    for (int32_t i = begin; i < end; i++) {
        tokens[n] = c->tokens[i], seqs[n] = 0, rows[n] = i, outputs[n++] = true;
        if (!c->causal) continue;
        if (pairs && i > 0) tokens[n] = c->tokens[i - 1], seqs[n] = 1, rows[n] = i - 1, outputs[n++] = true;
    }
    for (int32_t i = begin; i < end && pairs && !c->causal; i++)
        tokens[n] = c->tokens[i], seqs[n] = 1, rows[n] = i, outputs[n++] = true;
    TN_TRY(tn_session_decode(s, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs, .outputs = outputs}));
    for (int32_t i = 0; i < n; i++)
        compare_row(c, rows[i], c->states ? tn_session_embedding(s, i) : tn_session_logits(s, i), error);
    return TN_OK;
}

static tn_status run_case(tn_session *s, const zoo_case *c, int32_t cut, bool pairs, zoo_error *error) {
    *error = (zoo_error){0};
    tn_session_clear(s);
    if (cut > 0) TN_TRY(decode_range(s, c, 0, cut, pairs, error));
    TN_TRY(decode_range(s, c, cut, c->first, pairs, error));
    for (int32_t i = c->first; i < c->n_tokens; i++) TN_TRY(decode_range(s, c, i, i + 1, pairs, error));
    return TN_OK;
}

static void keep_worst(const zoo_error *e, double worst[2]) {
    for (int part = 0; part < 2; part++) {
        const double value = e->scale[part] > 0 ? e->difference[part] / e->scale[part] : 0;
        if (!(value <= worst[part])) worst[part] = value;
    }
}

static int run_mode(const char *path, tn_session *s, const zoo_case *c, const char *mode, double bar) {
    const bool cuts = strcmp(mode, "cuts") == 0 && c->causal, pairs = strcmp(mode, "pairs") == 0;
    double worst[2] = {0, 0};
    for (int32_t cut = cuts; cut < (cuts ? c->first : 1); cut++) {
        zoo_error e;
        if (run_case(s, c, cut, pairs, &e) != TN_OK) return fail(mode, path);
        keep_worst(&e, worst);
    }
    printf("%-6s batch %.2e single %.2e%s\n", mode, worst[0], worst[1],
           worst[0] <= bar && worst[1] <= bar ? "" : "  ABOVE THE BAR");
    return worst[0] <= bar && worst[1] <= bar ? 0 : 1;
}

static size_t zoo_bytes(const tn_fit_device *d) { return d->weights + d->cache + d->compute + d->scratch; }

/* Whether a session on the device takes the planned bytes, before and after a decode; -1: an error. */
static int takes_the_plan(tn_model *model, tn_session_params p, const char *device, const zoo_case *c,
                          size_t *total) {
    tn_session_plan *plan;
    tn_session *session = NULL;
    tn_fit planned = {0}, taken = {0};
    zoo_error e = {0};
    p.devices[0] = device;
    p.devices[1] = strcmp(device, "cpu") == 0 ? NULL : "cpu";
    if (tn_session_plan_new(model, &p, &plan) != TN_OK) return -1;
    int same = tn_session_plan_fit(plan, &planned) == TN_OK ? 1 : -1;
    if (tn_session_new(plan, &session) != TN_OK || decode_range(session, c, 0, c->first, false, &e) != TN_OK ||
        tn_session_memory(session, &taken) != TN_OK)
        same = -1;
    for (size_t i = 0; same == 1 && i < planned.n_devices; i++) {
        const tn_fit_device *a = &planned.devices[i], *b = &taken.devices[i];
        const bool counted = strcmp(b->name, "cpu") == 0 || b->total - b->free == zoo_bytes(b);
        same = counted && a->weights == b->weights && a->mapped == b->mapped && a->cache == b->cache &&
               a->compute == b->compute && a->scratch == b->scratch && a->staging == b->staging;
        *total += zoo_bytes(b);
    }
    tn_fit_free(&planned);
    tn_fit_free(&taken);
    tn_session_free(session);
    return same;
}

static int run_fit(const char *path, const tn_session_params *p, const zoo_case *c) {
    static const char *const devices[] = {"cpu", "sim:1G"};
    size_t total = 0;
    for (int i = 0; i < 2; i++) {
        tn_model *model; /* the devices of the first session keep a model's weights */
        if (tn_model_open(path, NULL, &model) != TN_OK) return fail("open", path);
        const int same = takes_the_plan(model, *p, devices[i], c, &total);
        tn_model_close(model);
        if (same < 0) return fail("fit", path);
        if (!same) return printf("fit    NOT AS PLANNED on %s\n", devices[i]), 1;
    }
    printf("fit    %zu bytes as planned\n", total);
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: zoo MODEL.gguf FILE.logits [batch] [cuts] [pairs] [fit] [rows] [layers]\n");
        return 2;
    }
    const char *path = arguments[1], *device = getenv("TENON_ZOO_DEVICE"), *bar = getenv("TENON_ZOO_BAR");
    zoo_case c = {0};
    tn_model *model;
    tn_session *session;
    if (!read_case(arguments[2], &c)) return fail("no reference logits", arguments[2]);
    if (tn_model_open(path, NULL, &model) != TN_OK) return fail("open", path);
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 512, p.n_batch = 128, p.n_ubatch = 64, p.n_seqs = 2, p.n_outputs = 128;
    const char *cache = getenv("TENON_ZOO_CACHE");
    p.cache_k = TN_F32;
    if (cache && tn_cache_type_parse(cache, &p.cache_k) != TN_OK) return fail("cache", cache);
    p.cache_v = p.cache_k;
    p.devices[0] = device ? device : "cpu";
    if (device && strcmp(device, "cpu") != 0) p.devices[1] = "cpu";
    c.causal = tn_model_get_info(model).is_causal;
    c.states = tn_model_get_info(model).is_encoder;
    if (c.states) p.pooling = TN_POOLING_NONE;
    if (!c.causal) c.first = c.n_tokens;
    if (tn_session_open(model, &p, &session) != TN_OK) return fail("session", path);
    zoo_ties ties = zoo_ties_of(getenv("TENON_ZOO_TIES"), c.n_tokens);
    if (ties.order != TIES_OWN) tn_sched_set_eval(tn_session_sched(session), zoo_replace_ties, &ties);
    int result = 0;
    for (int i = 3; i < (count > 3 ? count : 4); i++) {
        const char *mode = count > 3 ? arguments[i] : "batch";
        const bool rows = strcmp(mode, "rows") == 0, layers = strcmp(mode, "layers") == 0;
        const int one = rows || layers ? zoo_run_ranks(path, &p, c.tokens, c.n_tokens, layers, rows ? 1e-10 : 0)
                        : strcmp(mode, "fit") == 0 ? run_fit(path, &p, &c)
                                                   : run_mode(path, session, &c, mode, bar ? atof(bar) : 1e-6);
        if (one > result) result = one;
    }
    tn_session_free(session);
    tn_model_close(model);
    free(c.tokens);
    free(c.logits);
    return result;
}
