/* Visibility of cells, block by block: part of the attention template. */

/* The positions visible to a query are one interval; a visible cell must also belong to the query's sequence. */
typedef struct att_view {
    int32_t low, high, sequence;
    int64_t position;
} att_view;
static att_view att_view_of(const tn__attention_job *job, int64_t token) {
    const tn_attention_params *p = &job->params;
    tn__query q = tn__query_of(job, token);
    int64_t low = 0, high = INT32_MAX;
    if (p->causal) high = q.position;
    if (p->window > 0 && q.position - p->window + 1 > low) low = q.position - p->window + 1;
    if (p->chunk > 0) {
        int64_t start = q.position / p->chunk * p->chunk;
        low = start > low ? start : low;
        high = start + p->chunk - 1 < high ? start + p->chunk - 1 : high;
    }
    if (q.sequence < 0 || high < low) return (att_view){1, 0, -1, q.position};
    return (att_view){(int32_t)low, (int32_t)high, q.sequence, q.position};
}

/* Summary of a block of cells: range of positions, sequences of all cells and of any cell. */
typedef struct att_block {
    int32_t position[ATT_CELLS], least, most;
    uint32_t all[ATT_WORDS], any[ATT_WORDS];
} att_block;
static void att_summarise(const tn__attention_job *job, int64_t cell, int count, att_block *b) {
    int words = job->k_pos ? job->k_words : 0;
    b->least = INT32_MAX;
    b->most = INT32_MIN;
    if (!job->k_pos) {
        for (int i = 0; i < count; i++) b->position[i] = (int32_t)(cell + i);
        b->least = (int32_t)cell;
        b->most = (int32_t)(cell + count - 1);
        return;
    }
    for (int w = 0; w < ATT_WORDS; w++) b->all[w] = ~0u, b->any[w] = 0;
    for (int i = 0; i < count; i++) {
        const int32_t *entry = job->k_pos + (size_t)(1 + words) * (size_t)(cell + i);
        b->position[i] = entry[0];
        b->least = entry[0] < b->least ? entry[0] : b->least;
        b->most = entry[0] > b->most ? entry[0] : b->most;
        for (int w = 0; w < words && w < ATT_WORDS; w++) {
            b->all[w] &= (uint32_t)entry[1 + w];
            b->any[w] |= (uint32_t)entry[1 + w];
        }
    }
}
/* The sequences of a job's tokens, as bits. */
typedef struct att_sequence_set {
    bool known; /* false: all cells may be visible */
    uint32_t bits[ATT_WORDS];
} att_sequence_set;
static att_sequence_set att_sequences_of(const tn__attention_job *job) {
    att_sequence_set w = {.known = job->k_pos && job->q_pos && job->k_words > 0 && job->k_words <= ATT_WORDS};
    for (int64_t t = 0; w.known && t < job->tokens; t++) {
        int32_t sequence = job->q_pos[2 * t + 1];
        if (sequence >= 0 && sequence < 32 * job->k_words) w.bits[sequence / 32] |= (uint32_t)1 << sequence % 32;
    }
    return w;
}
/* Narrows a block of cells to the range that contains any of the sequences. */
static void att_narrow(const tn__attention_job *job, const att_sequence_set *w, int64_t *cell, int *count) {
    if (!w->known) return;
    const int words = job->k_words;
    int first = *count, last = -1;
    const int32_t *entry = job->k_pos + (size_t)(1 + words) * (size_t)*cell;
    for (int i = 0; i < *count; i++, entry += 1 + words) {
        uint32_t hit = 0;
        for (int k = 0; k < words; k++) hit |= (uint32_t)entry[1 + k] & w->bits[k];
        if (!hit) continue;
        first = i < first ? i : first;
        last = i;
    }
    *cell += last < 0 ? 0 : first;
    *count = last < 0 ? 0 : last + 1 - first;
}
enum { SEES_NONE, SEES_SOME, SEES_ALL };
static int att_sees(const tn__attention_job *job, att_view v, const att_block *b) {
    if (v.sequence < 0 || b->most < v.low || b->least > v.high) return SEES_NONE;
    int result = v.low <= b->least && b->most <= v.high ? SEES_ALL : SEES_SOME;
    if (job->k_pos && job->k_words > 0) {
        if (v.sequence >= 32 * job->k_words) return SEES_NONE;
        int w = v.sequence / 32;
        uint32_t bit = (uint32_t)1 << v.sequence % 32;
        if (w >= ATT_WORDS) return SEES_SOME;
        if (!(b->any[w] & bit)) return SEES_NONE;
        if (!(b->all[w] & bit)) return SEES_SOME;
    }
    return result;
}
/* 0 for visible cells, -infinity for others. */
static void att_hide(const tn__attention_job *job, att_view v, const att_block *b, int64_t cell, int count,
                     float *hide) {
    for (int i = 0; i < count; i++)
        hide[i] = b->position[i] >= v.low && b->position[i] <= v.high ? 0 : -__builtin_inff();
    if (job->k_pos && job->k_words > 0) {
        size_t each = (size_t)(1 + job->k_words);
        const int32_t *word = job->k_pos + each * (size_t)cell + 1 + v.sequence / 32;
        for (int i = 0; i < count; i++) {
            if (!((uint32_t)word[each * (size_t)i] >> v.sequence % 32 & 1)) hide[i] = -__builtin_inff();
        }
    }
}

/* The same for cells that all belong to the query's sequence. */
static void att_hide_positions(att_view v, const int32_t *positions, int count, float *hide) {
    for (int i = 0; i < count; i++) hide[i] = positions[i] >= v.low && positions[i] <= v.high ? 0 : -__builtin_inff();
}

/* ---- One sequence ---- */

/* Index from sequences to the blocks of ATT_BATCH cells that contain them: a row of bits per sequence. Blocks are
 * counted from the first cell of the job's range. */
typedef struct att_index {
    bool known; /* false: the index would be too long, or there are no sequences */
    int64_t first, end;
    int32_t sequences;
    int row; /* words */
    uint32_t bits[ATT_INDEX];
} att_index;

static void att_index_make(const tn__attention_job *job, att_index *x) {
    const int words = job->k_pos ? job->k_words : 0, each = 1 + words;
    tn__cell_range(job, &x->first, &x->end);
    const int64_t blocks = x->end > x->first ? (x->end - x->first + ATT_BATCH - 1) / ATT_BATCH : 0;
    x->row = (int)((blocks + 31) / 32);
    x->sequences = 32 * words;
    x->known =
        words > 0 && words <= ATT_WORDS && blocks <= 32 * ATT_INDEX && (int64_t)x->row * x->sequences <= ATT_INDEX;
    if (!x->known) return;
    memset(x->bits, 0, (size_t)x->row * (size_t)x->sequences * sizeof *x->bits);
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t cell = x->first + block * ATT_BATCH;
        const int64_t ints = (x->end - cell < ATT_BATCH ? x->end - cell : ATT_BATCH) * each;
        const int32_t *entry = job->k_pos + (size_t)each * (size_t)cell;
        /* Eight cells side by side, so that the loop vectorizes for any number of words. */
        uint32_t any[8 * (1 + ATT_WORDS)] = {0};
        int64_t i = 0;
        for (; i + 8 * each <= ints; i += 8 * each)
            for (int j = 0; j < 8 * each; j++) any[j] |= (uint32_t)entry[i + j];
        for (int j = 0; i < ints; i++, j++) any[j] |= (uint32_t)entry[i];
        for (int w = 0; w < words; w++) {
            uint32_t holds = 0;
            for (int j = 0; j < 8; j++) holds |= any[j * each + 1 + w];
            for (; holds; holds &= holds - 1)
                x->bits[(32 * w + __builtin_ctz(holds)) * x->row + block / 32] |= (uint32_t)1 << block % 32;
        }
    }
}
/* The first cell of the next block, starting with that of `cell`, that may contain the sequence; at or past the end
 * when there is none. */
static int64_t att_index_next(const att_index *x, int32_t sequence, int64_t cell) {
    if (!x->known || cell >= x->end) return cell;
    if (sequence < 0 || sequence >= x->sequences) return x->end;
    const uint32_t *row = x->bits + (size_t)sequence * (size_t)x->row;
    int64_t block = (cell - x->first) / ATT_BATCH;
    uint32_t word = row[block / 32] & ~(uint32_t)0 << block % 32;
    for (block /= 32; !word;) {
        if (++block >= x->row) return x->end;
        word = row[block];
    }
    return x->first + (block * 32 + __builtin_ctz(word)) * ATT_BATCH;
}

/* Positions from low to high; none where high < low. */
typedef struct att_span {
    int32_t low, high;
} att_span;
static att_span att_span_of_cells(const int32_t *positions, int count) {
    att_span s = {INT32_MAX, -1};
    for (int i = 0; i < count; i++) {
        s.low = positions[i] < s.low ? positions[i] : s.low;
        s.high = positions[i] > s.high ? positions[i] : s.high;
    }
    return s;
}
/* The positions visible to any of the tokens [from, to). */
static att_span att_span_of(const tn__attention_job *job, int64_t from, int64_t to) {
    att_span s = {INT32_MAX, -1};
    for (int64_t t = from; t < to; t++) {
        const att_view v = att_view_of(job, t);
        if (v.high < v.low) continue;
        s.low = v.low < s.low ? v.low : s.low;
        s.high = v.high > s.high ? v.high : s.high;
    }
    return s;
}
static int att_sees_span(att_view v, att_span s) {
    if (v.sequence < 0 || s.high < v.low || s.low > v.high) return SEES_NONE;
    return v.low <= s.low && s.high <= v.high ? SEES_ALL : SEES_SOME;
}

/* Lists the cells of a sequence (or all cells of a job without sequences) whose positions are in the span. Starts at
 * *cell and continues block by block while there is room for a whole block; *cell becomes the first block not
 * examined. Returns the number of cells; 0 at the end. */
static int att_gather(const tn__attention_job *job, const att_index *index, int32_t sequence, att_span span,
                      int64_t *cell, int64_t end, int room, int32_t *cells, int32_t *positions) {
    const int words = job->k_pos ? job->k_words : 0, word = words && sequence >= 0 ? 1 + sequence / 32 : 0;
    const uint32_t wide = (uint32_t)span.high - (uint32_t)span.low;
    int count = 0;
    if (span.high < span.low || (words && (sequence < 0 || sequence >= 32 * words))) return 0;
    while (count + ATT_BATCH <= room && (*cell = att_index_next(index, sequence, *cell)) < end) {
        const int n = (int)(end - *cell < ATT_BATCH ? end - *cell : ATT_BATCH);
        const int32_t *entry = job->k_pos ? job->k_pos + (size_t)(1 + words) * (size_t)*cell : NULL;
        for (int i = 0; i < n; i++) {
            const int32_t position = entry ? entry[(1 + words) * i] : (int32_t)*cell + i;
            const uint32_t is = words ? (uint32_t)entry[(1 + words) * i + word] >> sequence % 32 & 1 : 1;
            cells[count] = (int32_t)*cell + i;
            positions[count] = position;
            count += ((uint32_t)position - (uint32_t)span.low <= wide) & (int)is;
        }
        *cell += ATT_BATCH;
    }
    return count;
}
