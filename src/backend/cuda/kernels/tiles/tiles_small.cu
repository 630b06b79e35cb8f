// Tile kernels for types with blocks of 32, and iq4_xs.
#include "backend/cuda/kernels/tiles/tile_kernel.cuh"

tile_choice tile_kernel_small(int kind, int width) {
    switch (kind) {
    case TN_Q4_0 | SOA: return tile_kernel_for<tile_q4_0>(width, "q4_0");
    case TN_Q8_0 | SOA: return tile_kernel_for<tile_q8_0>(width, "q8_0");
    case TN_IQ4_NL: return tile_kernel_for<tile_iq4_nl>(width, "iq4_nl");
    case TN_IQ4_XS: return tile_kernel_for<tile_iq4_xs>(width, "iq4_xs");
    case TN_MXFP4: return tile_kernel_for<tile_mxfp4>(width, "mxfp4");
    }
    return {};
}
