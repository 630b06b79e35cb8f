/* Ops and models on a GPU, compared with the f64 reference, golden logits and the CPU; and leaks. Skipped without a
 * GPU; TENON_GPU=sim:1G runs them on a simulated one. */
#include "gpu.h"
#include "models/reference_models.h"
#include "run_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Weights may be repacked, other tensors are not. */
static void check_as_weights(tn_stream *stream, tn_tensor *node) {
    if (node->src[0]->view_src || tn_is_empty(node->src[0])) return;
    void *bytes = run_case_with_weights(stream, node, tn_device_buffer_type(gpu));
    if (bytes) check_case(node, bytes, "as weights");
    free(bytes);
}

static void every_supported_op_agrees_with_the_reference(void **state) {
    (void)state;
    NEED_GPU();
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    size_t size = 64 << 20;
    void *memory = malloc(size);
    int cases = getenv("TENON_LONG") ? 300 : 20;
    const char *only = getenv("TENON_OPS");
    for (tn_op op = 1; op < TN_OP_COUNT; op++) {
        if (tn_op_get_family(op) == TN_FAMILY_VIEW || (only && *only && strcmp(only, tn_op_name(op)) != 0)) continue;
        int ran = 0;
        /* Matrix multiplications already have a tolerance for coarse weights, which covers cancellation in sums. */
        case_slack = op == TN_OP_MUL_MAT || op == TN_OP_MUL_MAT_ID ? 1 : 8;
        for (int i = 0; i < cases; i++) {
            rng r = {1000003 + (uint64_t)op * 10007 + (uint64_t)i};
            tn_arena *arena;
            assert_ok(tn_arena_new(&(tn_arena_params){.size = size, .memory = memory}, &arena));
            tn_tensor *node = random_case(arena, op, &r, false);
            assert_ok(tn_arena_status(arena));
            void *bytes = run_case(stream, node, -1);
            if (bytes) {
                check_case(node, bytes, tn_device_name(gpu));
                ran++;
                if (op == TN_OP_MUL_MAT || op == TN_OP_MUL_MAT_ID || op == TN_OP_GET_ROWS)
                    check_as_weights(stream, node);
                for (int s = 0; s < TN_MAX_SRC; s++) {
                    if (!can_run_in_place(stream, node, s)) continue;
                    void *again = run_case(stream, node, s);
                    check_case(node, again, "in place");
                    free(again);
                }
                free(bytes);
            }
            tn_arena_free(arena);
        }
        print_message("%-20s %d of %d cases run\n", tn_op_name(op), ran, cases);
    }
    free(memory);
    tn_stream_free(stream);
}

/* Few and many tokens, few and many experts; lists of no, one and several tiles; row counts and lengths that end
 * within a tile. */
static void experts_of_every_type_agree_with_the_reference(void **state) {
    (void)state;
    NEED_GPU();
    static const expert_shape shapes[] = {
        {0, 70, 8, 2, 1, true},  {0, 64, 8, 2, 1, false},    {0, 33, 4, 2, 3, true},
        {0, 40, 2, 2, 8, false}, {0, 33, 128, 8, 8, true},   {0, 150, 128, 8, 20, true},
        {0, 60, 9, 3, 9, false}, {0, 150, 3, 2, 100, false}, {0, 130, 2, 1, 150, true},
    };
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    case_slack = 2;
    int ran = 0;
    for (tn_type type = 0; type < TN_TYPE_LIMIT; type++) {
        if (!tn_type_valid(type) || !tn_type_can_read(type) || type == TN_Q8_1 || type == TN_Q8_K) continue;
        if (!tn_type_is_quantized(type) && type != TN_F32 && type != TN_F16 && type != TN_BF16) continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            rng r = {(uint64_t)type * 31 + i};
            tn_arena *arena;
            expert_shape e = shapes[i];
            int64_t block = tn_type_block(type);
            e.k = block > 1 ? 32 * (8 + 5 * (int64_t)(i % 3)) / block * block : 264 + 128 * (int64_t)(i % 2);
            assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &arena));
            tn_tensor *node = experts_case(arena, type, &e, &r);
            assert_ok(tn_arena_status(arena));
            void *bytes = run_case(stream, node, -1);
            if (bytes) {
                check_case(node, bytes, tn_device_name(gpu));
                check_as_weights(stream, node);
                ran++;
            }
            free(bytes);
            tn_arena_free(arena);
        }
    }
    print_message("%d cases run\n", ran);
    tn_stream_free(stream);
}

static void run_attention_list(tn_tensor *(*case_of)(tn_arena *, int, rng *)) {
    tn_stream *stream;
    assert_ok(tn_stream_new(gpu, NULL, &stream));
    case_slack = 8;
    for (int round = 0; round < (getenv("TENON_LONG") ? 10 : 1); round++) {
        tn_tensor *node = NULL;
        int i = 0;
        do {
            rng r = {(uint64_t)(round * 1000 + i)};
            tn_arena *arena;
            assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &arena));
            node = case_of(arena, i++, &r);
            assert_ok(tn_arena_status(arena));
            void *bytes = node ? run_case(stream, node, -1) : NULL;
            if (node && !bytes) fail_msg("%s: not supported", describe_case(node));
            if (node) check_case(node, bytes, tn_device_name(gpu));
            free(bytes);
            tn_arena_free(arena);
        } while (node);
    }
    tn_stream_free(stream);
}
static void attention_agrees_over_every_cache(void **state) {
    (void)state;
    NEED_GPU();
    run_attention_list(cache_case);
}
static void latent_attention_agrees(void **state) {
    (void)state;
    NEED_GPU();
    run_attention_list(latent_case);
}

/* A feed-forward layer of experts, from the MoE router to the residual sum: nodes that devices fuse where they can.
 */
static void run_layer_of_experts(const char *device, tn_type type, tn_type down_type, int64_t tokens, float *result) {
    enum { WIDTH = 512, FFN = 256, EXPERTS = 8, USED = 3, MATRICES = 4 };
    static const int64_t shapes[MATRICES][4] = {
        {WIDTH, EXPERTS, 1, 1}, {WIDTH, FFN, EXPERTS, 1}, {WIDTH, FFN, EXPERTS, 1}, {FFN, WIDTH, EXPERTS, 1}};
    const tn_type types[MATRICES] = {TN_F32, type, type, down_type};
    tn_arena *a, *data;
    tn_sched *sched;
    tn_graph *graph;
    tn_buffer *buffers[MATRICES];
    tn_tensor *w[MATRICES];
    rng r = {17};
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 1 << 18, .no_alloc = true}, &a));
    assert_ok(tn_arena_new(&(tn_arena_params){.size = 64 << 20}, &data));
    assert_ok(tn_sched_new(&(tn_sched_params){.devices = {device}}, &sched));
    tn_buffer_type *memory = tn_device_buffer_type(tn_stream_device(tn_sched_stream(sched, 0)));
    for (int i = 0; i < MATRICES; i++) {
        w[i] = tn_tensor_new(a, types[i], 4, shapes[i]);
        assert_ok(tn_buffer_new(memory, tn_buffer_type_tensor_size(memory, w[i]), &buffers[i]));
        tn_buffer_set_usage(buffers[i], TN_USAGE_WEIGHTS);
        assert_ok(tn_buffer_bind(buffers[i], w[i], 0));
        assert_ok(tn_tensor_set(w[i], random_tensor(data, types[i], shapes[i], 0, 0.1f, &r)->data));
    }
    tn_tensor *x = tn_input(a, TN_F32, WIDTH, tokens), *row = tn_reshape(a, x, WIDTH, 1, tokens);
    tn_tensor *probs = tn_soft_max(a, tn_mul_mat(a, w[0], x), NULL, NULL, 1, 0), *ids = tn_top_k(a, probs, USED);
    tn_tensor *weights = tn_reshape(a, tn_get_rows(a, tn_reshape(a, probs, 1, EXPERTS, tokens), ids), USED, tokens);
    weights = tn_scale(a, tn_div(a, weights, tn_sum_rows(a, weights)), 0.5f, 0);
    tn_tensor *y = tn_swiglu(a, tn_mul_mat_id(a, w[1], row, ids), tn_mul_mat_id(a, w[2], row, ids));
    tn_tensor *out = tn_output(tn_add(a, tn_mix(a, tn_mul_mat_id(a, w[3], y, ids), weights), x));
    assert_ok(tn_graph_of(a, out, &graph));
    assert_ok(tn_sched_reserve(sched, graph));
    const int64_t shape[4] = {WIDTH, tokens, 1, 1};
    assert_ok(tn_tensor_set(x, random_tensor(data, TN_F32, shape, 0, 1, &r)->data));
    assert_ok(tn_sched_run(sched, graph));
    assert_ok(tn_tensor_get(out, result));
    tn_sched_free(sched);
    for (int i = 0; i < MATRICES; i++) tn_buffer_free(buffers[i]);
    tn_arena_free(data);
    tn_arena_free(a);
}
static void layers_of_experts_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    static const tn_type types[][2] = {{TN_F32, TN_F32},   {TN_F16, TN_F16},   {TN_BF16, TN_BF16}, {TN_Q4_0, TN_Q4_0},
                                       {TN_Q8_0, TN_Q8_0}, {TN_Q4_K, TN_Q8_0}, {TN_Q4_K, TN_Q6_K}, {TN_Q4_K, TN_F16}};
    static float want[512 * 20], got[512 * 20];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int64_t tokens = 1; tokens <= 20; tokens += tokens == 1 ? 2 : tokens == 3 ? 5 : 12) {
            run_layer_of_experts("cpu", types[i][0], types[i][1], tokens, want);
            run_layer_of_experts(tn_device_name(gpu), types[i][0], types[i][1], tokens, got);
            nmse sum = {0};
            nmse_add(&sum, got, want, 512 * tokens);
            if (!(nmse_value(&sum) <= (tn_type_is_quantized(types[i][0]) ? 1e-3 : 1e-5)))
                fail_msg("%s and %s, %d tokens: NMSE %g", tn_type_name(types[i][0]), tn_type_name(types[i][1]),
                         (int)tokens, nmse_value(&sum));
        }
}

/* NMSE of a golden model's logits with this many layers on the GPU. */
static double model_error(const char *name, int32_t layers, bool one_by_one, tn_type cache) {
    reference_model g;
    if (!golden_load(name, &g)) return -1;
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 256;
    p.n_outputs = 64;
    p.cache_k = p.cache_v = cache;
    p.devices[0] = tn_device_name(gpu);
    p.n_gpu_layers = layers;
    assert_ok(tn_model_open(g.path, NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    nmse sum = {0};
    bool outputs[64];
    memset(outputs, 1, sizeof outputs);
    int32_t step = one_by_one ? 1 : g.n_tokens;
    for (int32_t i = 0; i < g.n_tokens; i += step) {
        assert_ok(
            tn_session_decode(session, &(tn_batch){.n_tokens = step, .tokens = g.tokens + i, .outputs = outputs}));
        tn_token best = tn_session_argmax(session, -1);
        for (int32_t k = 0; k < step; k++)
            nmse_add(&sum, tn_session_logits(session, k), g.logits + (size_t)(i + k) * (size_t)g.n_vocab, g.n_vocab);
        /* The last token again, without its logits. */
        int32_t last = i + step - 1;
        assert_ok(tn_session_seq_remove(session, 0, last, last + 1));
        assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = g.tokens + last, .argmax = true}));
        assert_null(tn_session_logits(session, -1));
        if (one_by_one) assert_int_equal(tn_session_argmax(session, -1), best);
    }
    tn_session_free(session);
    tn_model_close(model);
    reference_free(&g);
    return nmse_value(&sum);
}

/* TENON_GPU_ARCHS: some of the golden models, separated by spaces; all without it. */
static bool is_wanted(const char *name) {
    const char *wanted = getenv("TENON_GPU_ARCHS");
    return !wanted || strstr(wanted, name);
}

static void models_agree_with_the_golden_logits(void **state) {
    (void)state;
    NEED_GPU();
    int bad = 0, compared = 0;
    for (const char *const *name = golden_archs; *name; name++) {
        char relative[64];
        if (!is_wanted(*name)) continue;
        snprintf(relative, sizeof relative, "archs/%s", *name);
        static const int32_t layers[] = {100, 100, 2, 100};
        double worst = 0;
        for (int i = 0; i < 4; i++) {
            double value = model_error(relative, layers[i], i == 1, i == 3 ? TN_F16 : TN_F32);
            if (value < 0) break; /* no golden files */
            if (!(value <= worst)) worst = value;
            compared++;
        }
        if (compared) print_message("%-20s NMSE %.3g\n", *name, worst);
        bad += !(worst <= 1e-5);
    }
    if (!compared) skip();
    assert_int_equal(bad, 0);
}

static void last_logits(const char *device, int32_t layers, int32_t seqs, float *logits, FILE *dump) {
    enum { TOKENS = 200 };
    tn_token tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = (tn_token)(i * 37 % 4000);
    tn_model *model;
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 256 * seqs;
    p.n_seqs = seqs;
    p.n_ubatch = TOKENS;
    p.devices[0] = device;
    p.n_gpu_layers = layers;
    assert_ok(tn_model_open(TENON_SOURCE_DIR "/models/tales.gguf", NULL, &model));
    assert_ok(tn_session_open(model, &p, &session));
    if (dump) assert_ok(tn_session_plan_splits(tn_session_get_plan(session), true, dump));
    assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = TOKENS, .tokens = tokens}));
    memcpy(logits, tn_session_logits(session, -1), 4096 * sizeof *logits);
    tn_session_free(session);
    tn_model_close(model);
}
/* For a prompt the weights of the host's layers are copied to the GPU, each once, also where the CPU keeps them
 * repacked, as it does here for many sequences. */
static void prompts_copy_the_hosts_weights_once(void **state) {
    (void)state;
    NEED_GPU();
    if (access(TENON_SOURCE_DIR "/models/tales.gguf", R_OK) != 0) skip();
    static float want[4096], got[4096];
    for (int32_t seqs = 1; seqs <= 16; seqs += 15) {
        char *text = NULL;
        size_t size = 0;
        FILE *dump = open_memstream(&text, &size);
        last_logits("cpu", 0, seqs, want, NULL);
        last_logits(tn_device_name(gpu), 5, seqs, got, dump);
        fclose(dump);
        nmse sum = {0};
        nmse_add(&sum, got, want, 4096);
        if (!(nmse_value(&sum) <= 1e-3)) fail_msg("%d sequences: NMSE %g", (int)seqs, nmse_value(&sum));
        for (int layer = 0; layer < 11; layer++) {
            char copy[64];
            snprintf(copy, sizeof copy, "copy blk.%d.ffn_down.weight ", layer);
            int copies = 0;
            for (const char *at = text; (at = strstr(at, copy)); at++) copies++;
            assert_int_equal(copies, layer < 6); /* the GPU has the last five */
        }
        free(text);
    }
}

/* A loop that needs only the argmax queues steps before their token is known, and yields the tokens that a loop over
 * the logits does. */
static void greedy_loops_agree_with_the_logits(void **state) {
    (void)state;
    NEED_GPU();
    enum { N = 40, BACK = 25 };
    for (const char *const *name = golden_archs; *name; name++) {
        char relative[64];
        reference_model g;
        if (!is_wanted(*name)) continue;
        snprintf(relative, sizeof relative, "archs/%s", *name);
        if (!golden_load(relative, &g)) skip();
        tn_model *model;
        tn_session *session;
        tn_session_params p = tn_session_params_default();
        p.n_ctx = 128;
        p.devices[0] = tn_device_name(gpu);
        assert_ok(tn_model_open(g.path, NULL, &model));
        assert_ok(tn_session_open(model, &p, &session));
        tn_token found[2][N + 1] = {{g.tokens[0]}, {g.tokens[0]}};
        for (int best = 0; best < 2; best++) {
            tn_session_clear(session);
            for (int i = 0; i < N; i++) {
                if (i == BACK) assert_ok(tn_session_seq_remove(session, 0, BACK - 3, BACK - 2));
                tn_batch batch = {.n_tokens = 1, .tokens = &found[best][i], .argmax = best == 1};
                assert_ok(tn_session_decode(session, &batch));
                found[best][i + 1] = tn_session_argmax(session, 0);
            }
        }
        for (int i = 0; i <= N; i++)
            if (found[0][i] != found[1][i])
                fail_msg("%s: token %d is %d, by the logits %d", *name, i, found[1][i], found[0][i]);
        tn_session_free(session);
        tn_model_close(model);
        reference_free(&g);
    }
}

static void stories_agree_on_f16_weights(void **state) {
    (void)state;
    NEED_GPU();
    double prefill = model_error("models/stories15M-f16", 100, false, TN_F16),
           decode = model_error("models/stories15M-f16", 100, true, TN_F16);
    if (prefill < 0) skip();
    print_message("stories15M prefill %.3g decode %.3g\n", prefill, decode);
    assert_true(prefill <= 1e-5 && decode <= 1e-5);
}

/* A text: `before` tokens at once without logits, then n tokens, `step` at a time. */
typedef struct {
    int32_t before, step, n;
} portions;

static float *logits_on(const char *path, const char *device, tn_type cache, portions text) {
    tn_model *model; /* opened for each device: weights stay where a model's first session loaded them */
    tn_session *session;
    tn_session_params p = tn_session_params_default();
    assert_ok(tn_model_open(path, NULL, &model));
    int32_t vocab = tn_model_get_info(model).n_vocab, all = text.before + text.n;
    float *logits = malloc((size_t)text.n * (size_t)vocab * sizeof *logits);
    tn_token *tokens = malloc((size_t)all * sizeof *tokens);
    bool outputs[64];
    for (int32_t i = 0; i < all; i++) tokens[i] = (tn_token)((i * 7919 + 13) % vocab);
    memset(outputs, 1, sizeof outputs);
    p.n_ctx = 1024;
    p.n_outputs = 64;
    p.cache_k = p.cache_v = cache;
    p.devices[0] = device;
    assert_ok(tn_session_open(model, &p, &session));
    if (text.before) assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = text.before, .tokens = tokens}));
    for (int32_t i = 0; i < text.n; i += text.step) {
        int32_t now = text.n - i < text.step ? text.n - i : text.step;
        assert_ok(tn_session_decode(
            session, &(tn_batch){.n_tokens = now, .tokens = tokens + text.before + i, .outputs = outputs}));
        memcpy(logits + (size_t)i * (size_t)vocab, tn_session_logits(session, 0),
               (size_t)now * (size_t)vocab * sizeof *logits);
    }
    tn_session_free(session);
    tn_model_close(model);
    free(tokens);
    return logits;
}

/* TENON_GPU_MODELS: files separated by spaces, such as `tenon synth` makes, whose logits are compared with the CPU's.
 * With 300 tokens before, attention has several shares and tiles; TENON_QUICK: in the first model. */
static void named_models_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    const int32_t n = gpu_rounds(8, 24, 24);
    const portions texts[] = {{0, 48, 48}, {0, 1, n},  {0, 2, n}, {0, 5, gpu_rounds(9, 24, 24)},
                              {300, 5, 5}, {300, 1, 5}};
    const char *names = getenv("TENON_GPU_MODELS");
    if (!names || !*names) skip();
    char list[4096];
    snprintf(list, sizeof list, "%s", names);
    int bad = 0;
    for (char *name = strtok(list, " "); name; name = strtok(NULL, " ")) {
        float *oracle = NULL;
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            portions text = texts[i];
            if (text.before && name != list && gpu_rounds(1, 0, 0)) continue;
            tn_model *model;
            assert_ok(tn_model_open(name, NULL, &model));
            int32_t vocab = tn_model_get_info(model).n_vocab;
            tn_model_close(model);
            if (i == 0 || text.before != texts[i - 1].before) {
                free(oracle);
                oracle = logits_on(name, "cpu", TN_F16, (portions){text.before, 1, text.n});
            }
            float *mine = logits_on(name, tn_device_name(gpu), TN_F16, text);
            nmse sum = {0};
            nmse_add(&sum, mine, oracle, text.n * vocab);
            print_message("%-40s %2d at a time after %3d: NMSE %.3g\n", name, text.step, text.before,
                          nmse_value(&sum));
            bad += !(nmse_value(&sum) <= 1e-3);
            free(mine);
        }
        free(oracle);
    }
    assert_int_equal(bad, 0);
}

/* Storing rows and attention over every type of cache; with capped scores and windows, too. */
static void caches_of_every_type_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    static const char *const models[] = {"archs/llama-dense.gguf", "archs/gemma2-dense.gguf"};
    static const tn_type types[] = {TN_BF16, TN_FP8, TN_Q8_0, TN_Q5_1, TN_Q5_0, TN_Q4_1, TN_Q4_0};
    enum { TYPES = sizeof types / sizeof *types };
    int bad = 0;
    for (int i = 0; i < 2 * TYPES; i++) {
        GOLDEN_OR_SKIP(path, models[i / TYPES]);
        tn_model *model;
        assert_ok(tn_model_open(path, NULL, &model));
        int32_t n = 48, vocab = tn_model_get_info(model).n_vocab;
        tn_model_close(model);
        float *oracle = logits_on(path, "cpu", types[i % TYPES], (portions){0, 1, n});
        for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
            float *mine =
                logits_on(path, tn_device_name(gpu), types[i % TYPES], (portions){0, one_by_one ? 1 : n, n});
            nmse sum = {0};
            nmse_add(&sum, mine, oracle, n * vocab);
            print_message("%-24s %-4s %s NMSE %.3g\n", models[i / TYPES], tn_type_name(types[i % TYPES]),
                          one_by_one ? "token by token" : "at once", nmse_value(&sum));
            bad += !(nmse_value(&sum) <= 1e-4);
            free(mine);
        }
        free(oracle);
    }
    assert_int_equal(bad, 0);
}

/* Rotation, storing and attention in one launch, over heads that are padded, or split between several blocks. */
static void heads_of_every_size_agree_with_the_cpu(void **state) {
    (void)state;
    NEED_GPU();
    static const struct {
        uint32_t n, kv, size;
    } shapes[] = {{3, 3, 40},  {16, 16, 8}, {4, 4, 80},  {4, 2, 96},
                  {6, 1, 112}, {2, 1, 192}, {8, 1, 256}, {12, 1, 64}};
    int bad = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char path[] = "/tmp/tenon-heads-XXXXXX";
        int file = mkstemp(path);
        assert_true(file >= 0);
        close(file);
        assert_ok(tiny_model_write(
            path,
            &(tiny_options){.heads = shapes[i].n, .kv_heads = shapes[i].kv, .head = shapes[i].size, .tied = true}));
        float *oracle = logits_on(path, "cpu", TN_F16, (portions){0, 1, 48});
        for (int one_by_one = 0; one_by_one < 2; one_by_one++) {
            float *mine = logits_on(path, tn_device_name(gpu), TN_F16, (portions){0, one_by_one ? 1 : 48, 48});
            nmse sum = {0};
            nmse_add(&sum, mine, oracle, 48 * 64);
            print_message("%u/%u heads of %u %s NMSE %.3g\n", shapes[i].n, shapes[i].kv, shapes[i].size,
                          one_by_one ? "token by token" : "at once", nmse_value(&sum));
            bad += !(nmse_value(&sum) <= 1e-5);
            free(mine);
        }
        free(oracle);
        unlink(path);
    }
    assert_int_equal(bad, 0);
}

static void sessions_leave_no_memory_behind(void **state) {
    (void)state;
    NEED_GPU();
    GOLDEN_OR_SKIP(path, "archs/llama-dense.gguf");
    size_t before = 0, after = 0, total;
    int rounds = getenv("TENON_LONG") ? 1000 : 20;
    for (int i = 0; i < rounds + 3; i++) {
        if (i == 3)
            assert_ok(tn_device_memory(gpu, &before, &total)); /* by now libraries have allocated their own memory */
        tn_model *model;
        tn_session *session;
        tn_session_params p = tn_session_params_default();
        p.devices[0] = tn_device_name(gpu);
        p.n_ctx = 512;
        tn_token tokens[3] = {1, 2, 3};
        assert_ok(tn_model_open(path, NULL, &model));
        assert_ok(tn_session_open(model, &p, &session));
        for (int k = 0; k < 3; k++)
            assert_ok(tn_session_decode(session, &(tn_batch){.n_tokens = 1, .tokens = tokens + k}));
        tn_session_free(session);
        tn_model_close(model);
    }
    assert_ok(tn_device_memory(gpu, &after, &total));
    assert_int_equal(before, after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_supported_op_agrees_with_the_reference),
        cmocka_unit_test(experts_of_every_type_agree_with_the_reference),
        cmocka_unit_test(attention_agrees_over_every_cache),
        cmocka_unit_test(latent_attention_agrees),
        cmocka_unit_test(layers_of_experts_agree_with_the_cpu),
        cmocka_unit_test(models_agree_with_the_golden_logits),
        cmocka_unit_test(prompts_copy_the_hosts_weights_once),
        cmocka_unit_test(greedy_loops_agree_with_the_logits),
        cmocka_unit_test(stories_agree_on_f16_weights),
        cmocka_unit_test(named_models_agree_with_the_cpu),
        cmocka_unit_test(caches_of_every_type_agree_with_the_cpu),
        cmocka_unit_test(heads_of_every_size_agree_with_the_cpu),
        cmocka_unit_test(sessions_leave_no_memory_behind),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS")); /* such as models* */
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}
