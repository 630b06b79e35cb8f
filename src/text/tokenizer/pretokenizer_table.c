/* The table of pre-tokenizers: how byte-level BPE models split text into words before merging, by the name in
 * tokenizer.ggml.pre.
 *
 * The patterns are those of the models' tokenizer.json in PCRE2's syntax (matched with UTF and UCP). Each stage
 * splits the pieces of the previous stage into its matches and the text between them. Case-insensitive groups are
 * written out as in their authors' ports. A few patterns that would need quadratic time are written differently or,
 * for groups of digits from the right, replaced by code. */
#include "text/tokenizer/internal.h"
#include "text/tokenizer/pretokenizer.h"

#include <string.h>

#define CONTRACTION "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
#define LINES_AND_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* The GPT-4 family: a word includes one leading sign, numbers are split into groups of `digits`. */
#define GPT4(digits)                                                                                                 \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
/* The GPT-4o family: words are also split where lower case changes to upper case. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O(ending, digits)                                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ending         \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES
#define CJK_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define DEEPSEEK3(ending)                                                                                            \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "            \
    "?[\\p{P}\\p{S}]+" ending
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{0964}\\x{06D4}\\x{060C})]+"

/* Letters of the scripts that have case, as DeepSeek's first tokenizers list them. */
#define DEEPSEEK_LETTERS                                                                                             \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}" \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}"   \
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}"     \
    "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"                \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}"                \
    "\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}"        \
    "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}"       \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}"        \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"                  \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"        \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"                 \
    "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}"                \
    "\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}"        \
    "\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_CJK "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* Kimi separates runs of Han. The letters of GPT-4o without Han are written as a negated set, because PCRE2 has no
 * intersection of sets; the general categories partition all characters. */
#define KIMI_UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]"
#define KIMI_LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]"

static const char *const stages_default[] = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL};
static const char *const stages_gpt2[] = {GPT2, NULL};
static const char *const stages_digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const stages_falcon[] = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const stages_llama3[] = {GPT4("\\p{N}{1,3}"), NULL};
static const char *const stages_qwen2[] = {GPT4("\\p{N}"), NULL};
static const char *const stages_qwen35[] = {
    CONTRACTION
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES,
    NULL};
static const char *const stages_laguna[] = {"[^\\n]+|\\n+", GPT4("\\p{N}"), NULL};
static const char *const stages_minicpm5[] = {"\\p{N}{1,3}", GPT4("\\p{N}+"), NULL};
static const char *const stages_jais2[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
                "|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)"
                "|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s",
    NULL};
static const char *const stages_bailing[] = {
    CONTRACTION
    "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    NULL};
static const char *const stages_seed_coder[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES_AND_SPACES, NULL};
static const char *const stages_exaone_moe[] = {
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}(?:\\p{M}| ?\\p{L})*+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?"
                "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    NULL};
static const char *const stages_deepseek_llm[] = {"[\\r\\n]",
                                                  "\\s?[" DEEPSEEK_LETTERS "]+",
                                                  "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}"
                                                  "\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
                                                  "(?<!\\s)\\s++\\z", /* \s+$, without trying every suffix */
                                                  DEEPSEEK_CJK,
                                                  "\\p{N}+",
                                                  NULL};
static const char *const stages_deepseek_coder[] = {"[\\r\\n]",   "\\s?\\p{L}+", "\\s?\\p{P}+",
                                                    DEEPSEEK_CJK, "\\p{N}",      NULL};
static const char *const stages_deepseek3[] = {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3("[\\r\\n]*|" LINES_AND_SPACES),
                                               NULL};
static const char *const stages_spark[] = {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3("|[\\r\\n]|\\s+(?!\\S)|\\s+"), "\\p{N}",
                                           NULL};
static const char *const stages_afmoe[] = {TN__PRE_DIGIT_GROUPS,
                                           "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{"
                                           "309F}\\x{30A0}-\\x{30FF}\\x{FF65}-\\x{FF9F}"
                                           "\\x{2F00}-\\x{2FDF}\\x{0E40}-\\x{0E7F}\\x{0E80}-\\x{0EFF}\\x{1780}-\\x{"
                                           "17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}"
                                           "\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+",
                                           DEEPSEEK3("[\\r\\n]*|" LINES_AND_SPACES), NULL};
static const char *const stages_gpt4o[] = {GPT4O("(?:" CONTRACTION ")?", "\\p{N}{1,3}"), NULL};
static const char *const stages_tekken[] = {GPT4O("", "\\p{N}"), NULL};
static const char *const stages_aya[] = {TN__PRE_DIGIT_GROUPS_WORD, GPT4O("(?:" CONTRACTION ")?", "\\p{N}{1,3}"),
                                         NULL};
static const char *const stages_youtu[] = {
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+"
    "|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}"
    "\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" CJK_KANA,
    GPT4O("(?:" CONTRACTION ")?", "\\p{N}"), NULL};
static const char *const stages_kimi[] = {"\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER
                                          "+(?:" CONTRACTION ")?|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER
                                          "*(?:" CONTRACTION
                                          ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES,
                                          NULL};
static const char *const stages_bloom[] = {BLOOM, NULL};
static const char *const stages_viking[] = {BLOOM, "\\p{N}", NULL};
static const char *const stages_superbpe[] = {"\\p{N}+", TN__PRE_DIGIT_GROUPS, NULL};
static const char *const stages_chameleon[] = {
    "<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", GPT2, NULL};

#define IGNORE TN__PRE_IGNORE_MERGES
#define BOS TN__PRE_ADD_BOS
#define SEP TN__PRE_ADD_SEP
#define NFC TN__PRE_NFC

const tn__pre_row tn__pre_table[] = {
    {"default", stages_default, 0},
    {"gpt-2", stages_gpt2, 0},
    {"gpt2", stages_gpt2, 0},
    {"phi-2", stages_gpt2, 0},
    {"gpt-neox", stages_gpt2, NFC},
    {"mpt", stages_gpt2, NFC},
    {"olmo", stages_gpt2, NFC},
    {"modern-bert", stages_gpt2, NFC},
    {"jais", stages_gpt2, 0},
    {"trillion", stages_gpt2, 0},
    {"granite-docling", stages_gpt2, 0},
    {"gigachat", stages_gpt2, 0},
    {"a.x-4.0", stages_gpt2, 0},
    {"mellum", stages_gpt2, 0},
    {"exaone4", stages_gpt2, NFC},
    {"jina-es", stages_gpt2, 0},
    {"jina-de", stages_gpt2, 0},
    {"jina-v2-es", stages_gpt2, 0},
    {"jina-v2-de", stages_gpt2, 0},
    {"jina-v1-en", stages_gpt2, SEP},
    {"jina-v2-code", stages_gpt2, SEP},
    {"roberta-bpe", stages_gpt2, SEP},
    {"starcoder", stages_digits_gpt2, 0},
    {"refact", stages_digits_gpt2, 0},
    {"command-r", stages_digits_gpt2, NFC},
    {"smollm", stages_digits_gpt2, 0},
    {"codeshell", stages_digits_gpt2, 0},
    {"exaone", stages_digits_gpt2, 0},
    {"minerva", stages_digits_gpt2, 0},
    {"minerva-7b", stages_digits_gpt2, 0},
    {"mellum2", stages_digits_gpt2, 0},
    {"falcon", stages_falcon, 0},
    {"llama3", stages_llama3, IGNORE | BOS},
    {"llama-v3", stages_llama3, IGNORE | BOS},
    {"llama-bpe", stages_llama3, IGNORE | BOS},
    {"falcon3", stages_llama3, IGNORE | BOS},
    {"falcon-h1", stages_llama3, IGNORE | BOS},
    {"pixtral", stages_llama3, IGNORE | BOS},
    {"midm-2.0", stages_llama3, IGNORE | BOS},
    {"lfm2", stages_llama3, IGNORE | BOS},
    {"jina-v5-nano", stages_llama3, IGNORE | BOS},
    {"dbrx", stages_llama3, 0},
    {"smaug-bpe", stages_llama3, 0},
    {"chatglm-bpe", stages_llama3, 0},
    {"glm4", stages_llama3, 0},
    {"jais-2", stages_jais2, 0},
    {"qwen2", stages_qwen2, NFC},
    {"deepseek-r1-qwen", stages_qwen2, NFC},
    {"kormo", stages_qwen2, NFC},
    {"f2llmv2", stages_qwen2, NFC},
    {"megrez", stages_qwen2, NFC},
    {"stablelm2", stages_qwen2, NFC},
    {"hunyuan", stages_qwen2, 0},
    {"solar-open", stages_qwen2, 0},
    {"grok-2", stages_qwen2, 0},
    {"qwen35", stages_qwen35, NFC},
    {"laguna", stages_laguna, 0},
    {"minicpm5", stages_minicpm5, IGNORE},
    {"bailingmoe", stages_bailing, 0},
    {"bailingmoe2", stages_bailing, 0},
    {"llada-moe", stages_bailing, 0},
    {"seed-coder", stages_seed_coder, 0},
    {"exaone-moe", stages_exaone_moe, 0},
    {"deepseek-llm", stages_deepseek_llm, 0},
    {"deepseek-coder", stages_deepseek_coder, 0},
    {"deepseek-v3", stages_deepseek3, 0},
    {"deepseek-r1", stages_deepseek3, 0},
    {"hunyuan-dense", stages_deepseek3, 0},
    {"joyai-llm", stages_deepseek3, 0},
    {"spark2_5", stages_spark, 0},
    {"afmoe", stages_afmoe, 0},
    {"gpt-4o", stages_gpt4o, 0},
    {"llama4", stages_gpt4o, 0},
    {"kanana2", stages_gpt4o, 0},
    {"talkie", stages_gpt4o, 0},
    {"minimax-m2", stages_gpt4o, 0},
    {"granite-embed-multi-97m", stages_gpt4o, IGNORE},
    {"tekken", stages_tekken, IGNORE | BOS},
    {"tiny_aya", stages_aya, NFC},
    {"cohere2moe", stages_aya, NFC},
    {"youtu", stages_youtu, IGNORE},
    {"kimi-k2", stages_kimi, IGNORE},
    {"bloom", stages_bloom, 0},
    {"poro", stages_bloom, 0},
    {"poro-chat", stages_bloom, 0},
    {"gpt3-finnish", stages_bloom, 0},
    {"viking", stages_viking, 0},
    {"superbpe", stages_superbpe, 0},
    {"chameleon", stages_chameleon, BOS},
};
const size_t tn__pre_count = TN__COUNT(tn__pre_table);

const tn__pre_row *tn__pre_find(const char *name, size_t size) {
    for (size_t i = 0; i < tn__pre_count; i++)
        if (strlen(tn__pre_table[i].name) == size && memcmp(tn__pre_table[i].name, name, size) == 0)
            return &tn__pre_table[i];
    return NULL;
}
