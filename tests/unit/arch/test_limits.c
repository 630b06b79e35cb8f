/* Numbers in a model's metadata: the first one past a limit is refused with the limit's message, and the last one
 * within it is not. */
#include "support.h"

#include "models/tiny_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/tenon-limits-XXXXXX", changed[] = "/tmp/tenon-limits-changed-XXXXXX";

/* Opens a tiny model whose key has another value. True if it was refused with this text. */
static bool is_refused(const char *arch, const char *key, tn_gguf_value value, const char *text) {
    char full[160];
    tn_gguf *file;
    tn_model *model = NULL;
    assert_ok(tiny_model_write(
        path, &(tiny_options){.arch = arch, .kv_heads = 2, .layers = strncmp(arch, "gemma", 5) == 0 ? 0 : 5}));
    if (strncmp(key, "xielu", 5) == 0) /* without the architecture */
        snprintf(full, sizeof full, "%s", key);
    else
        snprintf(full, sizeof full, "%s.%s", arch, key);
    const tn_gguf_kv set = {{full, strlen(full)}, value};
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_ok(tn_gguf_copy(file, changed, &(tn_gguf_copy_params){.set = &set, .set_count = 1}));
    tn_gguf_close(file);
    const tn_status status = tn_model_open(changed, NULL, &model);
    if (status == TN_OK) tn_model_close(model);
    return status != TN_OK && strstr(tn_error(), text);
}

typedef struct whole_limit {
    const char *arch, *key;
    int64_t good, bad; /* the last one that is possible, and the first one beyond it */
    const char *text;
} whole_limit;

#define AT_MOST(arch, key, most, text)                                                                               \
    { arch, key, most, (int64_t)(most) + 1, text }
#define AT_LEAST(arch, key, least, text)                                                                             \
    { arch, key, least, (int64_t)(least)-1, text }

static const whole_limit whole_limits[] = {
    AT_LEAST("llama", "block_count", 1, "it must be from 1 to 65536"),
    AT_LEAST("llama", "embedding_length", 1, "it must be from 1 to 16777216"),
    AT_MOST("llama", "embedding_length", 1 << 24, "it must be from 1 to 16777216"),
    AT_LEAST("llama", "context_length", 1, "it must be from 1 to"),
    AT_MOST("llama", "context_length", INT32_MAX, "it must be from 1 to"),
    AT_MOST("llama", "feed_forward_length", 1 << 24, "has a feed-forward width of"),
    AT_LEAST("llama", "attention.head_count_kv", 1, "key/value heads"),
    AT_MOST("llama", "attention.head_count_kv", 2, "key/value heads"), /* of two heads */
    {"llama", "attention.head_count", 2, 0, "key/value heads"},
    {"llama", "attention.key_length", 16, 15, "rotated are not valid"} /* all are rotated */,
    AT_MOST("llama", "attention.key_length", 65536, "rotated are not valid"),
    AT_LEAST("llama", "attention.value_length", 1, "rotated are not valid"),
    AT_MOST("llama", "attention.value_length", 65536, "rotated are not valid"),
    {"llama", "rope.dimension_count", 14, 15, "rotated are not valid"},
    {"llama", "rope.dimension_count", 16, 18, "rotated are not valid"},
    {"llama", "nextn_predict_layers", 4, 5, "of 5 layers"},
    AT_MOST("qwen3moe", "expert_count", 65536, "experts are used"),
    AT_LEAST("qwen3moe", "expert_used_count", 1, "experts are used"),
    AT_MOST("qwen3moe", "expert_used_count", 4, "experts are used"),
    {"bailingmoe2", "expert_group_count", 2, 3, "cannot choose"},
    AT_LEAST("bailingmoe2", "expert_group_used_count", 1, "cannot choose"),
    AT_MOST("bailingmoe2", "expert_group_used_count", 2, "cannot choose"),
    {"nanbeige", "num_loops", 65536 / 5, 65536 / 5 + 1, "it must be from 1 to"},
    AT_LEAST("nanbeige", "num_loops", 1, "it must be from 1 to"),
    AT_LEAST("llama4", "attention.chunk_size", 1, "attention.chunk_size is"),
    AT_LEAST("grovemoe", "experts_per_group", 1, "small experts of size"),
    {"grovemoe", "experts_per_group", 4, 3, "small experts of size"},
    AT_LEAST("grovemoe", "expert_chunk_feed_forward_length", 1, "small experts of size"),
    {"phimoe", "expert_used_count", 2, 3, "SparseMixer chooses 2"},
    AT_LEAST("qwen3next", "full_attention_interval", 1, "full attention every"),
    AT_LEAST("minimax-01", "full_attention_interval", 1, "full attention every"),
    AT_LEAST("mamba", "ssm.conv_kernel", 2, "a convolution of"),
    AT_MOST("mamba", "ssm.conv_kernel", 8, "a convolution of"),
    AT_LEAST("mamba", "ssm.inner_size", 2, "Mamba layers of"), /* the rank is 2 */
    AT_MOST("mamba", "ssm.inner_size", 1 << 20, "Mamba layers of"),
    AT_LEAST("mamba", "ssm.state_size", 1, "Mamba layers of"),
    AT_MOST("mamba", "ssm.state_size", 4096, "Mamba layers of"),
    AT_LEAST("mamba", "ssm.time_step_rank", 1, "Mamba layers of"),
    AT_MOST("mamba", "ssm.time_step_rank", 64, "Mamba layers of"),
    AT_LEAST("mamba2", "ssm.conv_kernel", 2, "Mamba-2 layers of"),
    AT_MOST("mamba2", "ssm.conv_kernel", 8, "Mamba-2 layers of"),
    AT_MOST("mamba2", "ssm.inner_size", 1 << 20, "Mamba-2 layers of"),
    AT_LEAST("mamba2", "ssm.state_size", 1, "Mamba-2 layers of"),
    AT_MOST("mamba2", "ssm.state_size", 4096, "Mamba-2 layers of"),
    AT_LEAST("mamba2", "ssm.time_step_rank", 1, "Mamba-2 layers of"),
    {"mamba2", "ssm.time_step_rank", 4, 3, "Mamba-2 layers of"},
    AT_LEAST("mamba2", "ssm.group_count", 1, "Mamba-2 layers of"),
    {"mamba2", "ssm.group_count", 2, 4, "Mamba-2 layers of"}, /* of two heads */
    {"plamo2", "ssm.time_step_rank", 4, 3, "channels in 3 heads"},
    AT_LEAST("plamo2", "ssm.time_step_rank", 1, "channels in 0 heads"),
    AT_LEAST("lfm2", "shortconv.l_cache", 2, "2 to 8 are possible"),
    AT_MOST("lfm2", "shortconv.l_cache", 8, "2 to 8 are possible"),
    AT_LEAST("kimi-linear", "kda.head_dim", 1, "Kimi delta attention with"),
    AT_MOST("kimi-linear", "kda.head_dim", 1024, "Kimi delta attention with"),
    AT_LEAST("kimi-linear", "ssm.conv_kernel", 2, "Kimi delta attention with"),
    AT_MOST("kimi-linear", "ssm.conv_kernel", 8, "Kimi delta attention with"),
    AT_MOST("kimi-k3", "expert_latent_length", 1 << 24, "experts of width"),
    {"deepseek2", "attention.kv_lora_rank", 32, 0, "latent attention with rows of"},
    {"deepseek2", "attention.key_length_mla", 24, 8, "latent attention with rows of"},
    AT_MOST("deepseek2", "attention.q_lora_rank", 1 << 20, "latent attention with rows of"),
    AT_LEAST("deepseek32", "attention.indexer.head_count", 1, "an indexer with"),
    AT_MOST("deepseek32", "attention.indexer.head_count", 4096, "an indexer with"),
    AT_LEAST("deepseek32", "attention.indexer.key_length", 8, "an indexer with"), /* which are rotated */
    AT_MOST("deepseek32", "attention.indexer.key_length", 65536, "an indexer with"),
    AT_LEAST("deepseek32", "attention.indexer.top_k", 1, "an indexer with"),
    AT_MOST("deepseek32", "attention.indexer.top_k", 1 << 20, "an indexer with"),
    AT_LEAST("minimax-m3", "attention.indexer.block_size", 1, "an indexer with"),
    AT_MOST("minimax-m3", "attention.indexer.block_size", 1 << 20, "an indexer with"),
    AT_MOST("minimax-m3", "attention.indexer.local_blocks", 1 << 20, "an indexer with"),
    {"minimax-m3", "attention.indexer.head_count", 2, 1, "its indexer"},
    AT_LEAST("gemma3n", "altup.num_inputs", 2, "copies of the state"),
    AT_MOST("gemma3n", "altup.num_inputs", 64, "copies of the state"),
    AT_LEAST("gemma3n", "laurel.rank", 1, "copies of the state"),
    AT_MOST("gemma3n", "laurel.rank", 1 << 16, "copies of the state"),
    AT_LEAST("gemma3n", "embedding_length_per_layer_input", 1, "copies of the state"),
    AT_MOST("gemma3n", "embedding_length_per_layer_input", 1 << 16, "copies of the state"),
    {"gemma3n", "attention.shared_kv_layers", 1, 6, "have no cells of their own"},
    AT_LEAST("gemma4", "attention.key_length_swa", 8, "rotated, are not valid"), /* which are rotated */
    AT_MOST("gemma4", "attention.key_length_swa", 65536, "rotated, are not valid"),
    AT_LEAST("gemma4", "attention.value_length_swa", 1, "rotated, are not valid"),
    AT_MOST("gemma4", "attention.value_length_swa", 65536, "rotated, are not valid"),
    {"gemma4", "rope.dimension_count_swa", 6, 7, "rotated, are not valid"},
    AT_MOST("gemma4", "embedding_length_per_layer_input", 1 << 16, "rotated, are not valid"),
    AT_LEAST("t5encoder", "attention.relative_buckets_count", 4, "attention.relative_buckets_count is"),
    {"t5encoder", "attention.relative_buckets_count", 128, 132, "attention.relative_buckets_count is"},
    {"t5encoder", "attention.relative_buckets_count", 8, 6, "attention.relative_buckets_count is"},
    {"mellum", "rope.dimension_count_swa", 16, 18, "rope.dimension_count_swa is"},
    {"mellum", "rope.dimension_count_swa", 14, 15, "rope.dimension_count_swa is"},
    AT_LEAST("mellum", "rope.dimension_count_swa", 1 + 1, "rope.dimension_count_swa is"),
};

static void whole_numbers_have_limits(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof whole_limits / sizeof *whole_limits; i++) {
        const whole_limit *l = &whole_limits[i];
        const tn_gguf_value bad = {.type = TN_GGUF_U32, .u = (uint64_t)l->bad},
                            good = {.type = TN_GGUF_U32, .u = (uint64_t)l->good};
        const bool refuses = is_refused(l->arch, l->key, bad, l->text);
        if (!refuses) print_error("%s.%s: %lld is not refused: %s\n", l->arch, l->key, (long long)l->bad, tn_error());
        const bool accepts = !is_refused(l->arch, l->key, good, l->text);
        if (!accepts) print_error("%s.%s: %lld is refused: %s\n", l->arch, l->key, (long long)l->good, tn_error());
        wrong += !refuses || !accepts;
    }
    assert_int_equal(wrong, 0);
}

static void numbers_must_be_finite(void **state) {
    (void)state;
    static const struct {
        const char *arch, *key;
        double good, bad;
        const char *text;
    } limits[] = {
        {"apertus", "xielu.alpha_p", 3, INFINITY, "are not finite"},
        {"apertus", "xielu.alpha_n", 3, NAN, "are not finite"},
        {"apertus", "xielu.beta", 3, -INFINITY, "are not finite"},
        {"kimi-k3", "kda.gate_lower_bound", 0, 0.5, "Kimi delta attention with"},
        {"kimi-k3", "activation.situ_beta", 1, 0, "bounds of"},
        {"kimi-k3", "activation.situ_beta", 1, INFINITY, "bounds of"},
        {"kimi-k3", "activation.situ_linear_beta", 0, NAN, "bounds of"},
        {"hunyuan-dense", "rope.scaling.alpha", 2, INFINITY, "rope.scaling.alpha is"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const tn_gguf_value bad = {.type = TN_GGUF_F32, .f = limits[i].bad},
                            good = {.type = TN_GGUF_F32, .f = limits[i].good};
        if (!is_refused(limits[i].arch, limits[i].key, bad, limits[i].text))
            fail_msg("%s.%s: %g is not refused: %s", limits[i].arch, limits[i].key, limits[i].bad, tn_error());
        if (is_refused(limits[i].arch, limits[i].key, good, limits[i].text))
            fail_msg("%s.%s: %g is refused: %s", limits[i].arch, limits[i].key, limits[i].good, tn_error());
    }
}

/* Experts in groups of the same size, and enough of them in the groups that are used. */
static void experts_fill_their_groups(void **state) {
    (void)state;
    enum { EXPERTS = 4, USED = 2 }; /* those of the tiny model */
    int possible = 0;
    for (uint64_t groups = 0; groups <= EXPERTS + 1; groups++)
        for (uint64_t used = 0; used <= EXPERTS + 1; used++) {
            static const char *const names[] = {"bailingmoe2.expert_group_count",
                                                "bailingmoe2.expert_group_used_count"};
            tn_gguf_kv set[2];
            for (int i = 0; i < 2; i++)
                set[i] = (tn_gguf_kv){{names[i], strlen(names[i])}, {.type = TN_GGUF_U32, .u = i ? used : groups}};
            tn_gguf *file;
            tn_model *model = NULL;
            assert_ok(tiny_model_write(path, &(tiny_options){.arch = "bailingmoe2", .kv_heads = 2, .layers = 5}));
            assert_ok(tn_gguf_open(path, NULL, &file));
            assert_ok(tn_gguf_copy(file, changed, &(tn_gguf_copy_params){.set = set, .set_count = 2}));
            tn_gguf_close(file);
            const bool valid = groups < 2 || (EXPERTS % groups == 0 && used >= 1 && used <= groups &&
                                              EXPERTS / groups * used >= USED);
            const tn_status status = tn_model_open(changed, NULL, &model);
            if ((status == TN_OK) != valid)
                fail_msg("%d of %d groups: %s", (int)used, (int)groups, status == TN_OK ? "opened" : tn_error());
            if (!valid) assert_non_null(strstr(tn_error(), "cannot choose"));
            tn_model_close(model);
            possible += valid;
        }
    assert_true(possible > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_have_limits),
        cmocka_unit_test(numbers_must_be_finite),
        cmocka_unit_test(experts_fill_their_groups),
    };
    const int first = mkstemp(path), second = mkstemp(changed);
    if (first < 0 || second < 0) return 1;
    close(first);
    close(second);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    unlink(changed);
    return failed;
}
