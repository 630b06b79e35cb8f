/* The smallest model that a session can run: llama, two layers, no tokenizer. For tests and fuzzers without model
 * files. */
#ifndef TN_TESTS_TINY_MODEL_H
#define TN_TESTS_TINY_MODEL_H

#include "tenon/gguf.h"

#include <stdio.h>

enum { TINY_WIDTH = 32, TINY_HEADS = 2, TINY_FFN = 64, TINY_LAYERS = 2, TINY_VOCAB = 64 };

typedef struct tiny_heads {
    uint32_t n, kv, size;
} tiny_heads;

static inline tn_status tiny_model_keys(tn_gguf_writer *w, tiny_heads heads) {
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {"llama.block_count", TINY_LAYERS},         {"llama.context_length", 128},
        {"llama.embedding_length", TINY_WIDTH},     {"llama.feed_forward_length", TINY_FFN},
        {"llama.attention.head_count", heads.n},    {"llama.attention.head_count_kv", heads.kv},
        {"llama.attention.key_length", heads.size}, {"llama.attention.value_length", heads.size},
        {"llama.vocab_size", TINY_VOCAB},           {"llama.rope.dimension_count", heads.size},
    };
    TN_TRY(tn_gguf_writer_set_cstr(w, "general.architecture", "llama"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TN_TRY(tn_gguf_writer_set_u32(w, numbers[i].key, numbers[i].value));
    return tn_gguf_writer_set_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

/* Writes the model to `path`. The weights are small numbers of a fixed pattern. */
static inline tn_status tiny_model_write_heads(const char *path, tiny_heads heads) {
    const int64_t width_q = (int64_t)heads.n * heads.size, width_kv = (int64_t)heads.kv * heads.size;
    const struct {
        const char *name;
        int64_t ne[2]; /* 0 in the second: a vector */
    } layer[] = {
        {"attn_norm", {TINY_WIDTH, 0}},         {"attn_q", {TINY_WIDTH, width_q}},
        {"attn_k", {TINY_WIDTH, width_kv}},     {"attn_v", {TINY_WIDTH, width_kv}},
        {"attn_output", {width_q, TINY_WIDTH}}, {"ffn_norm", {TINY_WIDTH, 0}},
        {"ffn_gate", {TINY_WIDTH, TINY_FFN}},   {"ffn_up", {TINY_WIDTH, TINY_FFN}},
        {"ffn_down", {TINY_FFN, TINY_WIDTH}},
    };
    enum { IN_LAYER = sizeof layer / sizeof *layer };
    tn_gguf_writer *w = NULL;
    TN_TRY(tn_gguf_writer_new(path, NULL, &w));
    tn_status status = tiny_model_keys(w, heads);
    size_t floats = TINY_WIDTH * TINY_VOCAB + TINY_WIDTH;
    if (status == TN_OK)
        status = tn_gguf_writer_add(w, "token_embd.weight", TN_F32, 2, (int64_t[]){TINY_WIDTH, TINY_VOCAB});
    if (status == TN_OK) status = tn_gguf_writer_add(w, "output_norm.weight", TN_F32, 1, (int64_t[]){TINY_WIDTH});
    for (int i = 0; i < TINY_LAYERS; i++) {
        for (size_t k = 0; k < IN_LAYER && status == TN_OK; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer[k].name);
            status = tn_gguf_writer_add(w, name, TN_F32, layer[k].ne[1] ? 2 : 1, layer[k].ne);
            floats += (size_t)(layer[k].ne[0] * (layer[k].ne[1] ? layer[k].ne[1] : 1));
        }
    }
    if (status == TN_OK) status = tn_gguf_writer_begin(w);
    for (size_t i = 0; i < floats && status == TN_OK; i++) {
        float value = (float)((int)(i * 2654435761u >> 7 & 255) - 128) / 512;
        status = tn_gguf_writer_write(w, &value, sizeof value);
    }
    if (status == TN_OK) status = tn_gguf_writer_finish(w);
    tn_gguf_writer_free(w);
    return status;
}
static inline tn_status tiny_model_write(const char *path) {
    return tiny_model_write_heads(path, (tiny_heads){TINY_HEADS, 1, TINY_WIDTH / TINY_HEADS});
}

#endif
