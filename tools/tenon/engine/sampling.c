/* Sampling options, and the samplers made from them. */
#include "engine/sampling.h"

#include "cli/text_input.h"

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
     .help = "keep the N most likely tokens, 0 for all"},
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
     .help = "number of recent tokens that the penalties consider"},
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
    {.name = "mirostat",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 2,
     .fallback = "0",
     .help = "mirostat version, 0 for off"},
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
    {"mirostat", offsetof(tn_sampler_params, mirostat), true},
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

void sampling_params(const struct args *args, tn_sampler_params *p) {
    *p = tn_sampler_params_default();
    set_seed(p, args_int(args, "seed"));
    for (size_t i = 0; i < FIELDS; i++)
        set_field(p, &fields[i],
                  fields[i].whole ? (double)args_int(args, fields[i].name) : args_real(args, fields[i].name));
}

bool sampling_set(tn_sampler_params *p, const char *name, const char *text, char *why, size_t size) {
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
            set_field(p, f, strtod(text, NULL));
        return true;
    }
    snprintf(why, size, "unknown setting '%s'", name);
    return false;
}

void sampling_print(FILE *out, const tn_sampler_params *p) {
    if (p->seed == TN_SEED_RANDOM)
        fprintf(out, "  %-18s random\n", "seed");
    else
        fprintf(out, "  %-18s %llu\n", "seed", (unsigned long long)p->seed);
    for (size_t i = 0; i < FIELDS; i++) {
        double value = fields[i].whole ? *(int32_t *)member(p, &fields[i]) : (double)*(float *)member(p, &fields[i]);
        fprintf(out, "  %-18s %.6g\n", fields[i].name, value);
    }
}

/* ---- Grammar ---- */

/* The grammar that the options give, as GBNF to be freed with tn_free(); NULL when they give none. */
static int read_grammar_options(const struct args *args, char **gbnf) {
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
    if (strncmp(name, "json", 4) == 0)
        status = tn_schema_to_grammar(text, gbnf);
    else if (!(*gbnf = tn_strdup(text)))
        status = TN_E_NOMEM;
    free(content);
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
    int code = read_grammar_options(args, &gbnf);
    if (code || !gbnf) return code;
    tn_status status = bind_grammar(sampler, gbnf, tn_model_tokenizer(model));
    tn_free(gbnf);
    return status == TN_OK ? EXIT_OK : fail_status(status, "grammar");
}

int sampling_new(const tn_sampler_params *params, const tn_model *model, tn_sampler **sampler) {
    tn_sampler_params p = *params;
    tn_pieces *pieces = NULL;
    tn_status status = TN_OK;
    *sampler = NULL;
    if (!tn_model_tokenizer(model)) return fail("the model has no tokenizer");
    if (p.dry_multiplier > 0) status = tn_pieces_from_tokenizer(tn_model_tokenizer(model), &pieces);
    p.pieces = pieces;
    if (status == TN_OK) status = tn_sampler_new(&p, (size_t)tn_model_get_info(model).n_vocab, sampler);
    tn_pieces_free(pieces);
    return status == TN_OK ? EXIT_OK : fail_status(status, "sampling");
}
