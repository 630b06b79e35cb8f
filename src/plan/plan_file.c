/* Plans on disk: a magic number, a version, little-endian words, and a checksum at the end. */
#include "plan/plan_internal.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/output_path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = {'T', 'N', '-', 'P', 'L', 'A', 'N', '\n'};
enum { VERSION = 1, MAX_TENSORS = 1 << 28, MAX_CHUNKS = 1 << 20 };

/* A cursor for both directions: writing appends, reading checks the remaining size. */
typedef struct plan_stream {
    unsigned char *data;
    size_t size, at;
    bool bad; /* writing: out of memory; reading: too short or malformed */
} plan_stream;

static void put_bytes(plan_stream *s, const void *bytes, size_t size) {
    if (s->bad) return;
    if (s->at + size > s->size) {
        size_t larger = 2 * s->size + size + 4096;
        unsigned char *grown = tn_realloc(s->data, larger);
        if (!grown) {
            s->bad = true;
            return;
        }
        s->data = grown;
        s->size = larger;
    }
    if (size) memcpy(s->data + s->at, bytes, size);
    s->at += size;
}
static void put_word(plan_stream *s, uint64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(value >> 8 * i);
    put_bytes(s, bytes, sizeof bytes);
}
static const unsigned char *get_bytes(plan_stream *s, size_t size) {
    if (s->bad || size > s->size - s->at) {
        s->bad = true;
        return NULL;
    }
    s->at += size;
    return s->data + s->at - size;
}
static uint64_t get_word(plan_stream *s) {
    const unsigned char *bytes = get_bytes(s, 8);
    uint64_t value = 0;
    for (int i = 0; bytes && i < 8; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}
/* Reads a word that must be at most `most`; otherwise the stream is bad. */
static uint64_t get_up_to(plan_stream *s, uint64_t most) {
    uint64_t value = get_word(s);
    if (value > most) s->bad = true;
    return s->bad ? 0 : value;
}

/* ---- Saving ---- */

static void write_plan(plan_stream *s, const tn_plan *plan, tn_fingerprint print) {
    put_bytes(s, magic, sizeof magic);
    put_word(s, VERSION);
    put_word(s, print.lo);
    put_word(s, print.hi);
    put_word(s, plan->n_nodes);
    put_word(s, plan->n_leaves);
    put_word(s, plan->n_parts);
    put_word(s, plan->text_size);
    for (size_t m = 0; m < plan->n_parts; m++) {
        const tn__plan_part *part = &plan->parts[m];
        put_bytes(s, part->name, sizeof part->name);
        put_word(s, part->alignment);
        put_word(s, part->max_chunk);
        put_word(s, part->lower_bound);
        put_word(s, part->optimal);
        put_word(s, part->steps);
        put_word(s, part->n_chunks);
        for (size_t c = 0; c < part->n_chunks; c++) put_word(s, part->chunk_sizes[c]);
    }
    for (size_t i = 0; i < tn_plan_tensor_count(plan); i++) {
        const tn_plan_entry *entry = &plan->entries[i];
        put_word(s, (uint64_t)(uint32_t)entry->memory << 32 | entry->chunk);
        put_word(s, entry->offset);
        put_word(s, entry->size);
        put_word(s, (uint64_t)entry->first << 32 | entry->last);
        put_word(s, (uint64_t)entry->inplace_of << 32 | plan->until[i]);
        put_word(s, plan->kinds[i]);
        put_word(s, plan->labels[i]);
    }
    put_bytes(s, plan->text, plan->text_size);
    if (!s->bad) put_word(s, tn__hash_bytes(s->data, s->at, VERSION));
}

/* Writes to a temporary name and renames, so that a plan file is always complete. */
static tn_status write_file(const char *name, const unsigned char *data, size_t size) {
    char *path;
    TN_TRY(tn__output_path(name, &path));
    size_t length = strlen(path) + 32;
    char *temporary = tn_malloc(length);
    if (!temporary) {
        tn_free(path);
        return TN_E_NOMEM;
    }
    snprintf(temporary, length, "%s.%ld.partial", path, (long)getpid());
    FILE *file = fopen(temporary, "wb");
    tn_status status = TN_OK;
    if (!file) {
        status = tn_fail(TN_E_IO, "cannot create %s: %s", temporary, strerror(errno));
    } else {
        bool written = fwrite(data, 1, size, file) == size;
        if (fclose(file) != 0 || !written)
            status = tn_fail(TN_E_IO, "cannot write %s: %s", path, strerror(errno));
        else if (rename(temporary, path) != 0)
            status = tn_fail(TN_E_IO, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
        if (status != TN_OK) unlink(temporary);
    }
    tn_free(temporary);
    tn_free(path);
    return status;
}

tn_status tn_plan_save(const tn_plan *plan, tn_graph *graph, const char *path) {
    if (!plan || !graph || !path) return tn_fail(TN_E_INVALID, "tn_plan_save: NULL argument");
    if (plan->n_nodes != tn_graph_node_count(graph) || plan->n_leaves != tn_graph_leaf_count(graph))
        return tn_fail(TN_E_INVALID, "tn_plan_save: the plan does not belong to this graph");
    plan_stream s = {0};
    write_plan(&s, plan, tn_graph_fingerprint(graph));
    if (s.bad) {
        tn_free(s.data);
        return TN_E_NOMEM;
    }
    tn_status status = write_file(path, s.data, s.at);
    tn_free(s.data);
    return status;
}

/* ---- Loading ---- */

static tn_status read_file(const char *path, plan_stream *s) {
    FILE *file = fopen(path, "rb");
    if (!file) return tn_fail(TN_E_IO, "cannot open %s: %s", path, strerror(errno));
    tn_status status = TN_OK;
    unsigned char block[16384];
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;) put_bytes(s, block, got);
    if (ferror(file))
        status = tn_fail(TN_E_IO, "cannot read %s: %s", path, strerror(errno));
    else if (s->bad)
        status = TN_E_NOMEM;
    fclose(file);
    s->size = s->at;
    s->at = 0;
    return status;
}

static tn_status read_parts(plan_stream *s, tn_plan *plan) {
    for (size_t m = 0; m < plan->n_parts && !s->bad; m++) {
        tn__plan_part *part = &plan->parts[m];
        const unsigned char *name = get_bytes(s, sizeof part->name);
        if (name) memcpy(part->name, name, sizeof part->name - 1);
        part->alignment = get_word(s);
        part->max_chunk = get_word(s);
        part->lower_bound = get_word(s);
        part->optimal = get_up_to(s, 1);
        part->steps = get_word(s);
        part->n_chunks = get_up_to(s, TN__MIN(MAX_CHUNKS, (s->size - s->at) / 8));
        part->chunk_sizes = tn_malloc(part->n_chunks * sizeof *part->chunk_sizes);
        if (!part->chunk_sizes) return TN_E_NOMEM;
        for (size_t c = 0; c < part->n_chunks; c++) part->chunk_sizes[c] = get_word(s);
    }
    return TN_OK;
}

static void read_entries(plan_stream *s, tn_plan *plan) {
    size_t n = tn_plan_tensor_count(plan);
    for (size_t i = 0; i < n && !s->bad; i++) {
        tn_plan_entry *entry = &plan->entries[i];
        uint64_t word = get_word(s);
        entry->memory = (int32_t)(uint32_t)(word >> 32);
        entry->chunk = (uint32_t)word;
        entry->offset = get_word(s);
        entry->size = get_word(s);
        word = get_word(s);
        entry->first = (uint32_t)(word >> 32);
        entry->last = (uint32_t)word;
        word = get_word(s);
        entry->inplace_of = (uint32_t)(word >> 32);
        plan->until[i] = (uint32_t)word;
        plan->kinds[i] = (uint8_t)get_up_to(s, TN__KIND_COUNT - 1);
        plan->labels[i] = get_up_to(s, plan->text_size - 1);
        if (entry->memory < -1 || entry->memory >= (int32_t)plan->n_parts ||
            (entry->inplace_of != TN_GRAPH_NONE && entry->inplace_of >= n) || entry->first > plan->n_nodes ||
            entry->last > plan->n_nodes || plan->until[i] > plan->n_nodes)
            s->bad = true;
    }
}

static tn_status read_plan(const char *path, plan_stream *s, tn_fingerprint print, tn_plan **out) {
    const unsigned char *head = get_bytes(s, sizeof magic);
    if (!head || memcmp(head, magic, sizeof magic) != 0) return tn_fail(TN_E_FORMAT, "%s is not a plan", path);
    uint64_t version = get_word(s);
    if (version != VERSION)
        return tn_fail(TN_E_VERSION, "%s is a plan of version %llu; this program reads version %d", path,
                       (unsigned long long)version, VERSION);
    if (s->size < s->at + 8) return tn_fail(TN_E_FORMAT, "%s is truncated", path);
    s->size -= 8;
    plan_stream tail = {s->data, s->size + 8, s->size, false};
    if (get_word(&tail) != tn__hash_bytes(s->data, s->size, VERSION))
        return tn_fail(TN_E_CHECKSUM, "%s is damaged: its checksum is wrong", path);
    uint64_t lo = get_word(s), hi = get_word(s);
    if (lo != print.lo || hi != print.hi) return tn_fail(TN_E_STATE, "%s is the plan of another graph", path);
    /* Every tensor takes seven words: counts that exceed the file are rejected before anything is allocated. */
    uint64_t most = TN__MIN(MAX_TENSORS, (s->size - s->at) / 56);
    uint64_t n_nodes = get_up_to(s, most), n_leaves = get_up_to(s, most), n_parts = get_up_to(s, INT16_MAX),
             text = get_up_to(s, s->size - s->at);
    if (s->bad || n_parts == 0 || text == 0) return tn_fail(TN_E_FORMAT, "%s: invalid counts", path);
    TN_TRY(tn__plan_new(n_nodes, n_leaves, n_parts, out));
    tn_plan *plan = *out;
    plan->text_size = text;
    TN_TRY(read_parts(s, plan));
    read_entries(s, plan);
    const unsigned char *words = get_bytes(s, text);
    if (s->bad || s->at != s->size || words[text - 1] != '\0')
        return tn_fail(TN_E_FORMAT, "%s: malformed at byte %zu", path, s->at);
    plan->text = tn_malloc(text);
    if (!plan->text) return TN_E_NOMEM;
    memcpy(plan->text, words, text);
    return TN_OK;
}

tn_status tn_plan_load(const char *path, tn_graph *graph, const tn_plan_params *params, tn_plan **out) {
    if (!path || !out) return tn_fail(TN_E_INVALID, "tn_plan_load: NULL argument");
    *out = NULL;
    TN_TRY(tn__plan_check_params(graph, params));
    plan_stream s = {0};
    tn_plan *plan = NULL;
    tn_status status = read_file(path, &s);
    if (status == TN_OK) status = read_plan(path, &s, tn_graph_fingerprint(graph), &plan);
    tn_free(s.data);
    if (status == TN_OK) status = tn_plan_verify(plan, graph, params);
    if (status != TN_OK)
        tn_plan_free(plan);
    else
        *out = plan;
    return status;
}
