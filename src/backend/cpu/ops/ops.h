/* The interface between op drivers and the program: the table of drivers, a driver's task, and access to rows.
 *
 * A node runs in one or more phases with a barrier between them. Within a phase all threads call the driver at the
 * same time; a driver takes its share by thread index or from a shared counter. The bits of an element do not depend
 * on the thread that computes it: drivers divide the work at boundaries that depend on shapes only. */
#ifndef TN_CPU_OPS_H
#define TN_CPU_OPS_H

#include "tenon/backend_impl.h"

#include "backend/cpu/kernels/kernels.h"

#include "base/checked.h"
#include "base/half.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

typedef struct tn__task {
    tn_tensor *node;
    const tn__cpu_kernels *kernels;
    int phase;
    int ith, nth;
    bool shared; /* an earlier node of the same step has prepared the data for this one, in the same scratch */
    unsigned char
        *scratch; /* tn__cpu_op.scratch bytes, 64-byte aligned, shared by the threads and phases of the node */
    _Atomic int32_t *next; /* counter of this node and phase, starts at 0 */
} tn__task;

typedef struct tn__cpu_op {
    void (*run)(const tn__task *task);
    /* NULL: everything the op's shape rule accepts. Otherwise false and a reason. */
    bool (*supports)(const tn_tensor *node, char *reason, size_t reason_size);
    int (*phases)(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);     /* NULL: one */
    size_t (*scratch)(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads); /* NULL: none */
    int64_t (*units)(const tn_tensor *node); /* pieces that can run in parallel; NULL: rows of the result */
    double (*cost)(const tn_tensor *node);   /* estimated ns on one thread; NULL: from the number of elements */
    /* Whether `later` can use the data prepared by all phases of `earlier` but the last; NULL: never. */
    bool (*shares)(const tn_tensor *earlier, const tn_tensor *later, const tn__cpu_kernels *kernels);
    /* For ops that give thread i the i-th of equal parts of the rows (when the threads divide their number): a bit
     * for every source of which a thread reads the same part only. Otherwise TN__NOT_BY_ROWS. Consecutive nodes of
     * this kind need no barrier between them. NULL: never. */
    int (*by_rows)(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
} tn__cpu_op;
/* TN__SCATTERED: the parts are of the sources' rows; a thread may write any row of the result. */
enum { TN__NOT_BY_ROWS = -1, TN__SCATTERED = 1 << 16 };

extern const tn__cpu_op tn__cpu_ops[TN_OP_COUNT];

/* ---- Shares ---- */

/* Elements or rows begin…end-1 of `total` for this thread. */
static inline void tn__task_share(const tn__task *task, int64_t total, int64_t *begin, int64_t *end) {
    int64_t part = (total + task->nth - 1) / task->nth;
    *begin = TN__MIN(part * task->ith, total);
    *end = TN__MIN(*begin + part, total);
}
/* The next piece from the shared counter; the caller stops at its number of pieces. */
static inline int64_t tn__take(const tn__task *task) {
    return atomic_fetch_add_explicit(task->next, 1, memory_order_relaxed);
}

/* Scratch is divided into aligned pieces; `scratch` and `run` add up their sizes in the same order. */
enum { TN__SCRATCH_ALIGN = 64 };
static inline size_t tn__scratch_size(size_t bytes) { return tn__align_up(bytes, TN__SCRATCH_ALIGN); }

/* ---- Rows ---- */

static inline char *tn__at(const tn_tensor *t, int64_t i1, int64_t i2, int64_t i3) {
    return (char *)t->data + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
}
typedef struct tn__index {
    int64_t i1, i2, i3;
} tn__index;
/* Row number r in the order of the shape of t. */
static inline tn__index tn__row_index(const tn_tensor *t, int64_t r) {
    int64_t i1 = r % t->ne[1], rest = r / t->ne[1];
    return (tn__index){i1, rest % t->ne[2], rest / t->ne[2]};
}
static inline char *tn__row(const tn_tensor *t, int64_t r) {
    tn__index i = tn__row_index(t, r);
    return tn__at(t, i.i1, i.i2, i.i3);
}
/* Elements of a row are adjacent. */
static inline bool tn__dense_row(const tn_tensor *t) { return t->nb[0] == tn_type_bytes(t->type); }

/* Long rows are converted piece by piece; a multiple of every block size. */
enum { TN__PIECE = 1024 };

/* Element-wise work is divided into pieces of rows, so that threads can share one long row as well as many short
 * ones. */
typedef struct tn__piece {
    int64_t row, first, n;
} tn__piece;
static inline int64_t tn__pieces_per_row(const tn_tensor *t) { return (t->ne[0] + TN__PIECE - 1) / TN__PIECE; }
static inline int64_t tn__pieces(const tn_tensor *t) { return tn_nrows(t) * tn__pieces_per_row(t); }
static inline tn__piece tn__piece_at(const tn_tensor *t, int64_t piece) {
    int64_t per_row = tn__pieces_per_row(t), first = piece % per_row * TN__PIECE;
    return (tn__piece){piece / per_row, first, TN__MIN(TN__PIECE, t->ne[0] - first)};
}

/* Elements first…first+n-1 of the row at `row` as f32: a pointer into the row if it is dense f32, otherwise to
 * `buffer`, which receives the converted values. For block types `first` and `n` are whole blocks. */
const float *tn__load(const tn__cpu_kernels *kernels, const tn_tensor *t, const char *row, int64_t first, int64_t n,
                      float *buffer);
/* Stores n values starting at element `first` of the row, rounded to the tensor's type. */
void tn__store(const tn__cpu_kernels *kernels, const tn_tensor *t, char *row, int64_t first, int64_t n,
               const float *values);
/* Destination for results: the row if it is dense f32, otherwise `buffer`, for tn__store. */
static inline float *tn__target(const tn_tensor *t, char *row, int64_t first, float *buffer) {
    return t->type == TN_F32 && t->nb[0] == 4 ? (float *)(void *)row + first : buffer;
}
/* Rounds n values (whole blocks) to the type, without a search for the best scale. */
void tn__quantize(const tn__cpu_kernels *kernels, tn_type type, const float *values, void *to, int64_t n);
/* Element i of a row of integers (i8 i16 i32 i64). */
int64_t tn__load_int(const tn_tensor *t, const char *row, int64_t i);

/* ---- Checks shared by `supports` ---- */

bool tn__refuse(char *reason, size_t size, const char *format, ...) TN_PRINTF(3, 4); /* returns false */
bool tn__readable(const tn_tensor *node, char *reason, size_t size); /* all sources can be read, the result written */

/* ---- Drivers, by family ---- */

void tn__run_copy(const tn__task *task);
int64_t tn__units_elements(const tn_tensor *node);
void tn__run_unary(const tn__task *task);
void tn__run_diag_mask(const tn__task *task);
void tn__run_binary(const tn__task *task);
void tn__run_glu(const tn__task *task);
int tn__by_rows_one(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int tn__by_rows_binary(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int tn__by_rows_glu(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);

void tn__run_sum(const tn__task *task);
int tn__phases_two(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
size_t tn__scratch_row_sums(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_source_rows(const tn_tensor *node);
double tn__cost_source(const tn_tensor *node);
void tn__run_sum_rows(const tn__task *task);
void tn__run_cumsum(const tn__task *task);
void tn__run_argmax(const tn__task *task);
void tn__run_argsort(const tn__task *task);
size_t tn__scratch_argsort(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
void tn__run_top_k(const tn__task *task);
void tn__run_mix(const tn__task *task);
void tn__run_cross_entropy(const tn__task *task);

void tn__run_concat(const tn__task *task);
void tn__run_repeat(const tn__task *task);
void tn__run_pad(const tn__task *task);
void tn__run_roll(const tn__task *task);
void tn__run_arange(const tn__task *task);
void tn__run_region(const tn__task *task);
void tn__run_upscale(const tn__task *task);
void tn__run_timestep(const tn__task *task);

void tn__run_get_rows(const tn__task *task);
size_t tn__scratch_get_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
void tn__run_set_rows(const tn__task *task);
int64_t tn__units_set_rows(const tn_tensor *node);
double tn__cost_set_rows(const tn_tensor *node);
int tn__by_rows_get_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int tn__by_rows_set_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
void tn__run_add_id(const tn__task *task);

void tn__run_norm(const tn__task *task);
void tn__run_group_norm(const tn__task *task);
void tn__run_hadamard(const tn__task *task);
int64_t tn__units_groups(const tn_tensor *node);
void tn__run_soft_max(const tn__task *task);
size_t tn__scratch_rows(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
float tn__head_slope(int64_t head, int64_t heads, float max_bias); /* ALiBi slope of a head */
void tn__run_rope(const tn__task *task);
size_t tn__scratch_rope(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
bool tn__supports_rope(const tn_tensor *node, char *reason, size_t size);

void tn__run_mul_mat(const tn__task *task);
bool tn__supports_mul_mat(const tn_tensor *node, char *reason, size_t size);
int tn__phases_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
size_t tn__scratch_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
bool tn__shares_mul_mat(const tn_tensor *earlier, const tn_tensor *later, const tn__cpu_kernels *kernels);
int tn__by_rows_mul_mat(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_mul_mat(const tn_tensor *node);
double tn__cost_mul_mat(const tn_tensor *node);
void tn__run_out_prod(const tn__task *task);
size_t tn__scratch_out_prod(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
double tn__cost_out_prod(const tn_tensor *node);
void tn__run_mul_mat_id(const tn__task *task);
bool tn__supports_mul_mat_id(const tn_tensor *node, char *reason, size_t size);
int tn__phases_mul_mat_id(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
size_t tn__scratch_mul_mat_id(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
double tn__cost_mul_mat_id(const tn_tensor *node);

void tn__run_im2col(const tn__task *task);
void tn__run_conv(const tn__task *task);
size_t tn__scratch_conv(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_conv(const tn_tensor *node);
double tn__cost_conv(const tn_tensor *node);
void tn__run_conv_transpose(const tn__task *task);
void tn__run_pool(const tn__task *task);

void tn__run_attention(const tn__task *task);
int tn__phases_attention(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
size_t tn__scratch_attention(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
bool tn__supports_attention(const tn_tensor *node, char *reason, size_t size);
double tn__cost_attention(const tn_tensor *node);

void tn__run_select_positions(const tn__task *task);
int tn__phases_select_positions(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
size_t tn__scratch_select_positions(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_select_positions(const tn_tensor *node);
double tn__cost_select_positions(const tn_tensor *node);

void tn__run_custom(const tn__task *task);
int64_t tn__units_custom(const tn_tensor *node);
double tn__cost_custom(const tn_tensor *node);

void tn__run_causal_conv(const tn__task *task);
int64_t tn__units_causal_conv(const tn_tensor *node);
double tn__cost_causal_conv(const tn_tensor *node);
void tn__run_linear_attention(const tn__task *task);
size_t tn__scratch_linear_attention(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_linear_attention(const tn_tensor *node);
double tn__cost_linear_attention(const tn_tensor *node);
void tn__run_selective_scan(const tn__task *task);
size_t tn__scratch_selective_scan(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_selective_scan(const tn_tensor *node);
double tn__cost_selective_scan(const tn_tensor *node);
void tn__run_rwkv7(const tn__task *task);
size_t tn__scratch_rwkv7(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads);
int64_t tn__units_rwkv7(const tn_tensor *node);
double tn__cost_rwkv7(const tn_tensor *node);

#endif
