/* The same interface from C++: dimensions as arguments, and status codes instead of exceptions. */
#include <cstdio>
#include <tenon/tenon.h>

/* y = (x reshaped to a matrix) times itself, on the CPU. */
static tn_status compute(tn_arena *arena, tn_sched *sched, float y_data[4]) {
    static const float x_data[4] = {1, 2, 3, 4};
    tn_graph *graph;
    tn_tensor *x = tn_input(arena, TN_F32, 4);
    tn_tensor *matrix = tn_reshape(arena, x, 2, 2);
    tn_tensor *y = tn_output(tn_mul_mat(arena, matrix, matrix));
    TN_TRY(tn_graph_of(arena, y, &graph));
    TN_TRY(tn_sched_reserve(sched, graph));
    TN_TRY(tn_tensor_set(x, x_data));
    TN_TRY(tn_sched_run(sched, graph));
    return tn_tensor_get(y, y_data);
}

int main() {
    tn_arena *arena = nullptr;
    tn_sched *sched = nullptr;
    tn_arena_params pool = {};
    pool.size = tn_arena_size_for(8, 16);
    pool.no_alloc = true;
    tn_sched_params devices = {};
    devices.devices[0] = "cpu";
    float y[4] = {};
    tn_status status = tn_arena_new(&pool, &arena);
    if (status == TN_OK) status = tn_sched_new(&devices, &sched);
    if (status == TN_OK) status = compute(arena, sched, y);
    tn_sched_free(sched);
    tn_arena_free(arena);
    if (status != TN_OK) std::fprintf(stderr, "consumer: %s: %s\n", tn_status_text(status), tn_error());
    std::printf("consumer of tenon %s in C++: %g %g %g %g\n", tn_version(), y[0], y[1], y[2], y[3]);
    return status != TN_OK || y[0] != 5 || y[1] != 11 || y[2] != 11 || y[3] != 25;
}
