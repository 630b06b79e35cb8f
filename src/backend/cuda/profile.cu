// Timing of launches, and printing the sums.
#include "backend/cuda/profile.cuh"

#include <stdlib.h>

struct profile {
    bool single;
    cudaEvent_t begin, end;
    double ms[2][TN_OP_COUNT]; // by op: few columns, many columns
    long count[2][TN_OP_COUNT];
};

profile *profile_new(void) {
    const char *wanted = getenv("TENON_CUDA_PROFILE");
    if (!wanted || (strcmp(wanted, "1") != 0 && strcmp(wanted, "2") != 0)) return NULL;
    profile *p = (profile *)tn_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->single = *wanted == '1';
    if (cudaEventCreate(&p->begin) != cudaSuccess || cudaEventCreate(&p->end) != cudaSuccess) {
        profile_free(p);
        return NULL;
    }
    return p;
}
void profile_free(profile *p) {
    if (!p) return;
    for (int many = 0; many < 2; many++) {
        double total = 0;
        for (int op = 0; op < TN_OP_COUNT; op++) total += p->ms[many][op];
        if (total > 0)
            fprintf(stderr, "%s: %.2f ms in all\n", many ? "more than 8 columns" : "up to 8 columns", total);
        for (int op = 0; op < TN_OP_COUNT; op++)
            if (p->count[many][op])
                fprintf(stderr, "  %-16s %8ld launches %10.2f us each %6.1f%%\n", tn_op_name((tn_op)op),
                        p->count[many][op], 1e3 * p->ms[many][op] / (double)p->count[many][op],
                        100 * p->ms[many][op] / total);
    }
    if (p->begin) cudaEventDestroy(p->begin);
    if (p->end) cudaEventDestroy(p->end);
    tn_free(p);
}
bool profile_is_single(const profile *p) { return p && p->single; }
void profile_begin(profile *p, cudaStream_t stream) {
    if (p) cudaEventRecord(p->begin, stream);
}
void profile_end(profile *p, cudaStream_t stream, const tn_tensor *node) {
    if (!p) return;
    float ms = 0;
    cudaEventRecord(p->end, stream);
    cudaEventSynchronize(p->end);
    if (cudaEventElapsedTime(&ms, p->begin, p->end) != cudaSuccess) return;
    // The dimension of tokens is the third of these ops, the second of all others.
    bool tokens_third = node->op == TN_OP_ATTENTION || node->op == TN_OP_MUL_MAT_ID ||
                        node->op == TN_OP_LINEAR_ATTENTION || node->op == TN_OP_RWKV7;
    int many = node->ne[tokens_third ? 2 : 1] > 8;
    p->ms[many][node->op] += ms;
    p->count[many][node->op]++;
}
