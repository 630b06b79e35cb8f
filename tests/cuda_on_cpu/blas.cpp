// cuBLASLt, the functions that the backend calls: a matmul in plain loops with sums in f32.
#include "queue.h"

#include <vector>

using namespace emul;

namespace {
struct description {
    bool transposed_a, transposed_b;
};
struct matrix {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t stride;
};
} // namespace

static std::vector<float> column_of(const matrix &m, const void *data, uint64_t column) {
    std::vector<float> out(m.rows);
    for (uint64_t i = 0; i < m.rows; i++) {
        size_t at = (size_t)column * (size_t)m.stride + i;
        switch (m.type) {
        case CUDA_R_16F: out[i] = __half2float(((const __half *)data)[at]); break;
        case CUDA_R_16BF: out[i] = __bfloat162float(((const __nv_bfloat16 *)data)[at]); break;
        default: out[i] = ((const float *)data)[at];
        }
    }
    return out;
}
static float dot(const std::vector<float> &a, const std::vector<float> &b) {
    float part[8] = {}, sum = 0;
    size_t n = a.size(), i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++) part[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum += a[i] * b[i];
    for (float p : part) sum += p;
    return sum;
}
static void multiply(const matrix &a, const void *ad, const matrix &b, const void *bd, const matrix &c,
                     const float *cd, const matrix &d, float *dd, float alpha, float beta) {
    std::vector<std::vector<float>> right;
    for (uint64_t j = 0; j < b.columns; j++) right.push_back(column_of(b, bd, j));
    for (uint64_t i = 0; i < a.columns; i++) {
        std::vector<float> left = column_of(a, ad, i);
        for (uint64_t j = 0; j < b.columns; j++) {
            const float value = alpha * dot(left, right[j]);
            dd[j * (uint64_t)d.stride + i] = beta == 0 ? value : value + beta * cd[j * (uint64_t)c.stride + i];
        }
    }
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = (cublasLtHandle_t) new int(0);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    delete (int *)h;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = (cublasLtMatmulDesc_t) new description{false, false};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete (description *)d;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t) {
    bool transposed = *(const cublasOperation_t *)value == CUBLAS_OP_T;
    if (what == CUBLASLT_MATMUL_DESC_TRANSA)
        ((description *)d)->transposed_a = transposed;
    else if (what == CUBLASLT_MATMUL_DESC_TRANSB)
        ((description *)d)->transposed_b = transposed;
    else
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
    if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (stride < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    *out = (cublasLtMatrixLayout_t) new matrix{type, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t m) {
    delete (matrix *)m;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = (cublasLtMatmulPreference_t) new int(0);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete (int *)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t) {
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *count) {
    memset((void *)results, 0, sizeof *results);
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    description *how = (description *)desc;
    matrix ma = *(matrix *)la, mb = *(matrix *)lb, mc = *(matrix *)lc, md = *(matrix *)ld;
    if (!how->transposed_a || how->transposed_b || md.type != CUDA_R_32F || mc.type != CUDA_R_32F ||
        ma.rows != mb.rows || md.rows != ma.columns || md.columns != mb.columns)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    float x = *(const float *)alpha, y = *(const float *)beta;
    std::lock_guard<std::recursive_mutex> hold(lock);
    queue_work(stream, [=]() {
        if (workspace_bytes) memset(workspace, 0xff, workspace_bytes < 4096 ? workspace_bytes : 4096);
        multiply(ma, a, mb, b, mc, (const float *)c, md, (float *)d, x, y);
    });
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
