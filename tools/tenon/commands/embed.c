/* tenon embed: embedding vectors of texts. */
#include "cli/text_input.h"
#include "engine/load_options.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    tn_pooling pooling;
} poolings[] = {{"none", TN_POOLING_NONE}, {"mean", TN_POOLING_MEAN}, {"cls", TN_POOLING_CLS},
                {"last", TN_POOLING_LAST}, {"rank", TN_POOLING_RANK}, {"model", TN_POOLING_MODEL}};

struct embed_output {
    bool json;
    const char *prompt; /* before every text; "" for none */
    const char *query;  /* rank the texts by their relevance to it; NULL: no ranking */
    int norm;
    size_t count; /* rows so far */
    int32_t size;
    float *rows; /* kept for the comparison, else NULL */
};

static void print_row(const struct embed_output *o, size_t text, const float *row) {
    if (o->json) printf("%s{\"index\":%zu,\"text\":%zu,\"embedding\":[", o->count ? ",\n" : "", o->count, text);
    for (int32_t i = 0; i < o->size; i++) printf("%s%.9g", i == 0 ? "" : o->json ? "," : " ", (double)row[i]);
    fputs(o->json ? "]}" : "\n", stdout);
}

/* Appends the rows of one text: a single row, or one per token without pooling; its relevance when ranking. */
static int embed_text(tn_session *session, struct embed_output *o, size_t index, const char *text, size_t length) {
    tn_tokens tokens = {0};
    const tn_model *model = tn_session_model(session);
    const tn_tokenizer *tokenizer = tn_model_tokenizer(model);
    if (!tokenizer) return fail("the model has no tokenizer");
    tn_status status = TN_OK;
    if (o->query) {
        status = tn_rank_tokens(model, o->query, strlen(o->query), text, length, &tokens);
    } else if (!*o->prompt) {
        status = tn_tokenizer_encode(tokenizer, text, length, TN_ENCODE_ADD_SPECIAL, &tokens);
    } else {
        char *whole;
        int made = asprintf(&whole, "%s%.*s", o->prompt, (int)length, text);
        if (made < 0) return fail("out of memory");
        status = tn_tokenizer_encode(tokenizer, whole, (size_t)made, TN_ENCODE_ADD_SPECIAL, &tokens);
        free(whole);
    }
    int code = EXIT_OK;
    tn_session_clear(session);
    if (status == TN_OK && !tokens.count) {
        code = fail("text %zu is empty", index);
    } else if (status == TN_OK) {
        tn_batch batch = {.n_tokens = (int32_t)tokens.count, .tokens = tokens.ids};
        status = tn_session_decode(session, &batch);
    }
    for (int32_t i = 0; !code && status == TN_OK && i < tn_session_output_count(session); i++, o->count++) {
        float *row = tn_session_embedding(session, i);
        if (o->query) row[0] = tn_session_relevance(session, i);
        tn_embedding_normalize(row, o->size, o->norm);
        if (!o->rows) {
            print_row(o, index, row);
            continue;
        }
        float *grown = realloc(o->rows, (o->count + 1) * (size_t)o->size * sizeof *grown);
        if (!grown) {
            code = fail("out of memory");
            break;
        }
        o->rows = grown;
        memcpy(o->rows + o->count * (size_t)o->size, row, (size_t)o->size * sizeof *row);
    }
    if (!code && status != TN_OK) code = fail_status(status, "text %zu", index);
    tn_tokens_free(&tokens);
    return code;
}

static double cosine(const float *a, const float *b, int32_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static void print_similarities(const struct embed_output *o) {
    for (size_t i = 0; i < o->count; i++)
        for (size_t k = 0; k < o->count; k++)
            printf("%.6f%c", cosine(o->rows + i * (size_t)o->size, o->rows + k * (size_t)o->size, o->size),
                   k + 1 < o->count ? ' ' : '\n');
}

struct ranked_text {
    size_t index;
    float score;
};

static int by_relevance(const void *a, const void *b) {
    const struct ranked_text *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* "score index" for each text, the most relevant first. */
static int print_ranking(const struct embed_output *o, bool json) {
    struct ranked_text *list = calloc(o->count + 1, sizeof *list);
    if (!list) return fail("out of memory");
    for (size_t i = 0; i < o->count; i++) list[i] = (struct ranked_text){i, o->rows[i * (size_t)o->size]};
    qsort(list, o->count, sizeof *list, by_relevance);
    if (json) fputs("{\"object\":\"list\",\"results\":[", stdout);
    for (size_t i = 0; i < o->count; i++)
        printf(json ? "%s{\"relevance_score\":%.9g,\"index\":%zu}" : "%s%.6f %zu\n", json && i ? "," : "",
               (double)list[i].score, list[i].index);
    if (json) fputs("]}\n", stdout);
    free(list);
    return EXIT_OK;
}

/* The text that the model's authors put before texts of a kind ("query"), or an exit code. */
static int find_prompt(const tn_gguf *file, const char *name, const char **text) {
    static const char prefix[] = "sentence_transformers.prompt.";
    char key[128], names[256] = "";
    snprintf(key, sizeof key, "%s%.80s", prefix, name);
    *text = tn_gguf_get_cstr(file, key, NULL);
    if (*text) return EXIT_OK;
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const char *other = tn_gguf_key_at(file, i)->key.data;
        size_t used = strlen(names);
        if (strncmp(other, prefix, sizeof prefix - 1) == 0)
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", other + sizeof prefix - 1);
    }
    return fail("the model has no prompt \"%s\"; it has %s", name, *names ? names : "none");
}

static int embed_all(const struct args *args, tn_session *session, const char *lines, size_t size) {
    tn_session_params p = tn_session_get_params(session);
    bool scores = p.pooling == TN_POOLING_RANK;
    struct embed_output o = {.json = args_flag(args, "json"),
                             .norm = scores ? -1 : (int)args_int(args, "embd-normalize"),
                             .prompt = "",
                             .size = tn_session_embedding_size(session)};
    if (args_flag(args, "similarity")) {
        if (p.pooling == TN_POOLING_NONE || scores)
            return fail("--similarity compares whole texts: use --pooling mean, cls or last");
        o.json = false;
        o.rows = malloc(1);
    }
    int code = EXIT_OK;
    if (args_text(args, "prompt-name"))
        code = find_prompt(tn_model_file(tn_session_model(session)), args_text(args, "prompt-name"), &o.prompt);
    if (code) {
        free(o.rows);
        return code;
    }
    if (args_text(args, "rerank")) {
        free(o.rows);
        o.query = args_text(args, "rerank");
        o.json = false;
        o.rows = malloc(1);
    }
    if (o.json) fputs("{\"object\":\"list\",\"data\":[\n", stdout);
    size_t index = 0;
    int n_prompts = args_repeats(args, "prompt");
    for (int i = 0; i < n_prompts && !code; i++) {
        const char *text = args_text_at(args, "prompt", i);
        code = embed_text(session, &o, index++, text, strlen(text));
    }
    const char *separator = args_text(args, "embd-separator");
    for (const char *at = lines, *end = lines + size; at < end && !code && !interrupted();) {
        const char *stop = *separator ? memmem(at, (size_t)(end - at), separator, strlen(separator)) : NULL;
        size_t length = (size_t)((stop ? stop : end) - at);
        if (length) code = embed_text(session, &o, index++, at, length);
        at += length + (stop ? strlen(separator) : 0);
    }
    if (o.json) fputs("\n]}\n", stdout);
    if (o.query && !code)
        code = print_ranking(&o, args_flag(args, "json"));
    else if (o.rows && !code)
        print_similarities(&o);
    free(o.rows);
    return code ? code : interrupted() ? EXIT_INTERRUPTED : EXIT_OK;
}

static int run_embed(const struct args *args) {
    char buffer[4096];
    const char *path = find_model(args, buffer, sizeof buffer), *file = args_text(args, "file");
    if (!path) return EXIT_ERROR;
    tn_session_params params;
    int code = session_params_from(args, &params);
    if (code) return code;
    params.embeddings = true;
    if (!args_given(args, "ctx")) params.n_ctx = 4096; /* texts are embedded one by one */
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++)
        if (strcmp(args_text(args, "pooling"), poolings[i].name) == 0) params.pooling = poolings[i].pooling;
    if (args_text(args, "rerank")) params.pooling = TN_POOLING_RANK;
    char *lines = NULL;
    size_t size = 0;
    if (file && strcmp(file, "-") != 0)
        code = read_text_file(file, &lines, &size);
    else if (file || !args_repeats(args, "prompt"))
        code = read_input(&lines, &size);
    if (code) return code;
    struct loaded_model loaded;
    code = loaded_model_open(args, path, &params, &loaded);
    if (!code) code = embed_all(args, loaded.session, lines ? lines : "", size);
    free(lines);
    loaded_model_close(&loaded);
    return code;
}

static const struct option options[] = {
    {.name = "prompt",
     .letter = "p",
     .value = "TEXT",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "a text to embed"},
    {.name = "file",
     .letter = "f",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "read one text per line from FILE, - for standard input"},
    {.name = "embd-separator",
     .value = "TEXT",
     .kind = OPTION_TEXT,
     .fallback = "\n",
     .help = "separator between the texts of a file; empty to treat the file as one text"},
    {.name = "pooling",
     .value = "KIND",
     .kind = OPTION_TEXT,
     .choices = "none mean cls last rank model",
     .fallback = "model",
     .help = "how token vectors are combined; model: as the model file specifies, else mean for encoders and last "
             "for others",
     .env = "LLAMA_ARG_POOLING"},
    {.name = "embd-normalize",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 64,
     .fallback = "2",
     .help =
         "normalisation: 2 Euclidean, 1 taxicab, N for the N-norm, 0 to scale the largest value to 32760, -1 none"},
    {.name = "prompt-name",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .help = "put the model's own prompt of this name, such as query, before every text"},
    {.name = "rerank",
     .value = "QUERY",
     .kind = OPTION_TEXT,
     .help = "print the relevance of every text to QUERY and its index instead, the most relevant first; needs a "
             "model with a classifier"},
    {.name = "similarity", .kind = OPTION_FLAG, .help = "print the cosine similarity of every pair of texts instead"},
    OPTION_JSON,
    {0},
};
static const struct option_group *const groups[] = {&model_options, &load_options, &adapter_options, NULL};

const struct command command_embed = {
    .name = "embed",
    .summary = "turn texts into vectors",
    .arguments = "[MODEL]",
    .options = options,
    .groups = groups,
    .details = "Prints one line of numbers per text (with --pooling none: per token).\n\n"
               "Encoders such as BERT process a text as a whole, so it must not be longer than --ubatch tokens.",
    .examples = "tenon embed nomic.gguf -p \"search_query: what is a tenon?\"\n"
                "tenon embed nomic.gguf -f lines.txt --json\n"
                "tenon embed nomic.gguf -p \"a cat\" -p \"a kitten\" -p \"a lathe\" --similarity\n"
                "tenon embed reranker.gguf --rerank \"what is a tenon?\" -f passages.txt",
    .section = SECTION_TEXT,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run_embed,
};
