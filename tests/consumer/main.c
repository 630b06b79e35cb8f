/* Uses an installed tenon the way a stranger would: through its headers and libraries only. */
#include <stdio.h>
#include <tenon/tenon.h>

/* y = silu(x) + x, on the CPU. */
static tn_status compute(float y_data[4]) {
    static const float x_data[4] = {-1, 0, 1, 100};
    tn_arena *arena = NULL;
    tn_graph *graph;
    tn_sched *sched = NULL;
    tn_status status;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(4, 16), .no_alloc = true}, &arena));
    tn_tensor *x = tn_input(arena, TN_F32, 4);
    tn_tensor *y = tn_output(tn_add(arena, tn_silu(arena, x), x));
    TN_TRY_GOTO(tn_graph_of(arena, y, &graph), status, out);
    TN_TRY_GOTO(tn_sched_new(&(tn_sched_params){.devices = {"cpu"}}, &sched), status, out);
    TN_TRY_GOTO(tn_sched_reserve(sched, graph), status, out);
    TN_TRY_GOTO(tn_tensor_set(x, x_data), status, out);
    TN_TRY_GOTO(tn_sched_run(sched, graph), status, out);
    TN_TRY_GOTO(tn_tensor_get(y, y_data), status, out);
out:
    tn_sched_free(sched);
    tn_arena_free(arena);
    return status;
}

int main(void) {
    float y[4] = {0};
    tn_status status = compute(y);
    if (status != TN_OK) {
        fprintf(stderr, "consumer: %s: %s\n", tn_status_text(status), tn_error());
        return 1;
    }
    printf("consumer of tenon %s: %.3f %g %.3f %g\n", tn_version(), y[0], y[1], y[2], y[3]);
    return y[1] != 0 || y[3] != 200;
}
