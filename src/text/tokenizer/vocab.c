/* The vocabulary: token texts, types and scores, lookup by text, roles of tokens, and the decoded text of each token.
 *
 * Metadata is untrusted. Ids out of range count as absent, unknown types as normal, NaN scores as -inf. Everything
 * else that is malformed is an error. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

void tn__vocab_source_init(tn__vocab_source *source) {
    memset(source, 0, sizeof *source);
    for (int i = 0; i < TN_SPECIAL_COUNT; i++) source->special[i] = -1;
    source->add_bos = source->add_eos = source->add_sep = source->add_space_prefix = TN__UNSET;
    source->remove_extra_whitespaces = source->lowercase = source->strip_accents = TN__UNSET;
}

/* ---- The byte-level alphabet ---- */

/* Byte-level vocabularies write every byte as a printable character: printable characters of Latin-1 as themselves,
 * the other bytes in order as U+0100 and up. */
static bool is_printable(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

uint32_t tn__char_of_byte(unsigned byte) {
    if (is_printable(byte)) return byte;
    uint32_t cp = 0x100;
    for (unsigned b = 0; b < byte; b++) cp += !is_printable(b);
    return cp;
}

int tn__byte_of_char(uint32_t cp) {
    if (cp < 0x100) return is_printable(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);        /* 0x00 … 0x20 */
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f); /* 0x7f … 0xa0 */
    return cp == 0x143 ? 0xad : -1;
}

/* ---- Texts ---- */

/* The filter has eight bits per slot of the map; the upper half of the hash selects the bit. */
static inline size_t filter_bit(const tn_tokenizer *t, uint64_t hash) {
    return (size_t)(hash >> 32) & (8 * (t->text_mask + 1) - 1);
}

uint32_t tn__token_text_find(const tn_tokenizer *t, const char *text, size_t size) {
    uint64_t whole = tn__hash_bytes(text, size, t->seed);
    /* Loading looks up many texts that are not tokens; the bitset rejects most of them. */
    if (!tn__bits_get(t->text_bits, filter_bit(t, whole))) return TN__NIL;
    uint32_t hash = (uint32_t)whole;
    for (size_t i = hash & t->text_mask;; i = (i + 1) & t->text_mask) {
        const struct tn__token_text_slot *slot = &t->text_map[i];
        if (slot->token == TN__NIL) return TN__NIL;
        if (slot->hash != hash) continue;
        size_t have;
        const char *other = tn__token_text(t, slot->token, &have);
        if (have == size && memcmp(other, text, size) == 0) return slot->token;
    }
}

static tn_status index_texts(tn_tokenizer *t) {
    size_t slots = 16;
    while (slots / 2 < (size_t)t->size) slots *= 2;
    t->text_map = tn_malloc(slots * sizeof *t->text_map);
    t->text_bits = tn_calloc(slots / 8, sizeof *t->text_bits);
    if (!t->text_map || !t->text_bits) return TN_E_NOMEM;
    memset(t->text_map, 0xff, slots * sizeof *t->text_map);
    t->text_mask = slots - 1;
    for (uint32_t id = 0; id < (uint32_t)t->size; id++) {
        size_t size;
        const char *text = tn__token_text(t, id, &size);
        /* Text is encoded only to the first of several tokens with the same text, and never to empty tokens. */
        if (size == 0 || tn__token_text_find(t, text, size) != TN__NIL) continue;
        uint64_t hash = tn__hash_bytes(text, size, t->seed);
        size_t i = (uint32_t)hash & t->text_mask;
        while (t->text_map[i].token != TN__NIL) i = (i + 1) & t->text_mask;
        t->text_map[i] = (struct tn__token_text_slot){(uint32_t)hash, id};
        tn__bits_set(t->text_bits, filter_bit(t, hash));
    }
    return TN_OK;
}

/* The byte of a text like "<0x0A>", or -1. */
static int byte_of_text(const char *text, size_t size) {
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

tn_status tn__vocab_load(tn_tokenizer *t, const tn__vocab_source *source) {
    if (source->n_tokens == 0) return tn_fail(TN_E_NOT_FOUND, "the vocabulary has no tokens");
    if (source->n_tokens > TN_TOKENIZER_MAX_TOKENS)
        return tn_fail(TN_E_LIMIT, "the vocabulary has %zu tokens; the maximum is %d", source->n_tokens,
                       TN_TOKENIZER_MAX_TOKENS);
    size_t n = source->n_tokens, bytes = 0;
    t->size = (int32_t)n;
    for (size_t i = 0; i < n; i++)
        if (!tn__add_size(bytes, source->tokens[i].size, &bytes) || !tn__add_size(bytes, 1, &bytes))
            return tn_fail(TN_E_OVERFLOW, "token texts overflow");
    t->text_blob = tn_malloc(bytes);
    t->text_at = tn_malloc((n + 1) * sizeof *t->text_at);
    t->types = tn_malloc(n);
    t->scores = tn_malloc(n * sizeof *t->scores);
    t->ends = tn_calloc(tn__bits_words(n), sizeof *t->ends);
    if (!t->text_blob || !t->text_at || !t->types || !t->scores || !t->ends) return TN_E_NOMEM;
    char *p = t->text_blob;
    for (size_t i = 0; i < n; i++) {
        t->text_at[i] = (size_t)(p - t->text_blob);
        if (source->tokens[i].size) memcpy(p, source->tokens[i].data, source->tokens[i].size);
        p += source->tokens[i].size;
        *p++ = 0;
        int32_t type = source->types ? source->types[i] : TN_TOKEN_NORMAL;
        t->types[i] = type >= TN_TOKEN_NORMAL && type <= TN_TOKEN_BYTE ? (uint8_t)type : TN_TOKEN_NORMAL;
        float score = source->scores ? source->scores[i] : 0;
        t->scores[i] = isnan(score) ? -INFINITY : score;
    }
    t->text_at[n] = bytes;
    TN_TRY(index_texts(t));
    for (int b = 0; b < 256; b++) {
        char text[7];
        static const char digits[] = "0123456789ABCDEF";
        memcpy(text, "<0x00>", 7);
        text[3] = digits[b >> 4];
        text[4] = digits[b & 15];
        uint32_t id = tn__token_text_find(t, text, 6);
        t->byte_token[b] = id == TN__NIL ? TN_TOKEN_NONE : (tn_token)id;
    }
    return TN_OK;
}

/* ---- Roles ---- */

enum { ENDS = 1 }; /* flag: the token ends a generation */

/* Usual names of tokens with a role, for files without the metadata. The first name in the vocabulary counts. */
static const struct known_token {
    const char *text;
    int role; /* a tn_special, or -1 */
    int flags;
} known_tokens[] = {
    {"<|eot_id|>", TN_SPECIAL_EOT, ENDS},
    {"<|im_end|>", TN_SPECIAL_EOT, ENDS},
    {"<|end|>", TN_SPECIAL_EOT, ENDS},
    {"<end_of_turn>", TN_SPECIAL_EOT, ENDS},
    {"<turn|>", TN_SPECIAL_EOT, ENDS},
    {"<EOT>", TN_SPECIAL_EOT, ENDS},
    {"_<EOT>", TN_SPECIAL_EOT, ENDS},
    {"[EOT]", TN_SPECIAL_EOT, ENDS},
    {"<end_of_utterance>", TN_SPECIAL_EOT, ENDS},
    {"<|endoftext|>", TN_SPECIAL_EOT, ENDS},
    {"<|end_of_text|>", TN_SPECIAL_EOT, ENDS},
    {"<｜end▁of▁sentence｜>", TN_SPECIAL_EOT, ENDS},
    {"<|eom_id|>", TN_SPECIAL_EOM, ENDS},
    {"<|return|>", -1, ENDS},
    {"<|call|>", -1, ENDS},
    {"<|calls|>", -1, ENDS},
    {"<|flush|>", -1, ENDS},
    {"</s>", -1, ENDS},
    {"<eos>", -1, ENDS},
    {"[EOS]", -1, ENDS},
    {"<|tool_response>", -1, ENDS},
    {"[e~[", -1, ENDS},
    {"<|fim_prefix|>", TN_SPECIAL_FIM_PRE, 0},
    {"<fim-prefix>", TN_SPECIAL_FIM_PRE, 0},
    {"<fim_prefix>", TN_SPECIAL_FIM_PRE, 0},
    {"<｜fim▁begin｜>", TN_SPECIAL_FIM_PRE, 0},
    {"<PRE>", TN_SPECIAL_FIM_PRE, 0},
    {"▁<PRE>", TN_SPECIAL_FIM_PRE, 0},
    {"<|code_prefix|>", TN_SPECIAL_FIM_PRE, 0},
    {"<|prefix|>", TN_SPECIAL_FIM_PRE, 0},
    {"<|fim_suffix|>", TN_SPECIAL_FIM_SUF, 0},
    {"<fim-suffix>", TN_SPECIAL_FIM_SUF, 0},
    {"<fim_suffix>", TN_SPECIAL_FIM_SUF, 0},
    {"<｜fim▁hole｜>", TN_SPECIAL_FIM_SUF, 0},
    {"<SUF>", TN_SPECIAL_FIM_SUF, 0},
    {"▁<SUF>", TN_SPECIAL_FIM_SUF, 0},
    {"<|code_suffix|>", TN_SPECIAL_FIM_SUF, 0},
    {"<|suffix|>", TN_SPECIAL_FIM_SUF, 0},
    {"<|fim_middle|>", TN_SPECIAL_FIM_MID, 0},
    {"<fim-middle>", TN_SPECIAL_FIM_MID, 0},
    {"<fim_middle>", TN_SPECIAL_FIM_MID, 0},
    {"<｜fim▁end｜>", TN_SPECIAL_FIM_MID, 0},
    {"<MID>", TN_SPECIAL_FIM_MID, 0},
    {"▁<MID>", TN_SPECIAL_FIM_MID, 0},
    {"<|code_middle|>", TN_SPECIAL_FIM_MID, 0},
    {"<|middle|>", TN_SPECIAL_FIM_MID, 0},
    {"<|fim_pad|>", TN_SPECIAL_FIM_PAD, ENDS},
    {"<fim-pad>", TN_SPECIAL_FIM_PAD, ENDS},
    {"<fim_pad>", TN_SPECIAL_FIM_PAD, ENDS},
    {"<PAD>", TN_SPECIAL_FIM_PAD, ENDS},
    {"<|fim_repo|>", TN_SPECIAL_FIM_REP, ENDS},
    {"<|repo_name|>", TN_SPECIAL_FIM_REP, ENDS},
    {"<fim-repo>", TN_SPECIAL_FIM_REP, ENDS},
    {"<REPO>", TN_SPECIAL_FIM_REP, ENDS},
    {"<reponame>", TN_SPECIAL_FIM_REP, ENDS},
    {"<|file_sep|>", TN_SPECIAL_FIM_SEP, ENDS},
};

static uint32_t find_token_named(const tn_tokenizer *t, const char *text) {
    return tn__token_text_find(t, text, strlen(text));
}

static bool is_added(const tn_tokenizer *t, uint32_t id) {
    return t->types[id] == TN_TOKEN_CONTROL || t->types[id] == TN_TOKEN_USER_DEFINED ||
           t->types[id] == TN_TOKEN_UNKNOWN;
}

/* A name implies its role if the file marks the token as special or, because some files mark nothing, if the name
 * does not occur in ordinary text. A vocabulary learned from web sites can contain "</s>" as a word. */
static bool name_implies_role(const tn_tokenizer *t, uint32_t id, const char *name) {
    return id != TN__NIL && (is_added(t, id) || memcmp(name, "<|", 2) == 0 || memcmp(name, "<\xef", 2) == 0);
}

static void find_ends(tn_tokenizer *t) {
    for (size_t i = 0; i < TN__COUNT(known_tokens); i++) {
        uint32_t id = find_token_named(t, known_tokens[i].text);
        if (!name_implies_role(t, id, known_tokens[i].text)) continue;
        int role = known_tokens[i].role;
        if (role >= 0 && t->special[role] == TN_TOKEN_NONE) t->special[role] = (tn_token)id;
        if (known_tokens[i].flags & ENDS) {
            tn__bits_set(t->ends, id);
            /* A user must not be able to write a token that ends a text, so it becomes a control token. */
            t->types[id] = TN_TOKEN_CONTROL;
        }
    }
    static const tn_special ending[] = {TN_SPECIAL_EOS, TN_SPECIAL_EOT, TN_SPECIAL_EOM};
    for (size_t i = 0; i < TN__COUNT(ending); i++)
        if (t->special[ending[i]] >= 0) tn__bits_set(t->ends, (size_t)t->special[ending[i]]);
    /* In the harmony and Solar formats "<|end|>" ends a message within a turn, not the turn. */
    uint32_t end = find_token_named(t, "<|end|>"), call = find_token_named(t, "<|call|>"),
             calls = find_token_named(t, "<|calls|>");
    bool harmony = call != TN__NIL && find_token_named(t, "<|return|>") != TN__NIL;
    bool solar = calls != TN__NIL && find_token_named(t, "<|flush|>") != TN__NIL;
    if (end != TN__NIL && (harmony || solar) && (tn_token)end != t->special[TN_SPECIAL_EOS])
        tn__bits_clear(t->ends, end);
    /* In Gemma 4 "</s>" is markup. */
    uint32_t close = find_token_named(t, "</s>");
    if (close != TN__NIL && find_token_named(t, "<|tool_response>") != TN__NIL &&
        (tn_token)close != t->special[TN_SPECIAL_EOS])
        tn__bits_clear(t->ends, close);
}

static bool contains_ignoring_case(tn_gguf_str text, const char *lower) {
    size_t size = strlen(lower);
    for (size_t i = 0; i + size <= text.size; i++) {
        size_t k = 0;
        while (k < size &&
               (text.data[i + k] | (text.data[i + k] >= 'A' && text.data[i + k] <= 'Z' ? 0x20 : 0)) == lower[k])
            k++;
        if (k == size) return true;
    }
    return false;
}

/* The metadata does not tell which special tokens remove the white space beside them. In these models they do. */
static tn_status find_strips(tn_tokenizer *t, const tn__vocab_source *source) {
    bool phi3 = contains_ignoring_case(source->name, "phi-3") || contains_ignoring_case(source->name, "phi3");
    const char *mask = contains_ignoring_case(source->pre, "jina-v2-") ||
                               contains_ignoring_case(source->arch, "nomic-bert-moe") ||
                               contains_ignoring_case(source->arch, "jina-bert-v3")
                           ? "<mask>"
                       : contains_ignoring_case(source->name, "modern-bert") ? "[MASK]"
                                                                             : NULL;
    if (!phi3 && !mask) return TN_OK;
    t->strips = tn_calloc((size_t)t->size, 1);
    if (!t->strips) return TN_E_NOMEM;
    if (mask) {
        uint32_t id = find_token_named(t, mask);
        if (id != TN__NIL) t->strips[id] = TN__STRIP_LEFT;
        return TN_OK;
    }
    for (int32_t i = 0; i < t->size; i++)
        if (is_added(t, (uint32_t)i)) t->strips[i] = TN__STRIP_RIGHT;
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (size_t i = 0; i < TN__COUNT(keep); i++) {
        uint32_t id = find_token_named(t, keep[i]);
        if (id != TN__NIL) t->strips[id] = 0;
    }
    return TN_OK;
}

static tn_status index_specials(tn_tokenizer *t) {
    size_t count = 0;
    for (int32_t i = 0; i < t->size; i++) count += is_added(t, (uint32_t)i);
    if (count == 0) return TN_OK;
    tn__trie_item *items = tn_malloc(count * sizeof *items);
    if (!items) return TN_E_NOMEM;
    count = 0;
    for (uint32_t i = 0; i < (uint32_t)t->size; i++) {
        if (!is_added(t, i)) continue;
        tn__trie_item item = {.token = i};
        item.data = tn__token_text(t, i, &item.size);
        if (item.size == 0) continue;
        t->first_byte[(uint8_t)item.data[0]] = true;
        items[count++] = item;
    }
    tn_status status = tn__trie_build(&t->specials, items, count);
    tn_free(items);
    t->has_specials = status == TN_OK && count > 0;
    return status;
}

tn_status tn__vocab_roles(tn_tokenizer *t, const tn__vocab_source *source) {
    for (int i = 0; i < TN_SPECIAL_COUNT; i++) {
        int64_t id = source->special[i];
        t->special[i] = id >= 0 && id < t->size ? (tn_token)id : TN_TOKEN_NONE;
    }
    /* Defaults of SentencePiece models whose files do not name these tokens. */
    static const struct {
        tn_tokenizer_kind kind;
        tn_special role;
        tn_token id;
    } usual[] = {
        {TN_TOKENIZER_SPM, TN_SPECIAL_BOS, 1},         {TN_TOKENIZER_SPM, TN_SPECIAL_EOS, 2},
        {TN_TOKENIZER_SPM, TN_SPECIAL_UNK, 0},         {TN_TOKENIZER_UNIGRAM, TN_SPECIAL_EOS, 1},
        {TN_TOKENIZER_UNIGRAM, TN_SPECIAL_UNK, 2},     {TN_TOKENIZER_UNIGRAM, TN_SPECIAL_PAD, 0},
        {TN_TOKENIZER_WORDPIECE, TN_SPECIAL_CLS, 101}, {TN_TOKENIZER_WORDPIECE, TN_SPECIAL_SEP, 102},
        {TN_TOKENIZER_WORDPIECE, TN_SPECIAL_UNK, 100}, {TN_TOKENIZER_WORDPIECE, TN_SPECIAL_MASK, 103},
        {TN_TOKENIZER_WORDPIECE, TN_SPECIAL_PAD, 0},   {TN_TOKENIZER_PLAMO, TN_SPECIAL_BOS, 1},
        {TN_TOKENIZER_PLAMO, TN_SPECIAL_EOS, 2},       {TN_TOKENIZER_PLAMO, TN_SPECIAL_UNK, 0},
        {TN_TOKENIZER_PLAMO, TN_SPECIAL_PAD, 3},
    };
    for (size_t i = 0; i < TN__COUNT(usual); i++)
        if (usual[i].kind == t->kind && source->special[usual[i].role] < 0 && usual[i].id < t->size)
            t->special[usual[i].role] = usual[i].id;
    if (t->kind == TN_TOKENIZER_WORDPIECE) { /* a BERT text begins with [CLS] */
        if (t->special[TN_SPECIAL_BOS] == TN_TOKEN_NONE) t->special[TN_SPECIAL_BOS] = t->special[TN_SPECIAL_CLS];
    }
    find_ends(t);
    TN_TRY(find_strips(t, source));
    return index_specials(t);
}

/* ---- Pieces ---- */

/* Writes the decoded text of a token, which is at most as long as the token's text in the file. */
static size_t decode_token_text(const tn_tokenizer *t, uint32_t id, char *out) {
    size_t size, made = 0;
    const char *text = tn__token_text(t, id, &size);
    uint8_t type = t->types[id];
    if (type == TN_TOKEN_BYTE || (type == TN_TOKEN_NORMAL && t->kind != TN_TOKENIZER_BPE)) {
        int byte = type == TN_TOKEN_BYTE ? byte_of_text(text, size) : -1;
        if (byte >= 0) {
            *out = (char)byte;
            return 1;
        }
    }
    bool literal = type == TN_TOKEN_CONTROL || type == TN_TOKEN_UNKNOWN;
    if (t->kind == TN_TOKENIZER_BPE && !literal && type != TN_TOKEN_USER_DEFINED) {
        for (size_t i = 0; i < size;) {
            uint32_t cp;
            unsigned n = tn__utf8_decode(text + i, size - i, &cp);
            int byte = n ? tn__byte_of_char(cp) : -1;
            if (byte >= 0) {
                out[made++] = (char)byte;
            } else { /* not in the alphabet: unchanged */
                n = n ? n : 1;
                memcpy(out + made, text + i, n);
                made += n;
            }
            i += n;
        }
        return made;
    }
    if (t->kind == TN_TOKENIZER_WORLD && !literal) return tn__world_unescape(text, size, out);
    if (t->kind != TN_TOKENIZER_BPE && t->kind != TN_TOKENIZER_PLAMO && !literal) {
        for (size_t i = 0; i < size;) {
            if (size - i >= 3 && memcmp(text + i, TN__SPACE, 3) == 0) {
                out[made++] = ' ';
                i += 3;
            } else {
                out[made++] = text[i++];
            }
        }
        return made;
    }
    memcpy(out, text, size);
    return size;
}

tn_status tn__vocab_pieces(tn_tokenizer *t) {
    t->piece_blob = tn_malloc(t->text_at[t->size]);
    t->piece_at = tn_malloc(((size_t)t->size + 1) * sizeof *t->piece_at);
    if (!t->piece_blob || !t->piece_at) return TN_E_NOMEM;
    size_t at = 0;
    for (uint32_t i = 0; i < (uint32_t)t->size; i++) {
        t->piece_at[i] = at;
        size_t made = decode_token_text(t, i, t->piece_blob + at);
        t->longest_piece = TN__MAX(t->longest_piece, made);
        at += made;
        t->piece_blob[at++] = 0;
    }
    t->piece_at[t->size] = at;
    return TN_OK;
}

void tn__vocab_free(tn_tokenizer *t) {
    tn_free(t->text_blob);
    tn_free(t->piece_blob);
    tn_free(t->text_at);
    tn_free(t->piece_at);
    tn_free(t->types);
    tn_free(t->scores);
    tn_free(t->strips);
    tn_free(t->text_map);
    tn_free(t->text_bits);
    tn_free(t->ends);
    tn__trie_free(&t->specials);
}
