/* Classes of graphs: graphs of one structure share one plan, made for the largest sizes of all of them. */
#include "random_graph.h"

#include "base/checked.h"
#include "plan/plan_internal.h"
#include "runtime/alloc.h"
#include "tenon/backend_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 64 };
static bool long_run(void) { return getenv("TENON_LONG") != NULL; }

/* ---- Graphs of one structure for every n ---- */

/* Weights have memory of their own. */
static tn_tensor *weights(tn_arena *a, int64_t in, int64_t out) {
    static float data[1024 * 1024];
    tn_tensor *t = tn_tensor_nd(a, TN_F32, in, out);
    t->data = data;
    return t;
}

/* Tensors have `n` rows of different widths. The structure depends on the seed alone. */
static tn_tensor *random_op(tn_arena *a, rng *r, tn_tensor *const *pool, int count) {
    tn_tensor *x = pool[rng_below(r, (uint64_t)count)], *y = NULL;
    for (int k = 0; k < count && !y; k++) {
        tn_tensor *other = pool[((uint64_t)k * 7 + rng_below(r, 64)) % (uint64_t)count];
        if (tn_same_shape(other, x)) y = other;
    }
    int64_t widths[] = {16, 48, 64, 160, 256, 512, 1000}, width = widths[rng_below(r, TN__COUNT(widths))];
    switch (rng_below(r, 9)) {
    case 0: return tn_mul_mat(a, weights(a, x->ne[0], width), x);
    case 1: return y ? tn_add(a, x, y) : tn_neg(a, x);
    case 2: return tn_silu(a, x);
    case 3: return y ? tn_mul(a, x, y) : tn_scale(a, x, 0.5f, 1);
    case 4: return tn_silu(a, tn_reshape(a, x, x->ne[0] * x->ne[1]));
    case 5: return tn_add(a, x, tn_sum_rows(a, x));
    case 6: return tn_mul_mat(a, weights(a, x->ne[0], width), tn_cont(a, x));
    case 7: return tn_cpy(a, x, tn_dup(a, x));
    default: return tn_soft_max(a, x, NULL, NULL, 1, 0);
    }
}

static void make_sized(world *w, uint64_t seed, int64_t n, int ops) {
    rng r = {seed};
    memset(w, 0, sizeof *w);
    assert_ok(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(8 * MOST, 8 * MOST), .no_alloc = true}, &w->arena));
    w->pool[w->n++] = tn_input(w->arena, TN_F32, 256, n);
    w->pool[w->n++] = tn_input(w->arena, TN_F32, 64, n);
    for (int i = 0; i < ops; i++) {
        tn_tensor *z = random_op(w->arena, &r, w->pool, w->n);
        if (z->ne[1] == 1 && n != 1) z = tn_reshape(w->arena, z, z->ne[0] / n, n);
        if (z->ne[1] != n || z->ne[0] % 16) z = tn_reshape(w->arena, z, tn_nelements(z) / n, n);
        w->pool[w->n++] = z;
    }
    assert_ok(tn_graph_new(w->arena, 4 * MOST, &w->graph));
    for (int i = 0; i < 3; i++)
        assert_ok(tn_graph_add(w->graph, tn_output(w->pool[w->n - 1 - 5 * i > 2 ? w->n - 1 - 5 * i : 2])));
    assert_ok(tn_arena_status(w->arena));
}

/* ---- No growth ---- */

static size_t count_refusals(const char *device_name, uint64_t seeds) {
    tn_device *device;
    size_t refused = 0, tried = 0;
    assert_ok(tn_device_find(device_name, &device));
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        world large;
        tn__alloc *a;
        make_sized(&large, seed, LARGEST, 8 + (int)(seed % 30));
        assert_ok(tn__alloc_new((tn_buffer_type *[]){tn_device_buffer_type(device)}, 1, &a));
        assert_ok(tn__alloc_reserve(a, &large.graph, NULL, 1));
        for (int64_t n = 1; n < LARGEST; n++, tried++) {
            world w;
            make_sized(&w, seed, n, 8 + (int)(seed % 30));
            tn_status status = tn__alloc_bind(a, w.graph, NULL, false);
            refused += status == TN_E_NEED_RESERVE;
            assert_true(status == TN_OK || status == TN_E_NEED_RESERVE);
            tn_arena_free(w.arena);
        }
        tn__alloc_free(a);
        tn_arena_free(large.arena);
    }
    if (getenv("TENON_VERBOSE")) print_message("%s: %zu of %zu refused\n", device_name, refused, tried);
    return refused;
}

static void a_smaller_graph_never_needs_more_than_the_reserved_one(void **state) {
    (void)state;
    const char *devices[] = {"sim:1G,max-alloc=300K,memory-only=1,name=c300", "sim:1G,max-alloc=500K,memory-only=1,name=c500",
                             "sim:1G,memory-only=1,name=c0"};
    for (size_t d = 0; d < TN__COUNT(devices); d++)
        assert_int_equal(count_refusals(devices[d], long_run() ? 2000 : 200), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_smaller_graph_never_needs_more_than_the_reserved_one),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
