/* --budget: the options, and the search for parameters that fit. */
#include "engine/budget_options.h"

#include "cli/term.h"
#include "engine/speed_cache.h"

#include "tenon/cpu.h"

#include <string.h>

enum { MAX_CACHE_TYPES = 9 };

/* ---- Options ---- */

static int read_budget(const struct args *args, const char *text, size_t length, tn_budget *budget) {
    char *item = args_keep(args, text, length), *equal = item ? strchr(item, '=') : NULL;
    uint64_t bytes;
    if (!item) return fail("out of memory");
    if (!equal || equal == item)
        return fail_usage(args, "--budget takes DEVICE=SIZE, such as cuda0=8G,cpu=4G, not '%s'", item);
    if (!parse_size(equal + 1, &bytes) || bytes == 0 || bytes > SIZE_MAX)
        return fail_usage(args, "--budget %s: '%s' is not a size such as 8G, 512M or 1.5G", item, equal + 1);
    *equal = '\0';
    *budget = (tn_budget){item, (size_t)bytes};
    return EXIT_OK;
}

int read_budgets(const struct args *args, tn_session_params *params) {
    enum { MAX_BUDGETS = 17 };
    const int count = args_repeats(args, "budget");
    if (!count) return EXIT_OK;
    tn_budget *list = args_keep(args, NULL, MAX_BUDGETS * sizeof *list);
    if (!list) return fail("out of memory");
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        for (const char *text = args_text_at(args, "budget", i);;) {
            const size_t length = strcspn(text, ",");
            if (n == MAX_BUDGETS) return fail_usage(args, "--budget: at most %d devices", MAX_BUDGETS);
            int code = read_budget(args, text, length, &list[n++]);
            if (code) return code;
            if (!text[length]) break;
            text += length + 1;
        }
    }
    params->budgets = list;
    params->n_budgets = n;
    return EXIT_OK;
}

static int read_cache_types(const struct args *args, tn_budget_params *budget) {
    tn_type *types = args_keep(args, NULL, MAX_CACHE_TYPES * sizeof *types);
    if (!types) return fail("out of memory");
    for (const char *text = args_text(args, "budget-cache");;) {
        char name[16];
        const size_t length = strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), text);
        if (budget->n_cache_types == MAX_CACHE_TYPES)
            return fail_usage(args, "--budget-cache: at most %d types", MAX_CACHE_TYPES);
        tn_type *type = &types[budget->n_cache_types];
        if (tn_cache_type_parse(name, type) != TN_OK) return fail_usage(args, "--budget-cache: %s", tn_error());
        budget->n_cache_types++;
        if (!text[length]) break;
        text += length + 1;
    }
    budget->cache_types = types;
    return EXIT_OK;
}

int budget_params_from(const struct args *args, tn_budget_params *budget) {
    const char *prefer = args_text(args, "prefer");
    *budget = (tn_budget_params){.prefer = strcmp(prefer, "context") == 0   ? TN_PREFER_CONTEXT
                                           : strcmp(prefer, "quality") == 0 ? TN_PREFER_QUALITY
                                                                            : TN_PREFER_SPEED,
                                 .keep_cache_k = args_given(args, "cache-type-k"),
                                 .keep_cache_v = args_given(args, "cache-type-v") || args_given(args, "cache-type-k"),
                                 .keep_ubatch = args_given(args, "ubatch")};
    return read_cache_types(args, budget);
}

/* ---- Rates ---- */

static bool is_simulated(const tn_device *device) {
    return strncmp(tn_device_description(device), "simulated", 9) == 0;
}

/* Typical of desktops: a device that was never measured still takes part in the comparison. */
static tn_device_speed assumed_speed(const tn_device *device, int n_threads) {
    const bool host = tn_device_get_kind(device) == TN_DEVICE_CPU;
    const double read = host ? 20e9 : 400e9, threads = n_threads > 0 ? n_threads : tn_cpu_count();
    tn_device_rates rates = {.read = read, .f32 = host ? 25e9 * threads : 30e12, .link = 12e9};
    return tn_speed_from_rates(&rates);
}

/* Devices whose rates are assumed during a search. */
struct assumed_devices {
    tn_device *list[17];
    size_t n;
    int n_threads;
};

static int find_rates(tn_device *device, bool measure, struct assumed_devices *assumed) {
    tn_device_speed speed;
    if (tn_device_get_speed(device, assumed->n_threads, &speed) == TN_OK) return EXIT_OK;
    tn_error_clear();
    if (measure && !tn_device_get_caps(device).described && !is_simulated(device))
        return speed_measure(device, assumed->n_threads, 0);
    speed = assumed_speed(device, assumed->n_threads);
    if (assumed->n == sizeof assumed->list / sizeof *assumed->list ||
        tn_device_set_speed(device, assumed->n_threads, &speed) != TN_OK)
        return EXIT_OK; /* the search does without */
    assumed->list[assumed->n++] = device;
    return EXIT_OK;
}

/* Declares the peaks of all devices that the session may use: remembered, measured or assumed ones. Specifications in
 * params become names, because each reading of one makes another device. */
static int declare_rates(tn_session_params *p, bool measure, struct assumed_devices *assumed) {
    tn_device *device;
    speed_cache_load();
    int code = tn_device_find("cpu", &device) == TN_OK ? find_rates(device, measure, assumed) : EXIT_OK;
    for (size_t i = 0; !code && i < sizeof p->devices / sizeof *p->devices && p->devices[i]; i++) {
        tn_status status = tn_device_find(p->devices[i], &device);
        if (status != TN_OK) return fail_status(status, "--device %s", p->devices[i]);
        p->devices[i] = tn_device_name(device);
        code = find_rates(device, measure, assumed);
    }
    for (size_t i = 0; !code && !p->devices[0] && i < tn_device_count(); i++) {
        device = tn_device_get(i);
        if (!is_simulated(device)) code = find_rates(device, measure, assumed);
    }
    return code;
}

static void forget_assumed(const struct assumed_devices *assumed, tn_budget_ladder *ladder) {
    size_t used = 0;
    for (size_t i = 0; i < assumed->n; i++) {
        (void)tn_device_set_speed(assumed->list[i], assumed->n_threads, NULL);
        if (used < sizeof ladder->note)
            used += (size_t)snprintf(ladder->note + used, sizeof ladder->note - used, "%s%s", i ? ", " : "",
                                     tn_device_name(assumed->list[i]));
    }
    if (used && used < sizeof ladder->note)
        snprintf(ladder->note + used, sizeof ladder->note - used,
                 ": rates are assumed, so the speeds are rough; run tenon devices --measure, or state them "
                 "(sim:8G,read=936G,f16=71T)");
}

/* ---- Searching ---- */

int32_t budget_context(const tn_budget_params *budget, int32_t trained) {
    enum { USUAL_CONTEXT = 4096 }; /* a longer one would take the memory that speed or quality needs */
    return budget->prefer == TN_PREFER_CONTEXT || trained < USUAL_CONTEXT ? trained : USUAL_CONTEXT;
}

static bool show_planning(void *user, size_t planned, size_t at_most) {
    struct progress *progress = user;
    progress->total = at_most;
    progress_update(progress, planned);
    return !interrupted();
}

int plan_to_budget(const struct args *args, tn_model *model, const tn_session_params *params,
                   struct budget_search_options how, tn_session_plan **plan, tn_budget_ladder *ladder) {
    tn_session_params p = *params;
    tn_budget_params budget;
    struct progress progress;
    struct assumed_devices assumed = {.n_threads = params->n_threads};
    *plan = NULL;
    memset(ladder, 0, sizeof *ladder);
    int code = budget_params_from(args, &budget);
    if (!code) code = declare_rates(&p, how.measure, &assumed);
    if (!code) {
        if (!p.n_ctx) p.n_ctx = budget_context(&budget, tn_model_get_info(model).n_ctx_train);
        budget.frontier = how.frontier;
        budget.progress = show_planning;
        budget.user = &progress;
        progress_start(&progress, "planning", 1, PROGRESS_ITEMS);
        tn_status status = tn_session_plan_to_budget(model, &p, &budget, plan, ladder);
        progress_end(&progress);
        if (status != TN_OK) code = fail_status(status, "--budget");
    }
    forget_assumed(&assumed, ladder);
    return code;
}
