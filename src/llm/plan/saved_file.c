/* Session plans on disk: a magic number, a version, little-endian words, and a checksum at the end. */
#include "llm/plan/saved.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/output_path.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char session_plan_magic[8] = {'T', 'N', '-', 'S', 'P', 'L', 'A', 'N'};
/* Bounds that no model reaches: a file beyond them is damaged. */
enum { FORMAT = 4, MAX_LIST = 1 << 24, MAX_DEVICES = 1 << 15, HEADER = 16, MAX_FILE = 1 << 30 };

/* ---- Writing ---- */

static void put_saved_word(tn__text *t, uint64_t value) {
    char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (char)(value >> 8 * i);
    tn__text_append(t, bytes, sizeof bytes);
}

static void put_graph(tn__text *t, const tn__saved_graph *g) {
    put_saved_word(t, (uint64_t)g->shape.kind);
    put_saved_word(t, (uint64_t)(uint32_t)g->shape.n_tokens << 32 | (uint32_t)g->shape.n_outputs);
    put_saved_word(t, g->shape.adapters);
    put_saved_word(t, g->print.lo);
    put_saved_word(t, g->print.hi);
    put_saved_word(t, g->same_as);
    put_saved_word(t, g->n_entries);
    for (uint64_t i = 0; i < g->n_entries; i++) {
        put_saved_word(t, (uint64_t)(uint32_t)g->entries[i].memory << 32 | g->entries[i].chunk);
        if (g->entries[i].memory < 0) continue;
        put_saved_word(t, g->entries[i].offset);
        put_saved_word(t, g->entries[i].size);
    }
}

static void put_plan(tn__text *t, const tn__saved_plan *s) {
    tn__text_append(t, session_plan_magic, sizeof session_plan_magic);
    put_saved_word(t, FORMAT);
    const uint64_t keys[] = {s->keys.version, s->keys.model, s->keys.params, s->keys.devices};
    for (size_t i = 0; i < TN__COUNT(keys); i++) put_saved_word(t, keys[i]);
    put_saved_word(t, (uint64_t)s->n_ctx);
    put_saved_word(t, (uint64_t)s->ends_together | (uint64_t)s->repack << 1 | (uint64_t)s->sequential << 2);
    put_saved_word(t, s->n_layers);
    for (uint64_t i = 0; i < s->n_layers; i++) put_saved_word(t, (uint64_t)(uint32_t)s->device_of_layer[i]);
    put_saved_word(t, s->n_devices);
    for (uint64_t i = 0; i < s->n_devices; i++) {
        const tn__saved_device *d = &s->devices[i];
        const uint64_t words[] = {d->weights, d->mapped,  d->cache, d->compute,
                                  d->scratch, d->staging, d->own,   d->free};
        for (size_t k = 0; k < TN__COUNT(words); k++) put_saved_word(t, words[k]);
    }
    put_saved_word(t, s->n_graphs);
    for (uint64_t i = 0; i < s->n_graphs; i++) put_graph(t, &s->graphs[i]);
    if (t->status == TN_OK) put_saved_word(t, tn__hash_bytes(t->data, t->length, FORMAT));
}

static bool write_all(int file, const char *bytes, size_t size) {
    while (size) {
        ssize_t n = write(file, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

/* Writes to a temporary name and renames, so that a file with the right name is complete. */
static tn_status write_atomically(const char *name, const tn__text *t) {
    char *path;
    tn__text temporary = {0};
    TN_TRY(tn__output_path(name, &path));
    static atomic_uint number; /* two threads may write the same file */
    tn__text_printf(&temporary, "%s.%ld-%u.partial", path, (long)getpid(), atomic_fetch_add(&number, 1));
    tn_status status = temporary.status;
    const int file = status == TN_OK ? open(temporary.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (status == TN_OK && file < 0) {
        status = tn_fail(TN_E_IO, "cannot create %s: %s", temporary.data, strerror(errno));
    } else if (status == TN_OK) {
        bool written = write_all(file, t->data, t->length);
        if (close(file) != 0 || !written || rename(temporary.data, path) != 0)
            status = tn_fail(TN_E_IO, "cannot write %s: %s", path, strerror(errno));
        if (status != TN_OK) unlink(temporary.data);
    }
    tn__text_free(&temporary);
    tn_free(path);
    return status;
}

tn_status tn__saved_write(const tn__saved_plan *s, const char *path) {
    tn__text t = {0};
    put_plan(&t, s);
    tn_status status = t.status == TN_OK ? write_atomically(path, &t) : t.status;
    tn__text_free(&t);
    return status;
}

/* ---- Reading ---- */

typedef struct saved_reader {
    const unsigned char *data;
    size_t size, at;
    bool bad; /* too short, or a value out of range */
    bool no_memory;
} saved_reader;

static uint64_t get_saved_word(saved_reader *r) {
    uint64_t value = 0;
    if (r->bad || r->size - r->at < 8) {
        r->bad = true;
        return 0;
    }
    for (int i = 0; i < 8; i++) value |= (uint64_t)r->data[r->at + (size_t)i] << 8 * i;
    r->at += 8;
    return value;
}
static uint64_t get_saved_up_to(saved_reader *r, uint64_t most) {
    uint64_t value = get_saved_word(r);
    if (value > most) r->bad = true;
    return r->bad ? 0 : value;
}
/* The length of a list whose elements have `words` words each: it must fit the rest of the file. */
static uint64_t get_saved_count(saved_reader *r, uint64_t most, size_t words) {
    uint64_t n = get_saved_up_to(r, most);
    if (!r->bad && n > (r->size - r->at) / (8 * words)) r->bad = true;
    return r->bad ? 0 : n;
}
static void *new_list(saved_reader *r, uint64_t n, size_t size) {
    if (r->bad) return NULL;
    void *list = tn_calloc((size_t)n + 1, size);
    if (!list) r->bad = r->no_memory = true;
    return list;
}

static void get_graph(saved_reader *r, const tn__saved_plan *s, uint64_t number, tn__saved_graph *g) {
    g->shape.kind = (tn__graph_kind)get_saved_up_to(r, TN__GRAPH_MOVE);
    uint64_t rows = get_saved_word(r);
    if (rows >> 32 > INT32_MAX || (uint32_t)rows > INT32_MAX) r->bad = true;
    g->shape.n_tokens = (int32_t)(rows >> 32);
    g->shape.n_outputs = (int32_t)(uint32_t)rows;
    g->shape.adapters = (uint32_t)get_saved_up_to(r, UINT32_MAX);
    g->print.lo = get_saved_word(r);
    g->print.hi = get_saved_word(r);
    g->same_as = get_saved_up_to(r, number);
    uint64_t n = get_saved_count(r, MAX_LIST, 1);
    if (!r->bad && g->same_as != number && n) r->bad = true;
    g->entries = new_list(r, n, sizeof *g->entries);
    if (r->bad) return;
    g->n_entries = n;
    for (uint64_t i = 0; i < n && !r->bad; i++) {
        uint64_t where = get_saved_word(r);
        g->entries[i] = (tn_plan_offset){.memory = (int32_t)(uint32_t)(where >> 32), .chunk = (uint32_t)where};
        if (g->entries[i].memory == -1) continue;
        g->entries[i].offset = get_saved_up_to(r, SIZE_MAX / 4);
        g->entries[i].size = get_saved_up_to(r, SIZE_MAX / 4);
        if (g->entries[i].memory < 0 || g->entries[i].memory >= (int32_t)s->n_devices) r->bad = true;
    }
}

static void get_plan(saved_reader *r, tn__saved_plan *s) {
    s->keys.version = get_saved_word(r);
    s->keys.model = get_saved_word(r);
    s->keys.params = get_saved_word(r);
    s->keys.devices = get_saved_word(r);
    s->n_ctx = (int32_t)get_saved_up_to(r, INT32_MAX);
    uint64_t flags = get_saved_up_to(r, 7), n = get_saved_count(r, MAX_LIST, 1);
    s->ends_together = flags & 1;
    s->repack = flags >> 1 & 1;
    s->sequential = flags >> 2 & 1;
    if ((s->device_of_layer = new_list(r, n, sizeof *s->device_of_layer))) s->n_layers = n;
    for (uint64_t i = 0; i < s->n_layers; i++) s->device_of_layer[i] = (int32_t)get_saved_up_to(r, MAX_DEVICES);
    n = get_saved_count(r, MAX_DEVICES, 8);
    if ((s->devices = new_list(r, n, sizeof *s->devices))) s->n_devices = n;
    for (uint64_t i = 0; i < s->n_devices; i++) {
        tn__saved_device *d = &s->devices[i];
        uint64_t *const words[] = {&d->weights, &d->mapped,  &d->cache, &d->compute,
                                   &d->scratch, &d->staging, &d->own,   &d->free};
        for (size_t k = 0; k < TN__COUNT(words); k++) *words[k] = get_saved_word(r);
    }
    n = get_saved_count(r, MAX_LIST, 6);
    if ((s->graphs = new_list(r, n, sizeof *s->graphs))) s->n_graphs = n;
    for (uint64_t i = 0; i < s->n_graphs && !r->bad; i++) get_graph(r, s, i, &s->graphs[i]);
}

static tn_status parse_saved(const char *path, const unsigned char *data, size_t size, tn__saved_plan *s) {
    saved_reader r = {.data = data, .size = size, .at = sizeof session_plan_magic};
    if (size < HEADER + 8 || memcmp(data, session_plan_magic, sizeof session_plan_magic) != 0)
        return tn_fail(TN_E_FORMAT, "%s is not a saved session plan", path);
    uint64_t format = get_saved_word(&r);
    if (format != FORMAT)
        return tn_fail(TN_E_VERSION, "%s has version %llu of the format, this library reads %d: plan again", path,
                       (unsigned long long)format, FORMAT);
    r.size -= 8;
    saved_reader end = {.data = data, .size = size, .at = size - 8};
    if (get_saved_word(&end) != tn__hash_bytes(data, r.size, FORMAT))
        return tn_fail(TN_E_CHECKSUM, "%s is damaged: its checksum does not match", path);
    get_plan(&r, s);
    if (r.no_memory) return TN_E_NOMEM;
    if (r.bad || r.at != r.size) return tn_fail(TN_E_FORMAT, "%s is damaged: a value is out of range", path);
    return TN_OK;
}

tn_status tn__saved_read(const char *path, tn__saved_plan *s) {
    *s = (tn__saved_plan){0};
    /* Opening a named pipe would wait for a writer. */
    const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    if (descriptor >= 0 && (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode))) {
        close(descriptor);
        return tn_fail(TN_E_IO, "%s is not a file", path);
    }
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (!file) {
        const int code = errno;
        if (descriptor >= 0) close(descriptor);
        return tn_fail(TN_E_IO, "cannot open %s: %s", path, strerror(code));
    }
    tn__text t = {.limit = MAX_FILE};
    char part[4096];
    for (size_t n; t.status == TN_OK && (n = fread(part, 1, sizeof part, file)) > 0;) tn__text_append(&t, part, n);
    tn_status status = ferror(file) ? tn_fail(TN_E_IO, "cannot read %s", path) : t.status;
    fclose(file);
    if (status == TN_OK) status = parse_saved(path, (const unsigned char *)t.data, t.length, s);
    tn__text_free(&t);
    if (status != TN_OK) tn__saved_free(s);
    return status;
}

void tn__saved_free(tn__saved_plan *s) {
    for (uint64_t i = 0; i < s->n_graphs; i++) tn_free(s->graphs[i].entries);
    tn_free(s->graphs);
    tn_free(s->devices);
    tn_free(s->device_of_layer);
    *s = (tn__saved_plan){0};
}
