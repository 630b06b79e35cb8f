/* Ranking: the tokens of a query with a document, and their relevance from the classifier's scores. */
#include "llm/session_internal.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tn_status append_token_id(tn_tokens *out, tn_token id) {
    if (out->count == out->capacity) {
        size_t capacity = out->capacity ? 2 * out->capacity : 64;
        tn_token *grown = tn_realloc(out->ids, capacity * sizeof *grown);
        if (!grown) return TN_E_NOMEM;
        out->ids = grown;
        out->capacity = capacity;
    }
    out->ids[out->count++] = id;
    return TN_OK;
}

/* ---- With a template ---- */

/* The longest control token at the beginning of a template's rest, or TN_TOKEN_NONE. */
static tn_token control_token_at(const tn_tokenizer *t, const char *text, size_t size, size_t *length) {
    enum { LONGEST = 64 };
    for (size_t n = size < LONGEST ? size : LONGEST; n > 1; n--) {
        tn_token id = tn_tokenizer_find(t, text, n);
        if (id < 0 || tn_token_get_type(t, id) != TN_TOKEN_CONTROL) continue;
        *length = n;
        return id;
    }
    return TN_TOKEN_NONE;
}

/* Text between control tokens of the template is encoded as a whole, as in training, but control tokens in the query
 * and the document are encoded as plain text. */
static tn_status encode_template(const tn_tokenizer *t, tn_gguf_str template, tn_gguf_str query, tn_gguf_str document,
                                 tn_tokens *out) {
    static const struct {
        const char *name;
        size_t size;
    } holes[] = {{"{query}", 7}, {"{document}", 10}};
    const tn_gguf_str texts[] = {query, document};
    tn__text plain = {0};
    tn_status status = TN_OK;
    for (size_t i = 0; i <= template.size && status == TN_OK;) {
        size_t left = template.size - i, length = 0;
        tn_token id = left && (template.data[i] == '<' || template.data[i] == '[')
                          ? control_token_at(t, template.data + i, left, &length)
                          : TN_TOKEN_NONE;
        if (id >= 0 || !left) {
            status = plain.status;
            if (status == TN_OK)
                status = tn_tokenizer_encode(t, plain.data ? plain.data : "", plain.length, TN_ENCODE_CONTINUE, out);
            if (status == TN_OK && id >= 0) status = append_token_id(out, id);
            tn__text_clear(&plain);
            i += left ? length : 1;
            continue;
        }
        int hole = -1;
        for (int k = 0; k < 2; k++)
            if (left >= holes[k].size && memcmp(template.data + i, holes[k].name, holes[k].size) == 0) hole = k;
        if (hole >= 0)
            tn__text_append(&plain, texts[hole].data, texts[hole].size);
        else
            tn__text_append(&plain, template.data + i, 1);
        i += hole >= 0 ? holes[hole].size : 1;
    }
    tn__text_free(&plain);
    return status;
}

/* ---- Without ---- */

/* BERT: [CLS] query [SEP] document [SEP]. RoBERTa and its like: <s> query </s></s> document </s>. */
static tn_status encode_pair(const tn_tokenizer *t, tn_gguf_str query, tn_gguf_str document, tn_tokens *out) {
    tn_token bos = tn_tokenizer_special(t, TN_SPECIAL_BOS), eos = tn_tokenizer_special(t, TN_SPECIAL_EOS),
             sep = tn_tokenizer_special(t, TN_SPECIAL_SEP);
    bool words = tn_tokenizer_get_kind(t) == TN_TOKENIZER_WORDPIECE;
    tn_token end = words && sep >= 0 ? sep : tn_tokenizer_adds_eos(t) && eos >= 0 ? eos : sep;
    if (tn_tokenizer_adds_bos(t) && bos >= 0) TN_TRY(append_token_id(out, bos));
    TN_TRY(tn_tokenizer_encode(t, query.data, query.size, 0, out));
    if (end >= 0) TN_TRY(append_token_id(out, end));
    if (!words && tn_tokenizer_adds_sep(t) && tn_tokenizer_adds_eos(t) && sep >= 0) TN_TRY(append_token_id(out, sep));
    TN_TRY(tn_tokenizer_encode(t, document.data, document.size, 0, out));
    return end >= 0 ? append_token_id(out, end) : TN_OK;
}

tn_status tn_rank_tokens(const tn_model *m, const char *query, size_t query_length, const char *document,
                         size_t document_length, tn_tokens *out) {
    if (!m || !query || !document || !out)
        return tn_fail(TN_E_INVALID, "tn_rank_tokens: model, query, document or out is NULL");
    const tn_tokenizer *t = tn_model_tokenizer(m);
    if (!t) return tn_fail(TN_E_NOT_FOUND, "%s has no vocabulary", tn_gguf_path(m->file));
    tn_gguf_str template = tn_gguf_get_str(m->file, "tokenizer.chat_template.rerank");
    tn_gguf_str first = {query, query_length}, second = {document, document_length};
    size_t before = out->count;
    tn_status status =
        template.size ? encode_template(t, template, first, second, out) : encode_pair(t, first, second, out);
    if (status != TN_OK) out->count = before;
    return status;
}

/* ---- Scores ---- */

/* The index of the label "yes" of two, or -1. */
static int label_of_yes(const tn_model *m) {
    char key[96];
    snprintf(key, sizeof key, "%s.classifier.output_labels", m->arch->info.name);
    const tn_gguf_arr *labels = tn_gguf_get_arr(m->file, key);
    if (!labels || labels->type != TN_GGUF_STR || labels->count != 2) return -1;
    const tn_gguf_str *names = labels->data;
    for (int i = 0; i < 2; i++)
        if (names[i].size == 3 && memcmp(names[i].data, "yes", 3) == 0) return i;
    return -1;
}

float tn_session_relevance(tn_session *session, int32_t i) {
    const float *scores = session ? tn_session_embedding(session, i) : NULL;
    if (!scores) return NAN;
    int yes = tn_session_embedding_size(session) == 2 ? label_of_yes(session->plan->model) : -1;
    return yes < 0 ? scores[0] : 1 / (1 + expf(scores[!yes] - scores[yes]));
}
