/* The choice of adapters of every sequence, and what it means for reuse. */
#include "llm/session_internal.h"

#include "base/hash.h"

#include <math.h>

/* ---- Identity ---- */

static uint64_t hash_scaled(uint64_t h, uint64_t content, float scale) {
    return tn__hash_bytes(&scale, sizeof scale, tn__hash_combine(h, content));
}

uint64_t tn__controls_hash(const tn_session_params *p) {
    uint64_t h = 0;
    for (size_t i = 0; i < p->n_controls; i++)
        if (p->controls[i].scale != 0) h = hash_scaled(h, p->controls[i].vector->hash, p->controls[i].scale);
    return h ? tn__hash_combine(h, (uint64_t)p->control_first << 32 | (uint32_t)p->control_last) : 0;
}

uint64_t tn__adapters_params_hash(const tn_session_params *p) {
    uint64_t h = tn__controls_hash(p);
    for (size_t i = 0; i < p->n_adapters; i++) h = hash_scaled(h, p->adapters[i].adapter->hash, p->adapters[i].scale);
    return h;
}

/* Adapters are added one after the other: their order matters, to the last bit. */
static uint64_t hash_scales(const tn__session_adapters *x, const float *scales) {
    uint64_t h = 0;
    for (size_t i = 0; i < x->n; i++)
        if (scales[i] != 0) h = hash_scaled(h, x->uses[i].adapter->hash, scales[i]);
    return h;
}

uint64_t tn__sequence_adapters_hash(const tn_session *s, int32_t seq) {
    return hash_scales(&s->plan->adapters, s->staging.scales + (size_t)seq * s->plan->adapters.n);
}

static uint64_t combine_key(uint64_t key, uint64_t adapters) {
    return adapters ? tn__hash_combine(key, adapters) : key;
}
uint64_t tn__sequence_key(const tn_session *s, int32_t seq, uint64_t key) {
    return combine_key(key, tn__sequence_adapters_hash(s, seq));
}
uint64_t tn_session_adapters_key(const tn_session *s, uint64_t key, const float *scales) {
    return s && scales ? combine_key(key, hash_scales(&s->plan->adapters, scales)) : key;
}

/* ---- Scales ---- */

static void set_scales(tn_session *s, int32_t seq, const float *scales) {
    const size_t n = s->plan->adapters.n;
    float *to = s->staging.scales + (size_t)seq * n;
    bool changed = false;
    for (size_t i = 0; i < n; i++) {
        changed = changed || to[i] != scales[i];
        to[i] = scales[i];
    }
    if (!changed) return;
    tn__queued_step_cancel(s);
    if (tn_session_seq_last(s, seq) >= 0) tn__prefixes_forget_owner(s, seq);
}

void tn__sequence_adapters_begin(tn_session *s) {
    const tn__session_adapters *x = &s->plan->adapters;
    for (int32_t seq = 0; seq < s->plan->params.n_seqs; seq++)
        for (size_t i = 0; i < x->n; i++) s->staging.scales[(size_t)seq * x->n + i] = x->uses[i].scale;
}

tn_status tn_session_seq_adapters(tn_session *s, int32_t seq, const float *scales) {
    if (!s || !scales) return tn_fail(TN_E_INVALID, "tn_session_seq_adapters: NULL argument");
    if (seq < -1 || seq >= s->plan->params.n_seqs) return tn_fail(TN_E_INVALID, "there is no sequence %d", seq);
    for (size_t i = 0; i < s->plan->adapters.n; i++)
        if (!isfinite(scales[i] * s->plan->adapters.factors[i]))
            return tn_fail(TN_E_INVALID, "the scale %g of adapter %zu is not finite, or too large", (double)scales[i],
                           i);
    for (int32_t i = 0; i < s->plan->params.n_seqs; i++)
        if (seq < 0 || i == seq) set_scales(s, i, scales);
    return TN_OK;
}

float tn_session_seq_adapter_scale(const tn_session *s, int32_t seq, size_t i) {
    if (!s || seq < 0 || seq >= s->plan->params.n_seqs || i >= s->plan->adapters.n) return 0;
    return s->staging.scales[(size_t)seq * s->plan->adapters.n + i];
}

uint32_t tn__batch_adapters(const tn_session *s, const int32_t *seqs, int32_t n) {
    const size_t n_adapters = s->plan->adapters.n;
    uint32_t used = 0;
    for (int32_t i = 0; i < n && n_adapters; i++) {
        if (i && seqs[i] == seqs[i - 1]) continue;
        for (size_t k = 0; k < n_adapters; k++)
            if (s->staging.scales[(size_t)seqs[i] * n_adapters + k] != 0) used |= (uint32_t)1 << k;
    }
    return tn__adapters_variant(n_adapters, used);
}
