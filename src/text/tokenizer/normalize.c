/* Canonical composition (NFC), the first step of some models' normalizers. */
#include "text/tokenizer/internal.h"
#include "text/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* Text is composed in blocks, so that buffers have a fixed size. After SOFT bytes a block ends before the next ASCII
 * character, after HARD bytes before the next character that cannot combine with the previous one, and after MOST
 * bytes in any case. Only a sequence of about a thousand combining marks is divided incorrectly. */
enum {
    SOFT = 512,
    HARD = 1024,
    MOST = 2048,
    PARTS = 4 * (MOST + 4) /* the longest decomposition has 4 characters */
};

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

/* Length of the next block. *plain: all characters are below U+0300, where NFC changes nothing. */
static size_t block_length(const char *text, size_t size, bool *plain) {
    size_t i = 0;
    *plain = true;
    while (i < size) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(text + i, size - i, &cp);
        if (!n) return i ? i : 1; /* impossible in valid text */
        if (i >= SOFT && cp < 0x80) break;
        if (i >= HARD && !combines_backwards(cp)) break;
        if (i >= MOST) break;
        if (cp >= 0x300) *plain = false;
        i += n;
    }
    return i;
}

/* Sorts each run of marks by combining class, stably. A counting sort, because utf8proc's own needs quadratic time.
 */
static void order_marks(utf8proc_int32_t *parts, size_t count) {
    utf8proc_int32_t sorted[PARTS];
    for (size_t i = 0; i < count;) {
        size_t offsets[256] = {0}, begin = i;
        bool ordered = true;
        int last = 0;
        for (; i < count; i++) {
            int class = utf8proc_get_property(parts[i])->combining_class & 255;
            if (class == 0) break;
            offsets[class]++;
            ordered = ordered && class >= last;
            last = class;
        }
        if (!ordered) {
            size_t at = 0;
            for (int class = 0; class < 256; class ++) {
                size_t n = offsets[class];
                offsets[class] = at;
                at += n;
            }
            for (size_t k = begin; k < i; k++)
                sorted[offsets[utf8proc_get_property(parts[k])->combining_class & 255]++] = parts[k];
            memcpy(parts + begin, sorted, (i - begin) * sizeof *parts);
        }
        while (i < count && utf8proc_get_property(parts[i])->combining_class == 0) i++;
    }
}

static void append_composed(const char *text, size_t size, tn__text *out) {
    utf8proc_int32_t parts[PARTS];
    utf8proc_ssize_t count = 0;
    int last = 0;
    for (size_t i = 0; i < size && count >= 0;) {
        uint32_t cp;
        unsigned n = tn__utf8_decode(text + i, size - i, &cp);
        utf8proc_ssize_t room = PARTS - count, made = -1;
        if (n)
            made = utf8proc_decompose_char((utf8proc_int32_t)cp, parts + count, room,
                                           UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last);
        count = made < 0 || made > room ? -1 : count + made;
        i += n ? n : 1;
    }
    if (count >= 0) {
        order_marks(parts, (size_t)count);
        count = utf8proc_normalize_utf32(parts, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    }
    if (count < 0) {
        tn__text_append(out, text, size);
        return;
    }
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        tn__text_append(out, bytes, tn__utf8_encode((uint32_t)parts[i], bytes));
    }
}

tn_status tn__normalize_nfc(const char *text, size_t size, tn__text *out, bool *changed) {
    *changed = false;
    bool plain = true;
    size_t block;
    for (size_t i = 0; i < size && plain; i += block) block = block_length(text + i, size - i, &plain);
    if (plain) return TN_OK;
    *changed = true;
    tn__text_clear(out);
    for (size_t i = 0; i < size; i += block) {
        block = block_length(text + i, size - i, &plain);
        if (plain)
            tn__text_append(out, text + i, block);
        else
            append_composed(text + i, block, out);
    }
    return out->status;
}
