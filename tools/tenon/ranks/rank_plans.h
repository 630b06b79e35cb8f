/* The plan of every rank of a command, which is not run: processes with --ranks, a rank per device with --split-mode
 * row, or the ranks of an MPI job, each of which plans its own part on its own machine. */
#ifndef TENON_TOOL_RANK_PLANS_H
#define TENON_TOOL_RANK_PLANS_H

#include "ranks/ranks.h"
#include "ranks/split_speed.h"

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
/* The predicted speed of all ranks together, for two lengths of prompts. */
enum { RANK_PROMPTS = 2 };
struct rank_speeds {
    int32_t prompts[RANK_PROMPTS]; /* tokens */
    struct split_speed speeds[RANK_PROMPTS];
    struct rank_links links;
    int unknown; /* the first rank that cannot be predicted; -1: none */
};
struct rank_plans {
    int n, rank; /* ranks, and this one; n is 0 or 1: one rank */
    bool by_layers;
    int stage_ranks;                        /* as in tn_model_params */
    tn_net *net;                            /* of an MPI job; else NULL */
    const char *devices[RANK_DEVICES_MOST]; /* of --split-mode row, by rank */
    struct rank_row rows[TN_NET_RANKS_MOST];
    struct rank_speeds speeds;
};

/* Joins the ranks of a launcher, if there is one. Prints a message and returns an exit code on failure, as do the
 * functions below. */
int rank_plans_join(const struct args *args, struct rank_plans *p);
/* Finds the other ranks, decides on their shares of the file, and makes the parameters those of this rank: 0, or that
 * of the launcher. */
int rank_plans_begin(const struct args *args, const char *path, struct rank_plans *p, tn_model_params *model,
                     tn_session_params *params);
/* Where the context is left open: the least of what the ranks can have. */
int rank_plans_context(struct rank_plans *p, const char *path, const tn_model_params *model,
                       tn_session_params *params);
/* Fills the rows, `fit` is of this rank's plan, and predicts the speed. */
int rank_plans_collect(struct rank_plans *p, const char *path, const tn_model_params *model,
                       const tn_session_params *params, const tn_fit *fit);
/* False: some rank's device, or a device that several ranks use, has too little memory; says so if `out` is not NULL.
 */
bool rank_plans_fit(const struct rank_plans *p, FILE *out);
void rank_plans_print(const struct rank_plans *p, FILE *out);
json_t *rank_plans_json(const struct rank_plans *p);
json_t *rank_speeds_json(const struct rank_plans *p); /* null where a rank is not measured */
void rank_plans_end(struct rank_plans *p, int code);  /* an empty one is fine; a failure ends all ranks of the job */

#endif
