/* Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TN_TEXT_UTF8_H
#define TN_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at `p` and returns its number of bytes; 0 if there is no valid character in `left` bytes. */
static inline unsigned tn__utf8_decode(const char *p, size_t left, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)p;
    if (left == 0) return 0;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    unsigned need = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (left < need) return 0;
    uint32_t c = s[0] & (0x7fu >> need);
    for (unsigned i = 1; i < need; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    if ((need == 3 && (c < 0x800 || (c >= 0xd800 && c <= 0xdfff))) || (need == 4 && (c < 0x10000 || c > 0x10ffff)))
        return 0;
    *cp = c;
    return need;
}

/* Writes a character of at most U+10FFFF and returns its number of bytes. */
static inline unsigned tn__utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Length of the longest valid prefix in bytes. */
static inline size_t tn__utf8_valid_prefix(const char *p, size_t size) {
    size_t i = 0;
    uint32_t cp;
    while (i < size) {
        if ((signed char)p[i] >= 0) {
            i++;
            continue;
        }
        unsigned n = tn__utf8_decode(p + i, size - i, &cp);
        if (!n) break;
        i += n;
    }
    return i;
}

#endif
