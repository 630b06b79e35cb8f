/* Fine-tunes a small Llama on a text: finetune MODEL.gguf TEXT.txt OUT.gguf [STEPS [RATE [MEGABYTES]]]. All weights
 * are trained, in f32; the result has the types of the original. With a budget in megabytes, results of the forward
 * pass are computed again where that is needed to keep it. The graph is built here, so that it can be changed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

enum { TOKENS = 64 };

typedef struct llama {
    const tn_gguf *file;
    tn_arena *arena;
    int64_t width, layers, heads, kv_heads, head, vocab;
    float eps;
    tn_rope_params rope;
    tn_tensor *tokens, *positions, *labels, *loss;
} llama;

static uint32_t number(const llama *m, const char *key, uint32_t missing) {
    return tn_gguf_get_u32(m->file, key, missing);
}

/* A parameter of the shape that the file's tensor has. */
static tn_tensor *weight(const llama *m, const char *format, int64_t layer) {
    char name[64];
    snprintf(name, sizeof name, format, (long long)layer);
    const tn_gguf_tensor *t = tn_gguf_find_tensor(m->file, name);
    if (!t) return NULL;
    return tn_name(m->arena, tn_mark(tn_tensor_new(m->arena, TN_F32, t->n_dims, t->ne), TN_FLAG_PARAM), "%s", name);
}

static tn_tensor *heads_of(const llama *m, tn_tensor *w, tn_tensor *x, int64_t heads) {
    return tn_reshape(m->arena, tn_mul_mat(m->arena, w, x), m->head, heads, TOKENS);
}

static tn_tensor *layer(const llama *m, int64_t i, tn_tensor *x) {
    tn_arena *a = m->arena;
    tn_tensor *n = tn_rms_norm(a, x, weight(m, "blk.%lld.attn_norm.weight", i), m->eps);
    tn_tensor *q = heads_of(m, weight(m, "blk.%lld.attn_q.weight", i), n, m->heads);
    tn_tensor *k = heads_of(m, weight(m, "blk.%lld.attn_k.weight", i), n, m->kv_heads);
    tn_tensor *v = heads_of(m, weight(m, "blk.%lld.attn_v.weight", i), n, m->kv_heads);
    tn_attention_sources src = {
        .q = tn_rope(a, q, m->positions, NULL, &m->rope), .k = tn_rope(a, k, m->positions, NULL, &m->rope), .v = v};
    tn_tensor *y = tn_attention(a, &src, &(tn_attention_params){.scale = 1 / sqrtf((float)m->head), .causal = 1});
    y = tn_reshape(a, y, m->head * m->heads, TOKENS);
    x = tn_add(a, x, tn_mul_mat(a, weight(m, "blk.%lld.attn_output.weight", i), y));
    n = tn_rms_norm(a, x, weight(m, "blk.%lld.ffn_norm.weight", i), m->eps);
    tn_tensor *gate = tn_mul_mat(a, weight(m, "blk.%lld.ffn_gate.weight", i), n);
    tn_tensor *up = tn_mul_mat(a, weight(m, "blk.%lld.ffn_up.weight", i), n);
    return tn_add(a, x, tn_mul_mat(a, weight(m, "blk.%lld.ffn_down.weight", i), tn_swiglu(a, gate, up)));
}

static tn_status build(llama *m) {
    const char *arch = tn_gguf_get_cstr(m->file, "general.architecture", "");
    if (strcmp(arch, "llama") != 0 || tn_gguf_find_tensor(m->file, "rope_freqs.weight"))
        return tn_fail(TN_E_UNSUPPORTED, "this example supports plain llama models only");
    m->width = number(m, "llama.embedding_length", 0);
    m->layers = number(m, "llama.block_count", 0);
    m->heads = number(m, "llama.attention.head_count", 1);
    m->kv_heads = number(m, "llama.attention.head_count_kv", (uint32_t)m->heads);
    m->head = m->heads ? m->width / m->heads : 0;
    m->eps = tn_gguf_get_f32(m->file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    m->rope =
        tn_rope_params_default((int32_t)number(m, "llama.rope.dimension_count", (uint32_t)m->head), TN_ROPE_NORMAL);
    m->rope.base = tn_gguf_get_f32(m->file, "llama.rope.freq_base", 10000);
    TN_TRY(tn_arena_new(
        &(tn_arena_params){.size = tn_arena_size_for(64 + 48 * (size_t)m->layers, 16), .no_alloc = true}, &m->arena));
    tn_arena *a = m->arena;
    m->tokens = tn_input(a, TN_I32, TOKENS);
    m->positions = tn_input(a, TN_I32, TOKENS);
    tn_tensor *embedding = weight(m, "token_embd.weight", 0), *output = weight(m, "output.weight", 0);
    tn_tensor *x = tn_get_rows(a, embedding, m->tokens);
    for (int64_t i = 0; i < m->layers; i++) x = layer(m, i, x);
    x = tn_rms_norm(a, x, weight(m, "output_norm.weight", 0), m->eps);
    m->vocab = embedding ? embedding->ne[1] : 0;
    m->labels = tn_input(a, TN_F32, m->vocab, TOKENS);
    m->loss = tn_cross_entropy_loss(a, tn_mul_mat(a, output ? output : embedding, x), m->labels);
    return tn_arena_status(a);
}

/* Between the file's types and f32: to the parameters, or from them into a new file. */
static tn_status copy_weights(const llama *m, tn_gguf_writer *writer) {
    tn_status status = TN_OK;
    tn_tensor *t = NULL;
    while (!writer && status == TN_OK && (t = tn_arena_next_tensor(m->arena, t))) {
        if (!(t->flags & TN_FLAG_PARAM)) continue;
        const tn_gguf_tensor *from = tn_gguf_find_tensor(m->file, t->name);
        float *values = tn_malloc(tn_nbytes(t));
        status = values ? tn_type_to_f32(from->type, from->data, values, tn_nelements(t)) : TN_E_NOMEM;
        if (status == TN_OK) status = tn_tensor_set(t, values);
        tn_free(values);
    }
    for (uint64_t i = 0; writer && i < tn_gguf_tensor_count(m->file) && status == TN_OK; i++) {
        const tn_gguf_tensor *to = tn_gguf_tensor_at(m->file, i);
        t = tn_arena_next_tensor(m->arena, NULL);
        while (t && strcmp(t->name, to->name) != 0) t = tn_arena_next_tensor(m->arena, t);
        if (!t) return tn_fail(TN_E_UNSUPPORTED, "'%s' is in the file and not in this example's graph", to->name);
        float *values = tn_malloc(tn_nbytes(t));
        void *bytes = tn_malloc(to->size);
        status = values && bytes ? tn_tensor_get(t, values) : TN_E_NOMEM;
        if (status == TN_OK) status = tn_type_from_f32(to->type, values, bytes, tn_nelements(t), NULL);
        if (status == TN_OK) status = tn_gguf_writer_write(writer, bytes, to->size);
        tn_free(values);
        tn_free(bytes);
    }
    return status;
}

static tn_status save(const llama *m, const char *path) {
    tn_gguf_writer *writer;
    TN_TRY(tn_gguf_writer_new(path, NULL, &writer));
    tn_status status = tn_gguf_writer_copy_keys(writer, m->file);
    for (uint64_t i = 0; i < tn_gguf_tensor_count(m->file) && status == TN_OK; i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(m->file, i);
        status = tn_gguf_writer_add(writer, t->name, t->type, t->n_dims, t->ne);
    }
    if (status == TN_OK) status = tn_gguf_writer_begin(writer);
    if (status == TN_OK) status = copy_weights(m, writer);
    if (status == TN_OK) status = tn_gguf_writer_finish(writer);
    tn_gguf_writer_free(writer);
    return status;
}

/* One window of the text after the other, round and round. */
static tn_status train(const llama *m, tn_trainer *trainer, const tn_tokens *text, int steps) {
    float *labels = tn_calloc(TOKENS * (size_t)m->vocab, sizeof *labels), loss;
    int32_t positions[TOKENS];
    tn_status status = labels ? TN_OK : TN_E_NOMEM;
    for (int i = 0; i < TOKENS; i++) positions[i] = i;
    for (int step = 0; step < steps && status == TN_OK; step++) {
        const tn_token *window = text->ids + (size_t)step * 31 % (text->count - TOKENS);
        memset(labels, 0, TOKENS * (size_t)m->vocab * sizeof *labels);
        for (int i = 0; i < TOKENS; i++) labels[(size_t)i * (size_t)m->vocab + (size_t)window[i + 1]] = 1;
        TN_TRY_GOTO(tn_tensor_set(m->tokens, window), status, out);
        TN_TRY_GOTO(tn_tensor_set(m->positions, positions), status, out);
        TN_TRY_GOTO(tn_tensor_set(m->labels, labels), status, out);
        TN_TRY_GOTO(tn_trainer_step(trainer, &loss), status, out);
        if (step % 10 == 0 || step == steps - 1)
            printf("step %d: loss %.3f, gradient %.2f\n", step, (double)loss,
                   (double)tn_trainer_gradient_norm(trainer));
    }
out:
    tn_free(labels);
    return status;
}

static tn_status run(char **argv, int steps, float rate, double megabytes) {
    llama m = {0};
    tn_model *model = NULL;
    tn_trainer *trainer = NULL;
    tn_tokens text = {0};
    tn_status status;
    static char buffer[1 << 22];
    TN_TRY_GOTO(tn_model_open(argv[1], &(tn_model_params){.vocab_only = true}, &model), status, out);
    FILE *in = fopen(argv[2], "rb");
    size_t length = in ? fread(buffer, 1, sizeof buffer, in) : 0;
    if (in) fclose(in);
    TN_TRY_GOTO(tn_tokenizer_encode(tn_model_tokenizer(model), buffer, length, 0, &text), status, out);
    if (text.count <= TOKENS + 1) {
        status =
            tn_fail(TN_E_INVALID, "'%s' has %zu tokens; more than %d are needed", argv[2], text.count, TOKENS + 1);
        goto out;
    }
    tn_gguf *file;
    TN_TRY_GOTO(tn_gguf_open(argv[1], NULL, &file), status, out);
    m.file = file;
    tn_trainer_params params = tn_trainer_params_default();
    params.rate = rate;
    params.budget = (size_t)(megabytes * 1e6);
    status = build(&m);
    if (status == TN_OK) status = tn_trainer_new(m.loss, &params, &trainer);
    if (status == TN_OK) status = copy_weights(&m, NULL);
    if (status == TN_OK) {
        tn_trainer_memory memory = tn_trainer_get_memory(trainer);
        printf("%zu parameters; %zu bytes of state, %zu of compute\n", memory.n_params, memory.state, memory.compute);
        if (memory.n_recomputed)
            printf("%zu bytes saved: %zu nodes are computed again, a step is predicted to take %.1f%% longer\n",
                   memory.saved, memory.n_recomputed, 100 * memory.added_time);
        status = train(&m, trainer, &text, steps);
    }
    if (status == TN_OK) status = save(&m, argv[3]);
    tn_trainer_free(trainer);
    tn_arena_free(m.arena);
    tn_gguf_close(file);
out:
    tn_tokens_free(&text);
    tn_model_close(model);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "finetune MODEL.gguf TEXT.txt OUT.gguf [STEPS [RATE [MEGABYTES]]]\n");
        return 2;
    }
    tn_status status = run(argv, argc > 4 ? atoi(argv[4]) : 100, argc > 5 ? strtof(argv[5], NULL) : 3e-4f,
                           argc > 6 ? fmax(0, strtod(argv[6], NULL)) : 0);
    if (status != TN_OK) fprintf(stderr, "finetune: %s\n", tn_error());
    return status != TN_OK;
}
