/* Training: gradients of a graph, and steps that make its parameters better.
 *
 *     tn_tensor *w = tn_param(arena, TN_F32, 784, 10);                       // what is learned
 *     tn_tensor *loss = tn_cross_entropy_loss(arena, tn_mul_mat(arena, w, x), labels);
 *     TN_TRY(tn_trainer_new(loss, &params, &trainer));                       // plans and takes all memory
 *     TN_TRY(tn_tensor_set(w, start));
 *     for (…) { TN_TRY(tn_tensor_set(x, …)); TN_TRY(tn_trainer_step(trainer, &value)); }
 *
 * Parameters are f32. Gradients are f32 nodes made of ordinary ops, so they are planned, scheduled and run like
 * everything else, on any device. */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include "tenon/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Gradients ----------------------------------------------------------------------------------------------- */

/* A leaf that is learned: tn_param(a, TN_F32, 64, 10). Its memory is the caller's, or the trainer's. */
#ifndef __cplusplus
#define tn_param(arena, type, ...) tn_mark(tn_tensor_nd(arena, type, __VA_ARGS__), TN_FLAG_PARAM)
#endif

/* Whether a gradient can flow through this op. Where it has none because it is a step (argmax, sgn, …) or reads whole
 * numbers, nothing flows and nothing is wrong; where it is merely not there (transposed convolutions, the KV cache's
 * set_rows), tn_graph_backward says so. */
TN_API bool tn_op_has_gradient(tn_op op);

/* Tensors that the gradient of one node takes at most: to size the arena, and the graph. */
enum { TN_BACKWARD_TENSORS = 48 };

/* Adds to the graph the nodes that compute the gradient of `loss`, one f32 value in the graph, with respect to every
 * tensor flagged TN_FLAG_PARAM that it depends on, and to all between. Forward results that gradients read live until
 * then; the planner sees to it. TN_E_UNSUPPORTED names an op without a gradient, TN_E_FULL a graph or arena without
 * room, TN_E_INVALID a loss that is no single value or depends on no parameter. On failure the graph is as it was. */
TN_API tn_status tn_graph_backward(tn_arena *arena, tn_graph *graph, tn_tensor *loss) TN_MUST_CHECK;
/* The gradient of the loss with respect to a tensor of a graph that tn_graph_backward was called on: f32, contiguous,
 * of the tensor's shape. NULL where none flows. Flag it TN_FLAG_OUTPUT before planning to read it after a run. */
TN_API tn_tensor *tn_graph_gradient(const tn_graph *graph, const tn_tensor *tensor);

/* ---- Trainer ------------------------------------------------------------------------------------------------- */

typedef struct tn_trainer tn_trainer;

typedef enum tn_optimizer {
    TN_ADAMW, /* moments of first and second order with bias correction; decay apart from the gradient */
    TN_SGD    /* with momentum */
} tn_optimizer;

typedef struct tn_trainer_params {
    tn_optimizer optimizer;
    float rate;              /* learning rate of the first update; tn_trainer_set_rate changes it */
    float beta1, beta2, eps; /* AdamW */
    float momentum;          /* SGD; 0: none */
    float decay;             /* of weights, per update: w -= rate * decay * w. Only matrices decay, not vectors. */
    float clip;              /* longest gradient, all parameters taken as one vector; 0: as it is */
    int32_t accumulate;      /* gradients of so many steps are averaged before the parameters change */
    const char *devices[16]; /* in order of preference; "cpu" is added at the end when missing */
    int n_threads;           /* 0: one per core */
} tn_trainer_params;
/* AdamW, rate 0.001, betas 0.9 and 0.999, eps 1e-8, decay 0.01, clip 1, one step per update, the CPU. */
TN_API tn_trainer_params tn_trainer_params_default(void);

/* Builds the gradients of `loss`, plans forward, backward and update, and takes all memory: what graphs need, and for
 * every parameter its accumulated gradient, its moments, and the parameter itself where it has no memory yet. The
 * arena of `loss` must outlive the trainer; no_alloc. A trainer belongs to one thread at a time. */
TN_API tn_status tn_trainer_new(tn_tensor *loss, const tn_trainer_params *params, tn_trainer **trainer) TN_MUST_CHECK;
TN_API void tn_trainer_free(tn_trainer *trainer);
/* After inputs were set: loss and gradients; every `accumulate`-th time the parameters change. `loss` may be NULL. A
 * loss or gradient that is NaN or infinite is TN_E_NOT_FINITE: the step is dropped, parameters stay as they were. */
TN_API tn_status tn_trainer_step(tn_trainer *trainer, float *loss) TN_MUST_CHECK;
/* The loss alone, e.g. of data that is not learned from. */
TN_API tn_status tn_trainer_evaluate(tn_trainer *trainer, float *loss) TN_MUST_CHECK;
TN_API void tn_trainer_set_rate(tn_trainer *trainer, float rate);
/* The gradients' length at the last update, before clipping. */
TN_API float tn_trainer_gradient_norm(const tn_trainer *trainer);
TN_API uint64_t tn_trainer_updates(const tn_trainer *trainer);

typedef struct tn_trainer_memory {
    size_t n_params;         /* numbers that are learned */
    size_t state;            /* bytes of parameters, accumulators and moments that the trainer took */
    size_t compute, scratch; /* bytes of the graphs, all devices */
} tn_trainer_memory;
TN_API tn_trainer_memory tn_trainer_get_memory(const tn_trainer *trainer);

#ifdef __cplusplus
} /* extern "C" */

extern "C++" {
template <class... N> inline tn_tensor *tn_param(tn_arena *arena, tn_type type, N... dims) {
    return tn_mark(tn_tensor_nd(arena, type, dims...), TN_FLAG_PARAM);
}
}
#endif
#endif
