/* tenon plan: the memory that a model needs on each device, and whether it fits. */
#include "cli/json_output.h"
#include "cli/term.h"
#include "engine/budget_options.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/serving_params.h"
#include "engine/speed_report.h"
#include "files/metadata_text.h"
#include "files/output_file.h"
#include "ranks/nodes.h"
#include "ranks/rank_plans.h"
#include "speculate/speculation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_TOO_BIG = 3, SERVE_SLOTS = 4 /* the default of tenon serve */ };

struct plan_subject {
    const char *path;
    bool force; /* outputs replace existing files */
    tn_model *model;
    struct opened_adapters adapters;
    tn_model_info info;
    tn_session_params params;
    bool context_open; /* left to the plan */
    tn_session_plan *plan;
    tn_fit fit;
    tn_budget_ladder ladder; /* of --budget; else empty */
    struct rank_plans ranks; /* the subject is rank 0 of them */
};

static double bound_gap(const tn_fit_device *d) {
    return d->lower_bound ? 100.0 * ((double)d->compute / (double)d->lower_bound - 1) : 0;
}

/* ---- Text ---- */

static void print_heading(const struct plan_subject *s, FILE *out) {
    char size[HUMAN_SIZE], count[HUMAN_SIZE];
    fprintf(out, "%s: %s, %s parameters, %s, %d layers\n", s->path, s->info.architecture,
            human_count(count, (double)s->info.n_params), human_bytes(size, s->info.bytes), s->info.n_layer);
    fprintf(out, "context %d", s->params.n_ctx);
    char cache[CACHE_TYPES_TEXT], why[128];
    if (s->params.n_ctx > s->info.n_ctx_train) fprintf(out, " (the model was trained with %d)", s->info.n_ctx_train);
    if (s->context_open)
        fprintf(out, " (%s)", describe_open_context(s->params.n_ctx, s->info.n_ctx_train, why, sizeof why));
    fprintf(out, ", batch %d, micro-batch %d, %d sequence%s, cache %s%s\n\n", s->params.n_batch, s->params.n_ubatch,
            s->params.n_seqs, s->params.n_seqs == 1 ? "" : "s", cache_types_text(&s->params, cache),
            s->params.repeatable ? ", repeatable" : "");
}

static void print_table(const struct plan_subject *s, FILE *out) {
    enum { COLUMNS = 11, MAPPED = 3, STAGING = 7, OWN = 8, AVAILABLE = 10 };
    static const char *const titles[COLUMNS] = {"device",  "layers",  "weights", "mapped", "cache",    "compute",
                                                "scratch", "staging", "own",     "needed", "available"};
    char cells[17][COLUMNS][HUMAN_SIZE + 32];
    size_t widths[COLUMNS];
    bool mapped = false, own = false;
    for (size_t c = 0; c < COLUMNS; c++) widths[c] = strlen(titles[c]);
    for (size_t d = 0; d < s->fit.n_devices && d < 17; d++) {
        const tn_fit_device *f = &s->fit.devices[d];
        snprintf(cells[d][0], sizeof cells[d][0], "%.40s", f->name);
        snprintf(cells[d][1], sizeof cells[d][1], "%d", f->n_layers);
        const size_t bytes[] = {
            f->weights + f->adapters, f->mapped, f->cache, f->compute, f->scratch, f->staging, f->own,
            device_bytes(f),          f->free};
        for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) human_bytes(cells[d][i + 2], bytes[i]);
        if (f->domain != d && f->free == f->domain_free) snprintf(cells[d][AVAILABLE], sizeof cells[d][0], "shared");
        for (size_t c = 0; c < COLUMNS; c++)
            if (strlen(cells[d][c]) > widths[c]) widths[c] = strlen(cells[d][c]);
        mapped = mapped || f->mapped;
        own = own || f->own;
    }
    for (size_t row = 0; row <= s->fit.n_devices && row <= 17; row++) {
        for (size_t c = 0; c < COLUMNS; c++) {
            if ((c == MAPPED && !mapped) || (c == OWN && !own)) continue; /* no device has any */
            const char *text = row ? cells[row - 1][c] : titles[c];
            const char *on = row ? "" : style(out, STYLE_BOLD);
            fprintf(out, "%s%*s%s", on, c ? (int)widths[c] + 2 : -(int)widths[c], text,
                    row ? "" : style(out, STYLE_NONE));
        }
        fputc('\n', out);
    }
    print_domains(&s->fit, "", out);
    if (mapped) fputs("\nMapped weights are read from the file as needed and take no memory of their own.\n", out);
}

static void print_graphs(const struct plan_subject *s, FILE *out) {
    fputc('\n', out);
    for (size_t d = 0; d < s->fit.n_devices; d++) {
        const tn_fit_device *f = &s->fit.devices[d];
        char compute[HUMAN_SIZE], bound[HUMAN_SIZE];
        if (!f->compute) continue;
        fprintf(out, "compute on %s: %s, lower bound %s, gap %.2f%%", f->name, human_bytes(compute, f->compute),
                human_bytes(bound, f->lower_bound), bound_gap(f));
        if (f->in_order > f->compute)
            fprintf(out, "; in-order best fit %s (%.1f%% more)", human_bytes(bound, f->in_order),
                    100.0 * ((double)f->in_order / (double)f->compute - 1));
        fputc('\n', out);
    }
    fprintf(out, "graphs: prefill %zu nodes in %zu split%s, decode %zu in %zu\n", s->fit.nodes_prefill,
            s->fit.splits_prefill, s->fit.splits_prefill == 1 ? "" : "s", s->fit.nodes_decode, s->fit.splits_decode);
}

static void print_checkpoints(const struct plan_subject *s, FILE *out) {
    const tn_checkpoint_plan c = tn_session_plan_checkpoints(s->plan);
    char one[HUMAN_SIZE], all[HUMAN_SIZE];
    if (!c.n) return;
    fprintf(out, "checkpoints: %d of %s each, up to %s of the cache", c.n, human_bytes(one, c.states + c.window),
            human_bytes(all, (size_t)c.n * (c.states + c.window)));
    if (c.every)
        fprintf(out, "; every %d tokens and at the ends of messages\n", c.every);
    else
        fputs("; at the ends of messages\n", out);
}

static void print_verdict(const struct plan_subject *s, FILE *out) {
    if (s->fit.fits && !rank_plans_fit(&s->ranks, NULL)) {
        fprintf(out, "\n%sIt does not fit.%s ", style(out, STYLE_RED), style(out, STYLE_NONE));
        rank_plans_fit(&s->ranks, out);
        return;
    }
    if (s->fit.fits) {
        fprintf(out, "\n%sIt fits.%s\n", style(out, STYLE_GREEN), style(out, STYLE_NONE));
        const char *warning = tn_session_plan_warning(s->plan);
        if (*warning) fprintf(out, "%sSlow:%s %s.\n", style(out, STYLE_RED), style(out, STYLE_NONE), warning);
        return;
    }
    fprintf(out, "\n%sIt does not fit.%s", style(out, STYLE_RED), style(out, STYLE_NONE));
    for (size_t d = 0; d < s->fit.n_devices; d++) {
        const tn_fit_device *f = &s->fit.devices[d];
        const struct domain_use use = domain_use(&s->fit, d);
        char missing[HUMAN_SIZE];
        if (use.n_devices > 1 && use.bytes > f->domain_free)
            fprintf(out, " The memory of %s lacks %s (%zu bytes).", f->name,
                    human_bytes(missing, use.bytes - f->domain_free), use.bytes - f->domain_free);
        else if (device_bytes(f) > f->free)
            fprintf(out, " %s lacks %s (%zu bytes).", f->name, human_bytes(missing, device_bytes(f) - f->free),
                    device_bytes(f) - f->free);
        if (f->mapped > f->total || use.mapped > f->domain_total)
            fprintf(out, " The file is larger than the memory of %s.", f->name);
    }
    fprintf(out, "\nTo make it fit: %s.\n", tn_session_plan_advice(s->plan));
}

/* ---- JSON ---- */

static json_t *device_json(const tn_fit_device *f) {
    return json_pack(
        "{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:b}",
        "name", f->name, "layers", f->n_layers, "weights", (json_int_t)f->weights, "adapters",
        (json_int_t)f->adapters, "mapped", (json_int_t)f->mapped, "cache", (json_int_t)f->cache, "compute",
        (json_int_t)f->compute, "scratch", (json_int_t)f->scratch, "staging", (json_int_t)f->staging, "own",
        (json_int_t)f->own, "pinned", (json_int_t)f->pinned, "in_order", (json_int_t)f->in_order, "needed",
        (json_int_t)device_bytes(f), "lower_bound", (json_int_t)f->lower_bound, "free", (json_int_t)f->free, "total",
        (json_int_t)f->total, "domain", "first", (json_int_t)f->domain, "free", (json_int_t)f->domain_free, "total",
        (json_int_t)f->domain_total, "reported", (int)f->reported);
}

static int print_plan_json(const struct plan_subject *s) {
    json_t *devices = json_array();
    const tn_type k_window = s->params.cache_k_window, v_window = s->params.cache_v_window;
    for (size_t d = 0; d < s->fit.n_devices; d++) json_array_append_new(devices, device_json(&s->fit.devices[d]));
    json_t *root = json_pack(
        "{s:o, s:o, s:{s:I, s:I, s:i}, s:{s:i, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:b}, s:b, s:o, s:o, "
        "s:{s:{s:I, s:I}, s:{s:I, s:I}}}",
        "model", show_json_text((tn_gguf_str){s->path, strlen(s->path)}), "architecture",
        show_json_text((tn_gguf_str){s->info.architecture, strlen(s->info.architecture)}), "size", "parameters",
        (json_int_t)s->info.n_params, "bytes", (json_int_t)s->info.bytes, "layers", s->info.n_layer, "session", "ctx",
        s->params.n_ctx, "batch", s->params.n_batch, "ubatch", s->params.n_ubatch, "seqs", s->params.n_seqs,
        "cache_type_k", tn_type_name(s->params.cache_k), "cache_type_v", tn_type_name(s->params.cache_v),
        "cache_type_k_window", tn_type_name(k_window != TN_TYPE_LIMIT ? k_window : s->params.cache_k),
        "cache_type_v_window", tn_type_name(v_window != TN_TYPE_LIMIT ? v_window : s->params.cache_v), "repeatable",
        (int)s->params.repeatable, "fits", (int)(s->fit.fits && rank_plans_fit(&s->ranks, NULL)), "advice",
        s->fit.fits ? json_null() : json_string(tn_session_plan_advice(s->plan)), "devices", devices, "graphs",
        "prefill", "nodes", (json_int_t)s->fit.nodes_prefill, "splits", (json_int_t)s->fit.splits_prefill, "decode",
        "nodes", (json_int_t)s->fit.nodes_decode, "splits", (json_int_t)s->fit.splits_decode);
    const tn_checkpoint_plan c = tn_session_plan_checkpoints(s->plan);
    json_object_set_new(root, "checkpoints",
                        json_pack("{s:i, s:i, s:I, s:I}", "count", c.n, "every", c.every, "states",
                                  (json_int_t)c.states, "window", (json_int_t)c.window));
    const char *warning = tn_session_plan_warning(s->plan);
    json_object_set_new(root, "warning", *warning ? json_string(warning) : json_null());
    json_object_set_new(root, "predicted",
                        s->ranks.n < 2 ? predicted_speed_json(s->plan) : rank_speeds_json(&s->ranks));
    if (s->ladder.n_choices) json_object_set_new(root, "budget", ladder_json(&s->ladder));
    if (s->ranks.n > 1) json_object_set_new(root, "ranks", rank_plans_json(&s->ranks));
    return print_json_document(root);
}

/* ---- Pictures ---- */

static int draw_graph_plan(const struct plan_subject *s, bool prefill, size_t device, char **svg) {
    const tn_plan *plan;
    size_t memory;
    tn_status status = tn_session_plan_graph(s->plan, prefill, device, &plan, &memory);
    if (status == TN_OK) status = tn_plan_export(plan, TN_PLAN_SVG, memory, svg);
    return status == TN_OK ? EXIT_OK : fail_status(status, "cannot draw the plan");
}

/* A file to write; NULL after a message. */
static FILE *open_picture(const struct plan_subject *s, const char *path, struct output_file *to) {
    if (output_open(to, path, s->force, &s->path, 1)) return NULL;
    FILE *out = fopen(to->path, "w");
    if (!out) fail("cannot write %s", path);
    return out;
}

static int close_picture(FILE *out, const struct output_file *to, bool complete) {
    bool bad = ferror(out);
    if (fclose(out) == 0 && !bad) return output_close(to, complete);
    output_close(to, false);
    return fail("cannot write %s", to->target);
}

/* The prefill plan of the device with the largest compute buffer. */
static int write_plan_svg(const struct plan_subject *s, const char *path) {
    size_t device = 0;
    for (size_t d = 1; d < s->fit.n_devices; d++)
        if (s->fit.devices[d].compute > s->fit.devices[device].compute) device = d;
    char *svg;
    int code = draw_graph_plan(s, true, device, &svg);
    if (code) return code;
    struct output_file to;
    FILE *out = open_picture(s, path, &to);
    if (out) fputs(svg, out);
    tn_free(svg);
    return out ? close_picture(out, &to, true) : EXIT_ERROR;
}

static void write_html_text(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else
            fputc(*text, out);
    }
}

/* The whole report in one self-contained file. */
static int write_html(const struct plan_subject *s, const char *path) {
    struct output_file to;
    FILE *out = open_picture(s, path, &to);
    if (!out) return EXIT_ERROR;
    fputs(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>Memory plan</title>\n"
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
        "pre{overflow-x:auto}svg{max-width:100%;height:auto}"
        "@media(prefers-color-scheme:dark){body{background:#16181d;color:#e4e6eb}svg:not(.frontier){background:#fff}}"
        "</style>\n"
        "<h1>Memory plan</h1>\n<pre>",
        out);
    char *text = NULL;
    size_t size;
    FILE *report = open_memstream(&text, &size);
    if (report) {
        if (s->ladder.n_choices) print_ladder(&s->ladder, report);
        print_heading(s, report);
        print_table(s, report);
        print_graphs(s, report);
        if (s->ranks.n < 2) print_predicted_speed(s->plan, report);
        rank_plans_print(&s->ranks, report);
        print_verdict(s, report);
        fclose(report);
        write_html_text(out, text);
    }
    free(text);
    fputs("</pre>\n", out);
    if (s->ladder.n_choices) {
        fputs("<h2>Memory and speed</h2>\n", out);
        draw_frontier(&s->ladder, NULL, out);
    }
    int code = EXIT_OK;
    for (size_t d = 0; d < s->fit.n_devices && !code; d++) {
        for (int decode = 0; decode < 2 && !code; decode++) {
            char *svg;
            if (!s->fit.devices[d].compute || (code = draw_graph_plan(s, !decode, d, &svg))) continue;
            fprintf(out, "<h2>%s on ", decode ? "Decode" : "Prefill");
            write_html_text(out, s->fit.devices[d].name);
            fprintf(out, "</h2>\n%s\n", svg);
            tn_free(svg);
        }
    }
    int closed = close_picture(out, &to, !code);
    return code ? code : closed;
}

/* ---- Launches ---- */

/* Compiling needs addresses, so a session is set up. On a described device that takes no memory. */
static int print_launches(const struct plan_subject *s) {
    tn_session *session;
    tn_status status = tn_session_new(s->plan, &session);
    if (status != TN_OK) return fail_status(status, "%s", s->path);
    for (int decode = 0; decode < 2 && status == TN_OK; decode++) {
        printf("\n%s, %d token%s, ", decode ? "decode" : "prefill", decode ? s->params.n_seqs : s->params.n_ubatch,
               decode && s->params.n_seqs == 1 ? "" : "s");
        status = tn_session_print_launches(session, !decode, stdout);
    }
    tn_session_free(session);
    return status == TN_OK ? EXIT_OK : fail_status(status, "%s", s->path);
}

/* ---- The command ---- */

/* With --budget the parameters are chosen. */
static int make_plan(const struct args *args, struct plan_subject *s) {
    if (s->params.n_budgets && !args_text(args, "plan")) {
        const struct budget_search_options how = {.frontier = true, .measure = args_flag(args, "measure")};
        int code = plan_to_budget(args, s->model, &s->params, how, &s->plan, &s->ladder);
        if (code) return code;
        print_budget_notes(&s->ladder);
    } else {
        tn_status status = session_plan_from(args, s->model, &s->params, &s->plan);
        if (status != TN_OK) return fail_status(status, "%s", s->path);
    }
    tn_status status = tn_session_plan_fit(s->plan, &s->fit);
    return status == TN_OK ? EXIT_OK : fail_status(status, "%s", s->path);
}

/* What was asked for, of a plan that was made. */
static int print_reports(const struct args *args, struct plan_subject *s) {
    int code = EXIT_OK;
    if (args_flag(args, "json")) {
        code = print_plan_json(s);
    } else {
        if (s->ladder.n_choices) print_ladder(&s->ladder, stdout);
        print_heading(s, stdout);
        print_table(s, stdout);
        print_graphs(s, stdout);
        print_checkpoints(s, stdout);
        if (s->ranks.n < 2) print_predicted_speed(s->plan, stdout);
        code = speculation_print_plan(args, s->model, &s->params, stdout);
        rank_plans_print(&s->ranks, stdout);
        print_verdict(s, stdout);
    }
    tn_status status = TN_OK;
    if (!code && args_flag(args, "why")) {
        putchar('\n');
        status = tn_session_plan_explain(s->plan, stdout);
        putchar('\n');
        if (status == TN_OK) status = tn_session_plan_splits(s->plan, false, stdout);
        if (status != TN_OK) code = fail_status(status, "%s", s->path);
    }
    const char *save = args_text(args, "save"), *svg = args_text(args, "svg"), *html = args_text(args, "html");
    if (!code && save) code = check_output(save, s->force, &s->path, 1);
    if (!code && save && (status = tn_session_plan_save(s->plan, save)) != TN_OK)
        code = fail_status(status, "%s", s->path);
    fflush(stdout); /* keeps the order when both streams go to one file */
    if (!code && svg && !(code = write_plan_svg(s, svg)))
        fprintf(stderr, "Picture of the plan (time × address): %s\n", svg);
    if (!code && html && !(code = write_html(s, html)))
        fprintf(stderr, "Report with pictures of all plans: %s\n", html);
    if (!code && args_flag(args, "launches")) code = print_launches(s); /* last: it uses the plan up */
    return code;
}

/* Plans the model, which is open, and reports. */
static int plan_model(const struct args *args, const tn_model_params *model_params, struct plan_subject *s) {
    if (args_text(args, "verify")) {
        tn_status status = tn_session_plan_verify(s->model, &s->params, args_text(args, "verify"), stdout);
        return status == TN_OK ? EXIT_OK : fail_status(status, "%s", s->path);
    }
    int code = s->context_open ? rank_plans_context(&s->ranks, s->path, model_params, &s->params) : EXIT_OK;
    if (!code) code = make_plan(args, s);
    if (!code && args_flag(args, "measure") && !s->ranks.net)
        code = measure_plan_devices(s->plan, (int)args_int(args, "threads"));
    if (!code) code = rank_plans_collect(&s->ranks, s->path, model_params, &s->params, &s->fit);
    if (code || s->ranks.rank) return code; /* rank 0 reports */
    s->params = tn_session_plan_params(s->plan);
    code = print_reports(args, s);
    return code || (s->fit.fits && rank_plans_fit(&s->ranks, NULL)) ? code : EXIT_TOO_BIG;
}

static int plan_subject_open(const struct args *args, const tn_model_params *model_params, struct plan_subject *s) {
    tn_status status = tn_model_open(s->path, model_params, &s->model);
    if (status == TN_OK) status = adapters_open(args, s->model, &s->params, &s->adapters);
    if (status != TN_OK) return fail_status(status, "%s", "");
    s->info = tn_model_get_info(s->model);
    s->context_open = s->params.n_ctx == 0 && !s->params.n_budgets;
    return EXIT_OK;
}

/* The ranks of a launcher would all print the same: rank 0 does. */
static int plan_nodes(const struct args *args, const struct plan_subject *s, const tn_model_params *model_params) {
    tn_net *net = NULL;
    int code = ranks_launched() > 1 ? ranks_join(args, &net) : EXIT_OK;
    speed_cache_load();
    if (!code && tn_net_rank(net) == 0)
        code = print_nodes_plan(s->path, args_text(args, "nodes"), model_params, &s->params,
                                !args_given(args, "ubatch"), stdout);
    ranks_leave(net);
    return code;
}

static int run_plan(const struct args *args) {
    char buffer[4096];
    struct plan_subject s = {.path = find_model(args, buffer, sizeof buffer), .force = args_flag(args, "force")};
    if (!s.path) return EXIT_ERROR;
    int code = session_params_from(args, &s.params);
    if (code) return code;
    if ((code = speculation_prepare(args, &s.params))) return code;
    s.params.n_seqs = (int32_t)args_int(args, "seqs");
    if (args_flag(args, "serve")) {
        const int32_t n_slots = args_given(args, "seqs") ? s.params.n_seqs : SERVE_SLOTS;
        serving_params(&s.params, n_slots, args);
    } else {
        s.params.n_branches *= s.params.n_seqs;
    }
    s.params.embeddings = args_flag(args, "embeddings");
    tn_model_params model_params = model_params_from(args);
    if (args_text(args, "nodes")) return plan_nodes(args, &s, &model_params);
    speed_cache_load();
    if ((code = rank_plans_join(args, &s.ranks))) return code;
    if (s.ranks.net && args_flag(args, "measure"))
        code = measure_rank_devices(s.ranks.net, &s.params, ranks_thread_share(s.ranks.n));
    if (!code) code = rank_plans_begin(args, s.path, &s.ranks, &model_params, &s.params);
    if (code) {
        rank_plans_end(&s.ranks, code);
        return code;
    }
    code = s.ranks.n > 1 && (args_text(args, "save") || args_text(args, "verify") || args_text(args, "plan"))
               ? fail("plan files are of one rank: leave --save, --verify and --plan out")
               : plan_subject_open(args, &model_params, &s);
    if (!code) code = plan_model(args, &model_params, &s);
    rank_plans_end(&s.ranks, code == EXIT_TOO_BIG ? EXIT_OK : code);
    tn_fit_free(&s.fit);
    tn_budget_ladder_free(&s.ladder);
    tn_session_plan_free(s.plan);
    adapters_close(&s.adapters);
    tn_model_close(s.model);
    return code;
}

static const struct option options[] = {
    {.name = "seqs",
     .letter = "np",
     .aliases = "--parallel",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 4096,
     .fallback = "1",
     .help = "number of concurrent sequences, which share the context",
     .env = "LLAMA_ARG_N_PARALLEL"},
    {.name = "embeddings", .kind = OPTION_FLAG, .help = "plan for embeddings instead of text generation"},
    {.name = "serve", .kind = OPTION_FLAG, .help = "plan for tenon serve, with -np slots (default 4)"},
    OPTION_CACHE_PREFIXES,
    OPTIONS_CHECKPOINTS,
    OPTION_FORCE,
    {.name = "save",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "save the plan to FILE, for --plan of the commands that run a model"},
    {.name = "verify",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help =
         "build the graphs of the plan in FILE again and check every tensor's lifetime, overlap, chunk and total"},
    {.name = "nodes",
     .value = "MACHINES",
     .kind = OPTION_TEXT,
     .help = "compare how ranks on such machines would divide the model, e.g. \"2x8x h200,link=450G; "
             "net=50G,latency=3us\""},
    {.name = "svg", .value = "FILE", .kind = OPTION_TEXT, .help = "draw the largest plan (time × address) to FILE"},
    {.name = "html",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "write the whole report with pictures of all plans to FILE"},
    {.name = "why",
     .kind = OPTION_FLAG,
     .help = "explain the placement of each weight, and where the decode graph is split between devices"},
    {.name = "measure",
     .kind = OPTION_FLAG,
     .help = "first measure the devices that are not measured yet, for the predicted speed; with several ranks all "
             "of them, at the same time"},
    {.name = "launches",
     .kind = OPTION_FLAG,
     .help =
         "print what prefill and decode launch on each device; loads the model unless the device is only described"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {&model_options, &load_options, &adapter_options,
                                                    &speculation_options, NULL};

const struct command command_plan = {
    .name = "plan",
    .summary = "show how much memory a model needs and whether it fits",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details = "The figures are exact: they come from the same graphs that a session runs, planned but not "
               "allocated. Works with "
               "files without data (tenon synth --no-data) and for devices you do not have (--device sim:24G).",
    .examples = "tenon plan model.gguf --ctx 32768\n"
                "tenon plan model.gguf --device sim:24G,name=rtx4090 --cache-type q8_0\n"
                "tenon plan 70b.gguf --device sim:48G,name=a --device sim:48G,name=b --json\n"
                "tenon plan model.gguf --device sim:8G,name=gpu --budget gpu=6G,cpu=4G --prefer context\n"
                "tenon plan model.gguf --html plan.html\n"
                "tenon plan model.gguf --save model.plan && tenon run model.gguf --plan model.plan -p Hello\n"
                "tenon plan model.gguf --serve -np 8 --save s.plan\n"
                "tenon serve model.gguf -np 8 --plan s.plan\n"
                "tenon plan --verify model.plan model.gguf\n"
                "tenon plan model.gguf --ranks 4 --nodes-split row\n"
                "mpirun -n 4 tenon plan model.gguf",
    .exit_codes = "0 fits, 1 error, 2 wrong usage, 3 does not fit",
    .section = SECTION_MEMORY,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_plan,
};
