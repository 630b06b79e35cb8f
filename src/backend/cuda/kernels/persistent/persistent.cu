// The persistent decode kernel: collecting its steps and launching it.
#include "backend/cuda/kernels/persistent/persistent.cuh"

#include "backend/cuda/kernels/persistent/persistent_layout.cuh"

enum { RESULT_BUFFERS = 3 };
struct persistent_launcher {
    persistent_step *steps, *sent; // as collected in this run; as the device has them
    persistent_step *on_device;
    unsigned *epoch;                       // on the device: steps that ran so far
    float *result_buffers[RESULT_BUFFERS]; // what is told: two in turn, and q, k, v; PERSISTENT_MAX_ROW floats each
    const float *held[2];                  // the plain result that a place has, too; or NULL
    int last_buffer, blocks;
    int n, launched, capacity;
    int arrivals;    // steps since the last launch that say they are done
    int size, group; // of the attentions since the last launch, or 0
};

bool persistent_supports(const cuda_device *device) {
    return device->properties.major >= 9 && device->properties.cooperativeLaunch != 0 &&
           device->properties.sharedMemPerBlockOptin >= 227 << 10;
}

void persistent_free(persistent_launcher *c) {
    if (!c) return;
    if (c->on_device) cudaFree(c->on_device);
    tn_free(c->steps);
    tn_free(c->sent);
    tn_free(c);
}
tn_status persistent_new(const cuda_device *device, int steps, persistent_launcher **out) {
    persistent_launcher *c = (persistent_launcher *)tn_calloc(1, sizeof *c);
    if (!c) return TN_E_NOMEM;
    c->capacity = steps;
    c->blocks = device->properties.multiProcessorCount;
    c->steps = (persistent_step *)tn_calloc((size_t)steps, sizeof *c->steps);
    c->sent = (persistent_step *)tn_calloc((size_t)steps, sizeof *c->sent);
    tn_status status = c->steps && c->sent ? TN_OK : TN_E_NOMEM;
    if (status == TN_OK) status = cuda_check(cudaSetDevice(device->ordinal), "cudaSetDevice");
    const size_t bytes = (size_t)steps * sizeof *c->on_device, buffer = PERSISTENT_MAX_ROW * sizeof(float),
                 all = bytes + 128 + RESULT_BUFFERS * buffer;
    if (status == TN_OK) status = cuda_check(cudaMalloc(&c->on_device, all), "allocating steps");
    if (status == TN_OK) status = clear_now(c->on_device, all);
    for (size_t i = 0; status == TN_OK && i < RESULT_BUFFERS; i++)
        c->result_buffers[i] = (float *)((char *)c->on_device + bytes + 128 + i * buffer);
    if (status == TN_OK) c->epoch = (unsigned *)((char *)c->on_device + bytes);
    if (status != TN_OK) {
        persistent_free(c);
        return status;
    }
    *out = c;
    return TN_OK;
}

// False where a matrix is of a kind that has no unit or k does not suit it, or where pieces or groups would differ.
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
    return j.k % 32 == 0 && j.k <= PERSISTENT_MAX_ROW && p->total_groups <= MAX_GROUPS;
}
// What few models do to scores or masks is not in a chain: its code would be in everybody's way.
bool persistent_takes_attention(const cuda_device *device, const tn_tensor *t) {
    const tn_attention_params &p = t->params.attention;
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K];
    bool fits = q->ne[0] <= 64 || q->ne[1] / k->ne[1] <= 4; // what the warps bring together, beside the rings
    // Every key/value head has a block of its own, also on a part of a GPU.
    if (k->ne[1] > device->properties.multiProcessorCount) return false;
    return t->ne[2] == 1 && p.soft_cap == 0 && p.max_bias == 0 && !p.chunk && fits && q->nb[1] % 16 == 0;
}
bool persistent_takes_matmul(const gemv_job &j) {
    persistent_matmul p;
    return persistent_matmul_of(j, 1, &p);
}

// ---- Who tells whom ----

static void persistent_forget(persistent_launcher *c) {
    c->size = c->group = c->arrivals = 0;
    c->held[0] = c->held[1] = NULL;
}
void persistent_begin(persistent_launcher *c) {
    c->n = c->launched = c->last_buffer = 0;
    persistent_forget(c);
}
// The step before in this launch, or NULL.
static persistent_step *persistent_last_step(persistent_launcher *c) {
    return c->n > c->launched ? &c->steps[c->n - 1] : NULL;
}
// Whether every block has results, and all come in pairs.
static bool can_publish(const persistent_launcher *c, const persistent_matmul &p) {
    int rows = 0;
    for (int i = 0; i < (p.job.finish == GEMV_GLU ? 1 : p.job.n); i++) {
        if (p.job.m[i].rows % 2) return false;
        rows += p.job.m[i].rows;
    }
    return c->capacity < TAGS && p.total_groups >= c->blocks && rows <= PERSISTENT_MAX_ROW;
}
// Has the last step tell its result to one that reads it at `y`: where that is now, or NULL.
static const float *publish_last_result(persistent_launcher *c, const float *y) {
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
// All steps so far must have ended before this one.
static void wait_for_steps(persistent_launcher *c, persistent_step *s) {
    persistent_step *from = persistent_last_step(c);
    if (!from || s->waits) return;
    from->arrives = true;
    s->waits = true;
    s->arrivals = ++c->arrivals;
}
// Whether a step of this launch leaves its result there.
static bool is_result(const persistent_launcher *c, const float *at) {
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
void persistent_add_matmul(persistent_launcher *c, const gemv_job &job) {
    persistent_step &s = c->steps[c->n];
    memset((void *)&s, 0, sizeof s);
    persistent_matmul_of(job, c->blocks, &s.matmul);
    gemv_job &j = s.matmul.job;
    s.input_step = -1;
    const float *published = publish_last_result(c, j.in.y);
    if (published) {
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
// Where the last step tells what it leaves at `at`, or NULL.
static const char *published_address(const persistent_launcher *c, const persistent_matmul &p, const char *at,
                                     int64_t size) {
    const float *buffer = c->result_buffers[2];
    for (int i = 0; i < p.job.n; buffer += p.job.m[i++].rows) {
        const char *out = (const char *)p.job.m[i].out;
        if (out && at >= out && at + size <= out + (int64_t)p.job.m[i].rows * 4)
            return (const char *)buffer + (at - out);
    }
    return NULL;
}
// Has the last step tell q and the new rows, if it computed all of them.
static bool publish_last_rows(persistent_launcher *c, decode_job *d) {
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
    float *buffer = c->result_buffers[2];
    for (int i = 0; i < p.job.n; buffer += p.job.m[i++].rows) p.published[i] = buffer;
    return true;
}
tn_status persistent_add_attention(persistent_launcher *c, const launch &l, const decode_job &job) {
    if (c->size && (c->size != job.a.head_k || c->group != persistent_group_of(job))) TN_TRY(persistent_launch(c, l));
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
    // Steps with the same rotation share its table, and those that see the same cells what they know of them.
    d.rotation = d.view = c->n;
    for (int i = c->n - 1; i >= c->launched; i--) {
        const decode_job &o = c->steps[i].attention;
        if (!c->steps[i].is_attention) continue;
        if (o.dims == d.dims && o.positions == d.positions && o.factors == d.factors &&
            o.freq_scale == d.freq_scale && o.ext_factor == d.ext_factor && o.attn_factor == d.attn_factor &&
            o.corr_low == d.corr_low && o.corr_high == d.corr_high && o.octave == d.octave)
            d.rotation = o.rotation;
        if (o.a.range == d.a.range && o.a.q_pos == d.a.q_pos && o.a.k_pos == d.a.k_pos && o.rows == d.rows &&
            o.a.cells == d.a.cells && o.a.words == d.a.words && o.a.kv_heads == d.a.kv_heads &&
            o.splits == d.splits && o.a.p.causal == d.a.p.causal && o.a.p.window == d.a.p.window)
            d.view = o.view;
        break;
    }
    c->n++;
    return TN_OK;
}

static size_t persistent_shared_bytes(const persistent_step &s) {
    if (!s.is_attention)
        return s.matmul.kinds[0] <= PERSISTENT_BF16 ? (size_t)s.matmul.job.k * 4 : (size_t)s.matmul.job.k / 4 * 5;
    int size = s.attention.a.head_k;
    return (size_t)(WARPS * size + WARPS * TILE_CELLS + 2 * WARPS + 64 + 2) * 4 *
               (size_t)persistent_group_of(s.attention) +
           (size_t)size * (32 + 4) + 16;
}

tn_status persistent_launch(persistent_launcher *c, const launch &l) {
    int n = c->n - c->launched;
    if (!n) return TN_OK;
    const persistent_step *steps = c->steps + c->launched;
    size_t bytes = (size_t)n * sizeof *steps, activation_bytes = 0;
    for (int i = 0; i < n; i++)
        if (persistent_shared_bytes(steps[i]) > activation_bytes)
            activation_bytes = persistent_shared_bytes(steps[i]);
    activation_bytes = (activation_bytes + 127) & ~(size_t)127;
    size_t ring = (size_t)STAGES * WARPS * STAGE_BYTES, norm = 0;
    for (int i = 0; i < n; i++)
        if (!steps[i].is_attention && steps[i].matmul.job.in.weight && (size_t)steps[i].matmul.job.k * 4 > norm)
            norm = (size_t)steps[i].matmul.job.k * 4;
    norm = (norm + 127) & ~(size_t)127;
    if (ring + activation_bytes + norm + STATIC_SHARED_BYTES > l.device->properties.sharedMemPerBlockOptin) norm = 0;
    // A captured launch finds the steps of the run before, which had the same addresses.
    if (memcmp(steps, c->sent + c->launched, bytes) != 0) {
        cudaStreamCaptureStatus capturing;
        CUDA_TRY(cudaStreamIsCapturing(l.stream, &capturing));
        if (capturing != cudaStreamCaptureStatusNone)
            return tn_fail(TN_E_INTERNAL,
                           "the persistent decode kernel's steps changed between two runs with the same addresses");
        memcpy(c->sent + c->launched, steps, bytes);
        CUDA_TRY(cudaMemcpyAsync(c->on_device + c->launched, steps, bytes, cudaMemcpyHostToDevice, l.stream));
        CUDA_TRY(cudaStreamSynchronize(l.stream)); // `steps` may change with the next run
    }
    int kinds = 0;
    for (int i = 0; i < n; i++)
        for (int m = 0; !steps[i].is_attention && m < steps[i].matmul.job.n; m++)
            kinds |= 1 << steps[i].matmul.kinds[m];
    persistent_function kernel = persistent_kernel_for(kinds, c->size, c->group);
    size_t shared = ring + norm + activation_bytes;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)l.device->properties.multiProcessorCount);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = shared;
    config.stream = l.stream;
    config.attrs = attributes;
    config.numAttrs = l.strict ? 1 : 2;
    tn_status status =
        cuda_check(cudaLaunchKernelEx(&config, kernel, (const persistent_step *)c->on_device + c->launched, n,
                                      l.tickets + N_TICKETS, c->epoch, (int)norm),
                   "persistent decode kernel");
    c->launched = c->n;
    persistent_forget(c);
    return status;
}
