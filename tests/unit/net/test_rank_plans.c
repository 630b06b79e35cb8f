/* What ranks plan: micro-batches of whole layers, memory of groups, and refusals that name what each rank lacks. */
#include "models/reference_models.h"

#include "llm/session_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *plans_path(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tenon-rank-plans-%d.gguf", (int)getpid());
    return path;
}

static tn_session_params plans_params(void) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 512;
    p.n_batch = 512;
    p.n_ubatch = 256;
    p.n_threads = 1;
    p.devices[0] = "cpu";
    return p;
}

static int32_t micro_batch_of(const tn_model_params *how, bool repeatable, int32_t n_tokens) {
    tn_model *model;
    tn_session_plan *plan;
    tn_session_params p = plans_params();
    p.repeatable = repeatable;
    assert_ok(tn_model_open(plans_path(), how, &model));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    const int32_t n = tn_session_plan_micro_batch(plan, n_tokens);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return n;
}

static void prompts_by_layers_are_cut_by_their_length(void **state) {
    (void)state;
    static const int32_t cases[][3] = {/* ranks, tokens, micro-batch: √(10 · tokens / (ranks - 1)) */
                                       {2, 1, 32},     {2, 512, 64},      {2, 2048, 128}, {2, 4096, 192},
                                       {2, 8192, 256}, {2, 1 << 30, 256}, {3, 2048, 96}};
    assert_ok(tiny_model_write(plans_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64, .layers = 5}));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tn_model_params how = {.n_ranks = cases[i][0], .by_layers = true};
        assert_int_equal(micro_batch_of(&how, false, cases[i][1]), cases[i][2]);
        assert_int_equal(micro_batch_of(&how, true, cases[i][1]), 256);
    }
    assert_int_equal(micro_batch_of(NULL, false, 2048), 256);
    assert_int_equal(micro_batch_of(&(tn_model_params){.n_ranks = 2}, false, 2048), 256);
    assert_int_equal(tn_session_plan_micro_batch(NULL, 1), 0);
    remove(plans_path());
}

/* Host memory of a session beside its tensors. */
static size_t staging_of(int stage_ranks) {
    tn_model *model;
    tn_session_plan *plan;
    tn_fit fit;
    const tn_session_params p = plans_params();
    const tn_model_params how = {.n_ranks = 4, .by_layers = true, .stage_ranks = stage_ranks};
    assert_ok(tn_model_open(plans_path(), &how, &model));
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    const size_t staging = fit.devices[fit.n_devices - 1].staging;
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return staging;
}

static void groups_of_ranks_are_planned(void **state) {
    (void)state;
    assert_ok(tiny_model_write(plans_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64, .layers = 5}));
    assert_true(tn_net_group_bytes(NULL, 2) > 0 && tn_net_group_bytes(NULL, 0) == 0);
    assert_int_equal(staging_of(2) - staging_of(1), tn_net_group_bytes(NULL, 2));
    /* The transport takes what was announced. */
    tn_net *nets[2], *group;
    assert_ok(tn_net_threads(&(tn_net_params){.n_ranks = 2, .type = TN_NET_BF16}, nets));
    assert_ok(tn_net_group(nets[0], 0, 2, &group));
    assert_int_equal(tn_net_bytes(group), tn_net_group_bytes(nets[0], 2));
    tn_net_free(group);
    for (int r = 0; r < 2; r++) tn_net_free(nets[r]);
    remove(plans_path());
}

enum { CROWD = 40 };
struct crowded_rank {
    tn_net *net;
    char device[48], error[2048];
    tn_status status;
};

static void *open_session(void *user) {
    struct crowded_rank *r = user;
    tn_model *model = NULL;
    tn_session *session = NULL;
    tn_session_params p = plans_params();
    p.devices[0] = r->device;
    p.devices[1] = "cpu";
    p.n_gpu_layers = INT32_MAX;
    p.n_ctx = 128;
    p.n_batch = p.n_ubatch = 8;
    r->status = tn_model_open(plans_path(), &(tn_model_params){.net = r->net}, &model);
    if (r->status == TN_OK) r->status = tn_session_open(model, &p, &session);
    snprintf(r->error, sizeof r->error, "%s", tn_error());
    tn_session_free(session);
    tn_model_close(model);
    return NULL;
}

/* Every rank has a device that is too small: the list is shortened, the advice and a rank's own reason are there. */
static void refusals_of_many_ranks_are_whole(void **state) {
    (void)state;
    static struct crowded_rank ranks[CROWD];
    tn_net *nets[CROWD];
    pthread_t threads[CROWD];
    assert_ok(tiny_model_write(plans_path(), &(tiny_options){.heads = 8, .kv_heads = 4, .width = 64, .layers = 5}));
    for (int many = 0; many < 2; many++) { /* all on one device, or each on its own */
        assert_ok(tn_net_threads(&(tn_net_params){.n_ranks = CROWD, .timeout_ms = 60000}, nets));
        for (int r = 0; r < CROWD; r++) {
            ranks[r] = (struct crowded_rank){.net = nets[r]};
            snprintf(ranks[r].device, sizeof ranks[r].device, "sim:100K,name=small%d", many ? r : CROWD);
            tn_device *device; /* before the threads look for it */
            assert_ok(tn_device_find(ranks[r].device, &device));
        }
        for (int r = 0; r < CROWD; r++)
            assert_int_equal(pthread_create(&threads[r], NULL, open_session, &ranks[r]), 0);
        for (int r = 0; r < CROWD; r++) pthread_join(threads[r], NULL);
        for (int r = 0; r < CROWD; r++) tn_net_free(nets[r]);
        for (int r = 0; r < CROWD; r++) {
            const char *text = ranks[r].error;
            if (ranks[r].status != TN_E_TOO_BIG || !strstr(text, "rank 0 needs ") ||
                !strstr(text, many ? " and 36 more devices;" : " and 34 more ranks,") ||
                !strstr(text, "try a smaller context (-c)") || !strstr(text, "; rank 0: ") ||
                !strstr(text, " (and 39 more ranks)"))
                fail_msg("rank %d: %d %s", r, (int)ranks[r].status, text);
        }
    }
    remove(plans_path());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_by_layers_are_cut_by_their_length),
        cmocka_unit_test(groups_of_ranks_are_planned),
        cmocka_unit_test(refusals_of_many_ranks_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
