/* Shares of ranks from what each of them has to compute with. docs/distributed.md */
#ifndef TENON_NET_RANKS_H
#define TENON_NET_RANKS_H

#include "tenon/backend.h"
#include "tenon/net/net.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank has to compute with. Ranks exchange it before they divide a model. */
enum { TN_RANK_DEVICES = 16 };
typedef struct tn_rank_device {
    uint64_t id;     /* ranks with the same one divide its memory */
    uint64_t memory; /* free bytes */
} tn_rank_device;
typedef struct tn_rank_resources {
    double read, multiply; /* peaks: bytes per second from memory, operations per second with many rows; 0: unknown */
    int n_devices;
    tn_rank_device devices[TN_RANK_DEVICES];
    uint64_t model_bytes; /* of all weights, on ranks that have the file */
    uint64_t machine;     /* the same on ranks of one machine: its name, or TENON_MACHINE */
} tn_rank_resources;
/* Fills `resources` for a rank that computes on these devices, 1 to TN_RANK_DEVICES: the free memory of all, and the
 * declared peaks (speed.h) of the first. n_threads: CPU only. */
TN_API tn_status tn_rank_resources_of(tn_device *const *devices, int n, int n_threads,
                                      tn_rank_resources *resources) TN_MUST_CHECK;
/* A collective: fills all[0 … n_ranks-1] with what the ranks pass as `own`. */
TN_API tn_status tn_ranks_exchange(tn_net *net, const tn_rank_resources *own, tn_rank_resources *all) TN_MUST_CHECK;
/* The number of ranks per machine; 0 if machines have different numbers, or ranks of a machine are not consecutive.
 */
TN_API int tn_ranks_per_machine(const tn_rank_resources *all, int n);
/* The shares of `n` ranks for tn_model_params.shares: by the rate of memory for slices of every matrix, by that of
 * matmuls for whole layers; no more than a rank's memory holds. All 0 where ranks are alike. `n`: 1 to
 * TN_NET_RANKS_MOST. */
TN_API void tn_ranks_shares(const tn_rank_resources *all, int n, bool by_layers, float *shares);

#ifdef __cplusplus
}
#endif
#endif
