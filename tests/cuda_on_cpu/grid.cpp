// Grids: blocks run one after the other, or all at once where the launch is cooperative.
#include "block.h"

#include <map>
#include <set>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>

namespace emul {

// ---- Shared memory ----

// Static variables are at the beginning. The launch's dynamic memory is at the end, before a page that faults.
// Everything is NaN at first.
static char *dynamic_begin(const block *b, size_t bytes, size_t alignment) {
    size_t size = (bytes + alignment - 1) / alignment * alignment;
    return b->memory + STATIC_BYTES + DYNAMIC_BYTES - size;
}
char *dynamic_shared(size_t alignment) {
    return dynamic_begin(self->of, now->job->g.shared, alignment > 16 ? alignment : 16);
}
void *shared_variable(const void *id, size_t size, size_t alignment) {
    block *b = self->of;
    for (const shared_entry &p : b->variables)
        if (p.id == id) return b->memory + p.offset;
    size_t offset = (b->fixed + alignment - 1) / alignment * alignment;
    b->fixed = offset + size;
    if (b->fixed > now->job->most.shared_fixed)
        fail("%zu bytes of shared variables, of %zu at most", b->fixed, now->job->most.shared_fixed);
    if (b->fixed + now->job->g.shared > now->job->most.shared_all)
        fail("%zu bytes of shared memory, of %zu at most", b->fixed + now->job->g.shared, now->job->most.shared_all);
    memset(b->memory + offset, 0xff, size);
    b->variables.push_back({id, offset, size});
    return b->memory + offset;
}
uint32_t shared_offset(const void *at) {
    ptrdiff_t offset = (const char *)at - self->of->memory;
    if (offset < 0 || offset >= (ptrdiff_t)(STATIC_BYTES + DYNAMIC_BYTES)) fail("%p is not in shared memory", at);
    return (uint32_t)offset;
}
char *shared_at(uint32_t offset, size_t size, size_t alignment) {
    char *at = self->of->memory + offset;
    if (offset % alignment) fail("%zu bytes at %#x of shared memory are not aligned", size, offset);
    if (offset + size > STATIC_BYTES + DYNAMIC_BYTES ||
        (offset + size > self->of->fixed && at < dynamic_begin(self->of, now->job->g.shared, 1024)))
        fail("%zu bytes at %#x are not in the block's shared memory", size, offset);
    return at;
}

// ---- Grids ----

void begin(const char *name, int max_threads) {
    now->name = name;
    if ((int)(here->threads.x * here->threads.y * here->threads.z) > max_threads)
        fail("%u threads, of %d in the launch bounds", here->threads.x * here->threads.y * here->threads.z,
             max_threads);
}

static char *map(size_t bytes) {
    char *at = (char *)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("no memory for stacks");
    return at;
}
static void allow_access(char *at, size_t bytes) {
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE)) fail("no memory");
}

// Memory of a block and the stacks of its threads, allocated once and reused.
struct block_memory {
    block b;
    char *stacks;
    int n_stacks;
};
static block_memory *block_memory_at(size_t memory_set, size_t i, int threads) {
    static std::vector<block_memory *> all[2];
    std::vector<block_memory *> &blocks = all[memory_set];
    while (blocks.size() <= i) {
        block_memory *s = new block_memory();
        s->b.threads = new thread[MAX_THREADS]();
        s->b.memory = map(STATIC_BYTES + DYNAMIC_BYTES + GUARD);
        allow_access(s->b.memory, STATIC_BYTES + DYNAMIC_BYTES);
        s->stacks = map((STACK + GUARD) * MAX_THREADS);
        blocks.push_back(s);
    }
    block_memory *s = blocks[i];
    for (; s->n_stacks < threads; s->n_stacks++)
        allow_access(s->stacks + (STACK + GUARD) * s->n_stacks + GUARD, STACK);
    return s;
}

static block *begin_block(size_t memory_set, size_t i, const grid &g, size_t index) {
    int n = (int)(g.threads.x * g.threads.y * g.threads.z);
    block_memory *s = block_memory_at(memory_set, i, n);
    block &b = s->b;
    b.n_warps = (n + WARP - 1) / WARP;
    b.ready = b.n_warps == 32 ? ~0u : (1u << b.n_warps) - 1;
    b.alive = n;
    b.arrived = b.counted = 0;
    b.fixed = 0;
    b.variables.clear();
    b.copies.clear();
    if (g.shared) {
        char *dynamic = dynamic_begin(&b, g.shared, 1024);
        memset(dynamic, 0xff, (size_t)(b.memory + STATIC_BYTES + DYNAMIC_BYTES - dynamic));
    }
    for (int w = 0; w < b.n_warps; w++) {
        int lanes = n - w * WARP;
        b.warps[w].alive = b.warps[w].ready = lanes >= WARP ? ~0u : (1u << lanes) - 1;
        b.warps[w].waiting = 0;
        b.at_barrier[w] = b.stopped[w] = 0;
    }
    uint3 at = {(unsigned)(index % g.blocks.x), (unsigned)(index / g.blocks.x % g.blocks.y),
                (unsigned)(index / g.blocks.x / g.blocks.y)};
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
        t.triggered = false;
    }
    return &b;
}

// TENON_EMULATED_COUNTS: prints at exit how often each kernel ran.
static void count_launch(const char *name) {
    static std::map<std::string, long> *counts;
    if (!counts) {
        counts = new std::map<std::string, long>();
        atexit([]() {
            for (const auto &one : *counts) fprintf(stderr, "%8ld %s\n", one.second, one.first.c_str());
        });
    }
    ++(*counts)[name ? name : "?"];
}

// ---- Running a grid ----

// Kernels that let the next grid start before they wait.
static std::set<const void *> &triggering() {
    static std::set<const void *> all;
    return all;
}
void remember_trigger() { triggering().insert(now->job->g.function); }
bool may_overlap(const grid_job &job, const grid_job &next) {
    return next.g.early && job.g.function && triggering().count(job.g.function);
}

static void run_next_blocks(run *r) {
    size_t n = r->n - r->begun < r->at_once ? r->n - r->begun : r->at_once;
    r->blocks.clear();
    for (size_t i = 0; i < n; i++)
        r->blocks.push_back(begin_block(r->memory_set, i, r->job->g, (r->first + (r->begun + i) * r->stride) % r->n));
    r->begun += n;
    r->alive = (int)n;
    run_threads(r);
}
run *begin_grid(const grid_job &job, size_t memory_set, bool early) {
    static bool prepared;
    if (!prepared) {
        const char *seed = getenv("TENON_EMULATED_SEED");
        random_state = seed ? (unsigned)atoi(seed) : 0;
        start_watchdog();
        prepared = true;
    }
    const grid &g = job.g;
    run *r = new run();
    r->job = &job;
    r->memory_set = memory_set;
    r->n = (size_t)g.blocks.x * g.blocks.y * g.blocks.z;
    r->at_once = g.cooperative ? r->n : 1;
    r->stride = 1;
    if (random_state && !g.cooperative) { // another order of blocks, several at a time
        r->at_once = 1 + random_number() % 4;
        r->first = random_number() % r->n;
        if (r->n > 1 && random_number() & 1) r->stride = r->n - 1;
    }
    if (early) {
        r->stops = true;
        run_next_blocks(r);
        r->stops = false;
    }
    return r;
}
void end_grid(run *r) {
    if (r->alive) run_threads(r);
    while (r->begun < r->n) run_next_blocks(r);
    if (getenv("TENON_EMULATED_COUNTS")) count_launch(r->name);
    delete r;
}

} // namespace emul
