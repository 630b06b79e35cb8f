/* --split-mode row: matrices are divided among the devices of this process. Every device is a rank, in a thread. */
#include "ranks/ranks.h"

#include "cli/term.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct device_rank {
    const char *path;
    tn_model_params model_params;
    tn_session_params params;
    pthread_t thread;
    bool running;
};
struct device_ranks {
    int n;
    tn_net *nets[RANK_DEVICES_MOST];
    struct device_rank ranks[RANK_DEVICES_MOST];
};

static void *run_device(void *user) {
    struct device_rank *r = user;
    tn_model *model = NULL;
    tn_session *session = NULL;
    tn_status status = tn_model_open(r->path, &r->model_params, &model);
    if (status == TN_OK) status = tn_session_open(model, &r->params, &session);
    if (status == TN_OK) status = tn_session_follow(session);
    if (status != TN_OK) tn_net_abort(r->model_params.net, status, tn_error());
    tn_session_free(session);
    tn_model_close(model);
    return NULL;
}

bool ranks_split_devices(const struct args *args) {
    const char *mode = args_text(args, "split-mode");
    return strcmp(mode, "row") == 0 || strcmp(mode, "tensor") == 0;
}

int ranks_list_devices(const tn_session_params *p, const char *devices[RANK_DEVICES_MOST]) {
    int n = 0;
    for (int i = 0; i < RANK_DEVICES_MOST && p->devices[i]; i++)
        if (strcmp(p->devices[i], "cpu") != 0 || !p->devices[1]) devices[n++] = p->devices[i];
    for (size_t i = 0; !p->devices[0] && i < tn_device_count() && n < RANK_DEVICES_MOST; i++)
        if (tn_device_get_kind(tn_device_get(i)) == TN_DEVICE_GPU) devices[n++] = tn_device_name(tn_device_get(i));
    return n;
}

void ranks_use_device(tn_session_params *p, const char *device) {
    memset(p->devices, 0, sizeof p->devices);
    p->devices[0] = device;
    if (strcmp(device, "cpu") != 0) p->devices[1] = "cpu";
}

int device_ranks_start(const struct args *args, const char *path, tn_model_params *model_params,
                       tn_session_params *params, struct device_ranks **out, tn_net **net) {
    const char *devices[RANK_DEVICES_MOST];
    *out = NULL;
    if (!ranks_split_devices(args)) return EXIT_OK;
    const int n = ranks_list_devices(params, devices);
    if (n < 2) return EXIT_OK;
    struct device_ranks *ranks = calloc(1, sizeof *ranks);
    if (!ranks) return fail("out of memory");
    const tn_net_params net_params = {
        .n_ranks = n, .timeout_ms = (uint32_t)(args_int(args, "net-timeout") * 1000), .type = ranks_type(args)};
    tn_status status = tn_net_threads(&net_params, ranks->nets);
    if (status != TN_OK) {
        free(ranks);
        return fail_status(status, "ranks");
    }
    ranks->n = n;
    *out = ranks;
    *net = ranks->nets[0];
    for (int r = 0; r < n; r++) model_params->shares[r] = params->split[r];
    memset(params->split, 0, sizeof params->split);
    const int threads = params->n_threads / n > 0 ? params->n_threads / n : 1;
    status = ranks_balance_devices(path, devices, n, threads, model_params);
    if (status != TN_OK) return fail_status(status, "ranks");
    for (int r = 1; r < n; r++) {
        struct device_rank *d = &ranks->ranks[r];
        *d = (struct device_rank){.path = path, .model_params = *model_params, .params = *params};
        d->model_params.net = ranks->nets[r];
        d->params.threads = NULL;
        d->params.n_threads = threads;
        d->params.progress = NULL;
        d->params.abort = NULL;
        ranks_use_device(&d->params, devices[r]);
        d->running = pthread_create(&d->thread, NULL, run_device, d) == 0;
        if (!d->running) {
            tn_net_abort(ranks->nets[0], TN_E_NOMEM, "a thread cannot be started");
            return fail("a thread for %s cannot be started", devices[r]);
        }
    }
    ranks_use_device(params, devices[0]);
    return EXIT_OK;
}

void device_ranks_end(struct device_ranks *ranks) {
    if (!ranks) return;
    for (int r = 1; r < ranks->n; r++)
        if (ranks->ranks[r].running) pthread_join(ranks->ranks[r].thread, NULL);
    for (int r = 0; r < ranks->n; r++) tn_net_free(ranks->nets[r]);
    free(ranks);
}
