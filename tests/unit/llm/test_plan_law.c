/* The plan is the law: on devices of exactly the planned size a session serves every batch it may be given, and takes
 * no byte more than was planned. For every architecture, for devices with several largest allocations, with layers on
 * the host and without, for every number of tokens up to the micro-batch.
 *
 * A case that breaks the law is printed, and the test goes on with the next: the list of broken cases says more than
 * the first one. $TENON_LONG: micro-batches of 512 tokens, every architecture with each kind of memory, and more
 * largest allocations; otherwise a third of them with unified and silent memory. */
#include "support.h"

#include "backend/registry.h"
#include "backend/sim/sim.h"
#include "models/tiny_models.h"
#include "sched_case.h"
#include "tenon/arch.h"
#include "tenon/llm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 512, PRINTED = 12 };

/* Where the layers are. */
typedef enum law_way { ON_DEVICE, PARTLY, OFFLOADED, TWO_DEVICES, ON_HOST } law_way;
static const char *const way_names[] = {"all layers on the device", "a layer on the host", "offloading from the host",
                                        "two devices", "all layers on the host"};

/* What memory the device has. Unified memory holds the host's buffers as well. */
typedef enum law_memory { SEPARATE, UNIFIED, SILENT } law_memory;
static const char *const memory_names[] = {"", ", unified memory", ", memory that is not reported"};

typedef struct law_case {
    const char *model, *path;
    law_way way;
    law_memory memory;
    bool copied;      /* weights are copied, not used in the file's map */
    bool fast;        /* planned with the effort fast */
    size_t max_alloc; /* 0: unlimited */
    int32_t n_ubatch, n_seqs;
    int32_t n_layers;  /* on the device; 0: one */
    int32_t n_outputs; /* 0: all of a micro-batch */
    bool embeddings;
} law_case;

static int n_cases, n_broken;
static int n_divided; /* cases whose compute memory is in several chunks */
static char model_path[64];

static bool is_long(void) { return getenv("TENON_LONG") != NULL; }

static void report(const law_case *c, const char *what) {
    if (n_broken++ >= PRINTED) return;
    print_message("%s, %s%s%s, largest allocation %zu%s: %s\n", c->model, way_names[c->way], memory_names[c->memory],
                  c->copied ? ", copied weights" : "", c->max_alloc, c->embeddings ? ", embeddings" : "", what);
}

/* ---- Planning ---- */

static const tn_pack_params fast_effort = {.effort = TN_PACK_FAST};

static tn_session_params case_params(const law_case *c) {
    tn_session_params p = tn_session_params_default();
    p.n_ctx = 2 * c->n_ubatch;
    p.n_batch = p.n_ubatch = c->n_ubatch;
    p.n_seqs = c->n_seqs;
    p.n_outputs = c->n_outputs ? c->n_outputs : c->n_ubatch;
    p.n_candidates = 7;
    p.n_threads = 1;
    p.embeddings = c->embeddings;
    if (c->fast) p.pack = &fast_effort;
    p.pooling = c->embeddings ? TN_POOLING_MEAN : TN_POOLING_MODEL;
    p.n_gpu_layers = c->way == ON_DEVICE || c->way == TWO_DEVICES ? 1000 : c->n_layers ? c->n_layers : 1;
    if (c->way == TWO_DEVICES) p.n_batch = p.n_ctx; /* several micro-batches, in flight */
    return p;
}

/* Devices of the given sizes. A process has few devices and these cases need many sizes, so the same ones change. */
static void set_devices(const law_case *c, const size_t sizes[2], tn_session_params *p) {
    static const char *const specs[][2] = {
        [SEPARATE] = {"sim:1G,name=law", "sim:1G,offload=1,name=offloading"},
        [UNIFIED] = {"sim:1G,uma=1,name=unified", "sim:1G,uma=1,offload=1,name=unified-offloading"},
        [SILENT] = {"sim:1G,report=0,name=silent", "sim:1G,report=0,offload=1,name=silent-offloading"}};
    const char *used[2] = {specs[c->memory][c->way == OFFLOADED],
                           c->way == TWO_DEVICES ? "sim:1G,align=256,name=second" : NULL};
    if (c->way == ON_HOST) used[0] = NULL;
    p->devices[0] = "cpu";
    for (int d = 0; d < 2 && used[d]; d++) {
        tn_device *device;
        assert_ok(tn_device_find(used[d], &device));
        tn__sim *sim = device->impl;
        assert_int_equal(atomic_load(&sim->used), 0); /* the case before left nothing */
        tn__sim_resize(sim, sizes[d], c->max_alloc);
        p->devices[d] = tn_device_name(device);
        p->split[d] = used[1] != NULL;
    }
}

static size_t planned(const tn_fit_device *d) {
    return d->weights + d->cache + d->compute + d->scratch + d->staging + d->own;
}

/* ---- The law ---- */

/* Planned = taken = counted by the device. */
static bool holds(tn_session *session, const law_case *c, const tn_fit *fit, const char *after) {
    char text[256] = "";
    tn_fit now;
    assert_ok(tn_session_memory(session, &now));
    for (size_t d = 0; d < now.n_devices && !text[0]; d++) {
        const tn_fit_device *was = &fit->devices[d], *is = &now.devices[d];
        if (was->weights != is->weights || was->cache != is->cache || was->compute != is->compute ||
            was->scratch != is->scratch || was->staging != is->staging || was->own != is->own)
            snprintf(text, sizeof text,
                     "after %s on %s: weights %zu → %zu, cache %zu → %zu, compute %zu → %zu, scratch %zu → %zu",
                     after, is->name, was->weights, is->weights, was->cache, is->cache, was->compute, is->compute,
                     was->scratch, is->scratch);
        else if (d + 1 < now.n_devices && atomic_load(&sim_of(is->name)->used) != planned(was))
            snprintf(text, sizeof text, "after %s on %s: %zu planned, %zu counted", after, is->name, planned(was),
                     atomic_load(&sim_of(is->name)->used));
    }
    const tn_fit_device *host = &fit->devices[fit->n_devices - 1]; /* staging is on the heap, not in a buffer */
    if (!text[0] && tn__cpu_buffer_bytes() != planned(host) - host->staging)
        snprintf(text, sizeof text, "after %s on the host: %zu planned, %zu counted", after,
                 planned(host) - host->staging, tn__cpu_buffer_bytes());
    tn_fit_free(&now);
    if (!text[0] && tn_session_get_stats(session).sched.buffers_grown)
        snprintf(text, sizeof text, "after %s: buffers grew", after);
    if (text[0]) report(c, text);
    return !text[0];
}

/* ---- What a session may be asked ---- */

enum { LAST_ROW, ALL_ROWS, SOME_ROWS, ARGMAX, SEQUENCES, KINDS };

static tn_status decode_kind(tn_session *session, const law_case *c, int32_t n, int kind) {
    static tn_token tokens[MOST];
    static int32_t seqs[MOST];
    static bool outputs[MOST];
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = (7 * i + n) % 60 + 3;
        seqs[i] = kind == SEQUENCES ? i * c->n_seqs / n : 0;
        outputs[i] = kind == ALL_ROWS || i % 3 == 0;
    }
    tn_batch batch = {.n_tokens = n, .tokens = tokens, .seqs = seqs};
    if ((kind == ALL_ROWS || kind == SOME_ROWS) && !c->embeddings) batch.outputs = outputs;
    batch.argmax = kind == ARGMAX && !c->embeddings;
    batch.candidates = kind == SEQUENCES || kind == SOME_ROWS;
    return tn_session_decode(session, &batch);
}

/* One further kind for each small size in turn; all of them in a long test. Large sizes are rounded to multiples of
 * 32, so those on both sides of the edges suffice. */
static bool worth_trying(int32_t n, int kind) {
    if (n > 64) return n % 32 < 2;
    return is_long() || kind == 1 + n % (KINDS - 1);
}

/* Each case tries a third of the sizes and the smallest and largest ones, so that three cases try all; long tests
 * all. */
static bool is_size_tried(int32_t n, int32_t most) {
    return is_long() || n < 4 || n + 2 > most || (n + n_cases) % 3 == 0;
}

static bool every_size(tn_session *session, const law_case *c, const tn_fit *fit) {
    const bool whole = !tn_model_get_info(tn_session_model(session)).is_causal; /* a sequence per micro-batch */
    const int32_t most = c->way == TWO_DEVICES && !whole ? 2 * c->n_ubatch : c->n_ubatch;
    for (int32_t n = 1; n <= most && n <= MOST; n++) {
        if (!is_size_tried(n, most)) continue;
        for (int kind = 0; kind < KINDS; kind++) {
            if (kind != LAST_ROW && !worth_trying(n, kind)) continue;
            if (n > c->n_ubatch && (kind == ALL_ROWS || kind == SOME_ROWS)) continue; /* more outputs than planned */
            char what[160];
            tn_session_clear(session);
            snprintf(what, sizeof what, "%d tokens (kind %d)", n, kind);
            if (decode_kind(session, c, n, kind) != TN_OK) {
                snprintf(what, sizeof what, "%d tokens (kind %d): %.100s", n, kind, tn_error());
                report(c, what);
                return false;
            }
            if (tn_session_get_stats(session).sched.buffers_grown) return holds(session, c, fit, what);
        }
    }
    return holds(session, c, fit, "every number of tokens");
}

/* Where the architecture has it: recurrent state is copied to empty sequences and cannot lose tokens in the middle.
 */
static tn_status optional(tn_status status) { return status == TN_E_UNSUPPORTED ? TN_OK : status; }

static tn_status move_cells(tn_session *s, const law_case *c) {
    size_t size;
    const int32_t n = c->n_ubatch / 4;
    tn_session_clear(s);
    TN_TRY(decode_kind(s, c, n, SEQUENCES));
    TN_TRY(decode_kind(s, c, n, LAST_ROW));
    TN_TRY(optional(tn_session_seq_copy(s, 0, c->n_seqs - 1, 0, -1)));
    TN_TRY(optional(tn_session_seq_remove(s, 0, 2, 5)));
    TN_TRY(optional(tn_session_seq_shift(s, 0, 5, -1, -3)));
    TN_TRY(decode_kind(s, c, 1, ARGMAX));
    TN_TRY(decode_kind(s, c, 1, ARGMAX));
    TN_TRY(optional(tn_session_seq_divide(s, c->n_seqs - 1, 4, -1, 2)));
    TN_TRY(tn_session_seq_remove(s, 1, 0, -1));
    TN_TRY(tn_session_defragment(s));
    for (int32_t seq = -1; seq < 1; seq++) {
        TN_TRY(tn_session_state_size(s, seq, &size));
        void *state = malloc(size);
        tn_status status = tn_session_state_get(s, seq, state, size);
        if (status == TN_OK) tn_session_clear(s);
        if (status == TN_OK) status = tn_session_state_set(s, seq, state, size);
        free(state);
        TN_TRY(status);
    }
    TN_TRY(decode_kind(s, c, n, LAST_ROW));
    TN_TRY(tn_session_seq_keep(s, 0));
    return decode_kind(s, c, 3, ALL_ROWS);
}

static bool moved_cells(tn_session *session, const law_case *c, const tn_fit *fit) {
    if (!tn_model_get_info(tn_session_model(session)).is_causal) return true;
    if (move_cells(session, c) != TN_OK) {
        char what[160];
        snprintf(what, sizeof what, "moving cells: %.140s", tn_error());
        report(c, what);
        return false;
    }
    return holds(session, c, fit, "moving cells");
}

static bool look_at_all(void *user, tn_tensor *node, bool ask) {
    (void)node;
    if (!ask) ++*(int *)user;
    return true;
}

/* The last row of the last decode. */
static void copy_last_row(tn_session *session, float row[MOST]) {
    const float *logits = tn_session_logits(session, -1), *embedding = tn_session_embedding(session, -1);
    const int32_t n =
        logits ? tn_model_get_info(tn_session_model(session)).n_vocab : tn_session_embedding_size(session);
    assert_true(n <= MOST && (logits || embedding));
    memset(row, 0, MOST * sizeof *row);
    memcpy(row, logits ? logits : embedding, (size_t)n * sizeof *row);
}

/* With and without a callback: the same bits, in the same memory. */
static bool evaluated(tn_session *session, const law_case *c, const tn_fit *fit) {
    const int32_t sizes[] = {1, c->n_ubatch * 3 / 8, c->n_ubatch};
    static float rows[2][MOST];
    for (size_t i = 0; i < 6; i++) {
        int seen = 0;
        char what[200];
        tn_session_clear(session);
        tn_sched_set_eval(tn_session_sched(session), i % 2 ? look_at_all : NULL, &seen);
        tn_status status = decode_kind(session, c, sizes[i / 2], SOME_ROWS);
        tn_sched_set_eval(tn_session_sched(session), NULL, NULL);
        const char *wrong = status != TN_OK ? tn_error() : i % 2 && !seen ? "nothing seen" : NULL;
        if (!wrong) copy_last_row(session, rows[i % 2]);
        if (!wrong && i % 2 && memcmp(rows[0], rows[1], sizeof rows[0]) != 0) wrong = "other results";
        if (wrong) {
            snprintf(what, sizeof what, "eval of %d tokens: %.140s", sizes[i / 2], wrong);
            report(c, what);
            return false;
        }
    }
    return holds(session, c, fit, "eval");
}

typedef bool (*law_scenario)(tn_session *session, const law_case *c, const tn_fit *fit);

static const size_t ample[2] = {1 << 30, 1 << 30};

/* False if a tensor or the scratch exceeds the largest allocation. */
static bool can_plan(const law_case *c) {
    tn_model *model;
    tn_session_plan *plan = NULL;
    law_case quick = *c;
    quick.fast = true;
    tn_session_params p = case_params(&quick);
    assert_ok(tn_model_open(c->path, &(tn_model_params){.no_mmap = c->copied}, &model));
    set_devices(c, ample, &p);
    tn_status status = tn_session_plan_new(model, &p, &plan);
    if (status != TN_E_TOO_BIG) assert_ok(status);
    tn_session_plan_free(plan);
    tn_model_close(model);
    return status == TN_OK;
}

/* Plans on ample devices, gives them exactly the planned size, makes the session and runs the scenario. `scratch`
 * (may be NULL) receives the first device's. */
static void run_case(const law_case *c, law_scenario scenario, size_t *scratch) {
    size_t sizes[2] = {0};
    tn_model *model;
    tn_session_plan *plan;
    tn_session *session = NULL;
    tn_fit fit;
    tn_session_params p = case_params(c);
    assert_ok(tn_model_open(c->path, &(tn_model_params){.no_mmap = c->copied}, &model));
    set_devices(c, ample, &p);
    assert_ok(tn_session_plan_new(model, &p, &plan));
    assert_true(tn_session_plan_fits(plan));
    assert_ok(tn_session_plan_fit(plan, &fit));
    for (size_t d = 0; d + 1 < fit.n_devices; d++) sizes[d] = planned(&fit.devices[d]);
    if (c->memory == UNIFIED) sizes[0] += planned(&fit.devices[1]);
    set_devices(c, sizes, &p);
    n_cases++;
    n_divided += c->max_alloc && fit.devices[0].compute > c->max_alloc;
    if (tn_session_new(plan, &session) != TN_OK)
        report(c, tn_error());
    else if (holds(session, c, &fit, "creation"))
        scenario(session, c, &fit);
    if (scratch) *scratch = fit.devices[0].scratch;
    tn_session_free(session);
    tn_session_plan_free(plan);
    tn_fit_free(&fit);
    tn_model_close(model);
}

static void check_case(const law_case *c, law_scenario scenario) { run_case(c, scenario, NULL); }

/* ---- Cases ---- */

enum { WIDE = 512 }; /* elements of a row of the largest tensors */

/* Unlimited, the smallest largest allocation that serves, within an eighth (in long tests: from 1 MiB on), and a
 * little more; in long tests also twice and four times as much. Plans with the smallest take the default effort. */
static void each_max_alloc(law_case c, law_scenario scenario) {
    size_t scratch = 0, rows = (size_t)c.n_ubatch * WIDE * sizeof(float);
    run_case(&c, scenario, &scratch);
    c.max_alloc = scratch > rows ? scratch : rows;
    while (!can_plan(&c)) c.max_alloc += c.max_alloc / 8;
    check_case(&c, scenario);
    c.fast = true;
    c.max_alloc += c.max_alloc / 8;
    if (c.memory == SEPARATE) check_case(&c, scenario);
    for (int i = 0; i < 2 && is_long() && c.memory == SEPARATE; i++) {
        c.max_alloc *= 2;
        check_case(&c, scenario);
    }
}

/* Activations are large beside scratch, so that a small largest allocation divides them. */
static void write_arch(const tn_arch *arch, int32_t n_ubatch, law_case *c) {
    const tiny_options options = {
        .arch = arch->name, .type = TN_F16, .ffn = WIDE, .vocab = WIDE, .context = 4 * (uint32_t)n_ubatch};
    assert_ok(tiny_model_write(model_path, &options));
    *c = (law_case){.model = arch->name,
                    .path = model_path,
                    .n_ubatch = n_ubatch,
                    .n_seqs = 3,
                    .embeddings = arch->traits & TN_ARCH_ENCODER};
}

static void none_broken(void) {
    if (n_broken) fail_msg("%d of %d cases break the law", n_broken, n_cases);
    assert_true(n_cases > 0);
}

static int32_t micro_batch(void) { return is_long() ? 512 : 64; }

static bool batches_and_moves(tn_session *session, const law_case *c, const tn_fit *fit);
static void for_every_arch(law_memory memory, law_way way, bool max_allocs, law_scenario scenario) {
    unsigned max_alloc_turn = (unsigned)way;
    n_cases = n_broken = n_divided = 0;
    for (size_t i = 0, tested = 0; tn_arch_at(i); i++) {
        law_case c;
        if (!tiny_arch_is_tested(tn_arch_at(i)->name)) continue;
        if (!is_long() && memory != SEPARATE && tested++ % 3 != ((unsigned)way + (unsigned)memory) % 3) continue;
        /* Half of them in turn, but for the commonest ways. */
        const bool always = is_long() || memory != SEPARATE ||
                            (scenario == batches_and_moves && (way == ON_DEVICE || way == OFFLOADED));
        if (!always && (i + (unsigned)way) % 2) continue;
        write_arch(tn_arch_at(i), micro_batch(), &c);
        c.way = way;
        c.memory = memory;
        /* Half of them, and those with experts or many layers: their mapped file would be larger than all that is
         * planned. */
        const tn_arch *arch = tn_arch_at(i);
        c.copied = memory == UNIFIED &&
                   (i % 2 || (arch->traits & TN_ARCH_EXPERTS) || arch->window_period > 4 || arch->fewest_layers > 2);
        if (max_allocs && (is_long() || max_alloc_turn++ % 3 == 0))
            each_max_alloc(c, scenario);
        else
            check_case(&c, scenario);
    }
    if (max_allocs) assert_true(n_divided > n_cases / 4); /* otherwise the allocations are too large for this test */
    none_broken();
}

static bool batches_and_moves(tn_session *session, const law_case *c, const tn_fit *fit) {
    return every_size(session, c, fit) && moved_cells(session, c, fit);
}

#define LAW(name, memory, way, max_allocs, scenario)                                                                 \
    static void name(void **state) {                                                                                 \
        (void)state;                                                                                                 \
        for_every_arch(memory, way, max_allocs, scenario);                                                           \
    }
LAW(on_one_device, SEPARATE, ON_DEVICE, true, batches_and_moves)
LAW(with_a_layer_on_the_host, SEPARATE, PARTLY, false, batches_and_moves)
LAW(with_offloading, SEPARATE, OFFLOADED, true, batches_and_moves)
LAW(over_two_devices, SEPARATE, TWO_DEVICES, false, batches_and_moves)
LAW(on_the_host, SEPARATE, ON_HOST, false, batches_and_moves)
LAW(on_unified_memory, UNIFIED, ON_DEVICE, is_long(), batches_and_moves)
LAW(on_unified_memory_with_a_layer_on_the_host, UNIFIED, PARTLY, false, batches_and_moves)
LAW(on_unified_memory_with_offloading, UNIFIED, OFFLOADED, is_long(), batches_and_moves)
LAW(on_a_silent_device, SILENT, ON_DEVICE, is_long(), batches_and_moves)
LAW(on_a_silent_device_with_a_layer_on_the_host, SILENT, PARTLY, false, batches_and_moves)
LAW(on_a_silent_device_with_offloading, SILENT, OFFLOADED, is_long(), batches_and_moves)
LAW(with_an_eval_callback, SEPARATE, ON_DEVICE, is_long(), evaluated)
LAW(with_an_eval_callback_and_offloading, SEPARATE, OFFLOADED, is_long(), evaluated)
LAW(with_an_eval_callback_over_two_devices, SEPARATE, TWO_DEVICES, false, evaluated)
LAW(with_an_eval_callback_on_the_host, SEPARATE, ON_HOST, false, evaluated)
LAW(with_an_eval_callback_on_unified_memory, UNIFIED, PARTLY, false, evaluated)
LAW(with_an_eval_callback_on_a_silent_device, SILENT, PARTLY, false, evaluated)

/* Sizes of batches are rounded, never above the micro-batch. */
static void for_micro_batches_of_any_size(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gemma2", "qwen3moe", "bert"};
    static const int32_t sizes[] = {1, 7, 37};
    n_cases = n_broken = 0;
    for (size_t i = 0; i < 12; i++) {
        law_case c;
        write_arch(tn_arch_find(names[i % 4]), sizes[i / 4], &c);
        c.way = ON_HOST;
        check_case(&c, every_size);
        c.way = ON_DEVICE;
        check_case(&c, every_size);
        c.way = PARTLY;
        check_case(&c, every_size);
        c.way = OFFLOADED;
        each_max_alloc(c, every_size);
    }
    none_broken();
}

/* Sessions of two models that share a scheduler, the larger first, on a device that has just what both take. */
static void for_sessions_that_share_memory(void **state) {
    (void)state;
    static const char *const names[] = {"gemma2", "llama"};
    enum { UBATCH = 64 };
    char paths[2][80];
    size_t sizes[2] = {1 << 30, 0};
    law_case c = {.n_ubatch = UBATCH, .n_seqs = 3};
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s.%d", model_path, i);
        assert_ok(
            tiny_model_write(paths[i], &(tiny_options){.arch = names[i], .context = 256, .vocab = i ? 64 : 512}));
    }
    for (int exactly = 0; exactly < 2; exactly++) {
        tn_sched *sched;
        tn_session *sessions[2];
        tn_model *models[2];
        tn_session_params p = case_params(&c);
        set_devices(&c, sizes, &p);
        assert_ok(tn_sched_new(&(tn_sched_params){.devices = {p.devices[0]}, .n_threads = 1}, &sched));
        p.devices[0] = NULL;
        p.n_threads = 0;
        p.sched = sched;
        uint64_t grown[2];
        for (int i = 0; i < 2; i++) {
            assert_ok(tn_model_open(paths[i], NULL, &models[i]));
            assert_ok(tn_session_open(models[i], &p, &sessions[i]));
        }
        for (int i = 0; i < 2; i++) grown[i] = tn_session_get_stats(sessions[i]).sched.buffers_grown;
        if (!exactly) sizes[0] = used_on("law");
        for (int32_t n = 1; exactly && n <= UBATCH; n++)
            for (int i = 0; i < 4; i++) {
                tn_session_clear(sessions[i % 2]);
                assert_ok(decode_kind(sessions[i % 2], &c, n, (n + i) % KINDS));
                assert_int_equal(tn_session_get_stats(sessions[i % 2]).sched.buffers_grown, grown[i % 2]);
                assert_int_equal(used_on("law"), sizes[0]);
            }
        for (int i = 0; i < 2; i++) {
            tn_session_free(sessions[i]);
            tn_model_close(models[i]);
        }
        tn_sched_free(sched);
    }
    for (int i = 0; i < 2; i++) unlink(paths[i]);
}

/* Embeddings of causal models; encoders have nothing else. */
static void for_embeddings(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "gemma2", "qwen3moe"};
    n_cases = n_broken = 0;
    for (size_t i = 0; i < 3; i++) {
        law_case c;
        write_arch(tn_arch_find(names[i]), micro_batch(), &c);
        c.embeddings = true;
        each_max_alloc(c, every_size);
        c.way = PARTLY;
        check_case(&c, every_size);
    }
    none_broken();
}

/* The cases that were found first, with the model that comes with the program. */
static const char tales[] = TENON_SOURCE_DIR "/models/tales.gguf";

static bool found_sizes(tn_session *session, const law_case *c, const tn_fit *fit) {
    static const int32_t sizes[] = {512, 480, 481, 448, 256, 100, 64, 33, 24, 8, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char what[160];
        if (sizes[i] > c->n_ubatch) continue;
        tn_session_clear(session);
        snprintf(what, sizeof what, "%d tokens", sizes[i]);
        if (decode_kind(session, c, sizes[i], LAST_ROW) != TN_OK) {
            snprintf(what, sizeof what, "%d tokens: %.120s", sizes[i], tn_error());
            report(c, what);
            return false;
        }
        if (!holds(session, c, fit, what)) return false;
    }
    return true;
}

/* Each size had a plan of its own, and its chunks were compared one by one. */
static void smaller_batches_fit_the_chunks_of_the_largest(void **state) {
    (void)state;
    n_cases = n_broken = n_divided = 0;
    law_case c = {
        .model = "tales", .path = tales, .max_alloc = 2 << 20, .n_ubatch = 512, .n_seqs = 1, .n_outputs = 1};
    while (!can_plan(&c)) c.max_alloc += c.max_alloc / 8; /* kernels of some processors need more scratch memory */
    check_case(&c, found_sizes);
    assert_int_equal(n_divided, 1);
    none_broken();
}

/* Below the threshold of offloading, nodes run on the host instead, which needs memory there. */
static void batches_too_small_to_offload_fit_on_the_host(void **state) {
    (void)state;
    n_cases = n_broken = 0;
    check_case(
        &(law_case){.model = "tales", .path = tales, .way = OFFLOADED, .n_layers = 3, .n_ubatch = 64, .n_seqs = 1},
        found_sizes);
    none_broken();
}

static int make_path(void **state) {
    (void)state;
    strcpy(model_path, "/tmp/tenon-law-XXXXXX");
    int file = mkstemp(model_path);
    if (file >= 0) close(file);
    return file < 0;
}
static int remove_path(void **state) {
    (void)state;
    return unlink(model_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_device),
        cmocka_unit_test(with_a_layer_on_the_host),
        cmocka_unit_test(with_offloading),
        cmocka_unit_test(over_two_devices),
        cmocka_unit_test(on_the_host),
        cmocka_unit_test(on_unified_memory),
        cmocka_unit_test(on_unified_memory_with_a_layer_on_the_host),
        cmocka_unit_test(on_unified_memory_with_offloading),
        cmocka_unit_test(on_a_silent_device),
        cmocka_unit_test(on_a_silent_device_with_a_layer_on_the_host),
        cmocka_unit_test(on_a_silent_device_with_offloading),
        cmocka_unit_test(for_micro_batches_of_any_size),
        cmocka_unit_test(for_sessions_that_share_memory),
        cmocka_unit_test(for_embeddings),
        cmocka_unit_test(smaller_batches_fit_the_chunks_of_the_largest),
        cmocka_unit_test(batches_too_small_to_offload_fit_on_the_host),
        cmocka_unit_test(with_an_eval_callback),
        cmocka_unit_test(with_an_eval_callback_and_offloading),
        cmocka_unit_test(with_an_eval_callback_over_two_devices),
        cmocka_unit_test(with_an_eval_callback_on_the_host),
        cmocka_unit_test(with_an_eval_callback_on_unified_memory),
        cmocka_unit_test(with_an_eval_callback_on_a_silent_device),
    };
    cmocka_set_test_filter(getenv("TENON_TESTS"));
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
