/* Fuzzes JSON schemas: any text becomes a grammar that compiles, or gives an error; where keywords may be ignored,
 * none is unsupported.
 *
 *   cmake --preset fuzz && ninja -C build-fuzz fuzz_schema
 *   build-fuzz/fuzz/fuzz_schema -max_len=4000 -timeout=10 -rss_limit_mb=1024 CORPUS tests/fuzz/corpus/schema */
#include "tenon/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *text = malloc(size + 1), *gbnf;
    if (!text) return 0;
    if (size) memcpy(text, bytes, size);
    text[size] = '\0';
    tn_error_clear();
    tn_status status = tn_schema_to_grammar(text, &gbnf);
    if (status == TN_OK) {
        tn_grammar *grammar;
        if (tn_grammar_new(gbnf, NULL, &grammar) != TN_OK) __builtin_trap();
        tn_grammar_free(grammar);
        tn_free(gbnf);
    } else if (!*tn_error()) {
        __builtin_trap(); /* a failure without a reason */
    }
    char *notes;
    status = tn_schema_to_grammar_relaxed(text, &gbnf, &notes);
    if (status == TN_E_UNSUPPORTED) __builtin_trap();
    if (status == TN_OK) {
        tn_free(gbnf);
        tn_free(notes);
    }
    free(text);
    return 0;
}
