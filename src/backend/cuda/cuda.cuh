// Devices, streams and memory of the CUDA backend: what its host files share.
#ifndef TN_BACKEND_CUDA_CUH
#define TN_BACKEND_CUDA_CUH

#include "backend/cuda/description.cuh"

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

// Turns a failed CUDA call into a status with the device, the call and CUDA's own text.
tn_status cuda_check(cudaError_t error, const char *what);
#define CUDA_TRY(call) TN_TRY(cuda_check((call), #call))

struct cuda_device {
    tn_device device;
    tn_buffer_type type, host_type;
    int ordinal;
    device_description description;
    bool pageable;                // it can follow all pointers of the host
    cudaStream_t copy_stream;     // for transfers of buffers
    struct uploader *uploader;    // NULL before the first buffer
    int n_streams;                // under the uploaders' lock
    std::atomic<unsigned> writes; // uploads so far: streams wait for those they have not seen (catch_up in stream.cu)
};

// Tables of the persistent decode kernel that a scratch buffer holds (scratch.cuh).
struct resident_table {
    uint64_t id; // 0: none
    char *begin, *end;
};
struct cuda_buffer {
    tn_buffer base;
    bool registered;     // memory of the caller that was registered with the driver
    uint64_t scratch_of; // the id of the stream whose programs use it as scratch; 0: none, or it was written to since
    resident_table tables[2];
    unsigned evictions; // of tables, for want of a free slot
};

// Buffers of device memory and of pinned host memory (buffer.cu).
extern const tn_buffer_type_ops cuda_buffer_type_ops, cuda_host_buffer_type_ops;
size_t cuda_tensor_size(tn_buffer_type *type, const tn_tensor *tensor);
tn_status cuda_wrap_host(tn_device *device, void *memory, size_t size, tn_buffer **buffer);
// After binding: marks weights that are repacked once they are complete.
tn_status cuda_init_tensor(tn_buffer *buffer, tn_tensor *tensor);

// Description, kind, memory type and alignment of a device, real or described.
void cuda_device_names(tn_device *device, tn_buffer_type *type, const device_description &d);
// A matrix multiplication with many columns earns back the transfer of its weights; a norm before it moves with it.
bool cuda_wants_op(tn_device *device, const tn_tensor *node);
// A device without hardware (described_device.cu); `spec` is the text after "cuda:".
tn_status described_device_new(const char *spec, tn_device **device);
// The description of a real device, as the driver reports it.
bool description_of_device(int ordinal, device_description *d);

// ---- Uploads (upload.cu) ----

// Pinned memory for uploads: taken with the device's first buffer, given back when it has neither buffers nor
// streams, so that a stream whose buffers come and go keeps it. Every upload_take() needs an upload_give_back().
tn_status upload_take(cuda_device *d);
void upload_give_back(cuda_device *d);
void upload_count_stream(cuda_device *d, int change);
size_t upload_staging_bytes(void);
// Rows of `bytes` bytes in device memory, `stride` bytes apart. With equal numbers they are contiguous.
struct device_rows {
    char *data;
    size_t bytes, stride;
};
// Writes at `offset`, counted without the gaps between rows. `from` may change when it returns; work that starts on
// the device afterwards sees the data.
tn_status upload(cuda_device *d, const device_rows &to, size_t offset, const char *from, size_t size);
// The same from readers, which several threads call, into tensors of one buffer.
tn_status upload_from(cuda_device *d, const tn_tensor_source *sources, size_t n);
// Makes a stream wait for all uploads so far. `seen`: what it has waited for.
tn_status upload_wait(cuda_device *d, cudaStream_t stream, unsigned *seen);
// Around other uses of the copy stream: orders earlier uploads before them, and makes streams wait for them.
tn_status upload_before(cuda_device *d);
void upload_after(cuda_device *d);
// Uploads of up to SMALL_BYTES in a stream's own order, done before its next work. `small` is allocated at first use.
enum { SMALL_BYTES = 128 };
struct small_uploads;
tn_status queue_small_upload(small_uploads **small, cudaStream_t stream, char *to, const void *from, size_t size);
tn_status flush_small_uploads(small_uploads *small, cudaStream_t stream);

// ---- A stream of work ----

struct cuda_stream {
    tn_stream base;
    cuda_device *device;
    cudaStream_t stream;
    cublasLtHandle_t blas;
    cudaEvent_t copied;                // orders copies between streams
    uint64_t id;                       // differs between all streams ever made
    struct profile *profile;           // NULL unless TENON_CUDA_PROFILE is set
    unsigned seen_writes, seen_copies; // of the device
    small_uploads *small;              // small uploads in this stream's order; NULL before the first
    // Aborting (segments.cu).
    tn_abort_fn abort; // or NULL
    void *abort_user;
    cudaEvent_t marks[2];   // after queued segments, in turn; recorded only with a callback
    bool marked[2], queued; // queued: programs ran since the last synchronization
    unsigned next_mark;
    uint64_t unmarked_ns; // estimated work since the last mark
    uint64_t segment_ns;  // the longest segment; UINT64_MAX without a callback
};
// At the beginning of scratch. Kernels count finished blocks here and leave zeros behind.
enum {
    N_TICKETS = 16384,
    N_PERSISTENT_COUNTERS = 64, // after the tickets: counters of the persistent decode kernel
};
tn_status cuda_stream_new(tn_device *device, const tn_stream_params *params, tn_stream **stream);
tn_status cuda_event_new(tn_device *device, tn_event **event);
void cuda_event_free(tn_event *event);
tn_status cuda_event_record(tn_event *event, tn_stream *stream);
tn_status cuda_event_wait(tn_event *event, tn_stream *stream);
tn_status cuda_event_synchronize(tn_event *event);
// Orders uploads since this stream's last work, and its own small uploads, before its next work.
tn_status cuda_stream_catch_up(cuda_stream *s);

// ---- Aborting (segments.cu) ----

// Before a segment of a program is queued: asks the callback, and waits until at most one segment is queued. After an
// abort nothing is queued.
tn_status segment_begin(cuda_stream *s);
// After a segment was queued, with the time that it is estimated to take.
tn_status segment_end(cuda_stream *s, uint64_t ns);
uint64_t segment_max_ns(void);
// Waits for all queued work, and asks the callback if there was any.
tn_status segments_synchronize(cuda_stream *s);

// Programs of a stream (program.cu).
tn_status cuda_program_new(tn_stream *stream, tn_tensor *const *nodes, size_t n_nodes, tn_program **program);
void cuda_program_free(tn_program *program);
void cuda_program_moved(tn_program *program);
tn_status cuda_program_run(tn_program *program, tn_buffer *scratch);
tn_status cuda_program_print(tn_program *program, tn_buffer *scratch, FILE *out);

// ---- Repacked weights (soa.cu) ----

enum { SOA = 0x80 };
enum {
    Q4_0_PIECE = 2048,
    Q8_0_PIECE = 1024,
    Q6_K_PIECE = 2048
};                               // elements of a repacked row that are stored together
int kind_of(const tn_tensor *t); // type, with SOA where the rows are repacked
// By type, row length and device. The rows of such tensors are padded to multiples of 16 bytes once they are weights.
bool can_be_soa(const tn_buffer_type *type, const tn_tensor *t);
extern char soa_mark; // tensor->extra of repacked weights
size_t padded_row_bytes(const tn_tensor *t);
// The rows of a tensor that is no view.
device_rows device_rows_of(const tn_tensor *t);
// Where a tensor or view lies on the device, and its strides there: a SOA tensor's rows may be padded, which
// tensor->nb does not show.
struct device_layout {
    char *data;
    int64_t nb[TN_MAX_DIMS];
};
device_layout device_layout_of(const tn_tensor *t);
// Both count `offset` without the gaps between rows.
cudaError_t copy_to_rows(const device_rows &to, size_t offset, const char *from, size_t size, cudaMemcpyKind kind,
                         cudaStream_t stream);
cudaError_t fill_rows(const device_rows &to, size_t offset, uint8_t value, size_t size, cudaStream_t stream);
tn_status soa_repack(cuda_device *device, const tn_tensor *t, bool forward); // in place, on the copy stream
// Reads bytes from `begin` on in the file's layout. The device's copy stays repacked: other streams may be using it.
tn_status soa_read(cuda_device *device, const tn_tensor *t, size_t begin, char *to, size_t size);

#endif
