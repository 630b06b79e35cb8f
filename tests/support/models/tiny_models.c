/* Writing tiny models: sizes from the options, keys and tensors from the table of architectures, random weights. */
#include "models/tiny_models.h"

#include "files/layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which architectures ---- */

bool tiny_arch_is_tested(const char *name) {
    static const char *const list[] = {
        "llama",     "granitemoe", "qwen2moe",    "qwen3moe",    "gemma2",      "gemma3",   "phi2",      "phi3",
        "gpt2",      "falcon",     "mpt",         "olmo",        "olmo2",       "gpt-oss",  "command-r", "bert",
        "apertus",   "exaone4",    "nomic-bert",  "dream",       "modern-bert", "llama4",   "afmoe",     "grovemoe",
        "mamba",     "mamba2",     "jamba",       "falcon-h1",   "nemotron_h",  "lfm2",     "qwen35",    "qwen3next",
        "plamo2",    "minimax-01", "kimi-linear", "bailingmoe3", "deepseek2",   "minicpm3", "gemma4",    "glm-dsa",
        "dots3note", "minimax-m3", "kimi-k3"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(list[i], name) == 0) return true;
    return getenv("TENON_LONG") != NULL;
}

/* ---- Sizes ---- */

static uint32_t tiny_or(uint32_t given, uint32_t usual) { return given ? given : usual; }

static tn_status tiny_layout(const tiny_options *o, struct layout *l) {
    const tn_arch *arch = tn_arch_find(o->arch ? o->arch : "llama");
    if (!arch) return tn_fail(TN_E_NOT_FOUND, "there is no architecture '%s'", o->arch);
    const tn_arch_constants *typical = &arch->typical;
    *l = (struct layout){.arch = arch, .traits = arch->traits, .eps = 1e-5f, .rope_base = 10000};
    if (o->tied) l->traits |= TN_ARCH_TIED;
    l->layers = tiny_or(o->layers, arch->window_period       ? (uint32_t)arch->window_period + 1
                                   : arch->fewest_layers > 2 ? (uint32_t)arch->fewest_layers
                                                             : 2);
    l->layers += o->nextn;
    l->width = tiny_or(o->width, 32);
    l->heads = tiny_or(o->heads, 2);
    l->kv_heads = tiny_or(o->kv_heads, typical->kv_heads == TN_ARCH_KV_SAME ? l->heads : 1);
    l->head = tiny_or(o->head, l->width / l->heads);
    l->ffn = tiny_or(o->ffn, 2 * l->width);
    l->vocab = tiny_or(o->vocab, o->tokenizer ? 160 : 64);
    l->context = tiny_or(o->context, 128);
    l->window = tiny_or(o->window, typical->window ? 16 : 0);
    l->rotated = (uint32_t)((float)l->head * (arch->rotated > 0 ? arch->rotated : 1)) & ~1u;
    l->experts = tiny_or(o->experts, l->traits & TN_ARCH_EXPERTS ? 4 : 0);
    l->experts_used = tiny_or(o->experts_used, l->experts > 1 ? 2 : l->experts);
    l->expert_ffn = l->experts ? l->ffn : 0;
    l->shared_ffn = l->traits & TN_ARCH_SHARED_EXPERT ? l->ffn : 0;
    l->token_types = l->traits & TN_ARCH_BERT ? 2 : 0;
    layout_use_constants(l, arch);
    return layout_check(l);
}

/* ---- Tokenizer ---- */

enum { TINY_VOCAB_MOST = 4096, TINY_NORMAL = 1, TINY_UNKNOWN = 2, TINY_CONTROL = 3, TINY_UNUSED = 5 };

typedef struct tiny_vocab {
    uint32_t n;
    char texts[TINY_VOCAB_MOST][32];
    tn_gguf_str tokens[TINY_VOCAB_MOST];
    float scores[TINY_VOCAB_MOST];
    int32_t types[TINY_VOCAB_MOST];
} tiny_vocab;

static void add_tiny_token(tiny_vocab *v, const char *mark, const char *text, int32_t type) {
    int length = snprintf(v->texts[v->n], sizeof v->texts[0], "%s%s", mark, text);
    v->tokens[v->n] = (tn_gguf_str){v->texts[v->n], (size_t)length};
    v->scores[v->n] = type == TINY_NORMAL ? -(float)v->n : 0;
    v->types[v->n] = type;
    v->n++;
}

/* Single characters: pieces of a word, of an encoder also those that begin one. */
static void fill_tiny_vocab(tiny_vocab *v, bool encoder, uint32_t size) {
    static const char *const decoder_marks[] = {"<unk>", "<s>", "</s>"};
    static const char *const encoder_marks[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    const int n_marks = encoder ? 5 : 3, unknown = encoder ? 1 : 0;
    for (int i = 0; i < n_marks; i++)
        add_tiny_token(v, "", (encoder ? encoder_marks : decoder_marks)[i],
                       i == unknown ? TINY_UNKNOWN : TINY_CONTROL);
    if (!encoder) add_tiny_token(v, "▁", "", TINY_NORMAL);
    for (int begins = encoder; begins >= 0; begins--)
        for (char c = 33; c < 127; c++)
            if (!encoder || c < 'A' || c > 'Z') add_tiny_token(v, begins ? "▁" : "", (char[]){c, 0}, TINY_NORMAL);
    while (v->n < size) {
        char text[24];
        snprintf(text, sizeof text, "[unused%u]", v->n);
        add_tiny_token(v, "", text, TINY_UNUSED);
    }
}

static tn_status set_tiny_tokenizer(tn_gguf_writer *w, uint32_t size, bool encoder) {
    if (size < 160 || size > TINY_VOCAB_MOST)
        return tn_fail(TN_E_INVALID, "a tiny tokenizer has from 160 to %d tokens, not %u", TINY_VOCAB_MOST, size);
    tiny_vocab *v = tn_calloc(1, sizeof *v);
    if (!v) return TN_E_NOMEM;
    fill_tiny_vocab(v, encoder, size);
    const struct {
        const char *key;
        int decoder, encoder; /* ids; -1: not in this kind of vocabulary */
    } marks[] = {{"tokenizer.ggml.bos_token_id", 1, 2},        {"tokenizer.ggml.eos_token_id", 2, 3},
                 {"tokenizer.ggml.unknown_token_id", 0, 1},    {"tokenizer.ggml.padding_token_id", -1, 0},
                 {"tokenizer.ggml.seperator_token_id", -1, 3}, {"tokenizer.ggml.cls_token_id", -1, 2},
                 {"tokenizer.ggml.mask_token_id", -1, 4}};
    tn_status status;
    TN_TRY_GOTO(tn_gguf_writer_set_cstr(w, "tokenizer.ggml.model", encoder ? "bert" : "llama"), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_cstr(w, "tokenizer.ggml.pre", "default"), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "tokenizer.ggml.tokens", TN_GGUF_STR, v->tokens, size), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "tokenizer.ggml.scores", TN_GGUF_F32, v->scores, size), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "tokenizer.ggml.token_type", TN_GGUF_I32, v->types, size), status, out);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const int id = encoder ? marks[i].encoder : marks[i].decoder;
        if (id >= 0) TN_TRY_GOTO(tn_gguf_writer_set_u32(w, marks[i].key, (uint32_t)id), status, out);
    }
    TN_TRY_GOTO(tn_gguf_writer_set_bool(w, "tokenizer.ggml.add_bos_token", true), status, out);
    status = tn_gguf_writer_set_bool(w, "tokenizer.ggml.add_eos_token", encoder);
out:
    tn_free(v);
    return status;
}

/* ---- Weights ---- */

typedef struct tiny_weights {
    tn_gguf_writer *writer;
    tn_type type;
    bool writing; /* otherwise the tensors are declared */
    bool tied;
    uint64_t state;
    const tiny_options *options;
} tiny_weights;

/* Roughly normal with variance 1: the sum of four uniform numbers (of splitmix64). */
static float tiny_normal(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(z >> (16 * i) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7320508f;
}

static float tiny_value(tn_arch_tensor_kind kind, int64_t columns, uint64_t *state) {
    const float x = tiny_normal(state);
    switch (kind) {
    case TN_ARCH_NORM: return 1.0f + 0.1f * x;
    case TN_ARCH_BIAS: return 0.1f * x;
    case TN_ARCH_EMBEDDING: return x;
    case TN_ARCH_FACTORS: return 1.0f;
    case TN_ARCH_DECAY: return -expf(0.5f * x);
    case TN_ARCH_CONV:
    case TN_ARCH_MATRIX: break;
    }
    return x / sqrtf((float)columns); /* keeps the variance of activations from layer to layer */
}

static tn_status visit_tiny_tensor(void *user, const tn_arch_tensor *made) {
    tiny_weights *w = user;
    const char *name = made->name;
    const tn_arch_tensor_kind kind = made->kind;
    const int n_dims = made->n_dims;
    const int64_t *ne = made->ne;
    if (made->need == TN_ARCH_OPTIONAL || (w->tied && strcmp(name, "output.weight") == 0)) return TN_OK;
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= ne[i];
    const bool large = n_dims >= 2 && (kind == TN_ARCH_MATRIX || kind == TN_ARCH_EMBEDDING) &&
                       !strstr(name, "ffn_gate_inp") && ne[0] % tn_type_block(w->type) == 0;
    const tn_type type = large ? w->type : TN_F32;
    if (!w->writing) return tn_gguf_writer_add(w->writer, name, type, n_dims, ne);
    float *values = tn_malloc((size_t)n * sizeof *values);
    void *blocks = tn_malloc((size_t)n * sizeof *values); /* no type is larger */
    tn_status status = values && blocks ? TN_OK : TN_E_NOMEM;
    for (int64_t i = 0; i < n && status == TN_OK; i++) values[i] = tiny_value(kind, ne[0], &w->state);
    if (status == TN_OK) status = tn_type_from_f32(type, values, blocks, n, NULL);
    if (status == TN_OK)
        status = tn_gguf_writer_write(w->writer, blocks, (size_t)(n / tn_type_block(type)) * tn_type_bytes(type));
    tn_free(values);
    tn_free(blocks);
    return status;
}

/* The tokens that a head guesses: spread over the vocabulary. */
static tn_status visit_guessed_tokens(tiny_weights *w, uint32_t n, uint32_t vocab) {
    const int64_t ne[] = {n};
    if (!w->writing) return tn_gguf_writer_add(w->writer, "d2t", TN_I64, 1, ne);
    for (int64_t i = 0; i < n; i++) {
        const int64_t token = i * vocab / n;
        TN_TRY(tn_gguf_writer_write(w->writer, &token, sizeof token));
    }
    return TN_OK;
}

/* Tensors that a head may take from its model. */
static tn_status visit_own_ends(const struct layout *l, tiny_weights *w) {
    const tiny_options *o = w->options;
    const int64_t guessed = o->guessed ? o->guessed : l->vocab;
    const tn_arch_tensor embedding = {
        .name = "token_embd.weight", .kind = TN_ARCH_EMBEDDING, .n_dims = 2, .ne = {l->width, l->vocab, 1, 1}};
    const tn_arch_tensor output = {
        .name = "output.weight", .kind = TN_ARCH_MATRIX, .n_dims = 2, .ne = {l->width, guessed, 1, 1}};
    w->tied = false;
    if (!o->borrows) TN_TRY(visit_tiny_tensor(w, &embedding));
    if (!o->borrows || o->guessed) TN_TRY(visit_tiny_tensor(w, &output));
    return o->guessed ? visit_guessed_tokens(w, o->guessed, l->vocab) : TN_OK;
}

static tn_status visit_tiny_tensors(const struct layout *l, uint32_t labels, tiny_weights *w) {
    const tn_arch_tensor head = {
        .name = "cls.output.weight", .kind = TN_ARCH_MATRIX, .n_dims = 2, .ne = {l->width, labels, 1, 1}};
    TN_TRY(layout_tensors(w->writer, visit_tiny_tensor, w));
    if (w->options->target_width) return visit_own_ends(l, w);
    return labels ? visit_tiny_tensor(w, &head) : TN_OK;
}

static tn_status write_tiny(tn_gguf_writer *writer, const struct layout *l, const tiny_options *o) {
    tiny_weights w = {.writer = writer,
                      .type = o->type,
                      .tied = l->traits & TN_ARCH_TIED,
                      .state = o->seed * 0x2545f4914f6cdd1du,
                      .options = o};
    TN_TRY(layout_keys(l, writer));
    TN_TRY(layout_synthetic_keys(l, writer));
    TN_TRY(tn_gguf_writer_set_cstr(writer, "general.name", "tiny"));
    char key[128];
    snprintf(key, sizeof key, "%s.nextn_predict_layers", l->arch->name);
    if (o->nextn) TN_TRY(tn_gguf_writer_set_u32(writer, key, o->nextn));
    if (o->target_width) {
        TN_TRY(tn_gguf_writer_set_array(writer, "eagle3.target_layers", TN_GGUF_U32, o->target_layers, 3));
        TN_TRY(tn_gguf_writer_set_u32(writer, "eagle3.target_hidden_size", o->target_width));
        TN_TRY(tn_gguf_writer_set_bool(writer, "eagle3.norm_before_fc", o->norm_before_fc));
        TN_TRY(tn_gguf_writer_set_bool(writer, "eagle3.norm_before_residual", o->norm_before_residual));
    }
    if (o->tokenizer) TN_TRY(set_tiny_tokenizer(writer, l->vocab, l->traits & TN_ARCH_ENCODER));
    TN_TRY(visit_tiny_tensors(l, o->labels, &w));
    TN_TRY(tn_gguf_writer_begin(writer));
    w.writing = true;
    TN_TRY(visit_tiny_tensors(l, o->labels, &w));
    return tn_gguf_writer_finish(writer);
}

tn_status tiny_model_write(const char *path, const tiny_options *options) {
    const tiny_options usual = {0}, *o = options ? options : &usual;
    struct layout l;
    tn_gguf_writer *writer = NULL;
    TN_TRY(tiny_layout(o, &l));
    TN_TRY(tn_gguf_writer_new(path, NULL, &writer));
    tn_status status = write_tiny(writer, &l, o);
    tn_gguf_writer_free(writer);
    return status;
}
