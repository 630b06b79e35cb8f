/* The matcher: numbered sets of positions in a grammar's program, and steps between them that are computed once.
 *
 * A set holds every position that the text so far can have reached. A step over a byte moves each position that reads
 * the byte and follows calls, returns and splits to the next instructions that read (the closure). All tables are in
 * one block of fixed size. When it is full, everything but the sets in use is dropped and computed again when needed.
 */
#include "base/checked.h"
#include "base/hash.h"
#include "text/grammar/internal.h"

#include <string.h>

enum { MEMORY_DEFAULT = 4 << 20, MEMORY_LEAST = 256 << 10 };

static size_t round_down_to_power_of_2(size_t x) {
    while (x & (x - 1)) x &= x - 1;
    return x;
}

static void *take_matcher_array(char *base, size_t *at, size_t count, size_t size) {
    void *start = base ? base + *at : NULL;
    *at = tn__align_up(*at + count * size, 64);
    return start;
}

/* Division of the memory: an eighth for stacks, a quarter for positions, an eighth for the closure's work list, the
 * rest for sets and their steps. With a NULL base only the size is computed. */
static size_t lay_out_matcher(tn__matcher *m, size_t memory, char *base) {
    size_t groups = m->program->n_groups, at = 0;
    m->frame_capacity = round_down_to_power_of_2(memory / 128);
    m->frame_slot_count = 2 * m->frame_capacity;
    m->position_capacity = memory / 4 / sizeof *m->positions;
    m->work_capacity = round_down_to_power_of_2(memory / 256);
    m->seen_slot_count = 2 * m->work_capacity;
    size_t per_set = groups * sizeof *m->steps + sizeof *m->sets + 4 * sizeof *m->set_slots;
    m->set_capacity = memory / 2 / per_set;
    m->set_slot_count = 2 * round_down_to_power_of_2(m->set_capacity);
    m->frames = take_matcher_array(base, &at, m->frame_capacity, sizeof *m->frames);
    m->frame_slots = take_matcher_array(base, &at, m->frame_slot_count, sizeof *m->frame_slots);
    m->positions = take_matcher_array(base, &at, m->position_capacity, sizeof *m->positions);
    m->work = take_matcher_array(base, &at, m->work_capacity, sizeof *m->work);
    m->seen = take_matcher_array(base, &at, m->seen_slot_count, sizeof *m->seen);
    m->seen_stamp = take_matcher_array(base, &at, m->seen_slot_count, sizeof *m->seen_stamp);
    m->sets = take_matcher_array(base, &at, m->set_capacity, sizeof *m->sets);
    m->set_slots = take_matcher_array(base, &at, m->set_slot_count, sizeof *m->set_slots);
    m->steps = take_matcher_array(base, &at, m->set_capacity * groups, sizeof *m->steps);
    return at;
}

static void clear_slots(tn__matcher *m) {
    memset(m->frame_slots, 0, m->frame_slot_count * sizeof *m->frame_slots);
    memset(m->set_slots, 0, m->set_slot_count * sizeof *m->set_slots);
}

tn_status tn__matcher_new(const tn__program *program, size_t memory, tn__matcher *out) {
    memory = memory == 0 ? MEMORY_DEFAULT : TN__MAX(memory, (size_t)MEMORY_LEAST);
    if (memory > (size_t)1 << 40)
        return tn_fail(TN_E_INVALID, "memory is %zu bytes, which is too much for a grammar's matcher", memory);
    *out = (tn__matcher){.program = program, .memory_size = memory};
    size_t size = lay_out_matcher(out, memory, NULL);
    out->memory = tn_malloc_aligned(size, 64);
    if (!out->memory) return TN_E_NOMEM;
    lay_out_matcher(out, memory, out->memory);
    clear_slots(out);
    memset(out->seen_stamp, 0, out->seen_slot_count * sizeof *out->seen_stamp);
    out->n_frames = 1; /* the empty stack */
    out->frames[0] = (tn__frame){0};
    return TN_OK;
}

void tn__matcher_free(tn__matcher *m) {
    tn_free(m->memory);
    *m = (tn__matcher){0};
}

tn_status tn__matcher_copy(const tn__matcher *from, tn__matcher *to) {
    TN_TRY(tn__matcher_new(from->program, from->memory_size, to));
    memcpy(to->frames, from->frames, from->n_frames * sizeof *to->frames);
    memcpy(to->frame_slots, from->frame_slots, from->frame_slot_count * sizeof *to->frame_slots);
    memcpy(to->positions, from->positions, from->n_positions * sizeof *to->positions);
    memcpy(to->sets, from->sets, from->n_sets * sizeof *to->sets);
    memcpy(to->set_slots, from->set_slots, from->set_slot_count * sizeof *to->set_slots);
    memcpy(to->steps, from->steps, from->n_sets * from->program->n_groups * sizeof *to->steps);
    to->n_frames = from->n_frames;
    to->n_positions = from->n_positions;
    to->n_sets = from->n_sets;
    return TN_OK;
}

/* ---- Stacks ---- */

static size_t frame_slot(const tn__matcher *m, tn__frame frame) {
    size_t mask = m->frame_slot_count - 1;
    size_t i = (size_t)tn__mix64((uint64_t)frame.pc << 32 | frame.parent) & mask;
    for (; m->frame_slots[i]; i = (i + 1) & mask) {
        const tn__frame *other = &m->frames[m->frame_slots[i]];
        if (other->pc == frame.pc && other->parent == frame.parent) break;
    }
    return i;
}

static tn_status push_frame(tn__matcher *m, uint32_t pc, uint32_t parent, uint32_t *out) {
    tn__frame frame = {pc, parent};
    size_t slot = frame_slot(m, frame);
    if (!m->frame_slots[slot]) {
        if (m->n_frames == m->frame_capacity)
            return tn_fail(TN_E_LIMIT, "the grammar nests deeper than %zu open rules", m->frame_capacity);
        m->frames[m->n_frames] = frame;
        m->frame_slots[slot] = (uint32_t)m->n_frames++;
    }
    *out = m->frame_slots[slot];
    return TN_OK;
}

/* ---- Building a set ----
 * The positions of the set being built follow those of the last finished set. */

typedef struct set_builder {
    tn__matcher *m;
    size_t n_work, n_seen, n_positions;
    bool accepting;
} set_builder;

static set_builder begin_set(tn__matcher *m) {
    if (++m->stamp == 0) { /* after 2^32 closures old stamps would look current */
        memset(m->seen_stamp, 0, m->seen_slot_count * sizeof *m->seen_stamp);
        m->stamp = 1;
    }
    return (set_builder){.m = m};
}

static tn_status add_position(set_builder *b, uint32_t pc, uint32_t class_node, uint32_t stack) {
    tn__matcher *m = b->m;
    if (m->n_positions + b->n_positions == m->position_capacity)
        return tn_fail(TN_E_LIMIT, "the grammar's matcher has no room for more than %zu positions",
                       m->position_capacity);
    m->positions[m->n_positions + b->n_positions++] = (tn__position){pc, class_node, stack};
    return TN_OK;
}

/* Adds an instruction to the closure's work list unless it was seen with this stack. */
static tn_status add_work(set_builder *b, uint32_t pc, uint32_t stack) {
    tn__matcher *m = b->m;
    uint64_t key = (uint64_t)pc << 32 | stack;
    size_t mask = m->seen_slot_count - 1, i = (size_t)tn__mix64(key) & mask;
    for (; m->seen_stamp[i] == m->stamp; i = (i + 1) & mask)
        if (m->seen[i] == key) return TN_OK;
    if (b->n_seen == m->work_capacity)
        return tn_fail(TN_E_LIMIT, "the grammar is too ambiguous: more than %zu ways to continue at one position",
                       m->work_capacity);
    b->n_seen++;
    m->seen[i] = key;
    m->seen_stamp[i] = m->stamp;
    m->work[b->n_work++] = key;
    return TN_OK;
}

static tn_status close_set(set_builder *b) {
    tn__matcher *m = b->m;
    const tn__program *p = m->program;
    while (b->n_work) {
        uint64_t key = m->work[--b->n_work];
        uint32_t pc = (uint32_t)(key >> 32), stack = (uint32_t)key;
        const tn__instruction *i = &p->code[pc];
        switch ((tn__op)i->op) {
        case TN__OP_BYTE:
        case TN__OP_CLASS: TN_TRY(add_position(b, pc, 0, stack)); break;
        case TN__OP_SPLIT:
            TN_TRY(add_work(b, i->b, stack));
            TN_TRY(add_work(b, i->a, stack));
            break;
        case TN__OP_JUMP: TN_TRY(add_work(b, i->a, stack)); break;
        case TN__OP_CALL: {
            uint32_t inner = 0;
            TN_TRY(push_frame(m, pc + 1, stack, &inner));
            TN_TRY(add_work(b, p->entries[i->a], inner));
            break;
        }
        case TN__OP_TAIL_CALL: TN_TRY(add_work(b, p->entries[i->a], stack)); break;
        case TN__OP_RETURN:
            if (stack == 0)
                b->accepting = true;
            else
                TN_TRY(add_work(b, m->frames[stack].pc, m->frames[stack].parent));
            break;
        }
    }
    return TN_OK;
}

static bool position_less(const tn__position *a, const tn__position *b) {
    if (a->pc != b->pc) return a->pc < b->pc;
    if (a->class_node != b->class_node) return a->class_node < b->class_node;
    return a->stack < b->stack;
}

static void sift_position_down(tn__position *heap, size_t i, size_t n) {
    tn__position item = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && position_less(&heap[child], &heap[child + 1])) child++;
        if (!position_less(&item, &heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = item;
}

/* Heap sort in place, because qsort can allocate. */
static void sort_positions(tn__position *positions, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sift_position_down(positions, i, n);
    for (size_t end = n; end-- > 1;) {
        tn__position top = positions[0];
        positions[0] = positions[end];
        positions[end] = top;
        sift_position_down(positions, 0, end);
    }
}

static size_t set_slot(const tn__matcher *m, uint32_t hash, const tn__position *positions, size_t n, bool accepting) {
    size_t mask = m->set_slot_count - 1, i = hash & mask;
    for (; m->set_slots[i]; i = (i + 1) & mask) {
        const tn__set_info *other = &m->sets[m->set_slots[i] - TN__SET_FIRST];
        if (other->hash == hash && other->count == n && other->accepting == accepting &&
            memcmp(m->positions + other->first, positions, n * sizeof *positions) == 0)
            break;
    }
    return i;
}

static uint32_t hash_set(const tn__position *positions, size_t n, bool accepting) {
    return (uint32_t)tn__hash_bytes(positions, n * sizeof *positions, accepting);
}

/* Stores the positions at the end of the table as set number n_sets. The caller has checked for room. */
static void enter_set(tn__matcher *m, size_t slot, uint32_t hash, size_t n, bool accepting) {
    m->sets[m->n_sets] = (tn__set_info){(uint32_t)m->n_positions, (uint32_t)n, hash, accepting};
    uint32_t *steps = m->steps + m->n_sets * m->program->n_groups;
    for (size_t g = 0; g < m->program->n_groups; g++) steps[g] = TN__SET_UNKNOWN;
    m->set_slots[slot] = (uint32_t)(m->n_sets++ + TN__SET_FIRST);
    m->n_positions += n;
}

/* Completes the set and returns its number, or the number of an equal set. A set without positions in which the text
 * cannot end is the dead set. */
static tn_status finish_set(set_builder *b, tn__set *out) {
    tn__matcher *m = b->m;
    TN_TRY(close_set(b));
    if (b->n_positions == 0 && !b->accepting) {
        *out = TN__SET_DEAD;
        return TN_OK;
    }
    tn__position *positions = m->positions + m->n_positions;
    sort_positions(positions, b->n_positions);
    uint32_t hash = hash_set(positions, b->n_positions, b->accepting);
    size_t slot = set_slot(m, hash, positions, b->n_positions, b->accepting);
    if (!m->set_slots[slot]) {
        if (m->n_sets == m->set_capacity || 4 * m->n_sets >= 3 * m->set_slot_count)
            return tn_fail(TN_E_LIMIT, "the grammar's matcher has no room for more than %zu sets", m->n_sets);
        enter_set(m, slot, hash, b->n_positions, b->accepting);
    }
    *out = m->set_slots[slot];
    return TN_OK;
}

tn_status tn__matcher_start(tn__matcher *m, tn__set *out) {
    set_builder b = begin_set(m);
    TN_TRY(add_work(&b, m->program->entries[m->program->root], 0));
    return finish_set(&b, out);
}

tn_status tn__matcher_step(tn__matcher *m, tn__set from, uint8_t byte, tn__set *out) {
    const tn__program *p = m->program;
    tn__set known = tn__matcher_known(m, from, byte);
    if (known != TN__SET_UNKNOWN) {
        *out = known;
        return TN_OK;
    }
    set_builder b = begin_set(m);
    const tn__set_info *info = &m->sets[from - TN__SET_FIRST];
    for (uint32_t i = 0; i < info->count; i++) {
        tn__position at = m->positions[info->first + i];
        const tn__instruction *code = &p->code[at.pc];
        if (code->op == TN__OP_BYTE) {
            if (byte >= code->low && byte <= code->high) TN_TRY(add_work(&b, at.pc + 1, at.stack));
            continue;
        }
        const tn__class_node *node = &p->class_nodes[at.class_node ? at.class_node : p->class_roots[code->a]];
        for (uint32_t e = node->first_edge; e < node->first_edge + node->n_edges; e++) {
            const tn__class_edge *edge = &p->class_edges[e];
            if (byte < edge->low || byte > edge->high) continue;
            if (edge->to)
                TN_TRY(add_position(&b, at.pc, edge->to, at.stack));
            else
                TN_TRY(add_work(&b, at.pc + 1, at.stack));
            break;
        }
    }
    TN_TRY(finish_set(&b, out));
    m->steps[(from - TN__SET_FIRST) * p->n_groups + p->byte_group[byte]] = *out;
    return TN_OK;
}

/* ---- Forgetting ---- */

/* Renumbers the stacks that the kept positions use. Parents have smaller numbers, so one pass in order is enough, and
 * the order of stacks, on which the order of positions depends, does not change. The slot table serves as the map. */
static void compact_frames(tn__matcher *m, const tn__set_info *kept, size_t n_kept) {
    uint32_t *map = m->frame_slots;
    memset(map, 0, m->n_frames * sizeof *map);
    for (size_t k = 0; k < n_kept; k++)
        for (uint32_t i = 0; i < kept[k].count; i++)
            for (uint32_t f = m->positions[kept[k].first + i].stack; f && !map[f]; f = m->frames[f].parent)
                map[f] = 1;
    uint32_t next = 1;
    for (uint32_t f = 1; f < m->n_frames; f++) {
        if (!map[f]) continue;
        m->frames[next] = (tn__frame){m->frames[f].pc, map[m->frames[f].parent]};
        map[f] = next++;
    }
    for (size_t k = 0; k < n_kept; k++)
        for (uint32_t i = 0; i < kept[k].count; i++) {
            uint32_t *stack = &m->positions[kept[k].first + i].stack;
            *stack = *stack ? map[*stack] : 0;
        }
    m->n_frames = next;
}

void tn__matcher_forget(tn__matcher *m, tn__set *keep[], size_t n_keep) {
    /* The kept sets, each once and in the order of their positions, so that they can be moved to the front in turn.
     */
    tn__set numbers[4];
    tn__set_info kept[4];
    size_t n_kept = 0;
    for (size_t k = 0; k < n_keep; k++) {
        size_t at = 0;
        while (at < n_kept && numbers[at] != *keep[k]) at++;
        if (*keep[k] < TN__SET_FIRST || at < n_kept) continue;
        tn__set_info info = m->sets[*keep[k] - TN__SET_FIRST];
        for (at = n_kept++; at > 0 && kept[at - 1].first > info.first; at--) {
            kept[at] = kept[at - 1];
            numbers[at] = numbers[at - 1];
        }
        kept[at] = info;
        numbers[at] = *keep[k];
    }
    compact_frames(m, kept, n_kept);
    clear_slots(m);
    for (uint32_t f = 1; f < m->n_frames; f++) m->frame_slots[frame_slot(m, m->frames[f])] = f;
    m->n_positions = m->n_sets = 0;
    for (size_t i = 0; i < n_kept; i++) {
        tn__position *positions = m->positions + m->n_positions;
        memmove(positions, m->positions + kept[i].first, kept[i].count * sizeof *positions);
        uint32_t hash = hash_set(positions, kept[i].count, kept[i].accepting);
        enter_set(m, set_slot(m, hash, positions, kept[i].count, kept[i].accepting), hash, kept[i].count,
                  kept[i].accepting);
    }
    for (size_t k = 0; k < n_keep; k++)
        for (size_t i = 0; i < n_kept; i++)
            if (numbers[i] == *keep[k]) {
                *keep[k] = (tn__set)(i + TN__SET_FIRST);
                break;
            }
}
