/* Scaled positions: logits of models with linear and YaRN scaling against the reference in doubles, as a batch, and
 * after cached tokens have moved to other positions. */
#include "support.h"

#include "forward/forward.h"
#include "models/tiny_models.h"
#include "tenon/arch.h"
#include "tenon/llm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 22, LATER = 40 };

static char plain_path[] = "/tmp/tenon-plain-XXXXXX", path[] = "/tmp/tenon-scaled-XXXXXX";
static const tn_token tokens[TOKENS] = {1,  17, 5,  60, 33, 2,  9,  41, 27, 8,  55,
                                        13, 19, 44, 3,  62, 21, 38, 7,  11, 50, 29};

typedef struct scaling {
    const char *type; /* NULL: no such key */
    float factor, attn, fast, slow;
    uint32_t original;
} scaling;

static const scaling scalings[] = {
    {"linear", 4, 0, 0, 0, 0},    {NULL, 2.5f, 0, 0, 0, 0},    {"yarn", 4, 0, 0, 0, 8},     {"yarn", 16, 0, 0, 0, 64},
    {"yarn", 4, 0, 8, 0.25f, 32}, {"yarn", 2, 1.5f, 4, 1, 32}, {"yarn", 8, 0.5f, 3, 2, 20},
};

static void write_scaled(const scaling *s) {
    tn_gguf_kv set[6];
    size_t n = 0;
    tn_gguf *file;
#define SET(name, ...)                                                                                               \
    set[n++] = (tn_gguf_kv) {                                                                                        \
        .key = {"llama.rope.scaling." name, strlen("llama.rope.scaling." name)}, .value = { __VA_ARGS__ }            \
    }
    if (s->type) SET("type", .type = TN_GGUF_STR, .str = {s->type, strlen(s->type)});
    SET("factor", .type = TN_GGUF_F32, .f = s->factor);
    if (s->original) SET("original_context_length", .type = TN_GGUF_U32, .u = s->original);
    if (s->attn > 0) SET("attn_factor", .type = TN_GGUF_F32, .f = s->attn);
    if (s->fast > 0) SET("yarn_beta_fast", .type = TN_GGUF_F32, .f = s->fast);
    if (s->slow > 0) SET("yarn_beta_slow", .type = TN_GGUF_F32, .f = s->slow);
    assert_ok(tn_gguf_open(plain_path, NULL, &file));
    assert_ok(tn_gguf_copy(file, path, &(tn_gguf_copy_params){.set = set, .set_count = n}));
    tn_gguf_close(file);
}

static tn_session *open_session(tn_model *model) {
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 128, p.n_outputs = TOKENS, p.devices[0] = "cpu", p.cache_k = p.cache_v = TN_F32;
    assert_ok(tn_session_open(model, &p, &session));
    return session;
}

static void decode_from(tn_session *session, int begin, int end, int position) {
    bool outputs[TOKENS];
    int32_t positions[TOKENS];
    for (int i = begin; i < end; i++) outputs[i - begin] = true, positions[i - begin] = i + position;
    assert_ok(tn_session_decode(
        session,
        &(tn_batch){.n_tokens = end - begin, .tokens = tokens + begin, .positions = positions, .outputs = outputs}));
}

static double distance(tn_session *session, const double *want, int rows, int vocab) {
    double worst = 0, square = 0;
    for (int i = 0; i < rows * vocab; i++) square += want[i] * want[i] / (rows * vocab);
    assert_true(square > 1e-6);
    for (int t = 0; t < rows; t++)
        for (int i = 0; i < vocab; i++) {
            const double off = fabs((double)tn_session_logits(session, t)[i] - want[t * vocab + i]) / sqrt(square);
            if (!(off <= worst)) worst = off;
        }
    return worst;
}

static void scaled_positions_are_those_of_the_reference(void **state) {
    (void)state;
    static double want[TOKENS * 64], without[TOKENS * 64];
    for (size_t k = 0; k < sizeof scalings / sizeof *scalings; k++) {
        tn_model *model, *plain;
        write_scaled(&scalings[k]);
        assert_ok(tn_model_open(path, NULL, &model));
        assert_ok(tn_model_open(plain_path, NULL, &plain));
        const int vocab = tn_model_get_info(model).n_vocab;
        assert_int_equal(vocab, 64);
        assert_true(forward_logits(tn_model_file(model), tokens, TOKENS, want));
        assert_true(forward_logits(tn_model_file(plain), tokens, TOKENS, without));
        tn_session *session = open_session(model);
        decode_from(session, 0, TOKENS, 0);
        const double off = distance(session, want, TOKENS, vocab), other = distance(session, without, TOKENS, vocab);
        if (off > 5e-4) fail_msg("scaling %zu: logits differ by %g of their size", k, off);
        if (other < 1e-2) fail_msg("scaling %zu makes a difference of %g only", k, other);
        /* Scores depend on differences of positions alone: tokens that were read at later positions and then moved
         * are the same. */
        tn_session_clear(session);
        decode_from(session, 0, TOKENS / 2, LATER);
        assert_ok(tn_session_seq_shift(session, 0, 0, -1, -LATER));
        decode_from(session, TOKENS / 2, TOKENS, 0);
        const double moved = distance(session, want + TOKENS / 2 * vocab, TOKENS - TOKENS / 2, vocab);
        if (moved > 5e-4) fail_msg("scaling %zu: after a move logits differ by %g of their size", k, moved);
        tn_session_free(session);
        tn_model_close(plain);
        tn_model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scaled_positions_are_those_of_the_reference)};
    const int first = mkstemp(plain_path), second = mkstemp(path);
    if (first < 0 || second < 0) return 1;
    close(first), close(second);
    const tiny_options options = {
        .arch = "llama", .layers = 3, .heads = 4, .kv_heads = 2, .head = 16, .ffn = 48, .seed = 5};
    int failed = 1;
    if (tiny_model_write(plain_path, &options) == TN_OK) failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(plain_path), unlink(path);
    return failed;
}
