// Repacking weights of q4_0, q8_0 and q6_K to a structure-of-arrays layout. A row is divided into pieces of the
// length that a warp processes at a time. Within a piece all quants come first and all scales last, so that loads are
// wide and aligned, and what a warp reads is contiguous.
//
// Rows begin at multiples of 16 bytes: bulk copies into shared memory need that. Rows of other lengths, such as the
// 2,520 bytes of 3,072 weights in q6_K, are padded. cuda_tensor_size() counts the padding.
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

size_t padded_row_bytes(const tn_tensor *t) { return (t->nb[1] + 15) & ~(size_t)15; }

// One row must fit into 48 KiB of shared memory. Padding may take 1/32 of the memory at most: the size of a tensor
// does not depend on its use, and rows of small KV caches would grow by more. Devices that compute on the host's
// memory find rows there as the file has them, so they have no padding.
bool can_be_soa(const tn_buffer_type *type, const tn_tensor *t) {
    soa_layout l;
    if (!soa_layout_of(t->type, &l) || t->nb[1] > 48 << 10 || !tn_is_contiguous(t) || t->ne[1] <= 1) return false;
    const size_t padding = padded_row_bytes(t) - t->nb[1];
    return !padding || (padding * 32 <= t->nb[1] && !type->device->caps.wrap_host);
}
device_rows device_rows_of(const tn_tensor *t) {
    return {(char *)t->data, t->nb[1], kind_of(t) & SOA ? padded_row_bytes(t) : t->nb[1]};
}
device_layout device_layout_of(const tn_tensor *t) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    device_layout l = {(char *)t->data, {}};
    for (int i = 0; i < TN_MAX_DIMS; i++) l.nb[i] = (int64_t)t->nb[i];
    if (!(kind_of(t) & SOA) || padded_row_bytes(root) == root->nb[1]) return l;
    // Views have whole rows of their root (reads_soa() in op_table.cu).
    const int64_t row = (int64_t)root->nb[1], stride = (int64_t)padded_row_bytes(root);
    l.data = (char *)root->data + ((char *)t->data - (char *)root->data) / row * stride;
    for (int i = 1; i < TN_MAX_DIMS; i++) l.nb[i] = l.nb[i] / row * stride;
    return l;
}

// Calls run(address, offset from the first byte, bytes of a row, number of rows) for the rest of a row, whole rows
// and the beginning of a row.
template <typename RUN>
static cudaError_t for_row_parts(const device_rows &to, size_t offset, size_t size, const RUN &run) {
    if (to.bytes == to.stride) return run(to.data + offset, 0, size, 1);
    for (size_t done = 0, n; done < size; done += n) {
        const size_t row = (offset + done) / to.bytes, within = (offset + done) % to.bytes, left = size - done;
        const size_t rows = within || left < to.bytes ? 1 : left / to.bytes,
                     width = std::min(left, to.bytes - within);
        n = rows * width;
        cudaError_t error = run(to.data + row * to.stride + within, done, width, rows);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
cudaError_t copy_to_rows(const device_rows &to, size_t offset, const char *from, size_t size, cudaMemcpyKind kind,
                         cudaStream_t stream) {
    return for_row_parts(to, offset, size, [&](char *at, size_t done, size_t width, size_t rows) {
        return rows == 1 ? cudaMemcpyAsync(at, from + done, width, kind, stream)
                         : cudaMemcpy2DAsync(at, to.stride, from + done, width, width, rows, kind, stream);
    });
}
cudaError_t fill_rows(const device_rows &to, size_t offset, uint8_t value, size_t size, cudaStream_t stream) {
    return for_row_parts(to, offset, size, [&](char *at, size_t, size_t width, size_t rows) {
        return rows == 1 ? cudaMemsetAsync(at, value, width, stream)
                         : cudaMemset2DAsync(at, to.stride, value, width, rows, stream);
    });
}

int kind_of(const tn_tensor *t) {
    const tn_tensor *root = t->view_src ? t->view_src : t;
    return (int)t->type | (root->extra == &soa_mark ? SOA : 0);
}

// Repacks in place, one row per block. `forward`: to the SOA layout; otherwise back.
__global__ static void soa_repack_kernel(char *data, int64_t stride, int blocks, soa_layout l, bool forward) {
    extern __shared__ char row[];
    char *at = data + (int64_t)blockIdx.x * stride;
    const int row_bytes = blocks * l.block; // where that is no whole number of words, padding follows
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
    const size_t row = t->nb[1], stride = padded_row_bytes(t), block_bytes = (size_t)l.block, end = begin + size,
                 most = std::max<size_t>(1, AT_ONCE / stride);
    const int blocks = (int)(row / block_bytes);
    char *rows = (char *)tn_malloc(most * stride), block[256];
    if (!rows) return TN_E_NOMEM;
    tn_status status = TN_OK;
    for (size_t r = begin / row; r * row < end && status == TN_OK; r += most) {
        const size_t n = std::min(most, (end + row - 1) / row - r);
        status = cuda_check(cudaMemcpyAsync(rows, (const char *)t->data + r * stride, n * stride,
                                            cudaMemcpyDeviceToHost, d->copy_stream),
                            "reading weights");
        if (status == TN_OK) status = cuda_check(cudaStreamSynchronize(d->copy_stream), "reading weights");
        if (status != TN_OK) break;
        // Assembles one block at a time from its parts and copies the requested bytes of it.
        size_t at = std::max(begin, r * row);
        for (const size_t stop = std::min(end, (r + n) * row); at < stop;) {
            const size_t within = at % row % block_bytes, bytes = std::min(block_bytes - within, stop - at);
            const int b = (int)(at % row / block_bytes), first = b / l.piece * l.piece,
                      here = std::min(l.piece, blocks - first);
            const char *from = rows + (at / row - r) * stride + (size_t)first * block_bytes;
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
    const size_t stride = padded_row_bytes(t);
    soa_repack_kernel<<<(unsigned)tn_nrows(t), 128, stride, d->copy_stream>>>(
        (char *)t->data, (int64_t)stride, (int)(t->nb[1] / (size_t)l.block), l, forward);
    CUDA_TRY(cudaGetLastError());
    upload_after(d);
    return TN_OK;
}
