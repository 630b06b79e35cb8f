/* Random graphs, and their execution node by node. */
#include "random_graph.h"

#include "tenon/recurrent.h"

#include "base/checked.h"
#include "base/hash.h"
#include "plan/plan_internal.h"

#include <stdlib.h>
#include <string.h>

static tn_tensor *pick(world *w, rng *r) {
    int recent = w->n > 5 && rng_below(r, 3) ? w->n - 5 : 0; /* short and long lifetimes */
    return w->pool[recent + (int)rng_below(r, (uint64_t)(w->n - recent))];
}

/* All tensors have WIDTH columns, or are empty, so that any op accepts any tensors with the same number of rows. */
void make_world(world *w, rng *r, int ops) {
    memset(w, 0, sizeof *w);
    assert_ok(
        tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(4 * MOST, 4 * MOST), .no_alloc = true}, &w->arena));
    tn_arena *a = w->arena;
    int64_t rows = rng_below(r, 10) ? 1 + (int64_t)rng_below(r, 6) : 0;
    tn_tensor *weight = tn_input(a, TN_F32, WIDTH, WIDTH), *gain = tn_input(a, TN_F32, WIDTH),
              *state = tn_input(a, TN_F32, WIDTH, 2 * rows), *index = tn_input(a, TN_I32, rows),
              *taps = tn_input(a, TN_F32, 2, WIDTH), *steps = tn_input(a, TN_I32, 4, rows);
    for (int i = 0; i < 3; i++) w->pool[w->n++] = tn_input(a, TN_F32, WIDTH, rows);
    for (int i = 0; i < ops; i++) {
        tn_tensor *x = pick(w, r), *y = pick(w, r), *z;
        switch (rng_below(r, 19)) {
        case 0: z = tn_mul_mat(a, weight, x); break;
        case 1: z = tn_add(a, x, y); break;
        case 2: z = tn_add(a, x, x); break;
        case 3: z = tn_mul(a, x, gain); break;
        case 4: z = tn_rms_norm(a, x, gain, 1e-5f); break;
        case 5: z = tn_swiglu(a, x, y); break;
        case 6: z = tn_scale(a, x, 0.5f, 0.1f); break;
        case 7: z = tn_soft_max(a, x, NULL, NULL, 1, 0); break;
        case 8: z = tn_get_rows(a, tn_set_rows(a, state, x, index), index); break; /* through memory of an input */
        case 9: z = tn_reshape(a, tn_reshape(a, x, WIDTH * rows), WIDTH, rows); break; /* a view of a view */
        case 10: z = tn_cont(a, tn_view(a, x, 2, (int64_t[]){WIDTH, rows}, x->nb, 0)); break;
        case 11: z = tn_silu(a, tn_reshape(a, x, WIDTH, rows)); break; /* in place through a view */
        case 12: z = tn_mul_mat(a, tn_cont(a, weight), x); break;
        case 13: z = tn_set(a, x, y, x->nb[1], x->nb[2], x->nb[3], 0); break;
        case 14: z = tn_add(a, x, tn_sum_rows(a, y)); break;
        case 15: z = tn_cpy(a, x, tn_dup(a, y)); break; /* into a node's memory */
        case 16:
            z = rows ? tn_add(a, x, tn_view(a, y, 1, (int64_t[]){WIDTH}, NULL, (size_t)(rows - 1) * WIDTH * 4))
                     : tn_neg(a, x);
            break;
        case 17: z = tn_causal_conv(a, x, taps, NULL, state, steps, false); break; /* updates an input */
        default: z = tn_neg(a, x); break;
        }
        w->pool[w->n++] = z;
    }
    assert_ok(tn_graph_new(a, 4 * MOST, &w->graph));
    for (int i = 0; i < 4; i++)
        assert_ok(tn_graph_add(w->graph, tn_output(w->pool[i ? (int)rng_below(r, (uint64_t)w->n) : w->n - 1])));
    assert_ok(tn_arena_status(a));
}

size_t count_of(const tn_graph *g) { return tn_graph_node_count(g) + tn_graph_leaf_count(g); }
tn_tensor *tensor_of(const tn_graph *g, size_t i) { return (tn_tensor *)(uintptr_t)tn__plan_tensor(g, i); }

void unbind(const tn_graph *g) {
    for (size_t i = 0; i < count_of(g); i++) tensor_of(g, i)->data = NULL;
}

static tn_stream *stream;

int open_backend(void **state) {
    (void)state;
    tn_device *cpu;
    return tn_device_find("cpu", &cpu) != TN_OK ||
           tn_stream_new(cpu, &(tn_stream_params){.n_threads = 1}, &stream) != TN_OK;
}
int close_backend(void **state) {
    (void)state;
    tn_stream_free(stream);
    return 0;
}

void bind_views(const tn_graph *g) {
    for (size_t i = 0; i < count_of(g); i++) {
        tn_tensor *t = tensor_of(g, i);
        if (t->view_src) t->data = (char *)t->view_src->data + t->view_offset;
    }
}

void fill_leaves(const tn_graph *g, uint64_t seed) {
    rng r = {seed};
    for (size_t i = 0; i < tn_graph_leaf_count(g); i++) {
        tn_tensor *t = tn_graph_leaf(g, i);
        for (int64_t k = 0; k < tn_nelements(t); k++) {
            if (t->type == TN_I32 && t->ne[0] == 4) /* the steps of sequences of one token, each with its row */
                ((int32_t *)t->data)[k] = k % 4 < 2 ? -1 : (int32_t)(k / 4);
            else if (t->type == TN_I32)
                ((int32_t *)t->data)[k] = (int32_t)k;
            else
                ((float *)t->data)[k] = rng_normal(&r);
        }
    }
}

void run_node(tn_tensor *node) {
    tn_program *program;
    tn_buffer *scratch = NULL;
    assert_ok(tn_program_new(stream, &node, 1, &program));
    if (tn_program_scratch(program))
        assert_ok(
            tn_buffer_new(tn_device_buffer_type(tn_stream_device(stream)), tn_program_scratch(program), &scratch));
    assert_ok(tn_program_run(program, scratch));
    tn_program_free(program);
    tn_buffer_free(scratch);
}

uint64_t hash_outputs(const tn_graph *numbering) {
    uint64_t h = 0;
    for (size_t i = 0; i < count_of(numbering); i++) {
        const tn_tensor *t = tensor_of(numbering, i);
        /* The sum of hashes does not depend on the order of nodes. */
        if (t->flags & TN_FLAG_OUTPUT)
            h += tn__hash_bytes(t->data ? t->data : "", tn_nbytes(t), tn_is_contiguous(t)) * (2 * i + 1);
    }
    return h;
}

/* Every tensor has its own memory. */
uint64_t run_privately(const tn_graph *g, const tn_graph *numbering) {
    unbind(g);
    void **memory = calloc(count_of(g), sizeof *memory);
    for (size_t i = 0; i < count_of(g); i++) {
        tn_tensor *t = tensor_of(g, i);
        if (!t->view_src) t->data = memory[i] = aligned_alloc(64, tn__align_up(tn_nbytes(t) + 1, 64));
    }
    bind_views(g);
    fill_leaves(g, 7);
    for (size_t i = 0; i < tn_graph_node_count(g); i++) run_node(tn_graph_node(g, i));
    uint64_t h = hash_outputs(numbering);
    for (size_t i = 0; i < count_of(g); i++) free(memory[i]);
    free(memory);
    unbind(g);
    return h;
}
