/* Tiny models with random weights, of every architecture, for tests and fuzzers without model files. The keys and
 * tensors follow from the table of architectures, as those of `tenon synth` do. The same options give the same bytes.
 */
#ifndef TN_TESTS_TINY_MODELS_H
#define TN_TESTS_TINY_MODELS_H

#include "tenon/tensor.h"

/* 0 selects the default. */
typedef struct tiny_options {
    const char *arch; /* "llama" */
    tn_type type;     /* of matrices and embeddings; f32 where rows are not whole blocks of the type */
    uint32_t layers;  /* 2; one more than a period of windows has, where the architecture has such a period */
    uint32_t width, heads, kv_heads, head, ffn; /* 32, 2, 1 (where the architecture does not say), 16, 64 */
    uint32_t vocab, context;                    /* 64 (with a tokenizer 160), 128 */
    uint32_t window;                            /* 16 in architectures with windows by default, otherwise none */
    uint32_t experts, experts_used;             /* 4 and 2 in architectures of experts, otherwise none */
    bool tied;                                  /* no output matrix: the token embedding serves */
    bool tokenizer;                             /* printable ASCII can be encoded; otherwise there is none */
    uint32_t nextn;                             /* further layers, which predict further tokens */
    uint32_t labels;                            /* of an encoder's classifier */
    /* Of an EAGLE-3 head (arch "eagle3", one layer): the width of its model, three layers of it, tokens that it
     * guesses (0: all), and whether it takes embedding and output matrix from its model. */
    uint32_t target_width, target_layers[3], guessed;
    bool borrows, norm_before_fc, norm_before_residual;
    uint64_t seed;
} tiny_options;

/* Whether tests that repeat something for every architecture include this one: a fixed list with every kind of layer,
 * norm, position and feed-forward part; all architectures with $TENON_LONG. */
bool tiny_arch_is_tested(const char *name);

/* `options` may be NULL. Takes milliseconds and some tens of KB. */
tn_status tiny_model_write(const char *path, const tiny_options *options);

#endif
