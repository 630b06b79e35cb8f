/* Fuzzes vocabularies in files: any GGUF bytes give a working tokenizer, or an error with a message.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_vocab
 *   build-fuzz/fuzz/fuzz_vocab -max_len=8000 -timeout=5 -dict=tests/fuzz/vocab.dict CORPUS tests/fuzz/corpus/vocab */
#include "tenon/gguf.h"
#include "tenon/grammar.h"
#include "tenon/tokenizer.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define HOLDS(condition)                                                                                             \
    do {                                                                                                             \
        if (!(condition)) __builtin_trap();                                                                          \
    } while (0)

static void use(const tn_tokenizer *t) {
    static const char text[] = "Hello, wor\xc3\xa9ld 12345 \xe4\xb8\xad\xf0\x9f\x98\x80\xff <s>a</s>\n\t  <unk>";
    for (int special = 0; special < 2; special++) {
        unsigned flags = special ? TN_ENCODE_ADD_SPECIAL | TN_ENCODE_PARSE_SPECIAL : 0;
        tn_tokens ids = {0};
        tn_text back = {0};
        HOLDS(tn_tokenizer_encode(t, text, sizeof text - 1, flags, &ids) == TN_OK);
        for (size_t i = 0; i < ids.count; i++) HOLDS(ids.ids[i] >= 0 && ids.ids[i] < tn_tokenizer_size(t));
        HOLDS(tn_tokenizer_decode(t, ids.ids, ids.count, TN_DECODE_SPECIAL, &back) == TN_OK);
        tn_text_free(&back);
        tn_tokens_free(&ids);
    }
    tn_pieces *pieces;
    if (tn_pieces_from_tokenizer(t, &pieces) == TN_OK) tn_pieces_free(pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const uint8_t none[1];
    tn_gguf *file;
    tn_tokenizer *t;
    tn_log_set(NULL, NULL, TN_LOG_OFF);
    uint64_t live = tn_memory_get_stats().live_blocks;
    if (tn_gguf_open_memory(bytes ? bytes : none, size, &(tn_gguf_params){.mode = TN_GGUF_META}, &file) != TN_OK)
        return 0;
    tn_error_clear();
    if (tn_tokenizer_new(file, &(tn_tokenizer_params){.allow_unknown_pre = size & 1}, &t) == TN_OK) {
        use(t);
        tn_tokenizer_free(t);
    } else
        HOLDS(!t && *tn_error());
    tn_gguf_close(file);
    HOLDS(tn_memory_get_stats().live_blocks == live);
    return 0;
}
