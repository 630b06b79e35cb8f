/* Attention of a batch with many sequences (a server's decode): part of the attention template.
 *
 * The tokens of a sequence are adjacent in the batch and form a run. A long run is a matrix of queries. A short run,
 * often a single token, first lists its visible cells from the blocks that contain its sequence, and then processes
 * the list once per kv head: scores, weights, values. The KV cache of all sequences is larger than any CPU cache, so
 * the keys and values of the next list (of this run or the next) are prefetched while this one is computed. */

static int64_t att_part_tokens(const tn__attention_job *job) {
    int64_t share = job->heads / job->kv_heads, most = ATT_FEW / share > 1 ? ATT_FEW / share : 1;
    return job->tokens < most ? job->tokens : most;
}
/* A job for some of the tokens of another. */
static tn__attention_job att_part(const tn__attention_job *job, int64_t token, int64_t count) {
    tn__attention_job part = *job;
    part.tokens = count;
    part.unsplit = true;
    if (job->q) part.q = (const char *)job->q + (size_t)token * job->q_token;
    if (job->out) part.out = (float *)((char *)job->out + (size_t)token * job->out_token);
    if (job->q_pos) part.q_pos = job->q_pos + 2 * token;
    if (job->mask) part.mask = (const char *)job->mask + (size_t)token * job->mask_token;
    return part;
}
/* Number of consecutive tokens of the same sequence, starting with this one, and whether they are few. */
static int64_t att_run_of(const tn__attention_job *job, int64_t token, bool *few) {
    int64_t n = 1;
    if (!job->q_pos || job->k_words == 0)
        n = job->tokens - token;
    else
        while (token + n < job->tokens && job->q_pos[2 * (token + n) + 1] == job->q_pos[2 * token + 1]) n++;
    *few = n * (job->heads / job->kv_heads) <= ATT_FEW;
    return n;
}

/* A short run: the kv heads that this thread computes, and the positions visible to any of its tokens. */
typedef struct att_run {
    tn__attention_job job;
    int64_t kv_from, kv_to;
    int32_t sequence;
    att_span span;
} att_run;

/* A list of cells that a run processes together. The first visit of a run may be empty. */
typedef struct att_visit {
    const att_run *run;
    bool begins;
    int count;
    int32_t *cells; /* padded with the last cell to a multiple of ATT_STEP */
    int32_t own[ATT_LIST_ROOM];
} att_visit;

/* The lists of a thread, which are the same for every layer, kept if they fit. Each list is preceded by its length
 * and a bit that marks the beginning of a run. The struct is zero initially. */
typedef struct att_kept {
    const int32_t *q_pos, *k_pos, *range;
    int64_t from, to;
    int32_t causal, window, chunk, ints;
    bool complete;
    _Alignas(64) int32_t lists[];
} att_kept;
_Static_assert(sizeof(att_kept) <= TN__KEPT_HEAD, "the caller zeroes TN__KEPT_HEAD bytes");
static int64_t att_kept_room(const tn__attention_job *job) {
    enum { MOST = 16 * 1024 };
    return job->tokens < MOST / ATT_LIST_ROOM ? job->tokens * ATT_LIST_ROOM : MOST;
}
static size_t att_kept_bytes(const tn__attention_job *job) {
    if (att_is_few(job) || !job->k_words) return 0;
    return sizeof(att_kept) + (size_t)att_kept_room(job) * sizeof(int32_t);
}
static bool att_is_kept(const tn__attention_job *job, int64_t from, int64_t to) {
    const att_kept *kept = job->kept;
    const tn_attention_params *p = &job->params;
    return kept && kept->complete && kept->q_pos == job->q_pos && kept->k_pos == job->k_pos &&
           kept->range == job->range && kept->from == from && kept->to == to && kept->window == p->window &&
           kept->chunk == p->chunk && kept->causal == p->causal;
}

/* Iterates over a thread's share [from, to) of the short runs. The kv heads of all short runs are numbered
 * consecutively. */
typedef struct att_walk {
    const tn__attention_job *job;
    const att_index *index;
    int64_t from, to;
    int64_t token, item; /* of the next run: its first token, and the number of its first kv head */
    int64_t cell, end;   /* of the rest of this run */
    int cells_max;       /* cells of a visit */
    att_run runs[2];     /* this one, and the one before, which may still be in use */
    int which;
    att_kept *kept; /* NULL: lists are not kept, or do not fit */
    bool replay;    /* use the kept lists */
    int32_t at;     /* index in the kept lists */
} att_walk;

/* Two visits, the one being computed and the one being prefetched, fit into a second-level cache. */
static int att_visit_cells_max(const tn__attention_job *job) {
    enum { BYTES = 128 * 1024 };
    const size_t cell =
        (size_t)job->kv_heads * (att_row_bytes(job->k_type, job->head_k) + att_row_bytes(job->v_type, job->head_v));
    const size_t most = BYTES / cell;
    return most > ATT_LIST ? ATT_LIST : most < ATT_BATCH ? ATT_BATCH : (int)most;
}

static bool att_next_run(att_walk *w) {
    const tn__attention_job *job = w->job;
    while (w->token < job->tokens && w->item < w->to) {
        bool few;
        const int64_t token = w->token, n = att_run_of(job, token, &few);
        const int64_t kv = w->from > w->item ? w->from - w->item : 0;
        const int64_t kv_to = w->to - w->item < job->kv_heads ? w->to - w->item : job->kv_heads;
        w->token += n;
        if (!few) continue;
        w->item += job->kv_heads;
        if (kv >= kv_to) continue;
        w->which ^= 1;
        att_run *run = &w->runs[w->which];
        *run = (att_run){att_part(job, token, n), kv, kv_to, tn__query_of(job, token).sequence,
                         att_span_of(job, token, token + n)};
        tn__cell_range(job, &w->cell, &w->end);
        return true;
    }
    return false;
}
static bool att_replay_visit(att_walk *w, att_visit *v) {
    if (w->at == w->kept->ints) return false;
    const int32_t *list = w->kept->lists + w->at;
    v->begins = list[0] & 1;
    v->count = list[0] >> 1;
    v->cells = w->kept->lists + w->at + 1;
    w->at += 1 + (v->count + ATT_STEP - 1) / ATT_STEP * ATT_STEP;
    if (v->begins) (void)att_next_run(w);
    v->run = &w->runs[w->which];
    return true;
}
static bool att_next_visit(att_walk *w, att_visit *v) {
    if (w->replay) return att_replay_visit(w, v);
    if (w->kept && w->at + 1 + ATT_LIST_ROOM > att_kept_room(w->job)) w->kept = NULL;
    v->cells = w->kept ? w->kept->lists + w->at + 1 : v->own;
    v->begins = w->cell >= w->end;
    if (v->begins && !att_next_run(w)) return false;
    for (;;) {
        int32_t positions[ATT_LIST_ROOM];
        const att_run *run = v->run = &w->runs[w->which];
        v->count = att_gather(w->job, w->index, run->sequence, run->span, &w->cell, w->end, w->cells_max + ATT_BATCH,
                              v->cells, positions);
        if (v->begins || v->count > 0) break;
        v->begins = true;
        if (!att_next_run(w)) return false;
    }
    const int whole = (v->count + ATT_STEP - 1) / ATT_STEP * ATT_STEP;
    for (int i = v->count; i < whole; i++) v->cells[i] = v->cells[v->count - 1];
    if (w->kept) w->kept->lists[w->at] = v->count << 1 | v->begins;
    w->at += 1 + whole;
    return true;
}

/* Prefetches the keys and values of a visit, evenly distributed over `steps` steps of the visit before. */
typedef struct att_rows {
    uintptr_t at; /* the first of `heads` rows of cell 0 */
    size_t cell, head, bytes;
    int heads;
} att_rows;
struct att_prefetch {
    const int32_t *cells;
    int count, next, steps;
    int late; /* prefetches that are due, in units of 1/steps of a row */
    att_rows keys, values;
};
static att_rows att_rows_of(const void *base, size_t cell, size_t head, size_t bytes, const att_run *run) {
    const uintptr_t at = (uintptr_t)base + (size_t)run->kv_from * head;
    const int heads = (int)(run->kv_to - run->kv_from);
    if (head == bytes) return (att_rows){at, cell, 0, bytes * (size_t)heads, 1};
    return (att_rows){at, cell, head, bytes, heads};
}
static att_prefetch att_prefetch_of(const att_visit *v, int steps) {
    const tn__attention_job *job = &v->run->job;
    const size_t k = att_row_bytes(job->k_type, job->head_k), w = att_row_bytes(job->v_type, job->head_v);
    return (att_prefetch){.cells = v->cells,
                          .count = v->count,
                          .steps = steps,
                          .keys = att_rows_of(job->k, job->k_cell, job->k_head, k, v->run),
                          .values = att_rows_of(job->v, job->v_cell, job->v_head, w, v->run)};
}
static void att_prefetch_step(att_prefetch *a) {
    for (a->late += 2 * a->count; a->late >= a->steps; a->late -= a->steps) {
        const att_rows *rows = a->next < a->count ? &a->keys : &a->values;
        const size_t cell = (size_t)a->cells[a->next < a->count ? a->next : a->next - a->count];
        att_prefetch_rows(rows->at + cell * rows->cell, rows->head, rows->heads, rows->bytes);
        a->next++;
    }
}

/* Computes one visit, kv head by kv head: scores, weights, values. Prefetches `next`, which may be NULL. */
static void att_visit_cells(const att_visit *v, const att_visit *next, const att_few_memory *m) {
    const tn__attention_job *job = &v->run->job;
    const int64_t share = job->heads / job->kv_heads, each = att_group_rows(job), kv_from = v->run->kv_from;
    const int heads = (int)(v->run->kv_to - kv_from), steps = (v->count + ATT_STEP - 1) / ATT_STEP;
    att_prefetch later, *prefetch = NULL;
    if (next) {
        later = att_prefetch_of(next, 2 * heads * steps);
        prefetch = &later;
    }
    float hide[ATT_LIST_ROOM];
    int32_t positions[ATT_LIST_ROOM];
    for (int i = 0; i < v->count && (job->tokens > 1 || job->params.max_bias > 0); i++)
        positions[i] = job->k_pos[(size_t)(1 + job->k_words) * (size_t)v->cells[i]];
    for (int head = 0; head < heads; head++) {
        const int64_t kv = kv_from + head;
        const size_t first = (size_t)(head * each);
        att_score_cells(job, kv, v->cells, v->count, m->q + first * m->k_next, m->k_next, (int)each, m->scores,
                        m->s_next, m->buffer, prefetch);
        for (int64_t r = 0; r < each; r++) {
            const int64_t token = r / share;
            const att_view view = att_view_of(job, token);
            /* The list holds the cells visible to any token of the run; each token of several sees only some. */
            if (job->tokens > 1 && r % share == 0) att_hide_positions(view, positions, v->count, hide);
            att_few_weights(job, m, m->scores + (size_t)r * m->s_next, first + (size_t)r, kv * share + r % share,
                            token, view, job->tokens > 1 ? SEES_SOME : SEES_ALL, positions, v->cells, v->count, hide);
        }
        att_weigh_cells(job, kv, v->cells, v->count, m->scores, m->s_next, m->sums + first * m->v_next, m->v_next,
                        (int)each, m->buffer, prefetch);
    }
}

static void att_short_runs(const tn__attention_job *job, const att_index *index, int64_t from, int64_t to, int nth,
                           float *memory) {
    att_walk walk = {.job = job,
                     .index = index,
                     .from = from,
                     .to = to,
                     .cells_max = att_visit_cells_max(job),
                     .kept = job->kept,
                     .replay = att_is_kept(job, from, to)};
    att_visit visits[2];
    att_few_memory m = {0};
    size_t rows = 0;
    if (walk.kept && !walk.replay) walk.kept->complete = false;
    bool any = att_next_visit(&walk, &visits[0]);
    if (any && visits[0].count > 0) {
        att_prefetch first = att_prefetch_of(&visits[0], 1);
        att_prefetch_step(&first);
    }
    for (int i = 0; any; i ^= 1) {
        const att_visit *v = &visits[i], *next = &visits[i ^ 1];
        const att_run *run = v->run;
        any = att_next_visit(&walk, &visits[i ^ 1]);
        if (v->begins) {
            rows = (size_t)(att_group_rows(&run->job) * (run->kv_to - run->kv_from));
            m = att_few_carve(&run->job, rows, (size_t)att_group_rows(&run->job), ATT_LIST_ROOM, memory);
            att_few_begin(&run->job, run->kv_from, rows, &m);
        }
        if (v->count > 0) att_visit_cells(v, any ? next : NULL, &m);
        if (!any || next->begins) att_few_end(&run->job, run->kv_from, rows, 0, nth, &m);
    }
    if (walk.replay || !walk.kept) return;
    att_kept *kept = walk.kept;
    kept->q_pos = job->q_pos, kept->k_pos = job->k_pos, kept->range = job->range;
    kept->from = from, kept->to = to;
    kept->window = job->params.window, kept->chunk = job->params.chunk, kept->causal = job->params.causal;
    kept->ints = walk.at;
    kept->complete = true;
}

static void att_run_all(const tn__attention_job *job, int ith, int nth) {
    if (att_is_few(job)) {
        att_few(job, ith, nth);
        return;
    }
    float *memory = (float *)job->scratch + att_floats(job) * (size_t)ith;
    const bool tiled = att_is_tiled(job);
    att_memory m = att_carve(job, memory);
    int64_t share = job->heads / job->kv_heads, item = 0, n_short = 0, n, from, to;
    bool few, all = true;
    for (int64_t token = 0; token < job->tokens; token += n) {
        n = att_run_of(job, token, &few);
        n_short += few;
        all = all && few;
    }
    tn__share(n_short * job->kv_heads, 1, ith, nth, &from, &to);
    att_index index;
    if (!all || !att_is_kept(job, from, to)) att_index_make(job, &index);
    for (int64_t token = 0; !all && token < job->tokens; token += n) {
        n = att_run_of(job, token, &few);
        if (few) continue;
        /* One kv head after the other, so that its cells stay in the cache; later queries, the longest pieces, first.
         */
        const int64_t rows = n * share, most = tiled ? att_tiled_rows(rows * job->kv_heads) : ATT_ROWS,
                      blocks = (rows + most - 1) / most;
        for (int64_t i = 0; i < blocks * job->kv_heads; i++) {
            if (item++ % nth != ith) continue;
            int64_t kv = i / blocks, block = blocks - 1 - i % blocks;
            int count = (int)(rows - block * most < most ? rows - block * most : most);
            if (tiled)
                att_tiled_piece(job, kv, token * share + block * most, count, &index, nth, memory);
            else
                att_piece(job, kv, token * share + block * most, count, &index, nth, &m);
        }
    }
    if (from < to) att_short_runs(job, &index, from, to, nth, memory);
}
