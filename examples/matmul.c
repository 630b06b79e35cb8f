/* A·Bᵀ through arena, graph and scheduler: the smallest complete program. */
#include <stdio.h>
#include <tenon/sched.h>

static tn_status run(void) {
    static const float a_data[] = {2, 8, 5, 1, 4, 2, 8, 6};
    static const float b_data[] = {10, 5, 9, 9, 5, 4};
    tn_arena *arena = NULL;
    tn_graph *graph;
    tn_sched *sched = NULL;
    tn_status status;

    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(3, 16), .no_alloc = true}, &arena));
    tn_tensor *a = tn_input(arena, TN_F32, 2, 4); /* innermost dimension first: 4 rows of 2 */
    tn_tensor *b = tn_input(arena, TN_F32, 2, 3);
    tn_tensor *y = tn_output(tn_mul_mat(arena, a, b)); /* the arena keeps the first error … */

    TN_TRY_GOTO(tn_graph_of(arena, y, &graph), status, out); /* … and it is reported here */
    TN_TRY_GOTO(tn_sched_new(&(tn_sched_params){.devices = {"cpu"}}, &sched), status, out);
    TN_TRY_GOTO(tn_sched_reserve(sched, graph), status, out); /* the only call that takes memory */
    TN_TRY_GOTO(tn_tensor_set(a, a_data), status, out);
    TN_TRY_GOTO(tn_tensor_set(b, b_data), status, out);
    TN_TRY_GOTO(tn_sched_run(sched, graph), status, out);
    float result[12];
    TN_TRY_GOTO(tn_tensor_get(y, result), status, out);

    for (int row = 0; row < 3; row++)
        printf("%s[%g,%g,%g,%g]%s", row ? " " : "[", result[4 * row], result[4 * row + 1], result[4 * row + 2],
               result[4 * row + 3], row < 2 ? ",\n" : "]\n");
out:
    tn_sched_free(sched);
    tn_arena_free(arena);
    return status;
}

int main(void) {
    tn_status status = run();
    if (status != TN_OK) fprintf(stderr, "matmul: %s: %s\n", tn_status_text(status), tn_error());
    return status != TN_OK;
}
