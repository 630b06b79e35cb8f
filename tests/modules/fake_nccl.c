/* Stand-ins for NCCL and the CUDA driver: memory of the GPU is memory of the process, and ranks exchange through a
 * file. FAKE_NCCL=refuse, hang or fail: joining is refused as two ranks on one GPU are, never ends, or sums fail. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PART = 4 << 20, RANKS = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

/* ---- The driver ---- */

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = context, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 1; }
int cuStreamCreate(void **stream, unsigned flags) { return (void)flags, *stream = stream, 0; }
int cuStreamDestroy_v2(void *stream) { return stream ? 0 : 1; }
int cuStreamQuery(void *stream) { return stream ? 0 : 1; }
int cuMemAlloc_v2(unsigned long long *memory, size_t size) {
    *memory = (unsigned long long)(size_t)malloc(size);
    return *memory ? 0 : 2;
}
int cuMemFree_v2(unsigned long long memory) { return free((void *)(size_t)memory), 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream) {
    return memcpy((void *)(size_t)to, from, size), stream ? 0 : 1;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream) {
    return memcpy(to, (void *)(size_t)from, size), stream ? 0 : 1;
}
int cuGetErrorString(int result, const char **text) { return (void)result, *text = "an error of the fake driver", 0; }

/* ---- NCCL ---- */

typedef struct {
    char bytes[128];
} fake_id;
typedef struct {
    _Atomic int arrived[2];
    float parts[RANKS][PART / sizeof(float)];
} fake_region;
typedef struct {
    fake_region *region;
    int rank, n_ranks, turns;
} fake_comm;

static int fake_is(const char *what) {
    const char *mode = getenv("FAKE_NCCL");
    return mode && strcmp(mode, what) == 0;
}

const char *ncclGetErrorString(int result) {
    return result == INVALID_USAGE ? "invalid usage" : result == REMOTE_ERROR ? "remote error" : "another error";
}
int ncclGetUniqueId(fake_id *id) {
    snprintf(id->bytes, sizeof id->bytes, "/tmp/tenon-fake-nccl-%d", (int)getpid());
    const int fd = open(id->bytes, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(fake_region)) != 0) return 2;
    return close(fd), 0;
}

static void meet(fake_comm *c) {
    _Atomic int *arrived = &c->region->arrived[c->turns++ % 2];
    const int round = (c->turns - 1) / 2 + 1;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < round * c->n_ranks) nanosleep(&(struct timespec){0, 10000}, NULL);
}
int ncclCommInitRank(void **comm, int n_ranks, fake_id id, int rank) {
    if (fake_is("refuse")) return INVALID_USAGE;
    while (fake_is("hang")) pause();
    fake_comm *c = calloc(1, sizeof *c);
    const int fd = open(id.bytes, O_RDWR);
    *c = (fake_comm){mmap(NULL, sizeof(fake_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), rank, n_ranks, 0};
    close(fd);
    meet(c);
    if (rank == 0) unlink(id.bytes);
    return *comm = c, 0;
}
int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream) {
    fake_comm *c = comm;
    if (fake_is("fail")) return REMOTE_ERROR;
    if (type != 7 || op != 0 || !stream || n > PART / sizeof(float)) return INVALID_USAGE;
    memcpy(c->region->parts[c->rank], in, n * sizeof(float));
    meet(c);
    for (size_t i = 0; i < n; i++) {
        float sum = 0; /* in another order than other transports */
        for (int r = c->n_ranks - 1; r >= 0; r--) sum += c->region->parts[r][i];
        ((float *)out)[i] = sum;
    }
    meet(c);
    return 0;
}
int ncclCommGetAsyncError(void *comm, int *result) { return *result = 0, comm ? 0 : 1; }
static int leave(void *comm) {
    munmap(((fake_comm *)comm)->region, sizeof(fake_region));
    return free(comm), 0;
}
int ncclCommAbort(void *comm) { return leave(comm); }
int ncclCommDestroy(void *comm) { return leave(comm); }
