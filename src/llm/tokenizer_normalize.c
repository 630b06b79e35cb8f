/* Canonical composition (NFC), which some models' normalizers apply before anything else. */
#include "llm/tokenizer_internal.h"
#include "llm/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* Text is composed in blocks, so that no buffer grows with the text and the sort of combining marks, which is
 * quadratic, stays cheap. A block ends before an ASCII character past SOFT bytes, before any character that cannot
 * combine with what precedes it past HARD bytes, and at MOST bytes in any case: only a row of some hundred combining
 * marks is ever cut where it matters. */
enum { SOFT = 512, HARD = 1024, MOST = 2048 };

static bool combines_backwards(uint32_t cp) {
    if (cp < 0x300) return false;
    if (cp >= 0x1100 && cp <= 0x11ff) return true; /* Hangul jamo */
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return true;
    default: return utf8proc_get_property((utf8proc_int32_t)cp)->combining_class != 0;
    }
}

/* Characters below U+0300 are composed already and nothing below it combines. */
static size_t block_length(const char *text, size_t size, bool *plain) {
    size_t i = 0;
    *plain = true;
    while (i < size) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(text + i, size - i, &cp);
        if (!n) return i ? i : 1; /* not reached with valid text */
        if (i >= SOFT && cp < 0x80) break;
        if (i >= HARD && !combines_backwards(cp)) break;
        if (i >= MOST) break;
        if (cp >= 0x300) *plain = false;
        i += n;
    }
    return i;
}

static tn_status append_composed(const char *text, size_t size, tn_text *out) {
    /* The longest canonical decomposition has 4 characters; utf8proc says how many there are. */
    utf8proc_int32_t buffer[4 * (MOST + 4)];
    const int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t count = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, buffer,
                                                (utf8proc_ssize_t)TN__COUNT(buffer), options);
    if (count >= 0 && count <= (utf8proc_ssize_t)TN__COUNT(buffer))
        count = utf8proc_normalize_utf32(buffer, count, options);
    else
        count = -1;
    if (count < 0) return tn__text_append(out, text, size);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        TN_TRY(tn__text_append(out, bytes, tn__utf8_encode((uint32_t)buffer[i], bytes)));
    }
    return TN_OK;
}

tn_status tn__normalize_nfc(const char *text, size_t size, tn_text *out, bool *changed) {
    *changed = false;
    bool plain = true;
    size_t block;
    for (size_t i = 0; i < size && plain; i += block) block = block_length(text + i, size - i, &plain);
    if (plain) return TN_OK;
    *changed = true;
    out->length = 0;
    for (size_t i = 0; i < size; i += block) {
        block = block_length(text + i, size - i, &plain);
        TN_TRY(plain ? tn__text_append(out, text + i, block) : append_composed(text + i, block, out));
    }
    return TN_OK;
}
