/* Importance files: how much each column of each weight matrix matters. */
#include "files/importance.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct importance_row {
    char *name;
    float *weights; /* means */
    size_t count;
    float *counts; /* inputs of each matrix */
    size_t matrices;
};

struct importance {
    struct importance_row *rows;
    size_t count, capacity;
};

void importance_free(struct importance *im) {
    if (!im) return;
    for (size_t i = 0; i < im->count; i++) {
        tn_free(im->rows[i].name);
        tn_free(im->rows[i].weights);
        tn_free(im->rows[i].counts);
    }
    tn_free(im->rows);
    tn_free(im);
}

size_t importance_count(const struct importance *im) { return im->count; }

/* Adds a row of `count` weights of `matrices`, all 0. */
static tn_status add_importance_row(struct importance *im, const char *name, size_t length, size_t count,
                                    size_t matrices, struct importance_row **out) {
    if (im->count == im->capacity) {
        size_t capacity = im->capacity ? im->capacity * 2 : 128;
        struct importance_row *grown = tn_realloc(im->rows, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        im->rows = grown;
        im->capacity = capacity;
    }
    struct importance_row row = {.name = tn_malloc(length + 1),
                                 .weights = tn_calloc(count, sizeof(float)),
                                 .count = count,
                                 .counts = tn_calloc(matrices, sizeof(float)),
                                 .matrices = matrices};
    if (!row.name || !row.weights || !row.counts) {
        tn_free(row.name);
        tn_free(row.weights);
        tn_free(row.counts);
        return TN_E_NOMEM;
    }
    memcpy(row.name, name, length);
    row.name[length] = '\0';
    im->rows[im->count] = row;
    *out = &im->rows[im->count++];
    return TN_OK;
}

static tn_status check_importance_row(const char *path, const struct importance_row *row) {
    for (size_t i = 0; i < row->count; i++)
        if (!isfinite(row->weights[i]) || row->weights[i] < 0)
            return tn_fail(TN_E_FORMAT, "%s: \"%s\" has the weight %g; weights must be finite and not negative", path,
                           row->name, (double)row->weights[i]);
    return TN_OK;
}

/* ---- GGUF ---- */

static tn_status read_gguf(const tn_gguf *file, struct importance *im) {
    static const char ending[] = ".in_sum2";
    const char *path = tn_gguf_path(file);
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *sums = tn_gguf_tensor_at(file, i);
        size_t length = strlen(sums->name), tail = sizeof ending - 1;
        if (length <= tail || strcmp(sums->name + length - tail, ending) != 0) continue;
        char name[512];
        snprintf(name, sizeof name, "%.*s.counts", (int)(length - tail), sums->name);
        const tn_gguf_tensor *counts = tn_gguf_find_tensor(file, name);
        int64_t matrices = sums->ne[1], columns = sums->ne[0];
        if (!counts || counts->type != TN_F32 || sums->type != TN_F32 || sums->ne[2] * sums->ne[3] != 1 ||
            counts->size != (size_t)matrices * sizeof(float))
            return tn_fail(TN_E_FORMAT, "%s: \"%s\" has no matching counts", path, sums->name);
        struct importance_row *row;
        TN_TRY(
            add_importance_row(im, sums->name, length - tail, (size_t)(matrices * columns), (size_t)matrices, &row));
        const float *sum = sums->data, *count = counts->data;
        for (int64_t m = 0; m < matrices; m++) {
            row->counts[m] = count[m];
            for (int64_t c = 0; c < columns; c++) /* an unused expert: equal weights */
                row->weights[m * columns + c] = count[m] > 0 ? sum[m * columns + c] / count[m] : 1.0f;
        }
        TN_TRY(check_importance_row(path, row));
    }
    return TN_OK;
}

/* ---- Older binary format ---- */

/* It counts chunks of text, whose length it does not have: the usual one. */
enum { DAT_CHUNK = 512 };

static tn_status read_exactly(FILE *in, const char *path, void *out, size_t size) {
    if (fread(out, 1, size, in) == size) return TN_OK;
    return tn_fail(TN_E_FORMAT, "%s: byte %ld: the file ends too early", path, ftell(in));
}

static tn_status read_binary(FILE *in, const char *path, struct importance *im) {
    int32_t entries, length, calls, values;
    char name[512];
    TN_TRY(read_exactly(in, path, &entries, 4));
    if (entries < 1 || entries > TN_GGUF_MAX_TENSORS)
        return tn_fail(TN_E_FORMAT, "%s: not an importance file (%" PRId32 " entries)", path, entries);
    for (int32_t i = 0; i < entries; i++) {
        TN_TRY(read_exactly(in, path, &length, 4));
        if (length < 1 || length >= (int32_t)sizeof name)
            return tn_fail(TN_E_FORMAT, "%s: byte %ld: a name of %" PRId32 " bytes", path, ftell(in), length);
        TN_TRY(read_exactly(in, path, name, (size_t)length));
        TN_TRY(read_exactly(in, path, &calls, 4));
        TN_TRY(read_exactly(in, path, &values, 4));
        if (values < 1 || values > 1 << 28)
            return tn_fail(TN_E_FORMAT, "%s: byte %ld: %" PRId32 " weights", path, ftell(in), values);
        struct importance_row *row;
        TN_TRY(add_importance_row(im, name, (size_t)length, (size_t)values, 1, &row));
        row->counts[0] = calls > 0 ? (float)calls * DAT_CHUNK : 0;
        TN_TRY(read_exactly(in, path, row->weights, (size_t)values * sizeof(float)));
        for (int32_t k = 0; k < values && calls > 0; k++) row->weights[k] /= (float)calls;
        TN_TRY(check_importance_row(path, row));
    }
    return TN_OK;
}

/* ---- Both formats ---- */

static int by_row_name(const void *a, const void *b) {
    return strcmp(((const struct importance_row *)a)->name, ((const struct importance_row *)b)->name);
}

tn_status importance_open(const char *path, struct importance **out) {
    *out = NULL;
    char magic[4] = {0};
    FILE *in = fopen(path, "rb");
    if (!in) return tn_fail(TN_E_IO, "%s: %m", path);
    struct importance *im = tn_calloc(1, sizeof *im);
    tn_status status = im ? TN_OK : TN_E_NOMEM;
    size_t got = fread(magic, 1, 4, in);
    rewind(in);
    if (status == TN_OK && got == 4 && memcmp(magic, "GGUF", 4) == 0) {
        tn_gguf *file = NULL;
        status = tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_READ}, &file);
        if (status == TN_OK) {
            status = read_gguf(file, im);
            tn_gguf_close(file);
        }
    } else if (status == TN_OK) {
        status = read_binary(in, path, im);
    }
    fclose(in);
    if (status == TN_OK && im->count == 0)
        status = tn_fail(TN_E_FORMAT, "%s: no importance weights in this file", path);
    if (status != TN_OK) {
        importance_free(im);
        return status;
    }
    qsort(im->rows, im->count, sizeof *im->rows, by_row_name);
    *out = im;
    return TN_OK;
}

size_t importance_counts(const struct importance *im, const char *tensor, const float **counts) {
    struct importance_row key = {.name = (char *)(uintptr_t)tensor};
    const struct importance_row *row = bsearch(&key, im->rows, im->count, sizeof *im->rows, by_row_name);
    if (!row) return 0;
    *counts = row->counts;
    return row->matrices;
}

tn_status importance_find(const struct importance *im, const char *tensor, int64_t columns, int64_t matrices,
                          const float **weights) {
    *weights = NULL;
    if (!im) return TN_OK;
    struct importance_row key = {.name = (char *)(uintptr_t)tensor};
    const struct importance_row *row = bsearch(&key, im->rows, im->count, sizeof *im->rows, by_row_name);
    if (!row) return TN_OK;
    if (row->count != (size_t)columns * (size_t)matrices)
        return tn_fail(TN_E_SHAPE,
                       "tensor \"%s\": the importance file has %zu weights instead of %" PRId64 " × %" PRId64
                       "; it belongs to another model",
                       tensor, row->count, columns, matrices);
    *weights = row->weights;
    return TN_OK;
}
