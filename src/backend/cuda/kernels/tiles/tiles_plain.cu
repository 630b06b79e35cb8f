// Tile kernels for f16 and bf16.
#include "backend/cuda/kernels/tiles/tile_kernel.cuh"

tile_choice tile_kernel_plain(int kind, int width) {
    switch (kind) {
    case TN_F16: return tile_kernel_for<tile_plain<false>>(width, "f16");
    case TN_BF16: return tile_kernel_for<tile_plain<true>>(width, "bf16");
    }
    return {};
}
