/* Ranks on described machines: each rank's session is planned and predicted on a simulated device, or on a device of
 * this machine that was measured, and messages are added by a latency-bandwidth model. docs/scaling.md has the
 * formula.
 *
 * An all-reduce of B bytes among n ranks takes the least of
 *   ⌈log2 n⌉ · (latency + B / rate)                  recursive doubling
 *   2 (n-1) · latency + 2 (n-1)/n · B / rate         ring
 * and across machines the sum of both levels. */
#include "ranks/nodes.h"

#include "cli/term.h"
#include "ranks/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 512, NOTE = TN_NET_NOTE, EXIT_NOTHING_FITS = 3 /* as tenon plan */ };

struct wire {
    double rate, latency; /* bytes per second, seconds */
};
struct machines {
    int nodes, devices; /* machines, and devices of each */
    char device[256];   /* of sim:, or one of this machine */
    bool local;         /* the latter */
    bool pipelined;     /* ranks with whole layers take small micro-batches */
    double prompt;      /* tokens; 0: a long prompt */
    struct wire link, net;
};

/* ---- Description ---- */

/* "900G", "3us". */
static bool parse_quantity(const char *text, double *value) {
    static const struct {
        const char *unit;
        double scale;
    } units[] = {{"", 1},  {"K", 1e3},   {"M", 1e6},   {"G", 1e9},  {"T", 1e12},
                 {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
    char *end;
    *value = strtod(text, &end);
    if (end == text || !(*value > 0)) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) {
            *value *= units[i].scale;
            return true;
        }
    return false;
}

/* A setting of the description that is not one of the device; false: it is the device's. */
static bool take_setting(const char *word, struct machines *m, bool *valid) {
    const struct {
        const char *name;
        double *value;
    } settings[] = {{"link=", &m->link.rate},
                    {"link-latency=", &m->link.latency},
                    {"net=", &m->net.rate},
                    {"latency=", &m->net.latency},
                    {"prompt=", &m->prompt}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const size_t length = strlen(settings[i].name);
        if (strncmp(word, settings[i].name, length) != 0) continue;
        *valid = *valid && parse_quantity(word + length, settings[i].value);
        return true;
    }
    return false;
}

/* "2x8x h200,link=450G; net=50G,latency=3us": machines × devices of each, a device of --device sim: or of this
 * machine, and wires. */
static int parse_nodes(const char *text, struct machines *m) {
    *m = (struct machines){.nodes = 1, .devices = 1, .link = {64e9, 3e-6}, .net = {12.5e9, 5e-6}};
    char *copy = strdup(text), *rest = NULL;
    if (!copy) return fail("out of memory");
    int counts[2] = {1, 1}, n_counts = 0;
    char *at = copy + strspn(copy, " ");
    for (char *end; n_counts < 2; n_counts++) {
        const long count = strtol(at, &end, 10);
        if (end == at || *end != 'x' || count < 1 || count > 4096) break;
        counts[n_counts] = (int)count;
        at = end + 1 + strspn(end + 1, " ");
    }
    m->nodes = n_counts == 2 ? counts[0] : 1;
    m->devices = n_counts == 2 ? counts[1] : counts[0];
    bool valid = true;
    for (char *word = strtok_r(at, ",; ", &rest); word; word = strtok_r(NULL, ",; ", &rest)) {
        if (take_setting(word, m, &valid)) continue;
        const size_t used = strlen(m->device);
        valid = valid && used + strlen(word) + 2 < sizeof m->device;
        if (valid) snprintf(m->device + used, sizeof m->device - used, "%s%s", used ? "," : "", word);
    }
    free(copy);
    tn_device *found;
    m->local = valid && !strchr(m->device, ',') && tn_device_find(m->device, &found) == TN_OK;
    tn_error_clear();
    if (valid && m->device[0] && (int64_t)m->nodes * m->devices <= TN_NET_RANKS_MOST) return EXIT_OK;
    return fail("--nodes takes [MACHINESx]DEVICESx DEVICE[,link=RATE,link-latency=TIME][; "
                "net=RATE,latency=TIME,prompt=TOKENS] with "
                "up to %d devices, as in \"2x8x h200,link=450G; net=50G,latency=3us\", not \"%s\"",
                TN_NET_RANKS_MOST, text);
}

/* ---- Messages ---- */

static double reduce_on(struct wire w, int n, double bytes) {
    if (n < 2) return 0;
    const double doubling = ceil(log2(n)) * (w.latency + bytes / w.rate);
    const double ring = 2 * (n - 1) * w.latency + 2.0 * (n - 1) / n * bytes / w.rate;
    return doubling < ring ? doubling : ring;
}
static double reduce_time(const struct machines *m, int n, double bytes) {
    const int near = n < m->devices ? n : m->devices, far = (n + m->devices - 1) / m->devices;
    return reduce_on(m->link, near, bytes) + reduce_on(m->net, far, bytes);
}
/* Between two ranks, which are on different machines if `n` ranks are. */
static double message_time(const struct machines *m, int n, double bytes) {
    const struct wire w = n > m->devices ? m->net : m->link;
    return n > 1 ? w.latency + bytes / w.rate : 0;
}
/* All messages of one state through the ranks. */
static double pass_time(const struct machines *m, int n, double bytes) {
    const int far = (n - 1) / m->devices, near = n - 1 - far;
    return near * (m->link.latency + bytes / m->link.rate) + far * (m->net.latency + bytes / m->net.rate);
}

/* ---- Ranks ---- */

struct rank_figures {
    size_t bytes, available;
    double prefill, decode; /* seconds of a micro-batch and of a step, without messages */
    int32_t n_ubatch, n_seqs;
};

/* SPLIT_STAGES: layers between machines, rows within them. */
enum node_split { SPLIT_ROWS, SPLIT_LAYERS, SPLIT_STAGES, SPLITS };

static const char *split_name(const struct machines *m, enum node_split split, int n) {
    if (n == 1) return "-";
    if (split == SPLIT_ROWS) return "row";
    return split == SPLIT_LAYERS && n > m->devices && m->devices > 1 ? "pipeline" : "layer";
}

static tn_status plan_rank(const char *path, const struct machines *m, const tn_model_params *model_params,
                           const tn_session_params *params, int rank, int n, enum node_split split,
                           struct rank_figures *figures) {
    char device[300];
    tn_model_params mp = *model_params;
    tn_session_params p = *params;
    tn_model *model = NULL;
    tn_session_plan *plan = NULL;
    tn_fit fit = {0};
    tn_session_speed speed = {0};
    const int32_t prompt = m->prompt > 0 ? (int32_t)m->prompt : PROMPT;
    const tn_placement_override embedding = {"token_embd", m->local ? m->device : "node"};
    snprintf(device, sizeof device, m->local ? "%s" : "sim:%s,memory-only=1,name=node", m->device);
    mp.n_ranks = n;
    mp.rank = rank;
    mp.by_layers = split != SPLIT_ROWS;
    mp.stage_ranks = split == SPLIT_STAGES ? m->devices : 1;
    memset(p.devices, 0, sizeof p.devices);
    p.devices[0] = device;
    if (m->local && strcmp(device, "cpu") != 0) p.devices[1] = "cpu";
    if (m->pipelined && split != SPLIT_ROWS) p.n_ubatch = RANKS_PIPELINED_UBATCH;
    p.n_gpu_layers = INT32_MAX;
    p.overrides = &embedding;
    p.n_overrides = 1;
    tn_status status = tn_model_open(path, &mp, &model);
    if (status == TN_OK) status = tn_session_plan_new(model, &p, &plan);
    if (status == TN_OK) status = tn_session_plan_fit(plan, &fit);
    if (status == TN_OK) status = tn_session_plan_predict(plan, &(tn_session_speed_params){.prompt = prompt}, &speed);
    if (status == TN_OK) {
        const tn_fit_device *d = &fit.devices[0];
        const tn_session_params used = tn_session_plan_params(plan);
        *figures =
            (struct rank_figures){.bytes = d->weights + d->mapped + d->cache + d->compute + d->scratch + d->own,
                                  .available = d->free,
                                  .prefill = speed.prefill_run.streams[0],
                                  .decode = speed.decode_run.streams[0],
                                  .n_ubatch = used.n_ubatch,
                                  .n_seqs = used.n_seqs};
    }
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return status;
}

struct split_figures {
    size_t bytes, available;
    double prefill, decode, messages; /* tokens per second; share of decode that messages take */
    bool fits;
};

static void predict_rows(const struct machines *m, const struct rank_figures *slowest, const tn_model_info *info,
                         int n, struct split_figures *s) {
    const double rows = slowest->n_ubatch, seqs = slowest->n_seqs, state = 4.0 * info->n_embd,
                 logits = 4.0 * info->n_vocab, note = message_time(m, n, NOTE);
    const double sums = 2.0 * info->n_layer * reduce_time(m, n, state * seqs) +
                        message_time(m, n, logits * seqs * (n - 1) / n) + note;
    s->decode = seqs / (slowest->decode + sums);
    s->messages = sums / (slowest->decode + sums);
    s->prefill = rows / (slowest->prefill + 2.0 * info->n_layer * reduce_time(m, n, state * rows) + note);
}

/* `turn`: the slowest rank or message of a micro-batch. Of a long prompt every stage has a micro-batch; of another
 * one they begin and end one after the other. */
static double pipelined_rate(const struct machines *m, double rows, int n_stages, double turn) {
    const double runs = m->prompt > 0 ? ceil(m->prompt / rows) : 0;
    return runs > 0 ? m->prompt / ((runs + n_stages - 1) * turn) : rows / turn;
}

/* Ranks between the first and the last are alike, but for a layer more or less: together they compute what one rank
 * with all layers, `whole`, computes. */
static void predict_layers(const struct machines *m, const struct rank_figures *slowest,
                           const struct rank_figures *whole, const tn_model_info *info, int n,
                           struct split_figures *s) {
    const double rows = slowest->n_ubatch, seqs = slowest->n_seqs, state = 4.0 * info->n_embd,
                 logits = 4.0 * info->n_vocab;
    const double passed = n == 1 ? 0 : pass_time(m, n, state * seqs) + message_time(m, n, logits * seqs);
    const double message = n == 1 ? 0 : pass_time(m, n, state * rows) / (n - 1);
    const double turn = fmax(fmax(slowest->prefill, whole->prefill * rows / whole->n_ubatch / n), message);
    s->decode = seqs / (whole->decode + passed);
    s->messages = passed / (whole->decode + passed);
    s->prefill = pipelined_rate(m, rows, n, turn);
}

/* `stages`: of all stages, one after the other. Every rank of a machine passes the state to its counterpart: together
 * they need the link between machines once for each. */
static void predict_stages(const struct machines *m, const struct rank_figures *slowest, double stages,
                           const tn_model_info *info, int n_stages, struct split_figures *s) {
    const double rows = slowest->n_ubatch, seqs = slowest->n_seqs, state = 4.0 * info->n_embd,
                 logits = 4.0 * info->n_vocab;
    const double sums = 2.0 * info->n_layer * reduce_on(m->link, m->devices, state * seqs) + m->link.latency +
                        logits * seqs / m->link.rate;
    const double passed = (n_stages - 1) * (m->net.latency + m->devices * state * seqs / m->net.rate) +
                          m->net.latency + logits * seqs / m->net.rate;
    const double in_stage =
        2.0 * ceil((double)info->n_layer / n_stages) * reduce_on(m->link, m->devices, state * rows);
    const double turn = fmax(slowest->prefill + in_stage, m->net.latency + m->devices * state * rows / m->net.rate);
    s->decode = seqs / (stages + sums + passed);
    s->messages = (sums + passed) / (stages + sums + passed);
    s->prefill = pipelined_rate(m, rows, n_stages, turn);
}

static tn_status plan_split(const char *path, const struct machines *m, const tn_model_params *model_params,
                            const tn_session_params *params, const tn_model_info *info,
                            const struct rank_figures *whole, int n, enum node_split split, struct split_figures *s) {
    struct rank_figures first, middle, last;
    const int second = split == SPLIT_STAGES ? m->devices : 1, n_stages = n / second;
    TN_TRY(plan_rank(path, m, model_params, params, 0, n, split, &first));
    last = middle = first;
    if (n > 1) TN_TRY(plan_rank(path, m, model_params, params, n - 1, n, split, &last));
    if (n > 2 * second) TN_TRY(plan_rank(path, m, model_params, params, second, n, split, &middle));
    *s = (struct split_figures){.bytes = first.bytes, .available = first.available};
    if (middle.bytes > s->bytes) s->bytes = middle.bytes;
    if (last.bytes > s->bytes) s->bytes = last.bytes;
    s->fits = s->bytes <= s->available;
    struct rank_figures slowest = first;
    slowest.prefill = fmax(fmax(first.prefill, middle.prefill), last.prefill);
    slowest.decode = fmax(fmax(first.decode, middle.decode), last.decode);
    if (split == SPLIT_ROWS)
        predict_rows(m, &slowest, info, n, s);
    else if (split == SPLIT_LAYERS)
        predict_layers(m, &slowest, whole, info, n, s);
    else
        predict_stages(m, &slowest, first.decode + last.decode + (n_stages - 2) * middle.decode, info, n_stages, s);
    return TN_OK;
}

/* A local device has the peaks of `tenon devices --measure`, which the caller has loaded. Of described ones the
 * messages run on the CPU, which the model of messages counts. */
static int declare_peaks(const struct machines *m, int n_threads) {
    tn_device *cpu, *device;
    tn_device_speed speed;
    if (m->local && tn_device_find(m->device, &device) == TN_OK &&
        tn_device_get_speed(device, tn_device_get_kind(device) == TN_DEVICE_CPU ? n_threads : 0, &speed) != TN_OK)
        return fail("%s; run tenon devices --measure", tn_error());
    if (m->local && strcmp(m->device, "cpu") == 0) return EXIT_OK;
    const tn_device_speed host = tn_speed_from_rates(&(tn_device_rates){1e11, 1e12, 1e12, 1e12, 1e11, 1e-7});
    if (tn_device_find("cpu", &cpu) != TN_OK || tn_device_set_speed(cpu, n_threads, &host) != TN_OK)
        return fail("%s", tn_error());
    return EXIT_OK;
}

int print_nodes_plan(const char *path, const char *nodes, const tn_model_params *model_params,
                     const tn_session_params *params, bool small_batches, FILE *out) {
    struct machines m;
    tn_model *model;
    int code = parse_nodes(nodes, &m);
    if (code) return code;
    tn_status status = tn_model_open(path, model_params, &model);
    if (status != TN_OK) return fail_status(status, "%s", "");
    const tn_model_info info = tn_model_get_info(model);
    tn_model_close(model);
    if ((code = declare_peaks(&m, params->n_threads))) return code;
    m.pipelined = small_batches && m.local && strcmp(m.device, "cpu") == 0;
    const int all = m.nodes * m.devices;
    char best[96] = "", bytes[HUMAN_SIZE], available[HUMAN_SIZE];
    double best_speed = 0;
    fprintf(
        out,
        "%d machine%s with %d × %s; %.3g GB/s and %.3g us between devices, %.3g GB/s and %.3g us between machines\n",
        m.nodes, m.nodes == 1 ? "" : "s", m.devices, m.device, m.link.rate / 1e9, m.link.latency * 1e6,
        m.net.rate / 1e9, m.net.latency * 1e6);
    fprintf(out, "%6s  %-8s %12s %12s  %5s %14s %14s %9s\n", "ranks", "split", "per rank", "available", "fits",
            "prompt tok/s", "decode tok/s", "messages");
    struct rank_figures whole;
    status = plan_rank(path, &m, model_params, params, 0, 1, SPLIT_ROWS, &whole);
    if (status != TN_OK) return fail_status(status, "%s", path);
    for (int n = 1; n <= all; n = n < all && 2 * n > all ? all : 2 * n) {
        for (enum node_split split = SPLIT_ROWS; split < SPLITS; split++) {
            struct split_figures s;
            if ((n == 1 && split != SPLIT_ROWS) ||
                (split == SPLIT_STAGES && (m.devices == 1 || n <= m.devices || n % m.devices)))
                continue;
            const char *name = split_name(&m, split, n);
            status = plan_split(path, &m, model_params, params, &info, &whole, n, split, &s);
            if (status != TN_OK) {
                fprintf(out, "%6d  %-8s %s\n", n, name, tn_error());
                continue;
            }
            fprintf(out, "%6d  %-8s %12s %12s  %5s %14.4g %14.4g %8.0f%%\n", n, name, human_bytes(bytes, s.bytes),
                    human_bytes(available, s.available), s.fits ? "yes" : "no", s.prefill, s.decode,
                    100 * s.messages);
            if (!s.fits || s.decode <= best_speed) continue;
            best_speed = s.decode;
            snprintf(best, sizeof best, "%d rank%s%s%s", n, n == 1 ? "" : "s", n > 1 ? ", --nodes-split " : "",
                     n > 1 ? name : "");
        }
        if (n == all) break;
    }
    if (*best)
        fprintf(out, "Fastest decode that fits: %s, %.4g tokens/s predicted.\n", best, best_speed);
    else
        fprintf(out, "Nothing fits: more or larger devices, a smaller context (-c) or a smaller quantization.\n");
    return *best ? EXIT_OK : EXIT_NOTHING_FITS;
}
