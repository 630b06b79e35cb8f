/* Packing files: comma-separated tables of lifetimes and sizes with a header line. */
#include "base/text.h"
#include "plan/pack_internal.h"

#include "base/checked.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum column { ID, LOWER, UPPER, SIZE, ALIGNMENT, COLUMNS, MAX_FIELDS = 256 };
static const char *const names[COLUMNS] = {"id", "lower", "upper", "size", "alignment"};

/* Splits the line at *cursor into fields, in place. Returns their number, or -1 with a reason. */
static int split_line(char **cursor, char **fields, const char **reason) {
    char *read = *cursor;
    for (int count = 0;; count++) {
        if (count == MAX_FIELDS) {
            *reason = "more than 256 fields";
            return -1;
        }
        while (*read == ' ' || *read == '\t') read++;
        char *write;
        if (*read == '"') {
            fields[count] = ++read;
            for (write = read;; read++) {
                if (*read == '"' && read[1] == '"')
                    read++;
                else if (*read == '"' || *read == '\0' || *read == '\n')
                    break;
                *write++ = *read;
            }
            if (*read != '"') {
                *reason = "missing closing quote";
                return -1;
            }
            read++;
        } else {
            fields[count] = read;
            read += strcspn(read, ",\r\n");
            for (write = read; write > fields[count] && (write[-1] == ' ' || write[-1] == '\t');) write--;
        }
        while (*read == ' ' || *read == '\t' || *read == '\r') read++;
        char end = *read;
        if (end != ',' && end != '\n' && end != '\0') {
            *reason = "text after a closing quote";
            return -1;
        }
        *write = '\0';
        if (end == ',') {
            read++;
            continue;
        }
        *cursor = end == '\n' ? read + 1 : NULL;
        return count + 1;
    }
}

/* Parses an integer: signed into *s, unsigned into *u. */
static bool parse_number(const char *field, bool is_signed, int64_t *s, uint64_t *u) {
    char *end;
    errno = 0;
    if (!*field || *field == ' ' || *field == '+' || (!is_signed && *field == '-')) return false;
    if (is_signed)
        *s = strtoll(field, &end, 10);
    else
        *u = strtoull(field, &end, 10);
    return *end == '\0' && errno == 0;
}

static tn_status csv_error(size_t line, const char *format, const char *what, const char *field) {
    char text[200];
    snprintf(text, sizeof text, format, what, field);
    return tn_fail(TN_E_FORMAT, "line %zu: %s", line, text);
}

static tn_status read_header(char *const *fields, int count, int *columns) {
    for (int c = 0; c < COLUMNS; c++) columns[c] = -1;
    for (int f = 0; f < count; f++) {
        for (int c = 0; c < COLUMNS; c++) {
            if (strcmp(fields[f], names[c]) != 0) continue;
            if (columns[c] >= 0) return csv_error(1, "the column '%s' appears twice%s", names[c], "");
            columns[c] = f;
        }
    }
    for (int c = 0; c < ALIGNMENT; c++)
        if (columns[c] < 0)
            return csv_error(1, "the header has no column '%s'; needed are id, lower, upper, size%s", names[c], "");
    return TN_OK;
}

static tn_status read_item(size_t line, char *const *fields, const int *columns, tn_pack_item *item) {
    uint64_t size, alignment = 0;
    const char *lower = fields[columns[LOWER]], *upper = fields[columns[UPPER]];
    if (!parse_number(lower, true, &item->start, NULL))
        return csv_error(line, "%s '%s' is not an integer", "lower", lower);
    if (!parse_number(upper, true, &item->end, NULL))
        return csv_error(line, "%s '%s' is not an integer", "upper", upper);
    if (item->end < item->start) return csv_error(line, "upper %s is before lower %s", upper, lower);
    if (!parse_number(fields[columns[SIZE]], false, NULL, &size) || size > SIZE_MAX)
        return csv_error(line, "%s '%s' is not a size", "size", fields[columns[SIZE]]);
    item->size = (size_t)size;
    if (columns[ALIGNMENT] < 0 || !*fields[columns[ALIGNMENT]]) return TN_OK;
    if (!parse_number(fields[columns[ALIGNMENT]], false, NULL, &alignment) || (alignment && !tn__is_pow2(alignment)))
        return csv_error(line, "%s '%s' is not a power of two", "alignment", fields[columns[ALIGNMENT]]);
    item->alignment = (size_t)alignment;
    return TN_OK;
}

tn_status tn_pack_table_parse(const char *text, size_t length, tn_pack_table *table) {
    memset(table, 0, sizeof *table);
    size_t lines = 1, line = 0;
    if (length && memchr(text, '\0', length))
        return tn_fail(TN_E_FORMAT, "line 1: not a text file: it contains a zero byte");
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n';
    char *copy = tn_malloc(length + 1);
    table->memory = copy;
    table->items = tn_calloc(lines, sizeof *table->items);
    table->ids = tn_malloc(lines * sizeof *table->ids);
    tn_status status = TN_E_NOMEM;
    if (!copy || !table->items || !table->ids) goto failed;
    memcpy(copy, text, length);
    copy[length] = '\0';
    char *fields[MAX_FIELDS], *cursor = copy;
    if (strncmp(cursor, "\xef\xbb\xbf", 3) == 0) cursor += 3; /* byte order mark */
    int columns[COLUMNS] = {0}, width = 0;
    while (cursor && (line == 0 || *cursor)) {
        const char *reason = NULL;
        int count = split_line(&cursor, fields, &reason);
        line++;
        if (count < 0) {
            status = csv_error(line, "%s%s", reason, "");
        } else if (line == 1) {
            width = count;
            status = read_header(fields, count, columns);
        } else if (count == 1 && !*fields[0]) {
            status = TN_OK; /* an empty line */
        } else if (count != width) {
            status = tn_fail(TN_E_FORMAT, "line %zu: %d fields, the header has %d", line, count, width);
        } else {
            status = read_item(line, fields, columns, &table->items[table->count]);
            table->ids[table->count++] = fields[columns[ID]];
        }
        if (status != TN_OK) goto failed;
    }
    return TN_OK;
failed:
    tn_pack_table_free(table);
    return status;
}

void tn_pack_table_free(tn_pack_table *table) {
    if (!table) return;
    tn_free(table->items);
    tn_free(table->ids);
    tn_free(table->memory);
    memset(table, 0, sizeof *table);
}

tn_status tn_pack_print_csv(const tn_pack_item *items, const char *const *ids, const tn_pack_result *result,
                            char **text) {
    tn__text t = {0};
    bool chunks = result->chunk_count > 1;
    tn__text_printf(&t, "id,lower,upper,size,offset%s\n", chunks ? ",chunk" : "");
    for (size_t i = 0; i < result->count; i++) {
        if (ids)
            tn__text_csv(&t, ids[i]);
        else
            tn__text_printf(&t, "%zu", i);
        tn__text_printf(&t, ",%lld,%lld,%zu,%zu", (long long)items[i].start, (long long)items[i].end, items[i].size,
                        result->offsets[i]);
        if (chunks) tn__text_printf(&t, ",%u", result->chunks[i]);
        tn__text_append(&t, "\n", 1);
    }
    return tn__text_take(&t, text);
}
