// GPU threads as fibers: one runs until it must wait for others. All run in one thread of the host, so a run is
// reproducible.
#include "block.h"

namespace emul {

enum { MAX_IDLE_POLLS = 50000000 }; // polls without any change: a deadlock

thread *self;
static const thread_indices nowhere = {};
const thread_indices *here = &nowhere;
run *now;
volatile long switches;
unsigned random_state;
static long idle; // polls since something changed

// ---- Fibers ----

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
    now->job->body();
    end_thread();
}
void prepare_stack(thread &t, char *stack) {
    void **top = (void **)(stack + STACK);
    *--top = NULL;               // first_call has no caller
    *--top = (void *)first_call; // emulated_switch returns here, with the stack as after a call
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    t.stack = top;
}
static void switch_to(thread *next, void **save) {
    self = next;
    here = &next->at;
    switches++;
    emulated_switch(save, next->stack);
}

unsigned random_number() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}
// The first set bit after `last`, wrapping around; a random one where the order is random.
int next_bit(unsigned bits, int last) {
    if (random_state) last = (int)(random_number() % 32);
    unsigned after = last >= 31 ? 0 : bits & ~0u << (last + 1);
    return __builtin_ctz(after ? after : bits);
}
// The thread that runs next. After a thread that waits: lanes of its warp first. After a thread that polls: every
// other thread once before it runs again.
static thread *next_thread(bool polls) {
    block *b = now->blocks[now->turn];
    int w = self->warp;
    if (random_state && now->blocks.size() > 1 && random_number() % 8 == 0) {
        // Switches to another block now and then.
    } else if (polls) {
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
    for (size_t i = 1; i <= now->blocks.size(); i++) {
        size_t turn = (now->turn + i) % now->blocks.size();
        b = now->blocks[turn];
        if (!b->ready) continue;
        now->turn = turn;
        w = next_bit(b->ready, 31);
        return &b->threads[w * WARP + next_bit(b->warps[w].ready, 31)];
    }
    return NULL;
}
// Returns to the host thread that runs the grid.
static void leave_grid(thread *was) {
    self = NULL;
    here = &nowhere;
    emulated_switch(&was->stack, now->stack);
}
static void run_others(bool polls) {
    thread *was = self, *next = next_thread(polls);
    if (!next && !now->stops) deadlock();
    if (!next)
        leave_grid(was);
    else if (next != was)
        switch_to(next, &was->stack);
}
static void set_ready(block *b, int w, unsigned lanes) {
    b->warps[w].ready |= lanes;
    if (b->warps[w].ready) b->ready |= 1u << w;
    idle = 0;
}
static void not_ready(block *b, int w, int lane) {
    b->warps[w].ready &= ~(1u << lane);
    if (!b->warps[w].ready) b->ready &= ~(1u << w);
}

// ---- Waiting ----

// If all live lanes of `mask` have arrived, calls `act` and releases them. The caller is one of them, or has just
// ended.
static bool meeting_ends(warp &w, unsigned mask, const char *what, void (*act)(void *const (&)[WARP])) {
    unsigned expected = mask & w.alive;
    if ((expected & w.waiting) != expected) return false;
    void *all[WARP] = {};
    for (int i = 0; i < WARP; i++) {
        if (!(expected >> i & 1)) continue;
        if (w.masks[i] != mask || (w.what[i] != what && strcmp(w.what[i], what) != 0))
            fail("lanes meet for different things: lane %d for %s of %08x, others for %s of %08x", i, w.what[i],
                 w.masks[i], what, mask);
        all[i] = w.brought[i] ? w.brought[i] : &all[i];
    }
    act(all);
    w.waiting &= ~expected;
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
    run_others(false);
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
        run_others(false);
    }
    return b->last_count; // the next barrier cannot end before this thread arrives
}
void block_barrier() { block_count(0); }

void let_others_run() {
    if (++idle > MAX_IDLE_POLLS) deadlock();
    run_others(true);
}
void something_changed() { idle = 0; }

static void end_thread() {
    block *b = self->of;
    warp &w = b->warps[self->warp];
    not_ready(b, self->warp, self->lane);
    w.alive &= ~(1u << self->lane);
    b->alive--;
    idle = 0;
    for (unsigned left = w.waiting; left; left = left & (left - 1)) { // lanes that waited only for this one
        int i = __builtin_ctz(left);
        if ((w.waiting >> i & 1) && meeting_ends(w, w.masks[i], w.what[i], w.act[i]))
            set_ready(b, self->warp, w.masks[i] & w.alive);
    }
    barrier_ends(b);
    if (!b->alive) {
        if (!b->copies.empty()) fail("a block ended before %zu of its copies", b->copies.size());
        now->alive--;
    }
    thread *was = self, *next = now->alive ? next_thread(false) : NULL;
    if (!next && now->alive && !now->stops) deadlock();
    if (next)
        switch_to(next, &was->stack);
    else
        leave_grid(was);
}

// ---- Grids that start early ----

void trigger_grid() { self->triggered = true; }
void wait_for_grid() {
    if (self->triggered) remember_trigger();
    if (!now->stops) return;
    self->of->stopped[self->warp] |= 1u << self->lane;
    not_ready(self->of, self->warp, self->lane);
    run_others(false);
}
void run_threads(run *r) {
    now = r;
    idle = 0;
    for (size_t i = 0; i < r->blocks.size(); i++) {
        block *b = r->blocks[i];
        for (int w = 0; !r->stops && w < b->n_warps; w++) {
            set_ready(b, w, b->stopped[w]);
            b->stopped[w] = 0;
        }
    }
    r->turn = 0;
    while (r->turn < r->blocks.size() && !r->blocks[r->turn]->ready) r->turn++; // some have ended early
    if (r->turn < r->blocks.size()) {
        block *b = r->blocks[r->turn];
        int w = next_bit(b->ready, 31);
        catch_signals();
        switch_to(&b->threads[w * WARP + next_bit(b->warps[w].ready, 31)], &r->stack);
        restore_signals();
    }
    now = NULL;
}

} // namespace emul
