// Launch lists: collecting, checking and printing launches. Running them is in launch_run.cu.
#include "backend/cuda/launch_list.cuh"

#include <string.h>

// ---- Collecting ----

static tn_status grow_array(void **array, size_t *capacity, size_t needed, size_t size) {
    if (needed <= *capacity) return TN_OK;
    size_t room = *capacity ? 2 * *capacity : 64;
    while (room < needed) room *= 2;
    void *larger = tn_realloc(*array, room * size);
    if (!larger) return TN_E_NOMEM;
    *array = larger;
    *capacity = room;
    return TN_OK;
}

void launch_list_clear(launch_list *l) { l->n_records = l->n_steps = l->n_nodes = l->n_bytes = 0; }
void launch_list_free(launch_list *l) {
    tn_free(l->records);
    tn_free(l->steps);
    tn_free(l->nodes);
    tn_free(l->bytes);
    *l = launch_list{};
}

tn_status launch_list_add(launch_list *l, const launch_record &record, const void *arguments, size_t size) {
    size_t at = (l->n_bytes + 15) & ~(size_t)15;
    TN_TRY(grow_array((void **)&l->records, &l->max_records, l->n_records + 1, sizeof *l->records));
    TN_TRY(grow_array((void **)&l->bytes, &l->max_bytes, at + size, 1));
    if (size) memcpy(l->bytes + at, arguments, size);
    l->n_bytes = at + size;
    l->records[l->n_records] = record;
    l->records[l->n_records++].arguments = at;
    return TN_OK;
}
tn_status launch_list_add_node(launch_list *l, int node) {
    TN_TRY(grow_array((void **)&l->nodes, &l->max_nodes, l->n_nodes + 1, sizeof *l->nodes));
    l->nodes[l->n_nodes++] = node;
    return TN_OK;
}
tn_status launch_list_add_step(launch_list *l, const launch_step &step) {
    TN_TRY(grow_array((void **)&l->steps, &l->max_steps, l->n_steps + 1, sizeof *l->steps));
    l->steps[l->n_steps++] = step;
    return TN_OK;
}

// ---- Text ----

static void print_kernel_name(const kernel_name &name, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", name.base);
    const char *separator = "<";
    if (name.type && used < size) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", separator, name.type);
        separator = ", ";
    }
    for (int i = 0; i < name.n_numbers && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%d", separator, name.numbers[i]);
        separator = ", ";
    }
    if (*separator == ',' && used < size) snprintf(text + used, size - used, ">");
}

static const tn_tensor *operand_root(const tn_tensor *t) {
    while (t && tn_op_get_family(t->op) == TN_FAMILY_VIEW && t->src[0]) t = t->src[0];
    return t;
}
static const char *tensor_name(const tn_tensor *t) { return t->name[0] ? t->name : "unnamed"; }

static void print_launch_nodes(const launch_list &l, tn_tensor *const *program, int first, int n, FILE *out) {
    for (int i = 0; i < n; i++) {
        int node = l.nodes[first + i];
        const tn_tensor *t = program[node];
        fprintf(out, "%s%s(", i ? " + " : "", tn_op_name(t->op));
        if (t->name[0])
            fprintf(out, "%s)", t->name);
        else
            fprintf(out, "node %d)", node);
    }
}
static bool is_among(const tn_tensor *t, const tn_tensor *const *all, int n) {
    for (int i = 0; i < n; i++)
        if (all[i] == t) return true;
    return false;
}
// Sources of these nodes that are not among them, each once.
static void print_launch_operands(const launch_list &l, tn_tensor *const *program, int first, int n, FILE *out) {
    enum { MAX_OPERANDS = 64 };
    const tn_tensor *seen[MAX_OPERANDS];
    int n_seen = 0;
    for (int i = 0; i < n; i++)
        for (const tn_tensor *source : program[l.nodes[first + i]]->src) {
            const tn_tensor *t = operand_root(source);
            bool is_result = false;
            for (int k = 0; k < n; k++) is_result = is_result || program[l.nodes[first + k]] == t;
            if (!t || is_result || is_among(t, seen, n_seen) || n_seen == MAX_OPERANDS) continue;
            fprintf(out, "%s%s", n_seen ? ", " : " <- ", tensor_name(t));
            seen[n_seen++] = t;
        }
}
static void print_launch_shape(const launch_shape &s, FILE *out) {
    fprintf(out, " grid %u", s.grid.x);
    if (s.grid.y > 1 || s.grid.z > 1) fprintf(out, "x%u", s.grid.y);
    if (s.grid.z > 1) fprintf(out, "x%u", s.grid.z);
    fprintf(out, " block %u", s.threads);
    if (s.shared) fprintf(out, " shared %zu", s.shared);
    if (s.early) fputs(" early", out);
    if (s.cooperative) fputs(" cooperative", out);
}
static void print_blas_matmul(const blas_matmul &m, FILE *out) {
    fprintf(out, "cublasLtMatmul<%s> m %lld n %lld k %lld", tn_type_name((tn_type)m.type), (long long)m.m,
            (long long)m.n, (long long)m.k);
}

tn_status launch_list_print(const launch_list &l, tn_tensor *const *program, FILE *out) {
    for (size_t i = 0; i < l.n_records; i++) {
        const launch_record &r = l.records[i];
        char name[128];
        if (r.kind == LAUNCH_KERNEL) {
            print_kernel_name(r.name, name, sizeof name);
            fputs(name, out);
            print_launch_shape(r.shape, out);
        } else if (r.kind == LAUNCH_MATMUL) {
            print_blas_matmul(*(const blas_matmul *)(l.bytes + r.arguments), out);
        } else {
            fprintf(out, "copy %zu bytes", r.copy_bytes);
        }
        fputs(": ", out);
        if (r.converts) fprintf(out, "convert %s%s", tensor_name(operand_root(r.converts)), r.n_nodes ? " for " : "");
        if (r.n_steps) fprintf(out, "%d step%s", r.n_steps, r.n_steps == 1 ? "" : "s");
        if (!r.n_steps) print_launch_nodes(l, program, r.first_node, r.n_nodes, out);
        if (!r.n_steps && !r.converts) print_launch_operands(l, program, r.first_node, r.n_nodes, out);
        fputc('\n', out);
        for (int s = r.first_step; s < r.first_step + r.n_steps; s++) {
            const launch_step &step = l.steps[s];
            fprintf(out, "  %s: ", step.what);
            print_launch_nodes(l, program, step.first_node, step.n_nodes, out);
            print_launch_operands(l, program, step.first_node, step.n_nodes, out);
            fputc('\n', out);
        }
    }
    return ferror(out) ? tn_fail(TN_E_IO, "the list of launches cannot be written") : TN_OK;
}

// ---- Limits ----

static tn_status check_kernel(const launch_record &r, const device_description &d) {
    enum { MAX_GRID_YZ = 65535 };
    const launch_shape &s = r.shape;
    const char *wrong = NULL;
    if (!s.threads || s.threads > MAX_BLOCK_THREADS) wrong = "threads of a block";
    if (!s.grid.x || s.grid.x > 0x7fffffffu || !s.grid.y || s.grid.y > MAX_GRID_YZ || !s.grid.z ||
        s.grid.z > MAX_GRID_YZ)
        wrong = "blocks of a grid";
    if (s.shared > (s.raises_limit ? d.shared_per_block : (size_t)DEFAULT_SHARED)) wrong = "shared memory";
    if (s.cooperative &&
        (!d.cooperative_launch ||
         (size_t)s.grid.x * s.grid.y * s.grid.z >
             (size_t)d.multiprocessors * (size_t)description_resident_blocks(d, s.threads, s.shared)))
        wrong = "resident blocks of a cooperative launch";
    if (s.early && !d.programmatic_launch) wrong = "early starts";
    if (!wrong) return TN_OK;
    char name[128];
    print_kernel_name(r.name, name, sizeof name);
    return tn_fail(TN_E_TOO_BIG, "%s with grid %u×%u×%u, block %u, shared %zu exceeds the limits of %s: %s", name,
                   s.grid.x, s.grid.y, s.grid.z, s.threads, s.shared, d.chip, wrong);
}
tn_status launch_list_check(const launch_list &l, const device_description &d) {
    for (size_t i = 0; i < l.n_records; i++)
        if (l.records[i].kind == LAUNCH_KERNEL) TN_TRY(check_kernel(l.records[i], d));
    return TN_OK;
}
