/* tenon devices: the compute devices of this machine, their memory and their measured peaks. */
#include "cli/cli.h"
#include "cli/json_output.h"
#include "cli/term.h"
#include "engine/speed_cache.h"

#include "tenon/cpu.h"

#include <string.h>

static void print_caps(const tn_device_caps *caps) {
    static const struct {
        const char *name;
        size_t offset;
    } names[] = {
        {"asynchronous", offsetof(tn_device_caps, async)},
        {"events", offsetof(tn_device_caps, events)},
        {"pinned host memory", offsetof(tn_device_caps, host_buffers)},
        {"maps host memory", offsetof(tn_device_caps, wrap_host)},
        {"unified memory", offsetof(tn_device_caps, unified)},
    };
    const char *separator = "  features  ";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!*(const bool *)((const char *)caps + names[i].offset)) continue;
        printf("%s%s", separator, names[i].name);
        separator = ", ";
    }
    if (separator[0] == ',') putchar('\n');
}

/* ---- Peaks ---- */

static bool has_speed(tn_device *device, int n_threads, tn_device_speed *speed) {
    if (tn_device_get_speed(device, n_threads, speed) == TN_OK) return true;
    tn_error_clear();
    return false;
}

static char *human_rate(char out[HUMAN_SIZE], double rate) {
    if (rate >= 1e12)
        snprintf(out, HUMAN_SIZE, "%.2f T", rate * 1e-12);
    else
        snprintf(out, HUMAN_SIZE, "%.1f G", rate * 1e-9);
    return out;
}

static void print_speed(const tn_device_speed *s) {
    char a[HUMAN_SIZE], b[HUMAN_SIZE];
    printf("  %-9s read %sB/s", s->given ? "given" : "measured", human_rate(a, s->read));
    if (s->link > 0) printf(", link %sB/s", human_rate(b, s->link));
    printf(", %.1f µs per node, %.0f µs per run\n", s->launch[TN_LAUNCH_DECODE] * 1e6, s->run * 1e6);
    if (s->given) return;
    printf("            operations per second, by weights and rows\n            %-8s", "");
    for (int p = 0; p < TN_SPEED_POINTS; p++) printf(" %9lld", (long long)tn_speed_rows(p));
    putchar('\n');
    for (int t = 0; t < TN_TYPE_LIMIT; t++) {
        if (!tn_type_valid((tn_type)t) || !(s->multiply[t][0] > 0)) continue;
        printf("            %-8s", tn_type_name((tn_type)t));
        for (int p = 0; p < TN_SPEED_POINTS; p++) printf(" %9s", human_rate(a, s->multiply[t][p]));
        putchar('\n');
    }
    printf("            matmul: %.1f µs at the ends with many rows; experts: %.1f µs per node,", s->ramp * 1e6,
           s->launch[TN_LAUNCH_EXPERTS] * 1e6);
    for (int p = 0; p < TN_SPEED_POINTS; p++) printf(" %.0f%%", s->experts[p] * 100);
    printf(" of the rates\n            attention: many rows %s; one row, ns per key, by heads:",
           human_rate(a, s->attention_many));
    for (int i = 0; i < TN_SPEED_GROUPS; i++)
        printf(" %lld: %.3g,", (long long)tn_speed_group(i),
               s->attention_keys[i] > 0 ? 1e9 / s->attention_keys[i] : 0);
    printf(" %.0f%% of it for keys of any size\n", s->attention_fixed * 100);
}

static json_t *rates_json(const double *rates, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_real(rates[i]));
    return list;
}

static json_t *speed_json(const tn_device_speed *s) {
    json_t *types = json_object();
    for (int t = 0; t < TN_TYPE_LIMIT; t++)
        if (tn_type_valid((tn_type)t) && s->multiply[t][0] > 0)
            json_object_set_new(types, tn_type_name((tn_type)t), rates_json(s->multiply[t], TN_SPEED_POINTS));
    return json_pack("{s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "given", (int)s->given,
                     "read", s->read, "read_mapped", s->read_mapped, "move", s->move, "ramp", s->ramp,
                     "attention_fixed", s->attention_fixed, "attention_many", s->attention_many, "link", s->link,
                     "run", s->run, "attention_keys", rates_json(s->attention_keys, TN_SPEED_GROUPS), "launch",
                     rates_json(s->launch, TN_LAUNCH_KINDS), "experts", rates_json(s->experts, TN_SPEED_POINTS),
                     "multiply", types);
}

/* All devices, or the one that is named. Simulated devices and descriptions are measured only by name. */
static int measure_devices(const struct args *args, tn_device *named) {
    const int n_threads = (int)args_int(args, "threads");
    int code = named ? speed_measure(named, n_threads, 0) : EXIT_OK;
    for (size_t i = 0; !named && i < tn_device_count() && !code; i++) {
        tn_device *device = tn_device_get(i);
        if (!tn_device_get_caps(device).described && strncmp(tn_device_description(device), "simulated", 9) != 0)
            code = speed_measure(device, n_threads, 0);
    }
    return code;
}

/* ---- The list ---- */

static int print_devices_text(int n_threads) {
    for (size_t i = 0; i < tn_device_count(); i++) {
        tn_device *device = tn_device_get(i);
        size_t available = 0, total = 0;
        char a[HUMAN_SIZE], b[HUMAN_SIZE];
        printf("%s%s%s  %s\n", style(stdout, STYLE_BOLD), tn_device_name(device), style(stdout, STYLE_NONE),
               tn_device_description(device));
        tn_status status = tn_device_memory(device, &available, &total);
        if (status != TN_OK) return fail_status(status, "memory of %s", tn_device_name(device));
        printf("  kind      %s\n", tn_device_kind_name(tn_device_get_kind(device)));
        printf("  free      %s of %s\n", human_bytes(a, available), human_bytes(b, total));
        if (tn_device_domain(device) != device)
            printf("  domain    draws from the memory of %s\n", tn_device_name(tn_device_domain(device)));
        tn_device_caps caps = tn_device_get_caps(device);
        print_caps(&caps);
        tn_buffer_type *type = tn_device_buffer_type(device);
        printf("  memory    %s, aligned to %zu", tn_buffer_type_name(type), tn_buffer_type_alignment(type));
        for (size_t k = 0; (type = tn_device_extra_buffer_type(device, k)); k++)
            printf("; also %s", tn_buffer_type_name(type));
        putchar('\n');
        tn_device_speed speed;
        if (has_speed(device, n_threads, &speed))
            print_speed(&speed);
        else
            puts("  speed     not measured: run tenon devices --measure");
    }
    return EXIT_OK;
}

static int print_devices_json(int n_threads) {
    json_t *list = json_array();
    int code = EXIT_OK;
    for (size_t i = 0; i < tn_device_count() && code == EXIT_OK; i++) {
        tn_device *device = tn_device_get(i);
        tn_device_caps caps = tn_device_get_caps(device);
        size_t available = 0, total = 0;
        tn_status status = tn_device_memory(device, &available, &total);
        if (status != TN_OK) code = fail_status(status, "memory of %s", tn_device_name(device));
        tn_device_speed speed;
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:o, s:{s:b, s:b, s:b, s:b, s:b}}", "name",
                            tn_device_name(device), "description", tn_device_description(device), "kind",
                            tn_device_kind_name(tn_device_get_kind(device)), "free", (json_int_t)available, "total",
                            (json_int_t)total, "domain", tn_device_name(tn_device_domain(device)), "speed",
                            has_speed(device, n_threads, &speed) ? speed_json(&speed) : json_null(), "capabilities",
                            "async", caps.async, "events", caps.events, "host_buffers", caps.host_buffers,
                            "wrap_host", caps.wrap_host, "unified", caps.unified));
    }
    json_t *root = json_pack("{s:{s:s, s:s, s:i}, s:o}", "cpu", "name", tn_cpu_name(), "level", tn_cpu_level(),
                             "cores", tn_cpu_count(), "devices", list);
    if (code == EXIT_OK) return print_json_document(root);
    json_decref(root);
    return code;
}

static int print_presets(void) {
    size_t n;
    const tn_device_preset *p = tn_device_presets(&n);
    printf("%-16s %-22s %9s %11s %13s %12s\n", "simulated as", "card", "memory", "read", "f16", "link");
    for (size_t i = 0; i < n; i++, p++) {
        char name[64], memory[HUMAN_SIZE];
        snprintf(name, sizeof name, "sim:%s", p->name);
        printf("%-16s %-22s %9s %6.0f GB/s %7.1f Top/s", name, p->title, human_bytes(memory, p->memory),
               p->rates.read / 1e9, p->rates.f16 / 1e12);
        if (p->unified)
            printf(" %12s\n", "unified");
        else
            printf(" %7.1f GB/s\n", p->rates.link / 1e9);
    }
    return EXIT_OK;
}

static int run_devices(const struct args *args) {
    const char *extra = args_text(args, "add");
    tn_device *device;
    if (args_flag(args, "presets")) return print_presets();
    if (extra) {
        tn_status status = tn_device_find(extra, &device);
        if (status != TN_OK) return fail_status(status, "%s", "");
    }
    const char *name = args_text(args, "device");
    tn_device *named = NULL;
    if (name) {
        tn_status status = tn_device_find(name, &named);
        if (status != TN_OK) return fail_status(status, "%s", "");
    }
    int code = args_flag(args, "measure") ? measure_devices(args, named) : EXIT_OK;
    if (code) return code;
    speed_cache_load();
    const int n_threads = (int)args_int(args, "threads");
    return args_flag(args, "json") ? print_devices_json(n_threads) : print_devices_text(n_threads);
}

static const struct option options[] = {
    OPTION_JSON,
    OPTION_THREADS,
    {.name = "measure",
     .kind = OPTION_FLAG,
     .help = "measure what the devices reach, some 20 seconds each, and remember it for predictions"},
    {.name = "device", .value = "NAME", .kind = OPTION_TEXT, .help = "measure this device only"},
    {.name = "add",
     .value = "SPEC",
     .kind = OPTION_TEXT,
     .help = "also list this simulated device, e.g. sim:8G,align=256 or sim:rtx4090"},
    {.name = "presets", .kind = OPTION_FLAG, .help = "list the cards that are simulated by name"},
    {0},
};

const struct command command_devices = {
    .name = "devices",
    .summary = "list compute devices and their free memory",
    .section = SECTION_MEMORY,
    .options = options,
    .details =
        "--measure runs small graphs on each device. tenon plan predicts speeds from what was found. Measure when "
        "the "
        "machine has nothing else to do.\n\n"
        "Loadable backends are searched next to the library and in the folders and files listed in "
        "TENON_BACKEND_PATH. "
        "TENON_CPU=generic|avx2|avx512|amx|neon limits the CPU kernels to that instruction set. "
        "Simulated devices: sim:SIZE or sim:CARD (--presets), with settings separated by commas. Memory: uma=1 "
        "draws from the host's memory, limit=BYTES of it for the GPU, report=0 hides its size, card=NAME shares "
        "it, align=BYTES, max-alloc=BYTES, memory-only=1. Rates for predictions: read=936G, f32, f16=71T, i8, "
        "link, launch=5us. Behaviour: latency=TIME, bandwidth=BYTES, ops=NAME+NAME or -NAME, "
        "fail=alloc:N|copy:N|lost:N, offload=1, name=NAME.",
    .examples = "tenon devices\n"
                "tenon devices --measure\n"
                "tenon devices --json\n",
    .run = run_devices,
};
