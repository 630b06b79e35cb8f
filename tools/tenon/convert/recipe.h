/* How a tensor of a GGUF file is made from tensors of a Hugging Face folder. */
#ifndef TENON_TOOL_RECIPE_H
#define TENON_TOOL_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

/* GGUF name → Hugging Face name, without ".weight" and ".bias". L stands for the layer, E for the expert. */
struct name_row {
    const char *gguf, *hf;
};
extern const struct name_row hf_names[]; /* ends with a row without names */
extern const char *const hf_prefixes[];  /* ends with NULL */

struct safetensors_tensor;

/* How one tensor is made from its sources: row r of matrix m is row source_row(r) of matrix m of the source. */
struct recipe {
    struct safetensors_tensor **sources; /* one, or one for each matrix */
    int64_t source_count;
    int64_t columns, rows, matrices; /* of the result */
    int64_t source_rows;             /* rows (columns when transposed) of a source matrix */
    int64_t offset, step;            /* source row = offset + step × row after reordering */
    bool transposed;                 /* a source row is a column of the result */
    bool paired;                     /* rows of a head are reordered from halves to pairs */
    bool grouped;                    /* the source holds the heads group by group: q…q k v */
    int64_t first;                   /* index of this tensor's first row among all rows of q, k and v */
    int64_t *map;                    /* the source row of each row of the result, instead of the above; owned */
    int64_t *column_map;             /* the source column of each column of the result; owned */
    int64_t stride;                  /* transposed: source rows of a matrix, of which the first are used */
    float *row_scale;                /* multiplies each row of the result; owned */
    float scale;                     /* multiplies every element; 0: 1 */
    bool decay;                      /* the result is −exp(source) */
    bool any_shape;                  /* only the number of elements of the source is checked */
    bool plus_one;
    bool elements;         /* rows of one element: a vector for each matrix */
    bool blocks;           /* MXFP4: sources are blocks and scales */
    bool tokens;           /* a list of token numbers, stored as their distances from 0, 1, 2 … */
    const float *constant; /* the values themselves; no source */
};

#endif
