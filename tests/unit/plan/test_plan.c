/* Plans of graphs: the verifier accepts them, graphs give the same bits on planned memory and with separate memory
 * per tensor, and exports, saved files and reordered graphs agree with them. */
#include "models/reference_models.h"
#include "random_graph.h"

#include "base/checked.h"
#include "base/hash.h"
#include "plan/plan_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool long_run(void) { return getenv("TENON_LONG") != NULL; }

/* ---- Random graphs ---- */

/* Memories with random alignments and limits, and a random choice for every tensor. */
typedef struct setting {
    tn_plan_memory memories[3];
    uint16_t memory_of[8 * MOST];
    tn_plan_params params;
} setting;

static void make_setting(setting *s, rng *r, const tn_graph *g) {
    size_t largest = 1, n = 1 + rng_below(r, 3);
    for (size_t i = 0; i < count_of(g); i++) largest = TN__MAX(largest, tn_nbytes(tensor_of(g, i)));
    for (size_t m = 0; m < 3; m++) {
        size_t alignment = (size_t)16 << rng_below(r, 4);
        s->memories[m] = (tn_plan_memory){
            "memory", alignment, rng_below(r, 2) ? 0 : tn__align_up(largest + rng_below(r, 3 * largest), alignment)};
    }
    for (size_t i = 0; i < count_of(g); i++) s->memory_of[i] = (uint16_t)rng_below(r, n);
    s->params = (tn_plan_params){.memories = s->memories, .n_memories = n, .memory_of = s->memory_of};
    s->params.pack.effort = rng_below(r, 8) ? TN_PACK_FAST : TN_PACK_BALANCED;
    s->params.pack.max_steps = s->params.pack.effort == TN_PACK_FAST ? 0 : 100000;
}

/* ---- Running ---- */

/* Runs on planned memory; free bytes are overwritten. */
static uint64_t run_planned(const tn_graph *g, const tn_plan *plan, const tn_graph *numbering) {
    char *memory[3][300] = {{0}};
    const tn_plan_entry *entries = tn_plan_entries(plan);
    for (size_t m = 0; m < tn_plan_memory_count(plan); m++) {
        assert_true(tn_plan_chunk_count(plan, m) < 300);
        for (size_t c = 0; c < tn_plan_chunk_count(plan, m); c++) {
            size_t size = tn__align_up(tn_plan_chunk_size(plan, m, c) + 1, 256);
            memory[m][c] = aligned_alloc(256, size);
            memset(memory[m][c], 0xff, size);
        }
    }
    for (size_t i = 0; i < count_of(g); i++) {
        tn_tensor *t = tensor_of(g, i);
        if (t->view_src) continue;
        char *chunk = entries[i].size ? memory[entries[i].memory][entries[i].chunk] : (char *)memory;
        t->data = chunk + (entries[i].size ? entries[i].offset : 0);
    }
    bind_views(g);
    fill_leaves(g, 7);
    for (size_t i = 0; i < tn_graph_node_count(g); i++) {
        run_node(tn_graph_node(g, i));
        for (size_t k = 0; k < count_of(g); k++)
            if (tn__plan_owns(&entries[k]) && entries[k].size && plan->until[k] == i)
                memset(memory[entries[k].memory][entries[k].chunk] + entries[k].offset, 0xff, entries[k].size);
    }
    uint64_t h = hash_outputs(numbering);
    for (size_t m = 0; m < 3; m++)
        for (size_t c = 0; c < 300; c++) free(memory[m][c]);
    unbind(g);
    return h;
}

static uint64_t hash_tensors(const tn_graph *g) {
    uint64_t h = 0;
    for (size_t i = 0; i < count_of(g); i++) h = tn__hash_bytes(tensor_of(g, i), sizeof(tn_tensor), h);
    return h;
}

static void random_graphs_run_with_the_same_bits(void **state) {
    (void)state;
    int graphs = long_run() ? 100000 : 2000;
    size_t in_place = 0, several_chunks = 0, views = 0;
    setting *s = malloc(sizeof *s);
    for (int g = 0; g < graphs; g++) {
        rng r = {(uint64_t)g + 1};
        world w;
        make_world(&w, &r, 3 + (int)rng_below(&r, 30));
        uint64_t expected = run_privately(w.graph, w.graph);
        make_setting(s, &r, w.graph);
        tn_plan *plan;
        uint64_t before = hash_tensors(w.graph);
        assert_ok(tn_plan_make(w.graph, &s->params, &plan));
        assert_ok(tn_plan_verify(plan, w.graph, &s->params));
        assert_true(hash_tensors(w.graph) == before); /* planning changes nothing */
        for (size_t i = 0; i < count_of(w.graph); i++) {
            in_place += tn_plan_entries(plan)[i].inplace_of != TN_GRAPH_NONE;
            views += tensor_of(w.graph, i)->view_src != NULL;
        }
        several_chunks += tn_plan_chunk_count(plan, 0) > 1;
        if (run_planned(w.graph, plan, w.graph) != expected)
            fail_msg("graph %d gives other bits on planned memory", g);
        tn_plan_free(plan);

        /* The same with reordered nodes. */
        tn_graph *reordered;
        uint32_t order[4 * MOST];
        size_t saved;
        assert_ok(tn_plan_reorder(w.arena, w.graph, &s->params, &reordered, order, &saved));
        setting *again = malloc(sizeof *again);
        *again = *s;
        again->params.memories = again->memories;
        again->params.memory_of = again->memory_of;
        for (size_t i = 0; i < tn_graph_node_count(w.graph); i++) again->memory_of[i] = s->memory_of[order[i]];
        assert_ok(tn_plan_make(reordered, &again->params, &plan));
        assert_ok(tn_plan_verify(plan, reordered, &again->params));
        if (g % 4 == 0 && run_planned(reordered, plan, w.graph) != expected)
            fail_msg("graph %d gives other bits when reordered", g);
        tn_plan_free(plan);
        free(again);
        tn_arena_free(w.arena);
    }
    free(s);
    /* The test is meaningful only with enough in-place results. */
    assert_true(in_place > (size_t)graphs);
    assert_true(views > (size_t)graphs);
    assert_true(several_chunks > (size_t)graphs / 20);
}

static void plans_use_the_chunks_that_exist(void **state) {
    (void)state;
    char path[] = "/tmp/tenon-plan-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    setting *s = malloc(sizeof *s);
    for (int g = 0; g < 100; g++) {
        rng r = {(uint64_t)g + 1};
        world w;
        make_world(&w, &r, 3 + (int)rng_below(&r, 30));
        uint64_t expected = run_privately(w.graph, w.graph);
        make_setting(s, &r, w.graph);
        s->params.pack = (tn_pack_params){0};
        /* Bins as another plan left them, in another order; where a chunk may have any size also a useless one. */
        static size_t sizes[3][300];
        tn_plan_bins bins[3];
        tn_plan *plan, *again, *loaded;
        assert_ok(tn_plan_make(w.graph, &s->params, &plan));
        for (size_t m = 0; m < s->params.n_memories; m++) {
            size_t n = tn_plan_chunk_count(plan, m);
            for (size_t c = 0; c < n; c++) sizes[m][c] = tn_plan_chunk_size(plan, m, n - 1 - c);
            if (!s->memories[m].max_chunk) sizes[m][n++] = 16;
            bins[m] = (tn_plan_bins){sizes[m], n};
        }
        s->params.bins = bins;
        assert_ok(tn_plan_make(w.graph, &s->params, &again));
        assert_ok(tn_plan_verify(again, w.graph, &s->params));
        for (size_t m = 0; m < s->params.n_memories; m++) {
            assert_true(tn_plan_chunk_count(again, m) <= bins[m].count);
            for (size_t c = 0; c < tn_plan_chunk_count(again, m); c++)
                assert_true(tn_plan_chunk_size(again, m, c) <= bins[m].sizes[c]);
        }
        if (run_planned(w.graph, again, w.graph) != expected)
            fail_msg("graph %d gives other bits in chunks that exist", g);
        assert_ok(tn_plan_save(again, w.graph, path));
        assert_ok(tn_plan_load(path, w.graph, &s->params, &loaded));
        assert_true(tn_plan_equal(again, loaded));
        tn_plan_free(loaded);
        tn_plan_free(again);
        tn_plan_free(plan);
        tn_arena_free(w.arena);
    }
    unlink(path);
    free(s);
}

/* ---- Rules, one by one ---- */

typedef struct small {
    tn_arena *arena;
    tn_graph *graph;
    tn_plan *plan;
} small;
static const tn_plan_memory ram = {"ram", 64, 0};
static const tn_plan_params plain = {.memories = &ram, .n_memories = 1};

static tn_arena *new_arena(void) {
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(64, 128), .no_alloc = true}, &a));
    return a;
}
static small plan_of(tn_arena *a, tn_tensor *y) {
    small s = {.arena = a};
    assert_ok(tn_graph_of(a, y, &s.graph));
    assert_ok(tn_plan_make(s.graph, &plain, &s.plan));
    assert_ok(tn_plan_verify(s.plan, s.graph, &plain));
    return s;
}
static const tn_plan_entry *entry_of(const small *s, const tn_tensor *t) {
    return &tn_plan_entries(s->plan)[tn_graph_index(s->graph, t)];
}
static void done(small *s) {
    tn_plan_free(s->plan);
    tn_arena_free(s->arena);
}

static void a_chain_of_element_wise_ops_needs_one_place(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    tn_tensor *x = tn_input(a, TN_F32, 64, 4), *y = x;
    for (int i = 0; i < 5; i++) y = tn_silu(a, y);
    small s = plan_of(a, tn_output(y));
    assert_int_equal(tn_plan_total(s.plan), 64 * 4 * 4);
    assert_true(tn_plan_optimal(s.plan, 0));
    assert_int_equal(entry_of(&s, y)->last, 5); /* an output: past the last node */
    done(&s);
}

static void an_output_is_not_taken_over(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    tn_tensor *x = tn_input(a, TN_F32, 64, 4), *y = tn_output(tn_silu(a, x)), *z = tn_output(tn_silu(a, y));
    small s = plan_of(a, z);
    assert_int_equal(entry_of(&s, y)->inplace_of, tn_graph_index(s.graph, x));
    assert_int_equal(entry_of(&s, z)->inplace_of, TN_GRAPH_NONE);
    assert_int_equal(tn_plan_total(s.plan), 2 * 64 * 4 * 4);
    done(&s);
    a = new_arena();
    x = tn_input(a, TN_F32, 64, 4);
    y = tn_silu(a, x);
    tn_output(tn_reshape(a, y, 256)); /* an output through a view that is not in the graph */
    tn_tensor *view = tn_output(tn_reshape(a, y, 4, 64));
    z = tn_output(tn_add(a, tn_silu(a, tn_reshape(a, y, 64, 4)), tn_reshape(a, view, 64, 4)));
    s = plan_of(a, z); /* an output through a view that is in the graph */
    assert_int_equal(entry_of(&s, y)->last, tn_graph_node_count(s.graph));
    done(&s);
}

static void parameters_keep_their_place_to_the_end(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    tn_tensor *x = tn_mark(tn_input(a, TN_F32, 64, 4), TN_FLAG_PARAM), *y = tn_silu(a, x);
    small s = plan_of(a, y); /* the last node is the last use of x, but must not be computed in place of it */
    assert_int_equal(entry_of(&s, y)->inplace_of, TN_GRAPH_NONE);
    done(&s);
}

static void a_source_with_several_readers_is_taken_at_its_last(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    tn_tensor *x = tn_input(a, TN_F32, 64, 4), *b = tn_dup(a, x), *c = tn_mul_mat(a, b, b), *d = tn_silu(a, b);
    tn_tensor *y = tn_output(tn_add(a, tn_sum(a, d), tn_sum(a, c)));
    small s = plan_of(a, y);
    uint32_t ci = tn_graph_index(s.graph, c), di = tn_graph_index(s.graph, d);
    assert_int_equal(entry_of(&s, d)->inplace_of, di > ci ? tn_graph_index(s.graph, b) : TN_GRAPH_NONE);
    done(&s);
}

static void external_tensors_are_left_alone(void **state) {
    (void)state;
    static float data[256];
    tn_arena *a = new_arena();
    tn_tensor *x = tn_tensor_nd(a, TN_F32, 64, 4);
    x->data = data;
    tn_tensor *y = tn_output(tn_silu(a, x));
    small s = plan_of(a, y);
    assert_int_equal(entry_of(&s, x)->memory, -1);
    assert_int_equal(entry_of(&s, y)->inplace_of, TN_GRAPH_NONE);
    assert_int_equal(tn_plan_total(s.plan), 1024);
    done(&s);
}

static void rows_looked_up_elsewhere_forbid_taking_the_place(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    tn_tensor *ids = tn_input(a, TN_I32, 1, 4), *x = tn_dup(a, tn_input(a, TN_F32, 64, 1, 4));
    tn_tensor *y = tn_add_id(a, x, tn_reshape(a, x, 64, 4), ids); /* reads other rows of x than it writes */
    small s = plan_of(a, tn_output(y));
    assert_int_equal(entry_of(&s, y)->inplace_of, TN_GRAPH_NONE);
    done(&s);
}

static void a_tensor_over_the_largest_allocation_is_named(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    tn_tensor *y = tn_output(tn_name(a, tn_silu(a, tn_input(a, TN_F32, 64, 4)), "big one"));
    tn_graph *g;
    tn_plan *plan;
    assert_ok(tn_graph_of(a, y, &g));
    tn_plan_memory tiny = {"tiny", 64, 512};
    assert_fails(TN_E_TOO_BIG, tn_plan_make(g, &(tn_plan_params){.memories = &tiny, .n_memories = 1}, &plan));
    assert_non_null(strstr(tn_error(), "tiny"));
    uint16_t nowhere[] = {5, 5};
    assert_fails(TN_E_INVALID,
                 tn_plan_make(g, &(tn_plan_params){.memories = &ram, .n_memories = 1, .memory_of = nowhere}, &plan));
    assert_fails(TN_E_INVALID, tn_plan_make(g, &(tn_plan_params){0}, &plan));
    assert_fails(TN_E_INVALID, tn_plan_make(NULL, &plain, &plan));
    tn_arena_free(a);
}

static void reordering_lowers_what_is_live(void **state) {
    (void)state;
    tn_arena *a = new_arena();
    /* Eight wide branches, each reduced to few bytes: one after the other needs one wide tensor, all at once eight.
     */
    tn_tensor *x = tn_input(a, TN_F32, 64), *wide[8], *sum = NULL;
    tn_graph *g, *better;
    assert_ok(tn_graph_new(a, 64, &g));
    for (int i = 0; i < 8; i++) {
        wide[i] = tn_repeat(a, tn_scale(a, x, (float)i, 0), (int64_t[]){64, 100, 1, 1});
        assert_ok(tn_graph_add(g, wide[i]));
    }
    for (int i = 0; i < 8; i++) sum = sum ? tn_add(a, sum, tn_sum(a, wide[i])) : tn_sum(a, wide[i]);
    assert_ok(tn_graph_add(g, tn_output(sum)));
    size_t saved;
    assert_ok(tn_plan_reorder(a, g, &plain, &better, NULL, &saved));
    assert_true(saved >= 6 * 64 * 100 * 4);
    tn_plan *before, *after;
    assert_ok(tn_plan_make(g, &plain, &before));
    assert_ok(tn_plan_make(better, &plain, &after));
    assert_ok(tn_plan_verify(after, better, &plain));
    assert_int_equal(tn_plan_lower_bound(before, 0) - tn_plan_lower_bound(after, 0), saved);
    assert_ptr_equal(tn_graph_node(better, tn_graph_node_count(better) - 1), sum);
    tn_plan_free(before);
    tn_plan_free(after);
    tn_arena_free(a);
}

/* ---- Verifier, documents, files ---- */

static void the_verifier_finds_damage(void **state) {
    (void)state;
    int caught = 0, tried = 0;
    for (int g = 0; g < 200; g++) {
        rng r = {(uint64_t)g + 5};
        world w;
        setting s;
        tn_plan *plan;
        make_world(&w, &r, 20);
        make_setting(&s, &r, w.graph);
        assert_ok(tn_plan_make(w.graph, &s.params, &plan));
        /* Move one live tensor onto another. */
        for (int k = 0; k < 50; k++) {
            size_t a = rng_below(&r, count_of(w.graph)), b = rng_below(&r, count_of(w.graph));
            tn_plan_entry *x = &plan->entries[a], *y = &plan->entries[b], saved = *x;
            bool together = a != b && tn__plan_owns(x) && tn__plan_owns(y) && x->memory == y->memory && x->size &&
                            y->size && x->first < plan->until[b] && y->first < plan->until[a] &&
                            plan->until[a] == x->last && plan->until[b] == y->last;
            if (!together) continue;
            x->offset = y->offset;
            x->chunk = y->chunk;
            tried++;
            caught += tn_plan_verify(plan, w.graph, &s.params) == TN_E_INTERNAL;
            *x = saved;
        }
        tn_plan_free(plan);
        tn_arena_free(w.arena);
    }
    assert_true(tried > 100);
    assert_int_equal(caught, tried);
}

static void documents_are_complete(void **state) {
    (void)state;
    rng r = {77};
    world w;
    setting s;
    tn_plan *plan;
    make_world(&w, &r, 25);
    tn_name(w.arena, tn_graph_leaf(w.graph, 0), "a \"quoted\" <name>, & more");
    make_setting(&s, &r, w.graph);
    assert_ok(tn_plan_make(w.graph, &s.params, &plan));
    char *text;
    assert_ok(tn_plan_export(plan, TN_PLAN_TEXT, TN_PLAN_ALL_MEMORIES, &text));
    assert_non_null(strstr(text, "in place of"));
    tn_free(text);
    assert_ok(tn_plan_export(plan, TN_PLAN_JSON, TN_PLAN_ALL_MEMORIES, &text));
    assert_non_null(strstr(text, "a \\\"quoted\\\" <name>, & more"));
    tn_free(text);
    for (size_t m = 0; m < tn_plan_memory_count(plan); m++) {
        /* The table of a memory is a packing problem whose bound is the plan's. */
        tn_pack_table table;
        tn_pack_result result;
        assert_ok(tn_plan_export(plan, TN_PLAN_CSV, m, &text));
        assert_ok(tn_pack_table_parse(text, strlen(text), &table));
        assert_ok(tn_pack(table.items, table.count, NULL, &result));
        assert_int_equal(result.live_peak, tn_plan_lower_bound(plan, m));
        tn_pack_result_free(&result);
        tn_pack_table_free(&table);
        tn_free(text);
        assert_ok(tn_plan_export(plan, TN_PLAN_SVG, m, &text));
        assert_non_null(strstr(text, "</svg>"));
        tn_free(text);
    }
    assert_fails(TN_E_INVALID, tn_plan_export(plan, TN_PLAN_SVG, 9, &text));
    assert_fails(TN_E_INVALID, tn_plan_export(plan, (tn_plan_format)9, 0, &text));
    tn_plan *other;
    s.params.pack.effort = TN_PACK_EXACT;
    assert_ok(tn_plan_make(w.graph, &s.params, &other));
    assert_true(tn_plan_equal(plan, plan));
    assert_ok(tn_plan_compare(plan, plan, &text));
    assert_non_null(strstr(text, "same offsets"));
    tn_free(text);
    plan->entries[0].offset += 64;
    assert_false(tn_plan_equal(plan, other));
    assert_ok(tn_plan_compare(plan, other, &text));
    assert_null(strstr(text, "same offsets"));
    tn_free(text);
    tn_plan_free(plan);
    tn_plan_free(other);
    tn_arena_free(w.arena);
}

static void a_saved_plan_loads_and_damage_is_noticed(void **state) {
    (void)state;
    char path[] = "/tmp/tenon-plan-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    rng r = {99};
    world w, stranger;
    setting s;
    tn_plan *plan, *loaded;
    make_world(&w, &r, 25);
    make_world(&stranger, &r, 25);
    make_setting(&s, &r, w.graph);
    assert_ok(tn_plan_make(w.graph, &s.params, &plan));
    assert_ok(tn_plan_save(plan, w.graph, path));
    assert_ok(tn_plan_load(path, w.graph, &s.params, &loaded));
    assert_true(tn_plan_equal(plan, loaded));
    char *a, *b;
    assert_ok(tn_plan_export(plan, TN_PLAN_JSON, TN_PLAN_ALL_MEMORIES, &a));
    assert_ok(tn_plan_export(loaded, TN_PLAN_JSON, TN_PLAN_ALL_MEMORIES, &b));
    assert_string_equal(a, b);
    tn_free(a);
    tn_free(b);
    tn_plan_free(loaded);
    setting other = s;
    other.params.memories = other.memories;
    other.params.memory_of = other.memory_of;
    assert_fails(TN_E_STATE, tn_plan_load(path, stranger.graph, &other.params, &loaded));

    size_t length;
    char *bytes = read_file(path, &length);
    for (int round = 0; round < 300; round++) {
        char *damaged = malloc(length);
        memcpy(damaged, bytes, length);
        size_t size = round % 3 ? length : rng_below(&r, length);
        size_t at = round % 3 ? rng_below(&r, length) : 0;
        if (round % 3) damaged[at] ^= (char)(1 + rng_below(&r, 255));
        FILE *file = fopen(path, "wb");
        fwrite(damaged, 1, size, file);
        fclose(file);
        tn_status status = tn_plan_load(path, w.graph, &s.params, &loaded);
        assert_true(status == TN_E_FORMAT || status == TN_E_VERSION || status == TN_E_CHECKSUM);
        assert_null(loaded);
        free(damaged);
    }
    /* Damage with a correct checksum must be detected by the reader's checks and the verifier. */
    for (int round = 0; round < 2000; round++) {
        char *damaged = malloc(length);
        memcpy(damaged, bytes, length);
        size_t at = 32 + rng_below(&r, length - 8 - 32);
        damaged[at] ^= (char)(1 + rng_below(&r, 255));
        uint64_t sum = tn__hash_bytes(damaged, length - 8, 1);
        memcpy(damaged + length - 8, &sum, 8);
        FILE *file = fopen(path, "wb");
        fwrite(damaged, 1, length, file);
        fclose(file);
        tn_status status = tn_plan_load(path, w.graph, &s.params, &loaded);
        assert_true(status == TN_OK || status == TN_E_FORMAT || status == TN_E_INTERNAL);
        if (status == TN_OK) {
            assert_ok(tn_plan_export(loaded, TN_PLAN_TEXT, TN_PLAN_ALL_MEMORIES, &a));
            tn_free(a);
        }
        tn_plan_free(loaded);
        free(damaged);
    }
    free(bytes);
    assert_fails(TN_E_IO, tn_plan_load("/no/such/plan", w.graph, &s.params, &loaded));
    assert_fails(TN_E_IO, tn_plan_save(plan, w.graph, "/no/such/dir/plan"));
    unlink(path);
    tn_plan_free(plan);
    tn_arena_free(w.arena);
    tn_arena_free(stranger.arena);
}

/* The graphs of sessions: 512 tokens and one. */
static void check_bound(const char *name, const char *path) {
    tn_model *model;
    assert_ok(tn_model_open(path, NULL, &model));
    for (int32_t tokens = 1; tokens <= 512; tokens += 511) {
        tn_session_params params = tn_session_params_default();
        params.n_ctx = 1024;
        params.n_ubatch = tokens;
        params.n_threads = 1;
        tn_fit fit;
        assert_ok(plan_fit(model, &params, &fit));
        for (size_t d = 0; d < fit.n_devices; d++) {
            assert_true(fit.devices[d].lower_bound > 0);
            if ((double)fit.devices[d].compute > 1.01 * (double)fit.devices[d].lower_bound)
                fail_msg("%s, %d tokens: %zu bytes planned, %zu is the bound", name, (int)tokens,
                         fit.devices[d].compute, fit.devices[d].lower_bound);
        }
        tn_fit_free(&fit);
    }
    tn_model_close(model);
}

static void graphs_of_models_are_within_a_hundredth_of_the_bound(void **state) {
    (void)state;
    for (const char *const *name = reference_names(); *name; name++) check_bound(*name, reference_path(*name));
    for (size_t i = 0; golden_archs[i]; i++) {
        char relative[128];
        snprintf(relative, sizeof relative, "archs/%s.gguf", golden_archs[i]);
        const char *path = golden_path(relative);
        if (path) check_bound(golden_archs[i], path);
    }
}

typedef struct scenario {
    world world;
    setting setting;
    char path[64];
} scenario;

static tn_status everything(void *user) {
    scenario *s = user;
    tn_plan *plan = NULL, *loaded = NULL;
    tn_graph *reordered;
    tn_arena *arena = NULL;
    char *text = NULL;
    tn_status status;
    TN_TRY_GOTO(tn_plan_make(s->world.graph, &s->setting.params, &plan), status, out);
    for (int f = TN_PLAN_TEXT; f <= TN_PLAN_SVG; f++) {
        TN_TRY_GOTO(tn_plan_export(plan, (tn_plan_format)f, 0, &text), status, out);
        tn_free(text);
        text = NULL;
    }
    TN_TRY_GOTO(tn_plan_save(plan, s->world.graph, s->path), status, out);
    TN_TRY_GOTO(tn_plan_load(s->path, s->world.graph, &s->setting.params, &loaded), status, out);
    TN_TRY_GOTO(tn_plan_compare(plan, loaded, &text), status, out);
    TN_TRY_GOTO(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(0, 4 * MOST)}, &arena), status, out);
    TN_TRY_GOTO(tn_plan_reorder(arena, s->world.graph, &s->setting.params, &reordered, NULL, NULL), status, out);
out:
    tn_free(text);
    tn_plan_free(plan);
    tn_plan_free(loaded);
    tn_arena_free(arena);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    scenario *s = calloc(1, sizeof *s);
    rng r = {3};
    make_world(&s->world, &r, 12);
    make_setting(&s->setting, &r, s->world.graph);
    snprintf(s->path, sizeof s->path, "/tmp/tenon-plan-%d", (int)getpid());
    check_no_leak(everything, s);
    check_every_allocation_failure(everything, s);
    unlink(s->path);
    tn_arena_free(s->world.arena);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_of_element_wise_ops_needs_one_place),
        cmocka_unit_test(an_output_is_not_taken_over),
        cmocka_unit_test(parameters_keep_their_place_to_the_end),
        cmocka_unit_test(a_source_with_several_readers_is_taken_at_its_last),
        cmocka_unit_test(external_tensors_are_left_alone),
        cmocka_unit_test(rows_looked_up_elsewhere_forbid_taking_the_place),
        cmocka_unit_test(a_tensor_over_the_largest_allocation_is_named),
        cmocka_unit_test(reordering_lowers_what_is_live),
        cmocka_unit_test(random_graphs_run_with_the_same_bits),
        cmocka_unit_test(plans_use_the_chunks_that_exist),
        cmocka_unit_test(the_verifier_finds_damage),
        cmocka_unit_test(documents_are_complete),
        cmocka_unit_test(a_saved_plan_loads_and_damage_is_noticed),
        cmocka_unit_test(graphs_of_models_are_within_a_hundredth_of_the_bound),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
