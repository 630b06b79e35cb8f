/* tenon synth: a model with random weights, for benchmarks and planning. */
#include "files/synth.h"
#include "cli/cli.h"
#include "cli/term.h"
#include "files/output_file.h"
#include "files/quant_mix.h"
#include "files/tensor_writer.h"
#include "tenon/gguf.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Weights ---- */

/* Random blocks of one type and scale. Tensors are made of these blocks in random order, which is as fast as memory
 * and valid for every type. */
enum { STOCK_BLOCKS = 2048 };

struct stock {
    tn_type type;
    tn_arch_tensor_kind kind;
    int64_t columns; /* sets the scale */
    int64_t block;   /* elements */
    size_t block_bytes;
    unsigned char *bytes;
};

struct synth {
    struct layout layout;
    const struct mix *mix;
    struct mix_model model;
    tn_gguf_writer *writer;
    uint64_t seed;
    struct written_tensor *tensors;
    size_t *stock_of; /* per tensor */
    size_t count, capacity;
    bool no_data;
    struct stock *stocks;
    size_t stock_count;
};

static uint64_t mix64(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Roughly normal with variance 1: the sum of four uniform numbers. */
static float random_normal(uint64_t *state) {
    uint64_t bits = mix64(state);
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(bits >> (16 * i) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7320508f;
}

static float value_of(tn_arch_tensor_kind kind, int64_t columns, uint64_t *state) {
    float x = random_normal(state);
    switch (kind) {
    case TN_ARCH_NORM: return 1.0f + 0.05f * x;
    case TN_ARCH_BIAS: return 0.02f * x;
    case TN_ARCH_EMBEDDING: return 0.5f * x; /* rows are looked up, not summed */
    case TN_ARCH_FACTORS: return 1.0f;
    case TN_ARCH_DECAY: return -expf(0.5f * x);
    case TN_ARCH_CONV:
    case TN_ARCH_MATRIX: break;
    }
    return x / sqrtf((float)columns); /* keeps the variance of activations from layer to layer */
}

static tn_status find_stock(struct synth *s, tn_type type, tn_arch_tensor_kind kind, int64_t columns, size_t *out) {
    for (size_t i = 0; i < s->stock_count; i++)
        if (s->stocks[i].type == type && s->stocks[i].kind == kind && s->stocks[i].columns == columns) {
            *out = i;
            return TN_OK;
        }
    struct stock *grown = tn_realloc(s->stocks, (s->stock_count + 1) * sizeof *grown);
    if (!grown) return TN_E_NOMEM;
    s->stocks = grown;
    struct stock made = {.type = type, .kind = kind, .columns = columns};
    made.block = tn_type_block(type) > 1 ? tn_type_block(type) : columns % 64 == 0 ? 64 : 1;
    made.block_bytes = (size_t)(made.block / tn_type_block(type)) * tn_type_bytes(type);
    int64_t n = made.block * STOCK_BLOCKS;
    float *values = tn_malloc((size_t)n * sizeof *values);
    made.bytes = tn_malloc(made.block_bytes * STOCK_BLOCKS);
    tn_status status = values && made.bytes ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) {
        uint64_t state =
            s->seed * 0x2545f4914f6cdd1du + ((uint64_t)type << 40) + ((uint64_t)kind << 32) + (uint64_t)columns;
        for (int64_t i = 0; i < n; i++) values[i] = value_of(kind, columns, &state);
        status = tn_type_from_f32(type, values, made.bytes, n, NULL);
    }
    tn_free(values);
    if (status != TN_OK) {
        tn_free(made.bytes);
        return status;
    }
    s->stocks[s->stock_count] = made;
    *out = s->stock_count++;
    return TN_OK;
}

static tn_status fill_rows(void *user, size_t tensor, int64_t first, int64_t count, void *out) {
    const struct synth *s = user;
    const struct stock *stock = &s->stocks[s->stock_of[tensor]];
    int64_t blocks = s->tensors[tensor].columns / stock->block;
    unsigned char *to = out;
    for (int64_t row = first; row < first + count; row++) { /* seeded by row: chunks and threads make no difference */
        uint64_t state = s->seed ^ (uint64_t)tensor << 40 ^ (uint64_t)row, bits = 0;
        mix64(&state);
        for (int64_t b = 0; b < blocks; b++) {
            bits = b % 5 == 0 ? mix64(&state) : bits >> 12;
            memcpy(to, stock->bytes + (size_t)(bits % STOCK_BLOCKS) * stock->block_bytes, stock->block_bytes);
            to += stock->block_bytes;
        }
    }
    return TN_OK;
}

static tn_status add_synth_tensor(void *user, const tn_arch_tensor *made) {
    struct synth *s = user;
    const char *name = made->name;
    const tn_arch_tensor_kind kind = made->kind;
    const int n_dims = made->n_dims;
    const int64_t *full = made->ne;
    if (made->need == TN_ARCH_OPTIONAL) return TN_OK;
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 1024;
        struct written_tensor *tensors = tn_realloc(s->tensors, capacity * sizeof *tensors);
        if (tensors) s->tensors = tensors;
        size_t *stock_of = tensors ? tn_realloc(s->stock_of, capacity * sizeof *stock_of) : NULL;
        if (!stock_of) return TN_E_NOMEM;
        s->stock_of = stock_of;
        s->capacity = capacity;
    }
    struct written_tensor *t = &s->tensors[s->count];
    bool large = mix_quantizes(name, n_dims) && (kind == TN_ARCH_MATRIX || kind == TN_ARCH_EMBEDDING);
    *t = (struct written_tensor){.columns = full[0], .rows = full[1] * full[2] * full[3], .raw = true};
    t->type = large ? mix_type(s->mix, &s->model, name, full) : TN_F32;
    TN_TRY(tn_gguf_writer_add(s->writer, name, t->type, n_dims, made->ne));
    if (!s->no_data) TN_TRY(find_stock(s, t->type, kind, t->columns, &s->stock_of[s->count]));
    s->count++;
    return TN_OK;
}

/* ---- Command ---- */

/* "128" or "11,11,10,0". Returns how many; 0: something else. */
static size_t read_numbers(const char *text, uint32_t *numbers, size_t most) {
    size_t n = 0;
    for (char *end;; text = end + 1) {
        const unsigned long value = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : ULONG_MAX;
        if (value > INT32_MAX || n == most) return 0;
        numbers[n++] = (uint32_t)value;
        if (!*end) return n;
        if (*end != ',') return 0;
    }
}

/* Numbers of the architecture that a shape does not have: NAME=N sets ARCH.NAME. Tensors follow from them. */
static tn_status set_numbers(struct synth *s, const struct args *args) {
    enum { MOST = 256 };
    for (int i = 0; i < args_repeats(args, "set"); i++) {
        const char *text = args_text_at(args, "set", i), *sign = strchr(text, '=');
        uint32_t numbers[MOST];
        char key[160];
        const size_t n = sign && sign > text ? read_numbers(sign + 1, numbers, MOST) : 0;
        if (n == 0)
            return tn_fail(TN_E_INVALID,
                           "--set %s: expected a name and whole numbers, such as ssm.state_size=128 or "
                           "rope.dimension_sections=11,11,10,0",
                           text);
        if (snprintf(key, sizeof key, "%s.%.*s", s->layout.arch->name, (int)(sign - text), text) >= (int)sizeof key)
            return tn_fail(TN_E_INVALID, "--set %s: the name is too long", text);
        if (n == 1)
            TN_TRY(tn_gguf_writer_set_u32(s->writer, key, numbers[0]));
        else
            TN_TRY(tn_gguf_writer_set_array(s->writer, key, TN_GGUF_U32, numbers, n));
    }
    return TN_OK;
}

static tn_status write_model(struct synth *s, const struct args *args) {
    const struct layout *l = &s->layout;
    char name[128];
    /* Other programs recognise models by this name and expect their tokens, so it must not contain the architecture.
     */
    snprintf(name, sizeof name, "synth %.100s", args_text(args, "shape"));
    TN_TRY(layout_keys(l, s->writer));
    TN_TRY(layout_synthetic_keys(l, s->writer));
    TN_TRY(set_numbers(s, args));
    TN_TRY(tn_gguf_writer_set_cstr(s->writer, "general.name", name));
    TN_TRY(tn_gguf_writer_set_u32(s->writer, "general.file_type", s->mix->file_type));
    if (tn_type_is_quantized(s->mix->type))
        TN_TRY(tn_gguf_writer_set_u32(s->writer, "general.quantization_version", 2));
    TN_TRY(synth_vocab(s->writer, l->vocab, l->traits & TN_ARCH_ENCODER));
    TN_TRY(layout_tensors(s->writer, add_synth_tensor, s));
    TN_TRY(tn_gguf_writer_begin(s->writer));
    if (!s->no_data) {
        struct tensor_writer task = {.tensors = s->tensors,
                                     .tensor_count = s->count,
                                     .source = fill_rows,
                                     .user = s,
                                     .threads = (int)args_int(args, "threads"),
                                     .title = "writing"};
        TN_TRY(write_tensors(s->writer, &task));
    }
    return tn_gguf_writer_finish(s->writer);
}

static void report_model(const struct synth *s, const char *out) {
    char count[HUMAN_SIZE], bytes[HUMAN_SIZE];
    double parameters = 0;
    for (size_t i = 0; i < s->count; i++) parameters += (double)s->tensors[i].columns * (double)s->tensors[i].rows;
    printf("%s: %s, %s parameters in %zu tensors, %s%s\n", out, s->layout.arch->name, human_count(count, parameters),
           s->count, human_bytes(bytes, tn_gguf_writer_bytes(s->writer)), s->no_data ? " (without data)" : "");
}

static int run_synth(const struct args *args) {
    const char *out = args->values[0], *arch_name = args_text(args, "arch"), *type = args_text(args, "type");
    const tn_arch *arch = tn_arch_find(arch_name);
    struct synth s = {
        .mix = mix_find(type), .seed = (uint64_t)args_int(args, "seed"), .no_data = args_flag(args, "no-data")};
    if (!arch) {
        fprintf(stderr, "The architectures are:");
        for (size_t i = 0; tn_arch_at(i); i++) fprintf(stderr, " %s", tn_arch_at(i)->name);
        fputc('\n', stderr);
        return fail_usage(args, "unknown architecture \"%s\"", arch_name);
    }
    if (!s.mix) return fail_usage(args, "unknown type \"%s\"", type);
    if (!tn_type_can_write(s.mix->type)) return fail("%s cannot be written, only read", s.mix->name);
    int code = check_output(out, args_flag(args, "force"), NULL, 0);
    if (code) return code;
    tn_status status = synth_layout(arch, args_text(args, "shape"), &s.layout);
    if (status == TN_OK) status = tn_gguf_writer_new(out, &(tn_gguf_writer_params){.no_data = s.no_data}, &s.writer);
    if (status == TN_OK) {
        s.model = (struct mix_model){.layers = s.layout.layers,
                                     .experts = s.layout.experts,
                                     .heads = s.layout.heads,
                                     .kv_heads = s.layout.kv_heads,
                                     .has_output = !(s.layout.traits & (TN_ARCH_TIED | TN_ARCH_ENCODER)),
                                     .output_q8_0 = arch->output_q8_0};
        status = write_model(&s, args);
    }
    if (status == TN_OK) report_model(&s, out);
    tn_gguf_writer_free(s.writer);
    for (size_t i = 0; i < s.stock_count; i++) tn_free(s.stocks[i].bytes);
    tn_free(s.stocks);
    tn_free(s.tensors);
    tn_free(s.stock_of);
    return status == TN_OK ? EXIT_OK : fail_status(status, "synth");
}

static const struct option options[] = {
    {.name = "arch",
     .letter = "a",
     .value = "ARCH",
     .kind = OPTION_TEXT,
     .fallback = "llama",
     .help = "architecture: llama, qwen3, gemma2, qwen3moe, bert, …"},
    {.name = "shape",
     .letter = "s",
     .value = "SHAPE",
     .kind = OPTION_TEXT,
     .fallback = "tiny",
     .help = "tiny, 15m, 100m, 1b, 3b, 8b, 70b, 405b, or a list of numbers (see below)"},
    {.name = "set",
     .value = "NAME=N",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "another number of the architecture, or a list, such as ssm.state_size=128; may be repeated"},
    {.name = "type",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .fallback = "f16",
     .help = "type or mix of the weights, as for quantize"},
    {.name = "seed", .value = "N", .kind = OPTION_INT, .fallback = "1", .help = "the same seed gives the same file"},
    {.name = "no-data",
     .help = "metadata and tensor table only: enough for planning, almost no disk space",
     .kind = OPTION_FLAG},
    OPTION_THREADS,
    OPTION_FORCE,
    {0},
};

const struct command command_synth = {
    .name = "synth",
    .summary = "make a model with random weights, for benchmarks and planning",
    .section = SECTION_FILES,
    .arguments = "OUT",
    .min_arguments = 1,
    .max_arguments = 1,
    .options = options,
    .details =
        "Metadata, tensor names and shapes are those of real models, and the tokenizer can encode any text, so "
        "that every program that reads GGUF can load the file.\n\n"
        "A shape can be a list of key=value pairs; keys that are left out are those of the shape tiny: "
        "layers=4,width=512,heads=8,kv=2,head=64,ffn=1024,"
        "vocab=2000,ctx=4096,experts=8,used=2,expert-ffn=256,window=1024.",
    .examples = "tenon synth bench.gguf --shape 1b --type q8_0\n"
                "tenon synth plan.gguf --shape 70b --type Q4_K_M --no-data\n"
                "tenon synth moe.gguf --arch qwen3moe --shape layers=4,width=512,experts=16,used=4\n"
                "tenon synth ssm.gguf --arch mamba2 --shape layers=4,width=512 --set ssm.state_size=128",
    .run = run_synth,
};
