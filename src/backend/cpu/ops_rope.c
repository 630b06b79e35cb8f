/* Rotary position embedding with all its variants: neighbours or halves, several positions per token, YaRN.
 *
 * Angles are kept in f64 until they are reduced to one turn, so that far positions lose nothing. */
#include "backend/cpu/ops.h"

typedef struct rotation {
    const tn_rope_params *p;
    const float *factors;
    int64_t pairs;
    double step; /* ratio of neighbouring frequencies */
    double ramp_low, ramp_high;
    float magnitude;
} rotation;

static bool is_multi(const tn_rope_params *p) { return p->mode == TN_ROPE_MULTI || p->mode == TN_ROPE_VISION; }
static int64_t pairs_of(const tn_rope_params *p) { return p->mode == TN_ROPE_VISION ? p->dims : p->dims / 2; }

/* YaRN: dimensions that turn often over the training context keep their frequency, those that turn less than once are
 * interpolated, with a ramp between. This is the pair that makes `turns` turns. */
static float pair_with_turns(const tn_rope_params *p, float turns) {
    return (float)p->dims * logf((float)p->n_ctx_orig / (turns * 2 * (float)M_PI)) / (2 * logf(p->base));
}

static rotation rotation_of(const tn_tensor *node) {
    const tn_rope_params *p = &node->params.rope;
    rotation r = {.p = p,
                  .factors = node->src[2] ? node->src[2]->data : NULL,
                  .pairs = pairs_of(p),
                  .step = pow((double)p->base, -2.0 / p->dims),
                  .magnitude = p->attn_factor};
    if (p->ext_factor != 0) {
        r.ramp_low = fmaxf(0, floorf(pair_with_turns(p, p->beta_fast)));
        r.ramp_high = fminf((float)p->dims - 1, ceilf(pair_with_turns(p, p->beta_slow)));
        r.magnitude *= 1 + 0.1f * logf(1 / p->freq_scale);
    }
    return r;
}

/* Cosine and sine for pair i, whose angle without any scaling is `angle`. */
static void turn(const rotation *r, int64_t i, double angle, float *cosine, float *sine) {
    double theta = r->p->freq_scale * angle;
    if (r->p->ext_factor != 0) {
        double at = ((double)i - r->ramp_low) / fmax(0.001, r->ramp_high - r->ramp_low);
        double mix = (1 - fmin(1, fmax(0, at))) * r->p->ext_factor;
        theta = theta * (1 - mix) + angle * mix;
    }
    /* Adding and taking off 1.5·2^52 rounds to a whole number; positions are far below what would be too large. */
    const double turns = theta * (0.5 / M_PI) + 0x1.8p52 - 0x1.8p52;
    const float reduced = (float)(theta - 2 * M_PI * turns);
    *cosine = cosf(reduced) * r->magnitude;
    *sine = sinf(reduced) * r->magnitude * (r->p->reverse ? -1.0f : 1.0f);
}

/* Angles of one token, for all its heads. */
static void angles(const tn_tensor *node, const rotation *r, int64_t token, float *cosine, float *sine) {
    const tn_rope_params *p = r->p;
    const int32_t *pos = node->src[1]->data;
    const int64_t sections_end = (int64_t)p->sections[0] + p->sections[1] + p->sections[2] + p->sections[3];
    const bool several = is_multi(p) && sections_end > 0;
    double frequency = 1;
    int64_t at = 0; /* place within the sections, which repeat */
    for (int64_t i = 0; i < r->pairs; i++, frequency *= r->step) {
        int s = 0;
        if (several) {
            int64_t start = 0;
            while (s < 3 && at >= start + p->sections[s]) start += p->sections[s++];
            /* Vision begins the frequencies anew with every section; otherwise they run on over all pairs. */
            if (p->mode == TN_ROPE_VISION && at == start) frequency = 1;
            if (++at == sections_end) at = 0;
        }
        double angle = pos[token + node->ne[2] * s] * frequency;
        if (r->factors) angle /= r->factors[i];
        turn(r, i, angle, &cosine[i], &sine[i]);
    }
}

static void rotate(const tn__task *task, const rotation *r, float *y, const float *x, const float *cosine,
                   const float *sine) {
    const int64_t n = 2 * r->pairs, rest = task->node->ne[0] - n;
    (r->p->mode == TN_ROPE_NORMAL ? task->kernels->rope_normal : task->kernels->rope_neox)(n, x, cosine, sine, y);
    if (rest > 0 && x != y) memcpy(y + n, x + n, (size_t)rest * 4);
}

/* Per thread: cosines, sines, and a row to convert into and out of f16. */
static size_t thread_scratch(const tn_tensor *node) {
    return 2 * tn__scratch_size((size_t)pairs_of(&node->params.rope) * 4) + tn__scratch_size((size_t)node->ne[0] * 4);
}
size_t tn__scratch_rope(const tn_tensor *node, const tn__cpu_kernels *kernels, int n_threads) {
    return thread_scratch(node) * (size_t)n_threads;
}

bool tn__supports_rope(const tn_tensor *node, char *reason, size_t size) {
    const tn_tensor *factors = node->src[2];
    if (factors && factors->ne[0] < pairs_of(&node->params.rope))
        return tn__refuse(reason, size, "rope: %lld factors for %lld pairs", (long long)factors->ne[0],
                          (long long)pairs_of(&node->params.rope));
    return true;
}

void tn__run_rope(const tn__task *task) {
    tn_tensor *y = task->node;
    const tn_tensor *x = y->src[0];
    const rotation r = rotation_of(y);
    unsigned char *scratch = task->scratch + (size_t)task->ith * thread_scratch(y);
    float *cosine = (float *)(void *)scratch;
    float *sine = (float *)(void *)(scratch + tn__scratch_size((size_t)r.pairs * 4));
    float *row = (float *)(void *)(scratch + 2 * tn__scratch_size((size_t)r.pairs * 4));
    int64_t begin, end, token = -1;
    tn__task_share(task, tn_nrows(y), &begin, &end);
    for (int64_t n = begin; n < end; n++) {
        tn__index i = tn__row_index(y, n);
        if (i.i2 != token) angles(y, &r, token = i.i2, cosine, sine);
        char *to = tn__at(y, i.i1, i.i2, i.i3);
        float *target = tn__target(y, to, 0, row);
        const float *from = tn__load(task->kernels, x, tn__at(x, i.i1, i.i2, i.i3), 0, y->ne[0], row);
        rotate(task, &r, target, from, cosine, sine);
        tn__store(task->kernels, y, to, 0, y->ne[0], target);
    }
}
