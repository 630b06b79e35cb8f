// Scratch of programs: sizes, slots for tables, and which tables are resident.
#include "backend/cuda/scratch.cuh"

scratch_needs scratch_needs_of(size_t kernels, size_t table, bool counts) {
    scratch_needs n = {(kernels + 255) & ~(size_t)255, (table + TABLE_STEP - 1) / TABLE_STEP * TABLE_STEP, 0};
    static_assert(COUNTER_BYTES % 256 == 0, "kernels' scratch is aligned to 256 bytes");
    if (n.kernels || n.table || counts) n.total = COUNTER_BYTES + n.kernels + TABLE_SLOTS * n.table;
    return n;
}

uint64_t scratch_new_id(void) {
    static std::atomic<uint64_t> last;
    return ++last;
}

static bool ranges_overlap(const char *a, const char *a_end, const char *b, const char *b_end) {
    return a < b_end && b < a_end;
}
static bool holds_tables(const cuda_buffer *b, const char *begin, const char *end) {
    for (const resident_table &t : b->tables)
        if (t.id && ranges_overlap(t.begin, t.end, begin, end)) return true;
    return false;
}
static void forget_tables(cuda_buffer *b, const char *begin, const char *end) {
    for (resident_table &t : b->tables)
        if (t.id && ranges_overlap(t.begin, t.end, begin, end)) t.id = 0;
}

char *scratch_slot(const tn_buffer *scratch, const scratch_needs &needs) {
    cuda_buffer *b = (cuda_buffer *)scratch;
    char *end = (char *)scratch->base + (scratch->size & ~(size_t)255), *at = NULL;
    for (int i = 0; i < TABLE_SLOTS; i++) {
        at = end - (size_t)(i + 1) * needs.table;
        if (!holds_tables(b, at, at + needs.table)) return at;
    }
    // Both are taken. Programs then take turns, so that two of three do not always evict each other.
    return end - (1 + b->evictions++ % TABLE_SLOTS) * needs.table;
}

static tn_status load_table(cuda_stream *s, cuda_buffer *b, const scratch_needs &needs, const scratch_table &table) {
    forget_tables(b, table.at, table.at + needs.table);
    resident_table *entry = &b->tables[b->evictions % TABLE_SLOTS];
    for (resident_table &t : b->tables)
        if (!t.id) entry = &t;
    entry->id = 0;
    // From ordinary memory: the data may change when the call returns.
    CUDA_TRY(cudaMemcpyAsync(table.at, table.data, table.bytes, cudaMemcpyHostToDevice, s->stream));
    CUDA_TRY(cudaMemsetAsync(table.at + table.zeros_from, 0, table.zeros_end - table.zeros_from, s->stream));
    *entry = {table.id, table.at, table.at + needs.table};
    return TN_OK;
}
tn_status scratch_prepare(cuda_stream *s, tn_buffer *scratch, const scratch_needs &needs,
                          const scratch_table &table) {
    if (!needs.total) return TN_OK;
    cuda_buffer *b = (cuda_buffer *)scratch;
    if (b->scratch_of != s->id) {
        b->scratch_of = 0;
        memset(b->tables, 0, sizeof b->tables);
        CUDA_TRY(cudaMemsetAsync(scratch->base, 0, COUNTER_BYTES, s->stream));
        b->scratch_of = s->id;
    }
    char *kernels = (char *)scratch->base + COUNTER_BYTES;
    forget_tables(b, kernels, kernels + needs.kernels);
    if (!table.id) return TN_OK;
    for (const resident_table &t : b->tables)
        if (t.id == table.id) return TN_OK;
    return load_table(s, b, needs, table);
}
