/* GEMM with AMX on emulated tiles, for machines without AMX: blocking, edges, scatter and repacking. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
/* The flags of the kernels' folder; the test is skipped if the CPU lacks them. */
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16")
#define TN__TILES_EMULATED
#define tn__amx_gemm emulated_gemm
#define tn__amx_scratch emulated_scratch
#include "backend/cpu/kernels/amx/gemm.c"

typedef struct shape {
    tn_type type;
    int m, n, k;
    bool repacked, scatter;
} shape;

static void check(const shape *s) {
    const tn__cpu_kernels *generic = tn__cpu_kernels_at(TN__CPU_GENERIC);
    rng r = {(uint64_t)(s->m * 1000 + s->n)};
    size_t stride = (size_t)(s->k / tn__block_of(s->type)) * (size_t)tn__bytes_of(s->type);
    unsigned char *w = malloc(stride * (size_t)s->m), *repacked = NULL;
    float *x = malloc((size_t)(s->n * s->k) * 4), *out = malloc((size_t)(s->m * s->n) * 4),
          *w32 = malloc((size_t)s->k * 4);
    float *all = malloc((size_t)(s->m * s->k) * 4);
    int32_t *scatter = malloc((size_t)s->n * 4);
    void *prepared = NULL, *own = NULL;
    assert_int_equal(posix_memalign(&own, 64, emulated_scratch(TN__ACT_TILES, s->n, s->k)), 0);
    memset(own, 0xff, emulated_scratch(TN__ACT_TILES, s->n, s->k));
    assert_int_equal(posix_memalign(&prepared, 64, generic->act_bytes(TN__ACT_TILES, s->n, s->k)), 0);
    memset(
        prepared, 0xff,
        generic->act_bytes(TN__ACT_TILES, s->n, s->k)); /* NaN: bytes that are not prepared must not affect results */
    for (int i = 0; i < s->m; i++) {
        for (int l = 0; l < s->k; l++) w32[l] = rng_normal(&r);
        generic->from_f32[s->type](w32, w + (size_t)i * stride, s->k);
        generic->to_f32[s->type](w + (size_t)i * stride, all + (size_t)i * (size_t)s->k, s->k);
    }
    for (int i = 0; i < s->n * s->k; i++) x[i] = rng_normal(&r);
    for (int j = 0; j < s->n; j++) scatter[j] = (j * 7 + 3) % s->n;
    generic->act_prepare(TN__ACT_TILES, x, (size_t)s->k * 4, NULL, s->n, s->k, prepared, 0, 1);
    if (s->repacked) {
        repacked = malloc(generic->repacked_bytes(s->type, s->m, s->k));
        generic->repack(s->type, s->m, s->k, w, stride, repacked, 0, (s->m + 15) / 16);
    }
    tn__matmul_job job = {.type = s->type,
                          .repacked = s->repacked,
                          .form = TN__ACT_TILES,
                          .m = s->m,
                          .n = s->n,
                          .k = s->k,
                          .w = s->repacked ? repacked : w,
                          .w_stride = stride,
                          .x = prepared,
                          .x_rows = s->n,
                          .out = out,
                          .out_stride = (size_t)s->m * 4,
                          .scatter = s->scatter ? scatter : NULL,
                          .scratch = own};
    float *first = NULL;
    for (int nth = 1; nth <= 3; nth += 2) {
        memset(out, 0xff, (size_t)(s->m * s->n) * 4);
        for (int t = 0; t < nth; t++) emulated_gemm(&job, t, nth);
        if (first)
            assert_memory_equal(first, out, (size_t)(s->m * s->n) * 4);
        else {
            first = malloc((size_t)(s->m * s->n) * 4);
            memcpy(first, out, (size_t)(s->m * s->n) * 4);
        }
    }
    for (int j = 0; j < s->n; j++) {
        int at = s->scatter ? scatter[j] : j;
        for (int i = 0; i < s->m; i++) {
            double want = 0, ww = 0, xx = 0;
            for (int l = 0; l < s->k; l++) {
                double a = all[i * s->k + l], b = x[j * s->k + l];
                want += a * b, ww += a * a, xx += b * b;
            }
            if (!(fabs(out[at * s->m + i] - want) <= 3e-3 * sqrt(ww * xx)))
                fail_msg("type %d m=%d n=%d k=%d at %d,%d: %g, expected %g", s->type, s->m, s->n, s->k, i, j,
                         out[at * s->m + i], want);
        }
    }
    free(w), free(repacked), free(x), free(out), free(w32), free(all), free(scatter), free(prepared), free(first),
        free(own);
}

static void test_tile_loops_agree_with_float64(void **state) {
    (void)state;
    const tn__cpu_kernels *table = tn__cpu_kernels_at(TN__CPU_AVX512);
    if (!table || !__builtin_cpu_supports("avx512bf16")) {
        print_message("skipped: no AVX-512 BF16 here\n");
        skip();
    }
    static const shape shapes[] = {{TN_BF16, 32, 32, 512, false, false}, {TN_BF16, 33, 35, 96, false, false},
                                   {TN_BF16, 64, 64, 1024, true, false}, {TN_BF16, 15, 17, 77, false, false},
                                   {TN_F16, 48, 40, 544, true, false},   {TN_F16, 50, 66, 300, false, true},
                                   {TN_Q8_0, 70, 33, 544, false, false}, {TN_Q8_0, 70, 33, 544, true, false},
                                   {TN_Q4_0, 40, 48, 800, true, true},   {TN_Q4_0, 16, 1, 32, false, false},
                                   {TN_Q4_K, 64, 64, 768, true, false},  {TN_Q4_K, 37, 50, 512, false, true},
                                   {TN_Q6_K, 64, 40, 512, true, false},  {TN_Q6_K, 33, 16, 256, false, false},
                                   {TN_MXFP4, 65, 31, 96, false, false}, {TN_Q2_K, 31, 34, 256, false, false},
                                   {TN_F32, 40, 70, 333, false, false},  {TN_Q4_0, 96, 600, 1056, true, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check(&shapes[i]);
}
#else
static void test_tile_loops_agree_with_float64(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tile_loops_agree_with_float64)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
