/* Rotary position embedding with all its variants: neighbours or halves, several positions per token, YaRN.
 *
 * Angles are computed in f64 until they are reduced to one turn, so that large positions lose no precision. */
#include "backend/cpu/ops/ops.h"

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

/* YaRN: dimensions that make many turns over the training context keep their frequency, those that make less than one
 * are interpolated, with a ramp between. Returns the pair that makes `turns` turns. */
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
        const float low = pair_with_turns(p, p->beta_fast), high = pair_with_turns(p, p->beta_slow);
        r.ramp_low = fmaxf(0, p->exact_ramp ? low : floorf(low));
        r.ramp_high = fminf((float)p->dims - 1, p->exact_ramp ? high : ceilf(high));
        r.magnitude *= 1 + 0.1f * logf(1 / p->freq_scale);
    }
    return r;
}

/* The scaled angle of pair i, reduced to within half a turn; `angle` is the angle before scaling. */
static float reduced(const rotation *r, int64_t i, double angle) {
    double theta = r->p->freq_scale * angle;
    if (r->p->ext_factor != 0) {
        double at = ((double)i - r->ramp_low) / fmax(0.001, r->ramp_high - r->ramp_low);
        double mix = (1 - fmin(1, fmax(0, at))) * r->p->ext_factor;
        theta = theta * (1 - mix) + angle * mix;
    }
    /* Adding and subtracting 1.5·2^52 rounds to an integer; positions are far below the range where it fails. */
    const double turns = theta * (0.5 / M_PI) + 0x1.8p52 - 0x1.8p52;
    return (float)(theta - 2 * M_PI * turns);
}

/* Replaces n angles within half a turn by their cosines and writes their sines, in a form that compilers vectorize.
 * The angle is reduced to within an eighth of a turn by multiples of a quarter turn. π/2 is subtracted in three parts
 * so that no bits of the angle are lost. In that range the polynomials are exact to about an ulp. */
static void cosines_and_sines(int64_t n, float *cosine, float *sine) {
    for (int64_t i = 0; i < n; i++) {
        const float x = cosine[i], shifted = x * 0.636619772f + 0x1.8p23f, quarters = shifted - 0x1.8p23f;
        int32_t quadrant;
        memcpy(&quadrant, &shifted, sizeof quadrant);
        float y = x - quarters * 1.5703125f;
        y = y - quarters * 4.837512969970703125e-4f;
        y = y - quarters * 7.54978995489188216e-8f;
        const float z = y * y;
        const float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * y + y;
        const float c =
            ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1;
        const float other = quadrant & 1 ? s : c, one = quadrant & 1 ? c : s;
        cosine[i] = (quadrant + 1) & 2 ? -other : other;
        sine[i] = quadrant & 2 ? -one : one;
    }
}

/* Angles of one token, for all its heads. */
static void angles(const tn_tensor *node, const rotation *r, int64_t token, float *cosine, float *sine) {
    const tn_rope_params *p = r->p;
    const int32_t *pos = node->src[1]->data;
    const int64_t sections_end = (int64_t)p->sections[0] + p->sections[1] + p->sections[2] + p->sections[3];
    const bool several = is_multi(p) && sections_end > 0;
    double frequency = 1;
    int64_t at = 0; /* index within the sections, which repeat */
    for (int64_t i = 0; i < r->pairs; i++, frequency *= r->step) {
        int s = 0;
        if (several) {
            int64_t start = 0;
            while (s < 3 && at >= start + p->sections[s]) start += p->sections[s++];
            /* Vision restarts the frequencies in every section; otherwise they continue over all pairs. */
            if (p->mode == TN_ROPE_VISION && at == start) frequency = 1;
            if (++at == sections_end) at = 0;
        }
        double angle = pos[token + node->ne[2] * s] * frequency;
        if (r->factors) angle /= r->factors[i];
        cosine[i] = reduced(r, i, angle);
    }
    cosines_and_sines(r->pairs, cosine, sine);
    const float magnitude = r->magnitude, sine_magnitude = p->reverse ? -magnitude : magnitude;
    for (int64_t i = 0; i < r->pairs && (magnitude != 1 || p->reverse); i++) {
        cosine[i] *= magnitude;
        sine[i] *= sine_magnitude;
    }
}

static void rotate(const tn__task *task, const rotation *r, float *y, const float *x, const float *cosine,
                   const float *sine) {
    const int64_t n = 2 * r->pairs, rest = task->node->ne[0] - n;
    (r->p->mode == TN_ROPE_NORMAL ? task->kernels->rope_normal : task->kernels->rope_neox)(n, x, cosine, sine, y);
    if (rest > 0 && x != y) memcpy(y + n, x + n, (size_t)rest * 4);
}

/* Per thread: cosines, sines, and a row for conversion from and to f16. */
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
    tn__index i = tn__row_index(y, begin);
    for (int64_t n = begin; n < end; n++) {
        if (i.i2 != token) angles(y, &r, token = i.i2, cosine, sine);
        char *to = tn__at(y, i.i1, i.i2, i.i3);
        float *target = tn__target(y, to, 0, row);
        const float *from = tn__load(task->kernels, x, tn__at(x, i.i1, i.i2, i.i3), 0, y->ne[0], row);
        rotate(task, &r, target, from, cosine, sine);
        tn__store(task->kernels, y, to, 0, y->ne[0], target);
        if (++i.i1 < y->ne[1]) continue;
        i.i1 = 0;
        if (++i.i2 < y->ne[2]) continue;
        i.i2 = 0;
        i.i3++;
    }
}
