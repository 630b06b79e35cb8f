/* Work of an attention job and its division among threads: part of the attention template.
 *
 * The adjacent tokens of a sequence form a group. A group of many query rows is computed in pieces of rows. A group
 * of few, often a single token, is bound by memory bandwidth: its visible cells are divided into splits of fixed
 * length, and a thread computes kv heads of a split, list of cells by list of cells. Within a list the rows that are
 * read next are prefetched.
 *
 * Pieces and splits lie on one line, each as long as its estimated time, and every thread has an equal part of the
 * line. A group of few rows that is cut between threads has its splits stored; att_combine adds them in order, as the
 * thread that computes a whole group does. */

/* Tokens [token, token + tokens) and the number of cells that any of them sees. With selected positions, which every
 * query has its own of, a single token.
 *
 * The tokens of a guess are computed as decoding computes them one by one, with the same bits: in groups of few rows
 * and, where a window makes the first cell of a list depend on the other queries, one token at a time. Otherwise
 * their last bits would differ, and the rounding of activations to eight bits makes large differences of these. */
typedef struct att_group {
    int64_t token, tokens, cells;
    att_span span;
    bool few;
} att_group;
static att_group att_group_at(const tn__attention_job *job, int64_t token) {
    att_group g = {.token = token, .tokens = 1};
    const tn__query q = tn__query_of(job, token);
    int64_t most = job->repeatable ? att_few_tokens(job) : INT64_MAX;
    if (job->selects)
        att_sort_selected(job, token); /* for the cursors of this group */
    else if (!job->paged)
        g.tokens = job->tokens - token;
    else
        while (g.tokens < most && token + g.tokens < job->tokens &&
               tn__query_of(job, token + g.tokens).sequence == q.sequence)
            g.tokens++;
    if (!job->repeatable && g.tokens <= ATT_GUESSED && att_few_tokens(job) > 0)
        most = att_is_windowed(job) ? 1 : att_few_tokens(job);
    if (g.tokens > most) g.tokens = most;
    g.few = g.tokens <= att_few_tokens(job);
    g.span = att_span_of(job, token, token + g.tokens);
    att_cursor all = att_cursor_of(job, q, g.span);
    g.cells = att_cursor_skip(job, &all, INT64_MAX);
    if (job->repeatable) { /* a table that names cells twice has more than there are splits for: the rest is not seen
                            */
        const int64_t most_cells = att_splits(job) * att_split_cells(job, 0);
        if (g.cells > most_cells) g.cells = most_cells;
    }
    return g;
}
/* A job for the tokens of a group. */
static tn__attention_job att_part(const tn__attention_job *job, const att_group *g) {
    tn__attention_job part = *job;
    part.tokens = g->tokens;
    part.q = (const char *)job->q + (size_t)g->token * job->q_token;
    part.out = (float *)((char *)job->out + (size_t)g->token * job->out_token);
    part.later = job->later + job->tokens - g->token - g->tokens;
    if (job->q_pos) part.q_pos = job->q_pos + 2 * g->token;
    if (job->mask) part.mask = (const char *)job->mask + (size_t)g->token * job->mask_token;
    if (job->selects) part.selected = job->selected + g->token * job->n_selected;
    return part;
}

/* ---- The line ---- */

/* A cell takes a piece one unit of time per row; few rows also wait for memory. */
enum { ATT_WAIT = 3 };
static int64_t att_piece_rows_max(const tn__attention_job *job, int64_t rows) {
    return att_is_tiled(job) ? att_tiled_rows(rows * job->kv_heads) : ATT_ROWS;
}
/* Estimated length of the piece of these rows of a group. */
static int64_t att_piece_length(const tn__attention_job *job, const att_group *g, int64_t row, int64_t rows) {
    const int64_t share = job->heads / job->kv_heads, tokens = (rows + share - 1) / share;
    const int64_t after = g->tokens - (row + rows + share - 1) / share;
    int64_t cells = job->params.causal ? g->cells - after : g->cells;
    const int64_t forward = job->params.causal ? 0 : job->params.window_after;
    const int64_t reach =
        job->params.window > 0 && (job->params.causal || forward > 0) ? job->params.window + forward : 0;
    if (reach > 0 && cells > reach + tokens) cells = reach + tokens;
    return rows * (cells > 1 ? cells : 1);
}
static int64_t att_few_cost(const tn__attention_job *job, const att_group *g) {
    return g->tokens * (job->heads / job->kv_heads) + ATT_WAIT;
}
static int64_t att_length(const tn__attention_job *job, const att_group *g) {
    if (g->few) return att_few_cost(job, g) * job->kv_heads * (g->cells > 1 ? g->cells : 1);
    const int64_t rows = g->tokens * (job->heads / job->kv_heads), most = att_piece_rows_max(job, rows);
    int64_t length = 0;
    for (int64_t row = 0; row < rows; row += most)
        length += att_piece_length(job, g, row, rows - row < most ? rows - row : most);
    return length * job->kv_heads;
}
/* Where the part of a thread begins. */
static int64_t att_bound(int64_t length, int ith, int nth) { return length / nth * ith + length % nth * ith / nth; }
/* Of a group of few rows that begins at `at`: the first unit that begins at or after `bound`. Unit i is kv head
 * i % kv_heads of split i / kv_heads. */
static int64_t att_first_unit(const tn__attention_job *job, const att_group *g, int64_t at, int64_t bound) {
    const int64_t cost = att_few_cost(job, g), each = att_split_cells(job, g->cells),
                  cells = g->cells > 1 ? g->cells : 1;
    const int64_t splits = att_splits_of(job, g->cells), rest = bound > at ? (bound - at + cost - 1) / cost : 0;
    const int64_t split = rest / (each * job->kv_heads);
    if (split >= splits) return splits * job->kv_heads;
    const int64_t left = cells - split * each, n = left < each ? left : each;
    const int64_t head = (rest - split * each * job->kv_heads + n - 1) / n;
    return split * job->kv_heads + (head < job->kv_heads ? head : job->kv_heads);
}

/* ---- Groups of few rows ---- */

/* Some kv heads of one split of a group. */
typedef struct att_run {
    tn__attention_job job; /* of the group's tokens */
    int64_t token;         /* the first */
    int64_t kv_from, kv_to;
    int split, splits;
    int slot; /* where the sums of a cut group are stored: 1 + the thread that begins it; 0: it is not cut */
} att_run;

/* A list of cells that a run processes together. The first visit of a run may be empty. */
typedef struct att_visit {
    const att_run *run;
    bool begins;
    int count;
    int32_t cells[ATT_LIST]; /* padded with the last cell to a multiple of ATT_STEP */
    int32_t positions[ATT_LIST];
    bool gaps; /* there are some: their cells are others of the list, their positions ATT_GAP */
    int from;  /* a multiple of ATT_STEP before which there are gaps only */
} att_visit;

/* Iterates over a thread's part of the groups of few rows. */
typedef struct att_walk {
    const tn__attention_job *job;
    int64_t length; /* of the whole line */
    int ith, nth;
    att_group group;
    int64_t token, at; /* of the next group */
    int64_t unit, end; /* of this group's units, the rest of the thread's */
    att_cursor cursor; /* after the cells that are listed, in the split before `unit` */
    int64_t listed;    /* cells of the group before the cursor */
    int64_t to;        /* the end of the run's cells */
    int cells_max;     /* cells of a visit */
    int slot;          /* of this group */
    att_run run;
} att_walk;

/* Scores and weights of a visit stay in a near cache; a visit of many cells costs less per cell. */
static int att_visit_cells_max(const tn__attention_job *job) {
    enum { BYTES = 256 * 1024 };
    const size_t cell =
        (size_t)job->kv_heads * (att_row_bytes(job->k_type, job->head_k) + att_row_bytes(job->v_type, job->head_v));
    int most = ATT_LIST;
    if (att_is_wide(job)) return ATT_CELLS;
    while (most > ATT_LIST_LEAST && (size_t)most * cell > BYTES) most /= 2;
    return most;
}

/* The thread that has the first unit of a group that begins at `at`. */
static int att_owner(const att_walk *w, int64_t at) {
    int owner = w->ith;
    while (att_bound(w->length, owner, w->nth) > at) owner--;
    return owner;
}
/* The next group that the thread has units of. */
static bool att_next_group(att_walk *w) {
    const tn__attention_job *job = w->job;
    const int64_t from = att_bound(w->length, w->ith, w->nth), to = att_bound(w->length, w->ith + 1, w->nth);
    while (w->token < job->tokens && w->at < to) {
        const int64_t at = w->at;
        w->group = att_group_at(job, w->token);
        w->token += w->group.tokens;
        if (!w->group.few) continue;
        w->at += att_length(job, &w->group);
        w->unit = att_first_unit(job, &w->group, at, from);
        w->end = att_first_unit(job, &w->group, at, to);
        if (w->unit >= w->end) continue;
        const int64_t units = att_splits_of(job, w->group.cells) * job->kv_heads;
        w->slot = w->unit == 0 && w->end == units ? 0 : 1 + att_owner(w, at);
        w->cursor = att_cursor_of(job, tn__query_of(job, w->group.token), w->group.span);
        w->listed = 0;
        return true;
    }
    return false;
}
static bool att_next_run(att_walk *w) {
    const tn__attention_job *job = w->job;
    if (w->unit >= w->end && !att_next_group(w)) return false;
    const int split = (int)(w->unit / job->kv_heads);
    const int64_t begin = split * job->kv_heads, kv = w->unit - begin,
                  kv_to = w->end - begin < job->kv_heads ? w->end - begin : job->kv_heads;
    const int64_t each = att_split_cells(job, w->group.cells), first = split * each;
    w->to = first + each < w->group.cells ? first + each : w->group.cells;
    w->listed += att_cursor_skip(job, &w->cursor, first - w->listed);
    w->unit = begin + kv_to;
    w->run = (att_run){att_part(job, &w->group),           w->group.token, kv, kv_to, split,
                       att_splits_of(job, w->group.cells), w->slot};
    return true;
}
/* Gaps get a cell of the list, so that what they read exists; their weight is 0. Without a cell the list is empty. */
static void att_fill_gaps(att_visit *v) {
    int first = 0;
    while (first < v->count && v->cells[first] == ATT_GAP) first++;
    const int32_t cell = first < v->count ? v->cells[first] : ATT_GAP;
    v->from = first / ATT_STEP * ATT_STEP;
    for (int i = 0; i < v->count; i++) {
        v->gaps = v->gaps || v->cells[i] == ATT_GAP;
        v->cells[i] = v->cells[i] == ATT_GAP ? cell : v->cells[i];
    }
    if (cell == ATT_GAP) v->count = 0;
}
static bool att_next_visit(att_walk *w, att_visit *v) {
    v->begins = w->listed >= w->to;
    if (v->begins && !att_next_run(w)) return false;
    v->run = &w->run;
    const int64_t left = w->to - w->listed;
    const bool positions =
        v->run->job.tokens > 1 || v->run->job.params.max_bias > 0 || v->run->job.biased || w->job->repeatable;
    v->count = att_cursor_list(w->job, &w->cursor, (int)(left < w->cells_max ? left : w->cells_max), v->cells,
                               positions ? v->positions : NULL);
    w->listed += v->count;
    v->gaps = false;
    v->from = 0;
    if (w->job->repeatable) att_fill_gaps(v);
    for (int i = v->count; i > 0 && i % ATT_STEP != 0; i++) v->cells[i] = v->cells[v->count - 1];
    return true;
}

/* Prefetches what is read after head `head` of the cells [c, c + ATT_STEP): the next head, or the first head of the
 * next cells. */
static void att_prefetch_next(const att_visit *v, int head, int c, bool keys) {
    const tn__attention_job *job = &v->run->job;
    const int heads = (int)(v->run->kv_to - v->run->kv_from), last = v->count - c <= ATT_STEP;
    const bool more = head + 1 < heads;
    if (!more && last) { /* values follow keys */
        if (!keys) return;
        keys = false;
    }
    const int from = more ? c : last ? 0 : c + ATT_STEP, left = v->count - from;
    const int64_t kv = v->run->kv_from + (more ? head + 1 : 0);
    att_prefetch_rows(keys ? att_key(job, kv, 0) : att_value(job, kv, 0), keys ? job->k_cell : job->v_cell,
                      v->cells + from, left < ATT_STEP ? left : ATT_STEP,
                      keys ? att_row_bytes(job->k_type, job->head_k) : att_row_bytes(job->v_type, job->head_v));
}

/* Computes one visit: scores, weights, values. All heads of a few cells come before the next cells, so that memory is
 * read in order. */
static void att_visit_cells(const att_visit *v, const att_few_memory *m) {
    const tn__attention_job *job = &v->run->job;
    const int64_t share = job->heads / job->kv_heads, each = att_group_rows(job), kv_from = v->run->kv_from;
    const int heads = (int)(v->run->kv_to - kv_from);
    const bool wide = att_is_wide(job);
    att_memory panels = m->panels;
    float hide[ATT_LIST];
    for (int head = 0; wide && head < heads; head++)
        att_wide_scores(job, kv_from + head, v->cells, v->count, m->q + (size_t)(head * each) * m->k_next, m->k_next,
                        (int)each, m->scores + (size_t)(head * each) * ATT_LIST, ATT_LIST, &panels);
    for (int c = v->from; !wide && c < v->count; c += ATT_STEP) {
        const int n = v->count - c < ATT_STEP ? v->count - c : ATT_STEP;
        for (int head = 0; head < heads; head++) {
            const size_t first = (size_t)(head * each);
            att_prefetch_next(v, head, c, true);
            att_score_cells(job, kv_from + head, v->cells + c, n, m->q + first * m->k_next, m->k_next, (int)each,
                            m->scores + first * ATT_LIST + c, ATT_LIST, m->buffer);
        }
    }
    for (int64_t token = 0; token < job->tokens; token++) {
        /* The list holds the cells visible to any token of the group; each token of several sees only some. */
        const bool some = job->tokens > 1 || v->gaps;
        if (some) att_hide_positions(att_view_of(job, token), v->positions, v->count, hide);
        for (int64_t i = 0; i < heads * share; i++) {
            const int64_t kv = kv_from + i / share, row = i / share * each + token * share + i % share;
            att_few_weights(job, m, m->scores + row * ATT_LIST, (size_t)row, kv * share + i % share, token,
                            some ? SEES_SOME : SEES_ALL, v->positions, v->cells, v->count, hide);
        }
    }
    for (int head = 0; wide && head < heads; head++)
        att_wide_values(job, kv_from + head, v->cells, v->count, m->scores + (size_t)(head * each) * ATT_LIST,
                        ATT_LIST, m->now.values + (size_t)(head * each) * m->v_next, m->v_next, (int)each, &panels);
    for (int c = v->from; !wide && c < v->count; c += ATT_STEP) {
        const int n = v->count - c < ATT_STEP ? v->count - c : ATT_STEP;
        for (int head = 0; head < heads; head++) {
            const size_t first = (size_t)(head * each);
            att_prefetch_next(v, head, c, false);
            att_weigh_cells(job, kv_from + head, v->cells + c, n, m->scores + first * ATT_LIST + c, ATT_LIST,
                            m->now.values + first * m->v_next, m->v_next, (int)each, m->buffer);
        }
    }
}

/* The sums of a run go to the result, to the sums of the splits before, or to the memory of a cut group. */
static void att_end_run(const tn__attention_job *whole, const att_run *run, int nth, const att_few_memory *m) {
    const tn__attention_job *job = &run->job;
    const int64_t share = job->heads / job->kv_heads, each = att_group_rows(job);
    const size_t rows = (size_t)((run->kv_to - run->kv_from) * each);
    const att_sums *now = &m->now, *before = &m->before;
    for (size_t i = 0; i < rows; i++) {
        const int64_t kv = run->kv_from + (int64_t)i / each, r = (int64_t)i % each;
        const float *values = now->values + i * m->v_next;
        float *sum = before->values + i * m->v_next;
        if (run->splits == 1) {
            att_finish(job, kv * share + r % share, r / share, now->most[i], now->total[i], values);
        } else if (run->slot) {
            float *to = att_partial(whole, nth, run->slot, run->split, kv * each + r);
            to[0] = now->most[i];
            to[1] = now->total[i];
            memcpy(to + 2, values, (size_t)job->head_v * sizeof(float));
        } else if (run->split == 0) {
            before->most[i] = now->most[i];
            before->total[i] = now->total[i];
            memcpy(sum, values, (size_t)job->head_v * sizeof(float));
        } else {
            att_fold(job->head_v, &before->most[i], &before->total[i], sum, now->most[i], now->total[i], values);
            if (run->split == run->splits - 1)
                att_finish(job, kv * share + r % share, r / share, before->most[i], before->total[i], sum);
        }
    }
}

/* A thread's part of the groups of few rows, which begin at `at`. */
static void att_short_groups(const tn__attention_job *job, int64_t at, int64_t length, int ith, int nth,
                             float *memory) {
    att_walk walk = {
        .job = job, .length = length, .ith = ith, .nth = nth, .at = at, .cells_max = att_visit_cells_max(job)};
    att_visit v;
    att_few_memory m = {0};
    att_cut *cut = ith + 1 < nth && att_splits(job) > 1 ? att_cut_of(job, nth, ith + 1) : NULL;
    if (cut) cut->splits = 0;
    while (att_next_visit(&walk, &v)) {
        const att_run *run = v.run;
        if (v.begins) {
            const int64_t each = att_group_rows(&run->job);
            const size_t rows = (size_t)(each * (run->kv_to - run->kv_from));
            if (cut && run->slot == ith + 1 && run->splits > 1)
                *cut = (att_cut){run->token, run->job.tokens, run->splits};
            m = att_few_carve(&run->job, (size_t)each, memory);
            att_few_begin(&run->job, run->kv_from, rows, &m);
        }
        if (v.count > 0) att_visit_cells(&v, &m);
        if (walk.listed >= walk.to) att_end_run(job, run, nth, &m);
    }
}

/* The pieces of a group of many rows, which begins at `at`, whose beginnings are in [from, to). One kv head after the
 * other, so that its cells stay in the cache; later queries, the longest pieces, first. */
static void att_pieces(const tn__attention_job *job, const att_group *g, int64_t at, int64_t from, int64_t to,
                       float *memory) {
    const bool tiled = att_is_tiled(job);
    const int64_t share = job->heads / job->kv_heads, rows = g->tokens * share, most = att_piece_rows_max(job, rows),
                  blocks = (rows + most - 1) / most;
    att_memory m = att_carve(job, memory);
    for (int64_t i = 0; i < blocks * job->kv_heads && at < to; i++) {
        const int64_t kv = i / blocks, row = (blocks - 1 - i % blocks) * most;
        const int count = (int)(rows - row < most ? rows - row : most);
        const int64_t begin = at;
        at += att_piece_length(job, g, row, count);
        if (begin < from || begin >= to) continue;
        if (tiled)
            att_tiled_piece(job, kv, g->token * share + row, count, memory);
        else
            att_piece(job, kv, g->token * share + row, count, &m);
    }
}

static void att_run_all(const tn__attention_job *whole, int ith, int nth) {
    tn__attention_job copy = *whole;
    const tn__attention_job *job = &copy;
    float *memory = (float *)job->scratch + att_floats(job) * (size_t)ith;
    copy.sorted = (int32_t *)(void *)(memory + att_floats(job) - att_selected_floats(job));
    int64_t length = 0, before_few = 0, at = 0, tokens;
    for (int64_t token = 0; token < job->tokens; token += tokens) {
        const att_group g = att_group_at(job, token);
        const int64_t own = att_length(job, &g);
        length += own;
        before_few += g.few ? 0 : own;
        tokens = g.tokens;
    }
    const int64_t from = att_bound(length, ith, nth), to = att_bound(length, ith + 1, nth);
    for (int64_t token = 0; token < job->tokens && before_few > from && at < to; token += tokens) {
        const att_group g = att_group_at(job, token);
        tokens = g.tokens;
        if (g.few) continue;
        att_pieces(job, &g, at, from, to, memory);
        at += att_length(job, &g);
    }
    att_short_groups(job, before_few, length, ith, nth, memory);
}

/* Adds the splits of the groups that were cut. */
static void att_combine(const tn__attention_job *job, int ith, int nth) {
    for (int slot = 1; slot < nth && att_splits(job) > 1; slot++) {
        const att_cut *cut = att_cut_of(job, nth, slot);
        if (!cut->splits) continue;
        const int64_t share = job->heads / job->kv_heads, each = cut->tokens * share;
        int64_t from, to;
        tn__share(each * job->kv_heads, 1, ith, nth, &from, &to);
        for (int64_t row = from; row < to; row++) {
            float *sum = att_partial(job, nth, slot, 0, row);
            for (int s = 1; s < cut->splits; s++) {
                const float *later = att_partial(job, nth, slot, s, row);
                att_fold(job->head_v, &sum[0], &sum[1], sum + 2, later[0], later[1], later + 2);
            }
            att_finish(job, row / each * share + row % each % share, cut->token + row % each / share, sum[0], sum[1],
                       sum + 2);
        }
    }
}
