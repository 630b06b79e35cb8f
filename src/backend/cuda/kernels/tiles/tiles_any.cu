// Tile kernels for every other kind, and for rows at unaligned addresses. Only tiles of 16 and 64 columns.
#include "backend/cuda/kernels/tiles/tile_kernel.cuh"

template <typename P> static tile_choice any_kernel_for(int width, const char *reader) {
    return width == 16 ? tile_kernel_as<P, 16>(reader) : width == 64 ? tile_kernel_as<P, 64>(reader) : tile_choice{};
}
tile_choice tile_kernel_any(int kind, int width) {
    switch (kind) {
    case TN_F16: return any_kernel_for<tile_any<read_f16>>(width, "read_f16");
    case TN_BF16: return any_kernel_for<tile_any<read_bf16, true>>(width, "read_bf16");
#define CASE(KIND, reader)                                                                                           \
    case KIND: return any_kernel_for<tile_any<reader>>(width, #reader);
        FOR_EVERY_BLOCK_READER(CASE)
#undef CASE
    }
    return {};
}
