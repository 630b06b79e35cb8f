/* Models divided by rows among ranks: the logits of one rank, within the memory that was planned. */
#include "models/reference_models.h"

#include "llm/session_internal.h"
#include "tenon/net/net_impl.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MOST = 4, PROMPT = 21, STEPS = 6, VOCAB_MOST = 512 };

static tn_session_params ranks_params(void) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 128;
    p.n_batch = 64;
    p.n_ubatch = 8; /* several micro-batches */
    p.n_seqs = 2;
    p.n_outputs = 8;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    p.devices[0] = "cpu";
    return p;
}

typedef struct follower {
    const char *path;
    tn_session_params params;
    tn_status status;
    char error[512];
    tn_model_params how;
    bool exact; /* memory in use is what was planned */
} follower;

/* Of all ranks in the tests that follow. */
static bool by_layers, share_weights;
static int stage_ranks;
static tn_model_params ranks_model_params(tn_net *net) {
    return (tn_model_params){
        .net = net, .by_layers = by_layers, .stage_ranks = stage_ranks, .share_weights = share_weights};
}

static bool planned_is_taken(tn_session *s) {
    tn_fit planned, taken;
    bool same = tn_session_plan_fit((tn_session_plan *)(uintptr_t)tn_session_get_plan(s), &planned) == TN_OK &&
                tn_session_memory(s, &taken) == TN_OK;
    for (size_t d = 0; same && d < taken.n_devices; d++) {
        const tn_fit_device *p = &planned.devices[d], *t = &taken.devices[d];
        same = p->weights == t->weights && p->mapped == t->mapped && p->cache == t->cache &&
               p->compute == t->compute && p->scratch == t->scratch && p->staging == t->staging;
    }
    tn_fit_free(&planned);
    tn_fit_free(&taken);
    return same;
}

static void *follow(void *user) {
    follower *f = user;
    tn_model *model = NULL;
    tn_session *session = NULL;
    f->status = tn_model_open(f->path, &f->how, &model);
    if (f->status == TN_OK) f->status = tn_session_open(model, &f->params, &session);
    if (f->status == TN_OK) f->exact = planned_is_taken(session);
    if (f->status == TN_OK) f->status = tn_session_follow(session);
    snprintf(f->error, sizeof f->error, "%s", f->status == TN_OK ? "" : tn_error());
    tn_session_free(session);
    tn_model_close(model);
    return NULL;
}

typedef struct team {
    int n;
    tn_net *nets[RANKS_MOST];
    follower followers[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
} team;

static void team_start(team *t, int n, const char *path, const tn_session_params *params, uint32_t timeout_ms) {
    *t = (team){.n = n};
    assert_ok(tn_net_threads(&(tn_net_params){.n_ranks = n, .timeout_ms = timeout_ms}, t->nets));
    for (int r = 1; r < n; r++) {
        t->followers[r] = (follower){.path = share_weights ? "/nowhere/this-rank-has-no-file.gguf" : path,
                                     .params = *params,
                                     .how = ranks_model_params(t->nets[r])};
        assert_int_equal(pthread_create(&t->threads[r], NULL, follow, &t->followers[r]), 0);
    }
}
static void team_end(team *t) {
    for (int r = 1; r < t->n; r++) pthread_join(t->threads[r], NULL);
    for (int r = 0; r < t->n; r++) tn_net_free(t->nets[r]);
}

/* A prompt, single tokens of two sequences, a shift, and a greedy loop: rows of logits one after the other. */
static size_t play(tn_session *s, int32_t n_vocab, float *rows) {
    tn_token tokens[PROMPT];
    bool wanted[PROMPT] = {[3] = true, [11] = true, [PROMPT - 1] = true};
    size_t n = 0;
    for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + 11) % n_vocab;
    assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = PROMPT, .tokens = tokens, .outputs = wanted}));
    for (int32_t i = 0; i < tn_session_output_count(s); i++)
        memcpy(rows + n++ * VOCAB_MOST, tn_session_logits(s, i), (size_t)n_vocab * sizeof *rows);
    for (int step = 0; step < STEPS; step++) {
        const int32_t seqs[2] = {0, 1};
        const tn_token two[2] = {(tn_token)(step * 5 % n_vocab), (tn_token)(step * 7 % n_vocab)};
        const bool both = step % 2;
        if (step == 3 && tn_session_can_shift(s) && tn_session_seq_remove(s, 0, 2, 6) == TN_OK)
            (void)!tn_session_seq_shift(s, 0, 6, -1, -4);
        if (step == 4) assert_ok(tn_session_defragment(s));
        assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = both ? 2 : 1, .tokens = two, .seqs = seqs}));
        for (int32_t i = 0; i < tn_session_output_count(s); i++)
            memcpy(rows + n++ * VOCAB_MOST, tn_session_logits(s, i), (size_t)n_vocab * sizeof *rows);
    }
    tn_token next = 1;
    for (int step = 0; step < STEPS; step++) {
        assert_ok(tn_session_decode(s, &(tn_batch){.n_tokens = 1, .tokens = &next, .argmax = true}));
        next = tn_session_argmax(s, 0);
        rows[n++ * VOCAB_MOST] = (float)next;
    }
    return n;
}
enum { ROWS_MOST = 3 + 2 * STEPS + STEPS };

static double compare(const float *got, const float *want, size_t rows, bool all_logits, int32_t n_vocab) {
    nmse n = {0};
    for (size_t r = 0; r < rows; r++)
        nmse_add(&n, got + r * VOCAB_MOST, want + r * VOCAB_MOST, !all_logits && r + STEPS >= rows ? 1 : n_vocab);
    return nmse_value(&n);
}

typedef struct divided {
    int mixers, dense, experts, shared;
    bool vocabulary;
} divided;

static divided run_ranks(const char *path, int n_ranks, const tn_session_params *params, float *rows, size_t *n) {
    team t;
    tn_model *model;
    tn_session *session;
    divided d = {0};
    team_start(&t, n_ranks, path, params, 60000);
    const tn_model_params how = ranks_model_params(t.nets[0]);
    assert_ok(tn_model_open(path, &how, &model));
    tn_status status = tn_session_open(model, params, &session);
    if (status != TN_OK) fail_msg("%s, %d ranks: %s", path, n_ranks, tn_error());
    assert_true(planned_is_taken(session));
    for (int32_t i = 0; i < model->h.n_layer && model->division.layers; i++) {
        d.mixers += model->division.layers[i].mixer;
        d.dense += model->division.layers[i].dense;
        d.experts += model->division.layers[i].experts;
        d.shared += model->division.layers[i].shared;
    }
    d.vocabulary = model->division.vocabulary;
    *n = play(session, model->h.n_vocab, rows);
    size_t size;
    assert_fails(TN_E_UNSUPPORTED, tn_session_state_size(session, 0, &size));
    tn_session_free(session);
    tn_model_close(model);
    team_end(&t);
    for (int r = 1; r < n_ranks; r++) {
        if (t.followers[r].status != TN_OK) fail_msg("%s: rank %d: %s", path, r, t.followers[r].error);
        assert_true(t.followers[r].exact);
    }
    return d;
}

static float *one, *many;
static size_t run_alone(const char *path, const tn_session_params *params, int32_t *n_vocab) {
    tn_model *model;
    tn_session *session;
    assert_ok(tn_model_open(path, NULL, &model));
    assert_ok(tn_session_open(model, params, &session));
    *n_vocab = model->h.n_vocab;
    assert_true(*n_vocab <= VOCAB_MOST);
    const size_t n = play(session, *n_vocab, one);
    tn_session_free(session);
    tn_model_close(model);
    return n;
}

/* Compares `first` to `last` ranks with one; returns what the last have divided. */
static divided compare_ranks(const char *path, const char *what, int first, int last, double limit) {
    const tn_session_params params = ranks_params();
    int32_t n_vocab;
    const size_t rows = run_alone(path, &params, &n_vocab);
    divided d = {0};
    for (int ranks = first; ranks <= last; ranks++) {
        size_t n;
        d = run_ranks(path, ranks, &params, many, &n);
        assert_int_equal(n, rows);
        /* Rounding of activations to blocks may decide near-ties of the greedy loop at the end. */
        const double error = compare(many, one, limit > 1e-8 ? rows - STEPS : rows, limit > 1e-8, n_vocab);
        if (getenv("TENON_VERBOSE")) print_message("%-20s %d ranks: NMSE %.2g\n", what, ranks, error);
        if (!(error <= limit)) fail_msg("%s: %d ranks: NMSE %g", what, ranks, error);
    }
    return d;
}

static const char *tiny_path(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tenon-ranks-%d.gguf", (int)getpid());
    return path;
}

/* With TENON_ARCH only that one. */
static bool is_tested(const tn_arch *arch) {
    const char *only = getenv("TENON_ARCH");
    return (!only || strcmp(only, arch->name) == 0) && tiny_arch_is_tested(arch->name) &&
           !(arch->traits & TN_ARCH_ENCODER);
}
static void every_architecture_gives_the_logits_of_one_rank(void **state) {
    (void)state;
    int n_mixers = 0, n_experts = 0, n_models = 0;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        if (!is_tested(arch)) continue;
        const tiny_options options = {.arch = arch->name,
                                      .heads = 8,
                                      .kv_heads = i % 2 ? 4 : 2,
                                      .width = 64,
                                      /* Layers of deci without keys have an output matrix of the width. */
                                      .head = strcmp(arch->name, "deci") == 0 ? 8 : 16};
        if (tiny_model_write(tiny_path(), &options) != TN_OK) continue;
        tn_model *model;
        assert_ok(tn_model_open(tiny_path(), NULL, &model));
        const bool causal = tn_model_get_info(model).is_causal;
        tn_model_close(model);
        if (!causal) continue;
        /* The tiny model of that family amplifies rounding: kernels of two levels differ as much. */
        const double limit = strcmp(arch->name, "gemma4") == 0 ? 1e-8 : 1e-10;
        const int few = 2 + n_models % 3;
        const divided d = getenv("TENON_LONG") ? compare_ranks(tiny_path(), arch->name, 2, RANKS_MOST, limit)
                                               : compare_ranks(tiny_path(), arch->name, few, few, limit);
        if (getenv("TENON_VERBOSE"))
            print_message("%-20s mixers %d dense %d experts %d shared %d\n", arch->name, d.mixers, d.dense, d.experts,
                          d.shared);
        n_models++;
        n_mixers += d.mixers > 0;
        n_experts += d.experts > 0;
        assert_true(d.vocabulary);
    }
    remove(tiny_path());
    assert_true(n_models >= 10 && n_mixers * 2 >= n_models && n_experts >= 2);
}

/* Golden models, divided by rows. */
static void golden_models_give_the_logits_of_one_rank(void **state) {
    (void)state;
    int n_models = 0;
    for (const char *const *name = golden_archs; *name; name++) {
        reference_model g;
        char relative[128];
        snprintf(relative, sizeof relative, "archs/%s", *name);
        if (!golden_load(relative, &g)) continue;
        const tn_model_params part = {.n_ranks = 2};
        tn_model *model;
        assert_ok(tn_model_open(g.path, &part, &model));
        const bool causal = tn_model_get_info(model).is_causal, small = model->h.n_vocab <= VOCAB_MOST;
        tn_model_close(model);
        if (causal && small) (void)compare_ranks(g.path, *name, 2, getenv("TENON_LONG") ? RANKS_MOST : 2, 1e-10);
        n_models += causal && small;
        reference_free(&g);
    }
    if (getenv("TENON_VERBOSE")) print_message("%d golden models\n", n_models);
    if (!n_models) skip();
}

/* Whole layers: the bits of one rank. */
static void layers_give_the_logits_of_one_rank(void **state) {
    (void)state;
    int n_models = 0, n_refused = 0;
    by_layers = true;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        if (!is_tested(arch)) continue;
        if (tiny_model_write(tiny_path(), &(tiny_options){.arch = arch->name, .layers = 5}) != TN_OK) continue;
        tn_model *model;
        const int ranks = 2 + (n_models % 3);
        tn_status status =
            tn_model_open(tiny_path(), &(tn_model_params){.n_ranks = ranks, .by_layers = true}, &model);
        n_refused += status == TN_E_UNSUPPORTED;
        if (status != TN_OK) continue;
        tn_model_close(model);
        (void)compare_ranks(tiny_path(), arch->name, ranks, ranks, 0);
        n_models++;
    }
    by_layers = false;
    remove(tiny_path());
    assert_true(getenv("TENON_ARCH") || (n_models >= 20 && n_refused >= 1));
}

/* Two machines with two ranks each: layers between machines, rows within them. */
static void stages_of_several_ranks_give_the_logits_of_one_rank(void **state) {
    (void)state;
    int n_models = 0, n_mixers = 0;
    by_layers = true;
    stage_ranks = 2;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        if (!is_tested(arch)) continue;
        const tiny_options options = {.arch = arch->name,
                                      .heads = 8,
                                      .kv_heads = 4,
                                      .width = 64,
                                      .layers = 5,
                                      .head = strcmp(arch->name, "deci") == 0 ? 8 : 16};
        if (tiny_model_write(tiny_path(), &options) != TN_OK) continue;
        tn_model *model;
        const tn_model_params part = {.n_ranks = 4, .rank = 3, .by_layers = true, .stage_ranks = 2};
        if (tn_model_open(tiny_path(), &part, &model) != TN_OK) continue;
        assert_true(model->division.n_stages == 2 && model->division.stage == 1 &&
                    model->division.rank_in_stage == 1);
        assert_true(model->division.first_layer > 0 && model->division.end_layer == model->h.n_layer);
        tn_model_close(model);
        n_mixers += compare_ranks(tiny_path(), arch->name, 4, 4, 1e-10).mixers > 0;
        n_models++;
    }
    by_layers = false;
    stage_ranks = 0;
    assert_true(getenv("TENON_ARCH") || (n_models >= 20 && n_mixers * 2 >= n_models));
    /* Three ranks are not two machines of two; all ranks of one machine divide rows. */
    tn_model *model;
    assert_ok(tiny_model_write(tiny_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64, .layers = 5}));
    tn_model_params how = {.n_ranks = 3, .by_layers = true, .stage_ranks = 2};
    assert_fails(TN_E_INVALID, tn_model_open(tiny_path(), &how, &model));
    how = (tn_model_params){.n_ranks = 2, .by_layers = true, .stage_ranks = 2};
    assert_ok(tn_model_open(tiny_path(), &how, &model));
    assert_false(model->division.by_layers);
    assert_int_equal(model->h.layers[0].n_head, 4);
    tn_model_close(model);
    remove(tiny_path());
}

static void impossible_ranks_are_refused(void **state) {
    (void)state;
    tn_model *model;
    assert_ok(tiny_model_write(tiny_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64}));
    static const int ranks[][2] = {{0, TN_NET_RANKS_MOST + 1}, {2, 2}, {-1, 2}};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const tn_model_params how = {.rank = ranks[i][0], .n_ranks = ranks[i][1]};
        assert_fails(TN_E_INVALID, tn_model_open(tiny_path(), &how, &model));
    }
    remove(tiny_path());
}

/* Fewer key/value heads than ranks, one embedding for both ends, and matrices of blocks. */
static void other_shapes_are_divided(void **state) {
    (void)state;
    static const struct {
        tiny_options options;
        int ranks, heads; /* of rank 0 */
        double limit;
    } cases[] = {
        {{.arch = "llama", .heads = 8, .kv_heads = 1, .width = 64, .tied = true}, 3, 3, 1e-10},
        {{.arch = "llama", .heads = 8, .kv_heads = 2, .width = 64, .tied = true}, 3, 2, 1e-10},
        {{.arch = "llama", .heads = 8, .kv_heads = 8, .width = 64, .vocab = 301}, 3, 3, 1e-10},
        {{.arch = "llama", .heads = 2, .kv_heads = 1, .width = 64}, 3, 2, 1e-10}, /* not enough: not divided */
        {{.arch = "llama", .heads = 16, .kv_heads = 4, .width = 256, .ffn = 768, .type = TN_Q4_K}, 2, 16, 1e-3},
        {{.arch = "llama", .heads = 16, .kv_heads = 4, .width = 256, .ffn = 768, .head = 32, .type = TN_Q4_K},
         2,
         8,
         1e-3},
        {{.arch = "llama", .heads = 16, .kv_heads = 4, .width = 256, .ffn = 768, .type = TN_Q8_0}, 4, 4, 1e-3},
        {{.arch = "phi3", .heads = 8, .kv_heads = 4, .width = 64, .type = TN_Q8_0}, 2, 4, 1e-3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char what[64];
        tn_model *model;
        snprintf(what, sizeof what, "case %zu", i);
        assert_ok(tiny_model_write(tiny_path(), &cases[i].options));
        assert_ok(tn_model_open(tiny_path(), &(tn_model_params){.n_ranks = cases[i].ranks}, &model));
        if (model->h.layers[0].n_head != cases[i].heads)
            fail_msg("%s: rank 0 has %d heads, not %d", what, model->h.layers[0].n_head, cases[i].heads);
        int64_t rows = 0;
        for (int r = 0; r < cases[i].ranks; r++) rows += (int64_t)model->division.row_bytes[r] / 4;
        assert_int_equal(rows, model->h.n_vocab);
        tn_session *session;
        const tn_session_params params = ranks_params();
        assert_fails(TN_E_STATE, tn_session_open(model, &params, &session)); /* it is a plan only */
        tn_model_close(model);
        (void)compare_ranks(tiny_path(), what, cases[i].ranks, cases[i].ranks, cases[i].limit);
    }
    remove(tiny_path());
}

/* Shares decide how many heads, experts, columns and layers a rank has; every rank has something. */
static void shares_are_kept(void **state) {
    (void)state;
    static const struct {
        float shares[3];
        int32_t heads, ff; /* of rank 0, of 16 and 192 */
        int32_t layers;    /* of 8 */
    } cases[] = {{{0, 0, 0}, 5, 64, 3}, {{2, 1, 1}, 8, 64, 4}, {{1, 1, 2}, 4, 64, 2}, {{1, 0, 0}, 14, 64, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tiny_options options = {.heads = 16, .kv_heads = 16, .width = 64, .ffn = 192, .layers = 8};
        assert_ok(tiny_model_write(tiny_path(), &options));
        for (int layers = 0; layers < 2; layers++) {
            int64_t heads = 0, held = 0;
            for (int r = 0; r < 3; r++) {
                tn_model_params params = {.n_ranks = 3, .rank = r, .by_layers = layers};
                tn_model *model;
                memcpy(params.shares, cases[i].shares, sizeof cases[i].shares);
                assert_ok(tn_model_open(tiny_path(), &params, &model));
                const tn__division *d = &model->division;
                heads += model->h.layers[0].n_head;
                held += d->end_layer - d->first_layer;
                assert_true(layers ? d->end_layer > d->first_layer : model->h.layers[0].n_head > 0);
                if (r == 0 && !layers) assert_int_equal(model->h.layers[0].n_head, cases[i].heads);
                if (r == 0 && !layers) assert_int_equal(model->h.layers[0].n_ff, cases[i].ff);
                if (r == 0 && layers) assert_int_equal(d->end_layer, cases[i].layers);
                tn_model_close(model);
            }
            if (layers) assert_int_equal(held, 8);
            if (!layers) assert_int_equal(heads, 16);
        }
    }
    remove(tiny_path());
}

/* Together the ranks hold the weights once, apart from what every rank computes. */
static void ranks_hold_their_parts(void **state) {
    (void)state;
    assert_ok(tiny_model_write(tiny_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64, .ffn = 256}));
    size_t bytes[5] = {0}, cache[5] = {0};
    for (int ranks = 1; ranks <= 4; ranks += 3)
        for (int r = 0; r < ranks; r++) {
            tn_model *model;
            tn_fit fit;
            const tn_session_params params = ranks_params();
            assert_ok(tn_model_open(tiny_path(), &(tn_model_params){.n_ranks = ranks, .rank = r}, &model));
            assert_ok(plan_fit(model, &params, &fit));
            for (size_t d = 0; d < fit.n_devices; d++) {
                bytes[ranks] += fit.devices[d].weights + fit.devices[d].mapped;
                cache[ranks] += fit.devices[d].cache;
            }
            tn_fit_free(&fit);
            tn_model_close(model);
        }
    const size_t norms = 5 * 64 * 4, embedding = 64 * 64 * 4; /* which every rank has */
    assert_true(bytes[4] <= bytes[1] + 3 * (norms + embedding) + 64 * 64);
    assert_true(cache[4] < cache[1] * 5 / 4);
    remove(tiny_path());
}

/* ---- One file for all ranks ---- */

static void ranks_without_the_file_receive_their_parts(void **state) {
    (void)state;
    static const struct {
        tiny_options options;
        bool layers;
        double limit;
    } cases[] = {
        {{.heads = 8, .kv_heads = 4, .width = 64}, false, 1e-10},
        {{.heads = 8, .kv_heads = 4, .width = 64, .layers = 5}, true, 0},
        {{.arch = "qwen3moe", .heads = 8, .kv_heads = 4, .width = 64, .head = 16}, false, 1e-10},
        {{.arch = "llama", .heads = 16, .kv_heads = 4, .width = 256, .ffn = 768, .type = TN_Q8_0}, false, 1e-3},
        {{.arch = "llama", .heads = 16, .kv_heads = 4, .width = 256, .layers = 4, .type = TN_Q8_0}, true, 0},
        /* A matrix of several pieces. */
        {{.heads = 8, .kv_heads = 4, .width = 1024, .ffn = 2048, .layers = 2}, true, 0},
    };
    share_weights = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char what[64];
        snprintf(what, sizeof what, "shared weights, case %zu", i);
        by_layers = cases[i].layers;
        assert_ok(tiny_model_write(tiny_path(), &cases[i].options));
        (void)compare_ranks(tiny_path(), what, 2, by_layers ? 2 : 3, cases[i].limit);
    }
    by_layers = share_weights = false;
    remove(tiny_path());
}

/* Rank 0 opens a session of two ranks that share its file; both end as expected. */
static void share_and_fail(tn_model_params how, tn_net *net, team *t, tn_status expected, const char *message) {
    tn_model *model = NULL;
    tn_session *session;
    const tn_session_params params = ranks_params();
    how.net = net;
    tn_status status = tn_model_open(tiny_path(), &how, &model);
    if (status == TN_OK) status = tn_session_open(model, &params, &session);
    assert_int_equal(status, expected);
    if (!strstr(tn_error(), message)) fail_msg("'%s' does not say '%s'", tn_error(), message);
    tn_model_close(model);
    pthread_join(t->threads[1], NULL);
    assert_int_equal(t->followers[1].status, expected);
    if (!strstr(t->followers[1].error, message)) fail_msg("'%s': not '%s'", t->followers[1].error, message);
}

/* A transport that changes a bit of one large message. */
static tn_net *damaged_inner;
static int n_pieces;
static tn_status damaged_send(tn_net *net, int to, const void *data, size_t size) {
    if (size > 4096 && n_pieces++ == 2) ((char *)(uintptr_t)data)[size / 3] ^= 4;
    return damaged_inner->ops->send(damaged_inner, to, data, size);
}
static tn_status damaged_receive(tn_net *net, int from, void *data, size_t size, bool idle) {
    return damaged_inner->ops->receive(damaged_inner, from, data, size, idle);
}
static tn_status damaged_reduce(tn_net *net, const float *in, float *out, size_t n) {
    return damaged_inner->ops->all_reduce(damaged_inner, in, out, n);
}
static tn_status damaged_gather(tn_net *net, const void *part, const size_t *sizes, void *out) {
    return damaged_inner->ops->all_gather(damaged_inner, part, sizes, out);
}
static tn_status damaged_broadcast(tn_net *net, int root, void *data, size_t size, bool idle) {
    return damaged_inner->ops->broadcast(damaged_inner, root, data, size, idle);
}

static bool cancel_after_own(void *user, size_t done, size_t total) {
    size_t *calls = user;
    assert_true(done <= total);
    return ++*calls < 4;
}

static void shared_weights_that_do_not_arrive_end_all_ranks(void **state) {
    (void)state;
    static const tn_net_ops damaged = {.all_reduce = damaged_reduce,
                                       .all_gather = damaged_gather,
                                       .broadcast = damaged_broadcast,
                                       .send = damaged_send,
                                       .receive = damaged_receive};
    team t;
    tn_model *model;
    tn_session *session;
    tn_session_params params = ranks_params();
    const tn_model_params how = {.share_weights = true};
    share_weights = true;
    assert_ok(tiny_model_write(tiny_path(), &(tiny_options){.width = 256, .heads = 8, .kv_heads = 4}));

    team_start(&t, 2, tiny_path(), &params, 20000);
    damaged_inner = t.nets[0];
    n_pieces = 0;
    tn_net net = {.ops = &damaged, .name = "damaged", .size = 2, .timeout_ms = 20000};
    share_and_fail(how, &net, &t, TN_E_FORMAT, "damaged");
    for (int r = 0; r < 2; r++) tn_net_free(t.nets[r]);

    team_start(&t, 2, tiny_path(), &params, 20000); /* rank 0 has not been told */
    share_and_fail((tn_model_params){0}, t.nets[0], &t, TN_E_STATE, "--share-weights");
    for (int r = 0; r < 2; r++) tn_net_free(t.nets[r]);

    remove(tiny_path()); /* nobody has the file */
    team_start(&t, 2, tiny_path(), &params, 20000);
    share_and_fail(how, t.nets[0], &t, TN_E_IO, tiny_path());
    for (int r = 0; r < 2; r++) tn_net_free(t.nets[r]);

    /* Progress counts what is sent; to cancel it ends all ranks. */
    assert_ok(tiny_model_write(tiny_path(), NULL));
    team_start(&t, 2, tiny_path(), &params, 20000);
    size_t calls = 0;
    params.progress = cancel_after_own;
    params.user = &calls;
    const tn_model_params first = ranks_model_params(t.nets[0]);
    assert_ok(tn_model_open(tiny_path(), &first, &model));
    assert_fails(TN_E_ABORTED, tn_session_open(model, &params, &session));
    assert_int_equal(calls, 4);
    tn_model_close(model);
    team_end(&t);
    assert_int_equal(t.followers[1].status, TN_E_ABORTED);
    share_weights = false;
    remove(tiny_path());
}

/* A plan of a rank without the file holds the weights itself; rank 0 plans what it sends through. */
static void shared_weights_are_planned(void **state) {
    (void)state;
    size_t staging[2][2], own[2][2], mapped[2][2];
    const tn_session_params params = ranks_params();
    assert_ok(tiny_model_write(tiny_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64, .ffn = 256}));
    for (int shared = 0; shared < 2; shared++)
        for (int r = 0; r < 2; r++) {
            tn_model *model;
            tn_fit fit;
            assert_ok(tn_model_open(tiny_path(), &(tn_model_params){.n_ranks = 2, .rank = r, .share_weights = shared},
                                    &model));
            assert_ok(plan_fit(model, &params, &fit));
            staging[shared][r] = fit.devices[fit.n_devices - 1].staging;
            own[shared][r] = mapped[shared][r] = 0;
            for (size_t d = 0; d < fit.n_devices; d++) {
                own[shared][r] += fit.devices[d].weights;
                mapped[shared][r] += fit.devices[d].mapped;
            }
            tn_fit_free(&fit);
            tn_model_close(model);
        }
    assert_int_equal(staging[1][0], staging[0][0] + (1 << 20));
    assert_int_equal(staging[1][1], staging[0][1]);
    assert_int_equal(own[1][0], own[0][0]);
    assert_int_equal(mapped[1][1], 0);
    assert_true(mapped[0][1] > 0 && own[1][1] >= own[0][1] + mapped[0][1]);
    remove(tiny_path());
}

/* ---- Failure ---- */

static void different_ranks_do_not_start(void **state) {
    (void)state;
    static const struct {
        tiny_options options;
        int32_t n_ubatch;
        const char *message;
    } cases[] = {{{.ffn = 128, .seed = 7}, 8, "different model"}, {{0}, 4, "different session"}};
    char other[96];
    snprintf(other, sizeof other, "%s.other", tiny_path());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tn_model *model;
        tn_session *session;
        team t;
        tn_session_params params = ranks_params();
        assert_ok(tiny_model_write(tiny_path(), NULL));
        assert_ok(tiny_model_write(other, &cases[i].options));
        params.n_ubatch = cases[i].n_ubatch;
        team_start(&t, 2, other, &params, 20000);
        params = ranks_params();
        assert_ok(tn_model_open(tiny_path(), &(tn_model_params){.net = t.nets[0]}, &model));
        const uint64_t begin = tn_time_ns();
        assert_fails(TN_E_STATE, tn_session_open(model, &params, &session));
        assert_non_null(strstr(tn_error(), cases[i].message));
        assert_true(tn_time_ns() - begin < 10000000000ull);
        assert_false(model->loaded);
        tn_model_close(model);
        team_end(&t);
        assert_int_equal(t.followers[1].status, TN_E_STATE);
        remove(other);
    }
    remove(tiny_path());
}

static bool stop_now(void *user) { return *(bool *)user; }

/* A rank that cannot load ends the others; an abort stops all ranks between graphs, and they go on afterwards. */
static void failures_reach_all_ranks(void **state) {
    (void)state;
    tn_model *model;
    tn_session *session;
    team t;
    bool stop = false;
    tn_session_params params = ranks_params();
    params.cache_ram = 1 << 20;
    params.n_prefixes = 4;
    assert_ok(tiny_model_write(tiny_path(), NULL));
    team_start(&t, 2, tiny_path(), &params, 20000); /* refused there */
    params = ranks_params();
    assert_ok(tn_model_open(tiny_path(), &(tn_model_params){.net = t.nets[0]}, &model));
    assert_fails(TN_E_UNSUPPORTED, tn_session_open(model, &params, &session));
    assert_non_null(strstr(tn_error(), "rank 1"));
    tn_model_close(model);
    team_end(&t);

    team_start(&t, 2, tiny_path(), &params, 20000);
    params.abort = stop_now;
    params.user = &stop;
    assert_ok(tn_model_open(tiny_path(), &(tn_model_params){.net = t.nets[0]}, &model));
    assert_ok(tn_session_open(model, &params, &session));
    const tn_token token = 1;
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token}));
    stop = true;
    assert_fails(TN_E_ABORTED, tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token}));
    stop = false;
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token}));
    assert_int_equal(tn_session_seq_last(session, 0), 1);
    tn_net_abort(t.nets[1], TN_E_NOMEM, "lost");
    tn_status status = TN_OK; /* rank 1 leaves within a graph or before it */
    for (int i = 0; i < 3 && status == TN_OK; i++)
        status = tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &token});
    assert_int_equal(status, TN_E_NOMEM);
    tn_session_free(session);
    tn_model_close(model);
    team_end(&t);
    assert_int_equal(t.followers[1].status, TN_E_NOMEM);
    remove(tiny_path());
}

int main(void) {
    one = calloc((size_t)ROWS_MOST * VOCAB_MOST, sizeof *one);
    many = calloc((size_t)ROWS_MOST * VOCAB_MOST, sizeof *many);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_gives_the_logits_of_one_rank),
        cmocka_unit_test(golden_models_give_the_logits_of_one_rank),
        cmocka_unit_test(layers_give_the_logits_of_one_rank),
        cmocka_unit_test(other_shapes_are_divided),
        cmocka_unit_test(shares_are_kept),
        cmocka_unit_test(stages_of_several_ranks_give_the_logits_of_one_rank),
        cmocka_unit_test(impossible_ranks_are_refused),
        cmocka_unit_test(ranks_hold_their_parts),
        cmocka_unit_test(ranks_without_the_file_receive_their_parts),
        cmocka_unit_test(shared_weights_that_do_not_arrive_end_all_ranks),
        cmocka_unit_test(shared_weights_are_planned),
        cmocka_unit_test(different_ranks_do_not_start),
        cmocka_unit_test(failures_reach_all_ranks),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(one);
    free(many);
    return failed;
}
