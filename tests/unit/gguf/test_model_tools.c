/* Modules of the commands on model files: quantization mixes, importance files, safetensors. */
#include "convert/safetensors.h"
#include "files/importance.h"
#include "files/quant_mix.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Mixes ---- */

static tn_type type_of(const char *mix, const struct mix_model *model, const char *name) {
    return mix_type(mix_find(mix), model, name, (int64_t[]){4096, 4096, 1, 1});
}

static void mixes_give_more_bits_where_they_matter(void **state) {
    struct mix_model model = {.layers = 32, .heads = 32, .kv_heads = 8, .has_output = true};
    /* Q4_K_M with 32 layers: the first and last four, and every third between. */
    static const int more[] = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};
    size_t at = 0;
    for (int layer = 0; layer < 32; layer++) {
        char name[64];
        bool six = at < 16 && more[at] == layer;
        at += six;
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", layer);
        assert_int_equal(type_of("Q4_K_M", &model, name), six ? TN_Q6_K : TN_Q4_K);
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", layer);
        assert_int_equal(type_of("Q4_K_M", &model, name), six ? TN_Q6_K : TN_Q4_K);
        assert_int_equal(type_of("Q5_K_M", &model, name), six ? TN_Q6_K : TN_Q5_K);
        assert_int_equal(type_of("Q4_K_S", &model, name), layer < 4 ? TN_Q5_K : TN_Q4_K);
        snprintf(name, sizeof name, "blk.%d.ffn_up.weight", layer);
        assert_int_equal(type_of("Q4_K_M", &model, name), TN_Q4_K);
    }
    assert_int_equal(at, 16);
    assert_int_equal(type_of("Q4_K_M", &model, "output.weight"), TN_Q6_K);
    assert_int_equal(type_of("Q8_0", &model, "output.weight"), TN_Q8_0);
    assert_int_equal(type_of("Q4_K_M", &model, "token_embd.weight"), TN_Q4_K);
    assert_int_equal(type_of("Q2_K", &model, "blk.9.attn_v.weight"), TN_Q4_K); /* four heads share it */
    assert_int_equal(type_of("Q3_K_M", &model, "blk.1.attn_v.weight"), TN_Q5_K);
    assert_int_equal(type_of("Q3_K_M", &model, "blk.2.attn_v.weight"), TN_Q4_K);
    assert_int_equal(type_of("Q3_K_L", &model, "blk.2.attn_output.weight"), TN_Q5_K);
    assert_int_equal(type_of("IQ2_S", &model, "blk.9.attn_q.weight"), TN_IQ2_XS);
    assert_int_equal(type_of("IQ2_M", &model, "blk.9.attn_q.weight"), TN_IQ2_S);
    assert_int_equal(type_of("IQ2_M", &model, "blk.9.attn_v.weight"), TN_Q4_K);
    assert_int_equal(type_of("IQ2_XXS", &model, "blk.3.ffn_down.weight"), TN_Q2_K);
    assert_int_equal(type_of("IQ2_XXS", &model, "blk.4.ffn_down.weight"), TN_IQ2_XXS);
    assert_int_equal(type_of("IQ1_S", &model, "blk.4.attn_output.weight"), TN_IQ2_XXS);
    assert_int_equal(type_of("IQ1_S", &model, "output.weight"), TN_Q5_K);
    assert_int_equal(type_of("IQ1_S", &model, "token_embd.weight"), TN_Q2_K);
    assert_int_equal(type_of("IQ3_XS", &model, "blk.3.ffn_up.weight"), TN_IQ3_S);
    assert_int_equal(type_of("IQ3_XS", &model, "blk.4.ffn_up.weight"), TN_IQ3_XXS);
    assert_int_equal(type_of("IQ3_XXS", &model, "blk.4.attn_k.weight"), TN_IQ2_S);
    assert_int_equal(type_of("IQ3_XXS", &model, "blk.4.ffn_down.weight"), TN_Q3_K); /* without importance */
    assert_int_equal(type_of("IQ3_M", &model, "output.weight"), TN_Q6_K);
    /* Recurrent layers. */
    assert_int_equal(type_of("IQ2_XXS", &model, "blk.4.ssm_out.weight"), TN_Q5_K);
    assert_int_equal(type_of("Q4_K_M", &model, "blk.4.ssm_out.weight"), TN_Q6_K);
    assert_int_equal(type_of("Q8_0", &model, "blk.4.ssm_out.weight"), TN_Q8_0);
    assert_int_equal(type_of("Q4_K_M", &model, "blk.4.ssm_beta.weight"), TN_Q8_0);
    model.has_output = false; /* the embedding is then also the output */
    assert_int_equal(type_of("Q4_K_M", &model, "token_embd.weight"), TN_Q6_K);
    model.experts = 8;
    assert_int_equal(type_of("Q4_K_M", &model, "blk.9.attn_k.weight"), TN_Q8_0);
    assert_int_equal(type_of("IQ2_XXS", &model, "blk.9.attn_k.weight"), TN_Q4_K);
    assert_int_equal(type_of("IQ2_XXS", &model, "blk.9.attn_output.weight"), TN_Q5_K);
    assert_int_equal(type_of("Q4_K_M", &model, "blk.9.attn_output.weight"), TN_Q5_K);
    assert_int_equal(type_of("Q5_K_M", &model, "blk.9.attn_output.weight"), TN_Q5_K);
    const struct mix *mxfp4 = mix_find("mxfp4");
    assert_int_equal(mix_type(mxfp4, &model, "blk.0.ffn_up_exps.weight", (int64_t[]){64, 64, 8, 1}), TN_MXFP4);
    assert_int_equal(mix_type(mxfp4, &model, "blk.0.attn_q.weight", (int64_t[]){64, 64, 1, 1}), TN_Q8_0);
    assert_null(mix_find("Q4_K_XL"));
}

static void rows_that_do_not_fit_fall_back(void **state) {
    assert_int_equal(mix_fitting(TN_Q4_K, 256), TN_Q4_K);
    assert_int_equal(mix_fitting(TN_Q4_K, 288), TN_Q5_0);
    assert_int_equal(mix_fitting(TN_Q6_K, 288), TN_Q8_0);
    assert_int_equal(mix_fitting(TN_Q2_K, 288), TN_IQ4_NL);
    assert_int_equal(mix_fitting(TN_Q4_K, 100), TN_F16);
    assert_false(mix_quantizes("blk.0.attn_norm.weight", 1));
    assert_false(mix_quantizes("blk.0.ffn_gate_inp.weight", 2));
    assert_false(mix_quantizes("position_embd.weight", 2));
    assert_false(mix_quantizes("blk.0.ssm_conv1d_q.weight", 2));
    assert_false(mix_quantizes("blk.0.time_mix_w1.weight", 2));
    assert_true(mix_quantizes("blk.0.ssm_in.weight", 2));
    assert_false(mix_quantizes("blk.0.attn_q.bias", 1));
    assert_true(mix_quantizes("blk.0.attn_q.weight", 2));
}

/* ---- Importance ---- */

static void write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    fclose(out);
}

static void both_importance_formats_are_read(void **state) {
    char path[] = "/tmp/tenon-importance-XXXXXX";
    close(mkstemp(path));
    tn_gguf_writer *w;
    float sums[8] = {2, 4, 6, 8, 1, 2, 3, 4}, counts[2] = {2, 0};
    assert_ok(tn_gguf_writer_new(path, NULL, &w));
    assert_ok(tn_gguf_writer_add(w, "blk.0.up.weight.in_sum2", TN_F32, 2, (int64_t[]){4, 2}));
    assert_ok(tn_gguf_writer_add(w, "blk.0.up.weight.counts", TN_F32, 2, (int64_t[]){1, 2}));
    assert_ok(tn_gguf_writer_begin(w));
    assert_ok(tn_gguf_writer_write(w, sums, sizeof sums));
    assert_ok(tn_gguf_writer_write(w, counts, sizeof counts));
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
    struct importance *im;
    const float *weights;
    assert_ok(importance_open(path, &im));
    assert_int_equal(importance_count(im), 1);
    assert_ok(importance_find(im, "blk.0.up.weight", 4, 2, &weights));
    assert_true(weights[0] == 1 && weights[3] == 4);
    assert_true(weights[4] == 1 && weights[7] == 1); /* an unused matrix: equal weights */
    assert_ok(importance_find(im, "other", 4, 2, &weights));
    assert_null(weights);
    assert_fails(TN_E_SHAPE, importance_find(im, "blk.0.up.weight", 8, 2, &weights));
    importance_free(im);

    struct {
        int32_t entries, length;
        char name[4];
        int32_t calls, values;
        float weights[2];
    } old = {1, 4, {'n', 'a', 'm', 'e'}, 2, 2, {3, 5}};
    write_bytes(path, &old, sizeof old);
    assert_ok(importance_open(path, &im));
    assert_ok(importance_find(im, "name", 2, 1, &weights));
    assert_true(weights[0] == 1.5f && weights[1] == 2.5f);
    importance_free(im);
    for (size_t size = 0; size < sizeof old; size++) {
        write_bytes(path, &old, size);
        assert_fails(TN_E_FORMAT, importance_open(path, &im));
    }
    old.weights[1] = -1;
    write_bytes(path, &old, sizeof old);
    assert_fails(TN_E_FORMAT, importance_open(path, &im));
    old.values = 1 << 30;
    write_bytes(path, &old, sizeof old);
    assert_fails(TN_E_FORMAT, importance_open(path, &im));
    unlink(path);
    assert_fails(TN_E_IO, importance_open(path, &im));
    importance_free(NULL);
}

/* ---- safetensors ---- */

static char folder[64];

static size_t make_file(unsigned char *out, const char *header, size_t data) {
    uint64_t length = strlen(header);
    memcpy(out, &length, 8);
    memcpy(out + 8, header, length);
    for (size_t i = 0; i < data; i++) out[8 + length + i] = (unsigned char)i;
    return 8 + (size_t)length + data;
}

static tn_status open_bytes(const unsigned char *bytes, size_t size, struct safetensors **set) {
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_bytes(path, bytes, size);
    return safetensors_open(folder, set);
}

static void safetensors_are_read_and_checked(void **state) {
    static const char good[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],"
        "\"data_offsets\":[16,24]},\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    unsigned char bytes[1024], copy[1024];
    struct safetensors *set;
    strcpy(folder, "/tmp/tenon-safetensors-XXXXXX");
    assert_non_null(mkdtemp(folder));
    size_t size = make_file(bytes, good, 24);
    assert_ok(open_bytes(bytes, size, &set));
    assert_int_equal(safetensors_count(set), 2);
    struct safetensors_tensor *b = safetensors_find(set, "b");
    float values[4], expected;
    assert_true(b->n_dims == 2 && b->shape[1] == 2 && b->count == 4);
    assert_ok(safetensors_floats(set, b, 1, 2, values));
    memcpy(&expected, (unsigned char[]){0, 0, 18, 19}, 4);
    assert_true(values[0] == expected);
    assert_fails(TN_E_INTERNAL, safetensors_floats(set, b, 3, 2, values));
    assert_null(safetensors_find(set, "c"));
    safetensors_close(set);

    for (size_t cut = 0; cut < size; cut++)
        if (open_bytes(bytes, cut, &set) == TN_OK) fail_msg("opened although cut to %zu of %zu bytes", cut, size);
    rng r = {5};
    for (int i = 0; i < 2000; i++) {
        memcpy(copy, bytes, size);
        copy[rng_below(&r, size)] ^= (unsigned char)(1u << rng_below(&r, 8));
        if (open_bytes(copy, size, &set) == TN_OK) safetensors_close(set);
    }
    static const char *const bad[] = {
        "[]",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,12]}}",  /* too few bytes */
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,32]}}", /* past the end */
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", /* wraps to 0 */
        "{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"a\":{\"dtype\":\"F32\",\"shape\":[4],"
        "\"data_offsets\":[0,16]}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size = make_file(bytes, bad[i], 24);
        assert_fails(TN_E_FORMAT, open_bytes(bytes, size, &set));
    }
    size = make_file(bytes, "{\"a\":{\"dtype\":\"F8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 24);
    assert_fails(TN_E_UNSUPPORTED, open_bytes(bytes, size, &set));
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    assert_fails(TN_E_NOT_FOUND, safetensors_open(folder, &set));
    rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_give_more_bits_where_they_matter),
        cmocka_unit_test(rows_that_do_not_fit_fall_back),
        cmocka_unit_test(both_importance_formats_are_read),
        cmocka_unit_test(safetensors_are_read_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
