/* Public functions that no other test calls while each allocation fails in turn. tests/project/allocations.sh
 * compares all such tests with the exported symbols. */
#include "support.h"

#include "models/tiny_models.h"
#include "tenon/net/net.h"
#include "tenon/tenon.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 160, CELLS = 64 };

static char path[] = "/tmp/tenon-allocations-XXXXXX";
static FILE *nowhere;

static int make_path(void **state) {
    (void)state;
    const int file = mkstemp(path);
    nowhere = fopen("/dev/null", "w");
    return file < 0 || close(file) != 0 || !nowhere ? -1 : 0;
}
static int remove_path(void **state) {
    (void)state;
    return unlink(path) != 0 || fclose(nowhere) != 0 ? -1 : 0;
}

static tn_model *open_model(const tiny_options *options) {
    tn_model *model;
    assert_ok(tiny_model_write(path, options));
    assert_ok(tn_model_open(path, NULL, &model));
    return model;
}

/* ---- Text ---- */

static tn_status sample_by_grammar(const tn_tokenizer *tokenizer, tn_pieces *pieces, const tn_grammar *grammar,
                                   tn_sampler *sampler) {
    const tn_grammar_state_params params = {.grammar = grammar, .pieces = pieces};
    const uint64_t *mask;
    tn_grammar_state *state;
    tn_token token, tokens[4];
    float logits[VOCAB] = {0};
    size_t count;
    bool enough;
    TN_TRY(tn_tokenizer_encode_into(tokenizer, "no", 2, TN_ENCODE_CONTINUE, tokens, 4, &count));
    TN_TRY(tn_grammar_state_new(&params, &state));
    tn_status status = tn_grammar_mask(state, &mask);
    if (status == TN_OK) status = tn_grammar_accept_token(state, tokens[0]);
    if (status == TN_OK) status = tn_sampler_set_grammar(sampler, state);
    if (status != TN_OK) {
        tn_grammar_state_free(state);
        return status;
    }
    TN_TRY(tn_sampler_sample(sampler, logits, VOCAB, &token));
    return tn_sampler_sample_largest(sampler, (const tn_token[]){5, 4}, (const float[]){2, 1}, 2, &enough, &token);
}

static tn_status generate_text(const tn_tokenizer *tokenizer, tn_sampler *sampler) {
    const char *const stops[] = {"zz", "yyy"};
    const tn_generator_params params = {.sampler = sampler, .stops = stops, .n_stops = 2};
    tn_generator *generator;
    float logits[VOCAB] = {0};
    TN_TRY(tn_generator_new(tokenizer, &params, &generator));
    tn_status status = TN_OK;
    for (int i = 0; i < 8 && status == TN_OK; i++) status = tn_generator_sample_logits(generator, logits, VOCAB);
    tn_generator_free(generator);
    return status == TN_END ? TN_OK : status;
}

static tn_status use_text(void *user) {
    tn_model *model = user;
    tn_tokenizer *tokenizer = NULL;
    tn_pieces *pieces = NULL;
    tn_grammar *grammar = NULL;
    tn_sampler *sampler = NULL, *clone = NULL;
    tn_sampler_params params = tn_sampler_params_default();
    tn_status status;
    params.seed = 3;
    params.n_dry_breakers = 0;
    TN_TRY_GOTO(tn_tokenizer_new(tn_model_file(model), NULL, &tokenizer), status, out);
    TN_TRY_GOTO(tn_pieces_from_tokenizer(tokenizer, &pieces), status, out);
    TN_TRY_GOTO(tn_grammar_new("root ::= \"no\" | \"yes\"", NULL, &grammar), status, out);
    TN_TRY_GOTO(tn_sampler_new(&params, VOCAB, &sampler), status, out);
    TN_TRY_GOTO(tn_sampler_clone(sampler, &clone), status, out);
    TN_TRY_GOTO(tn_sampler_follow(clone, sampler), status, out);
    TN_TRY_GOTO(generate_text(tokenizer, clone), status, out);
    TN_TRY_GOTO(sample_by_grammar(tokenizer, pieces, grammar, sampler), status, out);
out:
    tn_sampler_free(clone);
    tn_sampler_free(sampler);
    tn_grammar_free(grammar);
    tn_pieces_free(pieces);
    tn_tokenizer_free(tokenizer);
    return status;
}

static void text_survives(void **state) {
    (void)state;
    tn_model *model = open_model(&(tiny_options){.tokenizer = true});
    check_every_allocation_failure(use_text, model);
    tn_model_close(model);
}

static tn_status use_rank(void *user) {
    tn_tokens tokens = {0};
    const tn_status status = tn_rank_tokens(user, "a fox", 5, "a hen", 5, &tokens);
    tn_tokens_free(&tokens);
    return status;
}

static void ranking_survives(void **state) {
    (void)state;
    tn_model *model = open_model(&(tiny_options){.arch = "bert", .tokenizer = true, .labels = 1});
    assert_ok(use_rank(model)); /* the tokenizer keeps scratch */
    check_every_allocation_failure(use_rank, model);
    tn_model_close(model);
}

/* ---- Files ---- */

static tn_status count_tensor(void *user, const tn_arch_tensor *tensor) {
    *(size_t *)user += tensor->need == TN_ARCH_REQUIRED;
    return TN_OK;
}

static tn_status use_metadata(void *user) {
    const tn_gguf *file = tn_model_file(user);
    tn_gguf_writer *writer = NULL;
    tn_gguf *metadata = NULL, *head = NULL;
    void *bytes = NULL;
    size_t required = 0, size;
    float epsilon;
    tn_status status;
    TN_TRY_GOTO(tn_gguf_writer_new(path, NULL, &writer), status, out);
    TN_TRY_GOTO(tn_gguf_writer_copy_keys(writer, file), status, out);
    TN_TRY_GOTO(tn_gguf_writer_metadata(writer, &metadata), status, out);
    TN_TRY_GOTO(tn_gguf_need_f32(metadata, "llama.attention.layer_norm_rms_epsilon", &epsilon), status, out);
    TN_TRY_GOTO(tn_arch_tensors(metadata, count_tensor, &required), status, out);
    if (!required) status = tn_fail(TN_E_INTERNAL, "no tensor is required");
    TN_TRY_GOTO(tn_gguf_head(file, &bytes, &size), status, out);
    TN_TRY_GOTO(tn_gguf_open_memory(bytes, size, NULL, &head), status, out);
out:
    tn_free(bytes);
    tn_gguf_close(head);
    tn_gguf_close(metadata);
    tn_gguf_writer_free(writer);
    return status;
}

static void metadata_survives(void **state) {
    (void)state;
    tn_model *model = open_model(NULL);
    check_every_allocation_failure(use_metadata, model);
    tn_model_close(model);
}

static tn_status draw_boxes(void *user) {
    static const tn_picture_box boxes[] = {{0, 2, 0, 64, 0, 0, "a", "note"}, {1, 3, 64, 32, 0, 1, "<b>", NULL}};
    char *text = NULL;
    TN_TRY(tn_picture_svg(&(tn_picture){.title = user,
                                        .box_count = 2,
                                        .boxes = boxes,
                                        .chunk_count = 1,
                                        .chunk_sizes = (const size_t[]){96},
                                        .kind_count = 2,
                                        .kinds = (const char *const[]){"one", "two"},
                                        .lower_bound = 96},
                          &text));
    const bool whole = strstr(text, "</svg>") && strstr(text, "&lt;b&gt;");
    tn_free(text);
    return whole ? TN_OK : tn_fail(TN_E_INTERNAL, "the picture is not whole");
}

static void pictures_survive(void **state) {
    (void)state;
    check_every_allocation_failure(draw_boxes, "a packing");
}

/* ---- Sessions: what is called while one exists ---- */

static tn_session *open_session(tn_model *model, int32_t n_prefixes) {
    tn_session_params p = tn_session_params_default();
    tn_session *session;
    p.devices[0] = "cpu";
    p.n_ctx = p.n_batch = CELLS;
    p.n_ubatch = 16;
    p.n_seqs = 2;
    p.page = 8;
    p.n_threads = 1;
    p.n_prefixes = n_prefixes;
    p.n_guess = 4;
    p.n_outputs = 8;
    assert_ok(tn_session_open(model, &p, &session));
    return session;
}

static bool see_logits(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    (void)logits;
    *(int32_t *)user += n_vocab == VOCAB && position >= 0;
    return true;
}

static tn_status move_cells(tn_session *session) {
    static const tn_token tokens[40] = {1, 9, 9, 8, 7, 6, 5, 4, 3, 9, 1, 2};
    int32_t seen = 0, removed, taken;
    tn_session_clear(session);
    TN_TRY(tn_session_warm_up(session));
    TN_TRY(tn_session_score(session, 0, tokens, 12, see_logits, &seen));
    tn_session_clear(session);
    TN_TRY(tn_session_prompt_tokens(session, 0, tokens, 12));
    TN_TRY(tn_session_seq_rewind(session, 0, 11));
    TN_TRY(tn_session_seq_copy(session, 0, 1, 0, -1));
    TN_TRY(tn_session_seq_keep(session, 0));
    tn_session_clear(session);
    TN_TRY(tn_session_prompt_tokens(session, 0, tokens, 40));
    TN_TRY(tn_session_context_shift(session, 0, 8, &removed));
    tn_session_clear(session);
    TN_TRY(tn_session_prefix_take(session, 0, 5, tokens, 0, &taken));
    TN_TRY(tn_session_prompt_tokens(session, 0, tokens, 12));
    TN_TRY(tn_session_prefix_note(session, 0, 5, tokens, 12));
    TN_TRY(tn_session_prefix_keep(session, 0));
    TN_TRY(tn_session_prefix_forget(session, 5, tokens, 12));
    return TN_OK;
}

static tn_status guess_tokens(tn_session *session, tn_sampler *sampler) {
    static const tn_token tokens[] = {4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6};
    tn_guess guess = {.seq = 0, .tokens = tokens, .n_tokens = 11, .room = 4};
    tn_speculator *speculator;
    tn_spec_kind kind;
    tn_session_clear(session);
    TN_TRY(tn_spec_kind_from_name("ngram", &kind));
    TN_TRY(tn_speculator_new(session, &(tn_spec_params){.kind = kind, .fixed = true}, &speculator));
    tn_status status = tn_speculator_propose(speculator, &guess, 1);
    tn_session_set_speculator(session, speculator);
    if (status == TN_OK) status = tn_session_prompt_tokens(session, 0, tokens, 11);
    for (int i = 0; i < 4 && status == TN_OK; i++) status = tn_session_next(session, 0, sampler, NULL);
    if (status == TN_OK || status == TN_END) status = tn_session_settle(session, 0);
    tn_session_set_speculator(session, NULL);
    tn_speculator_free(speculator);
    return status;
}

static tn_status print_plan(tn_session *session) {
    const tn_session_plan *plan = tn_session_get_plan(session);
    tn_session_speed speed;
    tn_device *cpu;
    tn_device_speed peaks = tn_speed_from_rates(&(tn_device_rates){.read = 1e10, .f32 = 1e11});
    tn_type type;
    TN_TRY(tn_cache_type_parse("q8_0", &type));
    TN_TRY(tn_device_find("cpu", &cpu));
    TN_TRY(tn_device_set_speed(cpu, 1, &peaks));
    tn_status status = tn_device_get_speed(cpu, 1, &peaks);
    if (status == TN_OK)
        status = tn_session_plan_predict(plan, &(tn_session_speed_params){.prompt = 8, .generate = 4}, &speed);
    tn_status forgotten = tn_device_set_speed(cpu, 1, NULL);
    TN_TRY(status);
    TN_TRY(forgotten);
    TN_TRY(tn_session_plan_print(plan, nowhere));
    status = tn_session_print_launches(session, false, nowhere);
    if (status != TN_OK && status != TN_E_UNSUPPORTED) return status; /* the CPU runs nodes one by one */
    return tn_session_plan_explain(plan, nowhere);
}

typedef struct serving {
    tn_session *session;
    tn_sampler *sampler;
    const tn_tokenizer *tokenizer;
} serving;

static tn_status use_session(void *user) {
    serving *s = user;
    tn_generator *generator;
    TN_TRY(move_cells(s->session));
    TN_TRY(guess_tokens(s->session, s->sampler));
    TN_TRY(print_plan(s->session));
    tn_session_clear(s->session);
    TN_TRY(tn_session_prompt_tokens(s->session, 0, (const tn_token[]){4, 5, 6}, 3));
    TN_TRY(tn_generator_new(s->tokenizer, &(tn_generator_params){.sampler = s->sampler}, &generator));
    const tn_status status = tn_generator_sample(generator, s->session, -1);
    tn_generator_free(generator);
    return status == TN_END ? TN_OK : status;
}

static void sessions_survive(void **state) {
    (void)state;
    tn_model *model = open_model(&(tiny_options){.tokenizer = true});
    tn_sampler_params params = tn_sampler_params_default();
    serving s = {.session = open_session(model, 4), .tokenizer = tn_model_tokenizer(model)};
    params.seed = 1;
    params.n_dry_breakers = 0;
    assert_ok(tn_sampler_new(&params, VOCAB, &s.sampler));
    assert_ok(use_session(&s)); /* graphs of these sizes stay */
    check_every_allocation_failure(use_session, &s);
    tn_sampler_free(s.sampler);
    tn_session_free(s.session);
    tn_model_close(model);
}

/* ---- Graphs ---- */

static tn_tensor *small_graph(tn_arena *arena, int64_t rows, tn_tensor **input) {
    *input = tn_mark(tn_tensor_new(arena, TN_F32, 2, (const int64_t[]){8, rows}), TN_FLAG_INPUT);
    tn_tensor *w = tn_mark(tn_tensor_new(arena, TN_F32, 2, (const int64_t[]){8, 4}), TN_FLAG_PARAM);
    return tn_mark(tn_sum(arena, tn_mul_mat(arena, w, *input)), TN_FLAG_OUTPUT);
}

static tn_status schedule(tn_sched *sched, tn_graph *large, tn_graph *small) {
    tn_prediction prediction;
    tn_graph *both[] = {large, small};
    tn_device *cpu;
    const tn_device_speed peaks = tn_speed_from_rates(&(tn_device_rates){.read = 1e10, .f32 = 1e11});
    TN_TRY(tn_device_find("cpu", &cpu));
    TN_TRY(tn_sched_cover(sched, large));
    TN_TRY(tn_sched_cover_served(sched, small));
    TN_TRY(tn_sched_reserve_many(sched, both, 2));
    TN_TRY(tn_sched_check_abort(sched));
    TN_TRY(tn_sched_dump(sched, large, nowhere));
    tn_status status = tn_sched_print_programs(sched, large, nowhere);
    if (status != TN_OK && status != TN_E_UNSUPPORTED) return status;
    TN_TRY(tn_device_set_speed(cpu, 1, &peaks));
    status = tn_predict_graph(sched, large, &(tn_predict_params){.n_threads = 1}, &prediction);
    TN_TRY(tn_device_set_speed(cpu, 1, NULL));
    return status;
}

static tn_status use_graphs(void *user) {
    (void)user;
    tn_arena *arena = NULL;
    tn_sched *sched = NULL;
    tn_graph *large, *small;
    tn_tensor *inputs[2];
    tn_status status;
    TN_TRY(tn_arena_new(&(tn_arena_params){.size = tn_arena_size_for(200, 512), .no_alloc = true}, &arena));
    tn_tensor *a = small_graph(arena, 6, &inputs[0]), *b = small_graph(arena, 3, &inputs[1]);
    TN_TRY_GOTO(tn_graph_of(arena, a, &large), status, out);
    TN_TRY_GOTO(tn_graph_of(arena, b, &small), status, out);
    TN_TRY_GOTO(tn_sched_new(&(tn_sched_params){.devices = {"cpu"}, .n_threads = 1}, &sched), status, out);
    TN_TRY_GOTO(schedule(sched, large, small), status, out);
    TN_TRY_GOTO(tn_graph_backward(arena, small, b), status, out);
out:
    tn_sched_free(sched);
    tn_arena_free(arena);
    return status;
}

static void graphs_survive(void **state) {
    (void)state;
    check_every_allocation_failure(use_graphs, NULL);
}

/* ---- Ranks ---- */

static tn_status exchange(tn_net *net) {
    float values[4] = {1, 2, 3, 4}, sums[4];
    const size_t sizes[] = {sizeof values};
    char note[8] = "note";
    TN_TRY(tn_net_all_reduce(net, values, sums, 4));
    TN_TRY(tn_net_all_gather(net, values, sizes, sums));
    TN_TRY(tn_net_broadcast(net, 0, values, sizeof values));
    TN_TRY(tn_net_barrier(net));
    TN_TRY(tn_net_note(net, note, sizeof note));
    return tn_net_status(net);
}

static tn_status use_threads(void *user) {
    const tn_net_params *params = user;
    tn_net *nets[2] = {NULL, NULL}, *alone = NULL;
    char sent[64] = "message", received[64];
    TN_TRY(tn_net_threads(params, nets));
    tn_status status = tn_net_send(nets[0], 1, sent, sizeof sent);
    if (status == TN_OK) status = tn_net_receive(nets[1], 0, received, sizeof received);
    if (status == TN_OK) status = tn_net_send(nets[0], 1, sent, sizeof sent);
    if (status == TN_OK) status = tn_net_wait(nets[1], 0, received, sizeof received);
    if (status == TN_OK && memcmp(sent, received, sizeof sent) != 0)
        status = tn_fail(TN_E_INTERNAL, "another message");
    for (int i = 0; i < 2; i++) tn_net_free(nets[i]);
    TN_TRY(status);
    TN_TRY(tn_net_threads(&(tn_net_params){.n_ranks = 1, .message_bytes = params->message_bytes}, &alone));
    status = exchange(alone);
    tn_net *group = NULL;
    if (status == TN_OK) status = tn_net_group(alone, 0, 1, &group);
    if (status == TN_OK) status = exchange(group);
    tn_net_free(group);
    tn_net_free(alone);
    return status;
}

static tn_status use_shm(void *user) {
    tn_net *net = NULL;
    char spec[32];
    int fd = -1;
    TN_TRY(tn_net_shm_new(user, &fd));
    snprintf(spec, sizeof spec, "shm:%d", fd);
    tn_status status = tn_net_open(spec, user, &net);
    if (status == TN_OK) status = exchange(net);
    tn_net_free(net);
    close(fd);
    return status;
}

static void ranks_survive(void **state) {
    (void)state;
    check_every_allocation_failure(use_threads, &(tn_net_params){.n_ranks = 2, .message_bytes = 4096});
    check_every_allocation_failure(use_shm, &(tn_net_params){.n_ranks = 1, .message_bytes = 4096});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_survives),    cmocka_unit_test(ranking_survives), cmocka_unit_test(metadata_survives),
        cmocka_unit_test(pictures_survive), cmocka_unit_test(sessions_survive), cmocka_unit_test(graphs_survive),
        cmocka_unit_test(ranks_survive),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
