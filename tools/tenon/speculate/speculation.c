/* Speculative decoding from the command line: its options, and the draft model. */
#include "speculate/speculation.h"

#include "cli/term.h"
#include "hub/hub.h"

#include <string.h>

/* ---- Options ---- */

static const struct option option_list[] = {
    {.name = "spec-type",
     .value = "KIND",
     .kind = OPTION_TEXT,
     .choices = "auto none ngram draft mtp eagle3 draft-simple draft-mtp draft-eagle3 ngram-simple ngram-map-k "
                "ngram-map-k4v ngram-mod ngram-cache",
     .fallback = "auto",
     .help =
         "how tokens are guessed, to be verified together: ngram (earlier text), draft (a smaller model, -md), "
         "mtp (multi-token prediction layers of the model or of -md), eagle3 (an EAGLE-3 head, -md), none; auto is "
         "eagle3 or draft, by the file given with -md, else none. The text stays the same",
     .env = "LLAMA_ARG_SPEC_TYPE"},
    {.name = "model-draft",
     .letter = "md",
     .aliases = "--spec-draft-model",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "a smaller model with the same vocabulary, or a head of the model, that guesses tokens",
     .env = "LLAMA_ARG_SPEC_DRAFT_MODEL"},
    {.name = "hf-repo-draft",
     .letter = "hfd",
     .aliases = "-hfrd --spec-draft-hf",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "the draft model as a model of the hub, OWNER/REPO[:QUANT], downloaded if necessary",
     .env = "LLAMA_ARG_SPEC_DRAFT_HF_REPO"},
    {.name = "cache-type-k-draft",
     .letter = "ctkd",
     .aliases = "--spec-draft-type-k",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .fallback = "f16",
     .help = "type of the keys in the draft model's KV cache",
     .env = "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"},
    {.name = "cache-type-v-draft",
     .letter = "ctvd",
     .aliases = "--spec-draft-type-v",
     .value = "TYPE",
     .kind = OPTION_TEXT,
     .help = "type of the values in the draft model's KV cache, by default the same as for keys",
     .env = "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"},
    {.name = "draft-max",
     .aliases = "--draft --draft-n --spec-draft-n-max",
     .value = "N",
     .kind = OPTION_INT,
     .min = 1,
     .max = TN_GUESS_MOST,
     .fallback = "7",
     .help = "max tokens of a guess; its length follows from how often guesses are right and what they cost",
     .env = "LLAMA_ARG_DRAFT_MAX LLAMA_ARG_SPEC_DRAFT_N_MAX"},
    {.name = "draft-min",
     .aliases = "--draft-n-min --spec-draft-n-min",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = TN_GUESS_MOST,
     .fallback = "0",
     .help = "shorter guesses are not used",
     .env = "LLAMA_ARG_DRAFT_MIN LLAMA_ARG_SPEC_DRAFT_N_MIN"},
    {.name = "draft-branches",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 16,
     .fallback = "0",
     .help = "guesses of a draft model or a head are trees with up to N branches beside their first path; recurrent "
             "models have none"},
    {.name = "draft-fixed",
     .kind = OPTION_FLAG,
     .help = "always guess --draft-max tokens, even if that is slower: for measurements and tests"},
    {.name = "draft-p-min",
     .aliases = "--spec-draft-p-min",
     .value = "P",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1,
     .fallback = "0",
     .help = "a guess ends before a token that is less probable than this",
     .env = "LLAMA_ARG_SPEC_DRAFT_P_MIN"},
    {.name = "gpu-layers-draft",
     .letter = "ngld",
     .aliases = "--n-gpu-layers-draft --spec-draft-ngl",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1 << 20,
     .fallback = "-1",
     .words = "auto=-1 all=1048576",
     .help = "number of the draft model's layers on GPUs; auto or -1 for as many as fit",
     .env = "LLAMA_ARG_N_GPU_LAYERS_DRAFT"},
    {.name = "device-draft",
     .letter = "devd",
     .aliases = "--spec-draft-device",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "the device of the draft model; otherwise those of the model"},
    {.name = "spec-ngram-size-n",
     .aliases = "--spec-ngram-simple-size-n --spec-ngram-map-k-size-n --spec-ngram-map-k4v-size-n",
     .value = "N",
     .kind = OPTION_INT,
     .min = 2,
     .max = 1024,
     .fallback = "3",
     .help = "length of the match with earlier text in tokens, for --spec-type ngram; above 8 is 8"},
    {0},
};
const struct option_group speculation_options = {"Speculative decoding", option_list};

/* Whether the file is an EAGLE-3 head; `session` then gets the layers that it reads, and may be NULL. */
static bool is_eagle3(const char *path, tn_session_params *session) {
    tn_gguf *file;
    if (!path || tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file) != TN_OK) return false;
    const bool is = strcmp(tn_gguf_get_cstr(file, "general.architecture", ""), "eagle3") == 0;
    const tn_gguf_arr *layers = is ? tn_gguf_get_arr(file, "eagle3.target_layers") : NULL;
    for (uint64_t i = 0; session && layers && i < layers->count && i < TN_STATE_LAYERS_MOST; i++) {
        session->state_layers[i] = (int32_t)tn_gguf_get_u32_at(file, "eagle3.target_layers", i, 0);
        session->n_state_layers = (int32_t)i + 1;
    }
    tn_gguf_close(file);
    return is;
}

static tn_spec_kind kind_from(const struct args *args) {
    const char *text = args_text(args, "spec-type"), *path = args_text(args, "model-draft");
    if (strcmp(text, "auto") == 0)
        return !path ? TN_SPEC_NONE : is_eagle3(path, NULL) ? TN_SPEC_EAGLE3 : TN_SPEC_DRAFT;
    if (strcmp(text, "eagle3") == 0 || strcmp(text, "draft-eagle3") == 0) return TN_SPEC_EAGLE3;
    if (strncmp(text, "ngram", 5) == 0) return TN_SPEC_NGRAM;
    if (strcmp(text, "mtp") == 0 || strcmp(text, "draft-mtp") == 0) return TN_SPEC_MTP;
    return strcmp(text, "none") == 0 ? TN_SPEC_NONE : TN_SPEC_DRAFT;
}

bool speculation_has_draft(tn_spec_kind kind) {
    return kind == TN_SPEC_DRAFT || kind == TN_SPEC_MTP || kind == TN_SPEC_EAGLE3;
}

static tn_spec_params speculation_params(const struct args *args) {
    const int32_t ngram = (int32_t)args_int(args, "spec-ngram-size-n");
    return (tn_spec_params){.kind = kind_from(args),
                            .n_max = (int32_t)args_int(args, "draft-max"),
                            .n_min = (int32_t)args_int(args, "draft-min"),
                            .p_min = (float)args_real(args, "draft-p-min"),
                            .fixed = args_flag(args, "draft-fixed"),
                            .ngram = ngram < 8 ? ngram : 8};
}

/* The draft model of --hf-repo-draft becomes that of --model-draft. */
static int fetch_draft(const struct args *args) {
    const char *repo = args_text(args, "hf-repo-draft");
    if (!repo || args_was_set(args, "model-draft")) return EXIT_OK; /* fetched already */
    if (args_text(args, "model-draft")) return fail_usage(args, "use either --model-draft or --hf-repo-draft");
    char *fetched = args_keep(args, NULL, HUB_PATH);
    if (!fetched) return fail("out of memory");
    int code = hub_fetch(args, repo, NULL, fetched);
    if (!code) args_set(args, "model-draft", fetched);
    return code;
}

/* Both types of the draft's cache. */
static int read_draft_cache(const struct args *args, tn_type *k, tn_type *v) {
    static const char *const names[] = {"cache-type-k-draft", "cache-type-v-draft"};
    tn_type *const types[] = {k, v};
    for (int i = 0; i < 2; i++) {
        const char *name = args_text(args, names[i]) ? names[i] : names[0];
        if (tn_cache_type_parse(args_text(args, name), types[i]) != TN_OK)
            return fail_usage(args, "--%s %s: %s", name, args_text(args, name), tn_error());
    }
    return EXIT_OK;
}

int speculation_read(const struct args *args, tn_spec_params *p) {
    tn_type k, v;
    int code = fetch_draft(args);
    if (!code) code = read_draft_cache(args, &k, &v);
    *p = speculation_params(args);
    if (code) return code;
    if (p->n_min > p->n_max)
        return fail_usage(args, "--draft-min %d is more than --draft-max %d", p->n_min, p->n_max);
    const char *path = args_text(args, "model-draft");
    if (p->kind == TN_SPEC_DRAFT && !path)
        return fail_usage(args, "--spec-type draft needs a draft model: -md FILE or -hfd OWNER/REPO");
    if (p->kind == TN_SPEC_EAGLE3 && !path) return fail_usage(args, "--spec-type eagle3 needs a head: -md FILE");
    if ((p->kind == TN_SPEC_DRAFT || p->kind == TN_SPEC_MTP) && is_eagle3(path, NULL))
        return fail_usage(args, "%s is an EAGLE-3 head: use --spec-type eagle3", path);
    return EXIT_OK;
}

int speculation_prepare(const struct args *args, tn_session_params *session) {
    tn_spec_params p;
    const int code = speculation_read(args, &p);
    session->n_guess = !code && p.kind != TN_SPEC_NONE ? p.n_max : 0;
    session->n_branches = session->n_guess ? (int32_t)args_int(args, "draft-branches") : 0;
    session->states = p.kind == TN_SPEC_MTP;
    session->n_state_layers = 0;
    if (!code && p.kind == TN_SPEC_EAGLE3) {
        session->states = true;
        if (!is_eagle3(args_text(args, "model-draft"), session))
            return fail("%s is not an EAGLE-3 head", args_text(args, "model-draft"));
    }
    return code;
}

/* ---- The draft model ---- */

void speculation_draft_params(const struct args *args, const tn_session_params *session, tn_session_params *draft) {
    const char *device = args_text(args, "device-draft");
    *draft = tn_session_params_default();
    (void)read_draft_cache(args, &draft->cache_k, &draft->cache_v); /* speculation_read() has checked them */
    draft->n_ctx = session->n_ctx;
    draft->n_batch = session->n_batch;
    draft->n_ubatch = session->n_ubatch;
    draft->n_seqs = session->n_seqs;
    draft->n_outputs = session->n_seqs;
    draft->n_guess = (int32_t)args_int(args, "draft-max");
    draft->n_threads = session->n_threads;
    draft->threads = session->threads;
    draft->n_gpu_layers = (int32_t)args_int(args, "gpu-layers-draft");
    draft->states = session->states;
    draft->abort = session->abort;
    draft->user = session->user;
    if (device)
        draft->devices[0] = strcmp(device, "none") == 0 ? "cpu" : device;
    else
        memcpy(draft->devices, session->devices, sizeof draft->devices);
}

static tn_status open_draft(const struct args *args, const tn_session *session, tn_threadpool *threads,
                            struct speculation *s) {
    tn_session_params main_params = tn_session_get_params(session), p;
    tn_session_plan *plan = NULL;
    tn_fit fit = {0};
    main_params.threads = threads;
    speculation_draft_params(args, &main_params, &p);
    /* Layers for further tokens are in the model's own file, unless another one is named. */
    const char *path = args_text(args, "model-draft");
    if (!path) path = tn_gguf_path(tn_model_file(tn_session_model(session)));
    const tn_model_params model = {
        .head = s->params.kind == TN_SPEC_MTP,
        .target = s->params.kind == TN_SPEC_EAGLE3 ? tn_session_model(session) : NULL,
    };
    tn_status status = tn_model_open(path, &model, &s->model);
    if (status == TN_OK) status = tn_session_plan_new(s->model, &p, &plan);
    if (status == TN_OK) status = tn_session_plan_fit(plan, &fit);
    for (size_t i = 0; i < fit.n_devices; i++) {
        const tn_fit_device *d = &fit.devices[i];
        s->planned_bytes += d->weights + d->cache + d->compute + d->scratch + d->staging + d->own;
    }
    if (status == TN_OK) status = tn_session_new(plan, &s->draft);
    tn_fit_free(&fit);
    tn_session_plan_free(plan);
    return status == TN_OK ? TN_OK : tn_fail_more(status, " (the draft model)");
}

tn_status speculation_start(const struct args *args, tn_session *session, tn_threadpool *threads,
                            struct speculation *s) {
    *s = (struct speculation){.params = speculation_params(args)};
    if (s->params.kind == TN_SPEC_NONE) return TN_OK;
    tn_status status = speculation_has_draft(s->params.kind) ? open_draft(args, session, threads, s) : TN_OK;
    s->params.draft = s->draft;
    if (status == TN_OK) status = tn_speculator_new(session, &s->params, &s->speculator);
    s->planned_bytes += tn_speculator_bytes(s->speculator);
    if (status != TN_OK) speculation_close(s);
    return status;
}

int speculation_open(const struct args *args, tn_session *session, tn_threadpool *threads, struct speculation *s) {
    const tn_status status = speculation_start(args, session, threads, s);
    return status == TN_OK ? EXIT_OK
                           : fail_status(status, "--spec-type %s", tn_spec_kind_name(speculation_params(args).kind));
}

double speculation_tokens_per_step(const tn_spec_stats *x) {
    return x->steps ? (double)(x->steps + x->accepted) / (double)x->steps : 0;
}

json_t *speculation_acceptance(const tn_spec_stats *x) {
    json_t *list = json_array();
    for (int i = 0; list && i < TN_GUESS_MOST && x->tried[i]; i++)
        json_array_append_new(list, json_real((double)x->right[i] / (double)x->tried[i]));
    return list;
}

void speculation_print_stats(const tn_speculator *speculator) {
    const tn_spec_stats x = tn_speculator_stats(speculator);
    progress_hide();
    if (!speculator) {
        fprintf(stderr, "no tokens were guessed: --spec-type says how to guess\n");
        return;
    }
    fprintf(stderr, "%llu steps, %.2f tokens per step; %llu tokens guessed in %.3f s, %llu right; %.3f s saved\n",
            (unsigned long long)x.steps, speculation_tokens_per_step(&x), (unsigned long long)x.guessed,
            (double)x.propose_ns * 1e-9, (unsigned long long)x.accepted, (double)x.saved_ns * 1e-9);
    for (int i = 0; i < TN_GUESS_MOST && x.tried[i]; i++)
        fprintf(stderr, "%s%.0f%% of %llu",
                i ? ", " : "right by position: ", 100.0 * (double)x.right[i] / (double)x.tried[i],
                (unsigned long long)x.tried[i]);
    if (x.tried[0]) fputc('\n', stderr);
}

void speculation_close(struct speculation *s) {
    tn_speculator_free(s->speculator);
    tn_session_free(s->draft);
    tn_model_close(s->model);
    *s = (struct speculation){0};
}
