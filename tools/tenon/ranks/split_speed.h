/* The speed of ranks that divide a model: the predicted times of their graphs, and messages by a latency-bandwidth
 * model. docs/scaling.md has the formula. */
#ifndef TENON_TOOL_SPLIT_SPEED_H
#define TENON_TOOL_SPLIT_SPEED_H

#include "tenon/llm.h"

struct wire {
    double rate, latency; /* bytes per second, seconds */
};
struct rank_links {
    int devices;           /* ranks per machine; these are consecutive */
    struct wire link, net; /* between ranks of one machine, between machines */
    double prompt;         /* tokens; 0: a long prompt */
};

/* SPLIT_STAGES: layers between machines, rows within them. */
enum node_split { SPLIT_ROWS, SPLIT_LAYERS, SPLIT_STAGES, SPLITS };

/* What the plan of a rank predicts. The micro-batch is the one that a prompt of this length has. */
struct rank_figures {
    size_t bytes, available; /* of its first device */
    double prefill, decode;  /* seconds of a micro-batch and of a step on that device, without messages */
    double rows, seqs;       /* tokens of a micro-batch and of a step */
};
/* Plans a rank, without a transport. TN_E_STATE: its device is not measured. */
tn_status plan_rank_speed(const char *path, const tn_model_params *model_params, const tn_session_params *params,
                          double prompt, struct rank_figures *figures);

/* The figures of all ranks, combined. */
struct ranks_times {
    double slowest_prefill, slowest_decode; /* seconds of the slowest rank */
    double all_prefill, all_decode; /* SPLIT_LAYERS: of one rank with all layers; SPLIT_STAGES: of all stages */
    double rows, seqs;              /* tokens of a micro-batch and of a step */
};
struct split_speed {
    double prefill, decode; /* tokens per second */
    double messages;        /* their share of the time of decode */
};

struct split_speed predict_split(const struct rank_links *links, const tn_model_info *info, int n,
                                 enum node_split split, const struct ranks_times *times);

/* A collective: measures the links between the ranks of a job, `per_machine` of them on each machine (0: unequal
 * numbers; then all ranks count as one machine). */
tn_status measure_links(tn_net *net, int per_machine, struct rank_links *links);

#endif
