/* Block formats: golden blocks dequantize exactly, the quantizers are at least as good as the reference, and
 * conversions are safe for every block and every input. */
#include "support.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "quant/quant.h"

typedef struct type_row {
    const char *name, *golden;
    int block, bytes;
    void (*dequantize)(const void *, float *, int64_t);
    void (*quantize_row)(const float *, void *, int64_t);
    void (*quantize)(const float *, void *, int64_t, const float *);
} type_row;

#define FULL(T, G)                                                                                                   \
    { #T, G, 0, sizeof(tn__##T), tn__dequantize_row_##T, tn__quantize_row_##T, tn__quantize_##T }
static type_row types[] = {
    FULL(q4_0, "Q4_0"),       FULL(q4_1, "Q4_1"),     FULL(q5_0, "Q5_0"),     FULL(q5_1, "Q5_1"),
    FULL(q8_0, "Q8_0"),       FULL(q2_K, "Q2_K"),     FULL(q3_K, "Q3_K"),     FULL(q4_K, "Q4_K"),
    FULL(q5_K, "Q5_K"),       FULL(q6_K, "Q6_K"),     FULL(iq4_nl, "IQ4_NL"), FULL(iq4_xs, "IQ4_XS"),
    FULL(mxfp4, "MXFP4"),     FULL(nvfp4, NULL),      FULL(tq1_0, "TQ1_0"),   FULL(tq2_0, "TQ2_0"),
    FULL(iq2_xxs, "IQ2_XXS"), FULL(iq2_xs, "IQ2_XS"), FULL(iq2_s, "IQ2_S"),   FULL(iq3_xxs, "IQ3_XXS"),
    FULL(iq3_s, "IQ3_S"),     FULL(iq1_s, "IQ1_S"),   FULL(iq1_m, "IQ1_M"),   FULL(q8_1, NULL),
    FULL(q8_K, NULL),
};
enum { TYPES = sizeof types / sizeof types[0], ROWS = 16, COLS = 1024, N = ROWS * COLS };

static int fill_block_sizes(void **state) {
    (void)state;
#define TN_X(T, values, bytes_, quantize_)                                                                           \
    for (int i = 0; i < TYPES; i++) {                                                                                \
        if (strcmp(types[i].name, #T) == 0) types[i].block = values;                                                 \
    }
    TN__BLOCK_TYPES(TN_X)
#undef TN_X
    for (int i = 0; i < TYPES; i++) assert_true(types[i].block > 0);
    return 0;
}

static void *golden_file(const char *type, const char *suffix, size_t expected) {
    char relative[64];
    size_t size;
    snprintf(relative, sizeof relative, "quants/%s%s", type, suffix);
    const char *path = golden_path(relative);
    if (!path) return NULL;
    void *bytes = read_file(path, &size);
    assert_non_null(bytes);
    assert_int_equal(size, expected);
    return bytes;
}

static double relative_rmse(const float *x, const float *y, size_t n) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        norm += (double)x[i] * x[i];
    }
    return sqrt(error / norm);
}

/* Without golden files: what dequantization made of random bytes, and the errors of both quantizers on normal values,
 * when they agreed with the golden blocks. */
static const struct {
    const char *type;
    uint64_t values;
    double careful, fast;
} recorded[] = {
    {"q4_0", 0x6c5c5f7af2a33b25, 0.08237, 0.08674},    {"q4_1", 0x167942540c844231, 0.07120, 0.07950},
    {"q5_0", 0x69a1a4849295fd25, 0.04085, 0.04357},    {"q5_1", 0x6a3d9d99abd97f71, 0.03418, 0.03754},
    {"q8_0", 0xe23e945ffdb28e65, 0.00533, 0.00533},    {"q2_K", 0x4cf96627fa88262f, 0.27507, 0.27507},
    {"q3_K", 0x2c38538b8b91d3e5, 0.14440, 0.14440},    {"q4_K", 0x37f5a569d7d9f69c, 0.07203, 0.07203},
    {"q5_K", 0xae2cd651a78d41cf, 0.03586, 0.03586},    {"q6_K", 0xc2659f826416afb3, 0.01742, 0.01742},
    {"iq4_nl", 0x8b4d8b8d94a83f65, 0.07508, 0.07844},  {"iq4_xs", 0x2529c0a9dadfbab5, 0.07501, 0.07501},
    {"mxfp4", 0xcefd9d44ee0ec325, 0.11485, 0.11687},   {"nvfp4", 0x16888191b4136325, 0.08542, 0.09467},
    {"tq1_0", 0x9bf676ca4d218325, 0.80505, 0.80505},   {"tq2_0", 0xd2c8e60d08b3c325, 0.80505, 0.80505},
    {"iq2_xxs", 0x1fee76a8d95a3979, 0.34190, 0.34190}, {"iq2_xs", 0x876eca7ee1698add, 0.29367, 0.29367},
    {"iq2_s", 0x78d61a9436705649, 0.24716, 0.24716},   {"iq3_xxs", 0x75702a69d67ddabd, 0.18017, 0.18017},
    {"iq3_s", 0x2a808befa1315945, 0.13182, 0.13182},   {"iq1_s", 0x7c2f41427e9436e5, 0.47245, 0.47245},
    {"iq1_m", 0x203ee45a63e04d25, 0.43414, 0.43414},   {"q8_1", 0xda5e45c719003da5, 0.00533, 0.00533},
    {"q8_K", 0xa508d046487d5288, 0.00692, 0.00692},
};

static uint64_t hash_values(const float *x, size_t n) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0x7fc00000; /* one NaN for all */
        if (!isnan(x[i])) memcpy(&bits, &x[i], sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
}

static void test_random_blocks_have_their_values_and_errors(void **state) {
    (void)state;
    enum { BLOCKS = 64, VALUES = 256 * BLOCKS };
    static unsigned char blocks[BLOCKS * 512];
    static float x[VALUES], out[VALUES];
    rng r = {29};
    for (int i = 0; i < VALUES; i++) x[i] = rng_normal(&r);
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        rng bytes = {(uint64_t)t + 1};
        for (size_t i = 0; i < BLOCKS * (size_t)type->bytes; i++) blocks[i] = (unsigned char)rng_below(&bytes, 256);
        type->dequantize(blocks, out, BLOCKS * type->block);
        const uint64_t values = hash_values(out, (size_t)(BLOCKS * type->block));
        double errors[2];
        for (int fast = 0; fast < 2; fast++) {
            if (fast)
                type->quantize_row(x, blocks, BLOCKS * type->block);
            else
                type->quantize(x, blocks, BLOCKS * type->block, NULL);
            type->dequantize(blocks, out, BLOCKS * type->block);
            errors[fast] = relative_rmse(x, out, (size_t)(BLOCKS * type->block));
        }
        const size_t n = sizeof recorded / sizeof *recorded;
        size_t row = 0;
        while (row < n && strcmp(recorded[row].type, type->name) != 0) row++;
        if (row == n) fail_msg("%s has no row", type->name);
        if (values != recorded[row].values) fail_msg("%s: other values", type->name);
        if (!(errors[0] <= 1.005 * recorded[row].careful && errors[1] <= 1.005 * recorded[row].fast))
            fail_msg("%s: errors %.5f and %.5f, not %.5f and %.5f", type->name, errors[0], errors[1],
                     recorded[row].careful, recorded[row].fast);
    }
}

static void test_golden_blocks_dequantize_to_the_reference(void **state) {
    (void)state;
    if (!golden_path("quants/manifest.json")) return;
    float *out = malloc(N * sizeof *out);
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        if (!type->golden) continue;
        size_t bytes = (size_t)(N / type->block * type->bytes);
        void *blocks = golden_file(type->golden, ".blocks", bytes);
        float *expected = golden_file(type->golden, ".deq.f32", N * sizeof(float));
        assert_true(blocks && expected);
        type->dequantize(blocks, out, N);
        for (int b = 0; b < N; b += type->block) {
            float peak = 0;
            for (int j = 0; j < type->block; j++) peak = fmaxf(peak, fabsf(expected[b + j]));
            for (int j = 0; j < type->block; j++) {
                if (!(fabsf(out[b + j] - expected[b + j]) <= 1e-6f * peak))
                    fail_msg("%s value %d: %g, expected %g", type->name, b + j, out[b + j], expected[b + j]);
            }
        }
        free(blocks);
        free(expected);
    }
    free(out);
}

static void test_quantizers_are_as_good_as_the_reference(void **state) {
    (void)state;
    const char *path = golden_path("quants/manifest.json");
    if (!path) return;
    json_t *manifest = json_load_file(path, 0, NULL);
    assert_non_null(manifest);
    float *out = malloc(N * sizeof *out);
    int bad = 0;
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        if (!type->golden) continue;
        double reference = json_real_value(json_object_get(json_object_get(manifest, type->golden), "rmse"));
        size_t bytes = (size_t)(N / type->block * type->bytes);
        float *x = golden_file(type->golden, ".f32", N * sizeof(float));
        void *blocks = malloc(bytes);
        type->quantize(x, blocks, N, NULL);
        type->dequantize(blocks, out, N);
        double careful = relative_rmse(x, out, N);
        type->quantize_row(x, blocks, N);
        type->dequantize(blocks, out, N);
        double fast = relative_rmse(x, out, N);
        print_message("%-8s reference %.5f careful %.4fx fast %.4fx\n", type->name, reference, careful / reference,
                      fast / reference);
        if (!(careful <= 1.03 * reference) || !(fast <= 1.35 * reference)) bad++;
        free(blocks);
        free(x);
    }
    json_decref(manifest);
    free(out);
    assert_int_equal(bad, 0);
}

/* Normal values have no structure that a quantizer could use: the errors are properties of lattice and search. */
static void test_lattice_types_find_near_points(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double error;
    } limits[] = {{"iq1_s", 0.478}, {"iq1_m", 0.438},   {"iq2_xxs", 0.344}, {"iq2_xs", 0.297},
                  {"iq2_s", 0.249}, {"iq3_xxs", 0.183}, {"iq3_s", 0.134}};
    rng r = {11};
    float *x = malloc(N * sizeof *x), *out = malloc(N * sizeof *out);
    void *blocks = malloc(N);
    for (int i = 0; i < N; i++) x[i] = 0.02f * rng_normal(&r);
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++)
        for (int t = 0; t < TYPES; t++) {
            if (strcmp(types[t].name, limits[k].type) != 0) continue;
            types[t].quantize(x, blocks, N, NULL);
            types[t].dequantize(blocks, out, N);
            const double error = relative_rmse(x, out, N);
            if (!(error < limits[k].error)) fail_msg("%s: %.4f, limit %.4f", limits[k].type, error, limits[k].error);
            /* The weighted norm of the values is kept, and so theirs, nearly. */
            double xx = 0, yy = 0;
            for (int i = 0; i < N; i++) {
                xx += (double)x[i] * x[i];
                yy += (double)out[i] * out[i];
            }
            if (!(fabs(sqrt(yy / xx) - 1) < 0.05)) fail_msg("%s: the norm is %.4f", limits[k].type, sqrt(yy / xx));
        }
    free(x);
    free(out);
    free(blocks);
}

static void test_importance_moves_the_error_to_unimportant_values(void **state) {
    (void)state;
    rng r = {7};
    float x[4096], importance[4096], out[4096];
    for (int i = 0; i < 4096; i++) {
        x[i] = rng_normal(&r);
        importance[i] = i % 4 == 0 ? 100.0f : 0.01f;
    }
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        /* Importance does not matter at eight bits; ternary types have no search. */
        if (strstr(type->name, "q8") || strstr(type->name, "tq")) continue;
        void *blocks = malloc(4096);
        double weighted[2];
        for (int use = 0; use < 2; use++) {
            type->quantize(x, blocks, 4096, use ? importance : NULL);
            type->dequantize(blocks, out, 4096);
            weighted[use] = 0;
            for (int i = 0; i < 4096; i++) weighted[use] += importance[i] * pow(x[i] - out[i], 2);
        }
        if (!(weighted[1] < weighted[0]))
            fail_msg("%s: weighted error %g with importance, %g without", type->name, weighted[1], weighted[0]);
        free(blocks);
    }
}

static void test_activation_blocks_carry_their_sums(void **state) {
    (void)state;
    rng r = {11};
    float x[512], out[512];
    for (int i = 0; i < 512; i++) x[i] = 3 * rng_normal(&r);
    tn__q8_K k[2];
    tn__quantize_row_q8_K(x, k, 512);
    for (int b = 0; b < 2; b++) {
        for (int g = 0; g < 16; g++) {
            int sum = 0;
            for (int j = 0; j < 16; j++) sum += k[b].qs[16 * g + j];
            assert_int_equal(sum, k[b].bsums[g]);
        }
    }
    tn__dequantize_row_q8_K(k, out, 512);
    assert_true(relative_rmse(x, out, 512) < 0.012);
    tn__q8_1 s[16];
    tn__quantize_row_q8_1(x, s, 512);
    for (int b = 0; b < 16; b++) {
        int sum = 0;
        for (int j = 0; j < 32; j++) sum += s[b].qs[j];
        float exact = tn__f16_to_f32(s[b].d) * (float)sum;
        assert_true(fabsf(tn__f16_to_f32(s[b].s) - exact) <= 2e-3f * fabsf(exact) + 1e-3f);
    }
}

static void test_zero_constant_and_extreme_blocks(void **state) {
    (void)state;
    static const float values[] = {0, 1, -1, 1e-8f, -3e4f, 1e-40f};
    float x[256], out[256];
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            for (int careful = 0; careful < 2; careful++) {
                unsigned char blocks[512];
                for (int i = 0; i < 256; i++) x[i] = values[v];
                if (careful) {
                    type->quantize(x, blocks, 256, NULL);
                } else {
                    type->quantize_row(x, blocks, 256);
                }
                type->dequantize(blocks, out, 256);
                /* Scales involve f16, so values far below the range of f16 may become zero. mxfp4 and nvfp4 have few
                 * levels; a constant may be between two of them. */
                float tolerance = (strcmp(type->name, "mxfp4") ? 0.13f : 0.26f) * fabsf(values[v]) + 1e-6f;
                for (int i = 0; i < 256; i++) {
                    bool beyond_nvfp4 = strcmp(type->name, "nvfp4") == 0 && (fabsf(values[v]) > 2688 || v == 3);
                    if (!isfinite(out[i]) || (!beyond_nvfp4 && fabsf(out[i] - values[v]) > tolerance))
                        fail_msg("%s: %g came back as %g", type->name, values[v], out[i]);
                }
            }
        }
        /* NaN and infinity have no code; they must not affect more than their block. */
        unsigned char blocks[512];
        for (int i = 0; i < 256; i++) x[i] = i % 7 == 0 ? NAN : i % 11 == 0 ? INFINITY : (float)i;
        type->quantize(x, blocks, 256, NULL);
        type->quantize_row(x, blocks, 256);
    }
}

static void test_any_bytes_dequantize_without_harm(void **state) {
    (void)state;
    rng r = {3};
    float out[256];
    for (int t = 0; t < TYPES; t++) {
        for (int round = 0; round < 200; round++) {
            unsigned char blocks[512];
            for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (unsigned char)rng_next(&r);
            types[t].dequantize(blocks, out, types[t].block);
        }
    }
}

static void test_quantizing_is_a_projection(void **state) {
    (void)state;
    /* Idempotence: fast quantization reproduces every dequantized symmetric block. */
    rng r = {5};
    float x[1024], once[1024], twice[1024];
    for (int i = 0; i < 1024; i++) x[i] = rng_normal(&r);
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        if (!type->quantize_row || (strcmp(type->name, "q8_0") && strcmp(type->name, "q4_0") &&
                                    strcmp(type->name, "q5_0") && strcmp(type->name, "tq2_0")))
            continue;
        unsigned char blocks[2048];
        type->quantize_row(x, blocks, 1024);
        type->dequantize(blocks, once, 1024);
        type->quantize_row(once, blocks, 1024);
        type->dequantize(blocks, twice, 1024);
        for (int i = 0; i < 1024; i++) {
            if (fabsf(once[i] - twice[i]) > 1e-3f * fabsf(once[i]))
                fail_msg("%s moved %g to %g", type->name, once[i], twice[i]);
        }
    }
}

/* Fast quantization keeps a block's value of the greatest magnitude (symmetric types), or its least and its largest
 * one (types with a minimum), up to the rounding of scales to half precision. Careful quantization gives them up for
 * the others. */
static void test_fast_scales_come_from_the_extremes(void **state) {
    (void)state;
    rng r = {11};
    for (int t = 0; t < TYPES; t++) {
        const type_row *type = &types[t];
        const bool symmetric = !strcmp(type->name, "q4_0") || !strcmp(type->name, "q5_0"),
                   affine = !strcmp(type->name, "q4_1") || !strcmp(type->name, "q5_1");
        if (!symmetric && !affine) continue;
        for (int round = 0; round < 200; round++) {
            float x[32], y[32], low = INFINITY, high = -INFINITY;
            unsigned char block[64];
            int lowest = 0, highest = 0;
            for (int i = 0; i < 32; i++) {
                x[i] = rng_normal(&r) + (round % 3 == 1 ? 3 : round % 3 == 2 ? -3 : 0);
                if (x[i] < low) low = x[lowest = i];
                if (x[i] > high) high = x[highest = i];
            }
            type->quantize_row(x, block, 32);
            type->dequantize(block, y, 32);
            const float most = fmaxf(fabsf(low), fabsf(high)), bound = most * 0x1p-9f;
            const int peak = fabsf(low) > fabsf(high) ? lowest : highest;
            if (symmetric && fabsf(y[peak] - x[peak]) > bound)
                fail_msg("%s: %g became %g", type->name, x[peak], y[peak]);
            if (affine && (fabsf(y[lowest] - low) > bound || fabsf(y[highest] - high) > bound))
                fail_msg("%s: %g … %g became %g … %g", type->name, low, high, y[lowest], y[highest]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_blocks_have_their_values_and_errors),
        cmocka_unit_test(test_golden_blocks_dequantize_to_the_reference),
        cmocka_unit_test(test_quantizers_are_as_good_as_the_reference),
        cmocka_unit_test(test_lattice_types_find_near_points),
        cmocka_unit_test(test_importance_moves_the_error_to_unimportant_values),
        cmocka_unit_test(test_activation_blocks_carry_their_sums),
        cmocka_unit_test(test_zero_constant_and_extreme_blocks),
        cmocka_unit_test(test_any_bytes_dequantize_without_harm),
        cmocka_unit_test(test_quantizing_is_a_projection),
        cmocka_unit_test(test_fast_scales_come_from_the_extremes),
    };
    return cmocka_run_group_tests(tests, fill_block_sizes, NULL);
}
