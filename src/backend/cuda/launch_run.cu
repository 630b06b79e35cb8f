// Running launch lists: the loop, and what each kind of record calls.
#include "backend/cuda/cuda.cuh"
#include "backend/cuda/launch_list.cuh"

static tn_status run_kernel_record(const launch_list &l, const launch_record &r, const launch_target &target) {
    if (r.shape.raises_limit)
        TN_TRY(cuda_check(
            cudaFuncSetAttribute(r.function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)r.shape.shared),
            r.name.base));
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = r.shape.grid;
    config.blockDim = dim3(r.shape.threads);
    config.dynamicSmemBytes = r.shape.shared;
    config.stream = target.stream;
    config.attrs = attributes;
    if (r.shape.cooperative) {
        attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
        attributes[config.numAttrs++].val.cooperative = 1;
    }
    if (r.shape.early && !target.strict) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    return cuda_check(r.call(&config, r.function, l.bytes + r.arguments), r.name.base);
}

// The algorithm is the library's first choice for these sizes.
static tn_status run_blas_matmul(const blas_matmul &p, const launch_target &target) {
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatrixLayout_t la = NULL, lb = NULL, lc = NULL, lr = NULL;
    cublasLtMatmulPreference_t preference = NULL;
    cudaDataType_t data = p.type == TN_F32 ? CUDA_R_32F : p.type == TN_BF16 ? CUDA_R_16BF : CUDA_R_16F;
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtMatmulHeuristicResult_t algorithm;
    int count = 0;
    const float one = 1, zero = 0;
    cublasStatus_t status = cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status)
        status = cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    if (!status) status = cublasLtMatrixLayoutCreate(&la, data, (uint64_t)p.k, (uint64_t)p.m, p.lda);
    if (!status) status = cublasLtMatrixLayoutCreate(&lb, data, (uint64_t)p.k, (uint64_t)p.n, p.ldb);
    if (!status) status = cublasLtMatrixLayoutCreate(&lc, CUDA_R_32F, (uint64_t)p.m, (uint64_t)p.n, p.ldc);
    if (!status && p.residual)
        status = cublasLtMatrixLayoutCreate(&lr, CUDA_R_32F, (uint64_t)p.m, (uint64_t)p.n, p.ldr);
    if (!status) status = cublasLtMatmulPreferenceCreate(&preference);
    if (!status)
        status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &p.workspace_bytes, sizeof p.workspace_bytes);
    if (!status)
        status = cublasLtMatmulAlgoGetHeuristic(target.blas, desc, la, lb, lr ? lr : lc, lc, preference, 1,
                                                &algorithm, &count);
    if (!status && count == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!status)
        status =
            cublasLtMatmul(target.blas, desc, &one, p.a, la, p.b, lb, lr ? &one : &zero, lr ? p.residual : p.c,
                           lr ? lr : lc, p.c, lc, &algorithm.algo, p.workspace, p.workspace_bytes, target.stream);
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    if (lr) cublasLtMatrixLayoutDestroy(lr);
    if (lc) cublasLtMatrixLayoutDestroy(lc);
    if (lb) cublasLtMatrixLayoutDestroy(lb);
    if (la) cublasLtMatrixLayoutDestroy(la);
    if (desc) cublasLtMatmulDescDestroy(desc);
    return status ? tn_fail(TN_E_DEVICE, "cuBLASLt failed with status %d for %lld×%lld×%lld", (int)status,
                            (long long)p.m, (long long)p.n, (long long)p.k)
                  : TN_OK;
}

tn_status launch_record_run(const launch_list &l, const launch_record &r, const launch_target &target) {
    switch (r.kind) {
    case LAUNCH_KERNEL: return run_kernel_record(l, r, target);
    case LAUNCH_MATMUL: return run_blas_matmul(*(const blas_matmul *)(l.bytes + r.arguments), target);
    default:
        return cuda_check(
            cudaMemcpyAsync(r.copy_to, r.copy_from, r.copy_bytes, cudaMemcpyDeviceToDevice, target.stream), "copy");
    }
}
tn_status launch_records_run(const launch_list &l, size_t begin, size_t end, const launch_target &target) {
    for (size_t i = begin; i < end; i++) TN_TRY(launch_record_run(l, l.records[i], target));
    return TN_OK;
}
