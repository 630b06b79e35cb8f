/* Vocabularies in files of their own: byte strings with ranks (tiktoken), PLaMo's list with scores, RWKV's list. */
#include "cli/cli.h"
#include "convert/vocab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The next line of a file's bytes without its end; false at the end. */
static bool next_line(const char **at, const char *end, tn_gguf_str *line) {
    if (*at >= end) return false;
    const char *stop = memchr(*at, '\n', (size_t)(end - *at));
    size_t size = stop ? (size_t)(stop - *at) : (size_t)(end - *at);
    *line = (tn_gguf_str){*at, size && (*at)[size - 1] == '\r' ? size - 1 : size};
    *at += size + (stop != NULL);
    return true;
}

static tn_status bad_line(const struct hf_vocab *v, const char *file, size_t number, const char *what) {
    return tn_fail(TN_E_FORMAT, "%s/%s: line %zu %s", v->model->folder, file, number, what);
}

/* ---- Ranks of byte strings ---- */

struct ranked_bytes {
    tn_gguf_str bytes;
    uint32_t rank;
};
struct rank_table {
    struct ranked_bytes *list; /* sorted by bytes */
    size_t count;
};

static int by_bytes(const void *a, const void *b) {
    const tn_gguf_str *x = &((const struct ranked_bytes *)a)->bytes, *y = &((const struct ranked_bytes *)b)->bytes;
    size_t n = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->data, y->data, n);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static const struct ranked_bytes *find_bytes(const struct rank_table *t, const char *data, size_t size) {
    struct ranked_bytes key = {.bytes = {data, size}};
    return bsearch(&key, t->list, t->count, sizeof *t->list, by_bytes);
}

/* Writes bytes in the alphabet of byte-level vocabularies: printable characters of Latin-1 as themselves, the other
 * bytes in order as U+0100 and up. `out` has space for twice as many bytes. */
static size_t spell_bytes(tn_gguf_str bytes, char *out) {
    size_t made = 0;
    for (size_t i = 0; i < bytes.size; i++) {
        unsigned b = (unsigned char)bytes.data[i], cp = b;
        if (b <= 0x20)
            cp = 0x100 + b;
        else if (b >= 0x7f && b <= 0xa0)
            cp = 0x121 + b - 0x7f;
        else if (b == 0xad)
            cp = 0x143;
        if (cp >= 0x80) out[made++] = (char)(0xc0 | cp >> 6);
        out[made++] = (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3f));
    }
    return made;
}

struct split {
    const struct ranked_bytes *left, *right;
};

static int by_ranks(const void *a, const void *b) {
    const struct split *x = a, *y = b;
    if (x->left->rank != y->left->rank) return x->left->rank < y->left->rank ? -1 : 1;
    return (x->right->rank > y->right->rank) - (x->right->rank < y->right->rank);
}

enum { LONGEST_RANKED = 1024 }; /* bytes */

/* The merges that form one token: tiktoken joins any two parts whose text is a token, so every split counts. */
static size_t find_splits(const struct rank_table *t, tn_gguf_str bytes, struct split *out) {
    size_t count = 0;
    for (size_t i = 1; i < bytes.size; i++) {
        struct split s = {find_bytes(t, bytes.data, i), find_bytes(t, bytes.data + i, bytes.size - i)};
        if (s.left && s.right) out[count++] = s;
    }
    qsort(out, count, sizeof *out, by_ranks);
    return count;
}

static tn_status set_ranked_merges(struct hf_vocab *v, const struct rank_table *t,
                                   const struct ranked_bytes *const *by_rank) {
    struct split *splits = tn_malloc(LONGEST_RANKED * sizeof *splits);
    char *text = tn_malloc(4 * LONGEST_RANKED);
    size_t count = 0, capacity = 0;
    tn_gguf_str *merges = NULL;
    tn_status status = splits && text ? TN_OK : TN_E_NOMEM;
    for (uint32_t rank = 0; rank < v->size && status == TN_OK; rank++) {
        if (!by_rank[rank]) continue;
        size_t n = find_splits(t, by_rank[rank]->bytes, splits);
        if (count + n > capacity) {
            capacity = (count + n) * 2;
            tn_gguf_str *grown = tn_realloc(merges, capacity * sizeof *merges);
            if (!grown) {
                status = TN_E_NOMEM;
                break;
            }
            merges = grown;
        }
        for (size_t i = 0; i < n; i++) {
            size_t at = spell_bytes(splits[i].left->bytes, text);
            text[at++] = ' ';
            at += spell_bytes(splits[i].right->bytes, text + at);
            merges[count] = vocab_keep(v, "", (tn_gguf_str){text, at});
            if (!merges[count++].data) status = TN_E_NOMEM;
        }
    }
    if (status == TN_OK)
        status = tn_gguf_writer_set_array(v->writer, "tokenizer.ggml.merges", TN_GGUF_STR, merges, count);
    tn_free(merges);
    tn_free(text);
    tn_free(splits);
    return status == TN_E_NOMEM ? tn_fail(status, "out of memory in the vocabulary") : status;
}

/* Tokens beside the ranks are in tokenizer_config.json. */
static tn_status put_config_tokens(struct hf_vocab *v) {
    const char *id;
    json_t *token;
    json_object_foreach(json_object_get(v->config, "added_tokens_decoder"), id, token) {
        json_t *content = json_object_get(token, "content");
        if (!json_is_string(content)) continue;
        bool special = !json_is_false(json_object_get(token, "special"));
        TN_TRY(vocab_put(v, strtol(id, NULL, 10),
                         (tn_gguf_str){json_string_value(content), json_string_length(content)},
                         special ? CONTROL : USER_DEFINED, 0));
    }
    return TN_OK;
}

static tn_status parse_ranks(struct hf_vocab *v, const char *file, const char *bytes, size_t size,
                             struct rank_table *t, const struct ranked_bytes **by_rank) {
    const char *at = bytes, *end = bytes + size;
    char spelled[2 * LONGEST_RANKED];
    size_t number = 0, capacity = 0;
    for (tn_gguf_str line; next_line(&at, end, &line);) {
        number++;
        if (!line.size) continue;
        const char *gap = memchr(line.data, ' ', line.size);
        char *stop = NULL;
        unsigned long rank = gap ? strtoul(gap + 1, &stop, 10) : 0;
        if (!gap || stop == gap + 1) return bad_line(v, file, number, "is not base64 and a rank");
        if (t->count == capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            struct ranked_bytes *grown = tn_realloc(t->list, capacity * sizeof *grown);
            if (!grown) return tn_fail(TN_E_NOMEM, "out of memory in the vocabulary");
            t->list = grown;
        }
        size_t made;
        unsigned char *decoded = vocab_base64(line.data, (size_t)(gap - line.data), &made);
        if (!decoded) return tn_fail(TN_E_NOMEM, "out of memory in the vocabulary");
        t->list[t->count++] = (struct ranked_bytes){{(char *)decoded, made}, (uint32_t)rank};
        if (!made || made > LONGEST_RANKED) return bad_line(v, file, number, "has no text, or one that is too long");
        size_t n = spell_bytes(t->list[t->count - 1].bytes, spelled);
        TN_TRY(vocab_put(v, (int64_t)rank, vocab_keep(v, "", (tn_gguf_str){spelled, n}), NORMAL, 0));
    }
    if (!t->count) return tn_fail(TN_E_FORMAT, "%s/%s: is empty", v->model->folder, file);
    qsort(t->list, t->count, sizeof *t->list, by_bytes);
    for (size_t i = 0; i < t->count; i++) by_rank[t->list[i].rank] = &t->list[i];
    return TN_OK;
}

/* The pre-tokenizers of classes whose code, not a file, has the pattern. */
static const struct {
    const char *class, *pre;
} rank_classes[] = {
    {"TikTokenTokenizer", "kimi-k2"}, {"KimiTokenizer", "kimi-k2"}, {"ChatGLM4Tokenizer", "glm4"},
    {"QWenTokenizer", "qwen2"},       {"HYTokenizer", "hunyuan"},
};

static tn_status read_ranks(struct hf_vocab *v, const char *pre, const char *file, const char *bytes, size_t size) {
    const char *class = json_string_value(json_object_get(v->config, "tokenizer_class"));
    for (size_t i = 0; i < sizeof rank_classes / sizeof *rank_classes && !pre; i++)
        if (class && strcmp(class, rank_classes[i].class) == 0) pre = rank_classes[i].pre;
    if (!pre)
        return tn_fail(TN_E_UNSUPPORTED,
                       "%s/%s: the pre-tokenizer of the class %s is not known; give its name with --pre",
                       v->model->folder, file, class ? class : "(none)");
    struct rank_table t = {0};
    const struct ranked_bytes **by_rank = tn_calloc(v->size, sizeof *by_rank);
    tn_status status = by_rank ? parse_ranks(v, file, bytes, size, &t, by_rank) : TN_E_NOMEM;
    if (status == TN_OK) status = set_ranked_merges(v, &t, by_rank);
    if (status == TN_OK) status = put_config_tokens(v);
    if (status == TN_OK) status = tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "gpt2");
    if (status == TN_OK) status = tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", pre);
    for (size_t i = 0; i < t.count; i++) tn_free((char *)(uintptr_t)t.list[i].bytes.data);
    tn_free(t.list);
    tn_free((void *)by_rank);
    return status;
}

/* ---- PLaMo ---- */

/* Lines are [text, score, type, …]. */
static tn_status read_plamo(struct hf_vocab *v, const char *pre, const char *file, const char *bytes, size_t size) {
    static const struct {
        const char *name;
        int type;
    } types[] = {{"UNKNOWN", UNKNOWN}, {"CONTROL", CONTROL}, {"BYTE", BYTE}};
    (void)pre;
    const char *at = bytes, *end = bytes + size;
    size_t number = 0;
    int64_t id = 0;
    v->has_scores = true;
    for (tn_gguf_str line; next_line(&at, end, &line);) {
        number++;
        if (!line.size) continue;
        json_t *row = json_loadb(line.data, line.size, JSON_ALLOW_NUL, NULL), *text = json_array_get(row, 0);
        if (!json_is_string(text) || !json_is_number(json_array_get(row, 1))) {
            json_decref(row);
            return bad_line(v, file, number, "is not a list of a text and a score");
        }
        json_array_append_new(v->keep, row);
        const char *name = json_string_value(json_array_get(row, 2));
        tn_gguf_str str = {json_string_value(text), json_string_length(text)};
        bool marked = str.size > 10 && memcmp(str.data, "<|plamo:", 8) == 0 && str.data[str.size - 1] == '>';
        int type = marked ? CONTROL : NORMAL;
        for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
            if (strcmp(name, types[i].name) == 0) type = types[i].type;
        TN_TRY(vocab_put(v, id++, str, type, (float)json_number_value(json_array_get(row, 1))));
    }
    int64_t turn = vocab_find(v, "<|plamo:op|>");
    if (turn >= 0) TN_TRY(tn_gguf_writer_set_u32(v->writer, "tokenizer.ggml.eot_token_id", (uint32_t)turn));
    TN_TRY(tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "plamo2"));
    return tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.pre", "default");
}

/* ---- RWKV ---- */

static size_t put_utf8(char *out, unsigned long cp) {
    if (cp < 0x80) return *out = (char)cp, 1;
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)((0xf00u >> n & 0xff) | cp);
    return n;
}

/* The bytes of a Python string ('…', "…") or bytes literal (b'…'); SIZE_MAX if it is malformed. */
static size_t python_literal(tn_gguf_str text, char *out) {
    bool bytes = text.size > 2 && text.data[0] == 'b';
    const char *p = text.data + bytes, *end = text.data + text.size - 1;
    size_t made = 0;
    if (end <= p || (*p != '\'' && *p != '"') || *end != *p) return SIZE_MAX;
    for (p++; p < end; p++) {
        if (*p != '\\') {
            out[made++] = *p;
            continue;
        }
        static const char from[] = "tnr\\'\"abfv0", to[] = "\t\n\r\\'\"\a\b\f\v\0";
        if (++p >= end) return SIZE_MAX;
        const char *simple = strchr(from, *p);
        int digits = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
        if (digits) {
            char hex[9] = "";
            if (end - p <= digits) return SIZE_MAX;
            memcpy(hex, p + 1, (size_t)digits);
            unsigned long cp = strtoul(hex, NULL, 16);
            if (bytes)
                out[made++] = (char)cp;
            else
                made += put_utf8(out + made, cp & 0x1fffff);
            p += digits;
        } else if (*p && simple) {
            out[made++] = to[simple - from];
        } else
            return SIZE_MAX;
    }
    return made;
}

/* Writes bytes as Python's repr() of a bytes object does, without its quotes; up to four times as many. */
static size_t escape_bytes(const char *bytes, size_t size, char *out) {
    bool single = memchr(bytes, '\'', size) != NULL, other = memchr(bytes, '"', size) != NULL;
    size_t made = 0;
    for (size_t i = 0; i < size; i++) {
        static const char digits[] = "0123456789abcdef";
        unsigned char c = (unsigned char)bytes[i];
        const char *simple = c ? strchr("\tt\nn\rr\\\\", c) : NULL;
        if (c == '\t' || c == '\n' || c == '\r' || c == '\\' || (c == '\'' && single && other)) {
            out[made++] = '\\';
            out[made++] = c == '\'' ? '\'' : simple[1];
        } else if (c < 0x20 || c >= 0x7f) {
            memcpy(out + made, "\\x", 2);
            out[made + 2] = digits[c >> 4];
            out[made + 3] = digits[c & 15];
            made += 4;
        } else
            out[made++] = (char)c;
    }
    return made;
}

/* Lines are "ID LITERAL LENGTH". Token 0 ends a text. */
static tn_status read_world(struct hf_vocab *v, const char *pre, const char *file, const char *bytes, size_t size) {
    (void)pre;
    const char *at = bytes, *end = bytes + size;
    char text[4 * LONGEST_RANKED], escaped[4 * LONGEST_RANKED];
    size_t number = 0;
    TN_TRY(vocab_put(v, 0, (tn_gguf_str){"<s>", 3}, CONTROL, 0));
    for (tn_gguf_str line; next_line(&at, end, &line);) {
        number++;
        if (!line.size) continue;
        const char *open = memchr(line.data, ' ', line.size), *close = memrchr(line.data, ' ', line.size);
        if (!open || close <= open + 1 || close - open > LONGEST_RANKED)
            return bad_line(v, file, number, "is not an id, a text and a length");
        size_t made = python_literal((tn_gguf_str){open + 1, (size_t)(close - open - 1)}, text);
        if (made == SIZE_MAX || made != strtoul(close + 1, NULL, 10))
            return bad_line(v, file, number, "has a text that is malformed or not as long as it says");
        if (made > LONGEST_RANKED) return bad_line(v, file, number, "has a text that is too long");
        size_t size_escaped = escape_bytes(text, made, escaped);
        tn_gguf_str kept = vocab_keep(v, "", (tn_gguf_str){escaped, size_escaped});
        TN_TRY(vocab_put(v, strtol(line.data, NULL, 10), kept, NORMAL, 0));
    }
    /* A blank line ends a turn; there is no token for it. */
    int64_t turn = vocab_find(v, "\\n\\n");
    if (turn >= 0) TN_TRY(tn_gguf_writer_set_u32(v->writer, "tokenizer.ggml.eot_token_id", (uint32_t)turn));
    TN_TRY(tn_gguf_writer_set_u32(v->writer, "tokenizer.ggml.bos_token_id", 0));
    TN_TRY(tn_gguf_writer_set_u32(v->writer, "tokenizer.ggml.eos_token_id", 0));
    return tn_gguf_writer_set_cstr(v->writer, "tokenizer.ggml.model", "rwkv");
}

/* ---- Which of them ---- */

static const struct plain_file {
    const char *name;
    tn_status (*read)(struct hf_vocab *v, const char *pre, const char *file, const char *bytes, size_t size);
} plain_files[] = {
    {"tiktoken.model", read_ranks},
    {"qwen.tiktoken", read_ranks},
    {"hy.tiktoken", read_ranks},
    {"tokenizer.jsonl", read_plamo},
    {"rwkv_vocab_v20230424.txt", read_world},
};

tn_status vocab_read_plain(struct hf_vocab *v, const char *pre, bool *found) {
    *found = true;
    /* A tokenizer.model that is not SentencePiece's is a list of ranks. */
    if (v->sp_bytes) return read_ranks(v, pre, "tokenizer.model", v->sp_bytes, v->sp_size);
    for (size_t i = 0; i < sizeof plain_files / sizeof *plain_files; i++) {
        char *bytes;
        size_t size;
        TN_TRY(hf_load_bytes(v->model->folder, plain_files[i].name, &bytes, &size));
        if (!bytes) continue;
        tn_status status = plain_files[i].read(v, pre, plain_files[i].name, bytes, size);
        tn_free(bytes);
        return status;
    }
    *found = false;
    return TN_OK;
}
