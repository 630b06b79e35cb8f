// Running a grid: a thread is a fiber, and one runs until it must wait for others. Blocks run one after the other, or
// all at once where the launch is cooperative. Everything happens in one thread of the host, so a run can be
// repeated.
#include "block.h"

#include <execinfo.h>
#include <map>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace emul {

enum : size_t { STACK = 64 << 10 };
enum {
    PATIENCE = 50000000, // looks at memory while nothing changes
    MOST_SECONDS = 20,   // of a thread between two waits
};

thread *self;
static const place nowhere = {};
const place *here = &nowhere;

static struct {
    const grid *g;
    const std::function<void()> *body;
    const char *name; // of the kernel
    limits most;
    std::vector<block *> blocks; // that run
    size_t turn;                 // whose block runs
    int alive;                   // blocks
    void *stack;                 // of run_grid
    long idle;                   // looks since something changed
    long switches;
    unsigned random; // 0: in order
} now;

// ---- Messages
// ----------------------------------------------------------------------------------------------------------------

static void say_where() {
    if (!self) return;
    fprintf(stderr, "  kernel %s\n  block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u)\n",
            now.name ? now.name : "?", here->block.x, here->block.y, here->block.z, here->blocks.x, here->blocks.y,
            here->blocks.z, here->thread.x, here->thread.y, here->thread.z, here->threads.x, here->threads.y,
            here->threads.z);
}
static void say_calls() {
    void *calls[16];
    int n = backtrace(calls, 16);
    backtrace_symbols_fd(calls, n, 2);
}
void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "\nCUDA on CPU: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    say_where();
    say_calls();
    _exit(99);
}
// Sanitizers end a bad access with an illegal instruction; guard pages with a fault.
static void on_signal(int number, siginfo_t *info, void *) {
    if (number == SIGILL)
        fail("misaligned access, or an index beyond its array");
    else
        fail("access of memory that is not there: %p", info->si_addr);
}
// A loop that waits without telling so is seen from outside.
static void *watch(void *) {
    long seen = -1;
    for (int still = 0;; still++) {
        sleep(1);
        if (!self || now.switches != seen) still = 0;
        seen = now.switches;
        if (still == MOST_SECONDS) fail("a thread runs for %d seconds and waits for nobody", MOST_SECONDS);
    }
    return NULL;
}
// While a grid runs: a test program has handlers of its own.
static const int caught[] = {SIGSEGV, SIGBUS, SIGILL};
static struct sigaction handlers[3];
static void catch_signals() {
    static char stack[64 << 10];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, NULL);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) sigaction(caught[i], &action, &handlers[i]);
}
static void leave_signals() {
    for (int i = 0; i < 3; i++) sigaction(caught[i], &handlers[i], NULL);
}

// ---- Fibers
// ----------------------------------------------------------------------------------------------------------------

extern "C" void emulated_switch(void **save, void *to);
asm(R"(
    .text
    .type emulated_switch, @function
    .hidden emulated_switch
    .globl emulated_switch
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulated_switch, . - emulated_switch
)");

static void end_thread();
static void first_call() {
    (*now.body)();
    end_thread();
}
static void prepare_stack(thread &t, char *stack) {
    void **top = (void **)(stack + STACK);
    *--top = NULL;               // nobody called
    *--top = (void *)first_call; // returned to, with the stack as after a call
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    t.stack = top;
}
static void switch_to(thread *next, void **save) {
    self = next;
    here = &next->at;
    now.switches++;
    emulated_switch(save, next->stack);
}

static unsigned random_number() {
    now.random ^= now.random << 13;
    now.random ^= now.random >> 17;
    now.random ^= now.random << 5;
    return now.random;
}
// The first set bit after `last`, around the end; a random one where the order is random.
static int next_bit(unsigned bits, int last) {
    if (now.random) last = (int)(random_number() % 32);
    unsigned after = last >= 31 ? 0 : bits & ~0u << (last + 1);
    return __builtin_ctz(after ? after : bits);
}
[[noreturn]] static void deadlock() {
    fprintf(stderr, "\nCUDA on CPU: threads wait for each other for ever\n");
    for (block *b : now.blocks)
        for (int w = 0; b->alive && w < b->n_warps; w++) {
            const warp &wa = b->warps[w];
            const thread &t = b->threads[w * WARP];
            if (!wa.alive) continue;
            fprintf(stderr, "  block (%u, %u, %u), warp %d: alive %08x, at the block's barrier %08x, spinning %08x",
                    t.at.block.x, t.at.block.y, t.at.block.z, w, wa.alive, b->at_barrier[w], wa.ready);
            for (int i = 0; i < WARP; i++)
                if (wa.waiting >> i & 1) fprintf(stderr, ", lane %d at %s of %08x", i, wa.what[i], wa.masks[i]);
            fprintf(stderr, "\n");
        }
    fail("this was the last that ran");
}
// Whose turn it is after one that waits (its warp's lanes first) or only looks (everybody once before it again).
static thread *next_thread(bool looks) {
    block *b = now.blocks[now.turn];
    int w = self->warp;
    if (looks) {
        unsigned after = self->lane >= 31 ? 0 : b->warps[w].ready & ~0u << (self->lane + 1);
        if (after) return &b->threads[w * WARP + __builtin_ctz(after)];
        after = w >= 31 ? 0 : b->ready & ~0u << (w + 1);
        if (after) {
            w = __builtin_ctz(after);
            return &b->threads[w * WARP + next_bit(b->warps[w].ready, 31)];
        }
    } else if (b->warps[w].ready) {
        return &b->threads[w * WARP + next_bit(b->warps[w].ready, self->lane)];
    } else if (b->ready) {
        w = next_bit(b->ready, w);
        return &b->threads[w * WARP + next_bit(b->warps[w].ready, 31)];
    }
    for (size_t i = 1; i <= now.blocks.size(); i++) {
        size_t turn = (now.turn + i) % now.blocks.size();
        b = now.blocks[turn];
        if (!b->ready) continue;
        now.turn = turn;
        w = next_bit(b->ready, 31);
        return &b->threads[w * WARP + next_bit(b->warps[w].ready, 31)];
    }
    return NULL;
}
static void go_on(bool looks) {
    thread *was = self, *next = next_thread(looks);
    if (!next) deadlock();
    if (next != was) switch_to(next, &was->stack);
}
static void set_ready(block *b, int w, unsigned lanes) {
    b->warps[w].ready |= lanes;
    if (b->warps[w].ready) b->ready |= 1u << w;
    now.idle = 0;
}
static void not_ready(block *b, int w, int lane) {
    b->warps[w].ready &= ~(1u << lane);
    if (!b->warps[w].ready) b->ready &= ~(1u << w);
}

// ---- Waiting
// ----------------------------------------------------------------------------------------------------------------

// If all of the meeting of `mask` are there, they go on. The caller is one of them, or has just ended.
static bool meeting_ends(warp &w, unsigned mask, const char *what, void (*act)(void *const (&)[WARP])) {
    unsigned wanted = mask & w.alive;
    if ((wanted & w.waiting) != wanted) return false;
    void *all[WARP] = {};
    for (int i = 0; i < WARP; i++) {
        if (!(wanted >> i & 1)) continue;
        if (w.masks[i] != mask || (w.what[i] != what && strcmp(w.what[i], what) != 0))
            fail("lanes meet for different things: lane %d for %s of %08x, others for %s of %08x", i, w.what[i],
                 w.masks[i], what, mask);
        all[i] = w.brought[i] ? w.brought[i] : &all[i];
    }
    act(all);
    w.waiting &= ~wanted;
    return true;
}
void meet(unsigned mask, const char *what, void *brought, void (*act)(void *const (&)[WARP])) {
    block *b = self->of;
    warp &w = b->warps[self->warp];
    if (!(mask >> self->lane & 1)) fail("%s of %08x by lane %d", what, mask, self->lane);
    w.masks[self->lane] = mask;
    w.what[self->lane] = what;
    w.brought[self->lane] = brought;
    w.act[self->lane] = act;
    w.waiting |= 1u << self->lane;
    if (meeting_ends(w, mask, what, act)) {
        set_ready(b, self->warp, mask & w.alive);
        return;
    }
    not_ready(b, self->warp, self->lane);
    go_on(false);
}

static bool barrier_ends(block *b) {
    if (b->arrived < b->alive || !b->alive) return false;
    b->last_count = b->counted;
    b->arrived = b->counted = 0;
    for (int w = 0; w < b->n_warps; w++) {
        set_ready(b, w, b->at_barrier[w]);
        b->at_barrier[w] = 0;
    }
    return true;
}
int block_count(int value) {
    block *b = self->of;
    b->counted += value != 0;
    b->arrived++;
    b->at_barrier[self->warp] |= 1u << self->lane;
    if (!barrier_ends(b)) {
        not_ready(b, self->warp, self->lane);
        go_on(false);
    }
    return b->last_count; // nobody can end the next barrier before this
}
void block_barrier() { block_count(0); }

void let_others_run() {
    if (++now.idle > PATIENCE) deadlock();
    go_on(true);
}
void something_changed() { now.idle = 0; }

static void end_thread() {
    block *b = self->of;
    warp &w = b->warps[self->warp];
    not_ready(b, self->warp, self->lane);
    w.alive &= ~(1u << self->lane);
    b->alive--;
    now.idle = 0;
    for (unsigned left = w.waiting; left; left = left & (left - 1)) { // who waited for this one only
        int i = __builtin_ctz(left);
        if ((w.waiting >> i & 1) && meeting_ends(w, w.masks[i], w.what[i], w.act[i]))
            set_ready(b, self->warp, w.masks[i] & w.alive);
    }
    barrier_ends(b);
    if (!b->alive) {
        if (!b->copies.empty()) fail("a block ended before %zu of its copies", b->copies.size());
        now.alive--;
    }
    thread *was = self, *next = now.alive ? next_thread(false) : NULL;
    if (!next && now.alive) deadlock();
    if (next) {
        switch_to(next, &was->stack);
    } else {
        self = NULL;
        emulated_switch(&was->stack, now.stack);
    }
}

// ---- Shared memory
// ----------------------------------------------------------------------------------------------------------------

// Variables from the begin on, then what a launch asks for, up to a page that nobody may touch. All of it is NaN at
// first.
static char *dynamic_begin(const block *b, size_t alignment) {
    size_t size = (now.g->shared + alignment - 1) / alignment * alignment;
    return b->memory + FIXED_ROOM + DYNAMIC_ROOM - size;
}
char *dynamic_shared(size_t alignment) { return dynamic_begin(self->of, alignment > 16 ? alignment : 16); }
void *shared_variable(const void *id, size_t size, size_t alignment) {
    block *b = self->of;
    for (const shared_place &p : b->variables)
        if (p.id == id) return b->memory + p.offset;
    size_t offset = (b->fixed + alignment - 1) / alignment * alignment;
    b->fixed = offset + size;
    if (b->fixed > now.most.shared_fixed)
        fail("%zu bytes of shared variables, of %zu at most", b->fixed, now.most.shared_fixed);
    if (b->fixed + now.g->shared > now.most.shared_all)
        fail("%zu bytes of shared memory, of %zu at most", b->fixed + now.g->shared, now.most.shared_all);
    memset(b->memory + offset, 0xff, size);
    b->variables.push_back({id, offset, size});
    return b->memory + offset;
}
uint32_t shared_offset(const void *at) {
    ptrdiff_t offset = (const char *)at - self->of->memory;
    if (offset < 0 || offset >= (ptrdiff_t)(FIXED_ROOM + DYNAMIC_ROOM)) fail("%p is not in shared memory", at);
    return (uint32_t)offset;
}
char *shared_at(uint32_t offset, size_t size, size_t alignment) {
    char *at = self->of->memory + offset;
    if (offset % alignment) fail("%zu bytes at %#x of shared memory are not aligned", size, offset);
    if (offset + size > FIXED_ROOM + DYNAMIC_ROOM ||
        (offset + size > self->of->fixed && at < dynamic_begin(self->of, 128)))
        fail("%zu bytes at %#x are not in the block's shared memory", size, offset);
    return at;
}

// ---- Grids
// ----------------------------------------------------------------------------------------------------------------

void begin(const char *name, int most_threads) {
    now.name = name;
    if ((int)(here->threads.x * here->threads.y * here->threads.z) > most_threads)
        fail("%u threads, of %d in the launch bounds", here->threads.x * here->threads.y * here->threads.z,
             most_threads);
}

static char *map(size_t bytes) {
    char *at = (char *)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("no memory for stacks");
    return at;
}
static void open_pages(char *at, size_t bytes) {
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE)) fail("no memory");
}

// Blocks and stacks are made once and used again.
struct seat {
    block b;
    char *stacks;
    int n_stacks;
};
static seat *seat_at(size_t i, int threads) {
    static std::vector<seat *> seats;
    while (seats.size() <= i) {
        seat *s = new seat();
        s->b.threads = new thread[MOST_THREADS]();
        s->b.memory = map(FIXED_ROOM + DYNAMIC_ROOM + GUARD);
        open_pages(s->b.memory, FIXED_ROOM + DYNAMIC_ROOM);
        s->stacks = map((STACK + GUARD) * MOST_THREADS);
        seats.push_back(s);
    }
    seat *s = seats[i];
    for (; s->n_stacks < threads; s->n_stacks++) open_pages(s->stacks + (STACK + GUARD) * s->n_stacks + GUARD, STACK);
    return s;
}

static block *seat_block(size_t i, const grid &g, size_t number) {
    int n = (int)(g.threads.x * g.threads.y * g.threads.z);
    seat *s = seat_at(i, n);
    block &b = s->b;
    b.n_warps = (n + WARP - 1) / WARP;
    b.ready = b.n_warps == 32 ? ~0u : (1u << b.n_warps) - 1;
    b.alive = n;
    b.arrived = b.counted = 0;
    b.fixed = 0;
    b.variables.clear();
    b.copies.clear();
    if (g.shared) {
        char *dynamic = dynamic_begin(&b, 128);
        memset(dynamic, 0xff, (size_t)(b.memory + FIXED_ROOM + DYNAMIC_ROOM - dynamic));
    }
    for (int w = 0; w < b.n_warps; w++) {
        int lanes = n - w * WARP;
        b.warps[w].alive = b.warps[w].ready = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        b.warps[w].waiting = 0;
        b.at_barrier[w] = 0;
    }
    uint3 at = {(unsigned)(number % g.blocks.x), (unsigned)(number / g.blocks.x % g.blocks.y),
                (unsigned)(number / g.blocks.x / g.blocks.y)};
    for (int k = 0; k < n; k++) {
        thread &t = b.threads[k];
        prepare_stack(t, s->stacks + (STACK + GUARD) * (size_t)k + GUARD);
        unsigned u = (unsigned)k;
        t.at.thread = {u % g.threads.x, u / g.threads.x % g.threads.y, u / g.threads.x / g.threads.y};
        t.at.block = at;
        t.at.threads = g.threads;
        t.at.blocks = g.blocks;
        t.of = &b;
        t.warp = k / WARP;
        t.lane = k % WARP;
        t.copies.clear();
        t.group = 0;
    }
    return &b;
}

// TENON_EMULATED_COUNTS: how often which kernel ran, at the end.
static void count_launch() {
    static std::map<std::string, long> *counts;
    if (!counts) {
        counts = new std::map<std::string, long>();
        atexit([]() {
            for (const auto &one : *counts) fprintf(stderr, "%8ld %s\n", one.second, one.first.c_str());
        });
    }
    ++(*counts)[now.name ? now.name : "?"];
}

void run_grid(const grid &g, const limits &most, const std::function<void()> &body) {
    static bool prepared;
    if (!prepared) {
        pthread_t watcher;
        pthread_create(&watcher, NULL, watch, NULL);
        pthread_detach(watcher);
        const char *seed = getenv("TENON_EMULATED_SEED");
        now.random = seed ? (unsigned)atoi(seed) : 0;
        prepared = true;
    }
    catch_signals();
    now.g = &g;
    now.body = &body;
    now.most = most;
    now.name = NULL;
    size_t n = (size_t)g.blocks.x * g.blocks.y * g.blocks.z, at_once = g.cooperative ? n : 1;
    size_t stride = 1, first = 0;
    if (now.random && !g.cooperative) { // some other order of blocks
        first = random_number() % n;
        if (random_number() & 1) stride = n - 1;
        if (n == 1) stride = 1;
    }
    for (size_t done = 0; done < n; done += at_once) {
        now.blocks.clear();
        for (size_t i = 0; i < at_once; i++)
            now.blocks.push_back(seat_block(i, g, (first + (done + i) * stride) % n));
        now.alive = (int)at_once;
        now.turn = 0;
        now.idle = 0;
        block *b = now.blocks[0];
        int w = next_bit(b->ready, 31);
        switch_to(&b->threads[w * WARP + next_bit(b->warps[w].ready, 31)], &now.stack);
    }
    here = &nowhere;
    leave_signals();
    if (getenv("TENON_EMULATED_COUNTS")) count_launch();
}

} // namespace emul
