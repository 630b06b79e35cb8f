#include "ranks/rank_plans.h"

#include "cli/term.h"

#include "tenon/net/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The ranks ---- */

static int find_devices(struct rank_plans *p, const char *path, tn_session_params *params, tn_model_params *model) {
    const int n = ranks_list_devices(params, p->devices);
    if (n < 2) return EXIT_OK;
    p->n = n;
    for (int r = 0; r < n; r++) model->shares[r] = params->split[r];
    memset(params->split, 0, sizeof params->split);
    const int threads = (params->n_threads ? params->n_threads : tn_cpu_count()) / n; /* as device_ranks_start() */
    tn_status status = ranks_balance_devices(path, p->devices, n, threads > 0 ? threads : 1, model);
    return status == TN_OK ? EXIT_OK : fail_status(status, "ranks");
}

int rank_plans_join(const struct args *args, struct rank_plans *p) {
    *p = (struct rank_plans){.n = (int)args_int(args, "ranks")};
    if (ranks_launched() < 2) return EXIT_OK;
    const int code = ranks_join(args, &p->net);
    if (code) return code;
    p->n = tn_net_size(p->net);
    p->rank = tn_net_rank(p->net);
    return EXIT_OK;
}

int rank_plans_begin(const struct args *args, const char *path, struct rank_plans *p, tn_model_params *model,
                     tn_session_params *params) {
    if (p->n > 1) {
        ranks_divide(args, p->n, params, model);
        p->by_layers = model->by_layers;
        if (!args_given(args, "threads")) params->n_threads = ranks_thread_share(p->n);
        tn_status status = p->net ? ranks_balance(p->net, path, params, params->n_threads, model) : TN_OK;
        if (status != TN_OK) return fail_status(status, "ranks");
    } else if (ranks_split_devices(args)) {
        const int code = find_devices(p, path, params, model);
        if (code) return code;
    }
    if (p->n < 2) return EXIT_OK;
    p->stage_ranks = model->stage_ranks;
    model->n_ranks = p->n;
    model->rank = p->rank;
    if (p->devices[0]) ranks_use_device(params, p->devices[p->rank]);
    return EXIT_OK;
}

static void describe_rank(const tn_fit *fit, struct rank_row *row) {
    *row = (struct rank_row){0};
    const char *machine = getenv("TENON_MACHINE");
    if (machine && *machine)
        snprintf(row->machine, sizeof row->machine, "%s", machine);
    else
        (void)gethostname(row->machine, sizeof row->machine - 1);
    for (size_t d = 0; d < fit->n_devices && d < RANK_ROW_DEVICES; d++) {
        const tn_fit_device *f = &fit->devices[d];
        struct rank_device *to = &row->devices[row->n_devices++];
        snprintf(to->name, sizeof to->name, "%.*s", RANK_NAME - 1, f->name);
        to->layers = f->n_layers;
        to->weights = f->weights + f->adapters;
        to->mapped = f->mapped;
        to->cache = f->cache;
        to->compute = f->compute;
        to->needed = to->weights + f->cache + f->compute + f->scratch + f->staging + f->tier + f->own;
        to->available = f->free;
    }
}

/* The parameters of another rank, which is planned here. */
static void take_rank(const struct rank_plans *p, int rank, tn_model_params *mp, tn_session_params *sp) {
    mp->rank = rank;
    if (!p->devices[0]) return;
    const int threads = (sp->n_threads ? sp->n_threads : tn_cpu_count()) / p->n; /* as device_ranks_start() */
    ranks_use_device(sp, p->devices[rank]);
    if (rank) sp->n_threads = threads > 0 ? threads : 1;
}

static tn_status plan_other_rank(const struct rank_plans *p, const char *path, const tn_model_params *model_params,
                                 const tn_session_params *params, int rank, struct rank_row *row, int32_t *n_ctx) {
    tn_model_params mp = *model_params;
    tn_session_params sp = *params;
    tn_model *model = NULL;
    tn_session_plan *plan = NULL;
    tn_fit fit = {0};
    take_rank(p, rank, &mp, &sp);
    tn_status status = tn_model_open(path, &mp, &model);
    if (status == TN_OK) status = tn_session_plan_new(model, &sp, &plan);
    if (status == TN_OK) status = tn_session_plan_fit(plan, &fit);
    if (status == TN_OK) {
        describe_rank(&fit, row);
        *n_ctx = tn_session_plan_params(plan).n_ctx;
    }
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return status;
}

/* Every rank's `size` bytes, one after the other. */
static tn_status gather_equal(tn_net *net, const void *own, size_t size, void *all) {
    size_t sizes[TN_NET_RANKS_MOST];
    for (int r = 0; r < tn_net_size(net); r++) sizes[r] = size;
    return tn_net_all_gather(net, own, sizes, all);
}

int rank_plans_context(struct rank_plans *p, const char *path, const tn_model_params *model,
                       tn_session_params *params) {
    int32_t all[TN_NET_RANKS_MOST] = {0};
    struct rank_row row;
    tn_status status = TN_OK;
    if (p->n < 2 || params->n_ctx) return EXIT_OK;
    for (int r = 0; r < p->n && status == TN_OK; r++)
        if (!p->net || r == p->rank) status = plan_other_rank(p, path, model, params, r, &row, &all[r]);
    const int32_t own = all[p->rank];
    if (status == TN_OK && p->net) status = gather_equal(p->net, &own, sizeof own, all);
    if (status != TN_OK) return fail_status(status, "%s", path);
    params->n_ctx = all[0];
    for (int r = 1; r < p->n; r++)
        if (all[r] < params->n_ctx) params->n_ctx = all[r];
    return EXIT_OK;
}

/* ---- Speed ---- */

/* Ranks of each machine, where these are equal numbers of consecutive ranks; else 0. */
static int ranks_per_machine(const struct rank_plans *p) {
    tn_rank_resources all[TN_NET_RANKS_MOST] = {0};
    for (int r = 0; r < p->n; r++)
        while (strcmp(p->rows[all[r].machine].machine, p->rows[r].machine) != 0) all[r].machine++;
    return tn_ranks_per_machine(all, p->n);
}

static struct ranks_times sum_up(const struct rank_plans *p, const struct rank_figures *all, enum node_split split) {
    struct ranks_times t = {.rows = all[0].rows, .seqs = all[0].seqs};
    const int together = split == SPLIT_STAGES ? p->stage_ranks : 1;
    for (int first = 0; first < p->n; first += together) {
        double prefill = 0, decode = 0; /* of the slowest rank of a stage */
        for (int r = first; r < first + together; r++) {
            prefill = fmax(prefill, all[r].prefill);
            decode = fmax(decode, all[r].decode);
        }
        t.slowest_prefill = fmax(t.slowest_prefill, prefill);
        t.slowest_decode = fmax(t.slowest_decode, decode);
        t.all_prefill += prefill;
        t.all_decode += decode;
    }
    return t;
}

/* Every rank plans and predicts itself; without a launcher this process does so for all. A rank that is not measured
 * has no times. */
static tn_status predict_figures(const struct rank_plans *p, const char *path, const tn_model_params *model,
                                 const tn_session_params *params, int32_t prompt, struct rank_figures *all) {
    for (int r = 0; r < p->n; r++) {
        tn_model_params mp = *model;
        tn_session_params sp = *params;
        all[r] = (struct rank_figures){0};
        if (p->net && r != p->rank) continue;
        take_rank(p, r, &mp, &sp);
        const tn_status status = plan_rank_speed(path, &mp, &sp, prompt, &all[r]);
        if (status == TN_E_NOMEM || status == TN_E_ABORTED) return status;
        if (status != TN_OK) tn_error_clear();
    }
    const struct rank_figures own = all[p->rank];
    return p->net ? gather_equal(p->net, &own, sizeof own, all) : TN_OK;
}

static tn_status predict_ranks(struct rank_plans *p, const char *path, const tn_model_params *model,
                               const tn_session_params *params) {
    struct rank_speeds *s = &p->speeds;
    static const int32_t prompts[RANK_PROMPTS] = {512, 2048};
    struct rank_figures all[TN_NET_RANKS_MOST] = {0};
    const enum node_split split = !p->by_layers ? SPLIT_ROWS : p->stage_ranks > 1 ? SPLIT_STAGES : SPLIT_LAYERS;
    tn_model *opened;
    TN_TRY(tn_model_open(path, model, &opened));
    const tn_model_info info = tn_model_get_info(opened);
    tn_model_close(opened);
    s->unknown = -1;
    s->links = (struct rank_links){.devices = p->n, .link = {64e9, 3e-6}, .net = {64e9, 3e-6}}; /* as --nodes */
    if (p->net) TN_TRY(measure_links(p->net, ranks_per_machine(p), &s->links));
    for (int i = 0; i < RANK_PROMPTS; i++) {
        s->prompts[i] = params->n_ctx < prompts[i] ? params->n_ctx : prompts[i];
        s->links.prompt = s->prompts[i];
        TN_TRY(predict_figures(p, path, model, params, s->prompts[i], all));
        for (int r = p->n - 1; r >= 0; r--)
            if (!(all[r].decode > 0)) s->unknown = r;
        if (s->unknown >= 0) return TN_OK;
        const struct ranks_times times = sum_up(p, all, split);
        s->speeds[i] = predict_split(&s->links, &info, p->n, split, &times);
    }
    return TN_OK;
}

static void print_rank_speeds(const struct rank_plans *p, FILE *out) {
    const struct rank_speeds *s = &p->speeds;
    if (s->unknown >= 0) {
        fprintf(out, "predicted: no speed, the device of rank %d is not measured; run tenon devices --measure%s\n",
                s->unknown, p->net ? ", or with --measure to measure all ranks at once" : "");
        return;
    }
    fputs("predicted for all ranks:", out);
    for (int i = 0; i < RANK_PROMPTS; i++)
        if (!i || s->prompts[i] != s->prompts[i - 1])
            fprintf(out, " prompt %d %.4g tokens/s,", s->prompts[i], s->speeds[i].prefill);
    fprintf(out, " decode %.4g tokens/s (%.0f%% of it messages)\n", s->speeds[0].decode, 100 * s->speeds[0].messages);
    if (!p->net) return;
    fputs("measured between ranks:", out);
    if (s->links.devices > 1)
        fprintf(out, " %.3g GB/s and %.3g us on a machine", s->links.link.rate / 1e9, s->links.link.latency * 1e6);
    if (s->links.devices < p->n)
        fprintf(out, "%s %.3g GB/s and %.3g us between machines", s->links.devices > 1 ? "," : "",
                s->links.net.rate / 1e9, s->links.net.latency * 1e6);
    fputc('\n', out);
}

static json_t *wire_json(struct wire w) {
    return json_pack("{s:f, s:f}", "bytes_per_second", w.rate, "latency", w.latency);
}
json_t *rank_speeds_json(const struct rank_plans *p) {
    const struct rank_speeds *s = &p->speeds;
    if (s->unknown >= 0) return json_null();
    json_t *prompts = json_array();
    for (int i = 0; i < RANK_PROMPTS; i++)
        json_array_append_new(
            prompts, json_pack("{s:i, s:f}", "prompt", s->prompts[i], "tokens_per_second", s->speeds[i].prefill));
    return json_pack("{s:o, s:{s:f, s:f}, s:o, s:o}", "prefill", prompts, "decode", "tokens_per_second",
                     s->speeds[0].decode, "messages", s->speeds[0].messages, "link", wire_json(s->links.link), "net",
                     wire_json(s->links.net));
}

/* ---- Plans ---- */

int rank_plans_collect(struct rank_plans *p, const char *path, const tn_model_params *model,
                       const tn_session_params *params, const tn_fit *fit) {
    tn_status status = TN_OK;
    int32_t n_ctx;
    if (p->n < 2) return EXIT_OK;
    struct rank_row own;
    describe_rank(fit, &own);
    p->rows[p->rank] = own;
    for (int r = 0; r < p->n && status == TN_OK && !p->net; r++)
        if (r != p->rank) status = plan_other_rank(p, path, model, params, r, &p->rows[r], &n_ctx);
    if (p->net) status = gather_equal(p->net, &own, sizeof own, p->rows);
    if (status == TN_OK) status = predict_ranks(p, path, model, params);
    return status == TN_OK ? EXIT_OK : fail_status(status, "%s", path);
}

void rank_plans_end(struct rank_plans *p, int code) {
    if (!p->net) return;
    if (code) ranks_fail(p->net);
    ranks_leave(p->net);
    p->net = NULL;
}

/* ---- Whether they fit ---- */

static const struct rank_device *same_device(const struct rank_plans *p, int other, int rank,
                                             const struct rank_device *d) {
    const struct rank_row *row = &p->rows[other];
    for (int i = 0; i < row->n_devices && strcmp(row->machine, p->rows[rank].machine) == 0; i++)
        if (strcmp(row->devices[i].name, d->name) == 0) return &row->devices[i];
    return NULL;
}

bool rank_plans_fit(const struct rank_plans *p, FILE *out) {
    bool fits = true;
    for (int r = 0; r < p->n && p->n > 1; r++)
        for (int i = 0; i < p->rows[r].n_devices; i++) {
            const struct rank_device *d = &p->rows[r].devices[i];
            uint64_t needed = 0, available = d->available;
            int users = 0, first = p->n;
            for (int other = p->n - 1; other >= 0; other--) {
                const struct rank_device *same = same_device(p, other, r, d);
                if (!same) continue;
                users++;
                first = other;
                needed += same->needed;
                if (same->available < available) available = same->available;
            }
            if (first < r || needed <= available) continue; /* counted before */
            fits = false;
            if (!out) continue;
            char a[HUMAN_SIZE], b[HUMAN_SIZE];
            fprintf(out, "%s of %s: ", d->name, p->rows[r].machine);
            if (users > 1)
                fprintf(out, "the %d ranks there need %s together", users, human_bytes(a, needed));
            else
                fprintf(out, "rank %d needs %s", r, human_bytes(a, needed));
            fprintf(out, ", %s are available.\n", human_bytes(b, available));
        }
    return fits;
}

/* ---- Text and JSON ---- */

void rank_plans_print(const struct rank_plans *p, FILE *out) {
    char text[6][HUMAN_SIZE];
    int wide = 7, name = 6;
    if (p->n < 2) return;
    for (int r = 0; r < p->n; r++) {
        if ((int)strlen(p->rows[r].machine) > wide) wide = (int)strlen(p->rows[r].machine);
        for (int i = 0; i < p->rows[r].n_devices; i++)
            if ((int)strlen(p->rows[r].devices[i].name) > name) name = (int)strlen(p->rows[r].devices[i].name);
    }
    if (p->stage_ranks > 1)
        fprintf(out,
                "\n%d ranks, by layers between %d machines and rows within them; the plan above is that of rank 0\n",
                p->n, p->n / p->stage_ranks);
    else
        fprintf(out, "\n%d ranks, by %s; the plan above is that of rank 0\n", p->n, p->by_layers ? "layers" : "rows");
    fprintf(out, "%srank  %-*s  %-*s %7s %12s %12s %12s %12s %12s %12s%s\n", style(out, STYLE_BOLD), wide, "machine",
            name, "device", "layers", "weights", "mapped", "cache", "compute", "needed", "available",
            style(out, STYLE_NONE));
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < p->rows[r].n_devices; i++) {
            const struct rank_device *d = &p->rows[r].devices[i];
            fprintf(out, "%4d  %-*s  %-*s %7d %12s %12s %12s %12s %12s %12s\n", r, wide, p->rows[r].machine, name,
                    d->name, d->layers, human_bytes(text[0], d->weights), human_bytes(text[1], d->mapped),
                    human_bytes(text[2], d->cache), human_bytes(text[3], d->compute), human_bytes(text[4], d->needed),
                    human_bytes(text[5], d->available));
        }
    print_rank_speeds(p, out);
}

json_t *rank_plans_json(const struct rank_plans *p) {
    json_t *ranks = json_array();
    for (int r = 0; r < p->n && p->n > 1; r++) {
        json_t *devices = json_array();
        for (int i = 0; i < p->rows[r].n_devices; i++) {
            const struct rank_device *d = &p->rows[r].devices[i];
            json_array_append_new(devices, json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "name", d->name,
                                                     "layers", d->layers, "weights", (json_int_t)d->weights, "mapped",
                                                     (json_int_t)d->mapped, "cache", (json_int_t)d->cache, "compute",
                                                     (json_int_t)d->compute, "needed", (json_int_t)d->needed,
                                                     "available", (json_int_t)d->available));
        }
        json_array_append_new(
            ranks, json_pack("{s:i, s:s, s:o}", "rank", r, "machine", p->rows[r].machine, "devices", devices));
    }
    return ranks;
}
