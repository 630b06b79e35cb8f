/* Looking at text of an answer that is not consumed yet: markers, white space, names of tools. */
#include "text/chat/parser.h"

#include <ctype.h>

size_t tn__parser_find(const tn_chat_parser *p, size_t from, const char *const markers[], int count, int *which) {
    const char *text = tn__parser_text(p);
    size_t length = p->pending.length, first = length, taken = 0; /* bytes of the marker found, or of its beginning */
    *which = -1;
    for (int i = 0; i < count; i++) {
        size_t n = tn__chat_present(markers[i]) ? strlen(markers[i]) : 0;
        if (!n || from > length) continue;
        const char *hit = memmem(text + from, length - from, markers[i], n);
        size_t at = hit ? (size_t)(hit - text) : length;
        /* Of markers at the same offset the longest counts: one may be the beginning of another. */
        if (hit && (at < first || (at == first && n > taken))) {
            first = at;
            taken = n;
            *which = i;
        }
        if (p->final) continue;
        size_t longest = length - from < n - 1 ? length - from : n - 1;
        for (size_t k = longest; k > 0; k--)
            if (memcmp(text + length - k, markers[i], k) == 0) {
                if (length - k < first || (length - k == first && n > taken)) {
                    first = length - k;
                    taken = n;
                    *which = -1;
                }
                break;
            }
    }
    return first;
}

/* Whether the text from `from` on begins with a marker. */
static tn__parser_match match_at(const tn_chat_parser *p, size_t from, const char *marker) {
    size_t n = strlen(marker), left = p->pending.length - from, have = left < n ? left : n;
    if (have && memcmp(p->pending.data + from, marker, have) != 0) return TN__MATCH_NO;
    return have == n ? TN__MATCH_YES : p->final ? TN__MATCH_NO : TN__MATCH_MAYBE;
}

tn__parser_match tn__parser_begins_with(const tn_chat_parser *p, const char *marker) {
    return match_at(p, 0, marker);
}

tn__parser_match tn__parser_begins_after_space(const tn_chat_parser *p, const char *marker) {
    return match_at(p, tn__parser_leading_space(p), marker);
}

size_t tn__parser_leading_space(const tn_chat_parser *p) {
    size_t n = 0;
    while (n < p->pending.length && isspace((unsigned char)p->pending.data[n])) n++;
    return n;
}

void tn__parser_consume(tn_chat_parser *p, size_t n, bool keep) {
    if (keep) tn__text_append(&p->lead, p->pending.data, n);
    tn__text_remove_front(&p->pending, n);
}

bool tn__parser_is_tool(const tn_chat_parser *p, const char *name, size_t length) {
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        const char *known = tn__chat_tool_name(p->tools, i);
        if (known && strlen(known) == length && memcmp(known, name, length) == 0) return true;
    }
    return false;
}

bool tn__parser_find_name(const tn_chat_parser *p, const char *text, size_t length, size_t *from, size_t *to) {
    *to = 0;
    for (size_t i = 0; i < length; i++) {
        size_t end = i;
        while (end < length && tn__chat_is_name_char(text[end])) end++;
        if (end == i) continue;
        size_t start = end - i > 10 && memcmp(text + i, "functions.", 10) == 0 ? i + 10 : i;
        if (!*to) *from = start, *to = end;
        if (tn__parser_is_tool(p, text + start, end - start)) {
            *from = start;
            *to = end;
            return true;
        }
        i = end;
    }
    return *to > 0;
}
