/* Attention of many sequences on a GPU: mixed batches over page tables with all cache types, compared with the CPU,
 * and repeatable attention, whose bits depend on neither pages nor batches. Skipped without a GPU. */
#include "device_graph.h"
#include "random_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_type cache_types[] = {TN_F16,  TN_F16,  TN_BF16, TN_F32,  TN_FP8,
                                      TN_Q8_0, TN_Q5_1, TN_Q5_0, TN_Q4_1, TN_Q4_0};
enum { N_CACHE_TYPES = sizeof cache_types / sizeof *cache_types };

/* ---- Mixed batches ---- */

typedef struct {
    int64_t tokens, sequences, runs, cells;
    int32_t page;
    int32_t *q_pos;
    tn_page_run *pages;
} mixed_batch;

/* Lengths of 0, 1, around a page and longer ones; the last run may be open. */
static int64_t pick_cells(const mixed_batch *b, rng *r) {
    switch (rng_below(r, 6)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return b->page - 1;
    case 3: return b->page;
    case 4: return b->page + 1;
    default: return pick_int(r, 1, b->runs * b->page);
    }
}
static void fill_sequence(mixed_batch *b, int64_t sequence, int64_t length, rng *r) {
    tn_page_run *row = b->pages + sequence * (1 + b->runs);
    int32_t n = 0, position = (int32_t)pick_int(r, 0, 40);
    for (int64_t left = length; left > 0 && n < b->runs; n++) {
        int32_t count = (int32_t)(left < b->page ? left : b->page);
        if (chance(r, 10)) count = (int32_t)pick_int(r, 1, count);
        row[1 + n] = (tn_page_run){(int32_t)pick_int(r, 0, b->cells / b->page - 1) * b->page, count, position, 1};
        position += count + (chance(r, 5) ? 3 : 0);
        left -= count;
    }
    row[0] = (tn_page_run){n, 0, 0, 0};
}
/* Sequences have one token, a few, or many; rows of padding are between them. */
static void fill_queries(mixed_batch *b, rng *r) {
    for (int64_t i = 0; i < b->tokens;) {
        const int64_t sequence = pick_int(r, -1, b->sequences - 1), n = chance(r, 70)   ? 1
                                                                        : chance(r, 60) ? pick_int(r, 2, 12)
                                                                                        : pick_int(r, 60, 140);
        const tn_page_run *row = b->pages + (sequence < 0 ? 0 : sequence) * (1 + b->runs), *last = row + row->cell;
        const int32_t end = row->cell ? last->first + last->count : 1;
        for (int64_t t = 0; t < n && i < b->tokens; t++, i++) {
            const int64_t position = end - n + t;
            b->q_pos[2 * i] = (int32_t)(position < 0 ? 0 : position);
            b->q_pos[2 * i + 1] = (int32_t)sequence;
        }
    }
}

static uint64_t seed;
static bool few_tokens; /* of a cache with room for long sequences */
static int build_mixed(device_graph *w, tn_tensor **wanted) {
    static const int32_t sizes[] = {16, 64, 64, 256, 32, 48, 5};
    static const int64_t token_counts[] = {9, 33, 65, 200, 257}, sequence_counts[] = {2, 9, 33, 65, 257},
                         heads_of_kv[] = {1, 2, 3, 4, 8, 20}, head_sizes[] = {32, 64, 96, 128, 192, 256};
    rng r = {seed};
    mixed_batch b = {.tokens = token_counts[rng_below(&r, 5)],
                     .sequences = sequence_counts[rng_below(&r, 5)],
                     .page = sizes[rng_below(&r, 7)]};
    const tn_type type_k = cache_types[rng_below(&r, N_CACHE_TYPES)],
                  type_v = chance(&r, 50) ? type_k : cache_types[rng_below(&r, N_CACHE_TYPES)];
    const int64_t kv = pick_int(&r, 1, 2), heads = kv * heads_of_kv[rng_below(&r, 6)],
                  size = head_sizes[rng_below(&r, 6)], size_v = chance(&r, 80) ? size : head_sizes[rng_below(&r, 6)];
    b.runs = pick_int(&r, 1, 1 + 700 / b.page);
    b.cells = b.page * pick_int(&r, 2, 2 + 1024 / b.page);
    if (few_tokens) {
        b.tokens = pick_int(&r, 2, 8);
        b.sequences = 2;
        b.cells = (2048 / b.page + 1) * b.page;
    }
    b.q_pos = tn_tensor_nd(w->data, TN_I32, 2, b.tokens)->data;
    b.pages = tn_tensor_nd(w->data, TN_I32, 4, 1 + b.runs, b.sequences)->data;
    memset(b.pages, 0x7f, (size_t)(b.sequences * (1 + b.runs)) * sizeof *b.pages);
    for (int64_t i = 0; i < b.sequences; i++) fill_sequence(&b, i, pick_cells(&b, &r), &r);
    fill_queries(&b, &r);
    w->r = (rng){seed + 1};
    tolerance = 2e-2f;
    if (chance(&r, 30)) device_graph_repeatable(w);
    tn_attention_params p = {.scale = 0.1f, .causal = !chance(&r, 10), .page = b.page};
    if (chance(&r, 30)) p.window = (int32_t)pick_int(&r, 1, 300);
    if (chance(&r, 10)) p.chunk = (int32_t)pick_int(&r, 1, 300);
    if (chance(&r, 10)) p.soft_cap = 3;
    if (chance(&r, 10)) p.max_bias = 4;
    tn_attention_sources s = {.q = input_of(w, TN_F32, size, heads, b.tokens, NULL),
                              .k = spread_tensor(w, type_k, TN_USAGE_ANY, (int64_t[]){size, kv, b.cells, 1}, 1),
                              .v = spread_tensor(w, type_v, TN_USAGE_ANY, (int64_t[]){size_v, kv, b.cells, 1}, 1),
                              .q_pos = input_of(w, TN_I32, 2, b.tokens, 1, b.q_pos),
                              .pages = input_of(w, TN_I32, 4, 1 + b.runs, b.sequences, b.pages)};
    if (chance(&r, 20)) s.sinks = device_tensor(w, TN_F32, TN_USAGE_ANY, heads, 1, 1);
    wanted[0] = tn_attention(w->a, &s, &p);
    assert_ok(tn_sched_pin(w->sched, wanted[0], 0));
    return 1;
}
static void mixed_batches_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    const int rounds = gpu_rounds(8, 40, 600);
    for (int i = 0; i < rounds; i++) {
        char what[32];
        seed = 7 + (uint64_t)i * 1000;
        snprintf(what, sizeof what, "mixed batch %d", i);
        check_on_both(build_mixed, what);
    }
}

/* Such a batch has the kernels of many sequences, too. */
static void few_tokens_of_long_sequences_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    few_tokens = true;
    for (int i = 0; i < gpu_rounds(3, 20, 100); i++) {
        char what[32];
        seed = 11 + (uint64_t)i * 1000;
        snprintf(what, sizeof what, "few tokens %d", i);
        check_on_both(build_mixed, what);
    }
    few_tokens = false;
}

/* ---- Repeatable attention ---- */

/* A sequence whose keys, values and queries are given by position. */
typedef struct {
    int64_t size, heads, kv, length;
    tn_type type;
    tn_attention_params p;
    bool sinks;
    const char *k, *v; /* [length] rows of all heads */
    const float *q;    /* [length] */
    size_t row;        /* bytes */
} repeatable_text;

/* Queries of the text at positions `first` to `first + n - 1`, among queries of other sequences, over random pages.
 */
typedef struct {
    const repeatable_text *text;
    int64_t first, n, others;
    int32_t page;
    uint64_t seed;
} repeatable_batch;

/* Divides the visible positions into runs anywhere in the cache, and copies the rows there. Returns the runs. */
static int32_t lay_out_text(const repeatable_batch *b, tn_page_run *runs, int64_t n_pages, char *k, char *v, rng *r) {
    const repeatable_text *t = b->text;
    int64_t position = 0, end = b->first + b->n, page = 0;
    int32_t n = 0;
    if (t->p.window && b->first >= t->p.window) /* cells before the window may be gone */
        position = pick_int(r, 0, b->first - t->p.window + 1);
    for (; position < end; n++) {
        int64_t skip = 0, count = b->page;
        if (n_pages - page > 2 * (end - position) / b->page + 2 && chance(r, 20)) {
            skip = pick_int(r, 0, b->page - 1);
            count = pick_int(r, 1, b->page - skip);
        }
        if (count > end - position) count = end - position;
        const int64_t cell = page++ * b->page + skip;
        memcpy(k + (size_t)cell * t->row, t->k + (size_t)position * t->row, (size_t)count * t->row);
        memcpy(v + (size_t)cell * t->row, t->v + (size_t)position * t->row, (size_t)count * t->row);
        runs[n] = (tn_page_run){(int32_t)cell, (int32_t)count, (int32_t)position, 1};
        position += count;
    }
    return n;
}
/* The results of the text's queries; the caller frees them with free(). */
static float *run_repeatable(const repeatable_batch *b) {
    const repeatable_text *t = b->text;
    const int64_t tokens = b->n + b->others, sequences = 1 + (b->others > 0 ? 3 : 0),
                  pages = 3 * (t->length + b->page) / b->page + 2, cells = pages * b->page, runs = pages,
                  wide = t->size * t->heads;
    device_graph w;
    rng r = {b->seed};
    device_graph_begin(&w, tn_device_name(gpu));
    device_graph_repeatable(&w);
    int32_t *q_pos = tn_tensor_nd(w.data, TN_I32, 2, tokens)->data;
    tn_page_run *table = tn_tensor_nd(w.data, TN_I32, 4, 1 + runs, sequences)->data;
    const int64_t shape[4] = {t->size, t->kv, cells, 1};
    tn_tensor *k = spread_tensor(&w, t->type, TN_USAGE_ANY, shape, 1),
              *v = spread_tensor(&w, t->type, TN_USAGE_ANY, shape, 1);
    char *rows_k = malloc(tn_nbytes(k)), *rows_v = malloc(tn_nbytes(v));
    float *q = malloc((size_t)(tokens * wide) * 4), *result = malloc((size_t)(b->n * wide) * 4);
    assert_ok(tn_tensor_get(k, rows_k));
    assert_ok(tn_tensor_get(v, rows_v));
    for (int64_t i = 0; i < sequences; i++) {
        tn_page_run *row = table + i * (1 + runs);
        if (i == 0) {
            row[0] = (tn_page_run){lay_out_text(b, row + 1, pages, rows_k, rows_v, &r), 0, 0, 0};
        } else {
            const int64_t n = pick_int(&r, 0, pages / 2);
            for (int64_t p = 0; p < n; p++)
                row[1 + p] = (tn_page_run){(int32_t)(p * b->page), b->page, (int32_t)(p * b->page), 1};
            row[0] = (tn_page_run){(int32_t)n, 0, 0, 0};
        }
    }
    assert_ok(tn_tensor_set(k, rows_k));
    assert_ok(tn_tensor_set(v, rows_v));
    /* The text's queries in order, others between them. */
    int64_t *at = malloc((size_t)(b->n + 1) * sizeof *at), mine = 0;
    for (int64_t i = 0; i < tokens; i++) {
        const bool is_mine = mine < b->n && (tokens - i == b->n - mine || chance(&r, b->others > 20 ? 20 : 60));
        if (is_mine) {
            memcpy(q + i * wide, t->q + (b->first + mine) * wide, (size_t)wide * 4);
            q_pos[2 * i] = (int32_t)(b->first + mine), q_pos[2 * i + 1] = 0;
            at[mine++] = i;
        } else {
            for (int64_t e = 0; e < wide; e++) q[i * wide + e] = pick_real(&r, -2, 2);
            q_pos[2 * i] = (int32_t)pick_int(&r, 0, cells), q_pos[2 * i + 1] = (int32_t)pick_int(&r, -1, 3);
            if (q_pos[2 * i + 1] == 0) q_pos[2 * i] = 0;
        }
    }
    tn_attention_params p = t->p;
    p.page = b->page;
    w.r = (rng){99};
    tn_attention_sources s = {.q = input_of(&w, TN_F32, t->size, t->heads, tokens, q),
                              .k = k,
                              .v = v,
                              .q_pos = input_of(&w, TN_I32, 2, tokens, 1, q_pos),
                              .pages = input_of(&w, TN_I32, 4, 1 + runs, sequences, table)};
    if (t->sinks) s.sinks = device_tensor(&w, TN_F32, TN_USAGE_ANY, t->heads, 1, 1);
    tn_tensor *wanted[] = {tn_attention(w.a, &s, &p)};
    assert_ok(tn_sched_pin(w.sched, wanted[0], 0));
    int64_t count;
    float *all = run_device_graph(&w, wanted, 1, &count);
    for (int64_t i = 0; i < b->n; i++) memcpy(result + i * wide, all + at[i] * wide, (size_t)wide * 4);
    device_graph_end(&w);
    free(all), free(at), free(q), free(rows_k), free(rows_v);
    return result;
}

static void check_text(const repeatable_text *t, uint64_t from) {
    const int64_t samples[] = {0, 5, 31, 32, 255, 256, 300, t->length - 1}, wide = t->size * t->heads;
    static const int32_t pages[] = {16, 64, 5, 256, 48};
    float *alone[8];
    for (int i = 0; i < 8; i++)
        alone[i] = run_repeatable(&(repeatable_batch){t, samples[i], 1, 0, 64, from + (uint64_t)i});
    rng r = {from};
    for (int round = 0; round < gpu_rounds(2, 6, 30); round++) {
        const int64_t first = chance(&r, 50) ? 0 : pick_int(&r, 0, t->length - 1),
                      n = chance(&r, 30) ? pick_int(&r, 1, 9) : pick_int(&r, 1, t->length),
                      all = first + n > t->length ? t->length - first : n;
        const repeatable_batch b = {t,
                                    first,
                                    all,
                                    chance(&r, 40) ? 0 : pick_int(&r, 1, 70),
                                    pages[rng_below(&r, 5)],
                                    from + 100 + (uint64_t)round};
        float *got = run_repeatable(&b);
        for (int i = 0; i < 8; i++)
            if (samples[i] >= first && samples[i] < first + all &&
                memcmp(got + (samples[i] - first) * wide, alone[i], (size_t)wide * 4) != 0)
                fail_msg("seed %llu round %d: position %lld has other bits in a batch of positions %lld to %lld and "
                         "%lld others, pages of %d",
                         (unsigned long long)from, round, (long long)samples[i], (long long)first,
                         (long long)(first + all - 1), (long long)b.others, (int)b.page);
        free(got);
    }
    for (int i = 0; i < 8; i++) free(alone[i]);
}
static void repeatable_bits_depend_on_the_query_and_its_cells_alone(void **state) {
    (void)state;
    NEED_GPU();
    static const tn_type types[] = {TN_F16, TN_Q8_0, TN_F16, TN_F32, TN_FP8, TN_BF16, TN_Q4_0, TN_F16};
    const int rounds = gpu_rounds(3, 5, 24);
    for (int i = 0; i < rounds; i++) {
        rng r = {500 + (uint64_t)i};
        tn_arena *a;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &a));
        repeatable_text t = {.size = i % 3 == 1 ? 128 : 64,
                             .kv = pick_int(&r, 1, 2),
                             .length = pick_int(&r, 301, i % 2 ? 620 : 340),
                             .type = types[i % 8],
                             .sinks = i % 4 == 3};
        t.heads = t.kv * (int64_t[]){4, 1, 3, 8, 20}[i % 5];
        t.p = (tn_attention_params){.scale = 0.1f, .causal = true, .window = i % 3 == 2 ? 90 : 0};
        if (i % 6 == 4) t.p.soft_cap = 5;
        const int64_t rows[4] = {t.size, t.kv, t.length, 1}, q[4] = {t.size, t.heads, t.length, 1};
        tn_tensor *k = random_tensor(a, t.type, rows, 0, 1, &r), *v = random_tensor(a, t.type, rows, 0, 1, &r);
        t.k = k->data;
        t.v = v->data;
        t.q = random_tensor(a, TN_F32, q, 0, 3, &r)->data;
        t.row = tn_nbytes(k) / (size_t)t.length;
        check_text(&t, 1000 * (uint64_t)(1 + i));
        tn_arena_free(a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_batches_agree_with_the_cpu),
        cmocka_unit_test(few_tokens_of_long_sequences_agree_with_the_cpu),
        cmocka_unit_test(repeatable_bits_depend_on_the_query_and_its_cells_alone),
    };
    /* The reference does not round to bf16, as AMX does. */
    const char *device = getenv("TENON_GPU");
    if (!device || strcmp(device, "cpu") != 0) setenv("TENON_CPU", "generic", 0);
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}
