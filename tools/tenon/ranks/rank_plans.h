/* The plan of every rank of a command, which is not run: processes with --ranks, a rank per device with --split-mode
 * row, or the ranks of an MPI job, each of which plans its own part on its own machine. */
#ifndef TENON_TOOL_RANK_PLANS_H
#define TENON_TOOL_RANK_PLANS_H

#include "ranks/ranks.h"

#include <jansson.h>

enum { RANK_ROW_DEVICES = 17, RANK_NAME = 64 }; /* tn_session_params.devices and the CPU */

struct rank_device {
    char name[RANK_NAME];
    int32_t layers;
    uint64_t weights, mapped, cache, compute, needed, available;
};
struct rank_row {
    char machine[RANK_NAME];
    int32_t n_devices;
    struct rank_device devices[RANK_ROW_DEVICES];
};
struct rank_plans {
    int n, rank; /* ranks, and this one; n is 0 or 1: one rank */
    bool by_layers;
    int stage_ranks;                        /* as in tn_model_params */
    tn_net *net;                            /* of an MPI job; else NULL */
    const char *devices[RANK_DEVICES_MOST]; /* of --split-mode row, by rank */
    struct rank_row rows[TN_NET_RANKS_MOST];
};

/* Finds the ranks, joins those of a launcher, decides on their shares of the file, and makes the parameters those of
 * this rank: 0, or that of the launcher. Prints a message and returns an exit code on failure. */
int rank_plans_begin(const struct args *args, const char *path, struct rank_plans *p, tn_model_params *model,
                     tn_session_params *params);
/* Where the context is left open: the least of what the ranks can have. */
int rank_plans_context(struct rank_plans *p, const char *path, const tn_model_params *model,
                       tn_session_params *params);
/* Fills the rows; `fit` is of this rank's plan. */
int rank_plans_collect(struct rank_plans *p, const char *path, const tn_model_params *model,
                       const tn_session_params *params, const tn_fit *fit);
/* False: some rank's device, or a device that several ranks use, has too little memory; says so if `out` is not NULL.
 */
bool rank_plans_fit(const struct rank_plans *p, FILE *out);
void rank_plans_print(const struct rank_plans *p, FILE *out);
json_t *rank_plans_json(const struct rank_plans *p);
void rank_plans_end(struct rank_plans *p, int code); /* an empty one is fine; a failure ends all ranks of the job */

#endif
