/* The GGUF name of the pre-tokenizer in a tokenizer.json: how text is split into words before merging. */
#include "convert/convert.h"

#include <stdio.h>
#include <string.h>

/* The steps of a pre_tokenizer or normalizer, flattened. */
struct pre_steps {
    char text[4096]; /* "Split:REGEX\n", "Digits:1\n", "ByteLevel:regex\n", … in order */
    size_t used;
};

/* Line ends within a pattern become "\\n": here they separate steps. */
static void add_pre_step(struct pre_steps *s, const char *kind, const char *detail) {
    size_t left = sizeof s->text - s->used, need = strlen(kind) + 2 * strlen(detail) + 3;
    if (need > left) { /* no known pre-tokenizer is that long */
        s->text[0] = '?';
        return;
    }
    char *to = s->text + s->used;
    to += sprintf(to, "%s:", kind);
    for (; *detail; detail++) {
        if (*detail == '\n') *to++ = '\\';
        *to++ = *detail == '\n' ? 'n' : *detail;
    }
    *to++ = '\n';
    *to = '\0';
    s->used = (size_t)(to - s->text);
}

static void flatten_steps(struct pre_steps *s, const json_t *step) {
    const char *type = json_string_value(json_object_get(step, "type"));
    if (!type) return;
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        json_t *inner;
        json_t *list = json_object_get(step, "pretokenizers");
        if (!list) list = json_object_get(step, "normalizers");
        json_array_foreach(list, i, inner) { flatten_steps(s, inner); }
    } else if (strcmp(type, "Split") == 0) {
        json_t *pattern = json_object_get(step, "pattern");
        const char *regex = json_string_value(json_object_get(pattern, "Regex"));
        if (!regex) regex = json_string_value(json_object_get(pattern, "String"));
        add_pre_step(s, type, regex ? regex : "?");
    } else if (strcmp(type, "Digits") == 0) {
        add_pre_step(s, type, json_is_true(json_object_get(step, "individual_digits")) ? "1" : "0");
    } else if (strcmp(type, "ByteLevel") == 0) {
        add_pre_step(s, type, json_is_false(json_object_get(step, "use_regex")) ? "bytes" : "regex");
    } else if (strcmp(type, "Punctuation") == 0) {
        const char *behavior = json_string_value(json_object_get(step, "behavior"));
        add_pre_step(s, type, behavior ? behavior : "?");
    } else {
        add_pre_step(s, type, "");
    }
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS(digits) "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(ending, digits)                                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending         \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES
#define BYTES "ByteLevel:bytes\n"
#define BLOOM "Split: ?[^(\\s|[.,!?…。，、।۔،])]+\n"

/* All steps of a known pre-tokenizer in canonical spelling, or with '*' at the end their beginning. */
static const struct known_steps {
    const char *steps, *name;
} known_steps[] = {
    {"ByteLevel:regex\n", "gpt-2"},
    {"Split:" GPT2 "\n" BYTES, "gpt-2"},
    {"Digits:1\nByteLevel:regex\n", "starcoder"},
    {"Split:\\p{N}\nByteLevel:regex\n", "starcoder"},
    {"Split:" CONTRACTIONS WORDS("\\p{N}{1,3}") "\n" BYTES, "llama-bpe"},
    {"Split:" CONTRACTIONS WORDS("\\p{N}") "\n" BYTES, "qwen2"},
    {"Split:[^\\n]+|[\\n]+\nSplit:" CONTRACTIONS WORDS("\\p{N}") "\n" BYTES, "laguna"},
    {"Split:" CASES(CONTRACTIONS "?", "\\p{N}{1,3}") "\n" BYTES, "gpt-4o"},
    {"Split:\\d{1,3}(?=(?:\\d{3})*\\b)\nSplit:" CASES(CONTRACTIONS "?", "\\p{N}{1,3}") "\n" BYTES, "tiny_aya"},
    {"Split:[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
     "\nSplit:" CASES(CONTRACTIONS "?", "\\p{N}") "\n" BYTES,
     "youtu"},
    {"Split:" CASES("", "\\p{N}") "\n" BYTES, "tekken"},
    {"Split:" CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES
     "\n" BYTES,
     "qwen35"},
    {"Split:" CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACES "\n" BYTES,
     "seed-coder"},
    {"Split:" CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]"
     "|\\s+(?!\\S)|\\s+\n" BYTES,
     "bailingmoe"},
    {"Split:" CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+\n" BYTES,
     "exaone-moe"},
    {"Split:" CONTRACTIONS
     "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|*",
     "jais-2"},
    {"Split:\\p{N}{1,3}\nSplit:" CONTRACTIONS WORDS("\\p{N}+") "\n" BYTES, "minicpm5"},
    {"Split:\\p{N}+\nSplit:(?=(\\d{3})+(?!\\d))\n" BYTES, "superbpe"},
    {BLOOM BYTES, "bloom"},
    {BLOOM "Digits:1\n" BYTES, "viking"},
    {BLOOM "Split:\\p{N}\n" BYTES, "viking"},
    {"Punctuation:contiguous\nByteLevel:regex\nDigits:0\nSplit:[0-9][0-9][0-9]\n", "falcon"},
    {"Split:[\\r\\n]\nSplit:\\s?\\p{L}+\nSplit:\\s?\\p{P}+\n*", "deepseek-coder"},
    {"Split:[\\r\\n]\nSplit:\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ*", "deepseek-llm"},
    {"Split:\\p{N}{1,3}\nSplit:[一-龥぀-ゟ゠-ヿ]+\n*", "deepseek-v3"},
};

/* Spellings of the same patterns. Possessive quantifiers match like greedy ones where what follows cannot match what
 * they have taken, which holds in all patterns of the table. */
static const struct spelling {
    const char *from, *to;
} spellings[] = {
    {"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", CONTRACTIONS},
    {"'(?i:[sdmt]|ll|ve|re)", CONTRACTIONS},
    {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", CONTRACTIONS},
    {"Split: ?[^(\\s|.,!?…。，、।۔،)]+", "Split: ?[^(\\s|[.,!?…。，、।۔،])]+"},
    {"Punctuation:Contiguous", "Punctuation:contiguous"},
    {"\r", "\\r"},
    {"{1}", ""},
    {"]?+", "]?"},
    {"]++", "]+"},
    {"]*+", "]*"},
    {"}++", "}+"},
};

static void replace_all(char *text, size_t size, const char *from, const char *to) {
    size_t n = strlen(from), m = strlen(to);
    for (char *at = text; (at = strstr(at, from)); at += m) {
        size_t rest = strlen(at + n) + 1;
        if ((size_t)(at - text) + m + rest > size) return; /* too long to be known */
        memmove(at + m, at + n, rest);
        memcpy(at, to, m);
    }
}

/* Names that also depend on normalization, merging and the architecture: how the table of pre-tokenizers calls the
 * same steps then. The first row that fits counts. */
static const struct name_variant {
    const char *name;
    enum { ANY, NFC, NO_NFC, IGNORE_MERGES, NO_IGNORE_MERGES } when;
    const char *arch; /* NULL: any */
    const char *variant;
} name_variants[] = {
    {"gpt-2", NO_NFC, "bert", "roberta-bpe"},
    {"gpt-2", NFC, "mpt", "mpt"},
    {"gpt-2", NFC, "modern-bert", "modern-bert"},
    {"gpt-2", NFC, NULL, "olmo"},
    {"starcoder", NFC, NULL, "command-r"},
    {"starcoder", ANY, "llama", "smollm"},
    {"llama-bpe", NO_IGNORE_MERGES, "glm4", "glm4"},
    {"llama-bpe", NO_IGNORE_MERGES, "glm4moe", "glm4"},
    {"llama-bpe", NO_IGNORE_MERGES, NULL, "dbrx"},
    {"gpt-4o", IGNORE_MERGES, NULL, "granite-embed-multi-97m"},
    {"qwen2", NO_NFC, NULL, "hunyuan"},
};

const char *hf_pre_name(const json_t *tokenizer, const char *arch, char *what, size_t size) {
    struct pre_steps s = {0}, normal = {0};
    flatten_steps(&s, json_object_get(tokenizer, "pre_tokenizer"));
    flatten_steps(&normal, json_object_get(tokenizer, "normalizer"));
    bool nfc = strstr(normal.text, "NFC:") != NULL;
    bool ignore_merges = json_is_true(json_object_get(json_object_get(tokenizer, "model"), "ignore_merges"));
    snprintf(what, size, "%s", s.text);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        replace_all(s.text, sizeof s.text, spellings[i].from, spellings[i].to);
    const char *name = NULL;
    for (size_t i = 0; i < sizeof known_steps / sizeof *known_steps && !name; i++) {
        size_t length = strlen(known_steps[i].steps);
        bool open = known_steps[i].steps[length - 1] == '*';
        if (open ? strncmp(known_steps[i].steps, s.text, length - 1) == 0 : strcmp(known_steps[i].steps, s.text) == 0)
            name = known_steps[i].name;
    }
    if (!name) return NULL;
    const bool holds[] = {true, nfc, !nfc, ignore_merges, !ignore_merges};
    for (size_t i = 0; i < sizeof name_variants / sizeof *name_variants; i++) {
        const struct name_variant *v = &name_variants[i];
        if (strcmp(v->name, name) == 0 && holds[v->when] && (!v->arch || strcmp(v->arch, arch) == 0))
            return v->variant;
    }
    return name;
}
