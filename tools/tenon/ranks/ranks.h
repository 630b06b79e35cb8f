/* The ranks of a command: processes of this machine that it starts, those of an MPI job, or a thread per device. */
#ifndef TENON_TOOL_RANKS_H
#define TENON_TOOL_RANKS_H

#include "cli/cli.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"

/* Tokens of a micro-batch of ranks with whole layers on CPUs, where --ubatch does not say: they wait less for each
 * other with small ones, which cost CPUs nothing. */
enum { RANKS_PIPELINED_UBATCH = 64 };

/* Joins the ranks that the options ask for: starts processes with --ranks, or connects to those of mpirun. *net is
 * NULL where there is one rank. Prints a message and returns an exit code on failure. */
int ranks_join(const struct args *args, tn_net **net);
tn_net_type ranks_type(const struct args *args); /* --net-type */
/* --tensor-split and --nodes-split for the model, where there are ranks. */
void ranks_divide(const struct args *args, const tn_net *net, tn_session_params *params, tn_model_params *model);
/* Leaves them; waits for the processes that were started. */
void ranks_leave(tn_net *net);
/* Ranks of this machine share its processors: the threads of each where --threads does not say. */
void ranks_threads(const struct args *args, tn_net *net, tn_threadpool_params *params);
/* On a rank other than 0: computes what rank 0 asks for and ends the process. */
void ranks_follow(tn_net *net, tn_session *session, tn_model *model) __attribute__((noreturn));
/* This rank has failed: the others end. */
void ranks_fail(tn_net *net);

/* --split-mode row: a rank for every device, each in a thread. */
struct device_ranks;
/* NULL in *ranks: the options do not ask for it. Otherwise params has the first device only, and *net is rank 0's. */
int device_ranks_start(const struct args *args, const char *path, tn_model_params *model_params,
                       tn_session_params *params, struct device_ranks **ranks, tn_net **net);
void device_ranks_end(struct device_ranks *ranks); /* after the session of rank 0 was freed; NULL is fine */

#endif
