/* The ranks of a command: processes of this machine that it starts, those of an MPI job, or a thread per device. */
#ifndef TENON_TOOL_RANKS_H
#define TENON_TOOL_RANKS_H

#include "cli/cli.h"

#include "tenon/cpu.h"
#include "tenon/llm.h"

/* The most tokens of a micro-batch of ranks with whole layers on CPUs, where --ubatch does not say: what
 * tn_session_plan_micro_batch() chooses for a prompt of 8,192 tokens. */
enum { RANKS_PIPELINED_UBATCH = 256 };

/* Joins the ranks that the options ask for: starts processes with --ranks, or connects to those of mpirun. *net is
 * NULL where there is one rank. Prints a message and returns an exit code on failure. */
int ranks_join(const struct args *args, tn_net **net);
tn_net_type ranks_type(const struct args *args); /* --net-type */
int ranks_launched(void);                        /* by mpirun or Slurm; 0: none */
int ranks_here(int n_ranks);                     /* how many of them are on this machine */
/* --tensor-split and --nodes-split for the model of several ranks. */
void ranks_divide(const struct args *args, int n_ranks, tn_session_params *params, tn_model_params *model);
/* Ranks exchange peaks, free memory and machines. Sets the shares where none are given, and the ranks of a stage.
 * Needs speed_cache_load() first. */
tn_status ranks_balance(tn_net *net, const char *path, const tn_session_params *params, int n_threads,
                        tn_model_params *model);
/* The same for devices of this process, each of which is a rank. */
tn_status ranks_balance_devices(const char *path, const char *const *devices, int n, int n_threads,
                                tn_model_params *model);
/* Leaves them; waits for the processes that were started. */
void ranks_leave(tn_net *net);
/* Ranks of this machine share its processors: the threads of each where --threads does not say. */
int ranks_thread_share(int n_ranks); /* 0: the launcher has divided the processors */
void ranks_threads(const struct args *args, tn_net *net, tn_threadpool_params *params);
/* --numa isolate: keeps rank number `rank` of the `n_ranks` on this machine to a memory node, as the calling thread
 * and those that it starts from now on. Returns how many ranks have that node; 0: there is only one node, it was not
 * asked for, or it is impossible, with a warning. */
int ranks_take_node(const struct args *args, int rank, int n_ranks);
/* On a rank other than 0: computes what rank 0 asks for and ends the process. */
void ranks_follow(tn_net *net, tn_session *session, tn_model *model) __attribute__((noreturn));
/* This rank has failed: the others end. */
void ranks_fail(tn_net *net);

/* --split-mode row: a rank for every device, each in a thread. */
bool ranks_split_devices(const struct args *args); /* whether the options ask for it */
enum { RANK_DEVICES_MOST = 15 };
/* The devices by name, or all GPUs; returns how many. */
int ranks_list_devices(const tn_session_params *params, const char *devices[RANK_DEVICES_MOST]);
void ranks_use_device(tn_session_params *params, const char *device); /* it alone, with the CPU */
struct device_ranks;
/* NULL in *ranks: the options do not ask for it. Otherwise params has the first device only, and *net is rank 0's. */
int device_ranks_start(const struct args *args, const char *path, tn_model_params *model_params,
                       tn_session_params *params, struct device_ranks **ranks, tn_net **net);
void device_ranks_end(struct device_ranks *ranks); /* after the session of rank 0 was freed; NULL is fine */

#endif
