/* A library for LD_PRELOAD that makes system calls and allocations fail on purpose. The environment says which:
 *
 *     FAULT_MALLOC=N     the N-th allocation of the process fails; with FAULT_MALLOC_ALL=1 all later ones too
 *     FAULT_SHORT=N      reads and writes of regular files transfer at most N bytes at a time
 *     FAULT_EINTR=N      every N-th read or write is interrupted before it does anything
 *     FAULT_SPACE=N      after N bytes written to regular files the disk is full
 *     FAULT_CLOCK=1      the wall clock jumps by hours, back and forth; the monotonic clock sometimes leaps forward
 *     FAULT_TRACE=1      prints the stack of the failing allocation and of a crash on standard error
 *     FAULT_VERSION=1    the library says that it is another version
 *     FAULT_COUNT=FILE   writes the number of allocations to FILE at the end
 *     FAULT_CONTROL=FILE FILE is shared with a test and holds two 64-bit numbers: how many allocations of the
 * program and of libtenon there have been, and which one of them fails (0: none)
 *
 * It allocates nothing itself. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

static atomic_long allocations, calls, written, looks;
static long fail_at, short_by, interrupt_every, space;
static bool fail_all, jump, trace;
static char count_file[256];
static struct { _Atomic int64_t count, fail_at; } * control;
static struct {
    uintptr_t begin, end;
} own[64]; /* code of the program and its libraries: other libraries do not survive a failure, which is not ours to
              test */
static int n_own;

static long env_number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static void show_stack(void) {
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
}
static void on_crash(int signal_number) {
    show_stack();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static int note_code(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    const char *name = info->dlpi_name;
    if (*name && !strstr(name, "libtenon")) return 0;
    for (int i = 0; i < info->dlpi_phnum && n_own < 64; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        own[n_own].begin = info->dlpi_addr + part->p_vaddr;
        own[n_own++].end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
    }
    return 0;
}

static void open_control(const char *path) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    dl_iterate_phdr(note_code, NULL);
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) control = map;
}

__attribute__((constructor)) static void start(void) {
    trace = env_number("FAULT_TRACE");
    if (trace) {
        void *frame;
        backtrace(&frame, 1); /* loads the unwinder now, which allocates */
        signal(SIGSEGV, on_crash);
        signal(SIGABRT, on_crash);
    }
    fail_at = env_number("FAULT_MALLOC");
    fail_all = env_number("FAULT_MALLOC_ALL");
    short_by = env_number("FAULT_SHORT");
    interrupt_every = env_number("FAULT_EINTR");
    space = getenv("FAULT_SPACE") ? env_number("FAULT_SPACE") + 1 : 0;
    jump = env_number("FAULT_CLOCK");
    if (getenv("FAULT_COUNT")) snprintf(count_file, sizeof count_file, "%s", getenv("FAULT_COUNT"));
    if (getenv("FAULT_CONTROL")) open_control(getenv("FAULT_CONTROL"));
    atomic_store(&allocations, 0);
}

__attribute__((destructor)) static void finish(void) {
    char text[32];
    if (!count_file[0]) return;
    int file = open(count_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&allocations));
    if (file >= 0 && syscall(SYS_write, file, text, (size_t)n) != n) errno = EIO;
    if (file >= 0) close(file);
}

static bool controlled_fails(const void *caller) {
    const uintptr_t at = (uintptr_t)caller;
    for (int i = 0; i < n_own; i++)
        if (at >= own[i].begin && at < own[i].end)
            return atomic_fetch_add(&control->count, 1) + 1 == atomic_load(&control->fail_at);
    return false;
}

static bool allocation_fails(const void *caller) {
    if (control && controlled_fails(caller)) {
        if (trace) show_stack();
        errno = ENOMEM;
        return true;
    }
    long n = atomic_fetch_add(&allocations, 1) + 1;
    if (fail_at == 0 || (fail_all ? n < fail_at : n != fail_at)) return false;
    if (trace) show_stack();
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) { return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) {
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}
void *realloc(void *old, size_t size) {
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}
void *aligned_alloc(size_t align, size_t size) {
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, size);
}
int posix_memalign(void **out, size_t align, size_t size) {
    void *block = allocation_fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, size);
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}

static bool is_file(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* How many of `size` bytes may be transferred; -1 with errno for none. */
static ssize_t allowed_bytes(int fd, size_t size, bool writing) {
    if ((!short_by && !interrupt_every && !space) || size == 0 || !is_file(fd)) return (ssize_t)size;
    if (interrupt_every && atomic_fetch_add(&calls, 1) % interrupt_every == interrupt_every - 1) {
        errno = EINTR;
        return -1;
    }
    if (short_by && size > (size_t)short_by) size = (size_t)short_by;
    if (writing && space) {
        long left = space - 1 - atomic_load(&written);
        if (left <= 0) {
            errno = ENOSPC;
            return -1;
        }
        if (size > (size_t)left) size = (size_t)left;
        atomic_fetch_add(&written, (long)size);
    }
    return (ssize_t)size;
}

ssize_t read(int fd, void *to, size_t size) {
    ssize_t n = allowed_bytes(fd, size, false);
    return n < 0 ? -1 : syscall(SYS_read, fd, to, (size_t)n);
}
ssize_t write(int fd, const void *from, size_t size) {
    ssize_t n = allowed_bytes(fd, size, true);
    return n < 0 ? -1 : syscall(SYS_write, fd, from, (size_t)n);
}
ssize_t pread(int fd, void *to, size_t size, off_t at) {
    static ssize_t (*next)(int, void *, size_t, off_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pread");
    ssize_t n = allowed_bytes(fd, size, false);
    return n < 0 ? -1 : next(fd, to, (size_t)n, at);
}
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    static ssize_t (*next)(int, const void *, size_t, off_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    ssize_t n = allowed_bytes(fd, size, true);
    return n < 0 ? -1 : next(fd, from, (size_t)n, at);
}
ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t size, unsigned flags) {
    static ssize_t (*next)(int, off_t *, int, off_t *, size_t, unsigned);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "copy_file_range");
    ssize_t n = allowed_bytes(out, size, true);
    return n < 0 ? -1 : next(in, in_at, out, out_at, (size_t)n, flags);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*next)(clockid_t, struct timespec *);
    static _Atomic long leap;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, t);
    if (!jump || result != 0) return result;
    long look = atomic_fetch_add(&looks, 1);
    if (clock == CLOCK_REALTIME) t->tv_sec += (look % 3 - 1) * 7200;
    if (clock == CLOCK_MONOTONIC && look % 997 == 996)
        atomic_fetch_add(&leap, 3600); /* as after the machine was suspended */
    if (clock == CLOCK_MONOTONIC) t->tv_sec += atomic_load(&leap);
    return result;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

/* Of libtenon. */
const char *tn_version(void) {
    const char *(*real)(void) = NULL;
    void *symbol = dlsym(RTLD_NEXT, "tn_version");
    memcpy(&real, &symbol, sizeof real);
    return getenv("FAULT_VERSION") || !real ? "0.0.0-other" : real();
}
