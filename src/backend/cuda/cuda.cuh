// What the CUDA backend's files share: the device, its streams, programs, and the launchers of every op.
#ifndef TN_BACKEND_CUDA_CUH
#define TN_BACKEND_CUDA_CUH

#include <atomic>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#define _Static_assert static_assert
extern "C" {
#include "quant/quant.h"
}
#undef _Static_assert
#include "tenon/backend_impl.h"

// A failed CUDA call becomes a status with the device, the call and CUDA's own words.
tn_status cuda_check(cudaError_t error, const char *what);
// Zeros, there when it returns: our streams do not wait for the one that cudaMemset uses.
tn_status clear_now(void *at, size_t size);
#define CUDA_TRY(call) TN_TRY(cuda_check((call), #call))

struct cuda_device {
    tn_device device;
    tn_buffer_type type, host_type;
    int ordinal;
    cudaDeviceProp properties;
    cudaStream_t copy_stream;     // for transfers of buffers
    struct upload_lanes *lanes;   // NULL before the first upload
    std::atomic<unsigned> writes; // uploads so far: streams wait for those they have not seen (catch_up in stream.cu)
};

// ---- Uploads (upload.cu) ----

// `from` may change when it returns; whatever runs or reads on the device afterwards finds the data.
tn_status upload(cuda_device *d, char *to, const char *from, size_t size);
// The same from readers, which several threads call, into tensors of one buffer.
tn_status upload_from(cuda_device *d, const tn_tensor_source *sources, size_t n);
// That stream, for all uploads so far. `seen`: what it has waited for.
tn_status upload_wait(cuda_device *d, cudaStream_t stream, unsigned *seen);
// Around whatever else the copy stream does: uploads so far come before it, and others know of it.
tn_status upload_before(cuda_device *d);
void upload_after(cuda_device *d);
// What a stream's own queue uploads, up to NOTE bytes each: brought in its order, before what it does next. `mail` is
// made when it is needed.
enum { NOTE = 128 };
struct notes;
tn_status queue_note(notes **mail, cudaStream_t stream, char *to, const void *from, size_t size);
tn_status bring_notes(notes *mail, cudaStream_t stream);

// ---- A stream of work ----

struct cuda_stream {
    tn_stream base;
    cuda_device *device;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudaEvent_t copied;                // orders copies between streams
    unsigned *tickets;                 // zeros: who of several blocks is the last counts here and leaves zero behind
    struct profile *profile;           // NULL unless TENON_CUDA_PROFILE is set
    unsigned seen_writes, seen_copies; // of the device
    notes *mail;                       // what was set in this stream's order; NULL before the first
};
enum { N_TICKETS = 16384, N_PERSISTENT_COUNTERS = 64 /* behind them: the counters of chains */ };

// ---- Kinds of weights (soa.cu) ----

enum { SOA = 0x80 };
enum { Q4_0_PIECE = 2048, Q8_0_PIECE = 1024, Q6_K_PIECE = 2048 }; // elements of a planar row that lie together
int kind_of(const tn_tensor *t);                                  // type, with SOA where its rows were rearranged
bool can_be_soa(const tn_tensor *t);                              // by type and row length
extern char soa_mark;                                             // tensor->extra of rearranged weights
tn_status soa_repack(cuda_device *device, const tn_tensor *t, bool forward); // in place, on the copy stream
// Plain bytes from `begin` on. The device's stay as they are, since others may compute with them.
tn_status soa_read(cuda_device *device, const tn_tensor *t, size_t begin, char *to, size_t size);

// Activations that lie in scratch as f16 or bf16, from the product before; with experts, sorted by ids.
struct narrow {
    const void *data;
    int type;
    const tn_tensor *y, *ids; // ids: NULL without experts
    int64_t experts;
};
// What launchers get: the stream, and the program's scratch.
struct launch {
    cuda_device *device;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    char *scratch;
    unsigned *tickets;
    narrow *narrowed; // forgotten whenever anything but a product runs
    bool strict;      // what a kernel reads before grid_wait() may still be changing: it starts when all has ended
};

// Scratch bytes a node needs, and running it. Every op the device supports has a row in ops.cu.
size_t node_scratch(const cuda_device *device, const tn_tensor *node);
tn_status node_launch(const launch &l, const tn_tensor *node);
bool node_supported(const tn_tensor *node, char *reason, size_t reason_size);
bool node_is_idle(const tn_tensor *node); // nothing to do, which is an error to CUDA: a grid of no blocks

// ---- Launchers by file ----

tn_status launch_unary(const launch &l, const tn_tensor *t);
tn_status launch_binary(const launch &l, const tn_tensor *t);
tn_status launch_glu(const launch &l, const tn_tensor *t);
tn_status launch_copy(const launch &l, const tn_tensor *from,
                      const tn_tensor *to); // any strides, any plain or readable types
tn_status launch_get_rows(const launch &l, const tn_tensor *t);
tn_status launch_set_rows(const launch &l, const tn_tensor *t);
tn_status launch_add_id(const launch &l, const tn_tensor *t);
tn_status launch_region(const launch &l, const tn_tensor *t); // acc, set
tn_status launch_concat(const launch &l, const tn_tensor *t);
tn_status launch_repeat(const launch &l, const tn_tensor *t);
tn_status launch_norm(const launch &l, const tn_tensor *t);
tn_status launch_soft_max(const launch &l, const tn_tensor *t);
tn_status launch_rope(const launch &l, const tn_tensor *t);
void rope_blend(const tn_rope_params &p, float *low, float *high);       // YaRN: the pairs between which it blends
tn_status launch_row_reduce(const launch &l, const tn_tensor *t);        // sum_rows, mean, argmax
bool sum_argmax_supports(const tn_tensor *sum, const tn_tensor *argmax); // both of one long row, in one launch
size_t argmax_scratch(const tn_tensor *argmax);
tn_status launch_sum_argmax(const launch &l, const tn_tensor *sum, const tn_tensor *argmax);
tn_status launch_top_k(const launch &l, const tn_tensor *t);
tn_status launch_mix(const launch &l, const tn_tensor *t);
bool is_plain_soft_max(const tn_tensor *t);                             // of rows, of nothing but them
bool moe_router_supports(const tn_tensor *probs, const tn_tensor *ids); // the choice of experts, in one launch
tn_status launch_moe_router(const launch &l, const tn_tensor *probs, const tn_tensor *ids);
// Experts' results put together, with what makes their weights and what is added to them. All but rows, mix and out,
// which is the last of them, may be NULL.
struct chosen_mix {
    const tn_tensor *rows, *soft_max, *sum, *div, *scale, *mix, *residual, *out;
};
bool mix_supports(const chosen_mix &m);
tn_status launch_chosen_mix(const launch &l, const chosen_mix &m);
size_t mul_mat_scratch(const cuda_device *device, const tn_tensor *t);
tn_status launch_mul_mat(const launch &l, const tn_tensor *t);
// Rows of f32 to dense f16 or bf16; f16 saturates instead of overflowing.
tn_status launch_narrow(const launch &l, const char *x, int64_t row_bytes, int64_t k, int64_t rows, int type,
                        void *to);
size_t mul_mat_id_scratch(const cuda_device *device, const tn_tensor *t);
tn_status launch_mul_mat_id(const launch &l, const tn_tensor *t);
size_t attention_scratch(const cuda_device *device, const tn_tensor *t);
tn_status launch_attention(const launch &l, const tn_tensor *t);
bool attention_supported(const tn_tensor *t, char *reason, size_t reason_size);

// ---- Nodes that run together (fusion.cu) ----

struct fusion; // what is known about a program's nodes: who reads whom
tn_status fusion_new(tn_tensor *const *nodes, size_t n_nodes, const cuda_device *device, fusion **out);
void fusion_free(fusion *f);
size_t fusion_scratch(const fusion *f, const cuda_device *device); // for the whole program, nodes' own included
struct profile;
tn_status fusion_launch(fusion *f, const launch &l, profile *p);

// ---- Launching kernels ----

// For kernels that call grid_wait() before they touch anything a kernel before them writes.
template <typename... P, typename... A>
static inline tn_status launch_early(const launch &l, const char *what, void (*kernel)(P...), dim3 grid,
                                     unsigned threads, size_t shared, A... args) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = l.stream;
    config.attrs = &attribute;
    config.numAttrs = l.device->properties.major >= 9 && !l.strict ? 1 : 0;
    return cuda_check(cudaLaunchKernelEx(&config, kernel, P(args)...), what);
}

enum { MOST_ROWS = 65535 }; // blocks of a grid in its second and third dimension
static inline unsigned blocks_for(int64_t n, int threads) { return (unsigned)((n + threads - 1) / threads); }
static inline size_t round_up_256(size_t n) { return (n + 255) & ~(size_t)255; }

struct shape4 {
    int64_t ne[4];
    int64_t nb[4];
};
static inline shape4 shape4_of(const tn_tensor *t) {
    shape4 s;
    for (int i = 0; i < 4; i++) {
        s.ne[i] = t->ne[i];
        s.nb[i] = (int64_t)t->nb[i];
    }
    return s;
}

#endif
