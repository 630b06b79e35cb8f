/* Planning to a budget: bytes and predicted speed of one combination of parameters. */
#include "llm/plan/budget.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* Tokens of the prompt that prefill is predicted for. */
enum { PREDICTED_PROMPT = 512 };
/* Bytes per second from memory where nothing is measured: a desktop's CPU and GPU. Only their ratio matters. */
static const double assumed_host_rate = 40e9, assumed_device_rate = 400e9;

void tn__budget_search_free(tn__budget_search *s) {
    for (size_t i = 0; i < s->n; i++) tn_free(s->results[i].choice.bytes);
    tn_free(s->results);
    tn_free(s->devices);
    *s = (tn__budget_search){0};
}

/* ---- Parameters ---- */

/* A pattern of the experts of the first `count` layers that have some. */
static char *expert_pattern(const tn_model *m, int32_t count) {
    enum { NUMBER = 12, FRAME = 64 };
    const size_t size = (size_t)count * NUMBER + FRAME;
    char *text = tn_malloc(size);
    if (!text) return NULL;
    size_t used = (size_t)snprintf(text, size, "^blk\\.(");
    bool first = true;
    for (int32_t i = 0; i < m->h.n_layer && count > 0; i++) {
        if (!m->w.layers[i].up_exps) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", first ? "" : "|", i);
        first = false;
        count--;
    }
    snprintf(text + used, size - used, ")\\.ffn_[a-z_]*_exps\\.");
    return text;
}

/* The caller's overrides come first: they are kept. Afterwards `kept` holds what params->overrides points to, or is
 * NULL. */
static tn_status add_expert_override(const tn__budget_search *s, int32_t count, tn_session_params *params,
                                     void **kept) {
    *kept = NULL;
    if (count <= 0) return TN_OK;
    const size_t n = params->n_overrides;
    char *pattern = expert_pattern(s->model, count);
    const size_t list_size = (n + 1) * sizeof(tn_placement_override), length = pattern ? strlen(pattern) + 1 : 0;
    tn_placement_override *list = pattern ? tn_malloc(list_size + length) : NULL;
    if (!list) {
        tn_free(pattern);
        return TN_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) list[i] = params->overrides[i];
    memcpy((char *)list + list_size, pattern, length);
    tn_free(pattern);
    list[n] = (tn_placement_override){(char *)list + list_size, s->devices[s->n_devices - 1].name};
    params->overrides = list;
    params->n_overrides = n + 1;
    *kept = list;
    return TN_OK;
}

tn_status tn__budget_plan(tn__budget_search *s, const tn__budget_combination *c, tn_session_plan **plan) {
    tn_session_params p = s->base;
    void *kept;
    p.n_ctx = c->n_ctx;
    p.n_ubatch = c->n_ubatch;
    p.ffn_chunk = c->ffn_chunk;
    p.cache_k = c->cache_k;
    p.cache_v = c->cache_v;
    p.n_gpu_layers = c->n_gpu_layers;
    *plan = NULL;
    TN_TRY(add_expert_override(s, c->host_experts, &p, &kept));
    tn_status status = tn_session_plan_new(s->model, &p, plan);
    if (status == TN_OK)
        (*plan)->kept = kept;
    else
        tn_free(kept);
    return status;
}

/* ---- Devices ---- */

static tn_status learn_devices(tn__budget_search *s, const tn_session_plan *plan) {
    const size_t n = plan->placement.n_devices;
    s->devices = tn_calloc(n, sizeof *s->devices);
    if (!s->devices) return TN_E_NOMEM;
    s->n_devices = n;
    memcpy(s->base.devices, plan->params.devices, sizeof s->base.devices);
    for (size_t d = 0; d < n; d++) {
        tn_budget_device *device = &s->devices[d];
        device->name = tn_device_name(tn__plan_device(plan, d));
        TN_TRY(tn_device_memory(tn__plan_device(plan, d), &device->free, &device->total));
        if (plan->placement.limits[d] != SIZE_MAX) device->budget = plan->placement.limits[d];
    }
    for (int32_t i = 0; n > 1 && !s->model->loaded && s->base.n_gpu_layers < 0 && i < s->model->h.n_layer; i++)
        s->n_expert_layers += s->model->w.layers[i].up_exps != NULL;
    return TN_OK;
}

/* Parsing a device description creates a new device every time, so it is parsed once here, and names are used from
 * then on. */
tn_status tn__budget_open_devices(tn__budget_search *s) {
    tn_session_plan *plan = tn_calloc(1, sizeof *plan);
    if (!plan) return TN_E_NOMEM;
    plan->n_users = 1;
    plan->model = s->model;
    plan->params = s->base;
    tn_status status = tn__session_plan_prepare(plan);
    if (status == TN_OK) status = learn_devices(s, plan);
    tn_session_plan_free(plan);
    return status;
}

/* ---- Results ---- */

static size_t missing_bytes(const tn_session_plan *p) {
    const tn_device_budget *budgets = p->placement.budgets;
    size_t missing = 0;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        size_t own = 0, together = 0;
        for (size_t i = d; i < p->placement.n_devices; i++) {
            if (budgets[i].domain != d) continue;
            const size_t bytes =
                tn__device_plan_bytes(&p->devices[i]) - (p->model->loaded ? p->devices[i].weights : 0);
            together += bytes;
            if (bytes > budgets[i].free) own += bytes - budgets[i].free;
            if (p->devices[i].mapped > budgets[i].total) own += p->devices[i].mapped - budgets[i].total;
        }
        if (together > budgets[d].domain_free) own = TN__MAX(own, together - budgets[d].domain_free);
        missing += own;
    }
    return missing;
}

/* Without measured peaks: time to read the weights and the cache once, which bounds decode. Larger micro-batches
 * prefill faster. */
static void assume_speed(const tn_session_plan *p, tn__budget_result *r) {
    double seconds = 0;
    for (size_t d = 0; d < p->placement.n_devices; d++) {
        const tn__device_plan *plan = &p->devices[d];
        const bool host = tn_device_get_kind(plan->device) == TN_DEVICE_CPU;
        seconds += (double)(plan->weights + plan->mapped + plan->cache / 2) /
                   (host ? assumed_host_rate : assumed_device_rate);
    }
    r->decode = seconds > 0 ? 1 / seconds : 0;
    r->prefill = (double)p->params.n_ubatch;
}

static tn_status predict_combination(tn__budget_search *s, const tn_session_plan *p, tn__budget_result *r) {
    tn_session_speed speed;
    const tn_session_speed_params params = {.prompt = TN__MIN(PREDICTED_PROMPT, p->params.n_ctx),
                                            .depth = p->params.n_ctx / 2};
    tn_status status = s->not_measured ? TN_E_STATE : tn_session_plan_predict(p, &params, &speed);
    if (status == TN_OK) {
        r->prefill = r->choice.prefill = speed.prefill;
        r->decode = r->choice.decode = speed.decode;
        return TN_OK;
    }
    if (status != TN_E_STATE) return status;
    if (!s->not_measured) snprintf(s->note, sizeof s->note, "%s", tn_error());
    s->not_measured = true;
    assume_speed(p, r);
    return TN_OK;
}

static tn_status describe_plan(tn__budget_search *s, const tn_session_plan *p, tn__budget_result *r) {
    tn_budget_choice *c = &r->choice;
    *c = (tn_budget_choice){.n_ctx = p->params.n_ctx,
                            .n_ubatch = p->params.n_ubatch,
                            .ffn_chunk = p->params.ffn_chunk,
                            .cache_k = p->params.cache_k,
                            .cache_v = p->params.cache_v,
                            .n_layers = tn__placement_count(&p->placement),
                            .n_host_experts = TN__MAX(r->combination.host_experts, 0),
                            .fits = p->fits,
                            .missing = p->fits ? 0 : missing_bytes(p)};
    c->bytes = tn_calloc(s->n_devices, sizeof *c->bytes);
    if (!c->bytes) return TN_E_NOMEM;
    for (size_t d = 0; d < s->n_devices; d++)
        c->bytes[d] = tn__device_plan_bytes(&p->devices[d]) + p->devices[d].mapped;
    return predict_combination(s, p, r);
}

/* Whether other parameters may be accepted although these are refused. */
static bool is_refusal(tn_status status) {
    return status == TN_E_TOO_BIG || status == TN_E_TYPE || status == TN_E_SHAPE || status == TN_E_UNSUPPORTED;
}

static tn_status plan_combination(tn__budget_search *s, tn__budget_result *r) {
    tn_session_plan *plan;
    tn_status status = tn__budget_plan(s, &r->combination, &plan);
    s->n_planned++;
    if (status == TN_OK) {
        status = describe_plan(s, plan, r);
        r->possible = status == TN_OK;
        tn_session_plan_free(plan);
    } else if (is_refusal(status)) {
        r->choice.missing = SIZE_MAX;
        status = TN_OK;
    }
    if (status == TN_OK && s->params->progress &&
        !s->params->progress(s->params->user, s->n_planned, TN__MAX(s->expected, s->n_planned)))
        return tn_fail(TN_E_ABORTED, "planning to a budget was cancelled");
    return status;
}

/* ---- Searching the number of layers with experts on the host ---- */

/* Plans with `count` layers' experts on the host and everything else off it. */
static tn_status try_host_experts(tn__budget_search *s, const tn__budget_combination *c, int32_t count,
                                  size_t *index) {
    tn__budget_combination fixed = *c;
    fixed.host_experts = count;
    fixed.n_gpu_layers = s->model->h.n_layer + 1;
    return tn__budget_try(s, &fixed, index);
}

/* The fewest layers that fit. Each layer frees about the same number of bytes, so the first guess is close. */
static tn_status find_host_experts(tn__budget_search *s, const tn__budget_combination *c, size_t *index) {
    int32_t low = -1, high = s->n_expert_layers; /* low does not fit, high does */
    size_t at;
    TN_TRY(try_host_experts(s, c, high, index));
    if (!s->results[*index].choice.fits) return TN_OK;
    const size_t all_host = s->results[*index].choice.bytes[0];
    TN_TRY(try_host_experts(s, c, 0, &at));
    const tn__budget_result *none = &s->results[at];
    if (none->choice.fits || !none->possible) {
        if (none->choice.fits) *index = at;
        return TN_OK;
    }
    low = 0;
    const double each = (double)(none->choice.bytes[0] - TN__MIN(all_host, none->choice.bytes[0])) / high;
    int32_t guess = each > 0 ? (int32_t)((double)none->choice.missing / each) + 1 : high / 2;
    for (int step = 0; high - low > 1; step++) {
        /* Probes around the guess first, then bisects. */
        int32_t middle = step < 3 && guess > low && guess < high ? guess : low + (high - low) / 2;
        TN_TRY(try_host_experts(s, c, middle, &at));
        if (s->results[at].choice.fits) {
            high = middle;
            *index = at;
            guess = middle - 1;
        } else {
            low = middle;
            guess = middle + 1;
        }
    }
    return TN_OK;
}

/* ---- Trying ---- */

static bool same_combination(const tn__budget_combination *a, const tn__budget_combination *b) {
    return a->n_ctx == b->n_ctx && a->n_ubatch == b->n_ubatch && a->ffn_chunk == b->ffn_chunk &&
           a->cache_k == b->cache_k && a->cache_v == b->cache_v && a->n_gpu_layers == b->n_gpu_layers &&
           a->host_experts == b->host_experts;
}

tn_status tn__budget_try(tn__budget_search *s, const tn__budget_combination *c, size_t *index) {
    for (size_t i = 0; i < s->n; i++) {
        if (!same_combination(&s->results[i].combination, c)) continue;
        *index = i;
        return TN_OK;
    }
    if (c->host_experts < 0) return find_host_experts(s, c, index);
    if (s->n == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        tn__budget_result *grown = tn_realloc(s->results, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        s->results = grown;
        s->capacity = capacity;
    }
    tn__budget_result r = {.combination = *c};
    tn_status status = plan_combination(s, &r);
    if (status != TN_OK) {
        tn_free(r.choice.bytes);
        return status;
    }
    *index = s->n;
    s->results[s->n++] = r;
    return TN_OK;
}
