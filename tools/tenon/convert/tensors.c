/* The source of each GGUF tensor in a Hugging Face folder, and the order of its rows there. */
#include "cli/cli.h"
#include "convert/convert.h"
#include "convert/packed.h"
#include "convert/recipe.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Recipes ---- */

struct hf_weights {
    struct hf_model *model;
    struct safetensors *set;
    struct recipe *recipes;
    size_t count, capacity;
    bool low_rank; /* matrices of a LoRA adapter, under the names of the weights that they change */
};

/* The row of the source that becomes row r of the result. */
static int64_t source_row(const struct hf_weights *w, const struct recipe *p, int64_t r) {
    const struct layout *l = &w->model->layout;
    int64_t head = l->head, q = (int64_t)l->heads * head, kv = (int64_t)l->kv_heads * head;
    if (p->map) return p->map[r];
    r += p->first;
    if (p->paired) { /* the pair (2i, 2i + 1) is (i, i + half) in the source */
        int64_t half = l->rotated / 2, d = r % head;
        if (d < 2 * half) r = r - d + (d % 2) * half + d / 2;
    }
    if (p->grouped) {
        int64_t share = l->heads / l->kv_heads, d = r % head, group, member;
        if (r < q)
            group = r / head / share, member = r / head % share;
        else if (r < q + kv)
            group = (r - q) / head, member = share;
        else
            group = (r - q - kv) / head, member = share + 1;
        r = (group * (share + 2) + member) * head + d;
    } else {
        r -= p->first;
    }
    return p->offset + p->step * r;
}

static tn_status read_matrix_rows(const struct hf_weights *w, const struct recipe *p, int64_t row, int64_t count,
                                  float *out) {
    while (count > 0) {
        int64_t m = row / p->rows, r = row % p->rows;
        const struct safetensors_tensor *source = p->sources[p->source_count > 1 ? m : 0];
        int64_t base = p->source_count > 1 ? 0 : m * p->source_rows, from = source_row(w, p, r), run = 1;
        if (p->transposed) {
            const int64_t m_base = base / p->source_rows * (p->stride ? p->stride : p->columns);
            /* Element c of every result row comes from source row c; a run of neighbouring columns is read at once.
             */
            while (run < count && r + run < p->rows && source_row(w, p, r + run) == from + run) run++;
            float *band = tn_malloc((size_t)run * sizeof *band);
            tn_status status = band ? TN_OK : TN_E_NOMEM;
            for (int64_t c = 0; c < p->columns && status == TN_OK; c++) {
                status = safetensors_floats(w->set, source, (m_base + c) * p->source_rows + from, run, band);
                for (int64_t k = 0; k < run && status == TN_OK; k++) out[k * p->columns + c] = band[k];
            }
            tn_free(band);
            TN_TRY(status);
        } else {
            while (run < count && r + run < p->rows && source_row(w, p, r + run) == from + run) run++;
            TN_TRY(safetensors_floats(w->set, source, (base + from) * p->columns, run * p->columns, out));
        }
        out += run * p->columns;
        row += run;
        count -= run;
    }
    return TN_OK;
}

/* Vectors: their elements are reordered like the rows of the matrix that they belong to. */
static tn_status read_vectors(const struct hf_weights *w, const struct recipe *p, int64_t first, int64_t count,
                              float *out) {
    float *all = tn_malloc((size_t)p->source_rows * sizeof *all);
    tn_status status = all ? TN_OK : TN_E_NOMEM;
    for (int64_t m = first; m < first + count && status == TN_OK; m++) {
        status = safetensors_floats(w->set, p->sources[0], m * p->source_rows, p->source_rows, all);
        for (int64_t i = 0; i < p->rows && status == TN_OK; i++)
            *out++ = all[source_row(w, p, i)] + (p->plus_one ? 1.0f : 0.0f);
    }
    tn_free(all);
    return status;
}

/* MXFP4 blocks. Hugging Face: 16 bytes with two neighbouring elements each, and the scales in a tensor of their own.
 * GGUF: the scale, then 16 bytes with elements i and i + 16. */
static tn_status read_blocks(const struct hf_weights *w, const struct recipe *p, int64_t row, int64_t count,
                             unsigned char *out) {
    int64_t n = p->columns / 32;
    unsigned char *hf = tn_malloc((size_t)n * 17);
    if (!hf) return TN_E_NOMEM;
    unsigned char *scales = hf + n * 16;
    tn_status status = TN_OK;
    for (; count > 0 && status == TN_OK; row++, count--) {
        uint64_t from = (uint64_t)(row / p->rows * p->source_rows + source_row(w, p, row % p->rows));
        status = safetensors_bytes(w->set, p->sources[0], from * (uint64_t)n * 16, (size_t)n * 16, hf);
        if (status == TN_OK) status = safetensors_bytes(w->set, p->sources[1], from * (uint64_t)n, (size_t)n, scales);
        for (int64_t b = 0; b < n; b++, out += 17) {
            out[0] = scales[b];
            for (int i = 0; i < 16; i++) {
                const unsigned char *bytes = hf + b * 16;
                unsigned low = bytes[i / 2] >> (i % 2 * 4) & 15, high = bytes[8 + i / 2] >> (i % 2 * 4) & 15;
                out[1 + i] = (unsigned char)(low | high << 4);
            }
        }
    }
    tn_free(hf);
    return status;
}

/* Numbers of tokens, from their distances to the number of the element. */
static tn_status read_token_list(const struct hf_weights *w, const struct recipe *p, int64_t *out) {
    const struct safetensors_tensor *t = p->sources[0];
    const int64_t n_vocab = w->model->layout.vocab;
    for (int64_t i = 0; i < p->columns; i++) {
        int32_t narrow = 0;
        const bool wide = t->type == ST_I64;
        const size_t size = wide ? sizeof *out : sizeof narrow;
        TN_TRY(safetensors_bytes(w->set, t, (uint64_t)i * size, size, wide ? (void *)&out[i] : &narrow));
        out[i] = (wide ? out[i] : narrow) + i;
        if (out[i] < 0 || out[i] >= n_vocab)
            return tn_fail(TN_E_FORMAT, "element %" PRId64 " of \"%s\" is token %" PRId64 " of %" PRId64, i, t->name,
                           out[i], n_vocab);
    }
    return TN_OK;
}

/* Orders the columns of rows and computes what the file has instead of the source's values. */
static tn_status change_values(const struct recipe *p, int64_t first, int64_t count, float *out) {
    const int64_t n = p->elements ? p->rows : p->columns;
    if (p->column_map) {
        float *row = tn_malloc((size_t)n * sizeof *row);
        if (!row) return TN_E_NOMEM;
        for (int64_t r = 0; r < count; r++) {
            memcpy(row, out + r * n, (size_t)n * sizeof *row);
            for (int64_t i = 0; i < n; i++) out[r * n + i] = row[p->column_map[i]];
        }
        tn_free(row);
    }
    for (int64_t r = 0; r < count && (p->row_scale || p->scale != 0 || p->decay); r++) {
        const float scale = (p->scale != 0 ? p->scale : 1) * (p->row_scale ? p->row_scale[(first + r) % p->rows] : 1);
        for (int64_t i = 0; i < n; i++) out[r * n + i] = p->decay ? -expf(out[r * n + i]) : scale * out[r * n + i];
    }
    return TN_OK;
}

tn_status hf_weights_rows(void *user, size_t tensor, int64_t first, int64_t count, void *out) {
    const struct hf_weights *w = user;
    const struct recipe *p = &w->recipes[tensor];
    if (p->constant) {
        memcpy(out, p->constant + first * p->columns, (size_t)(count * p->columns) * sizeof(float));
        return TN_OK;
    }
    if (p->blocks) return read_blocks(w, p, first, count, out);
    if (p->tokens) return read_token_list(w, p, out);
    TN_TRY(p->elements ? read_vectors(w, p, first, count, out) : read_matrix_rows(w, p, first, count, out));
    return change_values(p, first, count, out);
}

/* ---- Finding sources ---- */

/* "blk.3.attn_q.bias" as 3, "attn_q" and "bias". Names like "blk.3.ssm_a" are of weights, too. */
struct tensor_name {
    int layer; /* −1: not in a layer */
    char base[64];
    const char *ending;
};
static struct tensor_name split_tensor_name(const char *name) {
    struct tensor_name n = {.layer = -1, .ending = "weight"};
    int skip = 0;
    if (sscanf(name, "blk.%d.%n", &n.layer, &skip) < 1 && sscanf(name, "enc.blk.%d.%n", &n.layer, &skip) < 1)
        skip = 0;
    const char *dot = strrchr(name + skip, '.');
    if (dot) n.ending = dot + 1;
    snprintf(n.base, sizeof n.base, "%.*s", (int)(dot ? (size_t)(dot - name - skip) : strlen(name + skip)),
             name + skip);
    return n;
}

/* Writes a name: prefix, pattern with its numbers, ending. */
static void expand_name(char *out, size_t size, const char *prefix, const char *pattern, int layer, int expert,
                        const char *ending) {
    size_t used = (size_t)snprintf(out, size, "%s", prefix);
    for (const char *p = pattern; *p && used + 16 < size; p++) {
        bool alone = (p == pattern || p[-1] == '.') && (p[1] == '.' || p[1] == '\0');
        if (alone && *p == 'L')
            used += (size_t)snprintf(out + used, size - used, "%d", layer);
        else if (alone && *p == 'E')
            used += (size_t)snprintf(out + used, size - used, "%d", expert);
        else
            out[used++] = *p;
    }
    snprintf(out + used, size - used, "%s", ending);
}

struct hf_source {
    const struct name_row *row;
    struct safetensors_tensor *tensor; /* of the first expert, where every expert has one */
    char name[256];
};

/* Tries every prefix and every spelling of ".weight" and ".bias". */
static struct safetensors_tensor *find_tensor(struct hf_weights *w, const char *pattern, int layer, int expert,
                                              const char *ending, char *name, size_t size) {
    const char *const weight[] = {".weight", "", NULL}, *const bias[] = {".bias", "_bias", NULL};
    const char *const *endings = strcmp(ending, "bias") == 0 ? bias : weight;
    for (size_t i = 0; hf_prefixes[i]; i++)
        for (int k = 0; endings[k]; k++) {
            expand_name(name, size, hf_prefixes[i], pattern, layer, expert, endings[k]);
            struct safetensors_tensor *t = safetensors_find(w->set, name);
            if (t) return t;
        }
    return NULL;
}

static bool find_source(struct hf_weights *w, const char *base, int layer, const char *ending,
                        struct hf_source *source) {
    for (size_t i = 0; hf_names[i].gguf; i++) {
        if (strcmp(hf_names[i].gguf, base) != 0) continue;
        source->tensor = find_tensor(w, hf_names[i].hf, layer, 0, ending, source->name, sizeof source->name);
        source->row = &hf_names[i];
        if (source->tensor) return true;
        if (!strstr(hf_names[i].hf, "mlp.experts.gate_up_proj") && !strstr(hf_names[i].hf, "mlp.experts.down_proj"))
            continue;
        /* Blocks and scales instead of floats. */
        char blocks[128];
        snprintf(blocks, sizeof blocks, "%s_blocks", hf_names[i].hf);
        source->tensor = find_tensor(w, blocks, layer, 0, ending, source->name, sizeof source->name);
        if (source->tensor) return true;
    }
    return false;
}

static tn_status hf_wrong_shape(const struct safetensors_tensor *t, const char *name, int64_t columns, int64_t rows,
                                int64_t matrices) {
    char shape[128];
    return tn_fail(TN_E_SHAPE,
                   "tensor \"%s\" has the shape %s; for \"%s\" the configuration requires %" PRId64
                   " columns, %" PRId64 " rows and %" PRId64 " matrices",
                   t->name, safetensors_shape_text(t, shape, sizeof shape), name, columns, rows, matrices);
}

/* Whether a source is [matrices, rows, columns]; leading dimensions of 1 may be absent. */
static bool source_shape_is(const struct safetensors_tensor *t, int64_t matrices, int64_t rows, int64_t columns) {
    int64_t want[3] = {matrices, rows, columns}, have[3] = {1, 1, 1};
    int n = 0, at = 3;
    for (int i = t->n_dims; i-- > 0;) {
        if (t->shape[i] == 1 && t->n_dims > 3) continue;
        if (++n > 3) return false;
        have[--at] = t->shape[i];
    }
    return memcmp(want, have, sizeof want) == 0;
}

static tn_status add_sources(struct hf_weights *w, struct recipe *p, const struct hf_source *source, int layer,
                             const char *ending) {
    const char *end = strrchr(source->row->hf, '.');
    bool each = strstr(source->row->hf, ".E.") || (end && strcmp(end, ".E") == 0);
    p->source_count = each ? p->matrices : p->blocks ? 2 : 1;
    p->sources = tn_calloc((size_t)p->source_count, sizeof(struct safetensors_tensor *));
    if (!p->sources) return TN_E_NOMEM;
    p->sources[0] = source->tensor;
    source->tensor->used = true;
    char name[256];
    for (int64_t e = 1; each && e < p->matrices; e++) {
        p->sources[e] = find_tensor(w, source->row->hf, layer, (int)e, ending, name, sizeof name);
        if (!p->sources[e]) return tn_fail(TN_E_NOT_FOUND, "%s: tensor \"%s\" is missing", w->model->folder, name);
        p->sources[e]->used = true;
    }
    if (!p->blocks) return TN_OK;
    size_t stem = strlen(source->name) - strlen("_blocks");
    snprintf(name, sizeof name, "%.*s_scales", (int)stem, source->name);
    p->sources[1] = safetensors_find(w->set, name);
    if (!p->sources[1]) return tn_fail(TN_E_NOT_FOUND, "%s: tensor \"%s\" is missing", w->model->folder, name);
    p->sources[1]->used = true;
    return TN_OK;
}

/* Gate and up in one source: alternating rows, or gate before up. */
static void cut_fused(const struct hf_weights *w, struct recipe *p, const char *base) {
    bool up = strncmp(base, "ffn_up", 6) == 0;
    p->source_rows = 2 * p->rows;
    if (w->model->class->traits & TN_ARCH_HF_INTERLEAVED_EXPERTS) {
        p->step = 2;
        p->offset = up;
    } else {
        p->offset = up ? p->rows : 0;
    }
}

static tn_status check_sources(const struct recipe *p, const char *name) {
    int64_t matrices = p->source_count > 1 && !p->blocks ? 1 : p->matrices;
    for (int64_t i = 0; i < p->source_count; i++) {
        const struct safetensors_tensor *t = p->sources[i];
        bool fits;
        if (p->blocks)
            fits = t->type == ST_U8 && t->count == matrices * p->source_rows * (p->columns / 32) * (i == 0 ? 16 : 1);
        else if (p->any_shape)
            fits = t->count == p->source_rows * (p->stride ? p->stride * p->matrices : matrices * p->columns);
        else if (p->elements)
            fits = source_shape_is(t, 1, matrices, p->source_rows);
        else if (p->transposed)
            fits = source_shape_is(t, matrices, p->columns, p->source_rows);
        else
            fits = source_shape_is(t, matrices, p->source_rows, p->columns);
        if (!fits) return hf_wrong_shape(t, name, p->columns, p->source_rows, p->matrices);
        if (!p->blocks && t->type > ST_PACKED)
            return tn_fail(TN_E_TYPE, "tensor \"%s\" has type %s where floats are expected", t->name,
                           safetensors_type_name(t->type));
    }
    return TN_OK;
}

static void order_rows(const struct hf_weights *w, struct recipe *p, const struct hf_source *source, const char *base,
                       const char *ending) {
    const struct layout *l = &w->model->layout;
    unsigned traits = w->model->class->traits;
    int64_t q = (int64_t)l->heads * l->head, kv = (int64_t)l->kv_heads * l->head;
    const char *hf = source->row->hf;
    bool matrix = strcmp(ending, "weight") == 0;
    bool is_q = strcmp(base, "attn_q") == 0, is_k = strcmp(base, "attn_k") == 0, is_v = strcmp(base, "attn_v") == 0;
    p->paired = traits & TN_ARCH_HF_PAIRED_ROPE && (is_q || is_k);
    if (traits & TN_ARCH_HF_GROUPED_QKV && (is_q || is_k || is_v || strcmp(base, "attn_qkv") == 0)) {
        p->grouped = true;
        p->first = is_k ? q : is_v ? q + kv : 0;
        p->source_rows = q + 2 * kv;
    }
    size_t length = strlen(base);
    bool norm = length > 5 && (strcmp(base + length - 5, "_norm") == 0 || strcmp(base, "nextn.enorm") == 0 ||
                               strcmp(base, "nextn.hnorm") == 0);
    p->plus_one = traits & TN_ARCH_HF_NORM_PLUS_ONE && norm && matrix;
    if (traits & TN_ARCH_HF_TRANSPOSED && matrix &&
        (strncmp(base, "attn_", 5) == 0 || strncmp(base, "ffn_", 4) == 0) && !norm)
        p->transposed = true;
    if (strstr(hf, "gate_up_proj") && strstr(hf, "experts")) cut_fused(w, p, base);
    if (strstr(hf, "input_linear")) cut_fused(w, p, base);
    if (traits & TN_ARCH_HF_INTERLEAVED_EXPERTS && strstr(hf, "mlp.experts.") && matrix && !p->blocks)
        p->transposed = true; /* stored as [expert, in, out] */
    if (traits & TN_ARCH_HF_TRANSPOSED_EXPERTS && strstr(hf, "experts.") && p->matrices > 1) p->transposed = true;
}

static tn_status add_recipe(struct hf_weights *w, const struct recipe *made) {
    if (w->count == w->capacity) {
        size_t capacity = w->capacity ? w->capacity * 2 : 256;
        struct recipe *grown = tn_realloc(w->recipes, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        w->recipes = grown;
        w->capacity = capacity;
    }
    w->recipes[w->count++] = *made;
    return TN_OK;
}

bool hf_weights_has(struct hf_weights *w, tn_arch_tensor *t) {
    const struct tensor_name n = split_tensor_name(t->name);
    if (strcmp(n.ending, "weight") != 0 && strcmp(n.ending, "bias") != 0) return false; /* scales of block types */
    if (strncmp(n.base, "rope_", 5) == 0)
        return n.layer < 0 && w->model->rope_factors &&
               (strcmp(n.base, "rope_freqs") == 0) != w->model->rope_long_short;
    struct hf_source source = {0};
    if (!find_source(w, n.base, n.layer, n.ending, &source)) return false;
    if (strncmp(n.base, "cls", 3) == 0 && !hf_model_has_classifier(w->model, source.row->hf, t)) return false;
    if (strcmp(n.base, "cls.output") == 0 && w->model->answers_yes) return true;
    /* Without experts the shared one is the feed-forward part. */
    if (strstr(source.row->hf, ".shared_mlp.") && !strstr(n.base, "_shexp") == (w->model->layout.experts > 0))
        return false;
    /* A plain vector or matrix has the shape of its source; parts of a fused matrix have their own. */
    bool known = true;
    for (int i = 0; i < t->n_dims; i++) known = known && t->ne[i] > 0;
    if (known && (t->need == TN_ARCH_USUAL || strncmp(n.base, "ssm_", 4) == 0)) return true;
    if (source.tensor->n_dims > 3 || strstr(source.row->hf, ".E.")) return known;
    t->n_dims = source.tensor->n_dims;
    for (int i = 0; i < t->n_dims; i++) t->ne[i] = source.tensor->shape[t->n_dims - 1 - i];
    return true;
}

bool hf_weights_dense_layer(struct hf_weights *w, int layer) {
    struct hf_source source = {0};
    return w->model->layout.experts > 0 && !find_source(w, "ffn_gate_inp", layer, "weight", &source) &&
           find_source(w, "ffn_up", layer, "weight", &source);
}

tn_status hf_weights_scalar(struct hf_weights *w, const char *pattern, int layer, float *out) {
    char name[256];
    struct safetensors_tensor *t = find_tensor(w, pattern, layer, 0, "weight", name, sizeof name);
    if (!t || t->count != 1)
        return tn_fail(TN_E_FORMAT, "%s: tensor \"%s\" is missing or has more than one element", w->model->folder,
                       name);
    t->used = true;
    return safetensors_floats(w->set, t, 0, 1, out);
}

static void free_recipe(struct recipe *p) {
    tn_free(p->sources);
    tn_free(p->map);
    tn_free(p->column_map);
    tn_free(p->row_scale);
}

int64_t hf_weights_guessed_tokens(struct hf_weights *w) {
    const struct safetensors_tensor *t = hf_is_eagle3(w->model) ? safetensors_find(w->set, "d2t") : NULL;
    return t ? t->count : 0;
}

static tn_status add_token_list(struct hf_weights *w, struct recipe *p) {
    struct safetensors_tensor *t = safetensors_find(w->set, "d2t");
    if (!t || t->count != p->columns || (t->type != ST_I64 && t->type != ST_I32))
        return tn_fail(TN_E_TYPE, "%s: \"d2t\" is not a list of %" PRId64 " whole numbers", w->model->folder,
                       p->columns);
    p->tokens = true;
    p->source_count = 1;
    p->sources = tn_calloc(1, sizeof(struct safetensors_tensor *));
    if (!p->sources) return TN_E_NOMEM;
    p->sources[0] = t;
    t->used = true;
    const tn_status status = add_recipe(w, p);
    if (status != TN_OK) free_recipe(p);
    return status;
}

tn_status hf_weights_add(struct hf_weights *w, const char *name, int n_dims, const int64_t *ne, tn_type *raw) {
    const struct tensor_name n = split_tensor_name(name);
    const char *base = n.base, *ending = n.ending;
    *raw = TN_F32;
    struct recipe p = {
        .columns = ne[0], .rows = n_dims > 1 ? ne[1] : 1, .matrices = n_dims > 2 ? ne[2] : 1, .step = 1};
    p.source_rows = p.rows;
    if (strncmp(base, "rope_", 5) == 0) {
        bool second = strcmp(base, "rope_factors_short") == 0;
        p.constant = w->model->rope_factors + (second ? ne[0] : 0);
        return add_recipe(w, &p);
    }
    if (strcmp(name, "d2t") == 0) {
        *raw = TN_I64;
        return add_token_list(w, &p);
    }
    struct hf_source source = {0};
    if (!find_source(w, base, n.layer, ending, &source))
        return tn_fail(TN_E_NOT_FOUND, "%s: no source for the tensor \"%s\" (\"%s\", for example, is missing)",
                       w->model->folder, name, source.name);
    size_t length = strlen(source.name);
    p.blocks = length > 7 && strcmp(source.name + length - 7, "_blocks") == 0;
    /* Vectors are rows of one element, so that they are split and reordered like matrices. */
    bool bias = strcmp(ending, "bias") == 0;
    if (n_dims == 1 || bias) {
        p.elements = true;
        p.rows = p.source_rows = ne[0];
        p.columns = 1;
        p.matrices = n_dims > 1 ? ne[1] : 1;
    }
    order_rows(w, &p, &source, base, ending);
    p.any_shape = strncmp(base, "ssm_", 4) == 0 || strncmp(base, "shortconv.", 10) == 0;
    tn_status status = hf_model_order(w->model, base, source.row->hf, &p);
    if (status == TN_OK && w->low_rank) {
        p.transposed = p.any_shape = false; /* adapters have rows of outputs in any case */
        if (p.column_map || p.decay || p.blocks || p.matrices > 1)
            status = tn_fail(TN_E_UNSUPPORTED, "an adapter changes \"%s\": its conversion is not supported", name);
    }
    if (status == TN_OK) status = add_sources(w, &p, &source, n.layer, ending);
    if (status == TN_OK) status = check_sources(&p, name);
    if (status == TN_OK) status = add_recipe(w, &p);
    if (status != TN_OK) free_recipe(&p);
    if (p.blocks) *raw = TN_MXFP4;
    return status;
}

/* ---- Folder ---- */

tn_status hf_weights_open(struct hf_model *model, struct hf_weights **out) {
    struct hf_weights *w = tn_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return TN_E_NOMEM;
    w->model = model;
    tn_status status = safetensors_open(model->folder, &w->set);
    if (status == TN_OK) status = hf_nextn_find(model, w->set);
    if (status == TN_OK) status = hf_tasks_find(model, w->set);
    if (status == TN_OK) status = hf_eagle3_find(model, w->set);
    json_t *quantized = json_object_get(model->root, "quantization_config");
    if (!quantized) quantized = json_object_get(model->config, "quantization_config");
    if (status == TN_OK) status = packed_weights_find(w->set, quantized);
    if (status != TN_OK) {
        safetensors_close(w->set);
        tn_free(w);
        return status;
    }
    /* Tied if the configuration says so, or if it says nothing and there is no output matrix. */
    json_t *tie = json_object_get(model->config, "tie_word_embeddings");
    if (!tie) tie = json_object_get(model->root, "tie_word_embeddings");
    if (hf_is_eagle3(model)) tie = NULL; /* that of its model */
    struct hf_source source = {0};
    bool output = find_source(w, "output", 0, "weight", &source);
    if (json_is_true(tie) || (!tie && !output)) model->layout.traits |= TN_ARCH_TIED;
    if (json_is_true(tie) && output) source.tensor->used = true;
    *out = w;
    return TN_OK;
}

/* "base_model.model.X.lora_A.weight" becomes "X.weight". */
static tn_status rename_low_rank(const char *folder, struct safetensors_tensor *t, char which) {
    static const char prefix[] = "base_model.model.";
    char *ending = strstr(t->name, ".lora_");
    const bool is_matrix = ending && (ending[6] == 'A' || ending[6] == 'B') &&
                           (strcmp(ending + 7, ".weight") == 0 || strcmp(ending + 7, ".default.weight") == 0);
    if (!is_matrix || strncmp(t->name, prefix, sizeof prefix - 1) != 0)
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s: tensor \"%s\" is not a LoRA matrix of a linear layer: its conversion is not supported",
                       folder, t->name);
    if (ending[6] != which) {
        t->used = true; /* of the other half */
        return TN_OK;
    }
    memcpy(ending, ".weight", sizeof ".weight");
    memmove(t->name, t->name + sizeof prefix - 1, strlen(t->name + sizeof prefix - 1) + 1);
    return TN_OK;
}

tn_status hf_weights_open_lora(struct hf_model *model, const char *folder, char which, struct hf_weights **out) {
    struct hf_weights *w = tn_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return TN_E_NOMEM;
    w->model = model;
    w->low_rank = true;
    tn_status status = safetensors_open_file(folder, "adapter_model.safetensors", &w->set);
    for (size_t i = 0; status == TN_OK && i < safetensors_count(w->set); i++)
        status = rename_low_rank(folder, safetensors_at(w->set, i), which);
    if (status != TN_OK) {
        hf_weights_close(w);
        return status;
    }
    safetensors_sort(w->set);
    *out = w;
    return TN_OK;
}

bool hf_weights_shape(struct hf_weights *w, const char *name, int64_t *columns, int64_t *rows) {
    const struct tensor_name n = split_tensor_name(name);
    struct hf_source source = {0};
    if (strcmp(n.ending, "weight") != 0 || !find_source(w, n.base, n.layer, n.ending, &source)) return false;
    if (source.tensor->n_dims != 2) return false;
    *rows = source.tensor->shape[0];
    *columns = source.tensor->shape[1];
    return true;
}

tn_status hf_weights_add_plain(struct hf_weights *w, const char *name) {
    const struct tensor_name n = split_tensor_name(name);
    struct hf_source source = {0};
    struct recipe p = {.matrices = 1, .step = 1};
    if (!hf_weights_shape(w, name, &p.columns, &p.rows) || !find_source(w, n.base, n.layer, n.ending, &source))
        return tn_fail(TN_E_NOT_FOUND, "the adapter has only one of the two matrices of \"%s\"", name);
    p.source_rows = p.rows;
    tn_status status = add_sources(w, &p, &source, n.layer, n.ending);
    if (status == TN_OK) status = check_sources(&p, name);
    if (status == TN_OK) status = add_recipe(w, &p);
    if (status != TN_OK) free_recipe(&p);
    return status;
}

const char *hf_weights_unused(const struct hf_weights *w) {
    for (size_t i = 0; i < safetensors_count(w->set); i++)
        if (!safetensors_at(w->set, i)->used) return safetensors_at(w->set, i)->name;
    return NULL;
}

void hf_weights_close(struct hf_weights *w) {
    if (!w) return;
    for (size_t i = 0; i < w->count; i++) free_recipe(&w->recipes[i]);
    tn_free(w->recipes);
    safetensors_close(w->set);
    tn_free(w);
}

tn_type hf_weights_type(const struct hf_weights *w) {
    uint64_t bytes[ST_BOOL + 1] = {0};
    for (size_t i = 0; i < safetensors_count(w->set); i++)
        bytes[safetensors_at(w->set, i)->type] += safetensors_at(w->set, i)->size;
    if (bytes[ST_BF16] >= bytes[ST_F16] && bytes[ST_BF16] >= bytes[ST_F32]) return TN_BF16;
    return bytes[ST_F16] >= bytes[ST_F32] ? TN_F16 : TN_F32;
}

void hf_weights_report(const struct hf_weights *w) {
    /* Buffers that are not weights, and the vision and audio parts of a model. */
    static const char *const known[] = {"rotary_emb",
                                        ".masked_bias",
                                        ".attn.bias",
                                        "vision_",
                                        "visual.",
                                        "multi_modal",
                                        "position_ids",
                                        "pooler.",
                                        "cls.",
                                        "attention.bias",
                                        "mm_projector",
                                        "audio_",
                                        "embed_positions",
                                        "mtp.",
                                        "decoder.",
                                        "encoder.embed_tokens",
                                        "slope_rate",
                                        "_decay",
                                        "input_scale",
                                        "k_scale",
                                        "v_scale"};
    size_t unused = 0;
    const char *example = NULL;
    for (size_t i = 0; i < safetensors_count(w->set); i++) {
        const struct safetensors_tensor *t = safetensors_at(w->set, i);
        bool expected = t->used;
        for (size_t k = 0; k < sizeof known / sizeof *known && !expected; k++)
            expected = strstr(t->name, known[k]) != NULL;
        if (expected) continue;
        unused++;
        example = t->name;
    }
    if (unused) warn("%zu tensors of the folder are not used, %s among them", unused, example);
}
