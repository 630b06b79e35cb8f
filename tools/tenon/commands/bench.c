/* tenon bench: prefill and decode speed of a model, beside the predicted one, and the share of the memory bandwidth
 * that decode reaches. */
#include "cli/json_output.h"
#include "cli/length_list.h"
#include "cli/term.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/speed_cache.h"

#include "tenon/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct bench {
    const struct args *args;
    struct loaded_model loaded;
    tn_model_info info;
    const char *path;
    int32_t prompt, generate, depth, sequences;
    int repeats;
    struct progress progress;
    double bandwidth;        /* bytes per second; 0: unknown */
    tn_device *bandwidth_of; /* the device that holds all layers, or NULL */
    tn_session_speed predicted;
    bool predicts;
};

enum { MOST_BENCH_SEQUENCES = 512 };

/* Prefill or decode, measured several times. */
struct bench_result {
    const char *name;
    int32_t tokens;
    double *rates;          /* tokens per second, sorted */
    double bytes_per_token; /* read from memory; 0: the bandwidth is not the limit */
    double predicted;       /* tokens per second; 0: not predicted */
};

/* ---- Measuring ---- */

/* Any tokens will do: the work does not depend on them. */
static tn_token token_at(const struct bench *b, int32_t i) {
    return (tn_token)((uint32_t)i * 7919u % (uint32_t)b->info.n_vocab);
}

/* Decodes tokens [from, from + count), `step` at a time. */
static tn_status decode_range(struct bench *b, int32_t from, int32_t count, int32_t step) {
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

/* Brings the cache to `depth` tokens. A sliding window has dropped earlier tokens, so the cache is filled again from
 * the start. */
static tn_status set_depth(struct bench *b) {
    int32_t batch = tn_session_get_params(b->loaded.session).n_batch;
    if (b->info.n_window > 0) tn_session_clear(b->loaded.session);
    if (tn_session_seq_last(b->loaded.session, 0) + 1 < b->depth) {
        tn_session_clear(b->loaded.session);
        return decode_range(b, 0, b->depth, batch);
    }
    return tn_session_seq_remove(b->loaded.session, 0, b->depth, -1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tn_status measure_speed(struct bench *b, struct bench_result *r, int32_t step) {
    if (!(r->rates = tn_calloc((size_t)b->repeats, sizeof *r->rates))) return TN_E_NOMEM;
    TN_TRY(set_depth(b));
    TN_TRY(decode_range(b, b->depth, step < r->tokens ? step : r->tokens, step)); /* warm-up */
    for (int i = 0; i < b->repeats; i++) {
        TN_TRY(set_depth(b));
        uint64_t begin = tn_time_ns();
        TN_TRY(decode_range(b, b->depth, r->tokens, step));
        uint64_t ns = tn_time_ns() - begin;
        r->rates[i] = (double)r->tokens * 1e9 / (double)(ns ? ns : 1);
    }
    qsort(r->rates, (size_t)b->repeats, sizeof *r->rates, ascending);
    return TN_OK;
}

/* ---- Many sequences: prompts of all of them, then one token of each per step, as a server works ---- */

static tn_status decode_prompts(struct bench *b) {
    tn_token tokens[2048];
    int32_t seqs[2048], filled = 0, most = tn_session_get_params(b->loaded.session).n_batch;
    if (most > 2048) most = 2048;
    int64_t count = (int64_t)b->sequences * b->prompt;
    for (int64_t i = 0; i < count; i++) {
        tokens[filled] = token_at(b, (int32_t)(i % INT32_MAX));
        seqs[filled++] = (int32_t)(i / b->prompt);
        if (filled < most && i + 1 < count) continue;
        const tn_batch batch = {.n_tokens = filled, .tokens = tokens, .seqs = seqs};
        TN_TRY(tn_session_decode(b->loaded.session, &batch));
        progress_update(&b->progress, b->progress.done + (uint64_t)filled);
        filled = 0;
    }
    return TN_OK;
}

static tn_status decode_steps(struct bench *b, int32_t steps) {
    tn_token tokens[MOST_BENCH_SEQUENCES];
    int32_t seqs[MOST_BENCH_SEQUENCES];
    for (int32_t k = 0; k < steps; k++) {
        for (int32_t i = 0; i < b->sequences; i++) {
            tokens[i] = token_at(b, b->prompt + k + 31 * i);
            seqs[i] = i;
        }
        const tn_batch batch = {.n_tokens = b->sequences, .tokens = tokens, .seqs = seqs};
        TN_TRY(tn_session_decode(b->loaded.session, &batch));
        progress_update(&b->progress, b->progress.done + (uint64_t)b->sequences);
    }
    return TN_OK;
}

static double bench_rate(int64_t tokens, uint64_t ns) { return (double)tokens * 1e9 / (double)(ns ? ns : 1); }

/* Prompts, generation, and both: generated tokens over the time of prompts and generation. */
static tn_status measure_sequences(struct bench *b, struct bench_result r[3]) {
    for (int i = 0; i < 3; i++)
        if (!(r[i].rates = tn_calloc((size_t)b->repeats, sizeof *r[i].rates))) return TN_E_NOMEM;
    for (int i = -1; i < b->repeats; i++) { /* the first is a warm-up */
        tn_session_clear(b->loaded.session);
        uint64_t begin = tn_time_ns();
        TN_TRY(decode_prompts(b));
        uint64_t middle = tn_time_ns();
        TN_TRY(decode_steps(b, i < 0 && b->generate > 4 ? 4 : b->generate));
        uint64_t end = tn_time_ns();
        if (i < 0) continue;
        r[0].rates[i] = bench_rate((int64_t)b->sequences * b->prompt, middle - begin);
        r[1].rates[i] = bench_rate((int64_t)b->sequences * b->generate, end - middle);
        r[2].rates[i] = bench_rate((int64_t)b->sequences * b->generate, end - begin);
    }
    for (int i = 0; i < 3; i++) qsort(r[i].rates, (size_t)b->repeats, sizeof *r[i].rates, ascending);
    return TN_OK;
}

static double median(const struct bench *b, const struct bench_result *r) {
    size_t n = (size_t)b->repeats;
    return n % 2 ? r->rates[n / 2] : (r->rates[n / 2 - 1] + r->rates[n / 2]) / 2;
}

/* ---- Memory ---- */

/* Bytes that decoding one token reads: all matrices except the embedding table, of which only a row is read; only the
 * experts in use; and the cached keys and values of earlier tokens. The tokens of a step share the weights. */
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
        double used = experts ? (double)b->info.n_expert_used * b->sequences / b->info.n_expert : 1;
        bytes += (double)t->size * (used < 1 ? used : 1);
    }
    double cells = tn_session_get_params(b->loaded.session).n_ctx, before = b->depth + b->generate / 2.0;
    return (bytes + (output ? 0 : table)) / b->sequences +
           cache_bytes * before / cells; /* tied embeddings are read as the output matrix */
}

/* The device that holds the layers. With several no single bandwidth applies. */
static void find_layers(struct bench *b, const tn_fit *fit, double *cache_bytes) {
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
    if (tn_device_find(only->name, &b->bandwidth_of) != TN_OK) b->bandwidth_of = NULL;
}

/* A rate that decode has exceeded is no peak: other work disturbed the measurement, which is done again. */
static void measure_bandwidth(struct bench *b, double reached) {
    enum { ATTEMPTS = 4 };
    const tn_measure_params params = {.n_threads = (int)args_int(b->args, "threads")};
    for (int i = 0; b->bandwidth_of && i < ATTEMPTS && (i == 0 || b->bandwidth < reached); i++) {
        double rate = 0;
        if (tn_device_measure_read(b->bandwidth_of, &params, &rate) != TN_OK) {
            warn("cannot measure the bandwidth of %s: %s", tn_device_name(b->bandwidth_of), tn_error());
            return;
        }
        if (rate > b->bandwidth) b->bandwidth = rate;
    }
}

/* ---- Prediction ---- */

/* With --measure: the peaks of all devices that take part, in the same run. */
static int measure_peaks(struct bench *b, const tn_fit *fit) {
    int code = EXIT_OK;
    for (size_t i = 0; i < fit->n_devices && !code; i++) {
        const tn_fit_device *d = &fit->devices[i];
        tn_device *device;
        if (d->weights + d->mapped + d->cache == 0 && d->compute == 0) continue;
        if (tn_device_find(d->name, &device) != TN_OK) continue;
        code = speed_measure(device, (int)args_int(b->args, "threads"), 0);
    }
    return code;
}

static void predict_speed(struct bench *b) {
    const tn_session_speed_params params = {.prompt = b->prompt, .depth = b->depth, .generate = b->generate};
    tn_status status = tn_session_plan_predict(tn_session_get_plan(b->loaded.session), &params, &b->predicted);
    b->predicts = status == TN_OK;
    if (status != TN_OK && status != TN_E_STATE) warn("no prediction: %s", tn_error());
}

static uint64_t peak_resident(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

/* ---- Showing ---- */

static double bandwidth_share(const struct bench *b, const struct bench_result *r) {
    return b->bandwidth > 0 && r->bytes_per_token > 0 ? median(b, r) * r->bytes_per_token / b->bandwidth : 0;
}

static int print_bench_text(const struct bench *b, const struct bench_result *results, int count, uint64_t peak) {
    struct memory_use m;
    char x[HUMAN_SIZE], y[HUMAN_SIZE];
    int threads = (int)args_int(b->args, "threads");
    if (!loaded_model_memory(&b->loaded, &m)) return EXIT_ERROR;
    printf("model        %s: %s, %s parameters, %s\n", b->path, b->info.architecture,
           human_count(x, (double)b->info.n_params), human_bytes(y, b->info.bytes));
    printf("processor    %s, %s kernels, %d threads\n", tn_cpu_name(), tn_cpu_level(),
           threads ? threads : tn_cpu_count());
    if (b->bandwidth > 0)
        printf("bandwidth    %.1f GB/s measured on %s\n", b->bandwidth * 1e-9, tn_device_name(b->bandwidth_of));
    if (b->sequences > 1)
        printf(
            "sequences    %d, each with a prompt of its own; \"both\": tokens generated in the time of prompts and "
            "generation\n",
            b->sequences);
    else if (b->depth)
        printf("depth        %d tokens in the cache before each run\n", b->depth);
    printf("\n%s%-16s %12s  %-21s %s%s%s\n", style(stdout, STYLE_BOLD), "", "tokens/s", "  lowest … highest",
           b->predicts ? "predicted        " : "", "of the bandwidth", style(stdout, STYLE_NONE));
    for (int i = 0; i < count; i++) {
        const struct bench_result *r = &results[i];
        printf("%-10s %5d %12.2f  %8.2f … %-8.2f", r->name, r->tokens, median(b, r), r->rates[0],
               r->rates[b->repeats - 1]);
        if (b->predicts) printf("  %8.2f %+5.1f %%", r->predicted, 100 * (r->predicted / median(b, r) - 1));
        if (bandwidth_share(b, r) > 0) printf("  %.0f %%", 100 * bandwidth_share(b, r));
        putchar('\n');
    }
    printf("\nmedian of %d runs\nmemory planned %s %s used %s, ", b->repeats, human_bytes(x, m.planned),
           m.planned == m.used ? "=" : "but", human_bytes(y, m.used));
    printf("weights mapped %s, ", human_bytes(x, m.mapped));
    printf("process peak %s\n", human_bytes(y, peak));
    return EXIT_OK;
}

static int print_bench_json(const struct bench *b, const struct bench_result *results, int count, uint64_t peak) {
    struct memory_use m;
    int threads = (int)args_int(b->args, "threads");
    if (!loaded_model_memory(&b->loaded, &m)) return EXIT_ERROR;
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *rates = json_array();
        for (int k = 0; k < b->repeats; k++) json_array_append_new(rates, json_real(results[i].rates[k]));
        json_t *entry = json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:o}", "test", results[i].name, "tokens",
                                  results[i].tokens, "depth", b->depth, "sequences", b->sequences, "median",
                                  median(b, &results[i]), "lowest", results[i].rates[0], "highest",
                                  results[i].rates[b->repeats - 1], "rates", rates);
        if (b->predicts) {
            const tn_prediction *run = i == 0 && b->prompt ? &b->predicted.prefill_run : &b->predicted.decode_run;
            json_object_set_new(entry, "predicted", json_real(results[i].predicted));
            json_object_set_new(entry, "limit", json_string(tn_speed_limit_name(run->limit)));
            json_object_set_new(entry, "parts",
                                json_pack("{s:f, s:f, s:f, s:f, s:f}", "multiply", run->multiply, "attention",
                                          run->attention, "other", run->other, "launch", run->launch, "copies",
                                          run->copies));
        }
        if (bandwidth_share(b, &results[i]) > 0) {
            json_object_set_new(entry, "bytes_per_token", json_real(results[i].bytes_per_token));
            json_object_set_new(entry, "share_of_bandwidth", json_real(bandwidth_share(b, &results[i])));
        }
        json_array_append_new(list, entry);
    }
    json_t *root = json_pack(
        "{s:{s:s, s:s, s:I, s:I}, s:{s:s, s:s, s:i}, s:f, s:{s:I, s:I, s:I, s:I}, s:o}", "model", "path", b->path,
        "architecture", b->info.architecture, "parameters", (json_int_t)b->info.n_params, "bytes",
        (json_int_t)b->info.bytes, "processor", "name", tn_cpu_name(), "kernels", tn_cpu_level(), "threads",
        threads ? threads : tn_cpu_count(), "bandwidth", b->bandwidth, "memory", "planned", (json_int_t)m.planned,
        "used", (json_int_t)m.used, "mapped", (json_int_t)m.mapped, "process", (json_int_t)peak, "results", list);
    return print_json_document(root);
}

/* ---- A grid of tests: lists of lengths, as llama-bench takes them ---- */

enum { MOST_TESTS = 256 };
struct bench_test {
    int32_t prompt, generate, depth;
    double mean, deviation; /* tokens per second */
    double *rates;
    char time[32]; /* when it began, in UTC */
};

/* Every prompt, every generation, then every pair of -pg, at every depth. Returns how many; -1 after a message. */
static int list_tests(const struct args *args, struct bench_test tests[MOST_TESTS]) {
    int32_t p[MOST_LENGTHS], n[MOST_LENGTHS], d[MOST_LENGTHS];
    int n_p, n_n, n_d, count = 0;
    if (!read_lengths(args, "prompt", p, &n_p) || !read_lengths(args, "predict", n, &n_n) ||
        !read_lengths(args, "depth", d, &n_d))
        return -1;
    const int pairs = args_repeats(args, "prompt-predict");
    if ((n_p + n_n + pairs) * n_d > MOST_TESTS) {
        fail_usage(args, "more than %d tests", MOST_TESTS);
        return -1;
    }
    for (int k = 0; k < n_d; k++) {
        for (int i = 0; i < n_p; i++)
            if (p[i]) tests[count++] = (struct bench_test){.prompt = p[i], .depth = d[k]};
        for (int i = 0; i < n_n; i++)
            if (n[i]) tests[count++] = (struct bench_test){.generate = n[i], .depth = d[k]};
        for (int i = 0; i < pairs; i++) {
            char *end;
            const char *text = args_text_at(args, "prompt-predict", i);
            const long a = strtol(text, &end, 10), b = *end == ',' ? strtol(end + 1, &end, 10) : 0;
            if (a < 1 || b < 1 || *end || a > 1 << 24 || b > 1 << 24) {
                fail_usage(args, "-pg takes the lengths of prompt and generation, such as 512,128, not \"%s\"", text);
                return -1;
            }
            tests[count++] = (struct bench_test){.prompt = (int32_t)a, .generate = (int32_t)b, .depth = d[k]};
        }
    }
    return count;
}

static tn_status measure_test(struct bench *b, struct bench_test *t) {
    const int32_t batch = tn_session_get_params(b->loaded.session).n_batch;
    double sum = 0, squares = 0;
    if (!(t->rates = tn_calloc((size_t)b->repeats, sizeof *t->rates))) return TN_E_NOMEM;
    const time_t now = time(NULL);
    struct tm utc;
    strftime(t->time, sizeof t->time, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    b->depth = t->depth;
    for (int i = -1; i < b->repeats; i++) { /* the first is a warm-up */
        TN_TRY(set_depth(b));
        const uint64_t begin = tn_time_ns();
        TN_TRY(decode_range(b, t->depth, t->prompt, batch));
        TN_TRY(decode_range(b, t->depth + t->prompt, i < 0 && t->generate > 2 ? 2 : t->generate, 1));
        if (i < 0) continue;
        t->rates[i] = bench_rate((int64_t)t->prompt + t->generate, tn_time_ns() - begin);
        sum += t->rates[i];
        squares += t->rates[i] * t->rates[i];
    }
    t->mean = sum / b->repeats;
    const double variance = b->repeats > 1 ? (squares - sum * t->mean) / (b->repeats - 1) : 0;
    t->deviation = variance > 0 ? sqrt(variance) : 0;
    return TN_OK;
}

static const char *test_name(const struct bench_test *t, char name[64]) {
    int n = 0;
    if (t->prompt) n += snprintf(name, 64, "pp%d", t->prompt);
    if (t->generate) n += snprintf(name + n, 64 - (size_t)n, "%stg%d", n ? "+" : "", t->generate);
    if (t->depth) snprintf(name + n, 64 - (size_t)n, " @ d%d", t->depth);
    return name;
}

static json_t *test_json(const struct bench *b, const struct bench_test *t, const char *backend, int threads) {
    const tn_session_params p = tn_session_get_params(b->loaded.session);
    json_t *ns = json_array(), *rates = json_array();
    const double tokens = t->prompt + t->generate;
    for (int i = 0; i < b->repeats; i++) {
        json_array_append_new(rates, json_real(t->rates[i]));
        json_array_append_new(ns, json_integer((json_int_t)(tokens * 1e9 / t->rates[i])));
    }
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:f, s:f, "
        "s:o, s:o}",
        "build_version", tn_version(), "cpu_info", tn_cpu_name(), "backends", backend, "model_filename", b->path,
        "model_type", b->info.architecture, "model_size", (json_int_t)b->info.bytes, "model_n_params",
        (json_int_t)b->info.n_params, "n_batch", (int)p.n_batch, "n_ubatch", (int)p.n_ubatch, "n_threads", threads,
        "type_k", tn_type_name(p.cache_k), "type_v", tn_type_name(p.cache_v), "n_gpu_layers", (int)p.n_gpu_layers,
        "n_prompt", (int)t->prompt, "n_gen", (int)t->generate, "n_depth", (int)t->depth, "test_time", t->time,
        "avg_ns", tokens * 1e9 / t->mean, "stddev_ns", tokens * 1e9 / t->mean * (t->deviation / t->mean), "avg_ts",
        t->mean, "stddev_ts", t->deviation, "samples_ns", ns, "samples_ts", rates);
}

static void print_csv_row(const json_t *row, bool heading) {
    const char *key;
    json_t *value;
    bool first = true;
    json_object_foreach((json_t *)(uintptr_t)row, key, value) {
        if (json_is_array(value)) continue;
        if (!first) putchar(',');
        first = false;
        if (heading)
            printf("%s", key);
        else if (json_is_string(value))
            printf("\"%s\"", json_string_value(value));
        else if (json_is_integer(value))
            printf("%lld", (long long)json_integer_value(value));
        else
            printf("%.6f", json_real_value(value));
    }
    putchar('\n');
}

static void print_tests(const struct bench *b, const struct bench_test *tests, int count, const char *format) {
    tn_fit fit = {0};
    char backend[256] = "", name[64], size[HUMAN_SIZE], params[HUMAN_SIZE];
    size_t used = 0;
    const int threads = args_int(b->args, "threads") ? (int)args_int(b->args, "threads") : tn_cpu_count();
    if (tn_session_memory(b->loaded.session, &fit) == TN_OK)
        for (size_t i = 0; i < fit.n_devices && used < 200; i++)
            if (fit.devices[i].n_layers)
                used += (size_t)snprintf(backend + used, sizeof backend - used, "%s%.100s", used ? "," : "",
                                         fit.devices[i].name);
    tn_fit_free(&fit);
    if (strcmp(format, "md") == 0) {
        printf(
            "| model | size | params | backend | threads | test | t/s |\n| --- | ---: | ---: | --- | ---: | ---: | "
            "---: |\n");
        for (int i = 0; i < count; i++)
            printf("| %s | %s | %s | %s | %d | %s | %.2f ± %.2f |\n", b->info.architecture,
                   human_bytes(size, b->info.bytes), human_count(params, (double)b->info.n_params), backend, threads,
                   test_name(&tests[i], name), tests[i].mean, tests[i].deviation);
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *row = test_json(b, &tests[i], backend, threads);
        if (strcmp(format, "csv") == 0) {
            if (i == 0) print_csv_row(row, true);
            print_csv_row(row, false);
        } else if (strcmp(format, "jsonl") == 0) {
            json_dumpf(row, stdout, JSON_COMPACT);
            putchar('\n');
        }
        json_array_append_new(list, row);
    }
    if (strcmp(format, "json") == 0) {
        json_dumpf(list, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(list);
}

static void wait_before_test(double seconds) {
    for (const uint64_t end = tn_time_ns() + (uint64_t)(seconds * 1e9); tn_time_ns() < end && !interrupted();)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

/* All tests in one session, which has room for the longest. */
static int run_tests(struct bench *b, tn_session_params *params, struct bench_test *tests, int count) {
    uint64_t total = 0;
    int32_t longest = 0;
    for (int i = 0; i < count; i++) {
        const int64_t cells = (int64_t)tests[i].depth + tests[i].prompt + tests[i].generate;
        if (cells > INT32_MAX) return fail_usage(b->args, "a test of %lld tokens is too long", (long long)cells);
        if (cells > longest) longest = (int32_t)cells;
        total += (uint64_t)(tests[i].prompt + tests[i].generate) * (uint64_t)(b->repeats + 1);
    }
    if (args_int(b->args, "ctx") > longest) longest = (int32_t)args_int(b->args, "ctx");
    params->n_ctx = longest;
    int code = loaded_model_open(b->args, b->path, params, &b->loaded);
    if (code) return code;
    b->info = tn_model_get_info(b->loaded.model);
    tn_status status = TN_OK;
    progress_start(&b->progress, "measuring", total, PROGRESS_ITEMS);
    for (int i = 0; i < count && status == TN_OK; i++) {
        wait_before_test(args_real(b->args, "delay"));
        status = interrupted() ? tn_fail(TN_E_ABORTED, "interrupted") : measure_test(b, &tests[i]);
    }
    progress_end(&b->progress);
    if (status != TN_OK)
        code = fail_status(status, "%s", "");
    else
        print_tests(b, tests, count, args_text(b->args, "output") ? args_text(b->args, "output") : "md");
    for (int i = 0; i < count; i++) tn_free(tests[i].rates);
    loaded_model_close(&b->loaded);
    return code;
}

/* ---- The command ---- */

static int measure_all(struct bench *b) {
    struct bench_result results[3] = {{0}};
    int count = 0;
    bool many = b->sequences > 1;
    double cache_bytes = 0;
    tn_fit fit;
    uint64_t per_round = (uint64_t)(b->prompt + b->generate + (b->info.n_window > 0 ? 2 * b->depth : 0));
    uint64_t warm_up = (uint64_t)b->depth + (uint64_t)b->prompt + (b->generate > 0);
    if (many) per_round *= (uint64_t)b->sequences, warm_up = (uint64_t)(b->prompt + 4) * (uint64_t)b->sequences;
    tn_status status = tn_session_memory(b->loaded.session, &fit);
    if (status != TN_OK) return fail_status(status, "memory");
    uint64_t peak = peak_resident(); /* taken before measuring peaks, which needs memory of its own */
    progress_start(&b->progress, "measuring", warm_up + (uint64_t)b->repeats * per_round, PROGRESS_ITEMS);
    if (many) {
        results[count++] = (struct bench_result){.name = "prompts", .tokens = b->prompt};
        results[count++] = (struct bench_result){.name = "generation", .tokens = b->generate};
        results[count++] = (struct bench_result){.name = "both", .tokens = b->generate};
        status = measure_sequences(b, results);
        b->depth = b->prompt; /* where the generation began */
    }
    if (b->prompt && !many) {
        results[count] = (struct bench_result){.name = "prompt", .tokens = b->prompt};
        status = measure_speed(b, &results[count++], tn_session_get_params(b->loaded.session).n_batch);
    }
    if (b->generate && !many && status == TN_OK) {
        results[count] = (struct bench_result){.name = "generation", .tokens = b->generate};
        status = measure_speed(b, &results[count++], 1);
    }
    progress_end(&b->progress);
    if (peak_resident() > peak) peak = peak_resident();
    int code = status == TN_OK ? EXIT_OK : fail_status(status, "%s", "");
    find_layers(b, &fit, &cache_bytes);
    speed_cache_load();
    if (!code && args_flag(b->args, "measure")) code = measure_peaks(b, &fit);
    if (!code) predict_speed(b);
    for (int i = 0; !code && i < count; i++)
        results[i].predicted = i == 0 && b->prompt ? b->predicted.prefill : b->predicted.decode;
    if (!code && many) /* the time of the prompts and of the generation, one after the other */
        results[2].predicted = 1 / (b->prompt / (b->generate * b->predicted.prefill) + 1 / b->predicted.decode);
    if (!code && b->generate) {
        struct bench_result *decode = &results[many ? 1 : count - 1];
        decode->bytes_per_token = bytes_per_token(b, cache_bytes);
        measure_bandwidth(b, decode->rates[b->repeats - 1] * decode->bytes_per_token);
    } else if (!code) {
        measure_bandwidth(b, 0);
    }
    if (!code)
        code = args_flag(b->args, "json") ? print_bench_json(b, results, count, peak)
                                          : print_bench_text(b, results, count, peak);
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
                      .sequences = (int32_t)args_int(args, "sequences"),
                      .repeats = (int)args_int(args, "repeat")};
    struct bench_test tests[MOST_TESTS];
    const int count = list_tests(args, tests);
    const bool single = count <= 2 && !args_repeats(args, "prompt-predict") && !args_text(args, "output") &&
                        is_single_length(args, "prompt") && is_single_length(args, "predict") &&
                        is_single_length(args, "depth");
    if (count < 0) return EXIT_USAGE;
    if (!single) {
        if (b.sequences > 1) return fail_usage(args, "--sequences takes one length of prompt and generation");
        if (!count) return fail_usage(args, "nothing to measure: all lengths are 0");
        if (!(b.path = find_model(args, buffer, sizeof buffer))) return EXIT_ERROR;
        int failed = session_params_from(args, &params);
        return failed ? failed : run_tests(&b, &params, tests, count);
    }
    if (b.sequences > 1 && (!b.prompt || !b.generate || b.depth))
        return fail_usage(args, "--sequences measures prompts and generation together: -p and -n are at least 1, and "
                                "-d is not used");
    if (!b.prompt && !b.generate) return fail_usage(args, "nothing to measure: both -p and -n are 0");
    if (!(b.path = find_model(args, buffer, sizeof buffer))) return EXIT_ERROR;
    int code = session_params_from(args, &params);
    if (code) return code;
    params.n_ctx = b.depth + (b.prompt > b.generate ? b.prompt : b.generate);
    if (args_int(args, "ctx") > params.n_ctx) params.n_ctx = (int32_t)args_int(args, "ctx");
    if (b.sequences > 1) {
        int64_t each = ((int64_t)b.prompt + b.generate + 63) / 64 * 64, all = each * b.sequences;
        if (all > 1 << 30) return fail_usage(args, "%lld tokens of all sequences are too many", (long long)all);
        params.n_ctx = (int32_t)all;
        params.n_seqs = b.sequences;
    }
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
     .kind = OPTION_TEXT,
     .repeats = true,
     .fallback = "512",
     .help = "prompt length in tokens, 0 to skip this measurement; several, such as 128,512 or 128-512+128, are "
             "measured in turn"},
    {.name = "predict",
     .letter = "n",
     .aliases = "--n-gen --n-predict",
     .value = "N",
     .kind = OPTION_TEXT,
     .repeats = true,
     .fallback = "128",
     .help = "tokens to generate, 0 to skip this measurement; several are separated by commas"},
    {.name = "prompt-predict",
     .letter = "pg",
     .value = "N,N",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "also measure a prompt and a generation together, e.g. 512,128"},
    {.name = "output",
     .letter = "o",
     .value = "FORMAT",
     .kind = OPTION_TEXT,
     .choices = "md json jsonl csv",
     .help = "print a table of the tests, with mean and standard deviation, in this format"},
    {.name = "depth",
     .letter = "d",
     .aliases = "--n-depth",
     .value = "N",
     .kind = OPTION_TEXT,
     .repeats = true,
     .fallback = "0",
     .help = "tokens in the KV cache before each run; several are separated by commas"},
    {.name = "sequences",
     .aliases = "-np --n-parallel --parallel",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = MOST_BENCH_SEQUENCES,
     .fallback = "1",
     .help = "sequences at a time, each with a prompt and an answer of its own"},
    {.name = "repeat",
     .letter = "r",
     .aliases = "--repetitions",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1000,
     .fallback = "5",
     .help = "runs of each measurement"},
    {.name = "delay",
     .value = "TIME",
     .kind = OPTION_SECONDS,
     .min = 0,
     .max = 3600,
     .fallback = "0",
     .help = "pause before each of several tests, for a processor that grows hot"},
    {.name = "measure",
     .kind = OPTION_FLAG,
     .help = "also measure the devices' peaks, as tenon devices --measure does, for the prediction"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {&model_options, &load_options, &adapter_options, NULL};

const struct command command_bench = {
    .name = "bench",
    .summary = "measure speed, bandwidth and memory",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details =
        "Prints the median, lowest and highest speed of several runs, for processing a prompt (prefill) and for "
        "generating token by token (decode). Decode reads all weights for every token, so the memory bandwidth "
        "limits its speed. The bandwidth is the best of several access patterns with the same number of threads; the "
        "last column shows how much of it decode uses. Where the devices are measured, the predicted speed is shown "
        "beside the measured one.",
    .examples = "tenon bench model.gguf\n"
                "tenon bench model.gguf -p 0 -n 64 -d 4096             # decode only, with 4096 tokens in the cache\n"
                "tenon bench model.gguf -p 16,64 -n 32 -pg 64,16 -d 0,128 -o md\n"
                "tenon bench model.gguf --sequences 4 -p 64 -n 32      # four prompts, then four answers at once\n"
                "tenon bench model.gguf -t 4 -r 10 --json",
    .section = SECTION_USE,
    .max_arguments = 1,
    .run = run_bench,
};
