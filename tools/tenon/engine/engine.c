/* Implementation of what model commands share. */
#include "engine/engine.h"

#include "cli/term.h"
#include "engine/text_input.h"

#include "tenon/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const struct option engine_table[] = {
    {.name = "model",
     .letter = "m",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "the model, instead of as the first argument",
     .env = "TENON_MODEL LLAMA_ARG_MODEL"},
    {.name = "ctx",
     .letter = "c",
     .aliases = "--ctx-size",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = INT32_MAX,
     .fallback = "4096",
     .help = "context: tokens that the KV cache holds, 0 for as many as the model was trained with, which is also "
             "the most where -c is not given",
     .env = "TENON_CTX LLAMA_ARG_CTX_SIZE"},
    {.name = "batch",
     .letter = "b",
     .aliases = "--batch-size",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 24,
     .fallback = "2048",
     .help = "most tokens handed over at once",
     .env = "LLAMA_ARG_BATCH"},
    {.name = "ubatch",
     .letter = "ub",
     .aliases = "--ubatch-size",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 24,
     .fallback = "512",
     .help = "most tokens computed at once",
     .env = "LLAMA_ARG_UBATCH"},
    OPTION_THREADS,
    {.name = "threads-batch",
     .letter = "tb",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 4096,
     .fallback = "0",
     .help = "accepted for compatibility; --threads rules",
     .env = "LLAMA_ARG_THREADS_BATCH"},
    {.name = "cache-type-k",
     .letter = "ctk",
     .aliases = "--cache-type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .fallback = "f16",
     .choices = "f32 f16 bf16 q8_0 q4_0",
     .help = "type of the cached keys",
     .env = "LLAMA_ARG_CACHE_TYPE_K"},
    {.name = "cache-type-v",
     .letter = "ctv",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .choices = "f32 f16 bf16 q8_0 q4_0",
     .help = "type of the cached values, as the keys' when not given",
     .env = "LLAMA_ARG_CACHE_TYPE_V"},
    {.name = "device",
     .letter = "dev",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a device to use, best first; repeat or separate by ',' (cpu, cuda0, sim:8G…)",
     .env = "TENON_DEVICE LLAMA_ARG_DEVICE"},
    {.name = "gpu-layers",
     .letter = "ngl",
     .aliases = "--n-gpu-layers",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1 << 20,
     .fallback = "-1",
     .help = "layers off the CPU, -1 for as many as fit",
     .env = "LLAMA_ARG_N_GPU_LAYERS"},
    {.name = "tensor-split",
     .letter = "ts",
     .value = "RATIOS",
     .kind = OPTION_TEXT,
     .help = "shares of the layers per device, e.g. 3,1",
     .env = "LLAMA_ARG_TENSOR_SPLIT"},
    {.name = "override-tensor",
     .letter = "ot",
     .value = "REGEX=DEVICE",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "put the tensors whose names match on a device",
     .env = "LLAMA_ARG_OVERRIDE_TENSOR"},
    {.name = "pipeline",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 64,
     .fallback = "0",
     .help = "micro-batches under way at once where layers are on several GPUs, 0 for 4, 1 for one after the other"},
    {.name = "check-tensors", .kind = OPTION_FLAG, .help = "look for NaN and infinity in the weights while loading"},
    {.name = "no-pack", .kind = OPTION_FLAG, .help = "keep weights as in the file, never in the CPU's packed layout"},
    {0},
};
const struct option_group engine_options = {"Model and memory", engine_table};

static const struct option template_table[] = {
    {.name = "chat-template",
     .value = "JINJA",
     .kind = OPTION_TEXT,
     .help = "a template instead of the model's own; chatml for that one",
     .env = "LLAMA_ARG_CHAT_TEMPLATE"},
    {.name = "chat-template-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "the same from a file",
     .env = "LLAMA_ARG_CHAT_TEMPLATE_FILE"},
    {0},
};
const struct option_group template_options = {"Chat template", template_table};

int engine_text(const struct args *args, const char *name, const char *file_name, char **text) {
    const char *direct = args_text(args, name), *file = args_text(args, file_name);
    size_t size;
    *text = NULL;
    if (direct && file) return fail_usage(args, "--%s and --%s exclude each other", name, file_name);
    if (file) return read_text_file(file, text, &size);
    if (direct && !(*text = strdup(direct))) return fail("out of memory");
    return EXIT_OK;
}

/* ---- Model ------------------------------------------------------------------------------------------------------
 */

static const char default_model[] = "tales.gguf";

static bool try_path(char *buffer, size_t size, const char *folder, const char *rest) {
    char path[4096], *real = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s%s%s", folder, rest, default_model) < sizeof path)
        real = realpath(path, NULL);
    bool found = real && access(real, R_OK) == 0 && (size_t)snprintf(buffer, size, "%s", real) < size;
    free(real);
    return found;
}

const char *engine_model_path(const struct args *args, char *buffer, size_t size) {
    if (args_text(args, "model")) return args_text(args, "model");
    if (args->count > 0 && strcmp(args->values[0], "-") != 0) return args->values[0];
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    /* A bare chroot has no /proc; the kernel also tells by what path the program was started. */
    const char *started = (const char *)getauxval(AT_EXECFN);
    if (length <= 0 && started) snprintf(program, sizeof program, "%s", started);
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    /* Beside the program, in the source tree (build/bin), installed (bin beside share), then as built. */
    static const char *const places[] = {"/", "/models/", "/../../models/", "/../share/tenon/models/"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (try_path(buffer, size, program, places[i])) return buffer;
    fail("no model given, and the default one (%s) is not installed: name a GGUF file", default_model);
    return NULL;
}

/* Length of the first name in a list. A comma separates names, but not a name from its settings: sim:8G,align=256. */
static size_t name_length(const char *list) {
    size_t length = strcspn(list, ",;");
    while (list[length] == ',') {
        size_t next = strcspn(list + length + 1, ",;=");
        if (list[length + 1 + next] != '=') break;
        length += 1 + strcspn(list + length + 1, ",;");
    }
    return length;
}

int engine_session_params(const struct args *args, tn_session_params *p) {
    static char names[16][256];
    *p = tn_session_params_default();
    p->n_ctx = (int32_t)args_int(args, "ctx");
    p->n_batch = (int32_t)args_int(args, "batch");
    p->n_ubatch = (int32_t)args_int(args, "ubatch");
    p->n_threads = (int)args_int(args, "threads");
    p->n_gpu_layers = (int32_t)args_int(args, "gpu-layers");
    p->n_pipeline = (int)args_int(args, "pipeline");
    p->no_repack = args_flag(args, "no-pack");
    p->abort = interrupted_callback;
    const char *k = args_text(args, "cache-type-k"), *v = args_text(args, "cache-type-v");
    if (tn_type_parse(k, &p->cache_k) != TN_OK) return fail_status(TN_E_TYPE, "--cache-type-k");
    if (tn_type_parse(v ? v : k, &p->cache_v) != TN_OK) return fail_status(TN_E_TYPE, "--cache-type-v");

    size_t n = 0;
    for (int i = 0; i < args_repeats(args, "device"); i++) {
        for (const char *name = args_text_at(args, "device", i); *name;) {
            size_t length = name_length(name);
            if (n == 15 || length >= sizeof names[0])
                return fail("--device: at most 15 devices with names of up to 255 bytes");
            memcpy(names[n], name, length);
            names[n][length] = '\0';
            p->devices[n] = names[n];
            n++;
            name += length + (name[length] != '\0');
        }
    }
    const char *ratio = args_text(args, "tensor-split");
    for (size_t i = 0; ratio && *ratio && i < 16; i++) {
        char *end;
        p->split[i] = strtof(ratio, &end);
        if (end == ratio || p->split[i] < 0)
            return fail("--tensor-split: '%s' is no list of shares like 3,1", args_text(args, "tensor-split"));
        ratio = *end ? end + 1 : end;
    }
    int n_overrides = args_repeats(args, "override-tensor");
    if (n_overrides) {
        /* Lives as long as the program: options outlive every session. */
        tn_placement_override *list = calloc((size_t)n_overrides, sizeof *list);
        for (int i = 0; list && i < n_overrides; i++) {
            char *text = strdup(args_text_at(args, "override-tensor", i)), *equal = text ? strrchr(text, '=') : NULL;
            if (!equal)
                return fail("--override-tensor needs REGEX=DEVICE, not '%s'",
                            args_text_at(args, "override-tensor", i));
            *equal = '\0';
            list[i] = (tn_placement_override){text, equal + 1};
        }
        p->overrides = list;
        p->n_overrides = list ? (size_t)n_overrides : 0;
    }
    return EXIT_OK;
}

void engine_context(const struct args *args, const tn_model *model, tn_session_params *p) {
    int32_t trained = tn_model_get_info(model).n_ctx_train;
    bool asked = args_given(args, "ctx") || p->n_ctx != args_int(args, "ctx");
    if (trained <= 0 || trained >= p->n_ctx) return;
    if (!asked)
        p->n_ctx = trained;
    else if (args_given(args, "ctx"))
        warn("the context of %d is longer than the %d that the model was trained with", p->n_ctx, trained);
}

static bool show_progress(void *user, size_t done, size_t total) {
    struct progress *progress = user;
    if (!progress->total) progress_start(progress, "loading", total, PROGRESS_BYTES);
    progress_update(progress, done);
    return !interrupted();
}

/* Bytes of a plan or a session: what it takes itself, without weights that stay in the file's map. */
static size_t taken(const tn_fit_device *f) { return f->weights + f->cache + f->compute + f->scratch; }

static size_t bytes_of(const tn_fit *fit) {
    size_t bytes = 0;
    for (size_t d = 0; d < fit->n_devices; d++) bytes += taken(&fit->devices[d]);
    return bytes;
}

/* What the library says in one line, in several: every device that lacks something, and what to do. */
static int too_big(const char *path, const tn_fit *fit) {
    fail("%s: the session does not fit", path);
    for (size_t d = 0; d < fit->n_devices; d++) {
        const tn_fit_device *f = &fit->devices[d];
        char needed[HUMAN_SIZE], available[HUMAN_SIZE], weights[HUMAN_SIZE], cache[HUMAN_SIZE], compute[HUMAN_SIZE];
        if (taken(f) > f->free)
            fprintf(stderr,
                    "  %s needs %s (%zu bytes) and has %s (%zu): weights %s, cache %s, compute and scratch %s\n",
                    f->name, human_bytes(needed, taken(f)), taken(f), human_bytes(available, f->free), f->free,
                    human_bytes(weights, f->weights), human_bytes(cache, f->cache),
                    human_bytes(compute, f->compute + f->scratch));
        if (f->mapped > f->total)
            fprintf(stderr, "  the file (%s) is larger than the memory of %s (%s)\n", human_bytes(needed, f->mapped),
                    f->name, human_bytes(available, f->total));
    }
    fprintf(stderr, "To make it fit: %s.\n", fit->advice);
    return EXIT_ERROR;
}

static size_t planned_bytes; /* of the last session that engine_open made */

/* The plan is made before the session, so that it can be compared with what the session then takes. */
static int plan_and_make(const char *path, tn_model *model, const tn_session_params *params, tn_session **session) {
    tn_fit fit;
    tn_status status = tn_fit_session(model, params, &fit);
    if (status != TN_OK) return fail_status(status, "%s", path);
    planned_bytes = bytes_of(&fit);
    int code = fit.fits ? EXIT_OK : too_big(path, &fit);
    tn_fit_free(&fit);
    if (code) return code;
    status = tn_session_new(model, params, session);
    return status == TN_OK ? EXIT_OK : fail_status(status, "%s", path);
}

void engine_log(const char *path, const tn_model *model, const tn_session *session, uint64_t began_ns) {
    tn_model_info i = tn_model_get_info(model);
    tn_session_params p = tn_session_get_params(session);
    tn_fit fit;
    char a[HUMAN_SIZE], b[HUMAN_SIZE], c[HUMAN_SIZE], d[HUMAN_SIZE], e[HUMAN_SIZE];
    tn_log(TN_LOG_INFO, "%s: %s, %s parameters in %s, ready after %.2f s", path, i.architecture,
           human_count(a, (double)i.n_params), human_bytes(b, i.bytes), (double)(tn_time_ns() - began_ns) / 1e9);
    tn_log(TN_LOG_INFO, "%s, %s kernels, %d threads", tn_cpu_name(), tn_cpu_level(),
           p.n_threads > 0 ? p.n_threads : tn_cpu_count());
    tn_log(TN_LOG_INFO, "context %d, batch %d, micro-batch %d, %d sequence%s, cache %s/%s", p.n_ctx, p.n_batch,
           p.n_ubatch, p.n_seqs, p.n_seqs == 1 ? "" : "s", tn_type_name(p.cache_k), tn_type_name(p.cache_v));
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

int engine_open(const struct args *args, const char *path, const tn_session_params *params, tn_model **model,
                tn_session **session) {
    *model = NULL;
    *session = NULL;
    uint64_t began = tn_time_ns();
    tn_status status =
        tn_model_open(path, &(tn_model_params){.check_weights = args_flag(args, "check-tensors")}, model);
    if (status != TN_OK) return fail_status(status, "%s", "");
    struct progress progress = {0};
    tn_session_params p = *params;
    p.progress = show_progress;
    p.user = &progress;
    engine_context(args, *model, &p);
    int code = plan_and_make(path, *model, &p, session);
    if (progress.total) progress_end(&progress);
    if (!code) {
        engine_log(path, *model, *session, began);
        return EXIT_OK;
    }
    tn_model_close(*model);
    *model = NULL;
    return code;
}

size_t engine_piece(const tn_session *session, size_t last, uint64_t last_ns) {
    enum { FIRST = 64 };
    static const uint64_t short_ns = UINT64_C(3000000000), long_ns = UINT64_C(10000000000);
    size_t most = (size_t)tn_session_get_params(session).n_ubatch, piece = last ? last : FIRST;
    if (last && last_ns < short_ns) piece = 4 * last;
    if (last_ns > long_ns && last > FIRST) piece = last / 2;
    return piece < most ? piece : most;
}

/* ---- The end ----------------------------------------------------------------------------------------------------
 */

bool engine_memory(tn_session *session, struct engine_memory *memory) {
    tn_fit fit;
    tn_status status = tn_session_memory(session, &fit);
    if (status != TN_OK) {
        fail_status(status, "memory");
        return false;
    }
    *memory = (struct engine_memory){.planned = planned_bytes, .used = bytes_of(&fit)};
    for (size_t d = 0; d < fit.n_devices; d++) memory->mapped += fit.devices[d].mapped;
    tn_fit_free(&fit);
    return true;
}

void engine_closing_line(tn_session *session) {
    tn_session_stats s = tn_session_get_stats(session);
    double prompt = s.prompt_ns ? (double)s.prompt_tokens * 1e9 / (double)s.prompt_ns : 0;
    double generated = s.generated_ns ? (double)s.generated_tokens * 1e9 / (double)s.generated_ns : 0;
    char p[HUMAN_SIZE], u[HUMAN_SIZE], w[HUMAN_SIZE];
    struct engine_memory m;
    if (!engine_memory(session, &m)) return;
    progress_hide();
    fprintf(stderr, "%s%llu tokens, prompt %.1f tokens/s, generation %.1f tokens/s, memory planned %s %s used %s",
            style(stderr, STYLE_DIM), (unsigned long long)(s.prompt_tokens + s.generated_tokens), prompt, generated,
            human_bytes(p, m.planned), m.planned == m.used ? "=" : "but", human_bytes(u, m.used));
    if (m.mapped) fprintf(stderr, " (and %s of weights mapped)", human_bytes(w, m.mapped));
    fprintf(stderr, "%s\n", style(stderr, STYLE_NONE));
}
