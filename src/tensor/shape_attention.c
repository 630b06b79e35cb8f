/* The shape rule of attention. */
#include "tensor/attention_bias.h"
#include "tensor/shape_rules.h"

static bool has_cache_type(const tn_tensor *x) {
    return x->type == TN_F32 || x->type == TN_F16 || x->type == TN_BF16 || x->type == TN_FP8 ||
           (tn_type_is_quantized(x->type) && tn_type_can_read(x->type));
}
static tn_status check_selected(tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *selected = t->src[TN_ATTN_SELECTED];
    const int32_t block = t->params.attention.select_block;
    REQUIRE(block >= 0, TN_E_INVALID, "select_block must not be negative");
    if (!selected) return TN_OK;
    REQUIRE(is_index(selected), TN_E_TYPE, "selected must be i32");
    REQUIRE(selected->ne[1] == q->ne[2] && tn_is_matrix(selected) && tn_is_contiguous(selected), TN_E_SHAPE,
            "selected must be [n,%lld]", (long long)q->ne[2]);
    REQUIRE(selected->ne[0] <= INT32_MAX / 4, TN_E_SHAPE, "%lld selected entries are too many",
            (long long)selected->ne[0]);
    REQUIRE(q->ne[3] == 1, TN_E_SHAPE, "selected positions have no batch dimension");
    return TN_OK;
}
static tn_status check_bias_table(tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *table = t->src[TN_ATTN_BIAS_TABLE];
    const tn_attention_params *p = &t->params.attention;
    if (!table) return TN_OK;
    const int64_t buckets = table->ne[1] / (p->bias_bidirectional ? 2 : 1);
    REQUIRE(table->type == TN_F32, TN_E_TYPE, "the bias table must be f32");
    REQUIRE(table->ne[0] == q->ne[1] && tn_is_matrix(table) && tn_is_contiguous(table), TN_E_SHAPE,
            "the bias table must be [%lld,buckets]", (long long)q->ne[1]);
    REQUIRE(buckets >= 2 && table->ne[1] <= TN__BIAS_BUCKETS, TN_E_SHAPE,
            "%lld buckets; 2 (4 if bidirectional) to %d are supported", (long long)table->ne[1], TN__BIAS_BUCKETS);
    REQUIRE(p->bias_distance > buckets / 2, TN_E_INVALID, "bias_distance must be above %lld, not %d",
            (long long)buckets / 2, (int)p->bias_distance);
    return TN_OK;
}
tn_status tn__rule_attention(tn_tensor *t) {
    const tn_tensor *q = t->src[TN_ATTN_Q], *k = t->src[TN_ATTN_K], *v = t->src[TN_ATTN_V];
    const tn_tensor *q_pos = t->src[TN_ATTN_Q_POS], *pages = t->src[TN_ATTN_PAGES];
    const tn_attention_params *p = &t->params.attention;
    REQUIRE(q->type == TN_F32, TN_E_TYPE, "q must be f32");
    REQUIRE(has_cache_type(k), TN_E_TYPE, "k cannot be read");
    REQUIRE(has_cache_type(v), TN_E_TYPE, "v cannot be read");
    REQUIRE(tn_is_contiguous_rows(q) && tn_is_contiguous_rows(k) && tn_is_contiguous_rows(v), TN_E_SHAPE,
            "rows must be contiguous");
    REQUIRE(q->ne[0] == k->ne[0], TN_E_SHAPE, "head sizes of q and k differ");
    REQUIRE(k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3], TN_E_SHAPE,
            "the shapes of k and v do not match");
    REQUIRE(k->ne[1] > 0 && q->ne[1] % k->ne[1] == 0, TN_E_SHAPE,
            "%lld query heads are not a multiple of %lld kv heads", (long long)q->ne[1], (long long)k->ne[1]);
    REQUIRE(q->ne[3] == k->ne[3], TN_E_SHAPE, "batches differ");
    REQUIRE(!q_pos == !pages, TN_E_INVALID, "q_pos and pages must be given together");
    if (q_pos) {
        REQUIRE(is_index(q_pos) && is_index(pages), TN_E_TYPE, "q_pos and pages must be i32");
        REQUIRE(q_pos->ne[0] == 2 && q_pos->ne[1] == q->ne[2] && tn_is_matrix(q_pos) && tn_is_contiguous(q_pos),
                TN_E_SHAPE, "q_pos must be [2,%lld]", (long long)q->ne[2]);
        REQUIRE(pages->ne[0] == 4 && pages->ne[1] >= 1 && pages->ne[3] == 1 && tn_is_contiguous(pages), TN_E_SHAPE,
                "pages must be [4,1+runs,sequences]");
        REQUIRE(p->page > 0, TN_E_INVALID, "page must be positive, not %d", (int)p->page);
        REQUIRE(!t->src[TN_ATTN_MASK], TN_E_INVALID, "there is no mask with page tables");
        REQUIRE(q->ne[3] == 1, TN_E_SHAPE, "sequence memory has no batch dimension");
    }
    TN_TRY(tn__check_mask(t, t->src[TN_ATTN_MASK], k->ne[2], q->ne[2], q->ne[1], q->ne[3]));
    TN_TRY(tn__check_sinks(t, t->src[TN_ATTN_SINKS], q->ne[1]));
    TN_TRY(check_selected(t));
    TN_TRY(check_bias_table(t));
    REQUIRE(p->soft_cap >= 0 && p->max_bias >= 0 && p->window >= 0 && p->window_after >= 0 && p->chunk >= 0,
            TN_E_INVALID, "soft_cap, max_bias, window, window_after and chunk must not be negative");
    t->type = TN_F32;
    has_shape(t, v->ne[0], q->ne[1], q->ne[2], q->ne[3]);
    return TN_OK;
}
