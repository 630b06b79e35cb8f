// A token's chain in one launch: products with one column and attentions, one after the other, by blocks that stay.
#ifndef TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_CUH
#define TN_BACKEND_CUDA_KERNELS_PERSISTENT_PERSISTENT_CUH

#include "backend/cuda/kernels/attention.cuh"
#include "backend/cuda/kernels/gemv.cuh"

// A product's work comes in items: a piece along a group of rows, which a stage in shared memory holds.
struct persistent_matmul {
    gemv_job job; // its input as floats (in.y), perhaps before the norm (in.weight); leaves floats (next.y)
    int kinds[3], rows[3], groups[3];  // rows of a group; groups of a matrix
    int whole[3], rest[3], to_next[3]; // bytes of a row's piece, of its last; from that to the next group's first
    int all_groups, pieces;            // of all matrices; along a row
    int least, with_more;              // groups of a block; the first blocks have one more
    unsigned per_item;                 // 2³² over the items of a group, rounded up
    float *published[3];               // where a matrix's results are told to the next step, or NULL
    bool residual_is_published;        // it lies where a step told it
};
struct alignas(16) persistent_step {
    bool is_attention;
    bool waits, arrives; // for all blocks before it; says that it is done
    int arrivals;        // of how many steps it waits for
    int input_step;      // whose results it reads as they are told: a step of this launch, or -1
    union {
        persistent_matmul matmul;
        decode_job attention;
    };
};

enum { PERSISTENT_MAX_ROW = 16384 }; // elements of a row

struct persistent_launcher; // what one run of a program collects and launches

bool persistent_supports(const cuda_device *device);
// With room on the device for this many steps in all.
tn_status persistent_new(const cuda_device *device, int steps, persistent_launcher **out);
void persistent_free(persistent_launcher *c);

bool persistent_takes_matmul(const gemv_job &job); // by its matrices and k
bool persistent_takes_attention(const cuda_device *device, const tn_tensor *t);
void persistent_begin(persistent_launcher *c); // a new run
void persistent_add_matmul(persistent_launcher *c, const gemv_job &job);
tn_status persistent_add_attention(persistent_launcher *c, const launch &l, const decode_job &job);
tn_status persistent_launch(persistent_launcher *c,
                            const launch &l); // what was added since the last launch, if anything

#endif
