/* POST /fit: the memory of a model of the server, or of a shape, with other settings, and whether it fits on the
 * devices when no other model is loaded. A thread makes the plans, one at a time; until a plan is ready the answer is
 * 202. */
#include "serve/serve.h"

#include "engine/loaded_model.h"
#include "engine/serving_params.h"
#include "engine/speed_cache.h"

#include "convert/convert.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fit_work {
    pthread_t thread;
    /* Constant while the thread runs. */
    char *asked; /* the request, to recognise a repetition */
    char path[4096];
    char *arch, *shape, *weights; /* shape NULL: the model is the file at `path` */
    tn_session_params params;
    /* Set before `done`. */
    json_t *answer; /* NULL: `error` says why */
    char error[512];
    atomic_bool cancelled, done;
    uint64_t waited_since; /* ns, when another request first found this plan done and not fetched; 0: none did */
};

/* A finished plan waits this long for its client while others want theirs. Clients repeat requests more often. */
#define FIT_KEPT_NS UINT64_C(2000000000)

/* ---- The thread ---- */

static bool fit_cancelled(void *user) { return atomic_load(&((struct fit_work *)user)->cancelled); }

static json_t *fit_device_json(const tn_fit_device *d) {
    json_t *name = json_string(d->name);
    return json_pack("{s:o, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", name ? name : json_string("?"),
                     "layers", (int)d->n_layers, "weights", (json_int_t)(d->weights + d->adapters), "mapped",
                     (json_int_t)d->mapped, "cache", (json_int_t)d->cache, "compute", (json_int_t)d->compute, "other",
                     (json_int_t)(device_bytes(d) - d->weights - d->adapters - d->cache - d->compute), "needed",
                     (json_int_t)device_bytes(d), "free", (json_int_t)d->free, "total", (json_int_t)d->total);
}

static json_t *fit_json(tn_session_plan *plan, const tn_model_info *info) {
    const tn_session_params p = tn_session_plan_params(plan);
    tn_fit fit = {0};
    if (tn_session_plan_fit(plan, &fit) != TN_OK) return NULL;
    json_t *devices = json_array(), *speed = json_null();
    for (size_t i = 0; i < fit.n_devices; i++) json_array_append_new(devices, fit_device_json(&fit.devices[i]));
    tn_session_speed predicted;
    const tn_session_speed_params asked = {.prompt = p.n_ubatch < p.n_ctx ? p.n_ubatch : p.n_ctx, .depth = 0};
    if (tn_session_plan_predict(plan, &asked, &predicted) == TN_OK)
        speed = json_pack("{s:f, s:f}", "prefill", predicted.prefill, "decode", predicted.decode);
    const bool fits = tn_session_plan_fits(plan);
    const char *advice = fits ? tn_session_plan_warning(plan) : tn_session_plan_advice(plan);
    json_t *answer =
        json_pack("{s:b, s:s, s:i, s:i, s:s, s:s, s:I, s:i, s:o, s:o}", "fits", (int)fits, "advice",
                  advice ? advice : "", "ctx", (int)p.n_ctx, "slots", (int)p.n_seqs, "cache_type_k",
                  tn_type_name(p.cache_k), "cache_type_v", tn_type_name(p.cache_v), "parameters",
                  (json_int_t)info->n_params, "layers", (int)info->n_layer, "devices", devices, "speed", speed);
    tn_fit_free(&fit);
    return answer;
}

/* Opens the model; for a shape, from a file without data that exists only during this call. */
static tn_status open_fit_model(struct fit_work *w, tn_model **model) {
    if (!w->shape) return tn_model_open(w->path, NULL, model);
    const char *folder = getenv("TMPDIR");
    snprintf(w->path, sizeof w->path, "%s/tenon-shape-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp(w->path)) return tn_fail(TN_E_IO, "%s: cannot create a folder", w->path);
    char file[sizeof w->path + 16];
    snprintf(file, sizeof file, "%s/shape.gguf", w->path);
    tn_status status = shape_file_write(file, w->arch, w->shape, w->weights);
    if (status == TN_OK) status = tn_model_open(file, NULL, model);
    unlink(file);
    rmdir(w->path);
    return status;
}

/* Messages about files begin with their path, which is no business of clients. */
static void keep_error(struct fit_work *w) {
    const char *text = tn_error(), *name = w->shape ? "the shape" : "the model", *at = strstr(text, w->path);
    const size_t length = strlen(w->path) + (at ? strcspn(at + strlen(w->path), ": ") : 0);
    snprintf(w->error, sizeof w->error, "%.*s%s%s", at ? (int)(at - text) : 0, text, at ? name : "",
             at ? at + length : text);
}

static void *plan_fit(void *user) {
    struct fit_work *w = user;
    tn_model *model;
    tn_session_plan *plan;
    speed_cache_load();
    tn_status status = open_fit_model(w, &model);
    if (status == TN_OK) {
        const tn_model_info info = tn_model_get_info(model);
        status = tn_session_plan_new(model, &w->params, &plan);
        if (status == TN_OK) {
            w->answer = fit_json(plan, &info);
            tn_session_plan_free(plan);
        }
        if (!w->answer) keep_error(w);
        tn_model_close(model);
    } else {
        keep_error(w);
    }
    atomic_store(&w->done, true);
    return NULL;
}

/* ---- Requests ---- */

static bool read_cache_field(json_t *body, const char *name, tn_type *type, struct problem *problem) {
    const char *text = NULL;
    if (!field_text(body, name, &text, problem)) return false;
    if (!text) return true;
    for (int t = 0; t < (int)TN_TYPE_LIMIT; t++)
        if (strcmp(tn_type_name((tn_type)t), text) == 0) {
            *type = (tn_type)t;
            return true;
        }
    return problem_set(problem, 400, "%s: unknown type %.40s", name, text);
}

static void free_fit(struct fit_work *w) {
    json_decref(w->answer);
    free(w->asked);
    free(w->arch);
    free(w->shape);
    free(w->weights);
    tn_free(w);
}

static bool read_shape(json_t *body, struct fit_work *w, struct problem *problem) {
    const char *shape = NULL, *arch = "llama", *weights = "Q4_K_M";
    if (!field_text(body, "shape", &shape, problem) || !field_text(body, "arch", &arch, problem) ||
        !field_text(body, "weights", &weights, problem))
        return false;
    if (!shape) return true;
    if (strlen(shape) > 1 << 18) return problem_set(problem, 400, "shape: too long");
    w->shape = strdup(shape), w->arch = strdup(arch), w->weights = strdup(weights);
    return (w->shape && w->arch && w->weights) || problem_set(problem, 500, "out of memory");
}

/* The server's own parameters, with the changes of the request. */
static bool fill_fit(const struct served *served, json_t *body, struct fit_work *w, struct problem *problem) {
    const struct server *server = served->server;
    tn_session_params *p = &w->params;
    int64_t ctx = server->params.n_ctx, slots = server->n_slots, layers = server->params.n_gpu_layers;
    *p = server->params;
    if (!field_int(body, "ctx", 0, INT32_MAX, &ctx, problem) || !field_int(body, "slots", 1, 1024, &slots, problem) ||
        !field_int(body, "gpu_layers", -1, INT32_MAX, &layers, problem) || !read_shape(body, w, problem) ||
        !read_cache_field(body, "cache_type_k", &p->cache_k, problem) ||
        !read_cache_field(body, "cache_type_v", &p->cache_v, problem))
        return false;
    snprintf(w->path, sizeof w->path, "%s", served->path);
    serving_params(p, (int32_t)slots, server->args);
    p->n_ctx = (int32_t)ctx;
    p->n_gpu_layers = (int32_t)layers;
    p->n_threads = server->threads.n_threads;
    p->assume_free = true; /* as if the loaded model were unloaded */
    p->n_adapters = p->n_controls = 0;
    p->abort = fit_cancelled;
    p->user = w;
    return true;
}

void fit_forget(struct server *server) {
    struct fit_work *w = server->fit;
    if (!w) return;
    atomic_store(&w->cancelled, true);
    pthread_join(w->thread, NULL);
    free_fit(w);
    server->fit = NULL;
}

/* Whether the finished plan of another request may be replaced: its client has had time to fetch it. Without this,
 * two clients that repeat their requests in turn would discard each other's plans for ever. */
static bool fit_abandoned(struct fit_work *w) {
    const uint64_t now = tn_time_ns();
    if (w->waited_since == 0) w->waited_since = now;
    return now - w->waited_since > FIT_KEPT_NS;
}

static bool start_fit(const struct served *served, json_t *body, const char *asked, struct problem *problem) {
    struct fit_work *w = tn_calloc(1, sizeof *w);
    if (w) w->asked = strdup(asked);
    bool fine = w && w->asked ? fill_fit(served, body, w, problem) : problem_set(problem, 500, "out of memory");
    if (fine && pthread_create(&w->thread, NULL, plan_fit, w) != 0)
        fine = problem_set(problem, 500, "cannot start planning");
    if (fine) {
        served->server->fit = w;
        return true;
    }
    if (w) free_fit(w);
    return false;
}

void serve_fit(struct served *served, struct evhttp_request *http, json_t *body) {
    struct server *server = served->server;
    struct problem problem = {0};
    if (server->on_demand) served = models_find(server, json_string_value(json_object_get(body, "model")));
    char *asked = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    struct fit_work *w = server->fit;
    const bool own = w && asked && strcmp(asked, w->asked) == 0;
    if (w && atomic_load(&w->done) && !own && fit_abandoned(w)) fit_forget(server);
    if (!served)
        problem_set(&problem, 404, "unknown model; GET /v1/models lists the available ones");
    else if (!asked)
        problem_set(&problem, 500, "out of memory");
    else if (!server->fit)
        start_fit(served, body, asked, &problem);
    w = server->fit;
    if (problem.code) {
        reply_problem(server, http, &problem);
    } else if (!w || !atomic_load(&w->done) || strcmp(asked, w->asked) != 0) {
        /* This request's plan is being made, or another one's is or waits for its client: the client asks again. */
        reply_json(server, http, 202, json_pack("{s:s}", "status", "planning"));
    } else if (!w->answer) {
        problem_set(&problem, 400, "%s", w->error);
        reply_problem(server, http, &problem);
        fit_forget(server);
    } else {
        reply_json(server, http, 200, json_incref(w->answer));
        fit_forget(server);
    }
    free(asked);
}
