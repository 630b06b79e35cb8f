// Asynchronous copies to shared memory. The target is overwritten with NaN when a copy starts, and filled when a
// thread waits for the copy. A thread that reads too early, or still needs the old contents, gets NaN.
#include "block.h"

namespace emul {

void copy_later(void *to, const void *from, int size, int zeros) {
    if ((uintptr_t)from % (uintptr_t)(size + zeros))
        fail("cp.async of %d bytes from %p, which is not aligned", size, from);
    memset(to, 0xff, (size_t)(size + zeros));
    self->copies.push_back({(char *)to, (const char *)from, size, zeros, self->group});
}
void commit_copies() { self->group++; }
void wait_copies(int left) {
    size_t kept = 0;
    for (const small_copy &c : self->copies) {
        if (c.group >= self->group - left) {
            self->copies[kept++] = c;
            continue;
        }
        memcpy(c.to, c.from, (size_t)c.size);
        memset(c.to + c.size, 0, (size_t)c.zeros);
    }
    self->copies.resize(kept);
}

// ---- mbarriers and bulk copies ----

struct barrier {
    int32_t bytes;              // expected and not delivered yet
    uint16_t arrivals, missing; // arrivals of a phase; those still missing
};
static_assert(sizeof(barrier) == 8, "as in PTX");
enum { PHASE = 0x8000 }; // the top bit of `arrivals`

static barrier &barrier_at(uint32_t at) { return *(barrier *)shared_at(at, 8, 8); }
static void next_phase(barrier &b) {
    if (b.missing || b.bytes) return;
    b.arrivals ^= PHASE;
    b.missing = b.arrivals & ~PHASE;
    something_changed();
}
void barrier_init(uint32_t at, uint32_t arrivals) {
    barrier_at(at) = {0, (uint16_t)arrivals, (uint16_t)arrivals};
    something_changed();
}
void barrier_arrive(uint32_t at, uint32_t arrivals, uint32_t bytes) {
    barrier &b = barrier_at(at);
    if (arrivals > b.missing) fail("a barrier at %#x has more arrivals than it expects", at);
    b.bytes += (int32_t)bytes;
    b.missing = (uint16_t)(b.missing - arrivals);
    next_phase(b);
}
void bulk_copy(uint32_t to, const void *from, uint32_t size, uint32_t barrier) {
    if ((uintptr_t)from % 16 || size % 16 || !size) fail("cp.async.bulk of %u bytes from %p", size, from);
    memset(shared_at(to, size, 16), 0xff, size);
    self->of->copies.push_back({to, size, barrier, (const char *)from});
}
static bool has_passed(const barrier &b, uint32_t parity) { return (b.arrivals & PHASE ? 1u : 0u) != (parity & 1); }
// Whether the phase of this parity has completed. Delivers the copies that the barrier counts.
bool barrier_passed(uint32_t at, uint32_t parity) {
    barrier &b = barrier_at(at);
    if (has_passed(b, parity)) return true;
    std::vector<large_copy> &copies = self->of->copies;
    size_t kept = 0;
    for (const large_copy &c : copies) {
        if (c.barrier != at) {
            copies[kept++] = c;
            continue;
        }
        memcpy(shared_at(c.to, c.size, 16), c.from, c.size);
        b.bytes -= (int32_t)c.size;
    }
    if (kept < copies.size()) {
        copies.resize(kept);
        next_phase(b);
    }
    return has_passed(b, parity);
}

} // namespace emul
