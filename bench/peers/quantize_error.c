/* Errors of two quantized files relative to their source model:
 *
 *     build/peers/quantize_error SOURCE.gguf OURS.gguf THEIRS.gguf [LIMIT]
 *
 * Prints the relative rmse of each type of tensor and the worst ratio of ours to theirs. Fails if that exceeds the
 * limit (1.03), or if the files do not hold the same tensors. Tensors that either side did not quantize are not
 * compared; those of different types are only counted. */
#include "tenon/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(tn_status status) {
    if (status == TN_OK) return;
    fprintf(stderr, "%s\n", tn_error());
    exit(2);
}

/* Σ(x-y)² / Σx² over all rows, one row at a time. */
static double error_of(const tn_gguf_tensor *source, const tn_gguf_tensor *made) {
    int64_t columns = source->ne[0], n = 1;
    for (int i = 0; i < source->n_dims; i++) n *= source->ne[i];
    float *x = malloc((size_t)columns * sizeof *x), *y = malloc((size_t)columns * sizeof *y);
    if (!x || !y) exit(2);
    size_t source_row = (size_t)(columns / tn_type_block(source->type)) * tn_type_bytes(source->type);
    size_t made_row = (size_t)(columns / tn_type_block(made->type)) * tn_type_bytes(made->type);
    double error = 0, square = 0;
    for (int64_t r = 0; r < n / columns; r++) {
        check(tn_type_to_f32(source->type, (const char *)source->data + (size_t)r * source_row, x, columns));
        check(tn_type_to_f32(made->type, (const char *)made->data + (size_t)r * made_row, y, columns));
        for (int64_t i = 0; i < columns; i++) {
            error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
            square += (double)x[i] * x[i];
        }
    }
    free(x);
    free(y);
    return square > 0 ? sqrt(error / square) : 0;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s SOURCE.gguf OURS.gguf THEIRS.gguf [LIMIT]\n", argv[0]);
        return 2;
    }
    double limit = argc > 4 ? atof(argv[4]) : 1.03, worst = 0, ours_sum[TN_TYPE_LIMIT] = {0};
    double theirs_sum[TN_TYPE_LIMIT] = {0};
    int count[TN_TYPE_LIMIT] = {0}, other_types = 0;
    const char *worst_name = "none";
    tn_gguf *files[3];
    for (int i = 0; i < 3; i++) check(tn_gguf_open(argv[i + 1], NULL, &files[i]));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(files[0]); i++) {
        const tn_gguf_tensor *source = tn_gguf_tensor_at(files[0], i);
        const tn_gguf_tensor *ours = tn_gguf_find_tensor(files[1], source->name);
        const tn_gguf_tensor *theirs = tn_gguf_find_tensor(files[2], source->name);
        if (!ours || !theirs || memcmp(ours->ne, theirs->ne, sizeof ours->ne) != 0) {
            fprintf(stderr, "tensor \"%s\" is missing or has another shape\n", source->name);
            return 1;
        }
        if (ours->type != theirs->type) {
            printf("%s: %s, theirs %s\n", source->name, tn_type_name(ours->type), tn_type_name(theirs->type));
            other_types++;
            continue;
        }
        double a = error_of(source, ours), b = error_of(source, theirs);
        if (b == 0 && a == 0) continue;
        ours_sum[ours->type] += a;
        theirs_sum[ours->type] += b;
        count[ours->type]++;
        if (b == 0 || a / b > worst) {
            worst = b == 0 ? INFINITY : a / b;
            worst_name = source->name;
        }
    }
    for (int type = 0; type < TN_TYPE_LIMIT; type++)
        if (count[type])
            printf("%-8s %4d tensors: relative rmse %.6f, theirs %.6f, ratio %.4f\n", tn_type_name((tn_type)type),
                   count[type], ours_sum[type] / count[type], theirs_sum[type] / count[type],
                   ours_sum[type] / theirs_sum[type]);
    printf("worst ratio %.4f (%s), %d tensors of other types\n", worst, worst_name, other_types);
    for (int i = 0; i < 3; i++) tn_gguf_close(files[i]);
    return worst <= limit ? 0 : 1;
}
