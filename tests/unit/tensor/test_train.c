/* Training: optimizers against plain loops, and small models that learn the same on any number of threads and with
 * any accumulation of steps. */
#include "support.h"

#include "tenon/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Optimizers against plain loops ---- */

enum { N = 6, W = 2 * N, ROWS = 5 };
typedef struct problem {
    tn_arena *arena;
    tn_tensor *w, *bias, *x, *wanted, *loss;
    float x_data[ROWS * N], wanted_data[ROWS];
} problem;

/* Least squares: mean((Σ w·x + bias - wanted)²) with two rows of weights. */
static void make_problem(problem *p) {
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &p->arena));
    tn_arena *a = p->arena;
    p->w = tn_name(a, tn_param(a, TN_F32, N, 2), "w");
    p->bias = tn_name(a, tn_param(a, TN_F32, 1), "bias");
    p->x = tn_input(a, TN_F32, N, ROWS);
    p->wanted = tn_input(a, TN_F32, 1, ROWS);
    tn_tensor *off = tn_sub(a, tn_add(a, tn_sum_rows(a, tn_mul_mat(a, p->w, p->x)), p->bias), p->wanted);
    p->loss = tn_scale(a, tn_sum(a, tn_sqr(a, off)), 1.0f / ROWS, 0);
    rng r = {5};
    for (int i = 0; i < ROWS * N; i++) p->x_data[i] = rng_normal(&r);
    for (int i = 0; i < ROWS; i++) p->wanted_data[i] = rng_normal(&r);
}

/* The same in doubles: W weights, then the bias. */
static double plain_gradient(const problem *p, const double *w, double *g) {
    double loss = 0;
    memset(g, 0, (W + 1) * sizeof *g);
    for (int r = 0; r < ROWS; r++) {
        double off = w[W] - p->wanted_data[r];
        for (int i = 0; i < W; i++) off += w[i] * p->x_data[r * N + i % N];
        loss += off * off / ROWS;
        for (int i = 0; i < W; i++) g[i] += 2 * off * p->x_data[r * N + i % N] / ROWS;
        g[W] += 2 * off / ROWS;
    }
    return loss;
}
static double plain_step(const tn_trainer_params *o, const problem *p, int step, double *w, double *m, double *v) {
    double g[W + 1], norm = 0, loss = plain_gradient(p, w, g);
    for (int i = 0; i <= W; i++) norm += g[i] * g[i];
    norm = sqrt(norm);
    for (int i = 0; i <= W; i++) {
        if (o->clip > 0 && norm > o->clip) g[i] *= o->clip / norm;
        double direction = g[i];
        if (o->optimizer == TN_ADAMW) {
            m[i] = o->beta1 * m[i] + (1 - o->beta1) * g[i];
            v[i] = o->beta2 * v[i] + (1 - o->beta2) * g[i] * g[i];
            direction = m[i] / (1 - pow(o->beta1, step)) / (sqrt(v[i] / (1 - pow(o->beta2, step))) + o->eps);
        } else {
            direction = m[i] = o->momentum * m[i] + g[i];
        }
        w[i] = w[i] * (i < W ? 1 - o->rate * o->decay : 1) - o->rate * direction; /* the bias does not decay */
    }
    return loss;
}

static void optimizers_do_what_a_plain_loop_does(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        tn_trainer_params o = tn_trainer_params_default();
        o.n_threads = 2;
        o.rate = 0.05f;
        o.decay = kind % 2 ? 0.3f : 0;
        o.optimizer = kind < 2 ? TN_ADAMW : TN_SGD;
        o.clip = kind % 2 ? 0.5f : 0;
        o.momentum = kind == 3 ? 0.8f : 0;
        problem p;
        tn_trainer *t;
        make_problem(&p);
        assert_ok(tn_trainer_new(p.loss, &o, &t));
        double w[W + 1], m[W + 1] = {0}, v[W + 1] = {0};
        float start[W + 1], got[W + 1], loss;
        rng r = {3};
        for (int i = 0; i <= W; i++) w[i] = start[i] = 0.3f * rng_normal(&r);
        assert_ok(tn_tensor_set(p.w, start));
        assert_ok(tn_tensor_set(p.bias, start + W));
        uint64_t allocations = 0;
        for (int step = 1; step <= 40; step++) {
            assert_ok(tn_tensor_set(p.x, p.x_data));
            assert_ok(tn_tensor_set(p.wanted, p.wanted_data));
            assert_ok(tn_trainer_step(t, &loss));
            double expected = plain_step(&o, &p, step, w, m, v);
            assert_true(fabs(loss - expected) <= 1e-4 * (1 + expected));
            if (step == 2) allocations = tn_memory_get_stats().allocations;
        }
        assert_int_equal(tn_memory_get_stats().allocations, allocations);
        assert_ok(tn_tensor_get(p.w, got));
        assert_ok(tn_tensor_get(p.bias, got + W));
        for (int i = 0; i <= W; i++)
            if (fabs(got[i] - w[i]) > 2e-4)
                fail_msg("kind %d: weight %d is %g, not %g", kind, i, (double)got[i], w[i]);
        assert_int_equal(tn_trainer_updates(t), 40);
        tn_trainer_free(t);
        tn_arena_free(p.arena);
    }
}

/* ---- A small model ---- */

enum { VOCAB = 11, WIDTH = 16, HEADS = 4, KV = 2, HEAD = 4, FFN = 24, TOKENS = 12 };
typedef struct model {
    tn_arena *arena;
    tn_tensor *params[16];
    int n_params;
    tn_tensor *tokens, *positions, *labels, *loss;
} model;

static tn_tensor *weights(model *m, const char *name, int64_t in, int64_t out) {
    tn_tensor *t = out ? tn_param(m->arena, TN_F32, in, out) : tn_param(m->arena, TN_F32, in);
    return m->params[m->n_params++] = tn_name(m->arena, t, "%s", name);
}
/* A llama model of one layer, with every op of a language model that needs a gradient. */
static void make_model(model *m, int64_t tokens) {
    memset(m, 0, sizeof *m);
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 17, .no_alloc = true}, &m->arena));
    tn_arena *a = m->arena;
    m->tokens = tn_input(a, TN_I32, tokens);
    m->positions = tn_input(a, TN_I32, tokens);
    m->labels = tn_input(a, TN_F32, VOCAB, tokens);
    tn_tensor *x = tn_get_rows(a, weights(m, "embedding", WIDTH, VOCAB), m->tokens);
    tn_tensor *n = tn_rms_norm(a, x, weights(m, "attn_norm", WIDTH, 0), 1e-5f);
    tn_rope_params rope = tn_rope_params_default(HEAD, TN_ROPE_NORMAL);
    tn_tensor *q = tn_reshape(a, tn_mul_mat(a, weights(m, "q", WIDTH, HEADS * HEAD), n), HEAD, HEADS, tokens);
    tn_tensor *k = tn_reshape(a, tn_mul_mat(a, weights(m, "k", WIDTH, KV * HEAD), n), HEAD, KV, tokens);
    tn_tensor *v = tn_reshape(a, tn_mul_mat(a, weights(m, "v", WIDTH, KV * HEAD), n), HEAD, KV, tokens);
    q = tn_rope(a, q, m->positions, NULL, &rope);
    k = tn_rope(a, k, m->positions, NULL, &rope);
    tn_tensor *y = tn_attention(a, &(tn_attention_sources){.q = q, .k = k, .v = v},
                                &(tn_attention_params){.scale = 0.5f, .causal = 1});
    y = tn_mul_mat(a, weights(m, "o", HEADS * HEAD, WIDTH), tn_reshape(a, y, HEADS * HEAD, tokens));
    x = tn_add(a, x, y);
    n = tn_rms_norm(a, x, weights(m, "ffn_norm", WIDTH, 0), 1e-5f);
    y = tn_swiglu(a, tn_mul_mat(a, weights(m, "gate", WIDTH, FFN), n),
                  tn_mul_mat(a, weights(m, "up", WIDTH, FFN), n));
    x = tn_add(a, x, tn_mul_mat(a, weights(m, "down", FFN, WIDTH), y));
    x = tn_rms_norm(a, x, weights(m, "out_norm", WIDTH, 0), 1e-5f);
    m->loss = tn_cross_entropy_loss(a, tn_mul_mat(a, weights(m, "out", WIDTH, VOCAB), x), m->labels);
    assert_ok(tn_arena_status(a));
}
static void start_model(const model *m) {
    rng r = {23};
    for (int i = 0; i < m->n_params; i++) {
        float data[WIDTH * FFN];
        for (int64_t k = 0; k < tn_nelements(m->params[i]); k++)
            data[k] = m->params[i]->ne[1] == 1 ? 1 : 0.25f * rng_normal(&r);
        assert_ok(tn_tensor_set(m->params[i], data));
    }
}
/* Tokens of a cyclic text, starting with `first`; the last token alone does not determine the next. */
static const int32_t text[TOKENS + 1] = {1, 2, 3, 1, 4, 5, 1, 6, 7, 8, 1, 9, 10};
static void set_data(const model *m, int first, int64_t n) {
    int32_t tokens[TOKENS], positions[TOKENS];
    float labels[TOKENS * VOCAB] = {0};
    for (int i = 0; i < n; i++) {
        tokens[i] = text[first + i];
        positions[i] = i;
        labels[i * VOCAB + text[first + i + 1]] = 1;
    }
    assert_ok(tn_tensor_set(m->tokens, tokens));
    assert_ok(tn_tensor_set(m->positions, positions));
    assert_ok(tn_tensor_set(m->labels, labels));
}

static float train(int n_threads, const char *device, int steps, float *weights_after, size_t size) {
    model m;
    tn_trainer *t;
    float loss = 0, first = 0, again;
    tn_trainer_params o = tn_trainer_params_default();
    o.n_threads = n_threads;
    o.devices[0] = device;
    o.rate = 0.02f;
    make_model(&m, TOKENS);
    assert_ok(tn_trainer_new(m.loss, &o, &t));
    start_model(&m);
    for (int i = 0; i < steps; i++) {
        set_data(&m, 0, TOKENS);
        assert_ok(tn_trainer_step(t, &loss));
        if (i == 0) first = loss;
    }
    assert_true(fabsf(first - logf(VOCAB)) < 1.5f); /* an untrained model */
    assert_ok(tn_trainer_evaluate(t, &again));
    assert_true(again <= loss * 1.05f + 1e-3f);
    assert_int_equal(tn_nbytes(m.params[2]), size);
    assert_ok(tn_tensor_get(m.params[2], weights_after));
    tn_trainer_memory memory = tn_trainer_get_memory(t);
    assert_int_equal(memory.n_params, 2 * WIDTH * VOCAB + 3 * WIDTH + 2 * WIDTH * HEADS * HEAD +
                                          2 * WIDTH * KV * HEAD + 3 * WIDTH * FFN);
    assert_true(memory.state >= 4 * 4 * memory.n_params && memory.compute > 0);
    tn_trainer_free(t);
    tn_arena_free(m.arena);
    return again;
}

static void a_small_model_learns_by_heart(void **state) {
    (void)state;
    float one[WIDTH * HEADS * HEAD], three[WIDTH * HEADS * HEAD], sim[WIDTH * HEADS * HEAD];
    float loss = train(1, "cpu", 150, one, sizeof one);
    if (loss > 0.02f) fail_msg("it still has a loss of %g", (double)loss);
    /* The same bits on any number of threads, and with a simulated device. */
    train(3, "cpu", 150, three, sizeof three);
    assert_memory_equal(one, three, sizeof one);
    train(2, "sim:16M,name=trainer", 150, sim, sizeof sim);
    assert_memory_equal(one, sim, sizeof one);
}

/* Accumulating two halves of a batch equals one step with the batch. */
static void accumulated_steps_equal_one_of_all_data(void **state) {
    (void)state;
    float after[2][WIDTH * VOCAB];
    for (int halves = 0; halves < 2; halves++) {
        tn_arena *a;
        tn_trainer *t;
        enum { ALL = 8 };
        const int64_t rows = halves ? ALL / 2 : ALL;
        assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &a));
        tn_tensor *w = tn_param(a, TN_F32, WIDTH, VOCAB), *x = tn_input(a, TN_F32, WIDTH, rows),
                  *labels = tn_input(a, TN_F32, VOCAB, rows);
        tn_trainer_params o = tn_trainer_params_default();
        o.accumulate = halves ? 2 : 1;
        o.rate = 0.1f;
        o.decay = 0.5f;
        o.optimizer = TN_SGD;
        assert_ok(tn_trainer_new(tn_cross_entropy_loss(a, tn_mul_mat(a, w, x), labels), &o, &t));
        float start[WIDTH * VOCAB], x_data[WIDTH * ALL], labels_data[VOCAB * ALL] = {0};
        rng r = {9};
        for (int i = 0; i < WIDTH * VOCAB; i++) start[i] = rng_normal(&r);
        for (int i = 0; i < WIDTH * ALL; i++) x_data[i] = rng_normal(&r);
        for (int i = 0; i < ALL; i++) labels_data[i * VOCAB + i] = 1;
        assert_ok(tn_tensor_set(w, start));
        for (int step = 0; step < 10 * (halves + 1); step++) {
            const int64_t at = halves ? step % 2 * rows : 0;
            assert_ok(tn_tensor_set(x, x_data + at * WIDTH));
            assert_ok(tn_tensor_set(labels, labels_data + at * VOCAB));
            assert_ok(tn_trainer_step(t, NULL));
        }
        assert_int_equal(tn_trainer_updates(t), 10);
        assert_true(tn_trainer_gradient_norm(t) > 0);
        assert_ok(tn_tensor_get(w, after[halves]));
        tn_trainer_free(t);
        tn_arena_free(a);
    }
    for (int i = 0; i < WIDTH * VOCAB; i++) assert_true(fabsf(after[0][i] - after[1][i]) < 1e-4f);
}

/* ---- Errors ---- */

static void a_loss_that_is_not_finite_changes_nothing(void **state) {
    (void)state;
    problem p;
    tn_trainer *t;
    make_problem(&p);
    assert_ok(tn_trainer_new(p.loss, NULL, &t));
    float start[W + 1] = {1, 2, 3, 4, 5, 6, 7}, got[W], loss, broken[ROWS * N];
    assert_ok(tn_tensor_set(p.w, start));
    assert_ok(tn_tensor_set(p.bias, start + W));
    assert_ok(tn_tensor_set(p.wanted, p.wanted_data));
    memcpy(broken, p.x_data, sizeof broken);
    broken[3] = NAN;
    assert_ok(tn_tensor_set(p.x, broken));
    assert_fails(TN_E_NOT_FINITE, tn_trainer_step(t, &loss));
    assert_true(isnan(loss));
    assert_ok(tn_tensor_get(p.w, got));
    assert_memory_equal(got, start, sizeof got);
    assert_int_equal(tn_trainer_updates(t), 0);
    assert_ok(tn_tensor_set(p.x, p.x_data));
    tn_trainer_set_rate(t, 0); /* a rate of 0 does not change parameters either */
    assert_ok(tn_trainer_step(t, &loss));
    assert_ok(tn_tensor_get(p.w, got));
    assert_memory_equal(got, start, sizeof got);
    tn_trainer_set_rate(t, 0.1f);
    assert_ok(tn_trainer_step(t, &loss));
    assert_true(isfinite(loss));
    assert_ok(tn_tensor_get(p.w, got));
    assert_memory_not_equal(got, start, sizeof got);
    tn_trainer_free(t);
    /* The caller's tensors no longer point to freed memory. */
    assert_true(!p.w->data && !p.x->data && !p.loss->data && !p.loss->buffer);
    tn_arena_free(p.arena);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    problem p;
    tn_trainer *t;
    make_problem(&p);
    tn_trainer_params o = tn_trainer_params_default();
    float loss;
    assert_fails(TN_E_INVALID, tn_trainer_new(NULL, &o, &t));
    assert_fails(TN_E_INVALID, tn_trainer_step(NULL, &loss));
    assert_fails(TN_E_INVALID, tn_trainer_evaluate(NULL, &loss));
    o.beta1 = 1;
    assert_fails(TN_E_INVALID, tn_trainer_new(p.loss, &o, &t));
    o = tn_trainer_params_default();
    o.accumulate = 0;
    assert_fails(TN_E_INVALID, tn_trainer_new(p.loss, &o, &t));
    o = tn_trainer_params_default();
    o.optimizer = (tn_optimizer)7;
    assert_fails(TN_E_INVALID, tn_trainer_new(p.loss, &o, &t));
    o.optimizer = TN_SGD;
    o.momentum = 1;
    assert_fails(TN_E_INVALID, tn_trainer_new(p.loss, &o, &t));
    o = tn_trainer_params_default();
    tn_tensor *idle = tn_name(p.arena, tn_param(p.arena, TN_F32, 4), "idle");
    assert_fails(TN_E_INVALID,
                 tn_trainer_new(tn_add(p.arena, p.loss, tn_sum(p.arena, tn_step(p.arena, idle))), &o, &t));
    assert_non_null(strstr(tn_error(), "'idle'"));
    tn_tensor *half = tn_param(p.arena, TN_F16, 4);
    assert_fails(TN_E_TYPE, tn_trainer_new(tn_sum(p.arena, half), &o, &t));
    assert_non_null(strstr(tn_error(), "f16"));
    assert_fails(TN_E_INVALID, tn_trainer_new(tn_sum(p.arena, p.x), &o, &t));
    o.devices[0] = "sim:1K,name=tiny-trainer";
    assert_fails(TN_E_DEVICE_MEMORY, tn_trainer_new(p.loss, &o, &t));
    assert_null(t);
    tn_arena_free(p.arena);
}

/* An arena with memory: parameters, inputs and intermediate results stay in the caller's memory. */
static void parameters_may_lie_in_the_callers_memory(void **state) {
    (void)state;
    tn_arena *a;
    tn_trainer *t;
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 16}, &a));
    tn_tensor *w = tn_param(a, TN_F32, 4), *x = tn_input(a, TN_F32, 4);
    float *at = w->data, last = INFINITY, loss = 0;
    for (int i = 0; i < 4; i++) at[i] = ((float *)x->data)[i] = (float)i - 5;
    at[2] = 7;
    tn_trainer_params o = tn_trainer_params_default();
    o.rate = 0.1f;
    assert_ok(tn_trainer_new(tn_sum(a, tn_sqr(a, tn_sub(a, w, x))), &o, &t));
    assert_int_equal(tn_trainer_get_memory(t).n_params, 4);
    for (int step = 0; step < 20; step++, last = loss) {
        assert_ok(tn_trainer_step(t, &loss));
        assert_true(loss < last);
    }
    tn_trainer_free(t);
    assert_ptr_equal(w->data, at);
    assert_true(at[2] < 7 && at[0] == -5);
    tn_arena_free(a);
}

static tn_status train_once(void *user) {
    (void)user;
    problem p = {0};
    tn_trainer *t = NULL;
    float loss, start[N] = {0};
    tn_status status = tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &p.arena);
    if (status != TN_OK) return status;
    tn_tensor *w = tn_param(p.arena, TN_F32, N), *x = tn_input(p.arena, TN_F32, N);
    TN_TRY_GOTO(tn_trainer_new(tn_sum(p.arena, tn_sqr(p.arena, tn_sub(p.arena, w, x))), NULL, &t), status, out);
    TN_TRY_GOTO(tn_tensor_set(w, start), status, out);
    TN_TRY_GOTO(tn_tensor_set(x, start), status, out);
    TN_TRY_GOTO(tn_trainer_step(t, &loss), status, out);
out:
    tn_trainer_free(t);
    tn_arena_free(p.arena);
    return status;
}
static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    check_every_allocation_failure(train_once, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_do_what_a_plain_loop_does),
        cmocka_unit_test(a_small_model_learns_by_heart),
        cmocka_unit_test(accumulated_steps_equal_one_of_all_data),
        cmocka_unit_test(a_loss_that_is_not_finite_changes_nothing),
        cmocka_unit_test(parameters_may_lie_in_the_callers_memory),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
