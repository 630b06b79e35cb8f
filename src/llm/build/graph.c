/* The graph of a micro-batch: embedding, layers, result. */
#include "llm/build/builder.h"

#include "base/checked.h"

/* How this layer's parts are combined: as in its family, unless the file says otherwise. */
static tn__residual residual_of(const tn__builder *b, const tn__layer *l) {
    if (tn__arch_has(b->arch, TN_ARCH_FFN_NORM_OR_PARALLEL) && !l->ffn_norm) return TN__RESIDUAL_PARALLEL;
    if (b->arch->residual == TN__RESIDUAL_PARALLEL_NORM && !b->h->parallel) return TN__RESIDUAL_SERIAL;
    return b->arch->residual;
}

tn__part_result tn__build_mixer_part(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__mixer *mixer = b->h->layers[il].mixer;
    tn_tensor *y = mixer ? mixer->build(b, il, x) : tn__build_attention(b, il, x);
    return (tn__part_result){y, tn__division_of(b, il)->mixer};
}

tn_tensor *tn__build_mixer(tn__builder *b, int32_t il, tn_tensor *x) {
    return tn__sum_result(b, tn__build_mixer_part(b, il, x), "attn_out");
}

tn_tensor *tn__build_wanted(const tn__builder *b, int32_t il, tn_tensor *x, const char *what) {
    tn_tensor *rows = tn__builder_input(b, TN__INPUT_OUTPUT_ROWS);
    if (b->plan->params.states) return x; /* of all tokens: build_result selects */
    return il == b->h->n_layer - 1 && rows ? tn__name_node(b, tn_get_rows(b->a, x, rows), what) : x;
}

tn_tensor *tn__build_layer(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn__layer *l = &b->m->w.layers[il];
    tn_arena *a = b->a;
    tn__residual residual = residual_of(b, l);
    tn_tensor *in = x;
    if (!tn__layer_mixes(&b->h->layers[il])) {
        x = tn__build_wanted(b, il, x, "x_wanted");
        return tn__layer_feeds(&b->h->layers[il]) ? tn__build_serial_ffn(b, il, x) : x;
    }
    if (l->attn_norm || tn__arch_has(b->arch, TN_ARCH_BARE_NORMS))
        in = tn__name_node(b, tn__build_norm(b, x, l->attn_norm, l->attn_norm_b), "attn_norm");
    tn_tensor *attn_in = l->attn_norm_2 && residual != TN__RESIDUAL_POST_NORM
                             ? tn__name_node(b, tn__build_norm(b, x, l->attn_norm_2, l->attn_norm_2_b), "attn_norm_2")
                             : in;
    const bool feeds = tn__layer_feeds(&b->h->layers[il]);
    tn__part_result mixed = tn__build_mixer_part(b, il, attn_in);
    /* Side by side both parts are summed together: nothing needs the first one's sum. */
    const bool joins = feeds && !l->attn_post_norm &&
                       (residual == TN__RESIDUAL_PARALLEL || residual == TN__RESIDUAL_PARALLEL_NORM) && mixed.partial;
    if (!joins) mixed = (tn__part_result){tn__sum_result(b, mixed, "attn_out"), false};
    tn_tensor *attn = tn__build_wanted(b, il, mixed.y, "attn_wanted");
    x = tn__build_wanted(b, il, x, "x_wanted");
    b->router_input = b->arch->router_reads_layer ? x : NULL;
    if (residual == TN__RESIDUAL_PARALLEL) in = tn__build_wanted(b, il, in, "attn_norm_wanted");
    if (l->attn_post_norm) attn = tn__name_node(b, tn__build_post_norm(b, attn, l->attn_post_norm), "attn_post_norm");
    attn = tn__name_node(b, tn__build_scaled(b, attn, b->h->residual_scale), "attn_scaled");
    if (!feeds) return tn_add(a, attn, x);
    if (residual == TN__RESIDUAL_PARALLEL_NORM)
        in = tn__name_node(b, tn__build_norm(b, x, l->ffn_norm, l->ffn_norm_b), "ffn_norm");
    switch (residual) {
    case TN__RESIDUAL_SERIAL: return tn__build_serial_ffn(b, il, tn__name_node(b, tn_add(a, attn, x), "attn_sum"));
    case TN__RESIDUAL_PARALLEL:
    case TN__RESIDUAL_PARALLEL_NORM: {
        if (joins) {
            const tn__part_result both =
                tn__add_results(b, tn__build_feed_forward_part(b, il, in), (tn__part_result){attn, true}, "ffn_out");
            return tn_add(a, tn__sum_result(b, both, "layer_out"), x);
        }
        tn_tensor *sum = tn__name_node(b, tn_add(a, attn, x), "attn_sum");
        return tn_add(a, tn__build_feed_forward(b, il, in), sum);
    }
    case TN__RESIDUAL_POST_NORM: {
        tn_tensor *mid =
            tn__build_norm(b, tn__name_node(b, tn_add(a, attn, x), "attn_sum"), l->attn_out_norm, l->attn_out_norm_b);
        if (l->attn_norm_2) { /* the input is added a second time */
            mid = tn__name_node(b, tn_add(a, tn__name_node(b, mid, "attn_norm_1"), x), "attn_sum_2");
            mid = tn__build_norm(b, mid, l->attn_norm_2, l->attn_norm_2_b);
        }
        tn_tensor *sum = tn_add(a, tn__build_feed_forward(b, il, tn__name_node(b, mid, "attn_norm")), mid);
        return tn__build_norm(b, tn__name_node(b, sum, "ffn_sum"), l->layer_out_norm, l->layer_out_norm_b);
    }
    }
    return NULL;
}

static tn_tensor *build_embedding(const tn__builder *b) {
    const tn__weights *w = &b->m->w;
    tn_tensor *x = tn__name_node(b, tn_get_rows(b->a, w->tok_embd, b->tokens), "embedding");
    x = tn__adapt_lookup(b, w->tok_embd, b->tokens, x, "embedding");
    x = tn__name_node(b, tn__build_scaled(b, x, b->h->embd_scale), "embedding_scaled");
    tn_tensor *types = tn__input_tensor(&b->set->inputs, TN__INPUT_TOKEN_TYPES);
    if (w->type_embd)
        x = tn_add(b->a, x,
                   types ? tn__name_node(b, tn_get_rows(b->a, w->type_embd, types), "type_embedding")
                         : tn_view(b->a, w->type_embd, 1, (const int64_t[]){b->h->n_embd}, NULL, 0));
    if (types) x = tn__name_node(b, x, "type_sum");
    if (w->pos_embd)
        x = tn_add(b->a, x,
                   tn__name_node(b, tn_get_rows(b->a, w->pos_embd, tn__builder_input(b, TN__INPUT_POSITIONS)),
                                 "position_embedding"));
    x = tn__name_node(b, x, "embedding_sum");
    if (b->arch->bare_embedding_norm) x = tn__name_node(b, tn__build_norm(b, x, NULL, NULL), "embedding_norm");
    if (w->tok_norm) x = tn__name_node(b, tn__build_norm(b, x, w->tok_norm, w->tok_norm_b), "embedding_norm");
    return x;
}

static tn_tensor *build_head(const tn__builder *b, tn_tensor *x) {
    const tn__weights *w = &b->m->w;
    tn_tensor *head = tn__vocabulary_slice(b, w->output ? w->output : w->tok_embd);
    tn_tensor *y = tn__build_linear(b, head, w->output_s, w->output_b, x, "logits");
    y = tn__build_scaled(b, y, b->h->logit_scale);
    float cap = b->h->final_soft_cap;
    if (cap > 0) y = tn_scale(b->a, tn_tanh(b->a, tn_scale(b->a, y, 1 / cap, 0)), cap, 0);
    return tn__gather_vocabulary(b, y);
}

/* The matrices that some models apply to the pooled state: they may as well precede the mean, being linear. */
static tn_tensor *build_embedding_head(const tn__builder *b, tn_tensor *x) {
    const tn__weights *w = &b->m->w;
    if (!w->dense_2 || !w->dense_3 || b->plan->params.pooling == TN_POOLING_NONE) return x;
    x = tn__build_linear(b, w->dense_2, NULL, NULL, x, "dense_2");
    return tn__build_linear(b, w->dense_3, NULL, NULL, x, "dense_3");
}

/* Scores from the pooled state. */
static tn_tensor *build_classifier(const tn__builder *b, tn_tensor *x) {
    const tn__weights *w = &b->m->w;
    const tn_op activation = b->arch->classifier ? b->arch->classifier : TN_OP_TANH;
    if (w->cls) x = tn_unary(b->a, activation, tn__build_linear(b, w->cls, NULL, w->cls_b, x, "classifier"));
    if (w->cls_norm) x = tn__build_norm(b, x, w->cls_norm, NULL);
    return tn__build_linear(b, w->cls_out, NULL, w->cls_out_b, x, "scores");
}

/* An upper bound for the tensors of a graph. A weight is used once per chunk of its layer, and with fewer stored
 * layers than layers again in others. */
static size_t graph_tensor_limit(const tn_session_plan *p, tn__shape shape) {
    enum { NODES_PER_WEIGHT = 12, NODES_PER_ADAPTER = 4 };
    const tn_model *m = p->model;
    const size_t chunks = tn__ffn_most_chunks(p, shape.n_tokens);
    size_t lists = 0; /* block-sparse attention has nodes for every key/value head */
    for (int32_t i = 0; i < m->h.n_layer; i++)
        if (m->h.layers[i].indexer && !m->h.layers[i].kv_rank) lists += 8 * (size_t)m->h.layers[i].n_head_kv;
    size_t adapted = 0;
    for (size_t i = 0; i < p->adapters.n_list; i++) adapted += shape.adapters >> p->adapters.list[i].adapter & 1;
    adapted *= (size_t)(m->h.n_layer / TN__MAX(m->h.n_stored_layers, 1)) + 1;
    return (size_t)m->h.n_layer * (113 + 80 * chunks) + lists + 64 + adapted * NODES_PER_WEIGHT * chunks +
           NODES_PER_ADAPTER * p->adapters.n;
}

/* The largest logits of every row. */
static void build_candidates(const tn__builder *b, tn_tensor *logits) {
    tn__graph_set *set = b->set;
    const int32_t k = tn__plan_candidates(b->plan);
    set->sums = tn_name(b->a, tn_output(tn_sum_rows(b->a, logits)), "sums");
    set->largest = tn_name(b->a, tn_output(tn_top_k(b->a, logits, k)), "candidates");
    tn_tensor *single = tn_reshape(b->a, logits, 1, logits->ne[0], logits->ne[1]);
    set->largest_logits = tn_name(b->a, tn_output(tn_get_rows(b->a, single, set->largest)), "candidates.logits");
}

/* Copies the state before layer `il`, [width, tokens], if it is among the states that decodes return. It is copied at
 * once, because layers may add to their input in place. While planning, a layer may stand for others. */
static void keep_state(tn__builder *b, int32_t il, tn_tensor *x) {
    const tn_session_params *p = &b->plan->params;
    while (x && b->n_layer_states < p->n_state_layers && p->state_layers[b->n_layer_states] <= il) {
        if (x->ne[0] != b->h->n_embd || x->ne[2] != 1) {
            if (b->status == TN_OK)
                b->status = tn_fail(TN_E_UNSUPPORTED, "the states before layers of %s models cannot be returned",
                                    b->arch->info.name);
            return;
        }
        tn_tensor *kept = b->layer_states ? tn_concat(b->a, b->layer_states, x, 0) : tn_dup(b->a, x);
        if (kept) tn_name(b->a, kept, "states.%d", p->state_layers[b->n_layer_states]);
        tn__append_now(b, kept);
        b->layer_states = kept;
        b->n_layer_states++;
    }
}

/* The states that the session returns of all tokens, besides the logits of some. x: before the last norm. */
static tn_tensor *states_of(const tn__builder *b, tn_tensor *x, tn_tensor *normed) {
    if (b->layer_states) return b->layer_states;
    return tn__feature_width(b->h) ? x : normed;
}

/* From logits, or from what other kinds give. */
static tn_tensor *finish_result(tn__builder *b, tn_tensor *x, bool argmax, const char *name) {
    if (argmax) {
        b->set->sums = tn_name(b->a, tn_output(tn_sum_rows(b->a, x)), "sums");
        x = tn_argmax(b->a, x);
    }
    x = tn_name(b->a, tn_output(x), "%s", name);
    if (b->set->shape.kind == TN__GRAPH_CANDIDATES) build_candidates(b, x);
    return x;
}

/* What a graph of this kind gives, from the state after the last layer. */
static tn_tensor *build_result(tn__builder *b, tn_tensor *x) {
    static const char *const names[] = {
        [TN__GRAPH_LOGITS] = "logits", [TN__GRAPH_ARGMAX] = "argmax", [TN__GRAPH_CANDIDATES] = "logits",
        [TN__GRAPH_NEXT] = "argmax",   [TN__GRAPH_HIDDEN] = "hidden", [TN__GRAPH_RANK] = "scores"};
    const tn__weights *w = &b->m->w;
    const tn__graph_kind kind = b->set->shape.kind;
    const bool argmax = kind == TN__GRAPH_ARGMAX || kind == TN__GRAPH_NEXT;
    const tn__division *d = &b->m->division;
    b->suffix[0] = '\0';
    if (!tn__holds_end(d) || kind == TN__GRAPH_PASS) {
        if (!tn__holds_end(d)) x = tn__send_state(b, x, "layers_sent");
        if (d->rank || kind == TN__GRAPH_PASS) return tn_output(x);
        x = tn__receive_state(b, x, b->h->n_vocab, b->set->shape.n_outputs, "logits_received");
        return finish_result(b, x, argmax, names[kind]);
    }
    tn_tensor *state = x;
    if (w->out_norm || tn__arch_has(b->arch, TN_ARCH_BARE_NORMS))
        x = tn__name_node(b, tn__build_norm(b, x, w->out_norm, w->out_norm_b), "output_norm");
    if (b->plan->params.states) {
        tn_tensor *rows = tn__builder_input(b, TN__INPUT_OUTPUT_ROWS);
        b->set->states = tn_name(b->a, tn_output(states_of(b, state, x)), "states");
        if (rows) x = tn__name_node(b, tn_get_rows(b->a, x, rows), "states_wanted");
    }
    if (kind == TN__GRAPH_LOGITS || kind == TN__GRAPH_CANDIDATES || argmax) x = build_head(b, x);
    if (kind == TN__GRAPH_HIDDEN) x = build_embedding_head(b, x);
    if (kind == TN__GRAPH_RANK) x = build_classifier(b, x);
    if (d->by_layers) return tn_output(d->rank_in_stage ? x : tn__send_state(b, x, "logits_sent"));
    return finish_result(b, x, argmax, names[kind]);
}

tn__builder tn__begin_graph(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    set->shape = shape;
    return (tn__builder){.plan = p, .m = p->model, .h = &p->model->h, .arch = p->model->arch, .set = set};
}

tn_status tn__build_graph(const tn_session_plan *p, tn__shape shape, tn__graph_set *set) {
    tn__builder b = tn__begin_graph(p, shape, set);
    tn_tensor *wanted_scales[TN_ADAPTERS_MOST] = {NULL};
    b.wanted_scales = wanted_scales;
    size_t limit = set->n_tensors ? set->n_tensors : graph_tensor_limit(p, shape);
    size_t capacity =
        set->n_tensors ? set->capacity : limit + p->model->n_all + 2 * p->adapters.n_list + 5 * (size_t)b.h->n_layer;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(limit, capacity),
                                           .no_alloc = true,
                                           .repeatable = p->params.repeatable},
                        &set->arena));
    tn_arena *a = b.a = set->arena;
    TN_TRY(tn_graph_new(a, capacity, &b.graph));
    tn__inputs_build(a, b.h, &p->kv, shape, &set->inputs);
    b.tokens = shape.kind == TN__GRAPH_NEXT ? tn_view(a, p->kv.argmax, 1, (const int64_t[]){1}, NULL, 0)
                                            : tn__builder_input(&b, TN__INPUT_TOKENS);
    const tn__division *division = &p->model->division;
    tn_tensor *x = b.embedding = tn__holds_start(division)
                                     ? build_embedding(&b)
                                     : tn__receive_state(&b, NULL, b.h->n_embd, shape.n_tokens, "layers_received");
    if (b.h->head_layer) x = tn__build_head_input(&b, x);
    if (b.arch->begin) x = b.arch->begin(&b, x);
    for (int32_t k = 0; k < tn__built_count(p); k++) {
        int32_t il = tn__built_layer(p, k);
        if (!tn__holds_layer(division, il)) continue;
        keep_state(&b, il, x);
        snprintf(b.suffix, sizeof b.suffix, ".%d", il);
        x = b.arch->layer ? b.arch->layer(&b, il, x) : tn__build_layer(&b, il, x);
        if (p->adapters.directions && p->adapters.directions[il]) {
            tn_name(a, x, "layer_plain.%d", il);
            x = tn_add(a, x, p->adapters.directions[il]);
        }
        tn_name(a, x, "layer.%d", il);
    }
    if (b.arch->end) x = b.arch->end(&b, x);
    keep_state(&b, INT32_MAX, x);
    set->result = build_result(&b, x);
    TN_TRY(tn_arena_status(a));
    TN_TRY(b.status);
    set->graph = b.graph;
    if (set->states) TN_TRY(tn_graph_add(set->graph, set->states));
    if (set->sums) TN_TRY(tn_graph_add(set->graph, set->sums));
    if (set->largest_logits) TN_TRY(tn_graph_add(set->graph, set->largest_logits));
    return tn_graph_add(set->graph, set->result);
}
