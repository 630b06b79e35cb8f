/* Attention with AMX on emulated tiles, for machines without AMX. */
#include "support.h"

#if defined(__x86_64__)
/* The flags of the kernels' folder; the test is skipped if the CPU lacks them. */
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16")
#define TN__TILES_EMULATED
#define tn__amx_attention emulated_attention
#include "backend/cpu/kernels/amx/attention.c"

#include "attention_cases.h"

static void test_attention_in_emulated_tiles_agrees_with_float64(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi")) skip();
    tn__cpu_kernels table = *tn__cpu_kernels_at(TN__CPU_GENERIC);
    emulated_attention(&table);
    table.level = TN__CPU_AMX;
    check_attentions(&table);
}
#else
static void test_attention_in_emulated_tiles_agrees_with_float64(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention_in_emulated_tiles_agrees_with_float64)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
