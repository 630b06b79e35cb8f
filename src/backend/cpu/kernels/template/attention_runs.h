/* Tokens of many sequences, as a server decodes them: part of the attention template.
 *
 * A batch comes sequence by sequence. A long run of one sequence is a matrix of queries; a short one, often a single
 * token, goes through the blocks of cells that hold its sequence, and through no others. What all streams remember is
 * more than any cache holds, so time is spent waiting for memory unless it is asked for early: values while the keys
 * of the same cells are multiplied, the keys of the next block, of this run or the next one, while values are. */

static int64_t att_part_tokens(const tn__attention_job *job) {
    int64_t share = job->heads / job->kv_heads, most = ATT_FEW / share > 1 ? ATT_FEW / share : 1;
    return job->tokens < most ? job->tokens : most;
}
/* Some of a job's tokens as a job of their own. */
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
/* How many tokens from this one on are of the same sequence, and whether they are few. */
static int64_t att_run_of(const tn__attention_job *job, int64_t token, bool *few) {
    int64_t n = 1;
    if (!job->q_pos || job->k_words == 0)
        n = job->tokens - token;
    else
        while (token + n < job->tokens && job->q_pos[2 * (token + n) + 1] == job->q_pos[2 * token + 1]) n++;
    *few = n * (job->heads / job->kv_heads) <= ATT_FEW;
    return n;
}

/* A short run, and the kv heads of it that a thread computes. */
typedef struct att_run {
    tn__attention_job job;
    int64_t kv_from, kv_to;
    int32_t sequence;
} att_run;

/* Cells that a run looks at together, from one block or several: streams that share the beginning of their texts have
 * a few cells here and a few there. The first visit of a run may have no cells. */
typedef struct att_stretch {
    int64_t cell;
    int count, at; /* its place among the cells of the visit */
} att_stretch;
typedef struct att_visit {
    const att_run *run;
    bool begins;
    int count, n;
    att_stretch stretches[ATT_STRETCHES];
    att_block block; /* positions of all cells */
} att_visit;

/* A thread's way through its share [from, to) of the short runs, whose kv heads are counted through. */
typedef struct att_walk {
    const tn__attention_job *job;
    const att_index *index;
    int64_t from, to;
    int64_t token, item; /* of the next run: its first token, and the number of its first kv head */
    int64_t cell, end;   /* where this run goes on */
    att_run runs[2];     /* this one, and the one before, which may still be in use */
    int which;
} att_walk;

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
        w->runs[w->which] = (att_run){att_part(job, token, n), kv, kv_to, tn__query_of(job, token).sequence};
        tn__cell_range(job, &w->cell, &w->end);
        return true;
    }
    return false;
}
/* The next block's cells, if there is room for them up to the next whole step. */
static bool att_add_stretch(att_walk *w, att_visit *v) {
    if (v->n == ATT_STRETCHES || (v->n > 0 && (v->count > ATT_BATCH - ATT_STEP || w->job->mask))) return false;
    int64_t cell = w->cell;
    int count = (int)(w->end - cell < ATT_BATCH ? w->end - cell : ATT_BATCH);
    /* What is noted beyond the room is not looked at. */
    _Static_assert(ATT_CELLS >= 2 * ATT_BATCH, "positions of two blocks");
    att_look(w->job, v->run->sequence, &cell, &count, &v->block, v->count);
    if (v->count + (count + ATT_STEP - 1) / ATT_STEP * ATT_STEP > ATT_BATCH) return false;
    if (count > 0) v->stretches[v->n++] = (att_stretch){cell, count, v->count};
    v->count += count;
    w->cell += ATT_BATCH;
    return true;
}
static bool att_next_visit(att_walk *w, att_visit *v) {
    v->begins = w->cell >= w->end;
    v->count = v->n = 0;
    if (v->begins && !att_next_run(w)) return false;
    for (;;) {
        v->run = &w->runs[w->which];
        w->cell = att_index_next(w->index, v->run->sequence, w->cell);
        if (w->cell < w->end) {
            if (att_add_stretch(w, v)) continue;
            break;
        }
        if (v->begins || v->count > 0) break;
        v->begins = true;
        if (!att_next_run(w)) return false;
    }
    att_look_done(&v->block, v->count);
    return true;
}

/* As att_soft_max, for rows with room up to the next whole vector. */
static float att_soft_max_whole(float *s, int count, float *most, float *total) {
    vf top = vf_set1(-__builtin_inff());
    for (int i = count; i % VL != 0; i++) s[i] = -__builtin_inff();
    for (int i = 0; i < count; i += VL) top = vf_max(top, vf_load(s + i));
    float largest = vf_most(top);
    largest = largest > *most ? largest : *most;
    if (largest == -__builtin_inff()) {
        memset(s, 0, (size_t)count * sizeof(float));
        return 1;
    }
    const vf m = vf_set1(largest);
    vf sum = vf_zero();
    for (int i = 0; i < count; i += VL) {
        vf e = vf_exp(vf_sub(vf_load(s + i), m));
        vf_store(s + i, e);
        sum = vf_add(sum, e);
    }
    const float shrink = largest == *most ? 1 : *most == -__builtin_inff() ? 0 : __builtin_expf(*most - largest);
    *total = *total * shrink + vf_sum(sum);
    *most = largest;
    return shrink;
}

/* Asks for the keys of a visit's cells [from, to), one kv head. */
static void att_fetch_keys(const att_visit *v, int64_t kv, int from, int to) {
    const tn__attention_job *job = &v->run->job;
    const size_t bytes = att_row_bytes(job->k_type, job->head_k);
    for (int i = 0; i < v->n; i++) {
        const att_stretch *s = &v->stretches[i];
        const int first = from > s->at ? from - s->at : 0, end = to - s->at < s->count ? to - s->at : s->count;
        if (first < end) att_fetch((uintptr_t)att_key(job, kv, s->cell + first), job->k_cell, end - first, bytes);
    }
}

/* One visit of one run: keys, weights, values. The keys of `next`, which may be NULL, are asked for meanwhile;
 * `fetched` says whether these were. */
static void att_visit_cells(const att_visit *v, bool fetched, const att_visit *next, const att_few_memory *m) {
    const tn__attention_job *job = &v->run->job;
    const int64_t share = job->heads / job->kv_heads, each = att_group_rows(job), kv_from = v->run->kv_from,
                  kv_to = v->run->kv_to;
    const size_t v_bytes = att_row_bytes(job->v_type, job->head_v);
    const int early = next ? next->count / 2 : 0,
              late = next ? next->count - early : 0; /* keys asked for, by phase */
    float hide[ATT_BATCH];
    for (int64_t kv = kv_from; !fetched && kv < kv_to; kv++) att_fetch_keys(v, kv, 0, v->count);
    for (int i = 0; i < v->n; i++) {
        const att_stretch *s = &v->stretches[i];
        for (int c = 0; c < s->count; c += ATT_STEP) { /* in the order of memory: all heads of a few cells */
            const int cells = s->count - c < ATT_STEP ? s->count - c : ATT_STEP;
            for (int64_t kv = kv_from; kv < kv_to; kv++) {
                const size_t row = (size_t)((kv - kv_from) * each);
                att_fetch((uintptr_t)att_value(job, kv, s->cell + c), job->v_cell, cells, v_bytes);
                att_score_step(job, kv, s->cell + c, cells, m->q + row * m->k_next, m->k_next, (int)each,
                               m->scores + row * ATT_BATCH + s->at + c, m->buffer);
            }
        }
    }
    for (int64_t t = 0; t < job->tokens; t++) {
        const att_view view = att_view_of(job, t);
        const int sees = att_sees_positions(view, &v->block);
        if (sees == SEES_SOME) att_hide_positions(view, &v->block, v->count, hide);
        for (int64_t kv = kv_from; kv < kv_to; kv++) {
            if (next && t == 0) att_fetch_keys(next, kv, 0, early);
            for (int64_t h = 0; h < share; h++) {
                const size_t row = (size_t)((kv - kv_from) * each + t * share + h);
                if (sees == SEES_NONE)
                    memset(m->scores + row * ATT_BATCH, 0, (size_t)v->count * sizeof(float));
                else
                    att_few_weights(job, m, row, kv * share + h, t, view, sees, &v->block, v->stretches[0].cell,
                                    v->count, hide, att_soft_max_whole);
            }
        }
    }
    for (int i = 0; i < v->n; i++) {
        const att_stretch *s = &v->stretches[i];
        for (int c = 0; c < s->count; c += ATT_STEP) {
            const int cells = s->count - c < ATT_STEP ? s->count - c : ATT_STEP;
            /* As great a part of the next cells as these are of this visit's. */
            const int from = early + late * (s->at + c) / v->count,
                      to = early + late * (s->at + c + cells) / v->count;
            for (int64_t kv = kv_from; kv < kv_to; kv++) {
                const size_t row = (size_t)((kv - kv_from) * each);
                if (to > from) att_fetch_keys(next, kv, from, to);
                att_weigh_step(job, kv, s->cell + c, cells, m->scores + row * ATT_BATCH + s->at + c,
                               m->sums + row * m->v_next, m->v_next, (int)each, m->buffer);
            }
        }
    }
}

static void att_short_runs(const tn__attention_job *job, const att_index *index, int64_t from, int64_t to, int nth,
                           float *memory) {
    att_walk walk = {.job = job, .index = index, .from = from, .to = to};
    att_visit visits[2];
    att_few_memory m = {0};
    size_t rows = 0;
    bool fetched = false;
    bool any = att_next_visit(&walk, &visits[0]);
    for (int i = 0; any; i ^= 1) {
        const att_visit *v = &visits[i], *next = &visits[i ^ 1];
        const att_run *run = v->run;
        any = att_next_visit(&walk, &visits[i ^ 1]);
        if (v->begins) {
            rows = (size_t)(att_group_rows(&run->job) * (run->kv_to - run->kv_from));
            m = att_few_carve(&run->job, rows, memory);
            att_few_begin(&run->job, run->kv_from, rows, &m);
        }
        if (v->n > 0) att_visit_cells(v, fetched, any ? next : NULL, &m);
        if (!any || next->begins) att_few_end(&run->job, run->kv_from, rows, 0, nth, &m);
        fetched = v->n > 0;
    }
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
    bool few;
    att_index index;
    att_index_make(job, &index);
    for (int64_t token = 0; token < job->tokens; token += n) {
        n = att_run_of(job, token, &few);
        if (few) {
            n_short++;
            continue;
        }
        /* One kv head after the other, so that its cells stay in the cache; the longest pieces, later queries, first.
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
    tn__share(n_short * job->kv_heads, 1, ith, nth, &from, &to);
    if (from < to) att_short_runs(job, &index, from, to, nth, memory);
}
