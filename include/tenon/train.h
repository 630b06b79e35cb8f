/* Training: gradients of a graph, and optimizer steps over its parameters.
 *
 *     tn_tensor *w = tn_param(arena, TN_F32, 784, 10);                       // a parameter
 *     tn_tensor *loss = tn_cross_entropy_loss(arena, tn_mul_mat(arena, w, x), labels);
 *     TN_TRY(tn_trainer_new(loss, &params, &trainer));                       // plans and takes all memory
 *     TN_TRY(tn_tensor_set(w, start));
 *     for (…) { TN_TRY(tn_tensor_set(x, …)); TN_TRY(tn_trainer_step(trainer, &value)); }
 *
 * Parameters are f32. Gradients are f32 nodes of ordinary ops: they are planned, scheduled and run like all others,
 * on any device. */
#ifndef TENON_TRAIN_H
#define TENON_TRAIN_H

#include "tenon/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Gradients ---- */

/* A parameter: a leaf that is learned, tn_param(a, TN_F32, 64, 10). Its memory belongs to the caller or to the
 * trainer. */
#ifndef __cplusplus
#define tn_param(arena, type, ...) tn_mark(tn_tensor_nd(arena, type, __VA_ARGS__), TN_FLAG_PARAM)
#endif

/* Whether this op has a gradient. Step functions (argmax, sgn, …) and ops on integers have a zero gradient, which is
 * not an error. An op whose gradient is not implemented (transposed convolutions, set_rows) makes
 * tn_graph_backward fail. */
TN_API bool tn_op_has_gradient(tn_op op);

/* The largest number of tensors that the gradient of one node adds. Use it to size the arena and the graph. */
enum { TN_BACKWARD_TENSORS = 48 };

/* Adds to the graph the nodes that compute the gradient of `loss`, one f32 value in the graph, with respect to every
 * tensor flagged TN_FLAG_PARAM that it depends on, and to all tensors in between. The planner keeps forward results
 * until the gradients that read them are computed. TN_E_UNSUPPORTED names an op without a gradient; TN_E_FULL: graph
 * or arena are too small; TN_E_INVALID: the loss is not a single value or depends on no parameter. On failure the
 * graph is unchanged. */
TN_API tn_status tn_graph_backward(tn_arena *arena, tn_graph *graph, tn_tensor *loss) TN_MUST_CHECK;
/* After tn_graph_backward: the gradient of the loss with respect to a tensor of the graph, f32, contiguous, with the
 * tensor's shape. NULL: there is none. To read it after a run, flag it TN_FLAG_OUTPUT before planning. */
TN_API tn_tensor *tn_graph_gradient(const tn_graph *graph, const tn_tensor *tensor);

/* ---- Trainer ---- */

typedef struct tn_trainer tn_trainer;

typedef enum tn_optimizer {
    TN_ADAMW, /* first and second moments with bias correction; decoupled weight decay */
    TN_SGD    /* with momentum */
} tn_optimizer;

typedef struct tn_trainer_params {
    tn_optimizer optimizer;
    float rate;              /* learning rate of the first update; tn_trainer_set_rate changes it */
    float beta1, beta2, eps; /* AdamW */
    float momentum;          /* SGD; 0: none */
    float decay;             /* of weights, per update: w -= rate * decay * w. Only matrices decay, not vectors. */
    float clip;              /* largest gradient norm, over all parameters; 0: not clipped */
    int32_t accumulate;      /* steps whose gradients are averaged for one update */
    const char *devices[16]; /* in order of preference; "cpu" is added at the end when missing */
    int n_threads;           /* 0: one per core */
    /* Max bytes on the first device: state, graphs and scratch; inputs, too, if it is the host. Where the graphs need
     * more, results of the forward pass are recomputed in the backward pass (recompute.h), with the same bits. 0: no
     * limit. */
    size_t budget;
} tn_trainer_params;
/* AdamW, rate 0.001, betas 0.9 and 0.999, eps 1e-8, decay 0.01, clip 1, one step per update, the CPU. */
TN_API tn_trainer_params tn_trainer_params_default(void);

/* Builds the gradients of `loss`, plans forward, backward and update, and takes all memory: that of the graphs, and
 * for every parameter its accumulated gradient, its moments, and the parameter itself where it has no memory yet. The
 * arena of `loss` has no_alloc and must outlive the trainer. A trainer belongs to one thread at a time. TN_E_TOO_BIG:
 * the budget cannot be met; the message has the smallest one that can. */
TN_API tn_status tn_trainer_new(tn_tensor *loss, const tn_trainer_params *params, tn_trainer **trainer) TN_MUST_CHECK;
TN_API void tn_trainer_free(tn_trainer *trainer);
/* After the inputs are set: computes loss and gradients; every `accumulate`-th call updates the parameters. `loss`
 * may be NULL. TN_E_NOT_FINITE when the loss or the gradient norm is NaN or infinite: the step is dropped and
 * parameters stay as they were. */
TN_API tn_status tn_trainer_step(tn_trainer *trainer, float *loss) TN_MUST_CHECK;
/* The loss alone, e.g. of validation data. */
TN_API tn_status tn_trainer_evaluate(tn_trainer *trainer, float *loss) TN_MUST_CHECK;
TN_API void tn_trainer_set_rate(tn_trainer *trainer, float rate);
/* The gradient norm at the last update, before clipping. */
TN_API float tn_trainer_gradient_norm(const tn_trainer *trainer);
TN_API uint64_t tn_trainer_updates(const tn_trainer *trainer);

typedef struct tn_trainer_memory {
    size_t n_params;         /* learned values */
    size_t state;            /* bytes of parameters, accumulators and moments that the trainer took */
    size_t compute, scratch; /* bytes of the graphs, all devices */
    /* Effect of the budget: bytes saved in `compute`, nodes of a step that are recomputed, and the predicted
     * increase of a step's time (0.1 is 10%). */
    size_t saved, n_recomputed;
    double added_time;
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
