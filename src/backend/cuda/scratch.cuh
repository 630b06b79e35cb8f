// Scratch of programs: what is in the buffer, and which parts of it a later run finds again.
//
//   beginning   counters, which are zeros between launches: cleared once for each stream and buffer
//   then        what the kernels of a launch need; nothing is kept here
//   end         two slots for tables of the persistent decode kernel, so that two programs can take turns
//
// All programs of a stream use one buffer. A program's tables stay at the buffer's end until another program's
// kernels or tables overwrite them; only then are they copied again before its next run. Tables of decode programs
// usually survive, because the buffer is as large as prefill needs and decode uses little of it.
#ifndef TN_BACKEND_CUDA_SCRATCH_CUH
#define TN_BACKEND_CUDA_SCRATCH_CUH

#include "backend/cuda/cuda.cuh"

enum {
    COUNTER_BYTES = (N_TICKETS + N_PERSISTENT_COUNTERS) * 4,
    TABLE_SLOTS = 2,
    // Tables of similar programs, such as two graphs of one model, get slots of one size, which do not overlap.
    TABLE_STEP = 64 << 10,
};

struct scratch_needs {
    size_t kernels; // bytes
    size_t table;   // bytes of a slot, a multiple of TABLE_STEP; 0: the program has no tables
    size_t total;   // bytes of the buffer; a multiple of 256
};
// The total follows from the other two. `counts`: kernels use the counters.
scratch_needs scratch_needs_of(size_t kernels, size_t table, bool counts);

struct scratch_table {
    uint64_t id;      // differs between all tables ever made; 0: no table
    char *at;         // a slot of the scratch buffer
    const void *data; // copied to its beginning
    size_t bytes;
    size_t zeros_from, zeros_end; // cleared
};
// The slot that a program's tables should get: one that holds no other program's, if there is one.
char *scratch_slot(const tn_buffer *scratch, const scratch_needs &needs);
// Before a run, in the order of the stream: clears the counters and copies the table where that is necessary.
tn_status scratch_prepare(cuda_stream *s, tn_buffer *scratch, const scratch_needs &needs, const scratch_table &table);
uint64_t scratch_new_id(void);

#endif
