/* Attention over page tables on a GPU: new rows and the attention after them, alone and in layers; heads with norms,
 * sections and gates. Each is compared
 * with the CPU. Skipped without a GPU. */
#include "device_graph.h"
#include "random_tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* New rows of a cache, rotated or not, and attention over it. `rows` may be outside the visible cells or outside the
 * cache; with `gaps`, attention reads only a part of each stored head. */
typedef struct {
    int tokens;
    bool rotates, gaps;
    int32_t rows[3], range[2]; /* cells in `range` are visible */
} storing;
static const storing *now;
static int32_t page_cells;
static int build_storing(device_graph *w, tn_tensor **wanted) {
    enum { SIZE = 64, HEADS = 4, KV = 2, CELLS = 300 };
    int64_t tokens = now->tokens, stored = now->gaps ? 2 * SIZE : SIZE;
    static int32_t viewers[6], positions[3] = {7, 9, 11};
    static tn_page_run pages[1 + CELLS];
    int32_t n = 0;
    for (int32_t end = now->range[1]; end > now->range[0]; n++) { /* the last page first */
        int32_t cell = (end - 1) / page_cells * page_cells;
        if (cell < now->range[0]) cell = now->range[0];
        pages[1 + n] = (tn_page_run){cell, end - cell, cell, 1};
        end = cell;
    }
    pages[0] = (tn_page_run){n, 0, 0, 0};
    for (int i = 0; i < 3; i++) viewers[2 * i] = CELLS, viewers[2 * i + 1] = 0;
    tn_tensor *k = device_tensor(w, TN_F16, TN_USAGE_ANY, stored * KV, CELLS, 1),
              *v = device_tensor(w, TN_F16, TN_USAGE_ANY, stored * KV, CELLS, 1);
    tn_tensor *q = input_of(w, TN_F32, SIZE, HEADS, tokens, NULL),
              *new_k = input_of(w, TN_F32, stored, KV, tokens, NULL),
              *new_v = input_of(w, TN_F32, stored * KV, tokens, 1, NULL);
    tn_tensor *rows = input_of(w, TN_I32, tokens, 1, 1, now->rows);
    if (now->rotates) {
        tn_rope_params p = tn_rope_params_default(SIZE, TN_ROPE_NEOX);
        tn_tensor *positions_in = input_of(w, TN_I32, tokens, 1, 1, positions);
        q = tn_rope(w->a, q, positions_in, NULL, &p);
        new_k = tn_rope(w->a, new_k, positions_in, NULL, &p);
    }
    tn_tensor *with_k = tn_set_rows(w->a, k, tn_reshape(w->a, new_k, stored * KV, tokens), rows),
              *with_v = tn_set_rows(w->a, v, new_v, rows);
    tn_attention_sources s = {.q = q,
                              .k = heads_of(w, with_k, SIZE, KV, stored),
                              .v = heads_of(w, with_v, SIZE, KV, stored),
                              .q_pos = input_of(w, TN_I32, 2, tokens, 1, viewers),
                              .pages = input_of(w, TN_I32, 4, 1 + CELLS, 1, pages)};
    tn_tensor *x = tn_attention(w->a, &s, &(tn_attention_params){.scale = 0.2f, .causal = true, .page = page_cells}),
              *after = device_tensor(w, TN_F16, TN_USAGE_WEIGHTS, SIZE * HEADS, SIZE * HEADS, 1);
    wanted[0] = tn_mul_mat(w->a, after, tn_reshape(w->a, x, SIZE * HEADS, tokens));
    w->changed[w->n_changed++] = k;
    w->changed[w->n_changed++] = v;
    return 1;
}
static void new_rows_are_stored_inside_and_outside_the_runs(void **state) {
    (void)state;
    NEED_GPU();
    static const storing cases[] = {
        {1, true, false, {140}, {0, 300}},
        {1, true, false, {250}, {0, 200}},
        {1, true, false, {300}, {0, 200}},
        {1, false, false, {3}, {40, 200}},
        {1, false, false, {299}, {0, 0}},
        {1, true, false, {-1}, {0, 300}},
        {3, true, false, {250, 10, 299}, {0, 200}},
        {3, false, false, {20, 10, 1}, {100, 200}},
        {3, true, false, {100, 1000, 100}, {0, 300}},
        {1, true, true, {140}, {0, 300}},
        {1, false, true, {140}, {0, 300}},
        {3, false, true, {140, 3, 290}, {0, 200}},
    };
    static const int32_t sizes[] = {300, 64, 16, 5};
    for (size_t i = 0; i < 4 * sizeof cases / sizeof *cases; i++) {
        char what[48];
        now = &cases[i / 4];
        page_cells = sizes[i % 4];
        snprintf(what, sizeof what, "storing %zu, pages of %d cells", i / 4, (int)page_cells);
        check_on_both(build_storing, what);
    }
}

/* ---- Layers ---- */

/* A batch of tokens of several sequences, and the table of their runs. */
typedef struct {
    int64_t tokens, sequences, cells, runs;
    int32_t page;
    int32_t *q_pos, *rows, *positions;
    tn_page_run *pages;
} paged_batch;

/* Whole pages that lie anywhere, and runs that are a part of a page. The first runs of all sequences may be the same.
 * The last run of a sequence is open. Some runs are divided, some not valid. */
static void random_sequence(paged_batch *b, int64_t sequence, int64_t n, bool shares, rng *r) {
    tn_page_run *row = b->pages + sequence * (1 + b->runs);
    int32_t position = 0;
    row[0] = (tn_page_run){(int32_t)n, 0, 0, 0};
    for (int64_t i = 1; i <= n; i++) {
        int32_t cell = (int32_t)pick_int(r, 0, b->cells / b->page - 1) * b->page, count = b->page;
        if (chance(r, 30)) {
            int32_t skip = (int32_t)pick_int(r, 0, b->page - 1);
            cell += skip;
            count = (int32_t)pick_int(r, 1, b->page - skip);
        }
        row[i] = (tn_page_run){cell, count, position, 1};
        if (shares && sequence && i < 3 && i < n) row[i] = b->pages[i];
        position = row[i].first / (row[i].divisor > 1 ? row[i].divisor : 1) + row[i].count;
        if (i < n && chance(r, 8)) {
            row[i].divisor = (int32_t)pick_int(r, 0, 3);
            row[i].first *= 2;
        }
        if (i < n && chance(r, 4)) row[i].cell = chance(r, 50) ? (int32_t)b->cells - 1 : INT32_MIN;
        if (i < n && chance(r, 4)) row[i].count = chance(r, 50) ? b->page + 1 : -1;
    }
}
/* A token at a position of the last run, whose row is the cell of that position. */
static void random_token(paged_batch *b, int64_t token, int64_t sequence, rng *r) {
    const tn_page_run *row = b->pages + sequence * (1 + b->runs), *last = row + row[0].cell;
    const int32_t offset = row[0].cell ? (int32_t)pick_int(r, 0, last->count - 1) : 0;
    b->positions[token] = row[0].cell ? last->first + offset : 0;
    b->rows[token] = row[0].cell ? last->cell + offset : 0;
    b->q_pos[2 * token] = b->positions[token];
    b->q_pos[2 * token + 1] = (int32_t)sequence;
    if (chance(r, 5)) b->q_pos[2 * token + 1] = chance(r, 50) ? -1 : (int32_t)b->sequences;
    if (chance(r, 10)) b->rows[token] = (int32_t)pick_int(r, -2, b->cells + 2);
    if (chance(r, 5) && token) b->rows[token] = b->rows[token - 1];
}
static paged_batch random_batch(device_graph *w, int64_t tokens, int64_t sequences, int32_t page, int64_t runs,
                                int64_t cells, rng *r) {
    paged_batch b = {.tokens = tokens, .sequences = sequences, .cells = cells, .runs = runs, .page = page};
    b.q_pos = tn_tensor_nd(w->data, TN_I32, 2, tokens)->data;
    b.rows = tn_tensor_nd(w->data, TN_I32, tokens)->data;
    b.positions = tn_tensor_nd(w->data, TN_I32, tokens)->data;
    b.pages = tn_tensor_nd(w->data, TN_I32, 4, 1 + runs, sequences)->data;
    memset(b.pages, 0x7f, (size_t)(sequences * (1 + runs)) * sizeof *b.pages);
    const bool shares = chance(r, 50), one = chance(r, 40);
    for (int64_t i = 0; i < sequences; i++)
        random_sequence(&b, i, chance(r, 50) ? runs : pick_int(r, 0, runs), shares, r);
    for (int64_t i = 0; i < tokens; i++) random_token(&b, i, one ? 0 : pick_int(r, 0, sequences - 1), r);
    return b;
}

static uint64_t seed;
static int build_layers(device_graph *w, tn_tensor **wanted) {
    static const int32_t sizes[] = {16, 64, 64, 256, 32, 48, 5};
    static const int64_t counts[] = {1, 1, 1, 2, 3, 8, 9, 20, 70};
    enum { LAYERS = 3, WIDTH = 256 };
    rng r = {seed};
    const int32_t page = sizes[rng_below(&r, 7)];
    const int64_t size = chance(&r, 50) ? 64 : 128, kv = pick_int(&r, 1, 2), heads = kv << pick_int(&r, 0, 2),
                  cells = page * pick_int(&r, 2, 1 + 1024 / page), tokens = counts[rng_below(&r, 9)],
                  sequences = chance(&r, 40) ? 1 : pick_int(&r, 1, 12),
                  runs = chance(&r, 25) ? pick_int(&r, 60, 90) : pick_int(&r, 1, 1 + 600 / page);
    const bool window = chance(&r, 40), sinks = chance(&r, 20), rotates = chance(&r, 80);
    const float cap = chance(&r, 10) ? 3.0f : 0;
    paged_batch before = random_batch(w, tokens, sequences, page, runs, cells, &r),
                after = random_batch(w, tokens, sequences, page, runs, cells, &r);
    w->r = (rng){seed + 1};
    tolerance = tokens < 4 ? 5e-3f : 3e-2f; /* several tokens: activations and q are rounded to f16 */
    tn_tensor *q_pos = input_of(w, TN_I32, 2, tokens, 1, after.q_pos),
              *rows = input_of(w, TN_I32, tokens, 1, 1, after.rows),
              *pages = input_of(w, TN_I32, 4, 1 + runs, sequences, after.pages),
              *positions = rotates ? input_of(w, TN_I32, tokens, 1, 1, after.positions) : NULL;
    const void *earlier[] = {before.q_pos, before.rows, before.pages, rotates ? before.positions : NULL};
    memcpy(w->earlier, earlier, sizeof earlier);
    tn_tensor *x = input_of(w, TN_F32, WIDTH, tokens, 1, NULL);
    tn_rope_params rope = tn_rope_params_default((int32_t)size, chance(&r, 50) ? TN_ROPE_NEOX : TN_ROPE_NORMAL);
    tn_tensor *norm = device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, WIDTH, 1, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        x = tn_rms_norm(w->a, x, norm, 1e-5f);
        const int64_t row = size * kv, wide = size * heads,
                      shapes[4][4] = {
                          {WIDTH, wide, 1, 1}, {WIDTH, row, 1, 1}, {WIDTH, row, 1, 1}, {wide, WIDTH, 1, 1}};
        tn_tensor *weights[4], *cache[2];
        for (int i = 0; i < 4; i++)
            weights[i] = spread_tensor(w, TN_F16, TN_USAGE_WEIGHTS, shapes[i], i < 2 ? 0.06f : 0.3f);
        for (int i = 0; i < 2; i++) {
            cache[i] = spread_tensor(w, TN_F16, TN_USAGE_ANY, (int64_t[]){row, cells, 1, 1}, 1 + 4 * i);
            w->changed[w->n_changed++] = cache[i];
        }
        tn_tensor *q = tn_reshape(w->a, tn_mul_mat(w->a, weights[0], x), size, heads, tokens),
                  *k = tn_reshape(w->a, tn_mul_mat(w->a, weights[1], x), size, kv, tokens),
                  *v = tn_mul_mat(w->a, weights[2], x);
        w->in_order[w->n_in_order++] = q;
        w->in_order[w->n_in_order++] = k;
        w->in_order[w->n_in_order++] = v;
        if (rotates) {
            q = tn_rope(w->a, q, positions, NULL, &rope);
            k = tn_rope(w->a, k, positions, NULL, &rope);
        }
        tn_tensor *with_k = tn_set_rows(w->a, cache[0], tn_reshape(w->a, k, row, tokens), rows),
                  *with_v = tn_set_rows(w->a, cache[1], v, rows);
        tn_attention_sources s = {.q = q,
                                  .k = heads_of(w, with_k, size, kv, size),
                                  .v = heads_of(w, with_v, size, kv, size),
                                  .q_pos = q_pos,
                                  .pages = pages};
        if (sinks) s.sinks = device_tensor(w, TN_F32, TN_USAGE_ANY, heads, 1, 1);
        tn_attention_params p = {.scale = 0.1f, .soft_cap = cap, .causal = true, .page = page};
        if (window && layer != 1) p.window = 100;
        x = tn_mul_mat(w->a, weights[3], tn_reshape(w->a, tn_attention(w->a, &s, &p), wide, tokens));
        wanted[layer] = x;
    }
    return LAYERS;
}
/* New rows, their rotation and attention over random page tables, which change between two runs of a program. */
static void layers_over_page_tables_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    const int rounds = gpu_rounds(6, 25, 400);
    for (int i = 0; i < rounds; i++) {
        char what[32];
        seed = (uint64_t)i * 1000;
        snprintf(what, sizeof what, "layers %d", i);
        check_on_both(build_layers, what);
    }
}

/* ---- Heads ---- */

/* What attention of one token also does: norms of q and k, rotations with sections, and a gate that comes with q. */
static int build_heads(device_graph *w, tn_tensor **wanted) {
    enum { LAYERS = 2, WIDTH = 128, PAGE = 64 };
    static const tn_rope_mode modes[] = {TN_ROPE_NORMAL, TN_ROPE_NEOX, TN_ROPE_MULTI};
    rng r = {seed};
    const int64_t size = 64 << pick_int(&r, 0, 2), kv = pick_int(&r, 1, 2), heads = kv * pick_int(&r, 1, 8),
                  tokens = chance(&r, 75) ? 1 : pick_int(&r, 2, 3), cells = PAGE * pick_int(&r, 2, 8),
                  runs = chance(&r, 30) ? 36 : pick_int(&r, 1, 6), wide = size * heads, row = size * kv;
    const bool norms = chance(&r, 80), one_norm = chance(&r, 10), gated = chance(&r, 60), conts = chance(&r, 80);
    paged_batch before = random_batch(w, tokens, 1, PAGE, runs, cells, &r),
                after = random_batch(w, tokens, 1, PAGE, runs, cells, &r);
    int32_t *places = tn_tensor_nd(w->data, TN_I32, 4 * tokens)->data;
    for (int64_t i = 0; i < 4 * tokens; i++) places[i] = (int32_t)pick_int(&r, 0, 2000);
    w->r = (rng){seed + 1};
    tolerance = tokens == 1 ? 5e-3f : 3e-2f;
    tn_rope_params rope =
        tn_rope_params_default((int32_t)(chance(&r, 50) ? size : size / 2), modes[rng_below(&r, 3)]);
    for (int i = 0; i < 3; i++) rope.sections[i] = (int32_t)pick_int(&r, 1, 12);
    const bool sections = rope.mode == TN_ROPE_MULTI;
    tn_tensor *q_pos = input_of(w, TN_I32, 2, tokens, 1, after.q_pos),
              *rows = input_of(w, TN_I32, tokens, 1, 1, after.rows),
              *pages = input_of(w, TN_I32, 4, 1 + runs, 1, after.pages),
              *positions =
                  input_of(w, TN_I32, sections ? 4 * tokens : tokens, 1, 1, sections ? places : after.positions);
    const void *earlier[] = {before.q_pos, before.rows, before.pages};
    memcpy(w->earlier, earlier, sizeof earlier);
    tn_tensor *x = input_of(w, TN_F32, WIDTH, tokens, 1, NULL);
    for (int layer = 0; layer < LAYERS; layer++) {
        const int64_t each = gated ? 2 * size : size,
                      shapes[4][4] = {
                          {WIDTH, each * heads, 1, 1}, {WIDTH, row, 1, 1}, {WIDTH, row, 1, 1}, {wide, WIDTH, 1, 1}};
        tn_tensor *weights[4], *cache[2];
        for (int i = 0; i < 4; i++)
            weights[i] = spread_tensor(w, TN_F16, TN_USAGE_WEIGHTS, shapes[i], i < 3 ? 0.1f : 0.05f);
        for (int i = 0; i < 2; i++)
            cache[i] = w->changed[w->n_changed++] = device_tensor(w, TN_F16, TN_USAGE_ANY, row, cells, 1);
        tn_tensor *both = tn_mul_mat(w->a, weights[0], x), *k = tn_mul_mat(w->a, weights[1], x),
                  *v = tn_mul_mat(w->a, weights[2], x);
        w->in_order[w->n_in_order++] = both;
        w->in_order[w->n_in_order++] = k;
        w->in_order[w->n_in_order++] = v;
        const int64_t ne[] = {size, heads, tokens};
        const size_t nb[] = {4, (size_t)each * 4, (size_t)(each * heads) * 4};
        tn_tensor *q = tn_view(w->a, both, 3, ne, nb, 0), *gate = NULL;
        k = tn_reshape(w->a, k, size, kv, tokens);
        if (norms) {
            q = tn_rms_norm(w->a, q, device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, size, 1, 1), 1e-5f);
            if (!one_norm) k = tn_rms_norm(w->a, k, device_tensor(w, TN_F32, TN_USAGE_WEIGHTS, size, 1, 1), 1e-6f);
        }
        q = tn_rope(w->a, q, positions, NULL, &rope);
        k = tn_rope(w->a, k, positions, NULL, &rope);
        tn_tensor *with_k = tn_set_rows(w->a, cache[0], tn_reshape(w->a, k, row, tokens), rows),
                  *with_v = tn_set_rows(w->a, cache[1], v, rows);
        const tn_attention_sources s = {.q = q,
                                        .k = heads_of(w, with_k, size, kv, size),
                                        .v = heads_of(w, with_v, size, kv, size),
                                        .q_pos = q_pos,
                                        .pages = pages};
        tn_tensor *y = tn_attention(w->a, &s, &(tn_attention_params){.scale = 0.1f, .causal = true, .page = PAGE});
        if (gated) {
            gate = tn_view(w->a, both, 3, ne, nb, (size_t)size * 4);
            y = tn_mul(w->a, y, tn_sigmoid(w->a, conts ? tn_cont(w->a, gate) : gate));
        }
        x = wanted[layer] = tn_mul_mat(w->a, weights[3], tn_reshape(w->a, y, wide, tokens));
    }
    return LAYERS;
}
static void normed_and_gated_heads_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    const int rounds = gpu_rounds(12, 40, 400);
    for (int i = 0; i < rounds; i++) {
        char what[32];
        seed = (uint64_t)i * 1000 + 7;
        snprintf(what, sizeof what, "heads %d", i);
        check_on_both(build_heads, what);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_rows_are_stored_inside_and_outside_the_runs),
        cmocka_unit_test(layers_over_page_tables_agree_with_the_cpu),
        cmocka_unit_test(normed_and_gated_heads_agree_with_the_cpu),
    };
    /* The reference does not round to bf16, as AMX does. */
    const char *device = getenv("TENON_GPU");
    if (!device || strcmp(device, "cpu") != 0) setenv("TENON_CPU", "generic", 0);
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}
