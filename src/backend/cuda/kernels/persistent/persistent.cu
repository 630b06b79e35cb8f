// The persistent decode kernel: collecting its steps and launching it.
#include "backend/cuda/kernels/persistent/persistent.cuh"

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"

// Result buffers in device memory, of PERSISTENT_MAX_ROW floats each: two take turns for results of single steps, the
// third is for q, k and v.
enum { RESULT_BUFFERS = 3, QKV_BUFFER = 2, EPOCH_BYTES = 128 };
struct persistent_steps {
    persistent_step *steps;
    const device_description *device;
    persistent_step *on_device;
    unsigned *epoch; // on the device: steps that ran so far
    float *result_buffers[RESULT_BUFFERS];
    const float *held[2]; // the tensor whose data a result buffer holds as well; or NULL
    const float *input;   // of the last matmul, as the compiler named it
    int last_buffer, blocks;
    int n, launched, capacity;
    int arrivals;    // steps since the last launch that arrive at the barrier of all blocks
    int size, group; // of the attentions since the last launch, or 0
};

bool persistent_supports(const device_description &device) {
    return device.bulk_copies && device.cooperative_launch && device.shared_per_block >= 227 << 10;
}

void persistent_free(persistent_steps *c) {
    if (!c) return;
    tn_free(c->steps);
    tn_free(c);
}
tn_status persistent_new(const device_description &device, int steps, persistent_steps **out) {
    persistent_steps *c = (persistent_steps *)tn_calloc(1, sizeof *c);
    if (!c) return TN_E_NOMEM;
    c->capacity = steps;
    c->device = &device;
    c->blocks = device.multiprocessors;
    c->steps = (persistent_step *)tn_calloc((size_t)steps, sizeof *c->steps);
    if (!c->steps) {
        persistent_free(c);
        return TN_E_NOMEM;
    }
    *out = c;
    return TN_OK;
}
static size_t step_bytes(const persistent_steps *c) { return (size_t)c->capacity * sizeof *c->steps; }
size_t persistent_memory_bytes(const persistent_steps *c) {
    return step_bytes(c) + EPOCH_BYTES + RESULT_BUFFERS * PERSISTENT_MAX_ROW * sizeof(float);
}
size_t persistent_zeros_offset(const persistent_steps *c) { return step_bytes(c); }
const persistent_step *persistent_all_steps(const persistent_steps *c, int *n) {
    *n = c->n;
    return c->steps;
}

// False for weight types without a unit, for a k that is no multiple of the unit's, and for matrices whose pieces or
// groups differ.
static bool persistent_matmul_of(const gemv_job &j, int blocks, persistent_matmul *p) {
    int span = 0;
    p->job = j;
    p->total_groups = 0;
    for (int i = 0; i < 3; i++)
        p->rows[i] = p->groups[i] = p->kinds[i] = p->piece_bytes[i] = p->last_piece_bytes[i] =
            p->next_group_bytes[i] = 0;
    for (int i = 0; i < j.n; i++) {
        int grain = 0, other = span;
        p->kinds[i] = persistent_weight_of(j.m[i].kind);
        if (p->kinds[i] == PERSISTENT_NONE) return false;
#define LAYOUT(U) other = U::SPAN, grain = U::GRAIN, p->rows[i] = U::GROUP, p->piece_bytes[i] = U::ROW
        FOR_WEIGHT_KIND(ALL_KINDS, p->kinds[i], LAYOUT)
#undef LAYOUT
        if (j.k % grain || (i && other != span)) return false;
        span = other;
        p->groups[i] = (j.m[i].rows + p->rows[i] - 1) / p->rows[i];
        if (i == 0 || j.finish != GEMV_GLU)
            p->total_groups += p->groups[i];
        else if (p->groups[i] != p->groups[0])
            return false;
    }
    p->pieces = (j.k + span - 1) / span;
    for (int i = 0; i < j.n; i++) {
        const int before = (p->pieces - 1) * p->piece_bytes[i];
        p->last_piece_bytes[i] = (int)j.m[i].row_bytes - before;
        p->next_group_bytes[i] = p->rows[i] * (int)j.m[i].row_bytes - before;
    }
    p->inverse_items = (unsigned)(0xffffffffu / (unsigned)(p->pieces * (j.finish == GEMV_GLU ? 2 : 1)) + 1);
    p->groups_per_block = p->total_groups / blocks;
    p->blocks_with_extra_group = p->total_groups % blocks;
    const int longest = p->kinds[0] <= PERSISTENT_BF16 ? PERSISTENT_MAX_FLOAT_ROW : PERSISTENT_MAX_ROW;
    return j.k % 32 == 0 && j.k <= longest && p->total_groups <= MAX_GROUPS;
}
// Soft caps, biases, chunks and windows to both sides are left out: few models use them, and their code would slow
// down all others.
bool persistent_takes_attention(const device_description &device, const tn_tensor *t) {
    const tn_attention_params &p = t->params.attention;
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K];
    // Partial results of all warps must fit into shared memory beside the weights' stages.
    bool fits = q->ne[0] <= 64 || q->ne[1] / k->ne[1] <= 4;
    // Every key/value head needs a block of its own, also on a partition of a GPU.
    if (k->ne[1] > device.multiprocessors) return false;
    // A tile of cells must be in one run.
    bool has_tiles = !t->src[TN_ATTN_PAGES] || (p.page >= TILE_CELLS && page_shift_of(p.page) >= 0);
    return t->ne[2] == 1 && p.soft_cap == 0 && p.max_bias == 0 && !p.chunk && !p.window_after && fits && has_tiles &&
           q->nb[1] % 16 == 0;
}
bool persistent_takes_matmul(const gemv_job &j) {
    persistent_matmul p;
    return persistent_matmul_of(j, 1, &p);
}

// ---- Dependencies between steps ----

static void persistent_begin_launch(persistent_steps *c) {
    c->size = c->group = c->arrivals = 0;
    c->held[0] = c->held[1] = NULL;
}
void persistent_begin(persistent_steps *c, char *memory) {
    c->n = c->launched = c->last_buffer = 0;
    c->on_device = (persistent_step *)memory;
    c->epoch = (unsigned *)(memory + step_bytes(c));
    for (int i = 0; i < RESULT_BUFFERS; i++)
        c->result_buffers[i] = (float *)(memory + step_bytes(c) + EPOCH_BYTES) + i * PERSISTENT_MAX_ROW;
    persistent_begin_launch(c);
}
// The previous step of this launch, or NULL.
static persistent_step *persistent_last_step(persistent_steps *c) {
    return c->n > c->launched ? &c->steps[c->n - 1] : NULL;
}
// Tagged words need results in every block, an even number in each matrix, and tags for all steps.
static bool can_publish(const persistent_steps *c, const persistent_matmul &p) {
    int rows = 0;
    for (int i = 0; i < (p.job.finish == GEMV_GLU ? 1 : p.job.n); i++) {
        if (p.job.m[i].rows % 2) return false;
        rows += p.job.m[i].rows;
    }
    return c->capacity < TAGS && p.total_groups >= c->blocks && rows <= PERSISTENT_MAX_ROW;
}
// Lets the last step publish its result if the next step reads it at `y`. Returns the result buffer, or NULL.
static const float *publish_last_result(persistent_steps *c, const float *y) {
    persistent_step *from = persistent_last_step(c);
    if (!from || !y) return NULL;
    bool is_attention = from->is_attention;
    gemv_next &next = is_attention ? from->attention.next : from->matmul.job.next;
    if (next.y != y || (is_attention ? c->capacity >= TAGS : !can_publish(c, from->matmul))) return NULL;
    next.y = NULL;
    c->last_buffer ^= 1;
    (is_attention ? from->attention.published : from->matmul.published[0]) = c->result_buffers[c->last_buffer];
    c->held[c->last_buffer] = is_attention ? NULL : from->matmul.job.m[0].out;
    return c->result_buffers[c->last_buffer];
}
// Makes the step wait at a barrier until all steps before it have ended.
static void wait_for_steps(persistent_steps *c, persistent_step *s) {
    persistent_step *from = persistent_last_step(c);
    if (!from || s->waits) return;
    from->arrives = true;
    s->waits = true;
    s->arrivals = ++c->arrivals;
}
// Whether a step of this launch writes its result there.
static bool is_result(const persistent_steps *c, const float *at) {
    for (int i = c->launched; i < c->n; i++) {
        const persistent_step &s = c->steps[i];
        const decode_job &d = s.attention;
        const float *out = s.is_attention ? (const float *)d.a.out : NULL;
        if (s.is_attention && at >= out && at < out + d.a.heads * d.a.head_v) return true;
        for (int m = 0; !s.is_attention && m < s.matmul.job.n; m++) {
            out = s.matmul.job.m[m].out;
            if (out && at >= out && at < out + s.matmul.job.m[m].rows) return true;
        }
    }
    return false;
}
// Whether the last step multiplies the same input, in the same form.
static bool reads_last_input(persistent_steps *c, const persistent_matmul &p) {
    const persistent_step *from = persistent_last_step(c);
    if (!from || from->is_attention || !p.job.in.y || p.job.in.y != c->input) return false;
    const gemv_job &last = from->matmul.job;
    return last.k == p.job.k && last.in.weight == p.job.in.weight && last.in.eps == p.job.in.eps &&
           last.finish == GEMV_STORE && (p.kinds[0] <= PERSISTENT_BF16) == (from->matmul.kinds[0] <= PERSISTENT_BF16);
}
void persistent_add_matmul(persistent_steps *c, const gemv_job &job) {
    persistent_step &s = c->steps[c->n];
    memset((void *)&s, 0, sizeof s);
    persistent_matmul_of(job, c->blocks, &s.matmul);
    gemv_job &j = s.matmul.job;
    s.input_step = -1;
    s.matmul.same_input = reads_last_input(c, s.matmul);
    c->input = j.in.y;
    const float *published = s.matmul.same_input ? NULL : publish_last_result(c, j.in.y);
    if (s.matmul.same_input) {
        // Nothing is loaded, so there is nothing to wait for.
    } else if (published) {
        j.in.y = published;
        s.input_step = c->n - 1 - c->launched;
    } else {
        wait_for_steps(c, &s);
    }
    if (j.finish == GEMV_ADD) {
        for (int i = 0; i < 2 && !s.matmul.residual_is_published; i++)
            if (c->held[i] == j.residual) {
                j.residual = c->result_buffers[i];
                s.matmul.residual_is_published = true;
            }
        if (!s.matmul.residual_is_published && is_result(c, j.residual)) wait_for_steps(c, &s);
    }
    c->n++;
}
static int persistent_group_of(const decode_job &d) {
    int group = d.a.heads / d.a.kv_heads;
    return group <= 2 ? group : group <= 4 ? 4 : 8;
}
// The address in the result buffer at which the last step publishes what it writes at `at`, or NULL.
static const char *published_address(const persistent_steps *c, const persistent_matmul &p, const char *at,
                                     int64_t size) {
    const float *buffer = c->result_buffers[QKV_BUFFER];
    for (int i = 0; i < p.job.n; buffer += p.job.m[i++].rows) {
        const char *out = (const char *)p.job.m[i].out;
        if (out && at >= out && at + size <= out + (int64_t)p.job.m[i].rows * 4)
            return (const char *)buffer + (at - out);
    }
    return NULL;
}
// Lets the last step publish q and the new rows of k and v, if it computes all of them.
static bool publish_last_rows(persistent_steps *c, decode_job *d) {
    persistent_step *from = persistent_last_step(c);
    const attention_job &a = d->a;
    int64_t row = a.head_k * 4;
    if (!from || from->is_attention || from->matmul.job.finish != GEMV_STORE || from->matmul.job.next.y ||
        !can_publish(c, from->matmul) || a.q1 != row || d->nk1 != row || d->nv1 != row)
        return false;
    persistent_matmul &p = from->matmul;
    const char *q = published_address(c, p, a.q, a.heads * row), *k = NULL, *v = NULL;
    if (d->rows) {
        k = published_address(c, p, d->new_k, a.kv_heads * row);
        v = published_address(c, p, d->new_v, a.kv_heads * row);
    }
    if (!q || (d->rows && (!k || !v))) return false;
    d->a.q = q;
    d->new_k = k;
    d->new_v = v;
    float *buffer = c->result_buffers[QKV_BUFFER];
    for (int i = 0; i < p.job.n; buffer += p.job.m[i++].rows) p.published[i] = buffer;
    return true;
}
// Attention steps that rotate by the same positions share a table of angles; those that read the same shares of the
// same page table share its runs.
static bool same_rotation(const decode_job &a, const decode_job &b) {
    return a.dims == b.dims && a.positions == b.positions && a.factors == b.factors && a.freq_scale == b.freq_scale &&
           a.ext_factor == b.ext_factor && a.attn_factor == b.attn_factor && a.corr_low == b.corr_low &&
           a.corr_high == b.corr_high && a.octave == b.octave;
}
static bool same_view(const decode_job &a, const decode_job &b) {
    return a.a.pages == b.a.pages && a.a.q_pos == b.a.q_pos && a.rows == b.rows && a.a.cells == b.a.cells &&
           a.a.p.page == b.a.p.page && a.a.max_runs == b.a.max_runs && a.a.sequences == b.a.sequences &&
           a.a.kv_heads == b.a.kv_heads && a.splits == b.splits;
}
bool persistent_must_launch(const persistent_steps *c, const decode_job &job) {
    return c->size && (c->size != job.a.head_k || c->group != persistent_group_of(job));
}
void persistent_add_attention(persistent_steps *c, const decode_job &job) {
    persistent_step *before = persistent_last_step(c), &s = c->steps[c->n];
    memset((void *)&s, 0, sizeof s);
    s.is_attention = true;
    s.attention = job;
    decode_job &d = s.attention;
    c->size = d.a.head_k;
    c->group = persistent_group_of(d);
    d.wait_first = before && before->is_attention;
    s.input_step = publish_last_rows(c, &d) ? c->n - 1 - c->launched : -1;
    if (s.input_step < 0) wait_for_steps(c, &s);
    d.rotation = d.view = c->n;
    for (int i = c->n - 1; i >= c->launched; i--) {
        if (!c->steps[i].is_attention) continue;
        const decode_job &last = c->steps[i].attention;
        if (same_rotation(last, d)) d.rotation = last.rotation;
        if (same_view(last, d)) d.view = last.view;
        break;
    }
    c->n++;
}

// ---- Launches ----

// Bytes of shared memory for a step's activations, or for the partial results of an attention.
static size_t persistent_shared_bytes(const persistent_step &s) {
    if (!s.is_attention)
        return s.matmul.kinds[0] <= PERSISTENT_BF16 ? (size_t)s.matmul.job.k * 4 : (size_t)s.matmul.job.k / 4 * 5;
    int size = s.attention.a.head_k;
    return (size_t)(WARPS * size + WARPS * TILE_CELLS + 2 * WARPS + 64 + 2) * 4 *
               (size_t)persistent_group_of(s.attention) +
           (size_t)size * (32 + 4) + 16;
}

tn_status persistent_compile(persistent_steps *c, const compilation &to) {
    int n = c->n - c->launched, types = 0;
    if (!n) return TN_OK;
    const persistent_step *steps = c->steps + c->launched;
    size_t ring = (size_t)STAGES * WARPS * STAGE_BYTES, activations = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = persistent_shared_bytes(steps[i]);
        if (bytes > activations) activations = bytes;
        if (steps[i].is_attention) continue;
        const gemv_job &job = steps[i].matmul.job;
        if (job.in.weight && (size_t)job.k * 4 > norm) norm = (size_t)job.k * 4;
        for (int m = 0; m < job.n; m++) types |= 1 << steps[i].matmul.kinds[m];
    }
    activations = (activations + 127) & ~(size_t)127;
    norm = (norm + 127) & ~(size_t)127;
    if (ring + activations + norm + STATIC_SHARED_BYTES > c->device->shared_per_block) norm = 0;
    launch_shape shape = {dim3((unsigned)c->blocks), THREADS, ring + norm + activations, true};
    shape.early = shape.cooperative = true;
    persistent_kernel chosen = persistent_kernel_for(types, c->size, c->group);
    TN_TRY(add_kernel(to, chosen.name, chosen.kernel, shape, c->on_device + c->launched, n, to.tickets + N_TICKETS,
                      c->epoch, (int)norm));
    c->launched = c->n;
    persistent_begin_launch(c);
    return TN_OK;
}
