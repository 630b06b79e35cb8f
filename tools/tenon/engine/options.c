/* Options of commands that run a model, and the session parameters made from them. */
#include "engine/options.h"

#include "cli/text_input.h"

#include "engine/budget_options.h"
#include "hub/hub.h"
#include "tenon/chat.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const struct option model_table[] = {
    {.name = "model",
     .letter = "m",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "the model file; can also be given as the first argument",
     .env = "TENON_MODEL LLAMA_ARG_MODEL"},
    {.name = "hf-repo",
     .letter = "hf",
     .aliases = "-hfr",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "a model of the hub, OWNER/REPO[:QUANT], downloaded if necessary (tenon pull)",
     .env = "LLAMA_ARG_HF_REPO"},
    {.name = "model-url",
     .letter = "mu",
     .value = "URL",
     .kind = OPTION_TEXT,
     .help = "a model file by its URL, downloaded if necessary",
     .env = "LLAMA_ARG_MODEL_URL"},
    OPTIONS_HUB,
    {.name = "ctx",
     .letter = "c",
     .aliases = "--ctx-size",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = INT32_MAX,
     .fallback = "0",
     .help = "context size in tokens, the capacity of the KV cache; 0 for the size that the model was trained with, "
             "or the most that fits if that is less",
     .env = "TENON_CTX LLAMA_ARG_CTX_SIZE"},
    {.name = "batch",
     .letter = "b",
     .aliases = "--batch-size",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 24,
     .fallback = "2048",
     .help = "max tokens per batch",
     .env = "LLAMA_ARG_BATCH"},
    {.name = "ubatch",
     .letter = "ub",
     .aliases = "--ubatch-size",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 24,
     .fallback = "512",
     .help = "max tokens per micro-batch, computed together",
     .env = "LLAMA_ARG_UBATCH"},
    OPTION_THREADS,
    {.name = "cache-type-k",
     .letter = "ctk",
     .aliases = "--cache-type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .fallback = "f16",
     .help = "type of the keys in the KV cache: f32 f16 bf16 fp8 q8_0 q5_1 q5_0 q4_1 q4_0; q8_0,swa=f16 sets another "
             "one for layers with a sliding window",
     .env = "LLAMA_ARG_CACHE_TYPE_K"},
    {.name = "cache-type-v",
     .letter = "ctv",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .help = "type of the values in the KV cache, by default the same as for keys",
     .env = "LLAMA_ARG_CACHE_TYPE_V"},
    {.name = "cache-rotation",
     .value = "WHEN",
     .kind = OPTION_TEXT,
     .fallback = "auto",
     .choices = "auto on off",
     .help =
         "rotate keys and values before quantizing them: where it improves accuracy, for all types below 16 bits, "
         "or never"},
    {.name = "device",
     .letter = "dev",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a device to use, preferred first (cpu, cuda0, sim:8G, …; none for the CPU alone); several are "
             "separated by commas",
     .env = "TENON_DEVICE LLAMA_ARG_DEVICE"},
    {.name = "gpu-layers",
     .letter = "ngl",
     .aliases = "--n-gpu-layers",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1 << 20,
     .fallback = "-1",
     .words = "auto=-1 all=1048576",
     .help = "number of layers on GPUs, or all; auto or -1 for as many as fit",
     .env = "LLAMA_ARG_N_GPU_LAYERS"},
    {.name = "tensor-split",
     .letter = "ts",
     .value = "RATIOS",
     .kind = OPTION_TEXT,
     .help = "share of the layers for each device, or of the model for each rank, e.g. 3,1",
     .env = "LLAMA_ARG_TENSOR_SPLIT"},
    {.name = "split-mode",
     .letter = "sm",
     .value = "MODE",
     .kind = OPTION_TEXT,
     .fallback = "layer",
     .choices = "none layer row tensor",
     .help = "layer divides the layers among all GPUs, row (or tensor) every matrix; none uses --main-gpu only",
     .env = "LLAMA_ARG_SPLIT_MODE"},
    {.name = "main-gpu",
     .letter = "mg",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 255,
     .fallback = "0",
     .help = "the GPU that --split-mode none uses",
     .env = "LLAMA_ARG_MAIN_GPU"},
    {.name = "override-tensor",
     .letter = "ot",
     .value = "REGEX=DEVICE",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "put tensors whose names match REGEX on DEVICE; several are separated by commas",
     .env = "LLAMA_ARG_OVERRIDE_TENSOR"},
    {.name = "cpu-moe",
     .letter = "cmoe",
     .kind = OPTION_FLAG,
     .help = "keep the weights of all experts on the CPU",
     .env = "LLAMA_ARG_CPU_MOE"},
    {.name = "n-cpu-moe",
     .letter = "ncmoe",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 65536,
     .fallback = "0",
     .help = "keep the weights of the experts of the first N layers on the CPU",
     .env = "LLAMA_ARG_N_CPU_MOE"},
    {.name = "pipeline",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 64,
     .fallback = "0",
     .help = "in-flight micro-batches when layers are on several GPUs: 0 selects the default of 4, 1 disables "
             "pipelining"},
    {.name = "plan",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "use the session plan in FILE (tenon plan --save), made for this model, these options and devices"},
    {.name = "plan-cache",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .help = "cache plans that took long to make in the user's cache folder, and reuse them",
     .env = "TENON_PLAN_CACHE"},
    {.name = "effort",
     .value = "EFFORT",
     .kind = OPTION_TEXT,
     .fallback = "balanced",
     .choices = "fast balanced exact",
     .help = "effort of planning memory; exact may take long"},
    {.name = "check-tensors", .kind = OPTION_FLAG, .help = "check the weights for NaN and infinity while loading"},
    {.name = "repeatable",
     .kind = OPTION_FLAG,
     .help = "results of a sequence do not depend on other sequences, cached prompts, batches and threads",
     .env = "TENON_REPEATABLE"},
    {.name = "repack",
     .kind = OPTION_FLAG,
     .fallback = "on",
     .off = "-nr --no-pack",
     .help = "repack weights for the CPU's kernels; --no-repack keeps the file's layout",
     .env = "LLAMA_ARG_REPACK"},
    {.name = "rope-freq-base",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1e12,
     .fallback = "0",
     .help = "base of the RoPE frequencies, 0 for the model's",
     .env = "LLAMA_ARG_ROPE_FREQ_BASE"},
    {.name = "rope-freq-scale",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1e6,
     .fallback = "0",
     .help = "factor of the RoPE frequencies, 0 for the model's; 0.5 doubles the context",
     .env = "LLAMA_ARG_ROPE_FREQ_SCALE"},
    {.name = "rope-scale",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1e6,
     .fallback = "0",
     .help = "context scaling: 1 / --rope-freq-scale",
     .env = "LLAMA_ARG_ROPE_SCALE"},
    OPTIONS_BUDGET,
    {0},
};
const struct option_group model_options = {"Model and memory", model_table};

static const struct option template_table[] = {
    {.name = "chat-template",
     .value = "JINJA",
     .kind = OPTION_TEXT,
     .help = "chat template to use instead of the model's own, or the name of one: chatml, llama3, gemma, "
             "command-r … (docs/chat.md lists them)",
     .env = "LLAMA_ARG_CHAT_TEMPLATE"},
    {.name = "chat-template-file",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "read the chat template from FILE",
     .env = "LLAMA_ARG_CHAT_TEMPLATE_FILE"},
    {.name = "chat-format",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "how the model writes tool calls and reasoning, such as hermes or harmony; by default as its template "
             "shows (tenon render --formats lists the names)",
     .env = "TENON_CHAT_FORMAT"},
    {.name = "chat-template-kwargs",
     .value = "JSON",
     .kind = OPTION_TEXT,
     .help = "more variables for the template, e.g. '{\"enable_thinking\": false}'",
     .env = "LLAMA_ARG_CHAT_TEMPLATE_KWARGS LLAMA_CHAT_TEMPLATE_KWARGS"},
    {.name = "reasoning",
     .letter = "rea",
     .value = "[on|off|auto]",
     .kind = OPTION_FLAG,
     .help = "reasoning before a reply, for templates with enable_thinking; auto leaves it to the template",
     .env = "LLAMA_ARG_REASONING"},
    {.name = "reasoning-effort",
     .value = "LEVEL",
     .kind = OPTION_TEXT,
     .help = "low, medium or high, for templates with reasoning_effort",
     .env = "LLAMA_ARG_REASONING_EFFORT"},
    {.name = "reasoning-budget",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 0,
     .fallback = "-1",
     .help = "0 is --reasoning off, -1 no limit; other values are not supported",
     .env = "LLAMA_ARG_THINK_BUDGET"},
    {0},
};
const struct option_group template_options = {"Chat template", template_table};

/* A word without a brace is a name: as a template it would give the same prompt for all messages. */
static int fail_template_name(const struct args *args, const char *name) {
    if (access(name, F_OK) == 0) return fail_usage(args, "--chat-template-file reads a template from %s", name);
    char names[1024] = "";
    for (size_t i = 0, n = 0; tn_chat_template_name(i) && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, " %s", tn_chat_template_name(i));
    return fail_usage(args, "--chat-template takes Jinja or one of:%s; not \"%s\"", names, name);
}

int read_chat_template(const struct args *args, char **text) {
    const char *name = args_text(args, "chat-template"), *source = name ? tn_chat_template_by_name(name) : NULL;
    if (name && *name && !source && !strchr(name, '{')) {
        if (!strpbrk(name, " \n")) return fail_template_name(args, name);
        warn("the chat template has no expression: every prompt is its text, whatever the messages are");
    }
    if (!source || args_text(args, "chat-template-file"))
        return read_text_option(args, "chat-template", "chat-template-file", text);
    *text = strdup(source);
    return *text ? EXIT_OK : fail_status(TN_E_NOMEM, "chat template");
}

int chat_format_from(const struct args *args, const char **format) {
    const char *known;
    *format = args_text(args, "chat-format");
    if (!*format) return EXIT_OK;
    for (size_t i = 0; (known = tn_chat_format_name(i)); i++)
        if (strcmp(known, *format) == 0) return EXIT_OK;
    return fail("--chat-format: unknown format \"%s\"; tenon render --formats lists the names", *format);
}

int template_variables(const struct args *args, json_t **variables) {
    const char *text = args_text(args, "chat-template-kwargs"), *effort = args_text(args, "reasoning-effort");
    const char *reasoning = args_given(args, "reasoning") ? args_text(args, "reasoning") : "auto";
    json_error_t error;
    *variables = text ? json_loads(text, 0, &error) : json_object();
    if (!json_is_object(*variables)) {
        json_decref(*variables);
        *variables = NULL;
        return fail_usage(args, "--chat-template-kwargs takes a JSON object, not '%s'", text);
    }
    if (strcmp(reasoning, "auto") != 0)
        json_object_set_new(*variables, "enable_thinking", json_boolean(args_flag(args, "reasoning")));
    if (args_int(args, "reasoning-budget") == 0) json_object_set_new(*variables, "enable_thinking", json_false());
    if (effort) json_object_set_new(*variables, "reasoning_effort", json_string(effort));
    return EXIT_OK;
}

/* ---- Path of the model ---- */

static const char default_model[] = "tales.gguf";

static bool try_default_model(char *buffer, size_t size, const char *folder, const char *rest) {
    char path[4096], *real = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s%s%s", folder, rest, default_model) < sizeof path)
        real = realpath(path, NULL);
    bool found = real && access(real, R_OK) == 0 && (size_t)snprintf(buffer, size, "%s", real) < size;
    free(real);
    return found;
}

/* The argument that names the model, NULL for none. An option leaves the arguments to the question; a variable of the
 * environment gives way to an argument, unless that must be the question. */
static const char *model_argument(const struct args *args, bool question) {
    static const char *const options[] = {"model", "hf-repo", "model-url"};
    const char *first = args->count > 0 && strcmp(args->values[0], "-") != 0 ? args->values[0] : NULL;
    bool given = false, typed = false;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        given = given || args_given(args, options[i]);
        typed = typed || args_typed(args, options[i]);
    }
    if (typed || (given && question && args->count == 1 && first && access(first, F_OK) != 0)) return NULL;
    return first;
}

const char *find_model_and_question(const struct args *args, const char **question, char *buffer, size_t size) {
    const char *repo = args_text(args, "hf-repo"), *url = args_text(args, "model-url");
    const char *first = model_argument(args, question != NULL);
    const char *rest = NULL;
    for (int i = first != NULL; i < args->count && !rest; i++)
        if (strcmp(args->values[i], "-") != 0) rest = args->values[i];
    if (question) *question = rest;
    if (rest && !question) {
        fail_usage(args, "unexpected argument \"%s\": an option names the model", rest);
        return NULL;
    }
    if (first) return first;
    if ((repo || url) && args_text(args, "model")) {
        fail_usage(args, "use either --model, --hf-repo or --model-url");
        return NULL;
    }
    if (repo || url) {
        char *path = args_keep(args, NULL, HUB_PATH);
        if (!path) fail("out of memory");
        if (!path ||
            (repo ? hub_fetch(args, repo, args_text(args, "hf-file"), path) : hub_fetch_url(args, url, path)))
            return NULL;
        return path;
    }
    if (args_text(args, "model")) return args_text(args, "model");
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    /* Without /proc (a bare chroot) the kernel still passes the path that the program was started with. */
    const char *started = (const char *)getauxval(AT_EXECFN);
    if (length <= 0 && started) snprintf(program, sizeof program, "%s", started);
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    /* Beside the program, in the source tree (build/bin), installed (bin beside share). */
    static const char *const folders[] = {"/", "/models/", "/../../models/", "/../share/tenon/models/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (try_default_model(buffer, size, program, folders[i])) return buffer;
    fail("no model given, and the default model (%s) is not installed: give the path of a GGUF file", default_model);
    return NULL;
}

const char *find_model(const struct args *args, char *buffer, size_t size) {
    return find_model_and_question(args, NULL, buffer, size);
}

/* ---- Session parameters ---- */

/* Length of the first device name in a list. Commas separate names, but also the settings of one: sim:8G,align=256.
 */
static size_t device_name_length(const char *list) {
    size_t length = strcspn(list, ",;");
    while (list[length] == ',') {
        size_t next = strcspn(list + length + 1, ",;=");
        if (list[length + 1 + next] != '=') break;
        length += 1 + strcspn(list + length + 1, ",;");
    }
    return length;
}

/* Names in any case, as other programs print them (CUDA0); "none" is the CPU. The settings of sim keep their case. */
static const char *device_name(const struct args *args, const char *name, size_t length) {
    char *kept = args_keep(args, name, length);
    if (!kept) return NULL;
    for (char *c = kept; *c && *c != ':'; c++) *c = (char)tolower((unsigned char)*c);
    return strcmp(kept, "none") == 0 || strcmp(kept, "cuda_host") == 0 ? "cpu" : kept;
}

/* --split-mode none: one GPU. */
static int read_split_mode(const struct args *args, tn_session_params *p) {
    size_t n = 0, wanted = (size_t)args_int(args, "main-gpu");
    if (strcmp(args_text(args, "split-mode"), "none") != 0) {
        if (args_given(args, "main-gpu") && !args_given(args, "device"))
            warn("--main-gpu has an effect with --split-mode none only");
        return EXIT_OK;
    }
    if (p->devices[0]) return EXIT_OK; /* --device has chosen */
    for (size_t i = 0; i < tn_device_count(); i++) {
        tn_device *device = tn_device_get(i);
        if (tn_device_get_kind(device) == TN_DEVICE_CPU || strncmp(tn_device_name(device), "sim", 3) == 0) continue;
        if (n++ != wanted) continue;
        p->devices[0] = tn_device_name(device);
        p->devices[1] = "cpu";
        return EXIT_OK;
    }
    return n == 0 && wanted == 0 ? EXIT_OK : fail("--main-gpu %zu: there are %zu GPUs", wanted, n);
}

static int read_devices(const struct args *args, tn_session_params *p) {
    enum { MAX_DEVICES = sizeof p->devices / sizeof *p->devices - 1 }; /* the list ends with NULL */
    size_t n = 0;
    for (int i = 0; i < args_repeats(args, "device"); i++) {
        for (const char *name = args_text_at(args, "device", i); *name;) {
            size_t length = device_name_length(name);
            if (n == MAX_DEVICES || length >= 256)
                return fail("--device: at most %d devices with names of up to 255 bytes", MAX_DEVICES);
            if (!(p->devices[n++] = device_name(args, name, length))) return fail("out of memory");
            name += length + (name[length] != '\0');
        }
    }
    return EXIT_OK;
}

static int read_split(const struct args *args, tn_session_params *p) {
    const char *ratio = args_text(args, "tensor-split");
    for (size_t i = 0; ratio && *ratio && i < sizeof p->split / sizeof *p->split; i++) {
        char *end;
        p->split[i] = strtof(ratio, &end);
        if (end == ratio || p->split[i] < 0)
            return fail("--tensor-split takes a list of shares such as 3,1, not '%s'",
                        args_text(args, "tensor-split"));
        ratio = *end ? end + 1 : end;
    }
    return EXIT_OK;
}

/* A pattern for the weights of experts: of all layers (--cpu-moe), or of the first ones (--n-cpu-moe). NULL: out of
 * memory. */
static const char *experts_pattern(const struct args *args, int64_t layers) {
    static const char experts[] = "\\.ffn_(gate|up|down|gate_up)_(ch)?exps\\.";
    const size_t size = (size_t)layers * 6 + sizeof experts + 16;
    char *text = args_keep(args, NULL, size);
    if (!text) return NULL;
    size_t used = (size_t)snprintf(text, size, "^blk\\.");
    for (int64_t i = 0; i < layers; i++)
        used += (size_t)snprintf(text + used, size - used, "%c%" PRId64, i ? '|' : '(', i);
    snprintf(text + used, size - used, "%s%s", layers ? ")" : "[0-9]+", experts);
    return text;
}

/* Length of the first REGEX=DEVICE of a list. A comma ends it if another one follows: commas of patterns stay. */
static size_t override_length(const char *list) {
    size_t length = strcspn(list, ",");
    while (list[length] == ',') {
        const size_t next = strcspn(list + length + 1, ",");
        if (memchr(list, '=', length) && memchr(list + length + 1, '=', next)) break;
        length += 1 + next;
    }
    return length;
}

/* The first pattern that matches counts: experts go to the CPU unless --override-tensor says otherwise. */
static int read_overrides(const struct args *args, tn_session_params *p) {
    const int given = args_repeats(args, "override-tensor");
    int count = 0;
    for (int i = 0; i < given; i++)
        for (const char *text = args_text_at(args, "override-tensor", i); *text; count++)
            text += override_length(text), text += *text != '\0';
    const bool all = args_flag(args, "cpu-moe");
    const int64_t layers = args_int(args, "n-cpu-moe");
    if (!count && !all && !layers) return EXIT_OK;
    tn_placement_override *list = args_keep(args, NULL, ((size_t)count + 1) * sizeof *list);
    if (!list) return fail("out of memory");
    count = 0;
    for (int i = 0; i < given; i++) {
        for (const char *text = args_text_at(args, "override-tensor", i); *text;) {
            const size_t length = override_length(text);
            const char *pattern, *equal = memrchr(text, '=', length);
            if (!equal) return fail("--override-tensor needs REGEX=DEVICE, not '%.*s'", (int)length, text);
            const char *device = device_name(args, equal + 1, (size_t)(text + length - equal - 1));
            if (!device || !(pattern = args_keep(args, text, (size_t)(equal - text)))) return fail("out of memory");
            list[count++] = (tn_placement_override){pattern, device};
            text += length + (text[length] != '\0');
        }
    }
    p->overrides = list;
    p->n_overrides = (size_t)count;
    if (!all && !layers) return EXIT_OK;
    list[count] = (tn_placement_override){experts_pattern(args, all ? 0 : layers), "cpu"};
    p->n_overrides++;
    return list[count].pattern ? EXIT_OK : fail("out of memory");
}

/* The default effort is the scheduler's, which has a budget of its own. */
static int read_effort(const struct args *args, tn_session_params *p) {
    const char *effort = args_text(args, "effort");
    if (strcmp(effort, "balanced") == 0) return EXIT_OK;
    tn_pack_params pack = tn_pack_params_default();
    pack.effort = strcmp(effort, "fast") == 0 ? TN_PACK_FAST : TN_PACK_EXACT;
    tn_pack_params *kept = args_keep(args, NULL, sizeof *kept);
    if (!kept) return fail("out of memory");
    *kept = pack;
    p->pack = kept;
    return EXIT_OK;
}

/* TYPE, or TYPE,swa=TYPE for layers with a window. */
static int read_cache_type(const struct args *args, const char *option, const char *text, tn_type *type,
                           tn_type *window) {
    char name[16];
    const size_t length = strcspn(text, ",");
    const char *rest = text[length] ? text + length + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), text);
    if (rest && strncmp(rest, "swa=", 4) != 0)
        return fail_usage(args, "--%s %s: after the comma only swa=TYPE is possible", option, text);
    if (tn_cache_type_parse(name, type) != TN_OK || (rest && tn_cache_type_parse(rest + 4, window) != TN_OK))
        return fail_usage(args, "--%s %s: %s", option, text, tn_error());
    return EXIT_OK;
}
static int read_cache(const struct args *args, tn_session_params *p) {
    const char *k = args_text(args, "cache-type-k"), *v = args_text(args, "cache-type-v");
    const char *rotation = args_text(args, "cache-rotation");
    p->cache_rotation = strcmp(rotation, "on") == 0    ? TN_ROTATION_ON
                        : strcmp(rotation, "off") == 0 ? TN_ROTATION_OFF
                                                       : TN_ROTATION_AUTO;
    int code = read_cache_type(args, "cache-type-k", k, &p->cache_k, &p->cache_k_window);
    if (code) return code;
    return v ? read_cache_type(args, "cache-type-v", v, &p->cache_v, &p->cache_v_window)
             : read_cache_type(args, "cache-type-k", k, &p->cache_v, &p->cache_v_window);
}
const char *cache_types_text(const tn_session_params *p, char text[CACHE_TYPES_TEXT]) {
    const tn_type k = p->cache_k_window, v = p->cache_v_window;
    int n = snprintf(text, CACHE_TYPES_TEXT, "%s/%s", tn_type_name(p->cache_k), tn_type_name(p->cache_v));
    if (k != TN_TYPE_LIMIT || v != TN_TYPE_LIMIT)
        snprintf(text + n, CACHE_TYPES_TEXT - (size_t)n, " (windows %s/%s)",
                 tn_type_name(k != TN_TYPE_LIMIT ? k : p->cache_k),
                 tn_type_name(v != TN_TYPE_LIMIT ? v : p->cache_v));
    return text;
}

int session_params_from(const struct args *args, tn_session_params *p) {
    *p = tn_session_params_default();
    p->n_ctx = (int32_t)args_int(args, "ctx");
    p->n_batch = (int32_t)args_int(args, "batch");
    p->n_ubatch = (int32_t)args_int(args, "ubatch");
    p->n_threads = (int)args_int(args, "threads");
    p->n_gpu_layers = (int32_t)args_int(args, "gpu-layers");
    p->n_pipeline = (int)args_int(args, "pipeline");
    p->repeatable = args_flag(args, "repeatable");
    p->no_repack = !args_flag(args, "repack");
    p->n_candidates = SAMPLED_CANDIDATES;
    p->rope_base = (float)args_real(args, "rope-freq-base");
    p->rope_scale = (float)args_real(args, "rope-freq-scale");
    if (args_real(args, "rope-scale") > 0 && p->rope_scale > 0)
        return fail_usage(args, "use either --rope-scale or --rope-freq-scale, not both");
    if (args_real(args, "rope-scale") > 0) p->rope_scale = (float)(1 / args_real(args, "rope-scale"));
    p->abort = interrupted_callback;
    int code = read_cache(args, p);
    if (!code) code = read_effort(args, p);
    if (!code) code = read_devices(args, p);
    if (!code) code = read_split_mode(args, p);
    if (!code) code = read_split(args, p);
    if (!code) code = read_overrides(args, p);
    return code ? code : read_budgets(args, p);
}
