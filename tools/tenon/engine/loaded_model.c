/* Opening a model, planning its memory and making a session; what the session then takes. */
#include "engine/loaded_model.h"

#include "cli/term.h"
#include "engine/budget_options.h"
#include "engine/load_options.h"
#include "engine/options.h"
#include "engine/speed_cache.h"
#include "ranks/ranks.h"

#include "tenon/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Opening ---- */

void warn_long_context(const struct args *args, const tn_model *model, const tn_session_params *p) {
    const int32_t trained = tn_model_get_info(model).n_ctx_train;
    if (args_given(args, "ctx") && trained > 0 && p->n_ctx > trained)
        warn("the context of %d tokens is longer than the %d that the model was trained with", p->n_ctx, trained);
}

const char *describe_open_context(int32_t n_ctx, int32_t trained, char *text, size_t size) {
    char of[64] = "";
    if (n_ctx < trained) snprintf(of, sizeof of, " of the %d that the model was trained with", trained);
    snprintf(text, size, "%s%s; -c sets another", n_ctx < trained ? "what fits" : "as trained", of);
    return text;
}

static bool show_load_progress(void *user, size_t done, size_t total) {
    struct progress *progress = user;
    if (!progress->total) progress_start(progress, "loading", total, PROGRESS_BYTES);
    progress_update(progress, done);
    return !interrupted();
}

static size_t total_bytes(const tn_fit *fit) {
    size_t bytes = 0;
    for (size_t i = 0; i < fit->n_devices; i++) bytes += device_bytes(&fit->devices[i]);
    return bytes;
}

struct domain_use domain_use(const tn_fit *fit, size_t first) {
    struct domain_use use = {0};
    for (size_t i = first; i < fit->n_devices; i++) {
        const tn_fit_device *d = &fit->devices[i];
        if (d->domain != first) continue;
        use.bytes += device_bytes(d);
        use.mapped += d->mapped;
        use.n_devices++;
    }
    return use;
}

void print_domains(const tn_fit *fit, const char *indent, FILE *out) {
    for (size_t first = 0; first < fit->n_devices; first++) {
        const struct domain_use use = domain_use(fit, first);
        const tn_fit_device *f = &fit->devices[first];
        char needed[HUMAN_SIZE], available[HUMAN_SIZE];
        if (!f->reported)
            fprintf(out, "%s%s does not report its memory: that of %s is assumed.\n", indent, f->name,
                    f->domain == first ? "the host" : fit->devices[f->domain].name);
        if (use.n_devices < 2) continue;
        fputs(indent, out);
        for (size_t i = first, n = 0; i < fit->n_devices; i++)
            if (fit->devices[i].domain == first) fprintf(out, "%s%s", n++ ? " and " : "", fit->devices[i].name);
        fprintf(out, " share one memory: %s (%zu bytes) needed, %s available.\n", human_bytes(needed, use.bytes),
                use.bytes, human_bytes(available, f->domain_free));
    }
}

/* Names every device that lacks memory, with the parts that need it, and what to change. */
static int fail_too_big(const char *path, tn_session_plan *plan, const tn_fit *fit) {
    fail("%s: the session does not fit", path);
    for (size_t i = 0; i < fit->n_devices; i++) {
        const tn_fit_device *d = &fit->devices[i];
        size_t bytes = device_bytes(d);
        char needed[HUMAN_SIZE], available[HUMAN_SIZE], weights[HUMAN_SIZE], cache[HUMAN_SIZE], compute[HUMAN_SIZE];
        if (bytes > d->free)
            fprintf(stderr, "  %s needs %s (%zu bytes) and has %s (%zu): weights %s, cache %s, the rest %s\n",
                    d->name, human_bytes(needed, bytes), bytes, human_bytes(available, d->free), d->free,
                    human_bytes(weights, d->weights), human_bytes(cache, d->cache),
                    human_bytes(compute, bytes - d->weights - d->cache));
        if (d->mapped > d->total)
            fprintf(stderr, "  the file (%s) is larger than the memory of %s (%s)\n", human_bytes(needed, d->mapped),
                    d->name, human_bytes(available, d->total));
    }
    print_domains(fit, "  ", stderr);
    fprintf(stderr, "To make it fit: %s.\n", tn_session_plan_advice(plan));
    return EXIT_ERROR;
}

tn_status session_plan_make(tn_model *model, const tn_session_params *params, bool use_cache,
                            tn_session_plan **plan) {
    char folder[4096];
    if (!use_cache || tn_model_ranks(model) > 1 || !user_cache_path("plans", folder, sizeof folder))
        return tn_session_plan_new(model, params, plan);
    const char *least = getenv("TENON_PLAN_CACHE_MS");
    tn_plan_cache cache = {.folder = folder};
    if (least) {
        cache.min_ms = (int32_t)strtol(least, NULL, 10);
        if (cache.min_ms == 0) cache.min_ms = -1; /* every plan */
    }
    return tn_session_plan_cached(model, params, &cache, plan);
}

tn_status session_plan_from(const struct args *args, tn_model *model, const tn_session_params *params,
                            tn_session_plan **plan) {
    const char *saved = args_text(args, "plan");
    return saved ? tn_session_plan_load(model, params, saved, plan)
                 : session_plan_make(model, params, args_flag(args, "plan-cache"), plan);
}

/* With --budget the parameters are chosen, and a line says which. */
static int plan_session(const struct args *args, const char *path, tn_model *model, const tn_session_params *params,
                        tn_session_plan **plan) {
    if (!params->n_budgets || args_text(args, "plan")) {
        tn_status status = session_plan_from(args, model, params, plan);
        return status == TN_OK ? EXIT_OK : fail_status(status, "%s", path);
    }
    tn_budget_ladder ladder;
    int code = plan_to_budget(args, model, params, (struct budget_search_options){0}, plan, &ladder);
    if (code) return code;
    char text[256];
    describe_choice(&ladder.choices[0], text, sizeof text);
    print_budget_notes(&ladder);
    if (ladder.choices[0].fits) fprintf(stderr, "Chosen for the budget: %s\n", text);
    tn_budget_ladder_free(&ladder);
    return EXIT_OK;
}

/* Planned bytes are kept, to be compared with those in use. */
static int plan_and_make(const struct args *args, const char *path, const tn_session_params *params,
                         struct loaded_model *loaded) {
    tn_session_plan *plan;
    tn_fit fit = {0};
    int code = plan_session(args, path, loaded->model, params, &plan);
    if (code) return code;
    tn_status status = tn_session_plan_fit(plan, &fit);
    loaded->planned_bytes = total_bytes(&fit);
    if (status == TN_OK && !fit.fits && !loaded->net) /* ranks say together what each of them needs */
        code = fail_too_big(path, plan, &fit);
    else if (status == TN_OK) {
        if (*tn_session_plan_warning(plan)) tn_log(TN_LOG_WARN, "%s: %s", path, tn_session_plan_warning(plan));
        status = tn_session_new(plan, &loaded->session);
    }
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return status == TN_OK ? code : fail_status(status, "%s", path);
}

void advise_download(const char *path) {
    static const char *const hosts[] = {"https://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/"};
    const size_t length = strlen(path);
    if (access(path, F_OK) == 0 || (length > 5 && strcmp(path + length - 5, ".gguf") == 0)) return;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (strncmp(path, hosts[i], strlen(hosts[i])) == 0) {
            path += strlen(hosts[i]);
            break;
        }
    const char *slash = strchr(path, '/');
    if (slash && (slash == path || path[0] == '.' || path[0] == '~' || strchr(slash + 1, '/'))) return;
    if (slash)
        fprintf(stderr, "To download it from Hugging Face: -hf %s\n", path);
    else
        fprintf(stderr,
                "A model is a GGUF file; tenon pull OWNER/REPO downloads one, tenon pull --list lists them.\n");
}

int loaded_model_open(const struct args *args, const char *path, const tn_session_params *params,
                      struct loaded_model *loaded) {
    *loaded = (struct loaded_model){0};
    uint64_t began = tn_time_ns();
    tn_model_params model_params = model_params_from(args);
    tn_threadpool_params thread_params;
    int code = thread_params_from(args, &thread_params);
    if (code || (code = ranks_join(args, &loaded->net))) return code;
    tn_session_params p = *params;
    if (loaded->net || ranks_split_devices(args)) speed_cache_load();
    ranks_threads(args, loaded->net, &thread_params);
    apply_memory_policy(args);
    tn_status status = tn_threadpool_new(&thread_params, &loaded->threads);
    if (status == TN_OK && !loaded->net) {
        p.n_threads = tn_threadpool_size(loaded->threads);
        code = device_ranks_start(args, path, &model_params, &p, &loaded->devices, &loaded->net);
    }
    model_params.net = loaded->net;
    if (status == TN_OK && !code && loaded->net && !loaded->devices) {
        ranks_divide(args, tn_net_size(loaded->net), &p, &model_params);
        status = ranks_balance(loaded->net, path, &p, tn_threadpool_size(loaded->threads), &model_params);
    }
    if (status == TN_OK && !code) status = tn_model_open(path, &model_params, &loaded->model);
    if (status != TN_OK || code) {
        if (!code) {
            code = fail_status(status, "%s", "");
            advise_download(path);
        }
        loaded_model_close(loaded);
        return code;
    }
    const bool follows = tn_net_rank(loaded->net) > 0;
    struct progress progress = {0};
    p.progress = follows ? NULL : show_load_progress;
    p.user = &progress;
    p.threads = loaded->threads;
    p.n_threads = tn_threadpool_size(loaded->threads);
    if (!follows) warn_long_context(args, loaded->model, &p);
    status = adapters_open(args, loaded->model, &p, &loaded->adapters);
    code = status == TN_OK ? plan_and_make(args, path, &p, loaded) : fail_status(status, "%s", "");
    if (progress.total) progress_end(&progress);
    if (!code && follows) ranks_follow(loaded->net, loaded->session, loaded->model);
    const tn_model_info info = tn_model_get_info(loaded->model);
    if (!code && !p.n_ctx && !p.n_budgets && !info.is_encoder) {
        const int32_t n_ctx = tn_session_get_params(loaded->session).n_ctx;
        char why[128];
        fprintf(stderr, "%sContext of %d tokens: %s%s\n", style(stderr, STYLE_DIM), n_ctx,
                describe_open_context(n_ctx, info.n_ctx_train, why, sizeof why), style(stderr, STYLE_NONE));
    }
    if (code)
        loaded_model_close(loaded);
    else
        lock_memory(args);
    if (!code) log_session(path, loaded->model, loaded->session, began);
    return code;
}

void loaded_model_close(struct loaded_model *loaded) {
    if (!loaded->session) ranks_fail(loaded->net);
    tn_session_free(loaded->session);
    adapters_close(&loaded->adapters);
    tn_model_close(loaded->model);
    if (loaded->devices)
        device_ranks_end(loaded->devices);
    else
        ranks_leave(loaded->net);
    tn_threadpool_free(loaded->threads);
    *loaded = (struct loaded_model){0};
}

int load_tokenizer(const char *path, bool allow_unknown_pre, tn_tokenizer **out) {
    tn_gguf *file = NULL;
    tn_status status = tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file);
    if (status != TN_OK) return fail_status(status, "vocabulary");
    status = tn_tokenizer_new(file, &(tn_tokenizer_params){.allow_unknown_pre = allow_unknown_pre}, out);
    tn_gguf_close(file);
    return status == TN_OK ? EXIT_OK : fail_status(status, "vocabulary");
}

/* ---- Running ---- */

size_t prompt_chunk(const tn_session *session, size_t last, uint64_t last_ns) {
    enum { FIRST = 64 };
    static const uint64_t short_ns = UINT64_C(3000000000), long_ns = UINT64_C(10000000000);
    size_t max = (size_t)tn_session_get_params(session).n_ubatch, chunk = last ? last : FIRST;
    if (last && last_ns < short_ns) chunk = 4 * last;
    if (last_ns > long_ns && last > FIRST) chunk = last / 2;
    return chunk < max ? chunk : max;
}

/* ---- What was loaded and used ---- */

void log_session(const char *path, const tn_model *model, const tn_session *session, uint64_t began_ns) {
    tn_model_info i = tn_model_get_info(model);
    tn_session_params p = tn_session_get_params(session);
    tn_fit fit;
    char a[HUMAN_SIZE], b[HUMAN_SIZE], c[HUMAN_SIZE], d[HUMAN_SIZE], e[HUMAN_SIZE], cache[CACHE_TYPES_TEXT];
    tn_log(TN_LOG_INFO, "%s: %s, %s parameters in %s, ready after %.2f s", path, i.architecture,
           human_count(a, (double)i.n_params), human_bytes(b, i.bytes), (double)(tn_time_ns() - began_ns) / 1e9);
    tn_log(TN_LOG_INFO, "%s, %s kernels, %d threads", tn_cpu_name(), tn_cpu_level(),
           p.n_threads > 0 ? p.n_threads : tn_cpu_count());
    tn_log(TN_LOG_INFO, "context %d, batch %d, micro-batch %d, %d sequence%s, cache %s%s", p.n_ctx, p.n_batch,
           p.n_ubatch, p.n_seqs, p.n_seqs == 1 ? "" : "s", cache_types_text(&p, cache),
           p.repeatable ? ", repeatable" : "");
    if (tn_session_memory(session, &fit) != TN_OK) return;
    for (size_t n = 0; n < fit.n_devices; n++) {
        const tn_fit_device *f = &fit.devices[n];
        tn_log(TN_LOG_INFO, "%s: %d layers, weights %s and %s mapped, cache %s, compute %s, scratch %s", f->name,
               f->n_layers, human_bytes(a, f->weights), human_bytes(b, f->mapped), human_bytes(c, f->cache),
               human_bytes(d, f->compute), human_bytes(e, f->scratch));
    }
    tn_log(TN_LOG_INFO, "graphs: prefill %zu nodes in %zu split%s, decode %zu in %zu", fit.nodes_prefill,
           fit.splits_prefill, fit.splits_prefill == 1 ? "" : "s", fit.nodes_decode, fit.splits_decode);
    tn_fit_free(&fit);
}

bool loaded_model_memory(const struct loaded_model *loaded, struct memory_use *use) {
    tn_fit fit;
    tn_status status = tn_session_memory(loaded->session, &fit);
    if (status != TN_OK) {
        fail_status(status, "memory");
        return false;
    }
    *use = (struct memory_use){.planned = loaded->planned_bytes, .used = total_bytes(&fit)};
    for (size_t i = 0; i < fit.n_devices; i++) use->mapped += fit.devices[i].mapped;
    tn_fit_free(&fit);
    return true;
}

void print_closing_line(const struct loaded_model *loaded, const tn_speculator *speculator) {
    tn_session_stats s = tn_session_get_stats(loaded->session);
    double prompt = s.prompt_ns ? (double)s.prompt_tokens * 1e9 / (double)s.prompt_ns : 0;
    double generated = s.generated_ns ? (double)s.generated_tokens * 1e9 / (double)s.generated_ns : 0;
    char p[HUMAN_SIZE], u[HUMAN_SIZE], w[HUMAN_SIZE];
    struct memory_use m;
    if (!loaded_model_memory(loaded, &m)) return;
    progress_hide();
    fprintf(stderr, "%s%llu tokens, prompt %.1f tokens/s, generation %.1f tokens/s, memory planned %s %s used %s",
            style(stderr, STYLE_DIM), (unsigned long long)(s.prompt_tokens + s.generated_tokens), prompt, generated,
            human_bytes(p, m.planned), m.planned == m.used ? "=" : "but", human_bytes(u, m.used));
    if (m.mapped) fprintf(stderr, " (and %s of weights mapped)", human_bytes(w, m.mapped));
    const tn_spec_stats guesses = tn_speculator_stats(speculator);
    if (guesses.steps)
        fprintf(stderr, "; guessed %llu tokens, %.0f%% right, %.2f tokens per step",
                (unsigned long long)guesses.guessed,
                guesses.guessed ? 100.0 * (double)guesses.accepted / (double)guesses.guessed : 0,
                (double)(guesses.steps + guesses.accepted) / (double)guesses.steps);
    fprintf(stderr, "%s\n", style(stderr, STYLE_NONE));
}
