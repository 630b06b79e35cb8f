/* Recurrent ops: what their constructors refuse; the same bits however a sequence is cut into batches; the scheduler
 * runs them where the state is and keeps the order of everything that touches it. */
#include "run_case.h"
#include "sched_case.h"

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/program.h"
#include "tenon/recurrent.h"
#include "tenon/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Constructors ---- */

static void sources_that_do_not_match_are_refused(void **state) {
    (void)state;
    enum { CASES = 12 };
    for (int i = 0; i <= CASES; i++) {
        tn_arena *a;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &a));
        tn_linear_attention_sources s = {.q = tn_input(a, TN_F32, 16, 2, 5),
                                         .k = tn_input(a, TN_F32, 16, 2, 5),
                                         .v = tn_input(a, TN_F32, 8, 4, 5),
                                         .g = tn_input(a, TN_F32, 1, 4, 5),
                                         .beta = tn_input(a, TN_F32, 1, 4, 5),
                                         .state = tn_input(a, TN_F32, 16 * 8 * 4, 3),
                                         .steps = tn_input(a, TN_I32, 4, 5)};
        tn_linear_attention_params p = {.scale = 1, .delta = 1};
        const char *word = NULL;
        switch (i) {
        case 1: s.steps = tn_input(a, TN_I32, 4, 4), word = "steps"; break;
        case 2: s.steps = tn_input(a, TN_I32, 3, 5), word = "steps"; break;
        case 3: s.steps = tn_input(a, TN_F32, 4, 5), word = "i32"; break;
        case 4: s.state = tn_input(a, TN_F32, 16 * 8 * 2, 3), word = "state"; break;
        case 5: s.state = tn_input(a, TN_F16, 16 * 8 * 4, 3), word = "f32"; break;
        case 6: s.v = tn_input(a, TN_F32, 8, 3, 5), word = "multiple"; break;
        case 7: s.k = tn_input(a, TN_F32, 15, 2, 5), word = "k must"; break;
        case 8: s.g = tn_input(a, TN_F32, 2, 4, 5), word = "g must"; break;
        case 9: s.beta = tn_input(a, TN_F32, 8, 4, 5), word = "beta"; break;
        case 10: s.u = tn_input(a, TN_F32, 16, 4), word = "exclude"; break;
        case 11: s.q = NULL, word = "NULL"; break;
        case 12: s.q = s.k = tn_input(a, TN_F32, 0, 2, 5), word = "empty"; break;
        default: break;
        }
        const tn_tensor *t = tn_linear_attention(a, &s, &p);
        assert_int_equal(t == NULL, i > 0);
        if (word && !strstr(tn_error(), word)) fail_msg("case %d: '%s' does not contain '%s'", i, tn_error(), word);
        tn_arena_free(a);
    }
    tn_arena *a;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &a));
    assert_null(tn_causal_conv(a, tn_input(a, TN_F32, 6, 3), tn_input(a, TN_F32, 9, 6), NULL,
                               tn_input(a, TN_F32, 48, 3), tn_input(a, TN_I32, 4, 3), false));
    assert_non_null(strstr(tn_error(), "between 2 and 8"));
    tn_arena_free(a);
}

static void there_are_no_gradients(void **state) {
    (void)state;
    tn_arena *a;
    tn_graph *g;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20, .no_alloc = true}, &a));
    tn_tensor *w = tn_mark(tn_tensor_nd(a, TN_F32, 4, 6), TN_FLAG_PARAM);
    tn_tensor *y = tn_causal_conv(a, tn_input(a, TN_F32, 6, 3), w, NULL, tn_input(a, TN_F32, 18, 3),
                                  tn_input(a, TN_I32, 4, 3), false);
    tn_tensor *loss = tn_sum(a, y);
    assert_ok(tn_graph_new(a, 256, &g));
    assert_ok(tn_graph_add(g, loss));
    assert_int_equal(tn_graph_backward(a, g, loss), TN_E_UNSUPPORTED);
    assert_non_null(strstr(tn_error(), "causal_conv"));
    tn_arena_free(a);
}

/* ---- Cuts ---- */

/* The tokens [from, to) of every source of a node whose only sequence is all its tokens, begun with row 0 of the
 * state, or `row` in later parts, and stored there. */
static tn_tensor *part_of_tokens(tn_arena *a, const tn_tensor *node, tn_tensor *state, int64_t from, int64_t to) {
    tn_tensor *part = tn_arena_alloc(a, sizeof *part), *steps = tn_tensor_nd(a, TN_I32, 4, to - from);
    *part = *node;
    const int64_t tokens = node->src[TN_RECURRENT_STEPS]->ne[1];
    int32_t(*step)[4] = steps->data;
    for (int64_t t = 0; t < to - from; t++) {
        step[t][TN_STEP_PREVIOUS] = (int32_t)t - 1;
        step[t][TN_STEP_NEXT] = t + 1 < to - from ? (int32_t)t + 1 : -1;
        step[t][TN_STEP_READ] = from ? 0 : -1;
        step[t][TN_STEP_WRITE] = t + 1 < to - from ? -1 : 0;
    }
    for (int i = TN_RECURRENT_STEPS + 1; i < TN_MAX_SRC; i++) {
        tn_tensor *x = part->src[i];
        const int dim = x && x->ne[2] == tokens ? 2 : 1;
        if (!x || x->ne[dim] != tokens) continue; /* weights */
        int64_t ne[4];
        memcpy(ne, x->ne, sizeof ne);
        ne[dim] = to - from;
        part->src[i] = tn_view(a, x, 4, ne, x->nb, (size_t)from * x->nb[dim]);
    }
    part->ne[node->ne[2] == tokens ? 2 : 1] = to - from;
    part->src[TN_RECURRENT_STATE] = state;
    part->src[TN_RECURRENT_STEPS] = steps;
    return part;
}

enum { CUT_TOKENS = 77 }; /* unlike every other dimension */
static tn_tensor *cut_case(tn_arena *a, tn_op op, uint64_t seed) {
    rng r = {seed * 977};
    tn_arena_reset(a);
    tn_tensor *node = recurrent_case_of(a, op, CUT_TOKENS, 1, &r);
    assert_ok(tn_arena_status(a));
    return node;
}

static void bits_do_not_depend_on_how_a_sequence_is_cut(void **test_state) {
    (void)test_state;
    tn_device *cpu;
    tn_stream *stream;
    tn_arena *a;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_stream_new(cpu, &(tn_stream_params){.n_threads = 2}, &stream));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &a));
    for (int level = 0; level < TN__CPU_LEVELS; level++) {
        const tn__cpu_kernels *kernels = tn__cpu_kernels_at((tn__cpu_level)level);
        if (!kernels) continue;
        ((tn__cpu_stream *)stream->impl)->kernels = kernels;
        for (tn_op op = 0; op < TN_OP_COUNT; op++) {
            if (tn_op_get_family(op) != TN_FAMILY_RECURRENT) continue;
            tn_tensor *node = cut_case(a, op, 1 + (uint64_t)level);
            const int64_t row = node->src[TN_RECURRENT_STATE]->ne[0];
            tn_tensor *memory = tn_tensor_nd(a, TN_F32, row, 1);
            tn_tensor *whole = part_of_tokens(a, node, memory, 0, CUT_TOKENS);
            const size_t token = tn_nbytes(whole) / CUT_TOKENS, last = tn_nbytes(whole);
            char *want = run_case(stream, whole, -1);
            for (int64_t cut = 1; cut < CUT_TOKENS; cut += cut < 4 ? 1 : 12) {
                tn_tensor *first = part_of_tokens(a, node, memory, 0, cut),
                          *second = part_of_tokens(a, node, memory, cut, CUT_TOKENS);
                char *got = run_case(stream, first, -1);
                assert_memory_equal(got, want, (size_t)cut * token);
                memcpy(memory->data, got + tn_nbytes(first), tn_nbytes(memory));
                free(got);
                got = run_case(stream, second, -1);
                assert_memory_equal(got, want + (size_t)cut * token, tn_nbytes(second));
                assert_memory_equal(got + tn_nbytes(second), want + last, tn_nbytes(memory));
                free(got);
            }
            free(want);
        }
    }
    tn_arena_free(a);
    tn_stream_free(stream);
}

/* ---- Scheduler ---- */

typedef struct state_graph {
    tn_arena *a;
    tn_sched *sched;
    tn_graph *graph;
    tn_buffer *buffer;
    tn_tensor *x, *steps, *w, *state, *out, *first;
} state_graph;

/* Two shifts of one sequence through the same state. The first has no edge to the second: its result is x of the
 * tokens before, and the second must find the state that the first has written. */
enum { STATE_ROWS = 64, TOKENS = 3 };
static void build_state_graph(state_graph *s, const char *device, const char *where) {
    *s = (state_graph){0};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &s->a));
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}}, &s->sched));
    tn_arena *a = s->a;
    s->x = tn_input(a, TN_F32, WIDTH, TOKENS);
    s->w = tn_input(a, TN_F32, 2, WIDTH);
    s->steps = tn_input(a, TN_I32, 4, TOKENS);
    s->state = tn_name(a, tn_tensor_nd(a, TN_F32, WIDTH, STATE_ROWS), "memory");
    tn_device *at;
    assert_ok(tn_device_find(where, &at));
    assert_ok(tn_buffer_new(tn_device_buffer_type(at), tn_nbytes(s->state), &s->buffer));
    assert_ok(tn_buffer_bind(s->buffer, s->state, 0));
    s->first = tn_output(tn_causal_conv(a, s->x, s->w, NULL, s->state, s->steps, false));
    tn_tensor *second = tn_causal_conv(a, tn_scale(a, s->x, 2, 0), s->w, NULL, s->state, s->steps, false);
    s->out = tn_output(tn_scale(a, second, 1, 0));
    assert_ok(tn_graph_new(a, 64, &s->graph));
    assert_ok(tn_graph_add(s->graph, s->first));
    assert_ok(tn_graph_add(s->graph, s->out));
}
static void free_state_graph(state_graph *s) {
    tn_sched_free(s->sched);
    tn_buffer_free(s->buffer);
    tn_arena_free(s->a);
}

static void check_state_graph(state_graph *s) {
    float x[TOKENS][WIDTH], w[WIDTH][2], first[TOKENS][WIDTH], out[TOKENS][WIDTH], rows[STATE_ROWS][WIDTH];
    const int32_t steps[TOKENS][4] = {{-1, 1, 5, -1}, {0, 2, 0, -1}, {1, -1, 0, 5}};
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < WIDTH; c++) x[t][c] = (float)(100 * t + c);
    for (int c = 0; c < WIDTH; c++) w[c][0] = 1, w[c][1] = 0;
    for (int r = 0; r < STATE_ROWS; r++)
        for (int c = 0; c < WIDTH; c++) rows[r][c] = (float)-r;
    assert_ok(tn_tensor_set(s->state, rows));
    assert_ok(tn_sched_reserve(s->sched, s->graph));
    assert_ok(tn_tensor_set(s->x, x));
    assert_ok(tn_tensor_set(s->w, w));
    assert_ok(tn_tensor_set(s->steps, steps));
    assert_ok(tn_sched_run(s->sched, s->graph));
    assert_ok(tn_tensor_get(s->first, first));
    assert_ok(tn_tensor_get(s->out, out));
    assert_ok(tn_tensor_get(s->state, rows));
    for (int c = 0; c < WIDTH; c++) {
        assert_true(first[0][c] == -5 && first[1][c] == x[0][c] && first[2][c] == x[1][c]);
        assert_true(out[0][c] == x[2][c] && out[1][c] == 2 * x[0][c] && out[2][c] == 2 * x[1][c]);
        assert_true(rows[5][c] == 2 * x[2][c] && rows[4][c] == -4);
    }
}

static void ops_run_where_the_state_is(void **test_state) {
    (void)test_state;
    static const char *const devices[] = {"cpu", "sim:16M,name=recurrent"};
    for (int where = 0; where < 2; where++) {
        state_graph s;
        build_state_graph(&s, devices[1], where ? "recurrent" : "cpu");
        check_state_graph(&s);
        const int stream = tn_sched_stream_of(s.sched, s.graph, s.first);
        assert_string_equal(tn_device_name(tn_stream_device(tn_sched_stream(s.sched, (size_t)stream))),
                            where ? "recurrent" : "cpu");
        /* The state has more bytes than everything else together. */
        tn_sched_info info;
        assert_ok(tn_sched_describe(s.sched, s.graph, &info));
        assert_true(info.copy_bytes < tn_nbytes(s.state));
        free_state_graph(&s);
    }
}

static void a_device_without_the_op_cannot_have_the_state(void **test_state) {
    (void)test_state;
    state_graph s;
    build_state_graph(&s, "sim:16M,ops=scale,name=norecurrent", "norecurrent");
    assert_int_equal(tn_sched_reserve(s.sched, s.graph), TN_E_UNSUPPORTED);
    if (!strstr(tn_error(), "causal_conv") || !strstr(tn_error(), "memory")) fail_msg("%s", tn_error());
    free_state_graph(&s);
}

/* Two ops without an edge between them run side by side, unless they update the same state. */
static void ops_on_the_same_state_take_turns(void **test_state) {
    (void)test_state;
    enum { CHANNELS = 1024 };
    tn_device *cpu;
    tn_stream *stream;
    assert_ok(tn_device_find("cpu", &cpu));
    assert_ok(tn_stream_new(cpu, &(tn_stream_params){.n_threads = 2}, &stream));
    ((tn__cpu_stream *)stream->impl)->tiny_ns = 0;
    for (int shared = 0; shared < 2; shared++) {
        tn_arena *a;
        tn_program *program;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 20}, &a));
        tn_tensor *memory = tn_tensor_nd(a, TN_F32, CHANNELS, 4), *steps = tn_tensor_nd(a, TN_I32, 4, 2);
        tn_tensor *states[2], *nodes[2];
        for (int i = 0; i < 2; i++) { /* two views of the same rows, or of others */
            states[i] = tn_view(a, memory, 2, (int64_t[]){CHANNELS, 2}, memory->nb,
                                shared ? 0 : 2 * (size_t)i * memory->nb[1]);
            nodes[i] = tn_causal_conv(a, tn_tensor_nd(a, TN_F32, CHANNELS, 2), tn_tensor_nd(a, TN_F32, 2, CHANNELS),
                                      NULL, states[i], steps, false);
        }
        assert_ok(tn_arena_status(a));
        memset(steps->data, 0xff, tn_nbytes(steps));
        assert_ok(tn_program_new(stream, nodes, 2, &program));
        assert_int_equal(tn_program_scratch(program), 0);
        assert_ok(tn_program_run(program, NULL));
        assert_int_equal(tn__cpu_program_steps(program), shared ? 2 : 1);
        tn_program_free(program);
        tn_arena_free(a);
    }
    tn_stream_free(stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_that_do_not_match_are_refused),
        cmocka_unit_test(there_are_no_gradients),
        cmocka_unit_test(bits_do_not_depend_on_how_a_sequence_is_cut),
        cmocka_unit_test(ops_run_where_the_state_is),
        cmocka_unit_test(ops_on_the_same_state_take_turns),
        cmocka_unit_test(a_device_without_the_op_cannot_have_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
