/* The predicted speed of a planned session, as text and JSON. */
#include "engine/speed_report.h"

#include "ranks/ranks.h"

#include <string.h>

/* The prompt, and the cells in the cache for the second figure of decode. */
enum { PROMPT = 512, DEPTH = 4096 };

struct speed_pair {
    tn_session_speed empty, deep;
};

static tn_status predict_pair(const tn_session_plan *plan, struct speed_pair *pair) {
    const int32_t ctx = tn_session_plan_params(plan).n_ctx;
    tn_session_speed_params params = {.prompt = ctx < PROMPT ? ctx : PROMPT};
    TN_TRY(tn_session_plan_predict(plan, &params, &pair->empty));
    params.depth = ctx > DEPTH ? DEPTH : ctx - 1;
    return tn_session_plan_predict(plan, &params, &pair->deep);
}

void print_predicted_speed(const tn_session_plan *plan, FILE *out) {
    struct speed_pair p;
    if (predict_pair(plan, &p) != TN_OK) {
        fprintf(out, "predicted: no speed, %s\n", tn_error());
        tn_error_clear();
        return;
    }
    fprintf(out, "predicted: prompt %d %.4g tokens/s (limited by %s), decode %.4g tokens/s at depth 0",
            p.empty.prompt, p.empty.prefill, tn_speed_limit_name(p.empty.prefill_run.limit), p.empty.decode);
    if (p.deep.depth > 0) fprintf(out, ", %.4g at depth %d", p.deep.decode, p.deep.depth);
    fprintf(out, " (limited by %s)\n", tn_speed_limit_name(p.empty.decode_run.limit));
}

static json_t *run_json(const tn_prediction *run, double rate) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:s}", "tokens_per_second", rate, "seconds", run->seconds, "bytes",
                     run->bytes, "operations", run->operations, "copied", run->copy_bytes, "limit",
                     tn_speed_limit_name(run->limit));
}

json_t *predicted_speed_json(const tn_session_plan *plan) {
    struct speed_pair p;
    if (predict_pair(plan, &p) != TN_OK) {
        tn_error_clear();
        return json_null();
    }
    json_t *prefill = run_json(&p.empty.prefill_run, p.empty.prefill);
    json_object_set_new(prefill, "prompt", json_integer(p.empty.prompt));
    json_t *decode = run_json(&p.empty.decode_run, p.empty.decode),
           *deep = run_json(&p.deep.decode_run, p.deep.decode);
    json_object_set_new(decode, "depth", json_integer(0));
    json_object_set_new(deep, "depth", json_integer(p.deep.depth));
    return json_pack("{s:o, s:[o, o]}", "prefill", prefill, "decode", decode, deep);
}

int measure_plan_devices(const tn_session_plan *plan, int n_threads) {
    tn_fit fit;
    int code = EXIT_OK;
    tn_status status = tn_session_plan_fit(plan, &fit);
    if (status != TN_OK) return fail_status(status, "%s", "");
    for (size_t i = 0; i < fit.n_devices && !code; i++) {
        tn_device *device;
        tn_device_speed speed;
        const tn_fit_device *d = &fit.devices[i];
        if (d->compute == 0 && d->weights + d->mapped == 0) continue;
        if (tn_device_find(d->name, &device) != TN_OK || tn_device_get_caps(device).described ||
            tn_device_get_speed(device, n_threads, &speed) == TN_OK)
            continue;
        code = speed_measure(device, n_threads, 0);
    }
    tn_error_clear();
    tn_fit_free(&fit);
    return code;
}

/* Those that are named, else all GPUs, and the CPU. */
static int list_rank_devices(const tn_session_params *params, tn_device *devices[RANK_DEVICES_MOST + 1]) {
    const char *names[RANK_DEVICES_MOST + 1];
    int n = ranks_list_devices(params, names);
    bool cpu = false;
    for (int i = 0; i < n; i++) cpu = cpu || strcmp(names[i], "cpu") == 0;
    if (!cpu) names[n++] = "cpu";
    int found = 0;
    for (int i = 0; i < n; i++)
        if (tn_device_find(names[i], &devices[found]) == TN_OK && !tn_device_get_caps(devices[found]).described)
            found++;
    tn_error_clear();
    return found;
}

int measure_rank_devices(tn_net *net, const tn_session_params *params, int n_threads) {
    tn_device *devices[RANK_DEVICES_MOST + 1];
    int counts[TN_NET_RANKS_MOST];
    size_t sizes[TN_NET_RANKS_MOST];
    const int own = list_rank_devices(params, devices), n_ranks = tn_net_size(net);
    const int threads = params->n_threads ? params->n_threads : n_threads;
    for (int r = 0; r < n_ranks; r++) sizes[r] = sizeof own;
    tn_status status = tn_net_all_gather(net, &own, sizes, counts);
    if (status != TN_OK) return fail_status(status, "ranks");
    bool together = true;
    for (int r = 0; r < n_ranks; r++) together = together && counts[r] == own;
    int code = EXIT_OK;
    for (int i = 0; i < own && !code; i++)
        code = together ? speed_measure_together(devices[i], threads, net) : speed_measure(devices[i], threads, 0);
    return code;
}
