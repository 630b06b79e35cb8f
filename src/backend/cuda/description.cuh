// What launches depend on: the limits and features of a device, as plain data.
//
// A real device fills its description from the driver. A described device takes it from a specification and has no
// hardware: programs are planned and compiled for it, and their launch lists printed, but it runs nothing.
#ifndef TN_BACKEND_CUDA_DESCRIPTION_CUH
#define TN_BACKEND_CUDA_DESCRIPTION_CUH

#include "tenon/backend_impl.h"

struct device_description {
    char chip[64];
    int major, minor; // compute capability
    int multiprocessors;
    size_t shared_per_block; // bytes of shared memory a kernel may opt in to
    size_t shared_per_multiprocessor;
    int threads_per_multiprocessor, blocks_per_multiprocessor;
    size_t l2_bytes, memory_bytes;
    bool async_copies;        // cp.async and 16-bit tensor cores with bf16: capability 8.0
    bool bulk_copies;         // cp.async.bulk with mbarriers: capability 9.0
    bool programmatic_launch; // a kernel may start while the one before it runs: capability 9.0
    bool cooperative_launch;
    bool integrated; // its memory is the host's
};

enum {
    MAX_BLOCK_THREADS = 1024,
    DEFAULT_SHARED = 48 << 10, // bytes of shared memory without opting in
    // The driver keeps 1 KiB of shared memory of each resident block; earlier capabilities keep none.
    RESERVED_SHARED = 1 << 10,
};

// Features that follow from the compute capability.
void description_set_features(device_description *d);
// Blocks that fit on one multiprocessor at a time. Registers are not counted: kernels state them in launch bounds.
int description_resident_blocks(const device_description &d, unsigned threads, size_t shared);
// From the text after "cuda:": a preset ("h200") or a capability ("sm=90"), then key=value pairs that replace single
// figures: sm, sms, shared, shared-sm, threads-sm, blocks-sm, l2, memory, name. `name` receives the device's name.
tn_status description_parse(const char *spec, device_description *d, char *name, size_t name_size);

#endif
