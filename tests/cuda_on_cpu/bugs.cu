// Tests of the emulator: kernels with one bug each, which it must detect, and the same kernels without, which must
// pass.
#include <cuda_runtime.h>
extern "C" {
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
}
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 256 };

static float *on_device(size_t n) {
    float *data;
    assert_int_equal(cudaMalloc((void **)&data, n * 4), cudaSuccess);
    assert_int_equal(cudaMemset(data, 0, n * 4), cudaSuccess);
    return data;
}
static void read_back(float *to, const float *from, size_t n) {
    assert_int_equal(cudaMemcpy(to, from, n * 4, cudaMemcpyDeviceToHost), cudaSuccess);
}
// Runs `bug` in a child process, which must end with a message that contains `text` and `kernel`.
static void assert_detected(void (*bug)(void), const char *text, const char *kernel) {
    int pipes[2], status;
    char message[4096] = "";
    size_t n = 0;
    ssize_t more;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        close(pipes[0]);
        bug();
        cudaDeviceSynchronize();
        _exit(0);
    }
    close(pipes[1]);
    while ((more = read(pipes[0], message + n, sizeof message - 1 - n)) > 0) n += (size_t)more;
    close(pipes[0]);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 99 || !strstr(message, text) || !strstr(message, kernel))
        fail_msg("status %d, expected \"%s\" and \"%s\" in: %s", status, text, kernel, message);
}

// ---- Memory ----

__global__ static void read_wide(const char *x, float *y) {
    float4 v = *(const float4 *)x;
    *y = v.x + v.y + v.z + v.w;
}
static void misaligned(void) {
    float *x = on_device(16), *y = on_device(1);
    read_wide<<<1, 1>>>((const char *)x + 4, y);
}
__global__ static void count_up(float *x, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = (float)i;
}
static void beyond_the_end(void) {
    float *x = on_device(N);
    count_up<<<2, N>>>(x, 2 * N);
}
static void behind_the_end(void) {
    float *x = on_device(N - 1); // 1020 bytes: allocations are rounded up to 256 bytes, so no page fault detects it
    count_up<<<1, N>>>(x, N);
    cudaFree(x);
}
static void after_the_end(void) {
    float *x = on_device(N);
    cudaFree(x);
    count_up<<<1, N>>>(x, N);
}
__global__ static void fill_rows(float *y, int columns) {
    __shared__ float shared[4][8];
    for (int i = 0; i < columns; i++) shared[threadIdx.x][i] = (float)i;
    *y = shared[0][0];
}
static void beyond_a_row(void) { fill_rows<<<1, 4>>>(on_device(1), 9); }
static void accesses_are_checked(void **) {
    assert_detected(misaligned, "misaligned", "kernel void read_wide");
    assert_detected(beyond_the_end, "unmapped memory", "kernel void count_up");
    assert_detected(beyond_a_row, "out of bounds", "kernel void fill_rows");
    assert_detected(behind_the_end, "past the end", "1020 bytes");
    assert_detected(after_the_end, "unmapped memory", "kernel void count_up");
    float *x = on_device(N), y[N];
    count_up<<<2, N>>>(x, N);
    read_back(y, x, N);
    for (int i = 0; i < N; i++) assert_true(y[i] == (float)i);
    assert_int_equal(cudaFree(x), cudaSuccess);
}

// ---- Waiting ----

template <bool WAITS> __global__ static void neighbour(float *y) {
    __shared__ float shared[N];
    shared[threadIdx.x] = (float)threadIdx.x;
    if (WAITS) __syncthreads();
    y[threadIdx.x] = shared[(threadIdx.x + 1) % N];
}
static void a_missing_barrier_shows(void **) {
    float *x = on_device(N), y[N];
    int wrong[2] = {0, 0};
    for (int waits = 0; waits < 2; waits++) {
        if (waits)
            neighbour<true><<<1, N>>>(x);
        else
            neighbour<false><<<1, N>>>(x);
        read_back(y, x, N);
        for (int i = 0; i < N; i++) wrong[waits] += !(y[i] == (float)((i + 1) % N));
    }
    assert_true(wrong[0] > N / 2);
    assert_int_equal(wrong[1], 0);
    cudaFree(x);
}
__global__ static void half_a_shuffle(float *y) {
    float x = (float)threadIdx.x;
    if (threadIdx.x < 16)
        x = __shfl_xor_sync(0xffffffffu, x, 1);
    else
        __syncthreads();
    y[threadIdx.x] = x;
}
static void shuffle_of_some(void) { half_a_shuffle<<<1, 32>>>(on_device(32)); }
__global__ static void two_things(float *y) {
    float x = (float)threadIdx.x;
    if (threadIdx.x < 16)
        x = __shfl_xor_sync(0xffffffffu, x, 1);
    else
        __syncwarp();
    y[threadIdx.x] = x;
}
static void shuffle_and_wait(void) { two_things<<<1, 32>>>(on_device(32)); }
__global__ static void wait_for_ever(const unsigned *flag) {
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    while (!seen);
}
static void endless(void) { wait_for_ever<<<1, 32>>>((const unsigned *)on_device(1)); }
static void waiting_for_ever_ends(void **) {
    assert_detected(shuffle_of_some, "wait for each other", "half_a_shuffle");
    assert_detected(shuffle_and_wait, "different things", "two_things");
    assert_detected(endless, "wait for each other", "wait_for_ever");
}
// Blocks of a cooperative grid run concurrently.
__global__ static void in_turn(unsigned *turn) {
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(turn) : "memory");
    while (seen != gridDim.x - 1 - blockIdx.x);
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
}
static void cooperative_blocks_run_together(void **) {
    unsigned *turn = (unsigned *)on_device(1), end;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4);
    config.blockDim = dim3(1);
    config.attrs = &attribute;
    config.numAttrs = 1;
    assert_int_equal(cudaLaunchKernelEx(&config, in_turn, turn), cudaSuccess);
    read_back((float *)&end, (const float *)turn, 1);
    assert_int_equal(end, 4);
    config.gridDim = dim3(1000);
    assert_int_equal(cudaLaunchKernelEx(&config, in_turn, turn), cudaErrorCooperativeLaunchTooLarge);
    cudaGetLastError();
    cudaFree(turn);
}

// ---- Asynchronous copies ----

template <bool WAITS> __global__ static void copy_small(const float *x, float *y) {
    __shared__ __align__(16) float shared[4 * 32];
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared + 4 * threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(x + 4 * threadIdx.x) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (WAITS) asm volatile("cp.async.wait_group 0;" ::: "memory");
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = shared[4 * threadIdx.x + i];
}
enum { TOO_EARLY = 1, OVERWRITES, LEAVES };
template <int MISTAKE> __global__ static void copy_bulk(const float *x, float *y) {
    __shared__ __align__(16) float shared[128];
    __shared__ __align__(8) uint64_t full;
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&full), to = (uint32_t)__cvta_generic_to_shared(shared);
    auto fetch = [&](const float *from) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(512) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(from), "r"(512), "r"(barrier)
            : "memory");
    };
    auto wait = [&](uint32_t parity) {
        uint32_t done;
        do
            asm volatile(
                "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                : "=r"(done)
                : "r"(barrier), "r"(parity)
                : "memory");
        while (!done);
    };
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
        fetch(x);
    }
    __syncthreads();
    if (MISTAKE != TOO_EARLY) wait(0);
    __syncthreads();
    if (MISTAKE == OVERWRITES && threadIdx.x == 0) fetch(x);
    y[threadIdx.x] = shared[threadIdx.x];
    if (MISTAKE == LEAVES && threadIdx.x == 0) fetch(x);
    if (MISTAKE == TOO_EARLY) wait(0);
    if (MISTAKE == OVERWRITES) wait(1);
}
static void ends_before_copies(void) { copy_bulk<LEAVES><<<1, 128>>>(on_device(128), on_device(128)); }
static int wrong_copies(const float *x, float *y) {
    float a[128], b[128];
    int wrong = 0;
    read_back(a, x, 128);
    read_back(b, y, 128);
    for (int i = 0; i < 128; i++) wrong += a[i] != b[i];
    return wrong;
}
static void copies_are_waited_for(void **) {
    float *x = on_device(128), *y = on_device(128);
    count_up<<<1, 128>>>(x, 128);
    copy_small<true><<<1, 32>>>(x, y);
    assert_int_equal(wrong_copies(x, y), 0);
    copy_small<false><<<1, 32>>>(x, y);
    assert_int_equal(wrong_copies(x, y), 128);
    copy_bulk<0><<<1, 128>>>(x, y);
    assert_int_equal(wrong_copies(x, y), 0);
    copy_bulk<TOO_EARLY><<<1, 128>>>(x, y);
    assert_true(wrong_copies(x, y) > 0);
    copy_bulk<OVERWRITES><<<1, 128>>>(x, y);
    assert_true(wrong_copies(x, y) > 0);
    assert_detected(ends_before_copies, "before 1 of its copies", "copy_bulk");
    cudaFree(x);
    cudaFree(y);
}

// ---- Limits ----

__global__ static void __launch_bounds__(64) at_most_64(float *y) { y[threadIdx.x] = 1; }
static void too_many_threads(void) { at_most_64<<<1, 128>>>(on_device(128)); }
__global__ static void with_dynamic_shared(float *y, int n) {
    extern __shared__ float values[];
    values[n - 1] = 3;
    *y = values[n - 1];
}
static void more_shared_than_requested(void) { with_dynamic_shared<<<1, 1, 1024>>>(on_device(1), 257); }
static void limits_are_kept(void **) {
    float *y = on_device(1), value;
    with_dynamic_shared<<<1, 1, 1024>>>(y, 256);
    read_back(&value, y, 1);
    assert_true(value == 3);
    assert_detected(too_many_threads, "launch bounds", "at_most_64");
    assert_detected(more_shared_than_requested, "unmapped memory", "with_dynamic_shared");
    with_dynamic_shared<<<1, 1, 100 << 10>>>(y, 1);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(
        cudaFuncSetAttribute(with_dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10),
        cudaSuccess);
    with_dynamic_shared<<<1, 1, 100 << 10>>>(y, 25600);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(
        cudaFuncSetAttribute(with_dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 300 << 10),
        cudaErrorInvalidValue);
    with_dynamic_shared<<<1, 2048>>>(y, 1);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    with_dynamic_shared<<<0, 1>>>(y, 1);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    cudaFree(y);
}

// ---- Streams ----

__global__ static void add_one(float *x) { *x += 1; }
static void nothing_runs_before_it_is_waited_for(void **) {
    cudaStream_t a, b;
    cudaEvent_t done;
    float *x = on_device(1), *pinned;
    assert_int_equal(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaMallocHost((void **)&pinned, 4), cudaSuccess);
    *pinned = -1;
    add_one<<<1, 1, 0, a>>>(x);
    cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, b); // does not wait for a
    cudaStreamSynchronize(b);
    assert_true(*pinned == 0);
    cudaEventRecord(done, a);
    cudaStreamWaitEvent(b, done, 0);
    cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, b);
    assert_true(*pinned == 0);
    cudaStreamSynchronize(b);
    assert_true(*pinned == 1);
    // A graph is what was captured, as often as it is launched.
    cudaGraph_t graph;
    cudaGraphExec_t program;
    cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
    add_one<<<1, 1, 0, a>>>(x);
    add_one<<<1, 1, 0, a>>>(x);
    void *none;
    assert_int_equal(cudaMalloc(&none, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(a, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&program, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; i++) cudaGraphLaunch(program, a);
    cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, a);
    cudaStreamSynchronize(a);
    assert_true(*pinned == 7);
    cudaGraphExecDestroy(program);
    cudaGraphDestroy(graph);
    cudaEventDestroy(done);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
    cudaFreeHost(pinned);
    cudaFree(x);
}

// A grid that may start early must wait before it reads what the previous grid writes.
template <bool WAITS> __global__ static void next_number(const float *x, float *y) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (WAITS) asm volatile("griddepcontrol.wait;" ::: "memory");
    float value = *x;
    if (!WAITS) asm volatile("griddepcontrol.wait;" ::: "memory");
    *y = value + 1;
}
static void reading_before_the_wait_shows(void **) {
    float *x = on_device(4), y[4];
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.attrs = &attribute;
    config.numAttrs = 1;
    for (int round = 0; round < 2;
         round++) // the emulator learns in the first round that the kernel lets others start
        for (int i = 0; i < 3; i++) cudaLaunchKernelEx(&config, next_number<true>, (const float *)x + i, x + i + 1);
    read_back(y, x, 4);
    assert_true(y[1] == 1 && y[2] == 2 && y[3] == 3);
    cudaMemset(x, 0, 16);
    for (int i = 0; i < 3; i++)
        cudaLaunchKernelEx(&config, i == 1 ? next_number<false> : next_number<true>, (const float *)x + i, x + i + 1);
    read_back(y, x, 4);
    assert_true(y[1] == 1 && y[2] == 1 && y[3] == 2);
    cudaFree(x);
}

// ---- Tensor cores ----

// 16×16 of a times 16×8 of b, through ldmatrix.
__global__ static void one_tile(const float *a, const float *b, float *c) {
    __shared__ __align__(16) __half shared_a[16][16], shared_b[16][8]; // b by rows of k
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32) shared_a[i / 16][i % 16] = __float2half_rn(a[i]);
    for (int i = lane; i < 128; i += 32) shared_b[i / 8][i % 8] = __float2half_rn(b[i]);
    __syncwarp();
    uint32_t x[4], y[2], at = (uint32_t)__cvta_generic_to_shared(&shared_a[lane % 16][lane / 16 * 8]),
                         bt = (uint32_t)__cvta_generic_to_shared(&shared_b[lane % 16][0]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(bt));
    float s[4] = {1, 1, 1, 1};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    for (int e = 0; e < 4; e++) c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = s[e];
}
static void tiles_are_multiplied(void **) {
    float *a = on_device(256), *b = on_device(128), *c = on_device(128), result[128];
    count_up<<<1, 256>>>(a, 256);
    count_up<<<1, 128>>>(b, 128);
    one_tile<<<1, 32>>>(a, b, c);
    read_back(result, c, 128);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float sum = 1;
            for (int k = 0; k < 16; k++) sum += (float)(16 * i + k) * (float)(8 * k + j);
            assert_true(result[8 * i + j] == sum);
        }
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accesses_are_checked),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(waiting_for_ever_ends),
        cmocka_unit_test(cooperative_blocks_run_together),
        cmocka_unit_test(copies_are_waited_for),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(nothing_runs_before_it_is_waited_for),
        cmocka_unit_test(reading_before_the_wait_shows),
        cmocka_unit_test(tiles_are_multiplied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
