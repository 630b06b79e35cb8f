/* Ranks on described machines: each rank's session is planned and predicted on a simulated device, or on a device of
 * this machine that was measured, and messages are added by a latency-bandwidth model. docs/scaling.md has the
 * formula. */
#include "ranks/nodes.h"

#include "cli/term.h"
#include "ranks/ranks.h"
#include "ranks/split_speed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_NOTHING_FITS = 3 /* as tenon plan */ };

struct machines {
    int nodes;
    char device[256]; /* of sim:, or one of this machine */
    bool local;       /* the latter */
    bool pipelined;   /* ranks with whole layers have RANKS_PIPELINED_UBATCH */
    struct rank_links links;
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
    } settings[] = {{"link=", &m->links.link.rate},
                    {"link-latency=", &m->links.link.latency},
                    {"net=", &m->links.net.rate},
                    {"latency=", &m->links.net.latency},
                    {"prompt=", &m->links.prompt}};
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
    *m = (struct machines){.nodes = 1, .links = {.devices = 1, .link = {64e9, 3e-6}, .net = {12.5e9, 5e-6}}};
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
    m->links.devices = n_counts == 2 ? counts[1] : counts[0];
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
    if (valid && m->device[0] && (int64_t)m->nodes * m->links.devices <= TN_NET_RANKS_MOST) return EXIT_OK;
    return fail("--nodes takes [MACHINESx]DEVICESx DEVICE[,link=RATE,link-latency=TIME][; "
                "net=RATE,latency=TIME,prompt=TOKENS] with "
                "up to %d devices, as in \"2x8x h200,link=450G; net=50G,latency=3us\", not \"%s\"",
                TN_NET_RANKS_MOST, text);
}

/* ---- Ranks ---- */

struct split_figures {
    size_t bytes, available;
    struct split_speed speed;
    bool fits;
};

static const char *split_name(const struct machines *m, enum node_split split, int n) {
    if (n == 1) return "-";
    if (split == SPLIT_ROWS) return "row";
    return split == SPLIT_LAYERS && n > m->links.devices && m->links.devices > 1 ? "pipeline" : "layer";
}

static tn_status plan_rank(const char *path, const struct machines *m, const tn_model_params *model_params,
                           const tn_session_params *params, int rank, int n, enum node_split split,
                           struct rank_figures *figures) {
    char device[300];
    tn_model_params mp = *model_params;
    tn_session_params p = *params;
    const tn_placement_override embedding = {"token_embd", m->local ? m->device : "node"};
    snprintf(device, sizeof device, m->local ? "%s" : "sim:%s,memory-only=1,name=node", m->device);
    mp.n_ranks = n;
    mp.rank = rank;
    mp.by_layers = split != SPLIT_ROWS;
    mp.stage_ranks = split == SPLIT_STAGES ? m->links.devices : 1;
    memset(p.devices, 0, sizeof p.devices);
    p.devices[0] = device;
    if (m->local && strcmp(device, "cpu") != 0) p.devices[1] = "cpu";
    if (m->pipelined && split != SPLIT_ROWS) p.n_ubatch = RANKS_PIPELINED_UBATCH;
    p.n_gpu_layers = INT32_MAX;
    p.overrides = &embedding;
    p.n_overrides = 1;
    return plan_rank_speed(path, &mp, &p, m->links.prompt, figures);
}

static tn_status plan_split(const char *path, const struct machines *m, const tn_model_params *model_params,
                            const tn_session_params *params, const tn_model_info *info,
                            const struct rank_figures *whole, int n, enum node_split split, struct split_figures *s) {
    struct rank_figures first, middle, last;
    const int second = split == SPLIT_STAGES ? m->links.devices : 1, n_stages = n / second;
    TN_TRY(plan_rank(path, m, model_params, params, 0, n, split, &first));
    last = middle = first;
    if (n > 1) TN_TRY(plan_rank(path, m, model_params, params, n - 1, n, split, &last));
    if (n > 2 * second) TN_TRY(plan_rank(path, m, model_params, params, second, n, split, &middle));
    *s = (struct split_figures){.bytes = first.bytes, .available = first.available};
    if (middle.bytes > s->bytes) s->bytes = middle.bytes;
    if (last.bytes > s->bytes) s->bytes = last.bytes;
    s->fits = s->bytes <= s->available;
    struct ranks_times times = {.slowest_prefill = fmax(fmax(first.prefill, middle.prefill), last.prefill),
                                .slowest_decode = fmax(fmax(first.decode, middle.decode), last.decode),
                                .all_prefill = whole->prefill * first.rows / whole->rows,
                                .all_decode = whole->decode,
                                .rows = first.rows,
                                .seqs = first.seqs};
    /* Ranks between the first and the last may have a layer more or less. */
    if (split == SPLIT_LAYERS && n == 2) times.all_decode = first.decode + last.decode;
    if (split == SPLIT_STAGES) times.all_decode = first.decode + last.decode + (n_stages - 2) * middle.decode;
    s->speed = predict_split(&m->links, info, n, split, &times);
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
    const int all = m.nodes * m.links.devices;
    char best[96] = "", bytes[HUMAN_SIZE], available[HUMAN_SIZE];
    double best_speed = 0;
    fprintf(
        out,
        "%d machine%s with %d × %s; %.3g GB/s and %.3g us between devices, %.3g GB/s and %.3g us between machines\n",
        m.nodes, m.nodes == 1 ? "" : "s", m.links.devices, m.device, m.links.link.rate / 1e9,
        m.links.link.latency * 1e6, m.links.net.rate / 1e9, m.links.net.latency * 1e6);
    fprintf(out, "%6s  %-8s %12s %12s  %5s %14s %14s %9s\n", "ranks", "split", "per rank", "available", "fits",
            "prompt tok/s", "decode tok/s", "messages");
    struct rank_figures whole;
    status = plan_rank(path, &m, model_params, params, 0, 1, SPLIT_ROWS, &whole);
    if (status != TN_OK) return fail_status(status, "%s", path);
    for (int n = 1; n <= all; n = n < all && 2 * n > all ? all : 2 * n) {
        for (enum node_split split = SPLIT_ROWS; split < SPLITS; split++) {
            struct split_figures s;
            if ((n == 1 && split != SPLIT_ROWS) ||
                (split == SPLIT_STAGES && (m.links.devices == 1 || n <= m.links.devices || n % m.links.devices)))
                continue;
            const char *name = split_name(&m, split, n);
            status = plan_split(path, &m, model_params, params, &info, &whole, n, split, &s);
            if (status != TN_OK) {
                fprintf(out, "%6d  %-8s %s\n", n, name, tn_error());
                continue;
            }
            fprintf(out, "%6d  %-8s %12s %12s  %5s %14.4g %14.4g %8.0f%%\n", n, name, human_bytes(bytes, s.bytes),
                    human_bytes(available, s.available), s.fits ? "yes" : "no", s.speed.prefill, s.speed.decode,
                    100 * s.speed.messages);
            if (!s.fits || s.speed.decode <= best_speed) continue;
            best_speed = s.speed.decode;
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
