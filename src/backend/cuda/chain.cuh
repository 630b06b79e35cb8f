// A token's chain in one launch: products with one column and attentions, one after the other, by blocks that stay.
#ifndef TN_BACKEND_CUDA_CHAIN_CUH
#define TN_BACKEND_CUDA_CHAIN_CUH

#include "backend/cuda/attention.cuh"
#include "backend/cuda/gemv.cuh"

// A product's work comes in items: a piece along a group of rows, which a stage in shared memory holds.
struct chain_product {
    gemv_job job; // its input as floats (in.y), perhaps before the norm (in.weight); leaves floats (next.y)
    int kinds[3], rows[3], groups[3];  // rows of a group; groups of a matrix
    int whole[3], rest[3], to_next[3]; // bytes of a row's piece, of its last; from that to the next group's first
    int all_groups, pieces;            // of all matrices; along a row
    int least, with_more;              // groups of a block; the first blocks have one more
    unsigned per_item;                 // 2³² over the items of a group, rounded up
    float *told[3];                    // where a matrix's results are told to the next step, or NULL
    bool told_residual;                // it lies where a step told it
};
struct alignas(16) chain_step {
    bool is_attention;
    bool waits, arrives; // for all blocks before it; says that it is done
    int arrivals;        // of how many steps it waits for
    int hears;           // whose results it reads as they are told: a step of this launch, or -1
    union {
        chain_product product;
        decode_job attention;
    };
};

enum { CHAIN_MOST = 16384 }; // elements of a row

struct chain; // what one run of a program collects and launches

bool chain_serves(const cuda_device *device);
// With room on the device for this many steps in all.
tn_status chain_new(const cuda_device *device, int steps, chain **out);
void chain_free(chain *c);

bool chain_takes_product(const gemv_job &job); // by its matrices and k
bool chain_takes_attention(const cuda_device *device, const tn_tensor *t);
void chain_begin(chain *c); // a new run
void chain_add_product(chain *c, const gemv_job &job);
tn_status chain_add_attention(chain *c, const launch &l, const decode_job &job);
tn_status chain_launch(chain *c, const launch &l); // what was added since the last launch, if anything

#endif
