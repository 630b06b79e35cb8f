/* GET /frontier.svg: memory against predicted speed of alternatives to the current choice. Planning them takes
 * a second or more, so a thread does it on the first request; until it is ready the answer is 202. */
#include "serve/serve.h"

#include "engine/budget_options.h"
#include "engine/loaded_model.h"
#include "engine/speed_cache.h"

#include <stdlib.h>
#include <string.h>

struct frontier_work {
    pthread_t thread;
    /* Constant while the thread runs. */
    char path[4096];
    tn_session_params params;
    tn_budget_params budget;
    int32_t n_gpu_layers; /* of the session in use */
    /* Between the threads. */
    atomic_bool cancelled, done;
    atomic_size_t planned, at_most;
    /* Set before `done`. */
    char *svg;
    size_t svg_length;
    char error[512];
};

/* ---- The thread ---- */

static bool count_plan(void *user, size_t planned, size_t at_most) {
    struct frontier_work *w = user;
    atomic_store(&w->at_most, at_most);
    atomic_store(&w->planned, planned);
    return !atomic_load(&w->cancelled);
}

/* Bytes and speed of the session in use. */
static tn_status find_mark(const struct frontier_work *w, tn_model *model, struct frontier_mark *mark) {
    tn_session_params p = w->params;
    tn_session_plan *plan;
    tn_fit fit = {0};
    tn_session_speed speed;
    p.n_gpu_layers = w->n_gpu_layers;
    TN_TRY(tn_session_plan_new(model, &p, &plan));
    tn_status status = tn_session_plan_fit(plan, &fit);
    const tn_session_speed_params asked = {.depth = p.n_ctx / 2};
    if (status == TN_OK) status = tn_session_plan_predict(plan, &asked, &speed);
    if (status == TN_OK)
        *mark = (struct frontier_mark){(double)(device_bytes(&fit.devices[0]) + fit.devices[0].mapped), speed.decode,
                                       "this server"};
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return status;
}

static tn_status draw_choices(struct frontier_work *w, const tn_budget_ladder *ladder,
                              const struct frontier_mark *mark) {
    char *text = NULL;
    size_t length = 0;
    if (!ladder->predicted) return tn_fail(TN_E_STATE, "%s", ladder->note);
    FILE *out = open_memstream(&text, &length);
    if (!out) return TN_E_NOMEM;
    draw_frontier(ladder, mark, out);
    if (fclose(out) != 0 || !length) {
        free(text);
        return tn_fail(TN_E_STATE, "there is nothing to draw");
    }
    w->svg = text;
    w->svg_length = length;
    return TN_OK;
}

/* Choices differ in the layers on the host, so all devices must have been measured. */
static tn_status check_speeds(const tn_session_params *p) {
    tn_device *device;
    tn_device_speed speed;
    TN_TRY(tn_device_find("cpu", &device));
    TN_TRY(tn_device_get_speed(device, p->n_threads, &speed));
    for (size_t i = 0; i < sizeof p->devices / sizeof *p->devices && p->devices[i]; i++) {
        TN_TRY(tn_device_find(p->devices[i], &device));
        TN_TRY(tn_device_get_speed(device, p->n_threads, &speed));
    }
    return TN_OK;
}

static void *plan_choices(void *user) {
    struct frontier_work *w = user;
    tn_model *model;
    tn_session_plan *plan;
    tn_budget_ladder ladder;
    struct frontier_mark mark = {0};
    speed_cache_load();
    w->params.n_adapters = w->params.n_controls = 0; /* they belong to the loaded model */
    tn_status status = check_speeds(&w->params);
    if (status == TN_OK) status = tn_model_open(w->path, NULL, &model);
    if (status == TN_OK) {
        w->budget.frontier = true;
        w->budget.progress = count_plan;
        w->budget.user = w;
        status = tn_session_plan_to_budget(model, &w->params, &w->budget, &plan, &ladder);
        if (status == TN_OK) {
            if (ladder.predicted) (void)find_mark(w, model, &mark);
            status = draw_choices(w, &ladder, &mark);
            tn_budget_ladder_free(&ladder);
            tn_session_plan_free(plan);
        }
        tn_model_close(model);
    }
    if (status != TN_OK) snprintf(w->error, sizeof w->error, "%s", tn_error());
    atomic_store(&w->done, true);
    return NULL;
}

/* ---- Requests ---- */

/* The session's own parameters, with free choice of layers. Its memory counts as free. */
static void fill_work(const struct served *served, struct frontier_work *w) {
    tn_session_params *p = &w->params;
    snprintf(w->path, sizeof w->path, "%s", served->path);
    *p = served->used_params;
    w->budget = served->server->budget;
    memset(p->devices, 0, sizeof p->devices);
    for (size_t d = 0; d + 1 < served->planned.n_devices; d++) p->devices[d] = served->planned.devices[d].name;
    if (!p->devices[0]) p->devices[0] = "cpu";
    w->n_gpu_layers = p->n_gpu_layers;
    p->assume_free = true;
    p->n_gpu_layers = -1;
    p->threads = NULL;
    p->sched = NULL;
    p->progress = NULL;
    p->abort = NULL;
    p->user = NULL;
}

static bool start_work(struct served *served) {
    struct frontier_work *w = tn_calloc(1, sizeof *w);
    if (!w) return false;
    fill_work(served, w);
    if (pthread_create(&w->thread, NULL, plan_choices, w) != 0) {
        tn_free(w);
        return false;
    }
    served->frontier = w;
    return true;
}

void frontier_forget(struct served *served) {
    struct frontier_work *w = served->frontier;
    if (!w) return;
    atomic_store(&w->cancelled, true);
    pthread_join(w->thread, NULL);
    free(w->svg);
    tn_free(w);
    served->frontier = NULL;
}

void serve_frontier(struct served *served, struct evhttp_request *http, json_t *body) {
    struct problem problem = {0};
    (void)body;
    if (!served->session)
        problem_set(&problem, 501, "an encoder has no decode rate to compare");
    else if (!served->frontier && !start_work(served))
        problem_set(&problem, 500, "cannot start planning");
    const struct frontier_work *w = served->frontier;
    if (!problem.code && !atomic_load(&w->done)) {
        reply_json(served->server, http, 202,
                   json_pack("{s:s, s:I, s:I}", "status", "planning", "planned", (json_int_t)atomic_load(&w->planned),
                             "at_most", (json_int_t)atomic_load(&w->at_most)));
        return;
    }
    if (!problem.code && !w->svg) {
        problem_set(&problem, 501, "%s", w->error);
        frontier_forget(served); /* the next request tries again: devices may have been measured */
    }
    if (problem.code)
        reply_problem(served->server, http, &problem);
    else
        reply_text(served->server, http, 200, "image/svg+xml", w->svg, w->svg_length);
}
