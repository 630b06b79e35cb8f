// The list of launches that a program is compiled to.
//
// Compiling makes no CUDA call. A record holds everything a launch needs, its arguments included, and what is printed
// about it. Running is a loop over the records; that loop is what a CUDA graph captures.
#ifndef TN_BACKEND_CUDA_LAUNCH_LIST_CUH
#define TN_BACKEND_CUDA_LAUNCH_LIST_CUH

#include "backend/cuda/description.cuh"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <tuple>

// A kernel's name and template arguments: base<type, numbers…>.
struct kernel_name {
    const char *base, *type; // type: NULL without one
    int n_numbers, numbers[3];
};
static inline kernel_name kernel_called(const char *base, const char *type = NULL) { return {base, type, 0, {}}; }
template <typename... N>
static inline kernel_name kernel_called(const char *base, const char *type, int first, N... numbers) {
    static_assert(sizeof...(N) < 3, "a kernel name holds three numbers");
    return {base, type, 1 + (int)sizeof...(N), {first, (int)numbers...}};
}

struct launch_shape {
    dim3 grid;
    unsigned threads;
    size_t shared = 0; // dynamic shared memory, bytes
    // Raises the kernel's limit of dynamic shared memory to `shared` first. Needed where static and dynamic shared
    // memory together exceed DEFAULT_SHARED.
    bool raises_limit = false;
    // The kernel may start before the one in front of it has ended; it calls grid_wait() itself.
    bool early = false;
    bool cooperative = false;
};

// C[m, n] (f32, column-major) = A[k, m]ᵀ · B[k, n], by cuBLASLt.
struct blas_matmul {
    int type; // of A and B: TN_F32, TN_F16 or TN_BF16
    const void *a, *b;
    float *c;
    const float *residual; // added to the result, with ldr; or NULL
    int64_t ldr;
    int64_t lda, ldb, ldc, m, n, k;
    void *workspace;
    size_t workspace_bytes;
};

enum launch_kind { LAUNCH_KERNEL, LAUNCH_MATMUL, LAUNCH_COPY };
typedef cudaError_t (*kernel_caller)(const cudaLaunchConfig_t *config, const void *function, const void *arguments);

struct launch_record {
    launch_kind kind;
    kernel_name name;
    launch_shape shape;
    const void *function;
    kernel_caller call;
    size_t arguments; // offset in launch_list::bytes: the arguments' tuple, or a blas_matmul
    void *copy_to;
    const void *copy_from;
    size_t copy_bytes;
    int lead;                // the node that its time is attributed to
    int first_node, n_nodes; // of launch_list::nodes: the graph nodes it computes
    int first_step, n_steps; // of launch_list::steps: a persistent decode kernel's
    // The operand that this launch converts for the nodes; NULL where it computes the nodes themselves.
    const tn_tensor *converts;
};
// One step of a persistent decode kernel, for printing.
struct launch_step {
    const char *what;
    int first_node, n_nodes;
};

struct launch_list {
    launch_record *records;
    launch_step *steps;
    int *nodes;
    char *bytes; // arguments, each aligned to 16 bytes
    size_t n_records, n_steps, n_nodes, n_bytes;
    size_t max_records, max_steps, max_nodes, max_bytes;
};

void launch_list_clear(launch_list *l); // keeps the memory
void launch_list_free(launch_list *l);
tn_status launch_list_add(launch_list *l, const launch_record &record, const void *arguments, size_t size);
tn_status launch_list_add_node(launch_list *l, int node);
tn_status launch_list_add_step(launch_list *l, const launch_step &step);
// Every launch is within the device's limits.
tn_status launch_list_check(const launch_list &l, const device_description &d);
tn_status launch_list_print(const launch_list &l, tn_tensor *const *program, FILE *out);

struct launch_target {
    cudaStream_t stream;
    cublasLtHandle_t blas;
    // Nothing starts early: memory that a kernel reads before grid_wait() may still be changing.
    bool strict;
};
tn_status launch_record_run(const launch_list &l, const launch_record &r, const launch_target &target);
tn_status launch_records_run(const launch_list &l, size_t begin, size_t end, const launch_target &target);

template <typename... P>
static cudaError_t call_kernel(const cudaLaunchConfig_t *config, const void *function, const void *arguments) {
    void (*kernel)(P...) = (void (*)(P...))function;
    const std::tuple<P...> &all = *(const std::tuple<P...> *)arguments;
    return std::apply([&](const P &...each) { return cudaLaunchKernelEx(config, kernel, P(each)...); }, all);
}

// Appends a kernel launch. Arguments are converted to the kernel's parameter types and copied.
template <typename... P, typename... A>
static inline tn_status launch_list_add_kernel(launch_list *l, const kernel_name &name, void (*kernel)(P...),
                                               const launch_shape &shape, const tn_tensor *converts, A... args) {
    static_assert(alignof(std::tuple<P...>) <= 16, "arguments are aligned to 16 bytes");
    std::tuple<P...> all((P)args...);
    launch_record r = {};
    r.kind = LAUNCH_KERNEL;
    r.name = name;
    r.shape = shape;
    r.function = (const void *)kernel;
    r.call = call_kernel<P...>;
    r.converts = converts;
    return launch_list_add(l, r, &all, sizeof all);
}

#endif
