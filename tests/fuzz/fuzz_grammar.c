/* Fuzzes grammars: any text compiles or gives an error, any bytes are accepted or rejected, and masks agree with
 * trying every token. The input is GBNF text and, after a zero byte, the bytes to match.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_grammar
 *   build-fuzz/fuzz/fuzz_grammar -max_len=4000 -timeout=10 -rss_limit_mb=1024 CORPUS tests/fuzz/corpus/grammar */
#include "tenon/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void match(const tn_grammar *grammar, const tn_pieces *pieces, const uint8_t *text, size_t length) {
    tn_grammar_trigger trigger = {.text = "!"};
    tn_grammar_state_params params = {.grammar = grammar,
                                      .pieces = pieces,
                                      .triggers = &trigger,
                                      .n_triggers = length && text[0] == '!',
                                      .memory = 300000,
                                      .masks = 2};
    tn_grammar_state *state, *copy;
    if (tn_grammar_state_new(&params, &state) != TN_OK) return;
    for (size_t i = 0; i < length; i++) {
        const uint64_t *mask;
        if (i % 8 == 0 && tn_grammar_mask(state, &mask) == TN_OK) {
            tn_token token = text[i] % (tn_token)tn_pieces_count(pieces);
            bool allowed = mask[token / 64] >> (token % 64) & 1;
            if (tn_grammar_state_clone(state, &copy) != TN_OK) break;
            tn_status status = tn_grammar_accept_token(copy, token);
            if (status != TN_E_LIMIT && (status == TN_OK) != allowed) __builtin_trap();
            tn_grammar_state_free(copy);
        }
        bool before = tn_grammar_is_accepting(state);
        tn_status status = tn_grammar_accept_bytes(state, text + i, 1);
        if (status != TN_OK && tn_grammar_is_accepting(state) != before) __builtin_trap();
    }
    tn_grammar_state_reset(state);
    tn_grammar_state_free(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const tn_piece texts[] = {{"a", 1},        {"b", 1},  {"ab", 2},       {"\"", 1}, {"{\"", 2},  {"\xc3", 1},
                                     {"\xc3\xa9", 2}, {"1", 1},  {" ", 1},        {"\n", 1}, {"[", 1},    {"]]", 2},
                                     {"x!a", 3},      {"", 0},   {"</s>", 4},     {"!", 1},  {"\xa9", 1}, {"0.1", 3},
                                     {"e", 1},        {"\\", 1}, {"\xe4\xb8", 2}, {"}", 1},  {"(", 1},    {")", 1}};
    static const tn_token end = 14;
    const uint8_t *zero = size ? memchr(bytes, 0, size) : NULL;
    size_t length = zero ? (size_t)(zero - bytes) : size;
    char *text = malloc(length + 1);
    if (!text) return 0;
    if (length) memcpy(text, bytes, length);
    text[length] = '\0';
    tn_grammar *grammar;
    tn_pieces *pieces;
    if (tn_grammar_new(text, NULL, &grammar) == TN_OK) {
        if (tn_pieces_new(texts, sizeof texts / sizeof *texts, &end, 1, &pieces) == TN_OK) {
            size_t rest = zero ? size - length - 1 : 0;
            match(grammar, pieces, zero ? zero + 1 : bytes, rest < 100 ? rest : 100);
            tn_pieces_free(pieces);
        }
        tn_grammar_free(grammar);
    }
    free(text);
    return 0;
}
