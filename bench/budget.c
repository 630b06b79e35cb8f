/* Benchmark of planning to a budget: what tn_session_plan_to_budget chooses against the best of all combinations.
 *
 *   build/bin/tenon synth /tmp/8b.gguf --shape 8b --type Q4_K_M
 *   build/bench/budget /tmp/8b.gguf [share=0.9] [all] [run|run-only] [tokens=77] [3G 4G 6G 8G]
 *
 * Every combination of micro-batch, feed-forward chunk and cache types is planned on a simulated device that has just
 * the budget, with no layers there and with as many as fit; with `all`, which takes six times as long, every number
 * of layers. Fails where a choice does not fit, or has less than `share` of the best decode rate (speed, quality) or
 * context (context).
 *
 * With `run` each choice also becomes a session, on a device that is shrunk to just the planned bytes. It decodes a
 * prompt of that many tokens and some single ones. Fails where a byte more or less than planned is taken, on the
 * device or on the host, or where results are not finite. `run-only` leaves out the comparison. The simulated device
 * computes on one core of the CPU and keeps its bytes in host memory; a file made with --no-data cannot run. */
#include "tenon/budget.h"
#include "backend/sim/sim.h"
#include "tenon/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 2048 };
static const double gib = 1 << 30;
/* For the longest context the host has a budget as well: otherwise it holds any cache. */
static const double host_budget = 2.0 * (1 << 30);
static const char rates[] = "read=936G,f16=71T,f32=35T,i8=142T,link=25G";

typedef struct budget_bench {
    const char *path;
    tn_model *model;
    tn_model_info info;
    int32_t n_ctx, n_tokens;
    size_t n_plans, n_runs;
    double share;
    bool all, run, run_only;
    tn_budget_choice ran[3]; /* of this budget; their bytes are freed */
    size_t n_ran;
} budget_bench;

static int complain(const char *what) {
    fprintf(stderr, "budget: %s: %s\n", what, tn_error());
    return 1;
}

/* The same figures on every machine. */
static tn_status declare_host(void) {
    tn_device *cpu;
    tn_device_rates given = {.read = 40e9, .f32 = 400e9, .launch = 2e-6};
    tn_device_speed s = tn_speed_from_rates(&given);
    TN_TRY(tn_device_find("cpu", &cpu));
    return tn_device_set_speed(cpu, 0, &s);
}

/* ---- All combinations ---- */

static const int32_t all_ubatches[] = {512, 256, 128, 64, 32}, all_chunks[] = {0, 128};
static const tn_type all_pairs[][2] = {{TN_F16, TN_F16}, {TN_Q8_0, TN_Q8_0}, {TN_Q8_0, TN_Q4_0}, {TN_Q4_0, TN_Q4_0}};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Decode rate with half of the context filled; 0: it does not fit. A budget of the host includes mapped weights. */
static tn_status rate_of(budget_bench *b, const tn_session_params *p, double host, bool *fits, double *rate) {
    tn_session_plan *plan;
    tn_fit fit = {0};
    tn_session_speed speed;
    *rate = 0;
    b->n_plans++;
    TN_TRY(tn_session_plan_new(b->model, p, &plan));
    tn_status status = tn_session_plan_fit(plan, &fit);
    *fits = fit.fits;
    if (status == TN_OK && fit.fits) {
        const tn_fit_device *d = &fit.devices[fit.n_devices - 1];
        if ((double)(d->weights + d->mapped + d->cache + d->compute + d->scratch + d->staging) <= host) {
            status = tn_session_plan_predict(plan, &(tn_session_speed_params){.depth = p->n_ctx / 2}, &speed);
            if (status == TN_OK) *rate = speed.decode;
        }
    }
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return status;
}

/* The best rate of any number of layers; with `any`, that of the first number that fits. */
static tn_status best_of_layers(budget_bench *b, tn_session_params p, double host, bool any, double *best) {
    const int32_t most = b->info.n_layer + 1;
    int32_t low = 0, high = most + 1;
    double rate;
    bool fits;
    *best = 0;
    for (p.n_gpu_layers = 0; p.n_gpu_layers <= (b->all ? most : 0); p.n_gpu_layers++) {
        TN_TRY(rate_of(b, &p, host, &fits, &rate));
        *best = fmax(*best, rate);
    }
    while (!b->all && high - low > 1 && !(any && *best > 0)) {
        p.n_gpu_layers = high > most ? most : low + (high - low) / 2;
        TN_TRY(rate_of(b, &p, host, &fits, &rate));
        *best = fmax(*best, rate);
        *(fits ? &low : &high) = p.n_gpu_layers;
    }
    return TN_OK;
}

/* Raises *longest to the longest context of these parameters, in steps of 256. */
static tn_status raise_context(budget_bench *b, tn_session_params p, double host, int32_t *longest) {
    int32_t low = *longest / 256, high = b->info.n_ctx_train / 256 + 1;
    for (int32_t next = low + 1; next < high; next = low + (high - low) / 2) {
        double rate;
        p.n_ctx = next * 256;
        TN_TRY(best_of_layers(b, p, host, true, &rate));
        if (rate > 0)
            low = next;
        else
            high = next;
        if (high - low < 2) break;
    }
    if (low * 256 > *longest) *longest = low * 256;
    return TN_OK;
}

static tn_status best_of_all(budget_bench *b, const char *device, tn_prefer prefer, double *best) {
    tn_session_params p = tn_session_params_default();
    const double host = prefer == TN_PREFER_CONTEXT ? host_budget : INFINITY;
    int32_t longest = 0;
    p.devices[0] = device;
    p.n_ctx = b->n_ctx;
    *best = 0;
    for (size_t pair = 0; pair < COUNT(all_pairs) - (prefer == TN_PREFER_QUALITY ? 2 : 0); pair++)
        for (size_t u = 0; u < COUNT(all_ubatches); u++)
            for (size_t c = 0; c < COUNT(all_chunks); c++) {
                double rate = 0;
                p.cache_k = all_pairs[pair][0];
                p.cache_v = all_pairs[pair][1];
                p.n_ubatch = all_ubatches[u];
                p.ffn_chunk = all_chunks[c];
                if (p.ffn_chunk >= p.n_ubatch) continue;
                if (prefer == TN_PREFER_CONTEXT)
                    TN_TRY(raise_context(b, p, host, &longest));
                else
                    TN_TRY(best_of_layers(b, p, host, false, &rate));
                *best = fmax(*best, rate);
            }
    if (prefer == TN_PREFER_CONTEXT) *best = longest;
    return TN_OK;
}

/* ---- Running a choice ---- */

static size_t device_total(const tn_fit_device *d) {
    return d->weights + d->cache + d->compute + d->scratch + d->staging + d->own;
}

/* What the session has taken must be what the choice says, on every device. */
static int check_taken(const tn_session *session, const tn_budget_choice *c, tn_device *device) {
    tn_fit taken = {0};
    size_t free_bytes, total;
    int wrong = 0;
    if (tn_session_memory(session, &taken) != TN_OK || tn_device_memory(device, &free_bytes, &total) != TN_OK)
        return complain("memory");
    for (size_t d = 0; d < taken.n_devices; d++) {
        const size_t bytes = device_total(&taken.devices[d]) + taken.devices[d].mapped;
        if (bytes == c->bytes[d]) continue;
        printf("%s: %zu bytes planned, %zu taken\n", taken.devices[d].name, c->bytes[d], bytes);
        wrong = 1;
    }
    if (total != c->bytes[0] || free_bytes) {
        printf("%zu of %zu bytes of the device are free, but none should be\n", free_bytes, total);
        wrong = 1;
    }
    tn_fit_free(&taken);
    return wrong;
}

/* A prompt and three single tokens. tn_session_decode fails where logits are not finite. */
static tn_status decode_some(tn_session *session, int32_t n_prompt, int32_t n_vocab) {
    tn_token tokens[MAX_PROMPT];
    for (int32_t i = 0; i < n_prompt; i++) tokens[i] = (tn_token)((300 + 7919 * i) % n_vocab);
    TN_TRY(tn_session_decode(session, &(tn_batch){.n_tokens = n_prompt, .tokens = tokens}));
    for (int i = 0; i < 3; i++) {
        tn_token next = tn_session_argmax(session, -1);
        TN_TRY(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = &next}));
    }
    return TN_OK;
}

static bool same_choice(const tn_budget_choice *a, const tn_budget_choice *b) {
    return a->n_ctx == b->n_ctx && a->n_ubatch == b->n_ubatch && a->ffn_chunk == b->ffn_chunk &&
           a->cache_k == b->cache_k && a->cache_v == b->cache_v && a->n_layers == b->n_layers;
}

/* The device has just the planned bytes from here on. */
static int run_choice(budget_bench *b, tn_session_plan *plan, const tn_budget_choice *c, tn_device *device) {
    tn_device *cpu;
    size_t free_bytes, total;
    tn_session *session;
    for (size_t i = 0; i < b->n_ran; i++)
        if (same_choice(c, &b->ran[i])) return 0;
    if (tn_device_find("cpu", &cpu) != TN_OK || tn_device_memory(cpu, &free_bytes, &total) != TN_OK)
        return complain("cpu");
    if ((double)free_bytes < (double)c->bytes[0] + gib) {
        printf("the host has %.1f GiB free: too little to imitate a device of %.1f GiB\n", (double)free_bytes / gib,
               (double)c->bytes[0] / gib);
        return 1;
    }
    tn__sim_resize(device->impl, c->bytes[0], 0);
    const uint64_t began = tn_time_ns();
    if (tn_session_new(plan, &session) != TN_OK) return complain("session");
    int wrong = check_taken(session, c, device);
    if (decode_some(session, b->n_tokens, b->info.n_vocab) != TN_OK) wrong |= complain("decode");
    wrong |= check_taken(session, c, device);
    tn_session_free(session);
    printf("         ran on a device of %zu bytes, %d tokens and 3 more, %.1f s%s\n", c->bytes[0], b->n_tokens,
           (double)(tn_time_ns() - began) * 1e-9, wrong ? ": WRONG" : "");
    b->n_runs++;
    b->ran[b->n_ran++] = *c;
    return wrong;
}

/* ---- One budget ---- */

static const char *const prefer_names[] = {"speed", "context", "quality"};

/* Prints a choice beside the best of all combinations. */
static int report_choice(budget_bench *b, double budget, tn_prefer prefer, const tn_budget_ladder *ladder,
                         double seconds, double best) {
    char text[96];
    const tn_budget_choice *c = &ladder->choices[0];
    const double got = prefer == TN_PREFER_CONTEXT ? c->n_ctx : c->decode;
    const bool fits = c->fits && (double)c->bytes[0] <= budget;
    const bool low_type = c->cache_k == TN_Q4_0 || c->cache_v == TN_Q4_0;
    const bool good =
        fits && (b->run_only || (got >= b->share * best && !(prefer == TN_PREFER_QUALITY && low_type && best > 0)));
    snprintf(text, sizeof text, "ctx %d, ub %d/%d, %s/%s, %d layers", c->n_ctx, c->n_ubatch, c->ffn_chunk,
             tn_type_name(c->cache_k), tn_type_name(c->cache_v), c->n_layers);
    printf("%4.1f GiB %-8s %-44s %9.2f of %9.2f, %5.1f%%; %2zu plans in %.2f s, all: %zu %s\n", budget / gib,
           prefer_names[prefer], text, got, best, best > 0 ? 100 * got / best : 0, ladder->n_planned, seconds,
           b->n_plans,
           good   ? ""
           : fits ? "TOO LOW"
                  : "DOES NOT FIT");
    fflush(stdout);
    return good ? 0 : 1;
}

static int compare(budget_bench *b, tn_model *model, double budget, tn_prefer prefer) {
    char spec[128], brute[128];
    static int number;
    snprintf(spec, sizeof spec, "sim:64G,%s,name=chosen%d", rates, ++number);
    snprintf(brute, sizeof brute, "sim:%.0f,%s,name=all%d", budget, rates, number);
    tn_device *device, *all;
    if (tn_device_find(spec, &device) != TN_OK || tn_device_find(brute, &all) != TN_OK) return complain(spec);
    snprintf(spec, sizeof spec, "chosen%d", number);
    const tn_budget budgets[] = {{spec, (size_t)budget}, {"cpu", (size_t)host_budget}};
    tn_session_params p = tn_session_params_default();
    p.devices[0] = spec;
    p.n_ctx = prefer == TN_PREFER_CONTEXT ? 0 : b->n_ctx;
    p.budgets = budgets;
    p.n_budgets = prefer == TN_PREFER_CONTEXT ? 2 : 1;
    tn_session_plan *plan;
    tn_budget_ladder ladder;
    const uint64_t began = tn_time_ns();
    if (tn_session_plan_to_budget(model, &p, &(tn_budget_params){.prefer = prefer}, &plan, &ladder) != TN_OK)
        return complain("plan");
    const double seconds = (double)(tn_time_ns() - began) * 1e-9;
    double best = 0;
    int bad = 0;
    b->n_plans = 0;
    if (!b->run_only && best_of_all(b, tn_device_name(all), prefer, &best) != TN_OK)
        bad = complain("all combinations");
    if (!bad) bad = report_choice(b, budget, prefer, &ladder, seconds, best);
    if (!bad && b->run) bad = run_choice(b, plan, &ladder.choices[0], device);
    fflush(stdout);
    tn_budget_ladder_free(&ladder);
    tn_session_plan_free(plan);
    return bad;
}

/* A model whose weights were loaded cannot be planned anew: every choice has a model of its own. */
static int compare_with_model(budget_bench *b, double budget, tn_prefer prefer) {
    tn_model *model;
    if (tn_model_open(b->path, NULL, &model) != TN_OK) return complain(b->path);
    const int bad = compare(b, model, budget, prefer);
    tn_model_close(model);
    return bad;
}

int main(int argc, char **argv) {
    budget_bench b = {.n_ctx = 4096, .n_tokens = 77, .share = 0.9};
    double budgets[16] = {3, 4, 6, 8};
    size_t n = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: budget MODEL [share=0.9] [all] [run|run-only] [tokens=77] [3G 4G 6G 8G]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], "share=", 6) == 0)
            b.share = atof(argv[i] + 6);
        else if (strcmp(argv[i], "all") == 0)
            b.all = true;
        else if (strcmp(argv[i], "run") == 0)
            b.run = true;
        else if (strcmp(argv[i], "run-only") == 0)
            b.run = b.run_only = true;
        else if (strncmp(argv[i], "tokens=", 7) == 0)
            b.n_tokens = atoi(argv[i] + 7);
        else if (n < COUNT(budgets))
            budgets[n++] = atof(argv[i]);
    if (!n) n = 4;
    if (b.n_tokens < 1 || b.n_tokens > MAX_PROMPT) b.n_tokens = MAX_PROMPT;
    b.path = argv[1];
    if (declare_host() != TN_OK || tn_model_open(argv[1], NULL, &b.model) != TN_OK) return complain(argv[1]);
    b.info = tn_model_get_info(b.model);
    int failures = 0;
    for (size_t i = 0; i < n; i++, b.n_ran = 0)
        for (int prefer = 0; prefer < 3; prefer++)
            failures += compare_with_model(&b, budgets[i] * gib, (tn_prefer)prefer);
    tn_model_close(b.model);
    printf("%zu of %zu", 3 * n - (size_t)failures, 3 * n);
    if (!b.run_only) printf(" within %.0f%%", 100 * b.share);
    if (b.run) printf(", %zu sessions ran in the planned bytes", b.n_runs);
    printf("\n");
    return failures != 0;
}
