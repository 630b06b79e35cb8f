/* Collecting importance: sums of squared inputs, and the file made of them. */
#include "files/importance_sums.h"

#include "files/importance.h"
#include "files/quant_mix.h"

#include "tenon/backend.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sums_row {
    const char *name; /* the model file's */
    int64_t columns, matrices;
    double *sums;   /* columns of every matrix */
    double *counts; /* inputs of every matrix */
};

struct importance_sums {
    struct sums_row *rows; /* sorted by name */
    size_t count, bytes;
    double *values; /* of all rows */
    void *input;    /* a copy of the inputs of one multiplication, and of the experts' ids */
    size_t input_size;
    float *floats; /* one row of inputs */
    int64_t most_columns;
    tn_status status;
    char message[256];
};

/* ---- Rows ---- */

static int by_sums_name(const void *a, const void *b) {
    return strcmp(((const struct sums_row *)a)->name, ((const struct sums_row *)b)->name);
}

static bool is_measured(const tn_gguf *model, const tn_gguf_tensor *t, bool output) {
    if (!mix_quantizes(t->name, t->n_dims)) return false;
    if (strncmp(t->name, "blk.", 4) == 0 || strstr(t->name, ".blk.")) return true;
    const char *last = tn_gguf_find_tensor(model, "output.weight") ? "output.weight" : "token_embd.weight";
    return output && strcmp(t->name, last) == 0;
}

tn_status importance_sums_new(const tn_gguf *model, bool output, struct importance_sums **out) {
    *out = NULL;
    struct importance_sums *s = tn_calloc(1, sizeof *s);
    size_t tensors = (size_t)tn_gguf_tensor_count(model), values = 0;
    if (!s || !(s->rows = tn_calloc(tensors + 1, sizeof *s->rows))) {
        tn_free(s);
        return TN_E_NOMEM;
    }
    for (size_t i = 0; i < tensors; i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(model, i);
        if (!is_measured(model, t, output)) continue;
        struct sums_row *row = &s->rows[s->count++];
        *row = (struct sums_row){.name = t->name, .columns = t->ne[0], .matrices = t->ne[2] * t->ne[3]};
        values += (size_t)((row->columns + 1) * row->matrices);
        if (row->columns > s->most_columns) s->most_columns = row->columns;
    }
    qsort(s->rows, s->count, sizeof *s->rows, by_sums_name);
    s->bytes = values * sizeof *s->values;
    s->values = tn_calloc(values + 1, sizeof *s->values);
    s->floats = tn_malloc((size_t)(s->most_columns + 1) * sizeof *s->floats);
    if (!s->values || !s->floats) {
        importance_sums_free(s);
        return TN_E_NOMEM;
    }
    double *at = s->values;
    for (size_t i = 0; i < s->count; i++) {
        s->rows[i].sums = at;
        s->rows[i].counts = at + s->rows[i].columns * s->rows[i].matrices;
        at = s->rows[i].counts + s->rows[i].matrices;
    }
    *out = s;
    return TN_OK;
}

void importance_sums_free(struct importance_sums *s) {
    if (!s) return;
    tn_free(s->rows);
    tn_free(s->values);
    tn_free(s->input);
    tn_free(s->floats);
    tn_free(s);
}

size_t importance_sums_bytes(const struct importance_sums *s) { return s->bytes; }
tn_status importance_sums_status(const struct importance_sums *s) {
    return s->status == TN_OK ? TN_OK : tn_fail(s->status, "%s", s->message);
}

/* ---- Observing ---- */

/* The row of the weights that a node multiplies; NULL: it does something else. A weight may be seen through views,
 * and as a copy on another device, whose name continues with '@'. */
static struct sums_row *row_of(const struct importance_sums *s, const tn_tensor *node) {
    if (node->op != TN_OP_MUL_MAT && node->op != TN_OP_MUL_MAT_ID) return NULL;
    const tn_tensor *w = node->src[0];
    while (w->view_src) w = w->view_src;
    char name[TN_MAX_NAME];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(w->name, "@"), w->name);
    struct sums_row key = {.name = name};
    struct sums_row *row = bsearch(&key, s->rows, s->count, sizeof *s->rows, by_sums_name);
    return row && row->columns == node->src[0]->ne[0] ? row : NULL;
}

static tn_status copy_input(struct importance_sums *s, const tn_tensor *t, size_t offset) {
    size_t size = offset + tn_nbytes(t);
    if (size > s->input_size) {
        void *grown = tn_realloc(s->input, size);
        if (!grown) return TN_E_NOMEM;
        s->input = grown;
        s->input_size = size;
    }
    return tn_tensor_get(t, (char *)s->input + offset);
}

static tn_status add_input(struct importance_sums *s, struct sums_row *row, int64_t matrix, const void *input,
                           tn_type type) {
    double *sums = row->sums + matrix * row->columns, total = 0;
    TN_TRY(tn_type_to_f32(type, input, s->floats, row->columns));
    for (int64_t i = 0; i < row->columns; i++) {
        double square = (double)s->floats[i] * (double)s->floats[i];
        sums[i] += square;
        total += square;
    }
    row->counts[matrix]++;
    if (isfinite(total)) return TN_OK;
    return tn_fail(TN_E_NOT_FINITE, "the input of \"%s\" is infinite or not a number", row->name);
}

static const void *input_at(const struct importance_sums *s, const tn_tensor *y, int64_t i1, int64_t i2, int64_t i3) {
    return (const char *)s->input + (size_t)i1 * y->nb[1] + (size_t)i2 * y->nb[2] + (size_t)i3 * y->nb[3];
}

/* y[k, n, …] of x[k, m, …]: input matrix i2, i3 meets the weights of the same index, or those of all. */
static tn_status add_inputs(struct importance_sums *s, struct sums_row *row, const tn_tensor *node) {
    const tn_tensor *x = node->src[0], *y = node->src[1];
    TN_TRY(copy_input(s, y, 0));
    for (int64_t i3 = 0; i3 < y->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < y->ne[2]; i2++) {
            int64_t matrix = i3 % x->ne[3] * x->ne[2] + i2 % x->ne[2];
            if (row->matrices == 1) matrix = 0;
            for (int64_t i1 = 0; i1 < y->ne[1]; i1++)
                TN_TRY(add_input(s, row, matrix % row->matrices, input_at(s, y, i1, i2, i3), y->type));
        }
    return TN_OK;
}

/* y[k, u, t] (u: experts of a token, or 1) with ids[u, t]. */
static tn_status add_expert_inputs(struct importance_sums *s, struct sums_row *row, const tn_tensor *node) {
    const tn_tensor *y = node->src[1], *ids = node->src[2];
    size_t ids_at = (tn_nbytes(y) + 63) / 64 * 64;
    TN_TRY(copy_input(s, y, 0));
    TN_TRY(copy_input(s, ids, ids_at));
    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t u = 0; u < ids->ne[0]; u++) {
            int32_t expert;
            memcpy(&expert, (const char *)s->input + ids_at + (size_t)t * ids->nb[1] + (size_t)u * ids->nb[0], 4);
            if (expert < 0 || expert >= row->matrices) continue; /* no expert */
            TN_TRY(add_input(s, row, expert, input_at(s, y, u % y->ne[1], t, 0), y->type));
        }
    return TN_OK;
}

bool importance_sums_observe(void *user, tn_tensor *node, bool ask) {
    struct importance_sums *s = user;
    struct sums_row *row = row_of(s, node);
    if (ask || !row) return row != NULL;
    s->status = node->op == TN_OP_MUL_MAT ? add_inputs(s, row, node) : add_expert_inputs(s, row, node);
    if (s->status != TN_OK) snprintf(s->message, sizeof s->message, "%s", tn_error());
    return s->status == TN_OK;
}

/* ---- Files ---- */

tn_status importance_sums_add_file(struct importance_sums *s, const char *path) {
    struct importance *file;
    TN_TRY(importance_open(path, &file));
    tn_status status = TN_OK;
    for (size_t i = 0; i < s->count && status == TN_OK; i++) {
        struct sums_row *row = &s->rows[i];
        const float *means, *counts;
        status = importance_find(file, row->name, row->columns, row->matrices, &means);
        size_t n = importance_counts(file, row->name, &counts);
        if (status != TN_OK || !means || !n) continue;
        for (int64_t m = 0; m < row->matrices; m++) {
            double count = (double)counts[n == (size_t)row->matrices ? m : 0];
            for (int64_t c = 0; c < row->columns && count > 0; c++)
                row->sums[m * row->columns + c] += (double)means[m * row->columns + c] * count;
            row->counts[m] += count;
        }
    }
    importance_free(file);
    return status == TN_OK ? TN_OK : tn_fail_more(status, " (%s)", path);
}

static bool has_input(const struct sums_row *row, bool *all) {
    bool any = false;
    *all = true;
    for (int64_t m = 0; m < row->matrices; m++) {
        any |= row->counts[m] > 0;
        *all &= row->counts[m] > 0;
    }
    return any;
}

static double most_inputs(const struct importance_sums *s) {
    double most = 0;
    for (size_t i = 0; i < s->count; i++)
        for (int64_t m = 0; m < s->rows[i].matrices; m++) most = fmax(most, s->rows[i].counts[m]);
    return most;
}

static tn_status write_floats(tn_gguf_writer *w, const double *values, int64_t n) {
    float part[1024];
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i < 1024 ? n - i : 1024;
        for (int64_t j = 0; j < k; j++) part[j] = (float)values[i + j];
        TN_TRY(tn_gguf_writer_write(w, part, (size_t)k * sizeof *part));
    }
    return TN_OK;
}

static tn_status write_sums(const struct importance_sums *s, tn_gguf_writer *w, const struct importance_note *note,
                            size_t *missing, size_t *partial) {
    char name[512];
    bool all;
    tn_gguf_str *datasets = tn_calloc(note->dataset_count + 1, sizeof *datasets);
    if (!datasets) return TN_E_NOMEM;
    for (size_t i = 0; i < note->dataset_count; i++)
        datasets[i] = (tn_gguf_str){note->datasets[i], strlen(note->datasets[i])};
    tn_status status = tn_gguf_writer_set_array(w, "imatrix.datasets", TN_GGUF_STR, datasets, note->dataset_count);
    tn_free(datasets);
    TN_TRY(status);
    TN_TRY(tn_gguf_writer_set_cstr(w, "general.type", "imatrix"));
    TN_TRY(tn_gguf_writer_set_u32(w, "imatrix.chunk_count", (uint32_t)(most_inputs(s) / note->chunk_size)));
    TN_TRY(tn_gguf_writer_set_u32(w, "imatrix.chunk_size", note->chunk_size));
    for (size_t i = 0; i < s->count; i++) {
        const struct sums_row *row = &s->rows[i];
        const bool any = has_input(row, &all);
        *missing += !any;
        *partial += any && !all;
        if (!any) continue;
        snprintf(name, sizeof name, "%s.in_sum2", row->name);
        TN_TRY(tn_gguf_writer_add(w, name, TN_F32, 2, (int64_t[]){row->columns, row->matrices, 1, 1}));
        snprintf(name, sizeof name, "%s.counts", row->name);
        TN_TRY(tn_gguf_writer_add(w, name, TN_F32, 2, (int64_t[]){1, row->matrices, 1, 1}));
    }
    TN_TRY(tn_gguf_writer_begin(w));
    for (size_t i = 0; i < s->count; i++) {
        const struct sums_row *row = &s->rows[i];
        if (!has_input(row, &all)) continue;
        TN_TRY(write_floats(w, row->sums, row->columns * row->matrices));
        TN_TRY(write_floats(w, row->counts, row->matrices));
    }
    return tn_gguf_writer_finish(w);
}

tn_status importance_sums_write(const struct importance_sums *s, const char *path, const struct importance_note *note,
                                size_t *missing, size_t *partial) {
    tn_gguf_writer *w;
    *missing = *partial = 0;
    TN_TRY(tn_gguf_writer_new(path, NULL, &w));
    tn_status status = write_sums(s, w, note, missing, partial);
    tn_gguf_writer_free(w);
    return status;
}
