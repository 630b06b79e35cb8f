/* Sampling options, and the samplers made from them. */
#include "engine/sampling.h"

#include "cli/text_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct option sampling_table[] = {
    {.name = "seed",
     .letter = "s",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 9e15,
     .fallback = "-1",
     .help = "random seed, -1 for a new one each time"},
    {.name = "temp",
     .aliases = "--temperature",
     .value = "T",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 100,
     .fallback = "0.8",
     .help = "temperature, 0 to always take the most likely token"},
    {.name = "top-k",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = INT32_MAX,
     .fallback = "40",
     .words = "-1=0",
     .help = "keep the N most likely tokens, 0 for all",
     .env = "LLAMA_ARG_TOP_K"},
    {.name = "top-p",
     .value = "P",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1,
     .fallback = "0.95",
     .help = "keep the most likely tokens whose probabilities add up to P"},
    {.name = "min-p",
     .value = "P",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1,
     .fallback = "0.05",
     .help = "drop tokens less likely than P times the most likely one"},
    {.name = "typical",
     .aliases = "--typical-p",
     .value = "P",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1,
     .fallback = "1",
     .help = "locally typical sampling, 1 for off"},
    {.name = "top-n-sigma",
     .aliases = "--top-nsigma",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 100,
     .fallback = "0",
     .help = "keep tokens whose logits are within X standard deviations of the highest, 0 for off"},
    {.name = "xtc-probability",
     .value = "P",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1,
     .fallback = "0",
     .help = "chance of leaving out the most likely tokens (XTC), 0 for never"},
    {.name = "xtc-threshold",
     .value = "P",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 1,
     .fallback = "0.1",
     .help = "probability above which XTC may leave out a token"},
    {.name = "repeat-penalty",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0.01,
     .max = 100,
     .fallback = "1",
     .help = "penalty for recent tokens, 1 for none"},
    {.name = "repeat-last-n",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1 << 20,
     .fallback = "64",
     .words = "-1=65536",
     .help = "number of recent tokens that the penalties consider, -1 for 65536"},
    {.name = "frequency-penalty",
     .value = "X",
     .kind = OPTION_REAL,
     .min = -100,
     .max = 100,
     .fallback = "0",
     .help = "penalty for each earlier occurrence of a token"},
    {.name = "presence-penalty",
     .value = "X",
     .kind = OPTION_REAL,
     .min = -100,
     .max = 100,
     .fallback = "0",
     .help = "penalty for tokens that occurred before"},
    {.name = "dry-multiplier",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 100,
     .fallback = "0",
     .help = "penalty for continuing a repeated sequence (DRY), 0 for off"},
    {.name = "dry-base",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 1,
     .max = 100,
     .fallback = "1.75",
     .help = "growth of the DRY penalty with each repeated token"},
    {.name = "dry-allowed-length",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1 << 20,
     .fallback = "2",
     .help = "length of repeated sequences without a DRY penalty"},
    {.name = "dry-penalty-last-n",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1 << 20,
     .fallback = "4096",
     .words = "-1=65536",
     .help = "recent tokens that DRY considers, 0 for none, -1 for 65536"},
    {.name = "dry-sequence-breaker",
     .value = "TEXT",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "text that ends a sequence for DRY, instead of the default ones; none for no text"},
    {.name = "dynatemp-range",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 100,
     .fallback = "0",
     .help = "dynamic temperature: --temp plus or minus X by the entropy, 0 for off"},
    {.name = "dynatemp-exp",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 100,
     .fallback = "1",
     .help = "exponent of the entropy for --dynatemp-range"},
    {.name = "mirostat",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 2,
     .fallback = "0",
     .help = "mirostat version, 0 for off"},
    {.name = "mirostat-lr",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 10,
     .fallback = "0.1",
     .help = "learning rate of mirostat (eta)"},
    {.name = "mirostat-ent",
     .value = "X",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 100,
     .fallback = "5",
     .help = "bits per token that mirostat aims at (tau)"},
    {.name = "samplers",
     .value = "LIST",
     .kind = OPTION_TEXT,
     .help = "samplers in the order they are applied, separated by ; such as penalties;top_k;temperature"},
    {.name = "sampler-seq",
     .aliases = "--sampling-seq",
     .value = "LETTERS",
     .kind = OPTION_TEXT,
     .help = "the same in letters: e penalties, d dry, s top_n_sigma, k top_k, y typical, p top_p, m min_p, x xtc, "
             "t temperature"},
    {.name = "logit-bias",
     .letter = "l",
     .value = "ID+BIAS",
     .kind = OPTION_TEXT,
     .repeats = true,
     .help = "added to the logit of a token, e.g. 15043+1 or 15043-inf"},
    {.name = "ignore-eos", .kind = OPTION_FLAG, .help = "continue when the model would end the text"},
    {.name = "grammar", .value = "GBNF", .kind = OPTION_TEXT, .help = "generate only text that matches this grammar"},
    {.name = "grammar-file", .value = "FILE", .kind = OPTION_TEXT, .help = "read the grammar from FILE"},
    {.name = "json-schema",
     .letter = "j",
     .value = "SCHEMA",
     .kind = OPTION_TEXT,
     .help = "generate only JSON that matches this JSON schema; {} for any JSON"},
    {.name = "json-schema-file",
     .letter = "jf",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .help = "read the JSON schema from FILE"},
    {0},
};
const struct option_group sampling_options = {"Sampling", sampling_table};

/* Which member of the parameters an option sets. */
static const struct field {
    const char *name;
    size_t offset;
    bool whole; /* int32_t, otherwise float */
} fields[] = {
    {"temp", offsetof(tn_sampler_params, temperature), false},
    {"top-k", offsetof(tn_sampler_params, top_k), true},
    {"top-p", offsetof(tn_sampler_params, top_p), false},
    {"min-p", offsetof(tn_sampler_params, min_p), false},
    {"typical", offsetof(tn_sampler_params, typical_p), false},
    {"top-n-sigma", offsetof(tn_sampler_params, top_n_sigma), false},
    {"xtc-probability", offsetof(tn_sampler_params, xtc_probability), false},
    {"xtc-threshold", offsetof(tn_sampler_params, xtc_threshold), false},
    {"repeat-penalty", offsetof(tn_sampler_params, repeat_penalty), false},
    {"repeat-last-n", offsetof(tn_sampler_params, penalty_window), true},
    {"frequency-penalty", offsetof(tn_sampler_params, frequency_penalty), false},
    {"presence-penalty", offsetof(tn_sampler_params, presence_penalty), false},
    {"dry-multiplier", offsetof(tn_sampler_params, dry_multiplier), false},
    {"dry-base", offsetof(tn_sampler_params, dry_base), false},
    {"dry-allowed-length", offsetof(tn_sampler_params, dry_allowed_length), true},
    {"dry-penalty-last-n", offsetof(tn_sampler_params, dry_window), true},
    {"dynatemp-range", offsetof(tn_sampler_params, dynamic_range), false},
    {"dynatemp-exp", offsetof(tn_sampler_params, dynamic_exponent), false},
    {"mirostat", offsetof(tn_sampler_params, mirostat), true},
    {"mirostat-lr", offsetof(tn_sampler_params, mirostat_eta), false},
    {"mirostat-ent", offsetof(tn_sampler_params, mirostat_tau), false},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static void *member(const tn_sampler_params *p, const struct field *f) { return (char *)(uintptr_t)p + f->offset; }

static void set_seed(tn_sampler_params *p, int64_t seed) { p->seed = seed < 0 ? TN_SEED_RANDOM : (uint64_t)seed; }

static void set_field(tn_sampler_params *p, const struct field *f, double value) {
    if (f->whole)
        *(int32_t *)member(p, f) = (int32_t)value;
    else
        *(float *)member(p, f) = (float)value;
}

/* One sampler of the chain, by its name or another one in use. */
static int add_sampler(const struct args *args, const char *name, size_t length, tn_sampler_params *p) {
    char text[32];
    tn_sampler_kind kind;
    snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : sizeof text - 1), name);
    for (char *c = text; *c; c++) *c = *c == '-' ? '_' : *c;
    const char *known = strcmp(text, "typ_p") == 0 || strcmp(text, "typical_p") == 0 ? "typical"
                        : strcmp(text, "temp") == 0                                  ? "temperature"
                        : strcmp(text, "top_nsigma") == 0                            ? "top_n_sigma"
                                                                                     : text;
    if (tn_sampler_kind_from_name(known, &kind) != TN_OK) return fail_usage(args, "--samplers: %s", tn_error());
    for (size_t i = 0; i < p->n_chain; i++)
        if (p->chain[i] == kind) return fail_usage(args, "--samplers: %s is listed twice", text);
    p->chain[p->n_chain++] = kind;
    return EXIT_OK;
}

static int read_chain(const struct args *args, tn_sampler_params *p) {
    static const char letters[] = "edskypmxt";
    static const char *const names[] = {"penalties", "dry",   "top_n_sigma", "top_k",      "typical",
                                        "top_p",     "min_p", "xtc",         "temperature"};
    const char *list = args_text(args, "samplers"), *sequence = args_text(args, "sampler-seq");
    int code = EXIT_OK;
    if (list && sequence) return fail_usage(args, "use either --samplers or --sampler-seq, not both");
    if (list || sequence) p->n_chain = 0;
    while (list && *list && !code) {
        const size_t length = strcspn(list, ";,");
        code = add_sampler(args, list, length, p);
        list += length + (list[length] != '\0');
    }
    for (; sequence && *sequence && !code; sequence++) {
        const char *letter = strchr(letters, *sequence);
        if (!letter)
            return fail_usage(args, "--sampler-seq: there is no sampler '%c'; the letters are %s", *sequence,
                              letters);
        code = add_sampler(args, names[letter - letters], strlen(names[letter - letters]), p);
    }
    return code;
}

static int read_bias_options(const struct args *args, tn_sampler_params *p) {
    const int count = args_repeats(args, "logit-bias");
    tn_logit_bias *list = count ? args_keep(args, NULL, (size_t)count * sizeof *list) : NULL;
    if (count && !list) return fail("out of memory");
    for (int i = 0; i < count; i++) {
        const char *text = args_text_at(args, "logit-bias", i);
        char *sign, *end = NULL;
        const long token = strtol(text, &sign, 10);
        const float bias = *sign == '+' || *sign == '-' ? strtof(sign, &end) : 0;
        if (sign == text || !end || end == sign || *end || token < 0 || token > INT32_MAX)
            return fail_usage(args, "--logit-bias takes a token and a bias such as 15043+1, not \"%s\"", text);
        list[i] = (tn_logit_bias){(tn_token)token, bias};
    }
    p->logit_bias = list;
    p->n_logit_bias = (size_t)count;
    return EXIT_OK;
}

static int read_breakers(const struct args *args, tn_sampler_params *p) {
    const int count = args_repeats(args, "dry-sequence-breaker");
    if (!count) return EXIT_OK;
    const char **list = args_keep(args, NULL, (size_t)count * sizeof *list);
    if (!list) return fail("out of memory");
    p->n_dry_breakers = 0;
    for (int i = 0; i < count; i++) {
        const char *text = escaped_text_at(args, "dry-sequence-breaker", i);
        if (!text) return fail("out of memory");
        if (strcmp(text, "none") != 0) list[p->n_dry_breakers++] = text;
    }
    p->dry_breakers = list;
    return EXIT_OK;
}

int sampling_params(const struct args *args, tn_sampler_params *p) {
    *p = tn_sampler_params_default();
    set_seed(p, args_int(args, "seed"));
    for (size_t i = 0; i < FIELDS; i++)
        set_field(p, &fields[i],
                  fields[i].whole ? (double)args_int(args, fields[i].name) : args_real(args, fields[i].name));
    int code = read_chain(args, p);
    if (!code) code = read_bias_options(args, p);
    return code ? code : read_breakers(args, p);
}

/* "temperature" is --temp: a setting has the names of its option. */
static const char *setting_name(const char *name) {
    char alias[64];
    const int length = snprintf(alias, sizeof alias, "--%s", name);
    for (const struct option *o = sampling_table; o->name; o++) {
        const char *found = o->aliases ? strstr(o->aliases, alias) : NULL;
        if (found && (found[length] == ' ' || found[length] == '\0')) return o->name;
    }
    return name;
}

bool sampling_set(tn_sampler_params *p, const char *name, const char *text, char *why, size_t size) {
    name = setting_name(name);
    for (const struct option *o = sampling_table; o->name; o++) {
        const struct field *f = fields;
        bool seed = strcmp(name, "seed") == 0;
        if (strcmp(o->name, name) != 0) continue;
        while (f < fields + FIELDS && strcmp(f->name, name) != 0) f++;
        if (!seed && f == fields + FIELDS) break;
        int used = snprintf(why, size, "%s ", name);
        if (option_value_wrong(o, text, why + used, size - (size_t)used)) return false;
        if (seed)
            set_seed(p, strtoll(text, NULL, 10));
        else
            set_field(p, f, f->whole ? (double)option_int(o, text) : strtod(text, NULL));
        return true;
    }
    snprintf(why, size, "unknown setting '%s'", name);
    return false;
}

bool sampling_print(FILE *out, const tn_sampler_params *p, const char *only) {
    const char *name = only ? setting_name(only) : NULL;
    const bool seed = !name || strcmp(name, "seed") == 0;
    bool printed = seed;
    if (seed && p->seed == TN_SEED_RANDOM)
        fprintf(out, "  %-18s random\n", "seed");
    else if (seed)
        fprintf(out, "  %-18s %llu\n", "seed", (unsigned long long)p->seed);
    for (size_t i = 0; i < FIELDS; i++) {
        double value = fields[i].whole ? *(int32_t *)member(p, &fields[i]) : (double)*(float *)member(p, &fields[i]);
        if (name && strcmp(name, fields[i].name) != 0) continue;
        fprintf(out, "  %-18s %.6g\n", fields[i].name, value);
        printed = true;
    }
    return printed;
}

/* ---- Grammar ---- */

int sampling_grammar_text(const struct args *args, char **gbnf) {
    static const char *const names[] = {"grammar", "grammar-file", "json-schema", "json-schema-file"};
    const char *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!args_text(args, names[i])) continue;
        if (name) return fail_usage(args, "use either --%s or --%s, not both", name, names[i]);
        name = names[i];
    }
    *gbnf = NULL;
    if (!name) return EXIT_OK;
    char *content = NULL;
    size_t size;
    const char *text = args_text(args, name);
    if (strstr(name, "-file")) {
        int code = read_text_file(text, &content, &size);
        if (code) return code;
        text = content;
    }
    tn_status status = TN_OK;
    char *notes = NULL;
    if (strncmp(name, "json", 4) == 0)
        status = tn_schema_to_grammar_relaxed(text, gbnf, &notes);
    else if (!(*gbnf = tn_strdup(text)))
        status = TN_E_NOMEM;
    free(content);
    if (notes) {
        notes[strcspn(notes, "\n")] = '\0';
        warn("--%s: ignored: %s", name, notes);
    }
    tn_free(notes);
    return status == TN_OK ? EXIT_OK : fail_status(status, "--%s", name);
}

/* The grammar state holds references to the grammar and the pieces, so both can be freed here. */
static tn_status bind_grammar(tn_sampler *sampler, const char *gbnf, const tn_tokenizer *tokenizer) {
    tn_grammar *grammar = NULL;
    tn_pieces *pieces = NULL;
    tn_grammar_state *state = NULL;
    tn_status status = tn_grammar_new(gbnf, NULL, &grammar);
    if (status == TN_OK) status = tn_pieces_from_tokenizer(tokenizer, &pieces);
    if (status == TN_OK)
        status = tn_grammar_state_new(&(tn_grammar_state_params){.grammar = grammar, .pieces = pieces}, &state);
    if (status == TN_OK && (status = tn_sampler_set_grammar(sampler, state)) != TN_OK) tn_grammar_state_free(state);
    tn_pieces_free(pieces);
    tn_grammar_free(grammar);
    return status;
}

int sampling_grammar(const struct args *args, const tn_model *model, tn_sampler *sampler) {
    char *gbnf;
    int code = sampling_grammar_text(args, &gbnf);
    if (code || !gbnf) return code;
    tn_status status = bind_grammar(sampler, gbnf, tn_model_tokenizer(model));
    tn_free(gbnf);
    return status == TN_OK ? EXIT_OK : fail_status(status, "grammar");
}

/* The given biases, and a ban of every token that ends a text. */
static int ban_ends(const tn_tokenizer *tokenizer, tn_sampler_params *p, tn_logit_bias **biases) {
    const int32_t n = tn_tokenizer_size(tokenizer);
    size_t count = p->n_logit_bias;
    for (tn_token t = 0; t < n; t++) count += tn_token_is_end(tokenizer, t);
    if (!(*biases = tn_calloc(count + 1, sizeof **biases))) return fail("out of memory");
    if (p->n_logit_bias) memcpy(*biases, p->logit_bias, p->n_logit_bias * sizeof **biases);
    for (tn_token t = 0; t < n; t++)
        if (tn_token_is_end(tokenizer, t)) (*biases)[p->n_logit_bias++] = (tn_logit_bias){t, -INFINITY};
    p->logit_bias = *biases;
    return EXIT_OK;
}

int sampling_new(const struct args *args, const tn_sampler_params *params, const tn_model *model,
                 tn_sampler **sampler) {
    tn_sampler_params p = *params;
    tn_pieces *pieces = NULL;
    tn_logit_bias *biases = NULL;
    tn_status status = TN_OK;
    *sampler = NULL;
    if (!tn_model_tokenizer(model)) return fail("the model has no tokenizer");
    if (args_flag(args, "ignore-eos")) {
        int code = ban_ends(tn_model_tokenizer(model), &p, &biases);
        if (code) return code;
    }
    if (p.dry_multiplier > 0) status = tn_pieces_from_tokenizer(tn_model_tokenizer(model), &pieces);
    p.pieces = pieces;
    if (status == TN_OK) status = tn_sampler_new(&p, (size_t)tn_model_get_info(model).n_vocab, sampler);
    tn_pieces_free(pieces);
    tn_free(biases);
    return status == TN_OK ? EXIT_OK : fail_status(status, "sampling");
}
