/* Files of the disk tier: a header with the blob's tokens, and its content, both with checksums. A file with the
 * right name is complete: it is written under a temporary name, synced and renamed. */
#include "llm/memory/tier.h"

#include "base/checked.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char blob_magic[8] = "TNBLOB";
enum { BLOB_VERSION = 1, DIGITS = 48 };
_Static_assert(sizeof(tn__blob_header) == 64 + TN__BLOCK * sizeof(tn_token), "no padding: it is written as it is");

/* ---- Names ---- */

void tn__blob_file_name(char name[TN__BLOB_NAME], tn__hash128 key, uint64_t mark, int32_t kind, bool partial) {
    snprintf(name, TN__BLOB_NAME, "%016llx%016llx%016llx.%d%s", (unsigned long long)(key >> 64),
             (unsigned long long)key, (unsigned long long)mark, kind & 15, partial ? ".partial" : ".blob");
}

bool tn__blob_file_parse(const char *name, tn__hash128 *key, uint64_t *mark, int32_t *kind, bool *partial) {
    uint64_t words[3];
    char digits[17] = "", *end;
    if (strspn(name, "0123456789abcdef") != DIGITS || name[DIGITS] != '.') return false;
    for (int i = 0; i < 3; i++) {
        memcpy(digits, name + (ptrdiff_t)16 * i, 16);
        words[i] = strtoull(digits, NULL, 16);
    }
    *key = (tn__hash128)words[0] << 64 | words[1];
    *mark = words[2];
    *kind = (int32_t)strtol(name + DIGITS + 1, &end, 10);
    *partial = strcmp(end, ".partial") == 0;
    return *partial || strcmp(end, ".blob") == 0;
}

/* ---- Headers ---- */

static tn__blob_header header_of(const tn__blob_id *id, size_t bytes, uint64_t sum) {
    tn__blob_header h = {.version = BLOB_VERSION,
                         .kind = (uint32_t)id->kind,
                         .key = {(uint64_t)(id->key >> 64), (uint64_t)id->key},
                         .from = id->from,
                         .n = id->n,
                         .bytes = bytes,
                         .sum = sum};
    memcpy(h.magic, blob_magic, sizeof h.magic);
    memcpy(h.tokens, id->tokens, (size_t)id->n * sizeof *id->tokens);
    h.header_sum = tn__hash_bytes(&h, offsetof(tn__blob_header, header_sum), 0);
    return h;
}

static bool read_all(int file, void *to, size_t size) {
    char *p = to;
    while (size) {
        const ssize_t n = read(file, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        size -= (size_t)n;
    }
    return true;
}

bool tn__blob_write_all(int file, const void *bytes, size_t size) {
    const char *p = bytes;
    while (size) {
        const ssize_t n = write(file, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        size -= (size_t)n;
    }
    return true;
}

bool tn__blob_file_check(int folder, const char *name, uint64_t size, tn__blob_header *h) {
    tn__hash128 key;
    uint64_t mark;
    int32_t kind;
    bool partial;
    const int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool is_read = file >= 0 && read_all(file, h, sizeof *h);
    if (file >= 0) close(file);
    if (!is_read || !tn__blob_file_parse(name, &key, &mark, &kind, &partial)) return false;
    return memcmp(h->magic, blob_magic, sizeof blob_magic) == 0 && h->version == BLOB_VERSION &&
           h->header_sum == tn__hash_bytes(h, offsetof(tn__blob_header, header_sum), 0) && h->n > 0 &&
           h->n <= TN__BLOCK && h->from >= 0 && h->kind == (uint32_t)kind && h->key[0] == (uint64_t)(key >> 64) &&
           h->key[1] == (uint64_t)key && mark == tn__blob_mark(h->tokens, h->n) && size > sizeof *h &&
           h->bytes == size - sizeof *h;
}

/* ---- Writing and reading ---- */

static bool write_content(int file, const tn__blob_content *content, size_t bytes) {
    for (size_t offset = 0, size; offset < bytes; offset += size) {
        size = bytes - offset;
        const char *piece = tn__blob_piece(content, offset, &size);
        if (!tn__blob_write_all(file, piece, size)) return false;
    }
    return true;
}

tn_status tn__blob_file_write(int folder, const tn__blob_id *id, const tn__blob_content *content, size_t bytes,
                              uint64_t sum) {
    char name[TN__BLOB_NAME], partial[TN__BLOB_NAME];
    const uint64_t mark = tn__blob_mark(id->tokens, id->n);
    tn__blob_file_name(name, id->key, mark, id->kind, false);
    tn__blob_file_name(partial, id->key, mark, id->kind, true);
    const tn__blob_header h = header_of(id, bytes, sum);
    const int file = openat(folder, partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return tn_fail(TN_E_IO, "%s cannot be made: %s", partial, strerror(errno));
    bool fine = tn__blob_write_all(file, &h, sizeof h) && write_content(file, content, bytes) && fsync(file) == 0;
    int error = errno;
    if (close(file) != 0 && fine) {
        error = errno;
        fine = false;
    }
    if (fine && renameat(folder, partial, folder, name) != 0) {
        error = errno;
        fine = false;
    }
    if (fine) return TN_OK;
    (void)unlinkat(folder, partial, 0);
    return tn_fail(TN_E_IO, "%s cannot be written: %s", name, strerror(error));
}

tn_status tn__blob_file_read(int folder, const tn__blob_id *id, void *to, size_t bytes) {
    char name[TN__BLOB_NAME];
    tn__blob_header h;
    struct stat info;
    tn__blob_file_name(name, id->key, tn__blob_mark(id->tokens, id->n), id->kind, false);
    const int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return tn_fail(TN_E_NOT_FOUND, "%s cannot be opened: %s", name, strerror(errno));
    const bool fine = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && read_all(file, &h, sizeof h) &&
                      h.bytes == bytes && (uint64_t)info.st_size == sizeof h + bytes && read_all(file, to, bytes);
    if (fine) (void)futimens(file, NULL); /* used now: others are evicted first */
    close(file);
    if (!fine) return tn_fail(TN_E_FORMAT, "%s does not have the %zu bytes that it should have", name, bytes);
    const tn__blob_header expected = header_of(id, bytes, h.sum);
    if (memcmp(&h, &expected, sizeof h) != 0) return tn_fail(TN_E_CHECKSUM, "%s is damaged: its header", name);
    const tn__blob_content content = {.base = to};
    if (tn__blob_sum(&content, bytes) != h.sum)
        return tn_fail(TN_E_CHECKSUM, "%s is damaged: its checksum does not match", name);
    return TN_OK;
}
