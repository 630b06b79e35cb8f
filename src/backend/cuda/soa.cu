// Repacking weights of q4_0, q8_0 and q6_K to a structure-of-arrays layout. A row is divided into pieces of the
// length that a warp processes at a time. Within a piece all quants come first and all scales last. Size and row
// stride do not change, but loads are wide and aligned, and what a warp reads is contiguous.
#include "backend/cuda/cuda.cuh"

#include <algorithm>

char soa_mark;

// A part of a block: its offset and bytes.
struct soa_part {
    short offset, bytes;
};
struct soa_layout {
    int block, piece;  // bytes of a block; blocks of a piece
    soa_part parts[4]; // in the order of the new layout
};

static bool soa_layout_of(int type, soa_layout *out) {
    switch (type) {
    case TN_Q4_0: *out = {18, Q4_0_PIECE / 32, {{2, 16}, {0, 2}}}; return true;
    case TN_Q8_0: *out = {34, Q8_0_PIECE / 32, {{2, 32}, {0, 2}}}; return true;
    case TN_Q6_K: *out = {210, Q6_K_PIECE / 256, {{0, 128}, {128, 64}, {192, 16}, {208, 2}}}; return true;
    }
    return false;
}

// Rows must be 16-byte aligned, and one row must fit into 48 KiB of shared memory.
bool can_be_soa(const tn_tensor *t) {
    soa_layout l;
    return soa_layout_of(t->type, &l) && t->nb[1] % 16 == 0 && t->nb[1] <= 48 << 10 && tn_is_contiguous(t) &&
           t->ne[1] > 1;
}

int kind_of(const tn_tensor *t) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    return (int)t->type | (root->extra == &soa_mark ? SOA : 0);
}

// Repacks in place, one row per block. `forward`: to the SOA layout; otherwise back.
__global__ static void soa_repack_kernel(char *data, int64_t row_bytes, int blocks, soa_layout l, bool forward) {
    extern __shared__ char row[];
    char *at = data + (int64_t)blockIdx.x * row_bytes;
    for (int i = threadIdx.x * 4; i < row_bytes; i += blockDim.x * 4)
        *(uint32_t *)(row + i) = *(const uint32_t *)(at + i);
    __syncthreads();
    // Two bytes at a time: the size of the smallest part.
    for (int i = threadIdx.x * 2; i < row_bytes; i += blockDim.x * 2) {
        // i is an offset in the SOA row. Finds its piece, part and block, and its offset in the plain row.
        int first = i / (l.piece * l.block) * l.piece, here = min(l.piece, blocks - first), start = first * l.block,
            p = 0;
        while (i >= start + l.parts[p].bytes * here) start += l.parts[p++].bytes * here;
        int within = i - start, block = first + within / l.parts[p].bytes,
            plain = block * l.block + l.parts[p].offset + within % l.parts[p].bytes;
        if (forward)
            *(uint16_t *)(at + i) = *(const uint16_t *)(row + plain);
        else
            *(uint16_t *)(at + plain) = *(const uint16_t *)(row + i);
    }
}

tn_status soa_read(cuda_device *d, const tn_tensor *t, size_t begin, char *to, size_t size) {
    enum { AT_ONCE = 1 << 20 };
    soa_layout l;
    if (!soa_layout_of(t->type, &l))
        return tn_fail(TN_E_INTERNAL, "%s has no structure-of-arrays layout", tn_type_name(t->type));
    const size_t row = t->nb[1], block_bytes = (size_t)l.block, end = begin + size,
                 most = std::max<size_t>(1, AT_ONCE / row);
    const int blocks = (int)(row / block_bytes);
    char *rows = (char *)tn_malloc(most * row), block[256];
    if (!rows) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (size_t r = begin / row; r * row < end && status == TN_OK; r += most) {
        const size_t n = std::min(most, (end + row - 1) / row - r);
        status = cuda_check(
            cudaMemcpyAsync(rows, (const char *)t->data + r * row, n * row, cudaMemcpyDeviceToHost, d->copy_stream),
            "reading weights");
        if (status == TN_OK) status = cuda_check(cudaStreamSynchronize(d->copy_stream), "reading weights");
        if (status != TN_OK) break;
        // Assembles one block at a time from its parts and copies the requested bytes of it.
        size_t at = std::max(begin, r * row);
        for (const size_t stop = std::min(end, (r + n) * row); at < stop;) {
            const size_t within = at % row % block_bytes, bytes = std::min(block_bytes - within, stop - at);
            const int b = (int)(at % row / block_bytes), first = b / l.piece * l.piece,
                      here = std::min(l.piece, blocks - first);
            const char *from = rows + (at / row - r) * row + (size_t)first * block_bytes;
            for (int p = 0, done = 0; done < l.block; done += l.parts[p++].bytes) {
                memcpy(block + l.parts[p].offset, from + l.parts[p].bytes * (b - first), (size_t)l.parts[p].bytes);
                from += l.parts[p].bytes * here;
            }
            memcpy(to + (at - begin), block + within, bytes);
            at += bytes;
        }
    }
    tn_free(rows);
    return status;
}

tn_status soa_repack(cuda_device *d, const tn_tensor *t, bool forward) {
    soa_layout l;
    if (!soa_layout_of(t->type, &l))
        return tn_fail(TN_E_INTERNAL, "%s has no structure-of-arrays layout", tn_type_name(t->type));
    CUDA_TRY(cudaSetDevice(d->ordinal));
    soa_repack_kernel<<<(unsigned)tn_nrows(t), 128, t->nb[1], d->copy_stream>>>(
        (char *)t->data, (int64_t)t->nb[1], (int)(t->nb[1] / (size_t)l.block), l, forward);
    CUDA_TRY(cudaGetLastError());
    upload_after(d);
    return TN_OK;
}
