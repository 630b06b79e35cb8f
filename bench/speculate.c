/* Benchmark of speculative decoding: time of generated tokens with every way of guessing, relative to plain decoding.
 *
 *   build/bench/speculate models/tales.gguf draft=models/tales-draft.gguf \
 *       mtp=models/tales-mtp.gguf eagle3=models/tales-eagle3.gguf threads=2
 *   build/bin/tenon synth 8b.gguf --shape 8b --type Q4_K_M && build/bench/speculate 8b.gguf known=0.7 device=cuda0
 *
 * Settings: generate=200 repeat=5 sequences=1 guess=7 threads=0 (one per core) branches=0 known=P (guesses that are
 * right with this probability). Runs are interleaved; the table has the shortest and the median time of each.
 *
 * Rows of the table: `plain` is a session that checks no guesses, `file` one whose weights keep the file's layout.
 * Ratios, of the shortest and of the median times, are relative to each of these two; `fixed=1` always guesses.
 * `free` text is the model's own, greedy; `rewriting` repeats the model's own text with every 12th token changed, and
 * these tokens are taken whatever the model would write (so they are for `known`, where guesses are right by chance).
 * `prompt=FILE answer=FILE`: instead of both, the answer is taken after the prompt. */
#include <stdio.h>
#include <stdlib.h>

#include "tenon/cpu.h"
#include "tenon/generate.h"

#include <string.h>

enum { PROMPT = 6, TEXT = 2048, SEQS = 64, MODES = 7 };

typedef struct settings {
    const char *path, *draft, *mtp, *eagle3, *device, *prompt, *answer;
    int generate, repeat, sequences, guess, threads, fixed, branches;
    double known;
} settings;

static int complain(const char *what) {
    fprintf(stderr, "speculate: %s: %s\n", what, tn_error());
    return 1;
}

/* ---- Who guesses ---- */

typedef struct bench_case {
    const settings *set;
    tn_model *model, *other;
    tn_session *session, *draft;
    tn_speculator *speculator;
    const tn_token *text; /* what is taken, or NULL: what the model writes */
    int32_t n_text;
    uint64_t random;
} bench_case;

static double next_unit(bench_case *c) {
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(c->random >> 11) * 0x1p-53;
}

static tn_status guess_known(void *user, tn_guess *g) {
    bench_case *c = user;
    for (g->n = 0; g->n < g->room && g->n_tokens + g->n < c->n_text; g->n++) {
        const tn_token right = c->text[g->n_tokens + g->n];
        g->guess[g->n] = next_unit(c) < c->set->known ? right : (right + 1) % 100;
        g->probs[g->n] = (float)c->set->known;
    }
    return TN_OK;
}

static tn_status open_bench(bench_case *c, tn_model *model, tn_threadpool *pool, tn_spec_kind kind, bool no_repack) {
    const settings *x = c->set;
    tn_session_params p = tn_session_params_default();
    p.n_seqs = x->sequences;
    p.n_ctx = x->sequences * 1024;
    p.threads = pool;
    p.n_guess = kind == TN_SPEC_NONE ? 0 : x->guess;
    p.no_repack = no_repack;
    p.states = kind == TN_SPEC_MTP || kind == TN_SPEC_EAGLE3;
    p.n_branches = p.n_guess ? x->branches * x->sequences : 0;
    p.devices[0] = x->device;
    c->model = model;
    const char *path = kind == TN_SPEC_MTP ? x->mtp : kind == TN_SPEC_EAGLE3 ? x->eagle3 : x->draft;
    const bool guesser = kind == TN_SPEC_DRAFT || kind == TN_SPEC_MTP || kind == TN_SPEC_EAGLE3;
    if (guesser) {
        const tn_model_params how = {.head = kind == TN_SPEC_MTP, .target = kind == TN_SPEC_EAGLE3 ? model : NULL};
        TN_TRY(tn_model_open(path, &how, &c->other));
        p.n_state_layers = tn_model_target_layers(c->other, p.state_layers);
    }
    TN_TRY(tn_session_open(model, &p, &c->session));
    tn_spec_params spec = {.kind = kind, .n_max = x->guess, .fixed = x->fixed, .propose = guess_known, .user = c};
    if (guesser) {
        p.n_outputs = p.n_seqs;
        p.n_state_layers = 0;
        TN_TRY(tn_session_open(c->other, &p, &c->draft));
        spec.draft = c->draft;
    }
    return kind == TN_SPEC_NONE ? TN_OK : tn_speculator_new(c->session, &spec, &c->speculator);
}

static void close_bench(bench_case *c) {
    tn_speculator_free(c->speculator);
    tn_session_free(c->draft);
    tn_model_close(c->other);
    tn_session_free(c->session);
}

/* ---- One run ---- */

typedef struct bench_sequence {
    tn_token tokens[TEXT];
    int32_t n; /* the last is sampled and not decoded */
} bench_sequence;
static bench_sequence sequences[SEQS];

/* Takes the token after the sequence's last: the argmax of the row, or what the text says. */
static void take_token(const bench_case *c, bench_sequence *q, int32_t row) {
    const tn_token argmax = tn_session_argmax(c->session, row);
    const bool forced = c->text && q->n < c->n_text;
    q->tokens[q->n] = forced ? c->text[q->n] : argmax;
    q->n++;
}

/* Decodes the last token of every sequence with its guess, and takes what follows. */
static tn_status run_step(bench_case *c, int32_t until) {
    static tn_guess guesses[SEQS];
    static tn_token tokens[SEQS * (1 + TN_GUESS_MOST)];
    static int32_t seqs[SEQS * (1 + TN_GUESS_MOST)];
    static int32_t parents[SEQS * (1 + TN_GUESS_MOST)];
    static bool outputs[SEQS * (1 + TN_GUESS_MOST)], guessed[SEQS * (1 + TN_GUESS_MOST)];
    bool trees = false;
    const int32_t n_seqs = c->set->sequences;
    int32_t n = 0, row = 0;
    for (int32_t i = 0; i < n_seqs; i++)
        guesses[i] = (tn_guess){
            .seq = i, .tokens = sequences[i].tokens, .n_tokens = sequences[i].n, .room = until - sequences[i].n};
    for (int32_t i = 0; i < n_seqs; i++)
        if (guesses[i].room < 0) guesses[i].room = 0;
    if (c->speculator) TN_TRY(tn_speculator_propose(c->speculator, guesses, n_seqs));
    for (int32_t i = 0; i < n_seqs; i++)
        for (int32_t k = 0; k <= guesses[i].n; k++, n++) {
            tokens[n] = k ? guesses[i].guess[k - 1] : sequences[i].tokens[sequences[i].n - 1];
            seqs[n] = i;
            outputs[n] = true;
            guessed[n] = k > 0;
            parents[n] = k ? n - k + 1 + (guesses[i].tree ? guesses[i].parents[k - 1] : k - 2) : -1;
            trees = trees || guesses[i].tree;
        }
    TN_TRY(tn_session_decode(c->session, &(tn_batch){.n_tokens = n,
                                                     .tokens = tokens,
                                                     .seqs = seqs,
                                                     .outputs = outputs,
                                                     .guesses = n > n_seqs ? guessed : NULL,
                                                     .parents = trees ? parents : NULL,
                                                     .argmax = true}));
    for (int32_t i = 0; i < n_seqs; i++) {
        bench_sequence *q = &sequences[i];
        int32_t right = 0, found;
        take_token(c, q, row);
        guesses[i].at = -1;
        while ((found = tn_guess_find(&guesses[i], guesses[i].at, q->tokens[q->n - 1])) >= 0) {
            guesses[i].at = found;
            right++;
            take_token(c, q, row + 1 + found);
        }
        row += 1 + guesses[i].n;
        if (!c->speculator) continue;
        tn_speculator_checked(c->speculator, &guesses[i], right);
        if (right < guesses[i].n)
            TN_TRY(tn_session_seq_take_branch(c->session, i, tn_guess_branch(&guesses[i], guesses[i].at), q->n - 1));
    }
    return TN_OK;
}

/* Seconds for the tokens after the prompt, the first `n_prompt` of the text. */
static tn_status run_text(bench_case *c, const tn_token *prompt, int32_t n_prompt, int32_t until, double *seconds,
                          double *per_step) {
    tn_session_clear(c->session);
    if (c->draft) tn_session_clear(c->draft);
    int32_t seqs[TEXT];
    for (int32_t i = 0; i < c->set->sequences; i++) {
        tn_speculator_forget(c->speculator, i);
        for (int32_t k = 0; k < n_prompt; k++) seqs[k] = i;
        TN_TRY(tn_session_decode(c->session,
                                 &(tn_batch){.n_tokens = n_prompt, .tokens = prompt, .seqs = seqs, .argmax = true}));
        memcpy(sequences[i].tokens, prompt, (size_t)n_prompt * sizeof *prompt);
        sequences[i].n = n_prompt;
        take_token(c, &sequences[i], 0);
    }
    int steps = 0;
    int32_t least;
    TN_TRY(run_step(c, until)); /* the first makes graphs */
    const uint64_t begin = tn_time_ns();
    int64_t before = 0, after = 0;
    for (int32_t i = 0; i < c->set->sequences; i++) before += sequences[i].n;
    do {
        TN_TRY(run_step(c, until));
        steps++;
        least = until;
        after = 0;
        for (int32_t i = 0; i < c->set->sequences; i++) {
            least = sequences[i].n < least ? sequences[i].n : least;
            after += sequences[i].n;
        }
    } while (least < until);
    *seconds = (double)(tn_time_ns() - begin) * 1e-9 / (double)(after - before);
    *per_step = (double)(after - before) / steps / c->set->sequences;
    return TN_OK;
}

/* ---- The table ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct bench_mode {
    const char *name;
    tn_spec_kind kind;
    bool used, no_repack;
} bench_mode;

static tn_status measure(const settings *x, const char *title, const bench_mode *modes, bench_case *cases,
                         const tn_token *text, int32_t n_text, int32_t n_prompt, bool forced) {
    static double times[MODES][100];
    double per_step[MODES] = {0};
    for (int r = 0; r < x->repeat; r++)
        for (int m = 0; m < MODES; m++) {
            if (!modes[m].used) continue;
            cases[m].text = forced || modes[m].kind == TN_SPEC_CALLBACK ? text : NULL;
            cases[m].n_text = n_text;
            TN_TRY(run_text(&cases[m], text, n_prompt, n_text, &times[m][r], &per_step[m]));
        }
    const int half = x->repeat / 2;
    for (int m = 0; m < MODES; m++)
        if (modes[m].used) qsort(times[m], (size_t)x->repeat, sizeof **times, by_value);
    for (int m = 0; m < MODES; m++) {
        if (!modes[m].used) continue;
        printf("%-10s %-8s %9.1f %9.1f  %5.2f %5.2f  %5.2f %5.2f  %5.2f\n", title, modes[m].name, 1 / times[m][0],
               1 / times[m][half], times[0][0] / times[m][0], times[0][half] / times[m][half],
               times[1][0] / times[m][0], times[1][half] / times[m][half], per_step[m]);
    }
    return TN_OK;
}

/* The tokens of a file, which is at most 16 KiB long. */
static tn_status encode_file(const tn_tokenizer *t, const char *path, int flags, tn_token *tokens, size_t room,
                             size_t *count) {
    static char bytes[16384];
    FILE *file = fopen(path, "rb");
    const size_t size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file) fclose(file);
    if (!size || !t) return tn_fail(TN_E_IO, "%s cannot be read, or the model has no vocabulary", path);
    return tn_tokenizer_encode_into(t, bytes, size, flags, tokens, room, count);
}

static tn_status measure_task(const settings *x, const bench_mode *modes, bench_case *cases,
                              const tn_tokenizer *tokenizer) {
    static tn_token text[TEXT];
    size_t n_prompt, n_answer;
    TN_TRY(encode_file(tokenizer, x->prompt, TN_ENCODE_ADD_SPECIAL, text, TEXT / 2, &n_prompt));
    TN_TRY(encode_file(tokenizer, x->answer, TN_ENCODE_CONTINUE, text + n_prompt, TEXT / 2, &n_answer));
    return measure(x, "task", modes, cases, text, (int32_t)(n_prompt + n_answer), (int32_t)n_prompt, true);
}

static tn_status run_bench(const settings *x) {
    tn_model *models[MODES] = {0};
    static bench_case cases[MODES];
    static tn_token text[TEXT], copy[TEXT];
    const bench_mode modes[MODES] = {{"plain", TN_SPEC_NONE, true, false},
                                     {"file", TN_SPEC_NONE, true, true},
                                     {"ngram", TN_SPEC_NGRAM, true, false},
                                     {"draft", TN_SPEC_DRAFT, x->draft != NULL, false},
                                     {"mtp", TN_SPEC_MTP, x->mtp != NULL, false},
                                     {"eagle3", TN_SPEC_EAGLE3, x->eagle3 != NULL, false},
                                     {"known", TN_SPEC_CALLBACK, x->known > 0, false}};
    tn_threadpool *pool;
    TN_TRY(tn_threadpool_new(&(tn_threadpool_params){.n_threads = x->threads}, &pool));
    const bool large = x->known > 0; /* one copy of the weights, whose layout the first session chooses */
    for (int m = 0; m < MODES; m++) {
        if (!modes[m].used) continue;
        if (large && m)
            models[m] = models[0];
        else
            TN_TRY(tn_model_open(x->path, NULL, &models[m]));
        cases[m] = (bench_case){.set = x, .random = 1};
        TN_TRY(open_bench(&cases[m], models[m], pool, modes[m].kind, modes[m].no_repack));
    }
    const int32_t n_vocab = tn_model_get_info(models[0]).n_vocab, n = PROMPT + x->generate;
    for (int i = 0; i < PROMPT; i++) text[i] = (tn_token)((40 + 13 * i) % n_vocab);
    const tn_tokenizer *t = tn_model_tokenizer(models[0]);
    size_t count = 0;
    if (t)
        (void)tn_tokenizer_encode_into(t, "Once upon a time, there was", 27, TN_ENCODE_ADD_SPECIAL, text, PROMPT,
                                       &count);
    double ignored;
    TN_TRY(run_text(&cases[0], text, PROMPT, n, &ignored, &ignored));
    memcpy(text, sequences[0].tokens, (size_t)n * sizeof *text);
    printf("%-10s %-8s %9s %9s  %11s  %11s  %s\n", "text", "guesses", "t/s best", "median", "to plain", "to file",
           "tokens per step");
    const bool task = x->prompt && x->answer;
    if (task) TN_TRY(measure_task(x, modes, cases, t));
    if (!task) TN_TRY(measure(x, "free", modes, cases, text, n, PROMPT, false));
    memcpy(copy, text, (size_t)n * sizeof *text);
    memcpy(copy + n, text, (size_t)n * sizeof *text);
    for (int i = n + 11; i < 2 * n; i += 12) copy[i] = (copy[i] + 7) % n_vocab;
    if (!large && !task) TN_TRY(measure(x, "rewriting", modes, cases, copy, 2 * n, n, true));
    for (int m = 0; m < MODES; m++)
        if (modes[m].used) close_bench(&cases[m]);
    for (int m = MODES - 1; m >= 0; m--)
        if (modes[m].used && (!large || !m)) tn_model_close(models[m]);
    tn_threadpool_free(pool);
    return TN_OK;
}

int main(int argc, char **argv) {
    settings x = {.generate = 200, .repeat = 5, .sequences = 1, .guess = 7};
    const struct {
        const char *name;
        int *value, most;
    } numbers[] = {{"generate=", &x.generate, 800},    {"repeat=", &x.repeat, 100},
                   {"sequences=", &x.sequences, SEQS}, {"guess=", &x.guess, TN_GUESS_MOST},
                   {"threads=", &x.threads, 1024},     {"fixed=", &x.fixed, 1},
                   {"branches=", &x.branches, 16}};
    for (int i = 1; i < argc; i++) {
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (strncmp(argv[i], numbers[k].name, strlen(numbers[k].name)) == 0) {
                *numbers[k].value = atoi(argv[i] + strlen(numbers[k].name));
                if (*numbers[k].value < (k < 4) || *numbers[k].value > numbers[k].most) return complain(argv[i]);
            }
        if (strncmp(argv[i], "draft=", 6) == 0) x.draft = argv[i] + 6;
        if (strncmp(argv[i], "mtp=", 4) == 0) x.mtp = argv[i] + 4;
        if (strncmp(argv[i], "eagle3=", 7) == 0) x.eagle3 = argv[i] + 7;
        if (strncmp(argv[i], "device=", 7) == 0) x.device = argv[i] + 7;
        if (strncmp(argv[i], "prompt=", 7) == 0) x.prompt = argv[i] + 7;
        if (strncmp(argv[i], "answer=", 7) == 0) x.answer = argv[i] + 7;
        if (strncmp(argv[i], "known=", 6) == 0) x.known = atof(argv[i] + 6);
        if (!strchr(argv[i], '=')) x.path = argv[i];
    }
    if (!x.path) {
        fprintf(stderr,
                "usage: speculate MODEL [draft=FILE] [mtp=FILE] [eagle3=FILE] [known=P] [generate=200] [repeat=5]\n"
                "                 [sequences=1] [guess=7] [threads=0] [fixed=0] [branches=0] [device=NAME]\n"
                "                 [prompt=FILE answer=FILE]\n");
        return 2;
    }
    return run_bench(&x) == TN_OK ? 0 : complain(x.path);
}
