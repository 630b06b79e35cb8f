/* The memory plan of a small transformer, printed and drawn, before a single byte of it is allocated.
 *
 *     plan [PICTURE.svg [LAYERS]] */
#include <stdio.h>
#include <stdlib.h>
#include <tenon/plan.h>

enum { WIDTH = 256, HEADS = 4, HEAD = WIDTH / HEADS, HIDDEN = 688, TOKENS = 32, VOCABULARY = 1000 };

typedef struct model {
    tn_arena *weights; /* with memory: its tensors are not planned */
    tn_arena *graph;   /* without memory */
} model;

static tn_tensor *weight(model *m, int64_t rows) {
    static int count;
    return tn_name(m->weights, tn_tensor_nd(m->weights, TN_F16, WIDTH, rows), "weight.%d", count++);
}

static tn_tensor *layer(model *m, int number, tn_tensor *x, tn_tensor *positions) {
    tn_arena *a = m->graph;
    tn_rope_params rope = tn_rope_params_default(HEAD, TN_ROPE_NEOX);
    tn_attention_params causal = {.scale = 0.125f, .causal = 1};
#define NAMED(tensor, what) tn_name(a, tensor, "%d.%s", number, what)
    tn_tensor *h = NAMED(tn_rms_norm(a, x, NULL, 1e-5f), "norm");
    tn_tensor *q = NAMED(tn_mul_mat(a, weight(m, WIDTH), h), "q");
    tn_tensor *k = NAMED(tn_mul_mat(a, weight(m, WIDTH), h), "k");
    tn_tensor *v = NAMED(tn_mul_mat(a, weight(m, WIDTH), h), "v");
    q = NAMED(tn_rope(a, tn_reshape(a, q, HEAD, HEADS, TOKENS), positions, NULL, &rope), "q.rope");
    k = NAMED(tn_rope(a, tn_reshape(a, k, HEAD, HEADS, TOKENS), positions, NULL, &rope), "k.rope");
    v = tn_reshape(a, v, HEAD, HEADS, TOKENS);
    tn_tensor *seen = NAMED(tn_attention(a, &(tn_attention_sources){.q = q, .k = k, .v = v}, &causal), "attention");
    tn_tensor *o = NAMED(tn_mul_mat(a, weight(m, WIDTH), tn_reshape(a, seen, WIDTH, TOKENS)), "attention.out");
    x = NAMED(tn_add(a, x, o), "x");
    h = NAMED(tn_rms_norm(a, x, NULL, 1e-5f), "norm2");
    tn_tensor *gate = NAMED(tn_mul_mat(a, weight(m, HIDDEN), h), "gate");
    tn_tensor *up = NAMED(tn_mul_mat(a, weight(m, HIDDEN), h), "up");
    tn_tensor *both = NAMED(tn_swiglu(a, gate, up), "swiglu");
    tn_tensor *down = tn_tensor_nd(m->weights, TN_F16, HIDDEN, WIDTH);
    return NAMED(tn_add(a, x, NAMED(tn_mul_mat(a, down, both), "down")), "out");
}

static tn_status run(const char *picture, int layers) {
    model m = {0};
    tn_graph *graph;
    tn_plan *plan = NULL;
    char *text = NULL;
    tn_status status;
    size_t tensors = 40 * (size_t)layers + 16, weight_bytes = 2 * WIDTH * (4 * WIDTH + 3 * HIDDEN) + 8192;
    tn_arena_params room = {.size = tn_arena_size_for(tensors, 0) + (size_t)layers * weight_bytes +
                                    2 * WIDTH * VOCABULARY};
    TN_TRY_GOTO(tn_arena_new(&room, &m.weights), status, out);
    room = (tn_arena_params){.size = tn_arena_size_for(tensors, 2 * tensors), .no_alloc = true};
    TN_TRY_GOTO(tn_arena_new(&room, &m.graph), status, out);

    tn_tensor *positions = tn_name(m.graph, tn_input(m.graph, TN_I32, TOKENS), "positions");
    tn_tensor *x = tn_name(m.graph, tn_input(m.graph, TN_F32, WIDTH, TOKENS), "embedded");
    for (int l = 0; l < layers; l++) x = layer(&m, l, x, positions);
    tn_tensor *logits = tn_mul_mat(m.graph, weight(&m, VOCABULARY), tn_rms_norm(m.graph, x, NULL, 1e-5f));
    TN_TRY_GOTO(tn_arena_status(m.weights), status, out);
    TN_TRY_GOTO(tn_graph_of(m.graph, tn_output(tn_name(m.graph, logits, "logits")), &graph), status, out);

    tn_plan_memory memory = {.name = "host", .alignment = 64};
    tn_plan_params params = {.memories = &memory, .n_memories = 1};
    TN_TRY_GOTO(tn_plan_make(graph, &params, &plan), status, out);
    TN_TRY_GOTO(tn_plan_export(plan, TN_PLAN_TEXT, TN_PLAN_ALL_MEMORIES, &text), status, out);
    fputs(text, stdout);
    if (picture) {
        tn_free(text);
        TN_TRY_GOTO(tn_plan_export(plan, TN_PLAN_SVG, 0, &text), status, out);
        FILE *file = fopen(picture, "w");
        if (!file || fputs(text, file) < 0) status = tn_fail(TN_E_IO, "%s cannot be written", picture);
        if (file) fclose(file);
    }
out:
    tn_free(text);
    tn_plan_free(plan);
    tn_arena_free(m.graph);
    tn_arena_free(m.weights);
    return status;
}

int main(int argc, char **argv) {
    int layers = argc > 2 ? atoi(argv[2]) : 2;
    tn_status status = run(argc > 1 ? argv[1] : NULL, layers < 1 ? 1 : layers);
    if (status != TN_OK) fprintf(stderr, "plan: %s: %s\n", tn_status_text(status), tn_error());
    return status != TN_OK;
}
