/* Attention over K and V rows with visibility from positions. */
#include "backend/cpu/ops.h"

int64_t tn__units_attention(const tn_tensor *node) { return tn_nrows(node); }
double tn__cost_attention(const tn_tensor *node) {
    return (double)tn_nrows(node) * (double)node->src[TN_ATTN_K]->ne[2] * (double)node->ne[0] * 0.2;
}
int tn__phases_attention(const tn_tensor *node) { return 1; }
static size_t thread_scratch(const tn_tensor *node) {
    return tn__scratch_size((size_t)TN__MAX(node->src[TN_ATTN_K]->ne[0], node->ne[0]) * 4);
}
size_t tn__scratch_attention(const tn_tensor *node, int n_threads) {
    return thread_scratch(node) * (size_t)n_threads;
}

static bool visible(const tn_attention_params *p, int64_t own, int64_t cell) {
    if (p->causal && cell > own) return false;
    if (p->window > 0 && own - cell >= p->window) return false;
    return p->chunk <= 0 || cell / p->chunk == own / p->chunk;
}

static float dot(const float *x, const float *y, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* One query of one head: a running maximum, and everything so far scaled to it. */
static void attend(const tn_tensor *out, int64_t head, int64_t token, int64_t batch, float *row) {
    const tn_tensor *q = out->src[TN_ATTN_Q], *k = out->src[TN_ATTN_K], *v = out->src[TN_ATTN_V];
    const tn_tensor *mask = out->src[TN_ATTN_MASK], *sinks = out->src[TN_ATTN_SINKS];
    const tn_attention_params *p = &out->params.attention;
    const int32_t *q_pos = out->src[TN_ATTN_Q_POS] ? out->src[TN_ATTN_Q_POS]->data : NULL;
    const int32_t *k_pos = q_pos ? out->src[TN_ATTN_K_POS]->data : NULL;
    const int32_t *range = q_pos ? out->src[TN_ATTN_RANGE]->data : NULL;
    const int64_t words = q_pos ? out->src[TN_ATTN_K_POS]->ne[0] : 0;
    const int64_t kv_head = head / (q->ne[1] / k->ne[1]), n = out->ne[0];
    const float slope = p->max_bias > 0 ? tn__alibi_slope(head, q->ne[1], p->max_bias) : 0;
    const float *query = (const float *)(const void *)tn__at(q, head, token, batch);
    float *to = (float *)(void *)tn__at(out, head, token, batch);
    memset(to, 0, (size_t)n * 4);
    int64_t own = k->ne[2] - q->ne[2] + token, sequence = 0, first = 0, end = k->ne[2];
    if (q_pos) {
        own = q_pos[2 * token];
        sequence = q_pos[2 * token + 1];
        if (sequence < 0 || sequence / 32 >= words - 1) return;
        first = TN__MAX(0, range[0]);
        end = TN__MIN(range[1], k->ne[2]);
    }
    float most = -INFINITY, sum = 0;
    for (int64_t c = first; c < end; c++) {
        int64_t at = c;
        if (k_pos) {
            const int32_t *cell = k_pos + c * words;
            at = cell[0];
            if (at < 0 || !((uint32_t)cell[1 + sequence / 32] >> (sequence % 32) & 1)) continue;
        }
        if (!visible(p, own, at)) continue;
        float score = p->scale * dot(query, tn__load(k, tn__at(k, kv_head, c, batch), 0, k->ne[0], row), k->ne[0]);
        if (p->soft_cap > 0) score = p->soft_cap * tanhf(score / p->soft_cap);
        if (slope > 0) score -= slope * fabsf((float)(own - at));
        if (mask) {
            float buffer;
            const char *mask_row = tn__at(mask, token, head % mask->ne[2], batch % mask->ne[3]);
            score += *tn__load(mask, mask_row, c, 1, &buffer);
        }
        if (score == -INFINITY) continue;
        if (score > most || isnan(score)) {
            const float factor = expf(most - score);
            for (int64_t i = 0; i < n; i++) to[i] *= factor;
            sum *= factor;
            most = score;
        }
        const float weight = expf(score - most);
        sum += weight;
        const float *value = tn__load(v, tn__at(v, kv_head, c, batch), 0, n, row);
        for (int64_t i = 0; i < n; i++) to[i] += weight * value[i];
    }
    if (most == -INFINITY) return;
    if (sinks) sum += expf(((const float *)sinks->data)[head] - most);
    for (int64_t i = 0; i < n; i++) to[i] /= sum;
}

void tn__run_attention(const tn__task *task) {
    tn_tensor *out = task->node;
    float *row = (float *)(void *)(task->scratch + (size_t)task->ith * thread_scratch(out));
    const int64_t units = tn_nrows(out);
    for (int64_t unit; (unit = tn__take(task)) < units;) {
        tn__index i = tn__row_index(out, unit);
        attend(out, i.i1, i.i2, i.i3, row);
    }
}
