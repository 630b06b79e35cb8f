/* Splits text into words with the patterns of a pre-tokenizer, using PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <pcre2.h>
#include <string.h>
#include <utf8proc.h>

/* Limits of a match. Beyond them the text is matched in shorter parts. */
enum { JIT_STACK = 64 << 10, JIT_STACK_MOST = 8 << 20, HEAP_KIB = 64 << 10, PART = 16 << 10 };

struct tn__pre {
    const tn__pre_row *row;
    pcre2_general_context *memory;
    int count;
    pcre2_code *codes[TN__PRE_STAGES]; /* NULL: the stage is implemented by split_digits */
};

struct tn__pre_match {
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *data[TN__PRE_STAGES]; /* one per stage, because matches of stages are nested */
};

static void *pcre_malloc(size_t size, void *unused) { return tn_malloc(size); }
static void pcre_free(void *pointer, void *unused) { tn_free(pointer); }

tn_status tn__pre_new(const tn__pre_row *row, tn__pre **out) {
    tn__pre *pre = tn_calloc(1, sizeof *pre);
    if (!pre) return TN_E_NOMEM;
    tn_status status = TN_OK;
    pre->row = row;
    pre->memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    pcre2_compile_context *compile = pre->memory ? pcre2_compile_context_create(pre->memory) : NULL;
    if (!compile) {
        status = TN_E_NOMEM;
        goto out;
    }
    for (int i = 0; i < TN__PRE_STAGES && row->stages[i]; i++, pre->count++) {
        const char *pattern = row->stages[i];
        if (pattern[0] == TN__PRE_DIGIT_GROUPS[0] || pattern[0] == TN__PRE_DIGIT_GROUPS_WORD[0]) continue;
        int error;
        PCRE2_SIZE at;
        pre->codes[i] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &at, compile);
        if (!pre->codes[i]) {
            status = error == PCRE2_ERROR_HEAP_FAILED
                         ? TN_E_NOMEM
                         : tn_fail(TN_E_INTERNAL, "pre-tokenizer %s: stage %d does not compile at %zu (error %d)",
                                   row->name, i, (size_t)at, error);
            goto out;
        }
        /* If the system forbids JIT, PCRE2 interprets the patterns. */
        pcre2_jit_compile(pre->codes[i], PCRE2_JIT_COMPLETE);
    }
out:
    pcre2_compile_context_free(compile);
    if (status != TN_OK) {
        tn__pre_free(pre);
        return status;
    }
    *out = pre;
    return TN_OK;
}

void tn__pre_free(tn__pre *pre) {
    if (!pre) return;
    for (int i = 0; i < TN__PRE_STAGES; i++) pcre2_code_free(pre->codes[i]);
    pcre2_general_context_free(pre->memory);
    tn_free(pre);
}

tn_status tn__pre_match_new(const tn__pre *pre, tn__pre_match **out) {
    tn__pre_match *match = tn_calloc(1, sizeof *match);
    if (!match) return TN_E_NOMEM;
    match->context = pcre2_match_context_create(pre->memory);
    bool whole = match->context != NULL;
    for (int i = 0; i < pre->count; i++) {
        if (!pre->codes[i]) continue;
        match->data[i] = pcre2_match_data_create(1, pre->memory);
        whole = whole && match->data[i];
    }
    if (!whole) {
        tn__pre_match_free(match);
        return tn_fail(TN_E_NOMEM, "out of memory for matching pre-tokenizer %s", pre->row->name);
    }
    /* PCRE2 maps the JIT stack itself. If that fails, matches use 32 KiB of the thread's stack instead. */
    match->stack = pcre2_jit_stack_create(JIT_STACK, JIT_STACK_MOST, pre->memory);
    if (match->stack) pcre2_jit_stack_assign(match->context, NULL, match->stack);
    pcre2_set_heap_limit(match->context, HEAP_KIB);
    *out = match;
    return TN_OK;
}

void tn__pre_match_free(tn__pre_match *match) {
    if (!match) return;
    for (int i = 0; i < TN__PRE_STAGES; i++) pcre2_match_data_free(match->data[i]);
    pcre2_jit_stack_free(match->stack);
    pcre2_match_context_free(match->context);
    tn_free(match);
}

/* ---- Digits in groups of three ---- */

static bool is_decimal_digit(const char *p, size_t left, unsigned *n) {
    uint32_t cp;
    *n = tn__utf8_decode(p, left, &cp);
    if (*n == 1) return cp >= '0' && cp <= '9';
    return *n && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

static bool is_word_char(const char *p, size_t left) {
    uint32_t cp;
    if (!tn__utf8_decode(p, left, &cp)) return false;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

/* ---- Nested stages ---- */

typedef struct stage_splitter {
    const tn__pre *pre;
    tn__pre_match *match;
    tn__word_fn word;
    void *user;
} stage_splitter;

static tn_status split_stage(const stage_splitter *s, int stage, const char *text, size_t size);

static tn_status split_digits(const stage_splitter *s, int stage, const char *text, size_t size, bool whole_words) {
    size_t done = 0;
    for (size_t i = 0; i < size;) {
        unsigned n;
        if (!is_decimal_digit(text + i, size - i, &n)) {
            i += n ? n : 1;
            continue;
        }
        size_t start = i, digits = 0;
        for (; i < size && is_decimal_digit(text + i, size - i, &n); i += n) digits++;
        if (whole_words && is_word_char(text + i, size - i)) continue;
        if (start > done) TN_TRY(split_stage(s, stage + 1, text + done, start - done));
        done = start;
        for (size_t at = start; digits > 0;) {
            size_t group = digits % 3 ? digits % 3 : 3;
            digits -= group;
            while (group-- > 0) {
                is_decimal_digit(text + at, i - at, &n);
                at += n;
            }
            TN_TRY(split_stage(s, stage + 1, text + done, at - done));
            done = at;
        }
    }
    return done < size ? split_stage(s, stage + 1, text + done, size - done) : TN_OK;
}

/* Finds the next match from `at`. If matching exceeds PCRE2's limits, it is repeated with a shorter text, as if the
 * text had been given in two parts. */
static tn_status find_next_match(const stage_splitter *s, int stage, const char *text, size_t size, size_t at,
                                 size_t *start, size_t *end, bool *found) {
    pcre2_match_data *data = s->match->data[stage];
    size_t limit = size;
    for (;;) {
        int rc = pcre2_match(s->pre->codes[stage], (PCRE2_SPTR)text, limit, at, PCRE2_NO_UTF_CHECK, data,
                             s->match->context);
        if (rc >= 0) {
            PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(data);
            *start = ovector[0];
            *end = ovector[1];
            *found = true;
            return TN_OK;
        }
        bool shortened = limit < size;
        if (rc == PCRE2_ERROR_NOMATCH) {
            *found = shortened; /* no match in this part: it is one piece */
            *start = at;
            *end = limit;
            return TN_OK;
        }
        if (rc == PCRE2_ERROR_NOMEMORY) return tn_fail(TN_E_NOMEM, "out of memory for matching %zu bytes", size);
        size_t shorter = TN__MIN((limit - at) / 2, (size_t)PART);
        while (shorter > 0 && (text[at + shorter] & 0xc0) == 0x80) shorter--;
        if (shorter == 0)
            return tn_fail(TN_E_INTERNAL, "pre-tokenizer %s: stage %d fails with %d", s->pre->row->name, stage, rc);
        limit = at + shorter;
    }
}

static tn_status split_stage(const stage_splitter *s, int stage, const char *text, size_t size) {
    if (stage == s->pre->count) return s->word(s->user, text, size);
    const char *pattern = s->pre->row->stages[stage];
    if (!s->pre->codes[stage]) return split_digits(s, stage, text, size, pattern[0] == TN__PRE_DIGIT_GROUPS_WORD[0]);
    size_t done = 0, from = 0;
    while (from < size) {
        size_t start = 0, end = 0;
        bool found = false;
        TN_TRY(find_next_match(s, stage, text, size, from, &start, &end, &found));
        if (!found) break;
        if (end <= start) { /* an empty match does not split; skip a character */
            from = start + 1;
            while (from < size && (text[from] & 0xc0) == 0x80) from++;
            continue;
        }
        if (start > done) TN_TRY(split_stage(s, stage + 1, text + done, start - done));
        TN_TRY(split_stage(s, stage + 1, text + start, end - start));
        done = from = end;
    }
    return done < size ? split_stage(s, stage + 1, text + done, size - done) : TN_OK;
}

tn_status tn__pre_split(const tn__pre *pre, tn__pre_match *match, const char *text, size_t size, tn__word_fn word,
                        void *user) {
    stage_splitter s = {.pre = pre, .match = match, .word = word, .user = user};
    return size ? split_stage(&s, 0, text, size) : TN_OK;
}
