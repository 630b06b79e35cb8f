/* The shapes of synthetic models, and a vocabulary that can encode any text. */
#include "files/synth.h"

#include <inttypes.h>
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
                "shape %s: a name (tiny 15m 100m 1b 3b 8b 70b 405b) or a list such as "
                "layers=4,width=512,heads=8,kv=2,ffn=1024,vocab=2000,ctx=4096,experts=8,used=2 is expected",
                text);
        *fields[i].value = (uint32_t)value;
        text = *end ? end + 1 : end;
    }
    return TN_OK;
}

tn_status synth_layout(const tn_arch *arch, const char *shape, struct layout *l) {
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
    if (l->vocab < 512)
        return tn_fail(TN_E_INVALID, "a vocabulary of %" PRIu32 "; the tokenizer needs at least 512", l->vocab);
    return layout_check(l);
}

/* ---- Tokenizer ---- */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

struct token_list {
    uint32_t size, count;
    tn_gguf_str *tokens;
    float *scores;
    int32_t *types;
    char *text; /* the tokens' bytes */
    size_t used;
};

static void add_synth_token(struct token_list *v, const char *text, int32_t type) {
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
static void fill_pieces(struct token_list *v) {
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
static void fill_word_pieces(struct token_list *v) {
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

tn_status synth_vocab(tn_gguf_writer *w, uint32_t size, bool encoder) {
    struct token_list v = {.size = size};
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
