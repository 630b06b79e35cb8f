/* The reference's attention: plain, latent, and with selected positions. */
#include "forward/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attend_rules {
    double scale, cap, alibi;
    const float *sinks;
    bool selected; /* only the positions in m->selected */
} attend_rules;

static bool sees(const forward_model *m, const forward_layer *l, const attend_rules *r, int t, int s) {
    if (m->causal && s > t) return false;
    if (r->selected && !m->selected[t][s]) return false;
    return !l->window || (m->causal ? t - s < l->window : abs(t - s) <= l->window / 2);
}

/* Heads are a power of two. */
static double slope_of(double most, int heads, int h) { return pow(2, -most * (h + 1) / heads); }

/* One head of one token: q and k of this many elements, v of size. */
static void attend_head(const forward_model *m, int il, const attend_rules *r, int t, int h, const double *q,
                        int size_k, forward_rows k, int at_k, forward_rows v, int at_v, int size_v, double *out) {
    const forward_layer *l = &m->layer[il];
    double scores[FORWARD_TOKENS], most = r->sinks ? (double)r->sinks[h] : -INFINITY;
    for (int s = 0; s < m->tokens; s++) {
        scores[s] = -INFINITY;
        if (!sees(m, l, r, t, s)) continue;
        double dot = 0;
        for (int i = 0; i < size_k; i++) dot += q[i] * k[s][at_k + i];
        scores[s] = dot * r->scale;
        if (r->cap > 0) scores[s] = r->cap * tanh(scores[s] / r->cap);
        if (r->alibi > 0) scores[s] -= slope_of(r->alibi, l->heads, h) * abs(t - s);
        most = fmax(most, scores[s]);
    }
    double total = r->sinks ? exp((double)r->sinks[h] - most) : 0;
    memset(out, 0, (size_t)size_v * sizeof *out);
    for (int s = 0; s < m->tokens; s++) total += exp(scores[s] - most);
    for (int s = 0; s < m->tokens; s++)
        for (int i = 0; i < size_v; i++) out[i] += exp(scores[s] - most) / total * v[s][at_v + i];
}

/* Norms of the heads of q or k: over a head, over all of them, or with weights of its own for each. */
static void norm_heads(const forward_model *m, int il, const char *name, int heads, int size, double *x) {
    const tn_gguf_tensor *t = forward_tensor(m, il, name);
    if (forward_is(m, "talkie")) {
        for (int h = 0; h < heads; h++) {
            forward_norm(m, false, NULL, NULL, size, m->eps, x + h * size);
            for (int i = 0; i < size && t; i++) x[h * size + i] *= (double)((const float *)t->data)[h];
        }
        return;
    }
    if (!t) return;
    const float *w = t->data;
    if (t->ne[0] > size) {
        forward_norm(m, m->f->mean, w, NULL, heads * size, m->eps, x);
        return;
    }
    const bool own = t->n_dims > 1 && t->ne[1] > 1;
    for (int h = 0; h < heads; h++)
        forward_norm(m, m->f->mean, w + (own ? h * size : 0), NULL, size, m->eps, x + h * size);
}

/* Scaled positions. Linear: all angles are divided by the factor. YaRN (Peng et al., 2023): dimensions that turn more
 * than beta_fast times within the original context keep their angle, those that turn less than beta_slow times are
 * divided, in between the two are mixed; and the rows grow by 1 + 0.1 ln(factor). */
static void rotate_scaled(const forward_model *m, const forward_layer *l, int position, double *x) {
    const char *type = tn_gguf_get_cstr(m->file, "llama.rope.scaling.type", "linear");
    const double factor = forward_key(m, "rope.scaling.factor", 1),
                 original = forward_key(m, "rope.scaling.original_context_length", 0);
    const double fast = forward_key(m, "rope.scaling.yarn_beta_fast", 32),
                 slow = forward_key(m, "rope.scaling.yarn_beta_slow", 1);
    const bool yarn = strcmp(type, "yarn") == 0;
    const double turns_once =
        l->rotated * log(original / (2 * acos(-1))) / (2 * log(l->base)); /* the dimension that turns once */
    const double per_turn = l->rotated / (2 * log(l->base));
    const double low = fmax(0, floor(turns_once - per_turn * log(fast))),
                 high = fmin(l->rotated - 1, ceil(turns_once - per_turn * log(slow)));
    for (int i = 0; i < l->rotated / 2; i++) {
        const bool halves = m->f->rope == ROPE_HALVES;
        const int a = halves ? i : 2 * i, b = halves ? i + l->rotated / 2 : 2 * i + 1;
        const double ramp = fmin(1, fmax(0, (i - low) / fmax(0.001, high - low))),
                     whole = position * pow(l->base, -2.0 * i / l->rotated);
        const double angle = yarn ? whole / factor * ramp + whole * (1 - ramp) : whole / factor;
        const double size = (yarn ? 1 + 0.1 * log(factor) : 1) * forward_key(m, "rope.scaling.attn_factor", 1),
                     u = x[a], v = x[b];
        x[a] = size * (u * cos(angle) - v * sin(angle));
        x[b] = size * (u * sin(angle) + v * cos(angle));
    }
}

static void rotate_heads(const forward_model *m, int il, int t, int heads, int size, double *x) {
    const forward_layer *l = &m->layer[il];
    const bool scaled = forward_is(m, "llama") && forward_has_key(m, "rope.scaling.factor");
    for (int h = 0; h < heads && l->rope; h++) {
        if (scaled)
            rotate_scaled(m, l, t, x + h * size);
        else
            forward_rotate(m->f->rope, l->rotated, l->base, t, x + h * size);
    }
}

static void norm_and_rotate(const forward_model *m, int il, int t, const char *norm, int heads, double *x) {
    const forward_layer *l = &m->layer[il];
    if (!m->f->qk_after) norm_heads(m, il, norm, heads, l->head_k, x);
    rotate_heads(m, il, t, heads, l->head_k, x);
    if (m->f->qk_after) norm_heads(m, il, norm, heads, l->head_k, x);
    for (int h = 0; h < heads && forward_is(m, "llama4") && l->rope; h++)
        forward_norm(m, false, NULL, NULL, l->head_k, m->eps, x + h * l->head_k);
}

static double attention_scale(const forward_model *m, const forward_layer *l) {
    if (forward_is(m, "grok")) return 0.08838834764831845;
    if (forward_is(m, "jais")) return 1.0 / l->head_k;
    if (forward_is(m, "gemma3n") || forward_is(m, "gemma4")) return 1;
    return forward_key(m, "attention.scale", 1 / sqrt(l->head_k));
}

/* Queries, their gates where the same matrix has them, keys and values of all tokens. */
static void project(forward_model *m, int il, forward_rows x, forward_rows q, forward_rows gates) {
    const forward_layer *l = &m->layer[il];
    const int nq = l->heads * l->head_k, nk = l->kv_heads * l->head_k, nv = l->kv_heads * l->head_v;
    const bool gemma = forward_is(m, "gemma3n") || forward_is(m, "gemma4");
    for (int t = 0; t < m->tokens; t++) {
        double all[FORWARD_MOST], *k = m->keys[il][t], *v = m->values[il][t];
        const int fused = forward_linear(m, il, "attn_qkv", 0, x[t], all);
        if (fused) {
            memcpy(q[t], all, (size_t)nq * sizeof *all);
            memcpy(k, all + nq, (size_t)nk * sizeof *all);
            memcpy(v, all + nq + nk, (size_t)nv * sizeof *all);
        } else {
            const int rows = forward_linear(m, il, "attn_q", 0, x[t], all);
            const int each = rows == 2 * nq ? 2 * l->head_k : l->head_k;
            for (int h = 0; h < l->heads; h++) {
                memcpy(q[t] + h * l->head_k, all + h * each, (size_t)l->head_k * sizeof *all);
                if (rows == 2 * nq)
                    memcpy(gates[t] + h * l->head_k, all + h * each + l->head_k, (size_t)l->head_k * sizeof *all);
            }
            if (l->cells_of < 0) forward_linear(m, il, "attn_k", 0, x[t], k);
            if (l->cells_of < 0 && !forward_linear(m, il, "attn_v", 0, x[t], v))
                memcpy(v, k, sizeof m->values[il][t]);
        }
        for (int h = 0; h < l->kv_heads && gemma && l->cells_of < 0; h++)
            forward_norm(m, false, NULL, NULL, l->head_v, m->eps, v + h * l->head_v);
        norm_and_rotate(m, il, t, "attn_q_norm.weight", l->heads, q[t]);
        if (l->cells_of < 0) norm_and_rotate(m, il, t, "attn_k_norm.weight", l->kv_heads, k);
    }
}

/* A gate for each element or for each head, from attention's input. */
static void gate_output(const forward_model *m, int il, const double *x, int n, int heads, double *y) {
    double gate[FORWARD_MOST];
    const int rows = forward_linear(m, il, "attn_gate", 0, x, gate);
    for (int i = 0; i < n && rows; i++) {
        const double g = gate[rows == heads ? i / (n / heads) : i];
        y[i] *= forward_is(m, "laguna") ? forward_softplus(g) : forward_sigmoid(g);
    }
}

void forward_attention(forward_model *m, int il, forward_rows x) {
    static forward_rows q, gates;
    const forward_layer *l = &m->layer[il];
    const int from = l->cells_of < 0 ? il : l->cells_of, share = l->heads / l->kv_heads, n = l->heads * l->head_v;
    const bool gated = forward_tensor(m, il, "attn_q.weight") &&
                       forward_tensor(m, il, "attn_q.weight")->ne[1] == 2 * l->heads * l->head_k;
    attend_rules rules = {.scale = attention_scale(m, l), .sinks = forward_weight(m, il, "attn_sinks.weight")};
    rules.cap = forward_key(m, "attn_logit_softcapping",
                            forward_is(m, "gemma2") ? 50
                            : forward_is(m, "grok") ? 30
                                                    : 0);
    rules.alibi = forward_key(m, "attention.max_alibi_bias", 0);
    const bool blocks = forward_tensor(m, il, "indexer.q_proj.weight") != NULL;
    project(m, il, x, q, gates);
    static forward_rows y;
    for (int h = 0; h < l->heads; h++) {
        if (blocks && h % share == 0) forward_select(m, il, NULL, x, h / share);
        rules.selected = blocks;
        for (int t = 0; t < m->tokens; t++)
            attend_head(m, il, &rules, t, h, q[t] + h * l->head_k, l->head_k, m->keys[from], h / share * l->head_k,
                        m->values[from], h / share * l->head_v, l->head_v, y[t] + h * l->head_v);
    }
    for (int t = 0; t < m->tokens; t++) {
        for (int i = 0; i < n && gated; i++) y[t][i] *= forward_sigmoid(gates[t][i]);
        gate_output(m, il, x[t], n, l->heads, y[t]);
        const float *sub = forward_weight(m, il, "attn_sub_norm.weight");
        if (sub) forward_norm(m, m->f->mean, sub, NULL, n, m->eps, y[t]);
        forward_linear(m, il, "attn_output", 0, y[t], x[t]);
    }
}

/* ---- Indexers ---- */

static void index_heads(const forward_model *m, int il, int t, const char *matrix, const char *norm, int size,
                        const double *x, double *y) {
    const forward_layer *l = &m->layer[il];
    const int n = forward_linear(m, il, matrix, 0, x, y);
    const forward_rope rope = forward_is(m, "glm-dsa") ? ROPE_NEIGHBOURS : ROPE_HALVES;
    for (int h = 0; h < n / size; h++) {
        const float *w = norm ? forward_weight(m, il, norm) : NULL;
        const float *b = forward_weight(m, il, "indexer.k_norm.bias");
        if (w && b) forward_norm(m, true, w, b, size, 1e-6, y + h * size);
        if (w && !b) forward_norm(m, false, w, NULL, size, m->eps, y + h * size);
        forward_rotate(rope, l->rotated, l->base, t, y + h * size);
    }
}

/* Which positions, or blocks of positions, list `list` selects for each token. */
void forward_select(forward_model *m, int il, const forward_rows q_low, const forward_rows x, int list) {
    const int size = (int)forward_key(m, "attention.indexer.key_length", 0);
    const int heads = (int)forward_key(m, "attention.indexer.head_count", 0);
    const int k = (int)forward_key(m, "attention.indexer.top_k", 0);
    const int block = (int)forward_key(m, "attention.indexer.block_size", 1);
    const int local = (int)forward_key(m, "attention.indexer.local_blocks", 0);
    static forward_rows keys;
    for (int t = 0; t < m->tokens; t++)
        index_heads(m, il, t, q_low ? "indexer.attn_k" : "indexer.k_proj", "indexer.k_norm.weight", size, x[t],
                    keys[t]);
    for (int t = 0; t < m->tokens; t++) {
        double q[FORWARD_MOST], weights[FORWARD_MOST], scores[FORWARD_TOKENS];
        index_heads(m, il, t, q_low ? "indexer.attn_q_b" : "indexer.q_proj", q_low ? NULL : "indexer.q_norm.weight",
                    size, q_low ? q_low[t] : x[t], q);
        if (q_low) forward_linear(m, il, "indexer.proj", 0, x[t], weights);
        for (int e = 0; e < FORWARD_TOKENS; e++) scores[e] = -INFINITY;
        for (int s = 0; s <= t; s++) {
            double score = 0;
            for (int h = 0; h < heads; h++) {
                double dot = 0;
                for (int i = 0; i < size; i++) dot += q[h * size + i] * keys[s][i];
                if (q_low) score += weights[h] * fmax(0, dot);
                if (!q_low && h == list) score = dot;
            }
            const int e = s / block;
            scores[e] = e > t / block - local ? INFINITY : fmax(scores[e], score);
        }
        for (int s = 0; s < m->tokens; s++) {
            int better = 0; /* earlier ones first among equals */
            for (int e = 0; e < FORWARD_TOKENS; e++)
                better += scores[e] > scores[s / block] || (scores[e] == scores[s / block] && e < s / block);
            m->selected[t][s] = s <= t && better < k;
        }
    }
}

/* ---- Latent attention ---- */

/* Keys and values of all heads from a short row. */
static void expand_row(const forward_model *m, int il, int h, int nope, int size_v, const double *row, double *k,
                       double *v) {
    const tn_gguf_tensor *kb = forward_tensor(m, il, "attn_k_b.weight"),
                         *vb = forward_tensor(m, il, "attn_v_b.weight");
    if (!kb) {
        double all[FORWARD_MOST];
        forward_linear(m, il, "attn_kv_b", 0, row, all);
        memcpy(k, all + h * (nope + size_v), (size_t)nope * sizeof *k);
        memcpy(v, all + h * (nope + size_v) + nope, (size_t)size_v * sizeof *v);
        return;
    }
    const int rank = (int)kb->ne[1];
    const float *wk = (const float *)kb->data + h * nope * rank, *wv = (const float *)vb->data + h * size_v * rank;
    for (int i = 0; i < nope; i++) {
        k[i] = 0;
        for (int r = 0; r < rank; r++) k[i] += (double)wk[r * nope + i] * row[r];
    }
    for (int i = 0; i < size_v; i++) {
        v[i] = 0;
        for (int r = 0; r < rank; r++) v[i] += (double)wv[i * rank + r] * row[r];
    }
}

void forward_latent(forward_model *m, int il, forward_rows x) {
    static forward_rows q, low, rows, k, v, y;
    const forward_layer *l = &m->layer[il];
    const bool small = l->window && forward_has_key(m, "attention.kv_lora_rank_swa");
    const int rank = (int)forward_key(m, small ? "attention.kv_lora_rank_swa" : "attention.kv_lora_rank", 0);
    const int size =
        (int)forward_key(m, small ? "attention.key_length_mla_swa" : "attention.key_length_mla", l->head_k);
    const int size_v =
        (int)forward_key(m, small ? "attention.value_length_mla_swa" : "attention.value_length_mla", l->head_v);
    const int rot = l->rotated, nope = size - rot;
    attend_rules rules = {.scale = 1 / sqrt(size)};
    for (int t = 0; t < m->tokens; t++) {
        double *a = low[t];
        const int n = forward_linear(m, il, "attn_q_a", 0, x[t], a);
        if (n) {
            forward_norm_named(m, il, "attn_q_a_norm", n, a);
            forward_linear(m, il, "attn_q_b", 0, a, q[t]);
        } else {
            forward_linear(m, il, "attn_q", 0, x[t], q[t]);
        }
        for (int h = 0; h < l->heads && l->rope; h++)
            forward_rotate(m->f->rope, rot, l->base, t, q[t] + h * size + nope);
        forward_linear(m, il, "attn_kv_a_mqa", 0, x[t], rows[t]);
        forward_norm_named(m, il, "attn_kv_a_norm", rank, rows[t]);
        forward_norm_named(m, il, "attn_k_norm", rot, rows[t] + rank);
        if (l->rope) forward_rotate(m->f->rope, rot, l->base, t, rows[t] + rank);
    }
    if (forward_tensor(m, il, "indexer.attn_k.weight")) forward_select(m, il, low, x, 0);
    rules.selected = forward_has_key(m, "attention.indexer.top_k") && !l->window;
    for (int h = 0; h < l->heads; h++) {
        for (int t = 0; t < m->tokens; t++) {
            expand_row(m, il, h, nope, size_v, rows[t], k[t], v[t]);
            memcpy(k[t] + nope, rows[t] + rank, (size_t)rot * sizeof **k);
        }
        for (int t = 0; t < m->tokens; t++)
            attend_head(m, il, &rules, t, h, q[t] + h * size, size, k, 0, v, 0, size_v, y[t] + h * size_v);
    }
    for (int t = 0; t < m->tokens; t++) {
        gate_output(m, il, x[t], l->heads * size_v, l->heads, y[t]);
        forward_linear(m, il, "attn_output", 0, y[t], x[t]);
    }
}
