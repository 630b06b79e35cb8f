/* What shape rules let pass and the CPU does not compute: it says so with a reason, instead of reading beyond a
 * source. */
#include "support.h"
#include "tenon/backend.h"
#include "tenon/tensor.h"

#include <string.h>

static tn_arena *arena;
static tn_device *cpu;

static int set_up(void **state) {
    (void)state;
    return tn_arena_new(&(tn_arena_params){.size = 1 << 16, .no_alloc = true}, &arena) == TN_OK &&
                   tn_device_find("cpu", &cpu) == TN_OK
               ? 0
               : -1;
}
static int tear_down(void **state) {
    (void)state;
    tn_arena_free(arena);
    return 0;
}

/* A constructor's refusal serves as well. */
static void check(tn_tensor *node, bool supported, const char *why) {
    char reason[200] = "";
    if (!node) {
        assert_false(supported);
        return;
    }
    assert_int_equal(tn_device_supports_op(cpu, node, reason, sizeof reason), supported);
    if (!supported) assert_non_null(strstr(reason, why));
}

static void masks_have_one_head_or_all(void **state) {
    (void)state;
    for (int64_t heads = 1; heads <= 4; heads++)
        for (int64_t given = 1; given <= 5; given++) {
            tn_arena_reset(arena);
            const tn_attention_sources s = {.q = tn_input(arena, TN_F32, 8, heads, 5),
                                            .k = tn_input(arena, TN_F32, 8, 1, 6),
                                            .v = tn_input(arena, TN_F32, 8, 1, 6),
                                            .mask = tn_input(arena, TN_F32, 6, 5, given)};
            check(tn_attention(arena, &s, &(tn_attention_params){.scale = 1}), given == 1 || given == heads,
                  "mask must have 1 head or all");
        }
}

static void every_rotated_pair_has_a_factor(void **state) {
    (void)state;
    for (int64_t factors = 1; factors <= 9; factors++) {
        tn_arena_reset(arena);
        const tn_rope_params p = tn_rope_params_default(16, TN_ROPE_NEOX);
        tn_tensor *x = tn_input(arena, TN_F32, 24, 2, 5), *pos = tn_input(arena, TN_I32, 5);
        check(tn_rope(arena, x, pos, tn_input(arena, TN_F32, factors), &p), factors >= 8, "factors for 8 pairs");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks_have_one_head_or_all),
                                       cmocka_unit_test(every_rotated_pair_has_a_factor)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
