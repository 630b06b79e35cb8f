/* Few tokens whose many heads share a kv head, as in latent attention: part of the attention template.
 *
 * Cells are split like those of other groups of few rows, but the rows of a split are one matrix: keys and values of
 * a list of cells are converted to panels, which all rows use, as in att_piece. */

static size_t att_wide_sizes(const tn__attention_job *job, size_t sizes[3]) {
    sizes[0] = ATT_CELLS * (size_t)job->head_k;                       /* keys */
    sizes[1] = ATT_CELLS * (size_t)att_groups(job) * TILE_ROWS;       /* values */
    sizes[2] = ((size_t)VL * (size_t)att_larger(job) + 15) / 16 * 16; /* rows */
    return sizes[0] + sizes[1] + sizes[2];
}
static size_t att_wide_floats(const tn__attention_job *job) {
    size_t sizes[3];
    return att_is_wide(job) ? att_wide_sizes(job, sizes) : 0;
}
static att_memory att_wide_carve(const tn__attention_job *job, float *at) {
    size_t sizes[3];
    att_wide_sizes(job, sizes);
    return (att_memory){.keys = at, .values = at + sizes[0], .rows = at + sizes[0] + sizes[1]};
}

/* Scores of `rows` queries with up to ATT_CELLS listed cells. */
static void att_wide_scores(const tn__attention_job *job, int64_t kv, const int32_t *cells, int count, const float *q,
                            size_t q_next, int rows, float *scores, size_t next, att_memory *panels) {
    att_load_keys(job, kv, cells, count, panels);
    att_tiles(panels->keys, (size_t)job->head_k * TILE_ROWS, (count + TILE_ROWS - 1) / TILE_ROWS, q, q_next,
              (int)job->head_k, scores, next, 0, rows, false);
}
/* Adds the weighted values to the sums, whose rows are padded to whole panels. */
static void att_wide_values(const tn__attention_job *job, int64_t kv, const int32_t *cells, int count,
                            const float *weights, size_t next, float *sums, size_t s_next, int rows,
                            att_memory *panels) {
    att_load_values(job, kv, cells, count, panels);
    att_tiles(panels->values, (size_t)ATT_CELLS * TILE_ROWS, (int)att_groups(job), weights, next, count, sums, s_next,
              0, rows, true);
}
