/* Tiny models of every tested architecture and of every type of weights, in one file, in turn. */
#ifndef TN_TESTS_EVERY_MODEL_H
#define TN_TESTS_EVERY_MODEL_H

#include "support.h"

#include "models/tiny_models.h"
#include "tenon/arch.h"

#include <unistd.h>

/* Writes each to `path`, calls `visit` and removes the file at the end. Returns how many there were. */
static inline int for_each_tiny_model(const char *path, void (*visit)(const char *path)) {
    int count = 0;
    for (size_t i = 0; tn_arch_at(i); i++) {
        if (!tiny_arch_is_tested(tn_arch_at(i)->name)) continue;
        assert_ok(tiny_model_write(path, &(tiny_options){.arch = tn_arch_at(i)->name, .tokenizer = i % 2}));
        visit(path);
        count++;
    }
    for (tn_type type = 0; type < TN_TYPE_LIMIT; type++) {
        const bool is_float = type == TN_F32 || type == TN_F16 || type == TN_BF16;
        if (!tn_type_valid(type) || !tn_type_can_write(type) || !(is_float || tn_type_is_quantized(type))) continue;
        assert_ok(tiny_model_write(path, &(tiny_options){.type = type, .width = 256, .ffn = 256}));
        visit(path);
        count++;
    }
    unlink(path);
    return count;
}

#endif
