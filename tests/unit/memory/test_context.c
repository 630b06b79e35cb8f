/* The context: chosen where it is left open, shifted when it is full, gathered when removed ranges have left holes.
 */
#include "support.h"

#include "models/tiny_models.h"
#include "sched_case.h"
#include "tenon/arch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRAINED = 16384, SHORT = 256, PAGE = 16, SEQS = 3, VOCAB = 64 };

static char context_model_path[64];

static tn_model *open_tiny(const char *arch, int32_t context) {
    const tiny_options options = {.arch = arch, .width = 64, .context = context, .vocab = VOCAB};
    tn_model *model;
    assert_ok(tiny_model_write(context_model_path, &options));
    assert_ok(tn_model_open(context_model_path, NULL, &model));
    return model;
}

/* ---- Left open ---- */

static tn_session_params open_params(const char *device) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 0;
    p.n_threads = 1;
    p.n_ubatch = 64;
    p.devices[0] = device;
    return p;
}

typedef struct planned_context {
    int32_t n_ctx, n_layers;
    bool fits;
} planned_context;
static planned_context plan_context(tn_model *model, const tn_session_params *p) {
    tn_session_plan *plan;
    tn_fit fit;
    assert_ok(tn_session_plan_new(model, p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    const planned_context got = {tn_session_plan_params(plan).n_ctx, fit.devices[0].n_layers, fit.fits};
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return got;
}

static void an_open_context_is_the_trained_one(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", TRAINED);
    const tn_session_params p = open_params("cpu");
    const planned_context got = plan_context(model, &p);
    assert_int_equal(got.n_ctx, TRAINED);
    assert_true(got.fits);
    tn_model_close(model);
}

/* From too small for anything to enough for all: the context is the longest that neither fails nor moves layers. */
static void an_open_context_is_what_fits(void **state) {
    (void)state;
    tn_device *device;
    assert_ok(tn_device_find("sim:64M,name=narrow", &device));
    tn_model *model = open_tiny("llama", TRAINED);
    int n_whole = 0, n_less = 0;
    for (size_t kib = 256; kib <= 32768; kib += kib / 2) {
        tn_session_params p = open_params("narrow");
        tn__sim_resize(sim_of("narrow"), kib << 10, 0);
        sim_of("narrow")->type.max_size = 64 << 20;
        const planned_context got = plan_context(model, &p);
        assert_true(got.fits); /* the host takes what the device cannot */
        p.n_ctx = 4096;
        const planned_context usual = plan_context(model, &p);
        assert_true(got.n_layers >= usual.n_layers);
        n_whole += got.n_ctx == TRAINED;
        if (got.n_ctx == TRAINED) continue;
        assert_in_range(got.n_ctx, 4096, TRAINED - 1);
        assert_int_equal(got.n_ctx % 256, 0);
        n_less++;
        p.n_ctx = got.n_ctx + got.n_ctx / 3; /* a sixteenth is left free, and the search is as precise */
        const planned_context longer = plan_context(model, &p);
        if (p.n_ctx <= TRAINED) assert_true(!longer.fits || longer.n_layers < got.n_layers);
    }
    assert_true(n_whole > 0 && n_less > 0);
    tn_model_close(model);
}

/* ---- Full ---- */

static tn_session_params short_params(int32_t n_prefixes) {
    tn_session_params p = tn_session_params_default();
    p.devices[0] = "cpu";
    p.n_ctx = p.n_batch = SHORT;
    p.n_ubatch = 32;
    p.n_seqs = SEQS;
    p.n_prefixes = n_prefixes;
    p.page = PAGE;
    p.n_threads = 1;
    p.cache_k = p.cache_v = TN_F32;
    return p;
}

static tn_token token_at(int32_t i) { return (tn_token)(((uint32_t)i * 40503u) >> 5) % 60 + 3; }

static tn_status decode_tokens(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n) {
    int32_t seqs[SHORT];
    for (int32_t i = 0; i < n; i++) seqs[i] = seq;
    return tn_session_decode(s, &(tn_batch){.n_tokens = n, .tokens = tokens, .seqs = seqs});
}

/* Shifting by hand gives the same bits; the text goes on for many contexts, and nothing of it becomes a prefix. */
static void check_context_shift(tn_model *model, int32_t keep) {
    const tn_session_params p = short_params(8);
    tn_session *s, *by_hand;
    tn_token text[SHORT];
    int32_t n = 0, removed, taken, n_shifts = 0;
    assert_ok(tn_session_open(model, &p, &s));
    assert_ok(tn_session_open(model, &p, &by_hand));
    assert_ok(tn_session_prefix_take(s, 0, 0, text, 0, &taken));
    for (int32_t i = 0; i < 4 * SHORT; i++) {
        if (n == SHORT) {
            assert_ok(tn_session_context_shift(s, 0, keep, &removed));
            assert_in_range(removed, (SHORT - keep) / 2 - PAGE, (SHORT - keep) / 2 + PAGE);
            assert_ok(tn_session_seq_remove(by_hand, 0, keep, keep + removed));
            assert_ok(tn_session_seq_shift(by_hand, 0, keep + removed, -1, -removed));
            memmove(text + keep, text + keep + removed, (size_t)(n - keep - removed) * sizeof *text);
            n -= removed;
            n_shifts++;
            assert_int_equal(tn_session_seq_last(s, 0), n - 1);
            assert_int_equal(tn_session_cache_usage(s).used, tn_session_cache_usage(by_hand).used);
        }
        text[n] = token_at(i);
        assert_ok(decode_tokens(s, 0, text + n, 1));
        assert_ok(decode_tokens(by_hand, 0, text + n, 1));
        n++;
        assert_memory_equal(tn_session_logits(s, -1), tn_session_logits(by_hand, -1), VOCAB * sizeof(float));
    }
    assert_true(n_shifts > 3);
    /* The tokens that the sequence holds now were computed beside others. */
    assert_int_equal(tn_session_prefix_shared(s, 0, text, n), keep);
    assert_ok(tn_session_prefix_keep(s, 0));
    assert_ok(tn_session_seq_remove(s, 0, 0, -1));
    assert_ok(tn_session_prefix_take(s, 1, 0, text, n - 1, &taken));
    assert_int_equal(taken, keep);
    tn_session_free(s);
    tn_session_free(by_hand);
}

static void a_full_context_is_shifted(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen3"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        tn_model *model = open_tiny(archs[i], SHORT);
        check_context_shift(model, 0);
        check_context_shift(model, 5);
        check_context_shift(model, 2 * PAGE);
        tn_model_close(model);
    }
    tn_model *windows = open_tiny("gemma2", SHORT);
    check_context_shift(windows, 0);
    tn_model_close(windows);
}

/* What other sequences hold stays as it is; where there is no page for a copy, only the kept tokens remain. */
static void a_shift_leaves_others_alone(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", SHORT);
    const tn_session_params p = short_params(0);
    tn_session *s;
    tn_token text[SHORT];
    int32_t removed = 0;
    for (int32_t i = 0; i < SHORT; i++) text[i] = token_at(i);
    assert_ok(tn_session_open(model, &p, &s));
    assert_ok(decode_tokens(s, 0, text, 100));
    assert_ok(tn_session_seq_copy(s, 0, 1, 0, -1));
    assert_ok(decode_tokens(s, 1, text + 100, 1));
    float before[VOCAB];
    memcpy(before, tn_session_logits(s, -1), sizeof before);
    assert_ok(tn_session_seq_remove(s, 1, 100, -1));
    assert_ok(tn_session_context_shift(s, 0, 3, &removed));
    assert_ok(decode_tokens(s, 1, text + 100, 1));
    assert_memory_equal(tn_session_logits(s, -1), before, sizeof before);

    tn_session_clear(s);
    assert_ok(decode_tokens(s, 0, text, SHORT - PAGE));
    assert_ok(tn_session_seq_copy(s, 0, 1, 0, -1));
    assert_fails(TN_E_FULL, tn_session_context_shift(s, 0, 3, &removed));
    assert_int_equal(tn_session_seq_last(s, 0), 2);
    assert_true(removed > 0);
    assert_int_equal(tn_session_seq_last(s, 1), SHORT - PAGE - 1);
    tn_session_free(s);
    tn_model_close(model);
}

static void impossible_shifts_are_refused(void **state) {
    (void)state;
    tn_model *model = open_tiny("gpt2", SHORT);
    const tn_session_params p = short_params(0);
    tn_session *s;
    tn_token text[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    int32_t removed = 7;
    assert_ok(tn_session_open(model, &p, &s));
    assert_false(tn_session_can_shift(s));
    assert_ok(decode_tokens(s, 0, text, 8));
    assert_fails(TN_E_UNSUPPORTED, tn_session_context_shift(s, 0, 0, &removed));
    assert_int_equal(removed, 0);
    assert_int_equal(tn_session_seq_last(s, 0), 7);
    tn_session_free(s);
    tn_model_close(model);
    model = open_tiny("llama", SHORT);
    assert_ok(tn_session_open(model, &p, &s));
    assert_true(tn_session_can_shift(s));
    assert_ok(decode_tokens(s, 0, text, 8));
    assert_fails(TN_E_INVALID, tn_session_context_shift(s, 0, 7, &removed));
    assert_fails(TN_E_INVALID, tn_session_context_shift(s, 0, -1, &removed));
    assert_fails(TN_E_INVALID, tn_session_context_shift(s, SEQS, 0, &removed));
    assert_fails(TN_E_INVALID, tn_session_context_shift(s, 1, 0, &removed)); /* empty */
    assert_fails(TN_E_INVALID, tn_session_context_shift(NULL, 0, 0, &removed));
    assert_int_equal(tn_session_seq_last(s, 0), 7);
    tn_session_free(s);
    tn_model_close(model);
}

/* ---- Holes ---- */

static int32_t pages_in_use(const tn_session *s) {
    const tn_cache_usage usage = tn_session_cache_usage(s);
    return usage.pages - usage.free_pages;
}

/* Three tokens of every page stay: the next decode gathers them, and computes what it would have computed. */
static void holes_are_gathered(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", SHORT);
    const tn_session_params p = short_params(0);
    tn_session *s, *other;
    tn_token text[SHORT];
    for (int32_t i = 0; i < SHORT; i++) text[i] = token_at(i);
    assert_ok(tn_session_open(model, &p, &s));
    assert_ok(tn_session_open(model, &p, &other));
    for (int i = 0; i < 2; i++) {
        tn_session *session = i ? other : s;
        assert_ok(decode_tokens(session, 0, text, 160));
        for (int32_t page = 0; page < 10; page++)
            assert_ok(tn_session_seq_remove(session, 0, page * PAGE + 3, (page + 1) * PAGE));
        assert_int_equal(pages_in_use(session), 10);
    }
    assert_ok(decode_tokens(other, 1, text, 1)); /* another sequence's token is reason enough */
    assert_in_range(pages_in_use(other), 2, 4);
    assert_ok(tn_session_seq_remove(other, 1, 0, -1));
    const int32_t position = 160, seq = 0;
    for (int i = 0; i < 2; i++)
        assert_ok(tn_session_decode(
            i ? other : s, &(tn_batch){.n_tokens = 1, .tokens = text, .positions = &position, .seqs = &seq}));
    assert_memory_equal(tn_session_logits(s, -1), tn_session_logits(other, -1), VOCAB * sizeof(float));
    assert_in_range(pages_in_use(s), 2, 4);
    tn_session_free(s);
    tn_session_free(other);
    tn_model_close(model);
}

/* Sequences that end, and a few removed tokens, are no reason to move cells. */
static void few_holes_are_left(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", SHORT);
    const tn_session_params p = short_params(0);
    tn_session *s;
    tn_token text[SHORT];
    for (int32_t i = 0; i < SHORT; i++) text[i] = token_at(i);
    assert_ok(tn_session_open(model, &p, &s));
    assert_ok(decode_tokens(s, 0, text, 160));
    assert_ok(decode_tokens(s, 1, text, 40));
    assert_ok(tn_session_seq_remove(s, 1, 0, -1));
    assert_ok(tn_session_seq_remove(s, 0, 50, 70));
    const uint64_t runs = tn_session_get_stats(s).sched.runs;
    assert_ok(decode_tokens(s, 0, text, 1));
    assert_int_equal(tn_session_get_stats(s).sched.runs, runs + 1);
    tn_session_free(s);
    tn_model_close(model);
}

/* ---- Reports ---- */

static int32_t begin_with(tn_session *s, int32_t seq, const tn_token *tokens, int32_t n) {
    int32_t taken;
    assert_ok(tn_session_prefix_take(s, seq, 7, tokens, n - 1, &taken));
    assert_ok(decode_tokens(s, seq, tokens + taken, n - taken));
    return taken;
}
static void keep_and_end(tn_session *s, int32_t seq) {
    assert_ok(tn_session_prefix_keep(s, seq));
    assert_ok(tn_session_seq_remove(s, seq, 0, -1));
}

static void check_page_owners(tn_session *s) {
    const tn_cache_usage usage = tn_session_cache_usage(s);
    int32_t *owner = malloc((size_t)usage.pages * sizeof *owner), n_free = 0, n_live = 0, n_kept = 0;
    tn_session_page_map(s, owner);
    for (int32_t i = 0; i < usage.pages; i++) {
        n_free += owner[i] == TN_PAGE_FREE;
        n_live += owner[i] == 2;
        n_kept += owner[i] >= SEQS;
    }
    assert_int_equal(n_free, usage.free_pages);
    assert_int_equal(n_live, 3 + 2); /* 40 tokens end in the third page; 20 more need two */
    assert_int_equal(n_kept, 2 + 2); /* two pages of the first conversation, two of the stranger */
    assert_ok(tn_session_seq_copy(s, 2, 1, 0, -1));
    tn_session_page_map(s, owner);
    for (int32_t i = 0; i < usage.pages; i++) assert_true(owner[i] != 2 && owner[i] != 1);
    free(owner);
}

/* Two conversations with one beginning, one of them alive, and a stranger: their tree, and who has which page. */
static void reports_show_tree_and_owners(void **state) {
    (void)state;
    tn_model *model = open_tiny("llama", SHORT);
    const tn_session_params p = short_params(8);
    tn_session *s;
    tn_token a[SHORT], b[SHORT], d[SHORT];
    tn_prefix_info tree[8];
    for (int32_t i = 0; i < SHORT; i++) {
        a[i] = token_at(i);
        b[i] = i < 40 ? a[i] : token_at(3 * i + 1);
        d[i] = token_at(5 * i + 2);
    }
    b[40] = a[40] == 5 ? 6 : 5;
    d[0] = a[0] == 5 ? 6 : 5;
    assert_ok(tn_session_open(model, &p, &s));
    assert_int_equal(begin_with(s, 0, a, 70), 0);
    keep_and_end(s, 0);
    assert_int_equal(begin_with(s, 1, d, 30), 0);
    keep_and_end(s, 1);
    assert_int_equal(begin_with(s, 2, b, 60), 40);
    assert_int_equal(tn_session_prefix_shared(s, 7, b, 60), 60);
    assert_int_equal(tn_session_prefix_shared(s, 7, a, 60), 40); /* of the live one */
    assert_int_equal(tn_session_prefix_shared(s, 8, b, 60), 0);
    assert_int_equal(tn_session_prefix_shared(s, 7, d, 30), 0); /* kept, not live */
    assert_int_equal(tn_session_cells_held(s), 60);
    assert_int_equal(tn_session_prefix_tree(s, tree, 8), 3);
    /* The live one, then the most recently used: taking the beginning of the first has used it. */
    const tn_prefix_info want[] = {{2, 60, -1, 0, 20, 0}, {0, 70, 0, 40, 30, 0}, {0, 30, -1, 0, 30, 0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tree[i].tokens, want[i].tokens);
        assert_int_equal(tree[i].parent, want[i].parent);
        assert_int_equal(tree[i].shared, want[i].shared);
        assert_int_equal(tree[i].cells, want[i].cells);
    }
    assert_true(tree[0].id == 2 && tree[0].last_used == 0 && tree[1].id >= SEQS);
    assert_true(tree[1].last_used > tree[2].last_used);
    assert_int_equal(tn_session_prefix_tree(s, tree, 2), 2);
    assert_int_equal(tree[1].tokens, 70);
    assert_int_equal(tn_session_prefix_tree(s, tree, 1), 1); /* a prefix does not displace a sequence */
    assert_int_equal(tree[0].id, 2);
    check_page_owners(s);
    const tn_prefix_usage counts = tn_session_prefix_usage(s);
    assert_int_equal(counts.hits, 1);
    assert_int_equal(counts.misses, 2);
    tn_session_free(s);
    tn_model_close(model);
}

static int make_context_path(void **state) {
    (void)state;
    strcpy(context_model_path, "/tmp/tenon-context-XXXXXX");
    int file = mkstemp(context_model_path);
    if (file >= 0) close(file);
    return file < 0;
}
static int remove_context_path(void **state) {
    (void)state;
    return unlink(context_model_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_open_context_is_the_trained_one),
        cmocka_unit_test(an_open_context_is_what_fits),
        cmocka_unit_test(a_full_context_is_shifted),
        cmocka_unit_test(a_shift_leaves_others_alone),
        cmocka_unit_test(impossible_shifts_are_refused),
        cmocka_unit_test(holes_are_gathered),
        cmocka_unit_test(few_holes_are_left),
        cmocka_unit_test(reports_show_tree_and_owners),
    };
    return cmocka_run_group_tests(tests, make_context_path, remove_context_path);
}
