/* tenon devices: the compute devices of this machine and their memory. */
#include "cli/cli.h"
#include "cli/json_output.h"
#include "cli/term.h"

#include "tenon/backend.h"
#include "tenon/cpu.h"

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

static int print_devices_text(void) {
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
    }
    return EXIT_OK;
}

static int print_devices_json(void) {
    json_t *list = json_array();
    int code = EXIT_OK;
    for (size_t i = 0; i < tn_device_count() && code == EXIT_OK; i++) {
        tn_device *device = tn_device_get(i);
        tn_device_caps caps = tn_device_get_caps(device);
        size_t available = 0, total = 0;
        tn_status status = tn_device_memory(device, &available, &total);
        if (status != TN_OK) code = fail_status(status, "memory of %s", tn_device_name(device));
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:{s:b, s:b, s:b, s:b, s:b}}", "name",
                                              tn_device_name(device), "description", tn_device_description(device),
                                              "kind", tn_device_kind_name(tn_device_get_kind(device)), "free",
                                              (json_int_t)available, "total", (json_int_t)total, "domain",
                                              tn_device_name(tn_device_domain(device)), "capabilities", "async",
                                              caps.async, "events", caps.events, "host_buffers", caps.host_buffers,
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
    return args_flag(args, "json") ? print_devices_json() : print_devices_text();
}

static const struct option options[] = {
    OPTION_JSON,
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
        "Loadable backends are searched next to the library and in the folders and files listed in "
        "TENON_BACKEND_PATH. "
        "TENON_CPU=generic|avx2|avx512|amx|neon limits the CPU kernels to that instruction set. "
        "Simulated devices: sim:SIZE or sim:CARD (--presets), with settings separated by commas. Memory: uma=1 "
        "draws from the host's memory, limit=BYTES of it for the GPU, report=0 hides its size, card=NAME shares "
        "it, align=BYTES, max-alloc=BYTES, memory-only=1. Rates for predictions: read=936G, f32, f16=71T, i8, "
        "link, launch=5us. Behaviour: latency=TIME, bandwidth=BYTES, ops=NAME+NAME or -NAME, "
        "fail=alloc:N|copy:N|lost:N, offload=1, name=NAME.",
    .examples = "tenon devices\n"
                "tenon devices --json\n",
    .run = run_devices,
};
