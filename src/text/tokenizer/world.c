/* RWKV's "world" vocabulary: at every byte the longest token that matches. Tokens are byte strings, which need not be
 * UTF-8; files write them with the escapes of Python's bytes literals. */
#include "text/tokenizer/internal.h"

static int escape_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

size_t tn__world_unescape(const char *text, size_t size, char *out) {
    size_t made = 0;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '\\' && i + 1 < size) {
            c = text[++i];
            int high = c == 'x' && size - i > 2 ? escape_digit(text[i + 1]) : -1,
                low = high < 0 ? -1 : escape_digit(text[i + 2]);
            if (low >= 0) {
                c = (char)(high << 4 | low);
                i += 2;
            } else
                c = c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
        }
        out[made++] = c;
    }
    return made;
}

tn_status tn__world_load(tn_tokenizer *t) {
    tn__trie_item *items = tn_malloc((size_t)t->size * sizeof *items);
    if (!items) return TN_E_NOMEM;
    size_t count = 0;
    for (uint32_t i = 0; i < (uint32_t)t->size; i++) {
        if (t->types[i] != TN_TOKEN_NORMAL && t->types[i] != TN_TOKEN_USER_DEFINED) continue;
        items[count].data = tn_token_piece(t, (tn_token)i, &items[count].size);
        items[count++].token = i;
    }
    tn_status status = tn__trie_build(&t->words, items, count);
    tn_free(items);
    return status;
}

tn_status tn__world_encode(const tn_tokenizer *t, const char *text, size_t size, tn_tokens *out) {
    for (size_t at = 0; at < size;) {
        uint32_t node = 0, token = TN__NIL;
        size_t end = at + 1;
        for (size_t i = at; i < size; i++) {
            node = tn__trie_child(&t->words, node, (uint8_t)text[i]);
            if (node == TN__NIL) break;
            if (t->words.nodes[node].token == TN__NIL) continue;
            token = t->words.nodes[node].token;
            end = i + 1;
        }
        at = end;
        /* A complete vocabulary has a token for every byte. */
        if (token == TN__NIL && t->special[TN_SPECIAL_UNK] >= 0) token = (uint32_t)t->special[TN_SPECIAL_UNK];
        if (token != TN__NIL) TN_TRY(tn__tokens_push(out, (tn_token)token));
    }
    return TN_OK;
}
