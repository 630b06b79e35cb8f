/* Metadata values and text from model files, printed for people or as JSON. */
#include "files/metadata_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Length of the UTF-8 character at p; 0 for invalid bytes, overlong forms, surrogates and values above U+10FFFF. */
static size_t valid_utf8_length(const unsigned char *p, size_t left) {
    if (p[0] < 0x80) return 1;
    size_t length = p[0] >= 0xc2 && p[0] < 0xe0   ? 2
                    : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                    : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                                  : 0;
    if (length == 0 || length > left) return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] >= 0x90))
        return 0;
    return length;
}

void show_text(FILE *out, tn_gguf_str text, size_t limit) {
    const unsigned char *p = (const unsigned char *)text.data;
    for (size_t i = 0; i < text.size;) {
        if (i >= limit) {
            fputs("…", out);
            return;
        }
        size_t length = valid_utf8_length(p + i, text.size - i);
        if (p[i] == '\n')
            fputs("\\n", out);
        else if (p[i] == '\t')
            fputs("\\t", out);
        else if (p[i] == '\r')
            fputs("\\r", out);
        else if (length == 0 || p[i] < 0x20 || p[i] == 0x7f)
            fprintf(out, "\\x%02x", p[i]);
        else if (length == 2 && p[i] == 0xc2 && p[i + 1] < 0xa0) /* C1 control characters */
            fprintf(out, "\\u%04x", p[i + 1]);
        else
            fwrite(p + i, 1, length, out);
        i += length ? length : 1;
    }
}

static void show_number(FILE *out, const tn_gguf_value *value) {
    switch (value->type) {
    case TN_GGUF_BOOL: fputs(value->b ? "true" : "false", out); break;
    case TN_GGUF_F32: fprintf(out, "%.9g", value->f); break;
    case TN_GGUF_F64: fprintf(out, "%.17g", value->f); break;
    case TN_GGUF_I8:
    case TN_GGUF_I16:
    case TN_GGUF_I32:
    case TN_GGUF_I64: fprintf(out, "%" PRId64, value->i); break;
    default: fprintf(out, "%" PRIu64, value->u); break;
    }
}

/* The shortest decimal form that parses back to the same float. */
static void show_float(FILE *out, double value, bool is_f32) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (is_f32 ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) break;
    }
    fputs(text, out);
}

void show_value(FILE *out, const tn_gguf_value *value, size_t limit) {
    if (value->type == TN_GGUF_STR) {
        fputc('"', out);
        show_text(out, value->str, limit);
        fputc('"', out);
    } else if (value->type == TN_GGUF_ARR) {
        fprintf(out, "%" PRIu64 " × %s [", value->arr.count, tn_gguf_type_name(value->arr.type));
        tn_gguf_value element;
        for (uint64_t i = 0; tn_gguf_arr_at(&value->arr, i, &element); i++) {
            if (i) fputs(", ", out);
            if (i == 6) {
                fputs("…", out);
                break;
            }
            show_value(out, &element, limit / 4);
        }
        fputc(']', out);
    } else if (value->type == TN_GGUF_F32 || value->type == TN_GGUF_F64) {
        show_float(out, value->f, value->type == TN_GGUF_F32);
    } else {
        show_number(out, value);
    }
}

void show_whole(FILE *out, const tn_gguf_value *value) {
    tn_gguf_value element;
    if (value->type == TN_GGUF_ARR) {
        for (uint64_t i = 0; tn_gguf_arr_at(&value->arr, i, &element); i++) {
            if (element.type == TN_GGUF_STR)
                show_text(out, element.str, SIZE_MAX); /* keeps one line per element */
            else if (element.type == TN_GGUF_ARR)
                show_value(out, &element, SIZE_MAX);
            else
                show_number(out, &element);
            fputc('\n', out);
        }
    } else if (value->type == TN_GGUF_STR) {
        fwrite(value->str.data, 1, value->str.size, out);
        fputc('\n', out);
    } else {
        show_number(out, value);
        fputc('\n', out);
    }
}

char *show_shape(char *out, size_t size, int n_dims, const int64_t *ne) {
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < n_dims && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? ", " : "", ne[i]);
    if (used < size) snprintf(out + used, size - used, "]");
    return out;
}

/* ---- JSON ---- */

json_t *show_json_text(tn_gguf_str text) {
    json_t *plain = json_stringn(text.data, text.size);
    if (plain) return plain;
    char *clean = malloc(text.size * 3 + 1), *to = clean;
    if (!clean) return NULL;
    for (size_t i = 0; i < text.size;) {
        size_t length = valid_utf8_length((const unsigned char *)text.data + i, text.size - i);
        memcpy(to, length ? text.data + i : "\xef\xbf\xbd", length ? length : 3);
        to += length ? length : 3;
        i += length ? length : 1;
    }
    json_t *made = json_stringn(clean, (size_t)(to - clean));
    free(clean);
    return made;
}

json_t *show_json(const tn_gguf_value *value) {
    int64_t i;
    switch (value->type) {
    case TN_GGUF_STR: return show_json_text(value->str);
    case TN_GGUF_BOOL: return json_boolean(value->b);
    case TN_GGUF_F32:
    case TN_GGUF_F64:
        if (!isfinite(value->f))
            return json_string(isnan(value->f) ? "NaN" : value->f > 0 ? "Infinity" : "-Infinity");
        return json_real(value->f);
    case TN_GGUF_ARR: {
        json_t *list = json_array();
        tn_gguf_value element;
        for (uint64_t k = 0; tn_gguf_arr_at(&value->arr, k, &element); k++)
            json_array_append_new(list, show_json(&element));
        return list;
    }
    default: break;
    }
    /* jansson's integers are signed; the upper half of u64 becomes a string to stay exact. */
    if (tn_gguf_value_i64(value, &i)) return json_integer(i);
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value->u);
    return json_string(text);
}
