/* The inputs of graphs: which graphs have them, their values for a micro-batch, and sending them. */
#include "llm/inputs.h"

#include <math.h>
#include <string.h>

/* ---- Which graphs have an input ---- */

typedef struct input_context {
    const tn__hparams *h;
    const tn__kv *kv;
    tn__shape shape;
} input_context;

static bool has_tokens(const input_context *c) {
    return !tn__moves_cells(c->shape) && c->shape.kind != TN__GRAPH_NEXT;
}
static bool has_positions(const input_context *c) { return !tn__moves_cells(c->shape); }
/* Only pairs of texts have tokens of type 1. */
static bool has_token_types(const input_context *c) {
    return c->shape.kind == TN__GRAPH_RANK && c->h->n_token_types > 1 && c->h->separator >= 0;
}
static bool has_query_cells(const input_context *c) { return !tn__moves_cells(c->shape); }
static bool has_query_scales(const input_context *c) {
    return !tn__moves_cells(c->shape) && c->h->temperature_scale != 0;
}
static bool uses_group(const input_context *c, int group) {
    return !tn__moves_cells(c->shape) && c->kv->groups[group].n_pages > 0;
}
static bool has_rows_full(const input_context *c) { return uses_group(c, TN__CACHE_FULL); }
static bool has_rows_window(const input_context *c) { return uses_group(c, TN__CACHE_WINDOW); }
static bool has_states(const input_context *c) { return !tn__moves_cells(c->shape) && tn__states_width(c->h); }
static bool has_steps(const input_context *c) { return !tn__moves_cells(c->shape) && c->kv->states.n_rows > 0; }
static bool has_output_rows(const input_context *c) {
    return !tn__moves_cells(c->shape) && c->shape.n_outputs < c->shape.n_tokens;
}
static bool has_adapter_scales(const input_context *c) { return c->shape.adapters != 0; }
static bool has_move_from(const input_context *c) { return tn__moves_cells(c->shape); }
static bool has_move_to(const input_context *c) { return tn__moves_cells(c->shape); }
static bool has_move_delta(const input_context *c) { return c->shape.kind == TN__GRAPH_SHIFT; }

/* ---- Values ---- */

/* The values of n tokens, then `padding` up to the graph's rows. */
static void stage_list(const tn__micro_batch *b, const int32_t *list, int32_t padding, int32_t *to) {
    memcpy(to, list, (size_t)b->n * sizeof *to);
    for (int32_t i = b->n; i < b->padded; i++) to[i] = padding;
}

static void stage_tokens(const tn__micro_batch *b, void *to) { stage_list(b, b->tokens, 0, to); }
static void stage_positions(const tn__micro_batch *b, void *to) { stage_list(b, b->positions, 0, to); }
/* The first text up to its separator has type 0, the second 1. The tokens of a sequence are contiguous. */
static void stage_token_types(const tn__micro_batch *b, void *to) {
    int32_t *types = to, type = 0;
    for (int32_t i = 0; i < b->padded; i++) {
        if (i == 0 || i >= b->n || b->seqs[i] != b->seqs[i - 1]) type = 0;
        types[i] = type;
        if (i < b->n && b->tokens[i] == b->h->separator) type = 1;
    }
}
/* Position and sequence; a padding row has no sequence and sees no cells. */
static void stage_query_cells(const tn__micro_batch *b, void *to) {
    int32_t *cells = to;
    for (int32_t i = 0; i < b->padded; i++) {
        cells[2 * i] = i < b->n ? b->positions[i] : 0;
        cells[2 * i + 1] = i < b->n ? (b->lists ? b->lists : b->seqs)[i] : -1;
    }
}
static void stage_query_scales(const tn__micro_batch *b, void *to) {
    float *scales = to;
    for (int32_t i = 0; i < b->padded; i++) {
        const int64_t position = i < b->n ? b->positions[i] : 0;
        scales[i] = 1 + b->h->temperature_scale *
                            logf(1 + (float)((position + b->h->temperature_offset) / b->h->temperature_length));
    }
}
/* Row -1 is not written. */
static void stage_rows_full(const tn__micro_batch *b, void *to) { stage_list(b, b->rows[TN__CACHE_FULL], -1, to); }
static void stage_rows_window(const tn__micro_batch *b, void *to) {
    stage_list(b, b->rows[TN__CACHE_WINDOW], -1, to);
}
static void stage_states(const tn__micro_batch *b, void *to) {
    const size_t row = (size_t)tn__states_width(b->h) * sizeof *b->states;
    memcpy(to, b->states, (size_t)b->n * row);
    memset((char *)to + (size_t)b->n * row, 0, (size_t)(b->padded - b->n) * row);
}
static void stage_steps(const tn__micro_batch *b, void *to) {
    tn__step *steps = to;
    memcpy(steps, b->steps, (size_t)b->n * sizeof *steps);
    for (int32_t i = b->n; i < b->padded; i++) steps[i] = (tn__step){-1, -1, TN__STEP_PADDING, -1};
}
static void stage_output_rows(const tn__micro_batch *b, void *to) {
    memcpy(to, b->out_rows, (size_t)b->n_outputs * sizeof *b->out_rows);
}
/* A row of scales for every adapter of the graph. Padding rows have none. */
static void stage_adapter_scales(const tn__micro_batch *b, void *to) {
    float *scales = to;
    for (size_t k = 0; k < b->n_adapters; k++) {
        if (!(b->adapters >> k & 1)) continue;
        for (int32_t i = 0; i < b->padded; i++)
            *scales++ = i < b->n ? b->scales[(size_t)b->seqs[i] * b->n_adapters + k] * b->factors[k] : 0;
    }
}
static void stage_move_from(const tn__micro_batch *b, void *to) { stage_list(b, b->move_from, 0, to); }
static void stage_move_to(const tn__micro_batch *b, void *to) { stage_list(b, b->move_to, -1, to); }
static void stage_move_delta(const tn__micro_batch *b, void *to) { stage_list(b, b->move_delta, 0, to); }

/* ---- The table ---- */

typedef struct input_row {
    const char *name;
    tn_type type;
    int64_t ne[3];
    bool (*has)(const input_context *context);
    void (*stage)(const tn__micro_batch *batch, void *to);
} input_row;
static const input_row input_rows[] = {
#define TN_X(NAME, function, text, TYPE, ...) {text, TN_##TYPE, {__VA_ARGS__}, has_##function, stage_##function},
    TN__INPUT_TABLE(TN_X)
#undef TN_X
};

static int input_shape(const input_row *row, tn__shape shape, int32_t width, int64_t ne[3]) {
    int n_dims = 0;
    for (int i = 0; i < 3 && row->ne[i]; i++, n_dims++)
        ne[i] = row->ne[i] == TN__TOKENS     ? shape.n_tokens
                : row->ne[i] == TN__OUTPUTS  ? shape.n_outputs
                : row->ne[i] == TN__ADAPTERS ? __builtin_popcount(shape.adapters)
                : row->ne[i] == TN__WIDTH    ? width
                                             : row->ne[i];
    return n_dims;
}

size_t tn__input_bytes(tn__input source, tn__shape shape, int32_t width) {
    int64_t ne[3];
    int n_dims = input_shape(&input_rows[source], shape, width, ne);
    size_t bytes = tn_type_bytes(input_rows[source].type);
    for (int i = 0; i < n_dims; i++) bytes *= (size_t)ne[i];
    return bytes;
}

void tn__inputs_build(tn_arena *arena, const tn__hparams *h, const tn__kv *kv, tn__shape shape,
                      tn__graph_inputs *inputs) {
    const input_context context = {h, kv, shape};
    inputs->n = 0;
    for (int i = 0; i < TN__INPUT_COUNT; i++) {
        const input_row *row = &input_rows[i];
        int64_t ne[3];
        if (!row->has(&context)) continue;
        tn_tensor *tensor = tn_mark(
            tn_tensor_new(arena, row->type, input_shape(row, shape, tn__states_width(h), ne), ne), TN_FLAG_INPUT);
        inputs->list[inputs->n++] =
            (tn__graph_input){.tensor = tn_name(arena, tensor, "%s", row->name),
                              .source = (tn__input)i,
                              .bytes = tn__input_bytes((tn__input)i, shape, tn__states_width(h))};
    }
}

tn_tensor *tn__input_tensor(const tn__graph_inputs *inputs, tn__input source) {
    for (size_t i = 0; i < inputs->n; i++)
        if (inputs->list[i].source == source) return inputs->list[i].tensor;
    return NULL;
}

void tn__inputs_stage(const tn__graph_inputs *inputs, const tn__micro_batch *batch, void *const *values) {
    for (size_t i = 0; i < inputs->n; i++) {
        tn__input source = inputs->list[i].source;
        input_rows[source].stage(batch, values[source]);
    }
}

tn_status tn__inputs_set(const tn__graph_inputs *inputs, void *const *values) {
    for (size_t i = 0; i < inputs->n; i++) {
        const tn__graph_input *input = &inputs->list[i];
        if (input->tensor->data) TN_TRY(tn_tensor_set_at(input->tensor, values[input->source], 0, input->bytes));
    }
    return TN_OK;
}

tn_status tn__inputs_set_async(const tn__graph_inputs *inputs, void *const *values, tn_stream *queue) {
    for (size_t i = 0; i < inputs->n; i++) {
        const tn__graph_input *input = &inputs->list[i];
        if (input->tensor->data)
            TN_TRY(tn_stream_set_async(queue, input->tensor, values[input->source], 0, input->bytes));
    }
    return TN_OK;
}
