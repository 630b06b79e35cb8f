/* Reads the vocabulary of a SentencePiece model file (a protocol buffer). */
#include "convert/convert.h"

#include <string.h>

struct pb_reader {
    const unsigned char *at, *end;
    bool bad;
};

static uint64_t pb_varint(struct pb_reader *r) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at == r->end) break;
        unsigned char byte = *r->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    r->bad = true;
    return 0;
}

struct pb_field {
    uint64_t number;
    uint64_t value;        /* wire types 0 and 5 */
    struct pb_reader body; /* wire type 2 */
};

static bool pb_next_field(struct pb_reader *r, struct pb_field *out) {
    if (r->bad || r->at == r->end) return false;
    uint64_t key = pb_varint(r);
    *out = (struct pb_field){.number = key >> 3};
    uint64_t size;
    uint32_t word;
    switch (key & 7) {
    case 0: out->value = pb_varint(r); break;
    case 1: size = 8; goto skip;
    case 2:
        size = pb_varint(r);
        if (size > (uint64_t)(r->end - r->at)) {
            r->bad = true;
            break;
        }
        out->body = (struct pb_reader){r->at, r->at + size, false};
        r->at += size;
        break;
    case 5:
        if (r->end - r->at < 4) {
            r->bad = true;
            break;
        }
        memcpy(&word, r->at, 4);
        out->value = word;
        r->at += 4;
        break;
    default:
        r->bad = true;
        break;
    skip:
        if (size > (uint64_t)(r->end - r->at))
            r->bad = true;
        else
            r->at += size;
    }
    return !r->bad;
}

static tn_gguf_str pb_bytes(const struct pb_reader *r) {
    return (tn_gguf_str){(const char *)r->at, (size_t)(r->end - r->at)};
}

static bool read_sp_piece(struct pb_reader body, struct sp_piece *out) {
    struct pb_field f;
    *out = (struct sp_piece){.type = 1};
    while (pb_next_field(&body, &f)) {
        if (f.number == 1) out->text = pb_bytes(&f.body);
        if (f.number == 3) out->type = (int)f.value;
        uint32_t bits = (uint32_t)f.value;
        if (f.number == 2) memcpy(&out->score, &bits, 4);
    }
    return !body.bad && out->text.data && out->type >= 1 && out->type <= 6;
}

tn_status sp_model_parse(const char *path, const char *bytes, size_t size, struct sp_model *out) {
    struct pb_reader all = {(const unsigned char *)bytes, (const unsigned char *)bytes + size, false}, r = all;
    struct pb_field f;
    *out = (struct sp_model){.unigram = true, .add_dummy_prefix = true, .remove_extra_whitespaces = true};
    size_t count = 0, at = 0;
    while (pb_next_field(&r, &f)) count += f.number == 1;
    if (r.bad || count == 0) return tn_fail(TN_E_FORMAT, "%s: not a SentencePiece model, or a damaged one", path);
    out->pieces = tn_calloc(count, sizeof *out->pieces);
    if (!out->pieces) return TN_E_NOMEM;
    out->count = count;
    for (r = all; pb_next_field(&r, &f);) {
        struct pb_field inner;
        struct pb_reader body = f.body;
        if (f.number == 1 && !read_sp_piece(f.body, &out->pieces[at++])) {
            sp_model_free(out);
            return tn_fail(TN_E_FORMAT, "%s: piece %zu is damaged", path, at - 1);
        }
        if (f.number == 2) /* trainer: model type 1 is unigram, 2 is BPE */
            while (pb_next_field(&body, &inner))
                if (inner.number == 3) out->unigram = inner.value == 1;
        if (f.number == 3) /* normalizer */
            while (pb_next_field(&body, &inner)) {
                if (inner.number == 2) out->charsmap = pb_bytes(&inner.body);
                if (inner.number == 3) out->add_dummy_prefix = inner.value;
                if (inner.number == 4) out->remove_extra_whitespaces = inner.value;
            }
    }
    return TN_OK;
}

void sp_model_free(struct sp_model *model) {
    tn_free(model->pieces);
    *model = (struct sp_model){0};
}
