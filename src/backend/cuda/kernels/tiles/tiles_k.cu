// Tile kernels for q4_K, q5_K and q6_K.
#include "backend/cuda/kernels/tiles/tile_kernel.cuh"

tile_choice tile_kernel_k(int kind, int width) {
    switch (kind) {
    case TN_Q4_K: return tile_kernel_for<tile_q4_K>(width, "q4_K");
    case TN_Q5_K: return tile_kernel_for<tile_q5_K>(width, "q5_K");
    case TN_Q6_K | SOA: return tile_kernel_for<tile_q6_K>(width, "q6_K");
    }
    return {};
}
