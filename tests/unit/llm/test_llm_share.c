/* Sessions that share a scheduler: each computes what it computes alone, in the memory of the largest, which is
 * reported to the byte. */
#include "models/reference_models.h"
#include "sched_case.h"

#include <stdlib.h>
#include <string.h>

enum { USERS = 4, STEPS = 16, PROMPT = 20, WIDEST = 1024 };
enum { TEXT = 1, TWIN = 3, VECTORS = 2 }; /* users of the same model; user 0 has another model */

typedef struct user {
    tn_model *model;
    tn_session *session;
    tn_fit fit;     /* as planned */
    tn_token next;  /* of a greedy loop */
    float *results; /* by step, what it has alone */
} user;

/* All weights are on the device, whichever session loads them. */
static tn_session_params params_of(int u, const char *device, const tn_sched *sched, tn_placement_override *all) {
    tn_session_params p = tn_session_params_default();
    p.n_gpu_layers = 1000;
    p.overrides = all;
    p.n_overrides = 1;
    p.n_ctx = 128;
    p.n_ubatch = u == 0 ? 64 : 16;
    p.embeddings = u == VECTORS;
    p.pooling = u == VECTORS ? TN_POOLING_MEAN : TN_POOLING_MODEL;
    p.sched = sched;
    if (sched) return p;
    p.n_threads = 2;
    p.devices[0] = device;
    return p;
}

/* A prompt, single tokens, a greedy loop with queued steps, and moved cells. */
static void take_step(user *u, const reference_model *g, int step) {
    tn_session *s = u->session;
    tn_batch b = {.n_tokens = step == 0 ? PROMPT : 1, .tokens = g->tokens + (step == 0 ? 0 : step % g->n_tokens)};
    if (step >= 5 && step < 12 && !tn_session_get_params(s).embeddings) {
        b.argmax = true;
        if (step > 5) b.tokens = &u->next;
    }
    if (step == 12) {
        assert_ok(tn_session_seq_remove(s, 0, 2, 6));
        assert_ok(tn_session_seq_shift(s, 0, 6, -1, -4));
    }
    if (step == 14) assert_ok(tn_session_defragment(s));
    assert_ok(tn_session_decode(s, &b));
    if (b.argmax) u->next = tn_session_argmax(s, 0);
}

/* The results of the last step, up to WIDEST values. */
static void look(user *u, int step, float *results) {
    const tn_model_info info = tn_model_get_info(u->model);
    const float *row = tn_session_embedding(u->session, 0);
    int32_t n = tn_session_embedding_size(u->session);
    if (!row) {
        row = tn_session_logits(u->session, 0);
        n = info.n_vocab;
    }
    memset(results, 0, WIDEST * sizeof *results);
    assert_true(n <= WIDEST);
    if (row) memcpy(results, row, (size_t)n * sizeof *results);
    if (!row) results[0] = (float)tn_session_argmax(u->session, 0);
    assert_true(row || (step >= 5 && step < 12));
}

static void open_models(const reference_model g[2], user users[USERS]) {
    for (int u = 0; u < USERS; u++) users[u] = (user){.results = users[u].results};
    assert_ok(tn_model_open(g[0].path, NULL, &users[0].model));
    assert_ok(tn_model_open(g[1].path, NULL, &users[TEXT].model));
    users[VECTORS].model = users[TWIN].model = users[TEXT].model;
}
static void close_models(user users[USERS]) {
    for (int u = 0; u < USERS; u++) {
        tn_session_free(users[u].session);
        tn_fit_free(&users[u].fit);
    }
    tn_model_close(users[0].model);
    tn_model_close(users[TEXT].model);
}

static void make_session(user *u, const tn_session_params *p) {
    tn_fit now;
    assert_ok(plan_fit(u->model, p, &u->fit));
    assert_true(u->fit.fits);
    assert_ok(tn_session_open(u->model, p, &u->session));
    assert_ok(tn_session_memory(u->session, &now));
    for (size_t d = 0; d < now.n_devices; d++) {
        assert_int_equal(now.devices[d].weights, u->fit.devices[d].weights);
        assert_int_equal(now.devices[d].cache, u->fit.devices[d].cache);
        assert_int_equal(now.devices[d].compute, u->fit.devices[d].compute);
        assert_int_equal(now.devices[d].scratch, u->fit.devices[d].scratch);
    }
    tn_fit_free(&now);
}

static bool same_bits(const void *a, const void *b, size_t size) { return memcmp(a, b, size) == 0; }

/* Runs all users' steps in turns; results are read after all others have computed since. */
static void take_turns(const reference_model g[2], user users[USERS], int first_user) {
    float *got = malloc(WIDEST * sizeof *got);
    for (int step = 0; step < STEPS; step++) {
        for (int u = first_user; u < USERS; u++) take_step(&users[u], &g[u > 0], step);
        for (int u = first_user; u < USERS; u++) {
            look(&users[u], step, got);
            if (!same_bits(got, users[u].results + step * WIDEST, WIDEST * sizeof *got))
                fail_msg("session %d, step %d: other results than alone", u, step);
        }
    }
    free(got);
}

static void check_on(const reference_model g[2], const char *device, const char *name) {
    user users[USERS] = {0};
    tn_placement_override all = {".*", name};
    const bool is_sim = strcmp(name, "cpu") != 0; /* which counts what is taken */
    size_t compute[17] = {0}, scratch[17] = {0}, n_devices = 0;
    for (int u = 0; u < USERS; u++) {
        open_models(g, users);
        users[u].results = malloc(STEPS * WIDEST * sizeof(float));
        const tn_session_params p = params_of(u, device, NULL, &all);
        make_session(&users[u], &p);
        n_devices = users[u].fit.n_devices;
        for (size_t d = 0; d < n_devices; d++) {
            compute[d] = users[u].fit.devices[d].compute > compute[d] ? users[u].fit.devices[d].compute : compute[d];
            scratch[d] = users[u].fit.devices[d].scratch > scratch[d] ? users[u].fit.devices[d].scratch : scratch[d];
        }
        for (int step = 0; step < STEPS; step++) {
            take_step(&users[u], &g[u > 0], step);
            look(&users[u], step, users[u].results + step * WIDEST);
        }
        close_models(users);
    }
    for (int reverse = 0; reverse < 2; reverse++) {
        tn_sched *sched;
        open_models(g, users);
        assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}, .n_threads = 2}, &sched));
        for (int i = 0; i < USERS; i++) {
            const int u = reverse ? USERS - 1 - i : i;
            const tn_session_params p = params_of(u, NULL, sched, &all);
            make_session(&users[u], &p);
        }
        size_t bytes = 0;
        for (size_t d = 0; d < n_devices; d++) {
            assert_int_equal(tn_sched_memory_of(sched, d).compute, compute[d]);
            assert_int_equal(tn_sched_memory_of(sched, d).scratch, scratch[d]);
        }
        tn_sched_free(sched);
        if (is_sim) {
            for (int u = 0; u < USERS; u++) bytes += users[u].fit.devices[0].cache;
            bytes += users[0].fit.devices[0].weights + users[TEXT].fit.devices[0].weights + compute[0] + scratch[0];
            assert_int_equal(used_on(name), bytes);
        }
        take_turns(g, users, 0);
        uint64_t made[USERS];
        for (int u = 0; u < USERS; u++) {
            made[u] = tn_session_get_stats(users[u].session).sched.plans_made;
            if (u != VECTORS) tn_session_clear(users[u].session);
        }
        tn_session_clear(users[VECTORS].session);
        take_turns(g, users, 0);
        for (int u = 0; u < USERS; u++) {
            assert_int_equal(tn_session_get_stats(users[u].session).sched.plans_made, made[u]);
            tn_session_clear(users[u].session);
        }
        if (is_sim) assert_int_equal(used_on(name), bytes);
        /* Freeing the first does not affect the others. */
        tn_session_free(users[0].session);
        users[0].session = NULL;
        take_turns(g, users, 1);
        close_models(users);
        if (is_sim) assert_int_equal(used_on(name), 0);
    }
    for (int u = 0; u < USERS; u++) free(users[u].results);
}

static void load(reference_model g[2]) {
    reference_load("gemma2-dense", &g[0]);
    reference_load("llama-dense", &g[1]);
}

static void sessions_take_turns_as_if_alone(void **state) {
    (void)state;
    reference_model g[2];
    load(g);
    check_on(g, "cpu", "cpu");
    check_on(g, "sim:64M,name=turns", "turns");
    for (int i = 0; i < 2; i++) reference_free(&g[i]);
}

/* On a device that has memory for two sessions only if they share, to the byte. */
static void sharing_fits_where_two_do_not(void **state) {
    (void)state;
    reference_model g[2];
    load(g);
    size_t size = 64 << 20;
    for (int less = -1; less < 3; less++) { /* ample, exact, separate, a byte too few */
        user users[USERS] = {0};
        char device[64];
        snprintf(device, sizeof device, "sim:%zu,name=room%d", size - (less == 2), less + 1);
        tn_sched *sched;
        open_models(g, users);
        assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}, .n_threads = 2}, &sched));
        char name[16];
        snprintf(name, sizeof name, "room%d", less + 1);
        for (int u = 0; u < 2; u++) {
            tn_session_params p = params_of(u, name, less == 1 ? NULL : sched, &(tn_placement_override){".*", name});
            if (u == 0 || less < 1) {
                make_session(&users[u], &p);
                continue;
            }
            const size_t before = used_on(name);
            assert_fails(TN_E_TOO_BIG, tn_session_open(users[u].model, &p, &users[u].session));
            if (less == 2) assert_non_null(strstr(tn_error(), "of which a part is there"));
            assert_int_equal(used_on(name), before);
            take_step(&users[0], &g[0], 0); /* the first works on */
        }
        if (less < 1) size = used_on(name);
        tn_sched_free(sched);
        close_models(users);
    }
    for (int i = 0; i < 2; i++) reference_free(&g[i]);
}

/* The smaller session first: its compute memory is freed after the larger one's is taken, so both must fit for a
 * moment. If they do not, that is reported before anything is taken. */
static void growing_needs_room_for_old_and_new(void **state) {
    (void)state;
    reference_model g[2];
    load(g);
    size_t size = 64 << 20;
    for (int less = -1; less < 2; less++) { /* ample, exact, a byte too few */
        user users[USERS] = {0};
        char device[64], name[16];
        snprintf(name, sizeof name, "grow%d", less + 1);
        snprintf(device, sizeof device, "sim:%zu,name=%s", size - (less == 1), name);
        tn_placement_override all = {".*", name};
        tn_sched *sched;
        open_models(g, users);
        assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}, .n_threads = 2}, &sched));
        tn_session_params p = params_of(TEXT, NULL, sched, &all);
        make_session(&users[TEXT], &p);
        p = params_of(0, NULL, sched, &all);
        if (less < 1) {
            make_session(&users[0], &p);
            const tn_fit_device *small = &users[TEXT].fit.devices[0], *large = &users[0].fit.devices[0];
            assert_true(large->compute > small->compute);
            if (less < 0)
                size = used_on(name) + small->compute + (large->scratch > small->scratch ? small->scratch : 0);
        } else {
            const size_t before = used_on(name);
            assert_fails(TN_E_TOO_BIG, tn_session_open(users[0].model, &p, &users[0].session));
            assert_int_equal(used_on(name), before);
        }
        take_step(&users[TEXT], &g[1], 0);
        tn_sched_free(sched);
        close_models(users);
    }
    for (int i = 0; i < 2; i++) reference_free(&g[i]);
}

static void what_cannot_be_shared_is_refused(void **state) {
    (void)state;
    reference_model g[2];
    load(g);
    user users[USERS] = {0};
    tn_placement_override all = {".*", "cpu"};
    tn_sched *sched;
    tn_session *none;
    open_models(g, users);
    tn_session_params p = params_of(0, "cpu", NULL, &all);
    make_session(&users[0], &p);
    p = params_of(TEXT, NULL, tn_session_sched(users[0].session),
                  &all); /* a session's own scheduler: the session's logits may be in its compute memory */
    assert_fails(TN_E_INVALID, tn_session_open(users[TEXT].model, &p, &none));
    assert_ok(tn_sched_new(&(tn_sched_params){.n_threads = 1}, &sched));
    p = params_of(TEXT, NULL, sched, &all);
    p.devices[0] = "cpu";
    assert_fails(TN_E_INVALID, tn_session_open(users[TEXT].model, &p, &none));
    p.devices[0] = NULL;
    make_session(&users[TEXT], &p);
    p = params_of(TWIN, NULL, tn_session_sched(users[TEXT].session), &all); /* which is shared already */
    make_session(&users[TWIN], &p);
    tn_sched_free(sched);
    close_models(users);
    for (int i = 0; i < 2; i++) reference_free(&g[i]);
}

static tn_status share(void *golden) {
    const reference_model *g = golden;
    tn_model *model = NULL;
    tn_sched *sched = NULL;
    tn_session *sessions[2] = {NULL, NULL};
    tn_status status;
    TN_TRY_GOTO(tn_model_open(g->path, NULL, &model), status, out);
    TN_TRY_GOTO(tn_sched_new(&(tn_sched_params){.n_threads = 1}, &sched), status, out);
    for (int i = 0; i < 2; i++) {
        tn_session_params p = params_of(i ? VECTORS : TEXT, NULL, sched, &(tn_placement_override){".*", "cpu"});
        TN_TRY_GOTO(tn_session_open(model, &p, &sessions[i]), status, out);
    }
    for (int i = 0; i < 4; i++)
        TN_TRY_GOTO(tn_session_decode(sessions[i % 2], &(tn_batch){.n_tokens = 3, .tokens = g->tokens}), status, out);
out:
    tn_sched_free(sched);
    for (int i = 0; i < 2; i++) tn_session_free(sessions[i]);
    tn_model_close(model);
    return status;
}
static void every_allocation_may_fail(void **state) {
    (void)state;
    reference_model g;
    reference_load("llama-dense", &g);
    check_every_allocation_failure(share, &g);
    reference_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_take_turns_as_if_alone),    cmocka_unit_test(sharing_fits_where_two_do_not),
        cmocka_unit_test(growing_needs_room_for_old_and_new), cmocka_unit_test(what_cannot_be_shared_is_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return RUN_ON_TINY_MODELS(tests, NULL, NULL);
}
