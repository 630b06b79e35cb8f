/* Tokenizers, shared by the module's files: vocabulary, tries, merge tables, pre-tokenizers and scratch memory. */
#ifndef TN_TEXT_TOKENIZER_INTERNAL_H
#define TN_TEXT_TOKENIZER_INTERNAL_H

#include "base/checked.h"
#include "base/hash.h"
#include "base/text.h"
#include "tenon/tokenizer.h"

#include <pthread.h>

#define TN__NIL UINT32_MAX
#define TN__SPACE "\xe2\x96\x81" /* U+2581, which stands for a space in SentencePiece */

/* ---- The source of a vocabulary (vocab_gguf.c) ---- */

enum { TN__UNSET = -1 }; /* a setting that the file does not have */

/* Plain arrays, so that a tokenizer can also be created by tests and from other file formats. They are not kept. */
typedef struct tn__vocab_source {
    tn_gguf_str model, pre; /* tokenizer.ggml.model and .pre */
    tn_gguf_str name, arch; /* general.name and .architecture, the only way to recognize a few models */
    size_t n_tokens, n_merges;
    const tn_gguf_str *tokens;
    const float *scores;       /* NULL: all 0 */
    const int32_t *types;      /* NULL: all normal */
    const tn_gguf_str *merges; /* "left right" */
    const unsigned char *charsmap;
    size_t charsmap_size;
    int64_t special[TN_SPECIAL_COUNT]; /* -1 where absent */
    int add_bos, add_eos, add_sep, add_space_prefix, remove_extra_whitespaces, lowercase, strip_accents;
} tn__vocab_source;

/* Initializes an empty source with all settings unset. */
void tn__vocab_source_init(tn__vocab_source *source);
/* Creates a tokenizer. tn_tokenizer_new() fills a source and calls this. */
tn_status tn__tokenizer_from_source(const tn__vocab_source *source, const tn_tokenizer_params *params,
                                    tn_tokenizer **out);

/* ---- Growing arrays (tokenizer.c) ---- */

/* Grows an array, if necessary, to at least `need` elements of `size` bytes. The capacity grows by half or more. */
tn_status tn__grow(void **memory, size_t *capacity, size_t need, size_t size);
tn_status tn__tokens_push(tn_tokens *tokens, tn_token id);

/* ---- Trie over byte strings (trie.c) ---- */

/* The children of a node are adjacent and sorted by label. Node 0 is the root. */
typedef struct tn__trie {
    struct tn__trie_node {
        uint32_t first;    /* index of the first child */
        uint32_t token;    /* TN__NIL if no string ends here */
        uint16_t children; /* number of children */
        uint8_t label;
    } * nodes;
    uint32_t root[256]; /* child of the root by label, or TN__NIL */
} tn__trie;

typedef struct tn__trie_item {
    const char *data;
    size_t size;
    uint32_t token;
} tn__trie_item;

/* Sorts `items`. Of equal strings the smallest token counts. Empty strings are ignored. */
tn_status tn__trie_build(tn__trie *trie, tn__trie_item *items, size_t count);
void tn__trie_free(tn__trie *trie);
static inline uint32_t tn__trie_child(const tn__trie *trie, uint32_t node, uint8_t label) {
    if (node == 0) return trie->root[label];
    const struct tn__trie_node *n = &trie->nodes[node];
    uint32_t low = n->first, high = n->first + n->children;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (trie->nodes[mid].label < label)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n->first + n->children && trie->nodes[low].label == label ? low : TN__NIL;
}

/* ---- Pre-tokenizers (pretokenizer.c, pretokenizer_table.c) ---- */

#define TN__PRE_STAGES 6

enum tn__pre_flags {
    TN__PRE_IGNORE_MERGES = 1, /* a word that is a token becomes that token without merging */
    TN__PRE_ADD_BOS = 2,
    TN__PRE_ADD_SEP = 4,
    TN__PRE_NFC = 8, /* the model's normalizer applies NFC first */
};

typedef struct tn__pre_row {
    const char *name;
    const char *const *stages; /* patterns; each splits the pieces of the previous one; NULL ends the list */
    unsigned flags;
} tn__pre_row;

extern const tn__pre_row tn__pre_table[];
extern const size_t tn__pre_count;
const tn__pre_row *tn__pre_find(const char *name, size_t size); /* NULL if unknown */

typedef struct tn__pre tn__pre;             /* compiled patterns; immutable */
typedef struct tn__pre_match tn__pre_match; /* matching state of one thread */
tn_status tn__pre_new(const tn__pre_row *row, tn__pre **out);
void tn__pre_free(tn__pre *pre);
tn_status tn__pre_match_new(const tn__pre *pre, tn__pre_match **out);
void tn__pre_match_free(tn__pre_match *match);
/* Calls `word` for every piece of a valid UTF-8 text in order. The pieces together are the whole text. */
typedef tn_status (*tn__word_fn)(void *user, const char *word, size_t size);
tn_status tn__pre_split(const tn__pre *pre, tn__pre_match *match, const char *text, size_t size, tn__word_fn word,
                        void *user);

/* Canonical composition (NFC) of valid UTF-8 (normalize.c). If nothing changes, *changed is false and *out is not
 * written. */
tn_status tn__normalize_nfc(const char *text, size_t size, tn__text *out, bool *changed);

/* ---- Merging (merge.c) ---- */

/* Symbols are token ids and, from the vocabulary's size on, strings that occur in merges but are not tokens. */
typedef struct tn__merge_slot {
    uint64_t pair; /* left << 32 | right; UINT64_MAX in an empty slot */
    uint32_t rank, result;
} tn__merge_slot;

typedef struct tn__merges {
    tn__merge_slot *slots;
    size_t mask; /* slots - 1 */
    size_t count;
    uint32_t n_ranks;
    uint64_t seed;
} tn__merges;

tn_status tn__merges_init(tn__merges *merges, size_t capacity, uint64_t seed);
void tn__merges_free(tn__merges *merges);
/* Adds a pair unless it is in the table already. The table grows as needed. */
tn_status tn__merges_add(tn__merges *merges, uint32_t left, uint32_t right, uint32_t rank, uint32_t result);

typedef struct tn__merge_work {
    uint32_t *symbols, *starts; /* in: symbols; out: merged symbols, and the index where each began */
    size_t capacity;
    /* Buckets and heaps for long words; see merge.c. */
    uint32_t *next, *prev, *ranks, *results;
    size_t long_capacity;
    struct tn__merge_entry {
        uint32_t position, next;
    } * entries;
    size_t entry_count, entry_capacity;
    uint32_t free_entry;
    struct tn__merge_bucket {
        uint32_t head, tail, epoch;
        bool opened, unsorted;
    } * buckets;
    size_t bucket_count;
    uint32_t epoch;
    uint32_t *rank_heap;
    size_t rank_heap_count, rank_heap_capacity;
    uint64_t *late_heap;
    size_t late_heap_count, late_heap_capacity;
} tn__merge_work;

void tn__merge_work_free(tn__merge_work *work);
/* Reserves space for `count` symbols. */
tn_status tn__merge_reserve(tn__merge_work *work, size_t count);
/* Merges work->symbols[0 … *count) by rank; of equal ranks the leftmost first. */
tn_status tn__merge_run(const tn__merges *merges, tn__merge_work *work, size_t *count);

/* ---- The tokenizer ---- */

/* Sizes of tables that affect only speed. They are small under a fuzzer: quick to create, and words collide. */
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
enum { TN__CACHE_SLOTS = 4, TN__JOIN_BITS = 1 << 10 };
#else
enum { TN__CACHE_SLOTS = 1 << 14, TN__JOIN_BITS = 1 << 22 };
#endif

/* Cache of the tokens of recent words: direct-mapped, one cache line per word. */
enum { TN__CACHE_WORD = 30, TN__CACHE_TOKENS = 8 };
typedef struct tn__cache_slot {
    uint8_t size, count; /* size 0: empty */
    char word[TN__CACHE_WORD];
    tn_token tokens[TN__CACHE_TOKENS];
} tn__cache_slot;

/* Memory of one encoding, reused by the next one. */
typedef struct tn__scratch {
    struct tn__scratch *next;
    tn__pre_match *match;
    tn__cache_slot *cache;
    tn__merge_work work;
    tn__text normalized, escaped, word;
    struct tn__lattice_node *lattice;
    size_t lattice_capacity;
    struct tn__plamo_node *costs;
    size_t costs_capacity;
} tn__scratch;

struct tn_tokenizer {
    tn_tokenizer_kind kind;
    int32_t size;
    uint64_t seed; /* of all hash tables, so that a file cannot be constructed to collide */

    char *text_blob, *piece_blob;
    size_t *text_at, *piece_at; /* size + 1 offsets; each string is followed by a NUL */
    size_t longest_piece;
    uint8_t *types;
    float *scores;
    uint8_t *strips; /* TN__STRIP_*: which white space beside a special token is removed; NULL: never any */
    struct tn__token_text_slot {
        uint32_t hash, token;
    } * text_map;
    size_t text_mask;
    tn__bits *text_bits; /* filter in front of text_map: clear bits are absent texts */

    tn_token special[TN_SPECIAL_COUNT];
    tn__bits *ends;
    bool add_bos, add_eos, add_sep, add_space_prefix, remove_extra_whitespaces, ignore_merges, nfc, lowercase,
        strip_accents;
    bool escape_spaces; /* spaces become U+2581 */

    tn__trie specials; /* control, user-defined and unknown tokens */
    bool has_specials;
    bool first_byte[256]; /* bytes that begin a special token */

    const tn__pre_row *pre_row;
    tn__pre *pre;
    tn__merges merges;
    uint32_t byte_symbol[256]; /* byte-level BPE: the symbol of each byte */
    tn_token byte_token[256];  /* byte fallback: "<0x00>" … "<0xFF>" */
    struct tn__char_slot {
        uint32_t cp, symbol;
    } * char_map; /* character BPE: the symbol of each character; cp is TN__NIL in an empty slot */
    size_t char_mask;
    tn__bits *joins; /* character BPE: hashed pairs of characters that some merge joins */

    tn__trie words; /* WordPiece, Unigram, RWKV, PLaMo */
    double unknown_score, top_score;
    unsigned char *charsmap;
    size_t charsmap_size;
    uint32_t charsmap_units; /* 32-bit units of its trie */

    pthread_mutex_t lock; /* guards `idle` */
    tn__scratch *idle;
};

enum { TN__STRIP_LEFT = 1, TN__STRIP_RIGHT = 2 };

static inline const char *tn__token_text(const tn_tokenizer *t, uint32_t id, size_t *size) {
    *size = t->text_at[id + 1] - t->text_at[id] - 1;
    return t->text_blob + t->text_at[id];
}
/* The token with this text, or TN__NIL. */
uint32_t tn__token_text_find(const tn_tokenizer *t, const char *text, size_t size);

/* Byte-level alphabet: the byte that a character stands for, or -1, and the reverse. */
int tn__byte_of_char(uint32_t cp);
uint32_t tn__char_of_byte(unsigned byte);

tn_status tn__vocab_load(tn_tokenizer *t, const tn__vocab_source *source);
tn_status tn__vocab_roles(tn_tokenizer *t, const tn__vocab_source *source);
tn_status tn__vocab_pieces(tn_tokenizer *t);
void tn__vocab_free(tn_tokenizer *t);

/* Fill t->merges from the file's list of merges, or from the scores: any two adjacent symbols whose joined text is a
 * token merge, the pair with the highest score first (symbols.c). */
tn_status tn__rank_merges(tn_tokenizer *t, const tn__vocab_source *source);
tn_status tn__score_merges(tn_tokenizer *t);
uint32_t tn__symbol_of_char(const tn_tokenizer *t, uint32_t cp);
/* Whether a merge joins a text that ends with `last` and a text that begins with `first`. May be true by mistake,
 * never false. */
bool tn__may_join(const tn_tokenizer *t, uint32_t last, uint32_t first);

/* For each kind: loading, and encoding a text without special tokens. `first`: the text begins the input or follows a
 * special token. */
tn_status tn__bpe_load(tn_tokenizer *t, const tn__vocab_source *source, const tn_tokenizer_params *params);
tn_status tn__bpe_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out);
tn_status tn__spm_load(tn_tokenizer *t, const tn__vocab_source *source);
tn_status tn__spm_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, bool first,
                         tn_tokens *out);
tn_status tn__wordpiece_load(tn_tokenizer *t);
tn_status tn__wordpiece_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out);
tn_status tn__unigram_load(tn_tokenizer *t, const tn__vocab_source *source);
tn_status tn__unigram_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, bool first,
                             tn_tokens *out);

tn_status tn__whitespace_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out);
tn_status tn__world_load(tn_tokenizer *t); /* needs the pieces */
tn_status tn__world_encode(const tn_tokenizer *t, const char *text, size_t size, tn_tokens *out);
/* Writes the bytes of an escaped text, at most `size`, and returns their number. */
size_t tn__world_unescape(const char *text, size_t size, char *out);
tn_status tn__plamo_load(tn_tokenizer *t);
tn_status tn__plamo_encode(const tn_tokenizer *t, tn__scratch *s, const char *text, size_t size, tn_tokens *out);

/* White space as WordPiece and the whitespace tokenizer see it (wordpiece.c). */
bool tn__is_white_space(uint32_t cp);

/* Encodes one word by merging, or from the cache (bpe.c). */
tn_status tn__word_encode(const tn_tokenizer *t, tn__scratch *s, const char *word, size_t size, tn_tokens *out);

#endif
