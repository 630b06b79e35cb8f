/* tenon synth: a model with random weights, for benchmarks and planning. */
#include "cli/cli.h"
#include "cli/term.h"
#include "files/layout.h"
#include "files/output_file.h"
#include "files/quant_mix.h"
#include "files/tensor_writer.h"
#include "tenon/gguf.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Shapes ---- */

static const struct shape {
    const char *name;
    uint32_t layers, width, heads, kv_heads, ffn, vocab, context;
    float rope_base;
} shapes[] = {
    {"tiny", 2, 256, 4, 2, 512, 1024, 2048, 10000},
    {"15m", 6, 288, 6, 6, 768, 32000, 2048, 10000},
    {"100m", 12, 768, 12, 4, 2048, 32000, 8192, 10000},
    {"1b", 16, 2048, 32, 8, 8192, 32000, 32768, 500000},
    {"3b", 28, 3072, 24, 8, 8192, 128256, 131072, 500000},
    {"8b", 32, 4096, 32, 8, 14336, 128256, 131072, 500000},
    {"70b", 80, 8192, 64, 8, 28672, 128256, 131072, 500000},
    {"405b", 126, 16384, 128, 8, 53248, 128256, 131072, 500000},
};

/* "layers=4,width=512,…" over the numbers of "tiny". */
static tn_status parse_custom(const char *text, struct layout *l) {
    const struct {
        const char *name;
        uint32_t *value;
    } fields[] = {
        {"layers", &l->layers},   {"width", &l->width},       {"heads", &l->heads},           {"kv", &l->kv_heads},
        {"head", &l->head},       {"ffn", &l->ffn},           {"vocab", &l->vocab},           {"ctx", &l->context},
        {"experts", &l->experts}, {"used", &l->experts_used}, {"expert-ffn", &l->expert_ffn}, {"window", &l->window}};
    const size_t count = sizeof fields / sizeof *fields;
    while (*text) {
        size_t name = strcspn(text, "="), i = 0;
        while (i < count && (strlen(fields[i].name) != name || strncmp(fields[i].name, text, name) != 0)) i++;
        char *end;
        unsigned long value = text[name] ? strtoul(text + name + 1, &end, 10) : 0;
        if (i == count || !text[name] || end == text + name + 1 || (*end && *end != ',') || value > 1u << 24)
            return tn_fail(
                TN_E_SYNTAX,
                "--shape %s: a name (tiny 15m 100m 1b 3b 8b 70b) or a list such as "
                "layers=4,width=512,heads=8,kv=2,ffn=1024,vocab=2000,ctx=4096,experts=8,used=2 is expected",
                text);
        *fields[i].value = (uint32_t)value;
        text = *end ? end + 1 : end;
    }
    return TN_OK;
}

static tn_status synth_layout(const tn_arch *arch, const char *shape, struct layout *l) {
    *l = (struct layout){.arch = arch, .traits = arch->traits, .eps = 1e-5f};
    const struct shape *s = &shapes[0];
    bool named = false;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, shape) == 0) {
            s = &shapes[i];
            named = true;
        }
    l->layers = s->layers, l->width = s->width, l->heads = s->heads, l->kv_heads = s->kv_heads, l->ffn = s->ffn;
    l->vocab = s->vocab, l->context = s->context, l->rope_base = s->rope_base;
    if (!named) TN_TRY(parse_custom(shape, l));
    if (!l->head) l->head = l->heads ? l->width / l->heads : 0;
    l->rotated = (uint32_t)((float)l->head * (arch->rotated > 0 ? arch->rotated : 1)) & ~1u;
    if ((l->traits & TN_ARCH_EXPERTS) && !l->experts) l->experts = 8;
    if (l->experts && !l->experts_used) l->experts_used = 2;
    if (l->experts && !l->expert_ffn) l->expert_ffn = l->ffn;
    if (l->traits & TN_ARCH_SHARED_EXPERT) l->shared_ffn = l->ffn;
    if (l->traits & TN_ARCH_BERT) l->token_types = 2;
    if (l->traits & (TN_ARCH_POSITIONS | TN_ARCH_ENCODER) && !named && l->context > 65536) l->context = 65536;
    const tn_arch_constants *typical = &arch->typical;
    if (!l->window) l->window = typical->window;
    if (typical->kv_heads) l->kv_heads = typical->kv_heads == TN_ARCH_KV_SAME ? l->heads : typical->kv_heads;
    layout_use_constants(l, arch);
    return layout_check(l);
}

/* ---- Tokenizer ---- */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

struct synth_vocab {
    uint32_t size, count;
    tn_gguf_str *tokens;
    float *scores;
    int32_t *types;
    char *text; /* the tokens' bytes */
    size_t used;
};

static void add_synth_token(struct synth_vocab *v, const char *text, int32_t type) {
    if (v->count >= v->size) return;
    size_t length = strlen(text);
    memcpy(v->text + v->used, text, length + 1);
    v->tokens[v->count] = (tn_gguf_str){v->text + v->used, length};
    v->scores[v->count] = type == TYPE_NORMAL ? -(float)v->count : 0;
    v->types[v->count] = type;
    v->used += length + 1;
    v->count++;
}

/* Bytes and single characters, so that every text can be encoded. */
static void fill_pieces(struct synth_vocab *v) {
    char text[32];
    add_synth_token(v, "<unk>", TYPE_UNKNOWN);
    add_synth_token(v, "<s>", TYPE_CONTROL);
    add_synth_token(v, "</s>", TYPE_CONTROL);
    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", i);
        add_synth_token(v, text, TYPE_BYTE);
    }
    for (int word = 1; word >= 0; word--)
        for (int c = 33; c < 127; c++) {
            snprintf(text, sizeof text, "%s%c", word ? "▁" : "", c);
            add_synth_token(v, text, TYPE_NORMAL);
        }
    add_synth_token(v, "▁", TYPE_NORMAL);
}

/* WordPiece: pieces that begin a word have "▁" in the file, others do not. */
static void fill_word_pieces(struct synth_vocab *v) {
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    char text[32];
    for (int i = 0; i < 5; i++) add_synth_token(v, special[i], i == 1 ? TYPE_UNKNOWN : TYPE_CONTROL);
    for (int word = 1; word >= 0; word--)
        for (int c = 33; c < 127; c++) {
            if (c >= 'A' && c <= 'Z') continue;
            snprintf(text, sizeof text, "%s%c", word ? "▁" : "", c);
            add_synth_token(v, text, TYPE_NORMAL);
        }
}

static tn_status set_tokenizer(tn_gguf_writer *w, uint32_t size, bool encoder) {
    struct synth_vocab v = {.size = size};
    v.tokens = tn_calloc(size, sizeof *v.tokens);
    v.scores = tn_calloc(size, sizeof *v.scores);
    v.types = tn_calloc(size, sizeof *v.types);
    v.text = tn_malloc((size_t)size * 24);
    tn_status status = TN_E_NOMEM;
    if (!v.tokens || !v.scores || !v.types || !v.text) goto out;
    if (encoder)
        fill_word_pieces(&v);
    else
        fill_pieces(&v);
    while (v.count < size) {
        char text[24];
        snprintf(text, sizeof text, "[unused%" PRIu32 "]", v.count);
        add_synth_token(&v, text, TYPE_UNUSED);
    }
    TN_TRY_GOTO(tn_gguf_writer_set_cstr(w, "tokenizer.ggml.model", encoder ? "bert" : "llama"), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_cstr(w, "tokenizer.ggml.pre", "default"), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "tokenizer.ggml.tokens", TN_GGUF_STR, v.tokens, size), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "tokenizer.ggml.scores", TN_GGUF_F32, v.scores, size), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "tokenizer.ggml.token_type", TN_GGUF_I32, v.types, size), status, out);
    const struct {
        const char *key;
        int piece, word_piece; /* ids; -1: not in this kind of vocabulary */
    } special[] = {{"tokenizer.ggml.bos_token_id", 1, 2},        {"tokenizer.ggml.eos_token_id", 2, 3},
                   {"tokenizer.ggml.unknown_token_id", 0, 1},    {"tokenizer.ggml.padding_token_id", -1, 0},
                   {"tokenizer.ggml.seperator_token_id", -1, 3}, {"tokenizer.ggml.cls_token_id", -1, 2},
                   {"tokenizer.ggml.mask_token_id", -1, 4}};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        int id = encoder ? special[i].word_piece : special[i].piece;
        if (id >= 0) TN_TRY_GOTO(tn_gguf_writer_set_u32(w, special[i].key, (uint32_t)id), status, out);
    }
    TN_TRY_GOTO(tn_gguf_writer_set_bool(w, "tokenizer.ggml.add_bos_token", true), status, out);
    status = tn_gguf_writer_set_bool(w, "tokenizer.ggml.add_eos_token", encoder);
out:
    tn_free(v.tokens);
    tn_free(v.scores);
    tn_free(v.types);
    tn_free(v.text);
    return status;
}

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
    TN_TRY(set_tokenizer(s->writer, l->vocab, l->traits & TN_ARCH_ENCODER));
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
    if (status == TN_OK && s.layout.vocab < 512)
        status =
            tn_fail(TN_E_INVALID, "a vocabulary of %" PRIu32 "; the tokenizer needs at least 512", s.layout.vocab);
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
     .help = "tiny, 15m, 100m, 1b, 3b, 8b, 70b, or a list of numbers (see below)"},
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
     .help = "metadata and tensor table only: enough to plan, next to no disk space",
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
