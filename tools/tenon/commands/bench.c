/* tenon bench: how fast a model reads and writes here, and how much of the memory's bandwidth that is. */
#include "cli/term.h"
#include "engine/bandwidth.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

#include "tenon/cpu.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct bench {
    const struct args *args;
    struct loaded_model loaded;
    tn_model_info info;
    const char *path;
    int32_t prompt, generate, depth;
    int repeats;
    struct progress progress;
    double bandwidth;         /* bytes per second; 0: not known */
    const char *bandwidth_of; /* the device it belongs to */
};

/* One kind of work, measured several times. */
struct result {
    const char *name;
    int32_t tokens;
    double *rates;          /* tokens per second, sorted */
    double bytes_per_token; /* read from memory; 0: not what limits it */
};

/* ---- Measuring --------------------------------------------------------------------------------------------------
 */

/* What the tokens are makes no difference to the arithmetic. */
static tn_token token_at(const struct bench *b, int32_t i) {
    return (tn_token)((uint32_t)i * 7919u % (uint32_t)b->info.n_vocab);
}

/* Decodes tokens [from, from + count), `step` at a time. */
static tn_status feed(struct bench *b, int32_t from, int32_t count, int32_t step) {
    tn_token tokens[2048];
    if (step > 2048) step = 2048;
    for (int32_t done = 0; done < count; done += step) {
        int32_t n = count - done < step ? count - done : step;
        for (int32_t i = 0; i < n; i++) tokens[i] = token_at(b, from + done + i);
        TN_TRY(tn_session_decode(b->loaded.session, &(tn_batch){.n_tokens = n, .tokens = tokens}));
        progress_update(&b->progress, b->progress.done + (uint64_t)n);
    }
    return TN_OK;
}

/* A cache that holds `depth` tokens. Windows cannot go back, so they start from nothing. */
static tn_status go_to_depth(struct bench *b) {
    int32_t batch = tn_session_get_params(b->loaded.session).n_batch;
    if (b->info.n_window > 0) tn_session_clear(b->loaded.session);
    if (tn_session_seq_last(b->loaded.session, 0) + 1 < b->depth) {
        tn_session_clear(b->loaded.session);
        return feed(b, 0, b->depth, batch);
    }
    return tn_session_seq_remove(b->loaded.session, 0, b->depth, -1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tn_status measure(struct bench *b, struct result *r, int32_t step) {
    if (!(r->rates = tn_calloc((size_t)b->repeats, sizeof *r->rates))) return TN_E_NOMEM;
    TN_TRY(go_to_depth(b));
    TN_TRY(feed(b, b->depth, step < r->tokens ? step : r->tokens, step)); /* warms up */
    for (int i = 0; i < b->repeats; i++) {
        TN_TRY(go_to_depth(b));
        uint64_t begin = tn_time_ns();
        TN_TRY(feed(b, b->depth, r->tokens, step));
        uint64_t ns = tn_time_ns() - begin;
        r->rates[i] = (double)r->tokens * 1e9 / (double)(ns ? ns : 1);
    }
    qsort(r->rates, (size_t)b->repeats, sizeof *r->rates, ascending);
    return TN_OK;
}

static double median(const struct bench *b, const struct result *r) {
    size_t n = (size_t)b->repeats;
    return n % 2 ? r->rates[n / 2] : (r->rates[n / 2 - 1] + r->rates[n / 2]) / 2;
}

/* ---- Memory -----------------------------------------------------------------------------------------------------
 */

/* Bytes that one token reads: all matrices but the embedding table, of which it reads a row, of the experts those in
 * use, and the cached keys and values before it. */
static double bytes_per_token(const struct bench *b, double cache_bytes) {
    const tn_gguf *file = tn_model_file(b->loaded.model);
    double bytes = 0, table = 0;
    bool output = false;
    for (size_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        if (strcmp(t->name, "token_embd.weight") == 0) {
            table = (double)t->size;
            continue;
        }
        output = output || strcmp(t->name, "output.weight") == 0;
        bool experts = strstr(t->name, "_exps.") && b->info.n_expert;
        bytes += (double)t->size * (experts ? (double)b->info.n_expert_used / b->info.n_expert : 1);
    }
    double cells = tn_session_get_params(b->loaded.session).n_ctx, before = b->depth + b->generate / 2.0;
    return bytes + (output ? 0 : table) + cache_bytes * before / cells; /* a tied table is also the output matrix */
}

/* The bandwidth of the device that holds the weights; with several there is no one number. */
static void find_bandwidth(struct bench *b, const tn_fit *fit, double *cache_bytes) {
    const tn_fit_device *only = NULL;
    int holders = 0;
    *cache_bytes = 0;
    for (size_t i = 0; i < fit->n_devices; i++) {
        *cache_bytes += (double)fit->devices[i].cache;
        if (fit->devices[i].n_layers == 0) continue;
        only = &fit->devices[i];
        holders++;
    }
    if (holders != 1) return;
    tn_device *device;
    tn_status status = tn_device_find(only->name, &device);
    if (status == TN_OK) {
        b->bandwidth_of = tn_device_name(device);
        int threads = (int)args_int(b->args, "threads");
        if (tn_device_get_kind(device) == TN_DEVICE_CPU)
            b->bandwidth = bandwidth_host(threads ? threads : tn_cpu_count());
        else
            status = bandwidth_device(b->bandwidth_of, &b->bandwidth);
    }
    if (status != TN_OK) warn("the bandwidth of %s cannot be measured: %s", only->name, tn_error());
}

static uint64_t peak_resident(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

/* ---- Showing ----------------------------------------------------------------------------------------------------
 */

static double share(const struct bench *b, const struct result *r) {
    return b->bandwidth > 0 && r->bytes_per_token > 0 ? median(b, r) * r->bytes_per_token / b->bandwidth : 0;
}

static int print_text(const struct bench *b, const struct result *results, int count, uint64_t peak) {
    struct memory_use m;
    char x[HUMAN_SIZE], y[HUMAN_SIZE];
    int threads = (int)args_int(b->args, "threads");
    if (!loaded_model_memory(&b->loaded, &m)) return EXIT_ERROR;
    printf("model        %s: %s, %s parameters, %s\n", b->path, b->info.architecture,
           human_count(x, (double)b->info.n_params), human_bytes(y, b->info.bytes));
    printf("processor    %s, %s kernels, %d threads\n", tn_cpu_name(), tn_cpu_level(),
           threads ? threads : tn_cpu_count());
    if (b->bandwidth > 0) printf("bandwidth    %.1f GB/s measured on %s\n", b->bandwidth * 1e-9, b->bandwidth_of);
    if (b->depth) printf("depth        %d tokens in the cache before each run\n", b->depth);
    printf("\n%s%-16s %12s  %-21s %s%s\n", style(stdout, STYLE_BOLD), "", "tokens/s", "  lowest … highest",
           "of the bandwidth", style(stdout, STYLE_NONE));
    for (int i = 0; i < count; i++) {
        const struct result *r = &results[i];
        printf("%-10s %5d %12.2f  %8.2f … %-8.2f", r->name, r->tokens, median(b, r), r->rates[0],
               r->rates[b->repeats - 1]);
        if (share(b, r) > 0) printf("  %.0f %%", 100 * share(b, r));
        putchar('\n');
    }
    printf("\nmedian of %d runs\nmemory planned %s %s used %s, ", b->repeats, human_bytes(x, m.planned),
           m.planned == m.used ? "=" : "but", human_bytes(y, m.used));
    printf("weights mapped %s, ", human_bytes(x, m.mapped));
    printf("process at most %s\n", human_bytes(y, peak));
    return EXIT_OK;
}

static int print_json(const struct bench *b, const struct result *results, int count, uint64_t peak) {
    struct memory_use m;
    int threads = (int)args_int(b->args, "threads");
    if (!loaded_model_memory(&b->loaded, &m)) return EXIT_ERROR;
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *rates = json_array();
        for (int k = 0; k < b->repeats; k++) json_array_append_new(rates, json_real(results[i].rates[k]));
        json_t *entry = json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:o}", "test", results[i].name, "tokens",
                                  results[i].tokens, "depth", b->depth, "median", median(b, &results[i]), "lowest",
                                  results[i].rates[0], "highest", results[i].rates[b->repeats - 1], "rates", rates);
        if (share(b, &results[i]) > 0) {
            json_object_set_new(entry, "bytes_per_token", json_real(results[i].bytes_per_token));
            json_object_set_new(entry, "share_of_bandwidth", json_real(share(b, &results[i])));
        }
        json_array_append_new(list, entry);
    }
    json_t *root = json_pack(
        "{s:{s:s, s:s, s:I, s:I}, s:{s:s, s:s, s:i}, s:f, s:{s:I, s:I, s:I, s:I}, s:o}", "model", "path", b->path,
        "architecture", b->info.architecture, "parameters", (json_int_t)b->info.n_params, "bytes",
        (json_int_t)b->info.bytes, "processor", "name", tn_cpu_name(), "kernels", tn_cpu_level(), "threads",
        threads ? threads : tn_cpu_count(), "bandwidth", b->bandwidth, "memory", "planned", (json_int_t)m.planned,
        "used", (json_int_t)m.used, "mapped", (json_int_t)m.mapped, "process", (json_int_t)peak, "results", list);
    if (!root) return fail("out of memory");
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return EXIT_OK;
}

/* ---- The command ------------------------------------------------------------------------------------------------
 */

static int measure_all(struct bench *b) {
    struct result results[2];
    int count = 0;
    double cache_bytes = 0;
    tn_fit fit;
    uint64_t per_round = (uint64_t)(b->prompt + b->generate + (b->info.n_window > 0 ? 2 * b->depth : 0));
    uint64_t warm_up = (uint64_t)b->depth + (uint64_t)b->prompt + (b->generate > 0);
    tn_status status = tn_session_memory(b->loaded.session, &fit);
    if (status != TN_OK) return fail_status(status, "memory");
    uint64_t peak = peak_resident(); /* of the session alone: measuring the bandwidth takes memory too */
    progress_start(&b->progress, "measuring", warm_up + (uint64_t)b->repeats * per_round, PROGRESS_ITEMS);
    if (b->prompt) {
        results[count] = (struct result){.name = "prompt", .tokens = b->prompt};
        status = measure(b, &results[count++], tn_session_get_params(b->loaded.session).n_batch);
    }
    if (b->generate && status == TN_OK) {
        results[count] = (struct result){.name = "generation", .tokens = b->generate};
        status = measure(b, &results[count++], 1);
    }
    progress_end(&b->progress);
    if (peak_resident() > peak) peak = peak_resident();
    int code = status == TN_OK ? EXIT_OK : fail_status(status, "%s", "");
    if (!code) find_bandwidth(b, &fit, &cache_bytes);
    if (!code && b->generate) results[count - 1].bytes_per_token = bytes_per_token(b, cache_bytes);
    if (!code)
        code = args_flag(b->args, "json") ? print_json(b, results, count, peak) : print_text(b, results, count, peak);
    for (int i = 0; i < count; i++) tn_free(results[i].rates);
    tn_fit_free(&fit);
    return code;
}

static int run_bench(const struct args *args) {
    char buffer[4096];
    tn_session_params params;
    struct bench b = {.args = args,
                      .prompt = (int32_t)args_int(args, "prompt"),
                      .generate = (int32_t)args_int(args, "predict"),
                      .depth = (int32_t)args_int(args, "depth"),
                      .repeats = (int)args_int(args, "repeat")};
    if (!b.prompt && !b.generate) return fail_usage(args, "nothing to measure: both -p and -n are 0");
    if (!(b.path = find_model(args, buffer, sizeof buffer))) return EXIT_ERROR;
    int code = session_params_from(args, &params);
    if (code) return code;
    params.n_ctx = b.depth + (b.prompt > b.generate ? b.prompt : b.generate);
    if ((code = loaded_model_open(args, b.path, &params, &b.loaded))) return code;
    b.info = tn_model_get_info(b.loaded.model);
    code = measure_all(&b);
    loaded_model_close(&b.loaded);
    return code;
}

static const struct option options[] = {
    {.name = "prompt",
     .letter = "p",
     .aliases = "--n-prompt",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1 << 24,
     .fallback = "512",
     .help = "tokens to read at once, 0 for none"},
    {.name = "predict",
     .letter = "n",
     .aliases = "--n-gen --n-predict",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1 << 24,
     .fallback = "128",
     .help = "tokens to write one by one, 0 for none"},
    {.name = "depth",
     .letter = "d",
     .aliases = "--n-depth",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1 << 24,
     .fallback = "0",
     .help = "tokens already in the cache"},
    {.name = "repeat",
     .letter = "r",
     .aliases = "--repetitions",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1000,
     .fallback = "5",
     .help = "runs of each kind"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {&model_options, NULL};

const struct command command_bench = {
    .name = "bench",
    .summary = "measure speed, bandwidth and memory",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details =
        "Shows the median of several runs with the lowest and the highest, for reading a prompt and for writing "
        "token by token. Writing reads all weights for every token: its share of the memory bandwidth, which "
        "is measured here and now with the same threads, says how much faster it could be at best.",
    .examples = "tenon bench model.gguf\n"
                "tenon bench model.gguf -p 0 -n 64 -d 4096             # writing, with 4096 tokens in the cache\n"
                "tenon bench model.gguf -t 4 -r 10 --json",
    .section = SECTION_USE,
    .max_arguments = 1,
    .run = run_bench,
};
