/* The tier on disk: a folder of files, one per blob, never above its budget. Any number of processes may share a
 * folder. A process that changes the folder holds a lock on a file in it, and increments a counter there; a process
 * that finds the counter changed by others lists the folder again. Reading needs no lock: files are always complete,
 * and the reader verifies them. */
#include "llm/memory/tier.h"

#include "base/checked.h"
#include "base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char lock_name[] = "lock", lock_magic[8] = "TNTIER1";
/* Max number of blobs, as a multiple of the number of full-size blobs that fit the budget. */
enum { BLOBS_PER_WHOLE = 4, LEAST_ENTRIES = 256, MOST_ENTRIES = 1 << 20 };
/* Nothing is written for this time after a failure, such as a full disk. */
#define RETRY_NS (30 * (uint64_t)1000000000)

/* The content of the lock file. */
typedef struct lock_record {
    char magic[8];
    uint64_t changes, salt[2], sum;
} lock_record;

int32_t tn__disk_tier_capacity(uint64_t budget, size_t unit) {
    const uint64_t whole = (uint64_t)unit * TN__BLOCK + sizeof(tn__blob_header);
    const uint64_t n = budget / (whole / BLOBS_PER_WHOLE + 1);
    return (int32_t)TN__MIN(TN__MAX(n, (uint64_t)LEAST_ENTRIES), (uint64_t)MOST_ENTRIES);
}

static uint64_t wall_ns(void) {
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static uint64_t used_ns(const struct stat *info) {
    return (uint64_t)info->st_mtim.tv_sec * 1000000000u + (uint64_t)info->st_mtim.tv_nsec;
}

static void note_damage(tn__disk_tier *d, const char *what) {
    if (!d->noted_damage) tn_log(TN_LOG_WARN, "%s: %s is ignored; other such files as well", d->path, what);
    d->noted_damage = true;
}

/* ---- The lock ---- */

static bool lock_folder(const tn__disk_tier *d) {
    int result;
    do result = flock(d->lock, LOCK_EX);
    while (result != 0 && errno == EINTR);
    return result == 0;
}
static void unlock_folder(const tn__disk_tier *d) { (void)flock(d->lock, LOCK_UN); }

static uint64_t record_sum(const lock_record *r) { return tn__hash_bytes(r, offsetof(lock_record, sum), 0); }

static bool read_record(const tn__disk_tier *d, lock_record *r) {
    return pread(d->lock, r, sizeof *r, 0) == (ssize_t)sizeof *r && memcmp(r->magic, lock_magic, 8) == 0 &&
           r->sum == record_sum(r);
}

static bool write_record(tn__disk_tier *d) {
    lock_record r = {.changes = d->changes, .salt = {d->salt[0], d->salt[1]}};
    memcpy(r.magic, lock_magic, sizeof r.magic);
    r.sum = record_sum(&r);
    return pwrite(d->lock, &r, sizeof r, 0) == (ssize_t)sizeof r;
}

/* A secret salt, so that nobody can construct two texts with the same key. */
static void make_salt(tn__disk_tier *d) {
    const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    const bool random = file >= 0 && read(file, d->salt, sizeof d->salt) == (ssize_t)sizeof d->salt;
    if (file >= 0) close(file);
    if (random) return;
    d->salt[0] = tn__mix64(wall_ns() ^ (uint64_t)(uintptr_t)d);
    d->salt[1] = tn__mix64(tn_time_ns() ^ d->salt[0] ^ (uint64_t)getpid());
}

/* ---- Listing ---- */

void tn__disk_tier_remove(tn__disk_tier *d, int32_t blob) {
    const tn__blob *b = &d->index.blobs[blob];
    char name[TN__BLOB_NAME];
    tn__blob_file_name(name, b->key, b->mark, b->kind, false);
    (void)unlinkat(d->folder, name, 0);
    d->bytes -= TN__MIN(b->bytes, d->bytes);
    tn__blob_index_remove(&d->index, blob);
}

/* The oldest blob; other processes may have used it since. */
static int32_t oldest_file(tn__disk_tier *d) {
    for (;;) {
        const int32_t i = tn__blob_index_oldest(&d->index);
        struct stat info;
        char name[TN__BLOB_NAME];
        if (i < 0) return -1;
        const tn__blob *b = &d->index.blobs[i];
        tn__blob_file_name(name, b->key, b->mark, b->kind, false);
        if (fstatat(d->folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || used_ns(&info) <= d->index.used[i]) return i;
        d->index.used[i] = used_ns(&info);
    }
}

/* Adds a file that the index does not have. An unusable file is counted, and evicted in its turn. */
static void list_file(tn__disk_tier *d, const char *name, tn__hash128 key, uint64_t mark, int32_t kind) {
    struct stat info;
    tn__blob_header h;
    if (fstatat(d->folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) return;
    const bool fine = tn__blob_file_check(d->folder, name, (uint64_t)info.st_size, &h);
    if (!fine) note_damage(d, name);
    if (d->index.unused < 0) {
        const int32_t oldest = oldest_file(d);
        if (oldest < 0 || d->index.used[oldest] > used_ns(&info)) {
            (void)unlinkat(d->folder, name, 0);
            return;
        }
        tn__disk_tier_remove(d, oldest);
    }
    const tn__blob_id id = {key, kind, fine ? h.from : 0, fine ? h.n : 0, h.tokens};
    const int32_t i = tn__blob_index_add(&d->index, &id, used_ns(&info));
    d->index.blobs[i].mark = mark;
    d->index.blobs[i].bytes = (uint64_t)info.st_size;
    d->index.blobs[i].seen = true;
    d->bytes += (uint64_t)info.st_size;
}

/* Synchronises the index with the folder. Incomplete files were left by killed processes, because writers hold the
 * lock. */
static tn_status list_folder(tn__disk_tier *d) {
    const int copy = dup(d->folder);
    DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
    if (!folder) {
        if (copy >= 0) close(copy);
        return tn_fail(TN_E_IO, "cannot list %s: %s", d->path, strerror(errno));
    }
    rewinddir(folder);
    for (int32_t i = 0; i < d->index.capacity; i++) d->index.blobs[i].seen = false;
    for (const struct dirent *e; (e = readdir(folder));) {
        tn__hash128 key;
        uint64_t mark;
        int32_t kind;
        bool partial;
        if (!tn__blob_file_parse(e->d_name, &key, &mark, &kind, &partial)) continue; /* not ours */
        if (partial) {
            (void)unlinkat(d->folder, e->d_name, 0);
            continue;
        }
        const int32_t known = tn__blob_index_named(&d->index, key, mark, kind);
        if (known >= 0)
            d->index.blobs[known].seen = true;
        else
            list_file(d, e->d_name, key, mark, kind);
    }
    closedir(folder);
    for (int32_t i = 0; i < d->index.capacity; i++) {
        if (!d->index.used[i] || d->index.blobs[i].seen) continue;
        d->bytes -= TN__MIN(d->index.blobs[i].bytes, d->bytes);
        tn__blob_index_remove(&d->index, i);
    }
    return TN_OK;
}

/* Removes the oldest files until one of this size fits. Called with the lock and the mutex. */
static tn_status make_disk_room(tn__disk_tier *d, uint64_t size) {
    while (d->bytes + size > d->budget || d->index.unused < 0) {
        const int32_t oldest = oldest_file(d);
        if (oldest < 0)
            return tn_fail(TN_E_FULL, "a file of %llu bytes exceeds the budget of %s, %llu bytes",
                           (unsigned long long)size, d->path, (unsigned long long)d->budget);
        tn__disk_tier_remove(d, oldest);
    }
    return TN_OK;
}

/* ---- Opening ---- */

static void make_tier_folder(char *path) {
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(path, 0777); /* a failure is reported when the folder is opened */
        *at = '/';
    }
    (void)mkdir(path, 0700);
}

static tn_status open_folder(tn__disk_tier *d) {
    make_tier_folder(d->path);
    d->folder = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->folder >= 0) d->lock = openat(d->folder, lock_name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock < 0 || !lock_folder(d))
        return tn_fail(TN_E_IO, "cannot use the folder %s for kept prefixes: %s", d->path, strerror(errno));
    lock_record record;
    if (read_record(d, &record)) {
        memcpy(d->salt, record.salt, sizeof d->salt);
        d->changes = record.changes;
    } else {
        make_salt(d);
        if (!write_record(d)) {
            unlock_folder(d);
            return tn_fail(TN_E_IO, "cannot write to the folder %s for kept prefixes: %s", d->path, strerror(errno));
        }
    }
    d->bytes = sizeof record;
    tn_status status = list_folder(d);
    if (status == TN_OK) (void)make_disk_room(d, 0); /* the budget may have been larger */
    unlock_folder(d);
    return status;
}

tn_status tn__disk_tier_open(tn__disk_tier *d, const char *path, uint64_t budget, int32_t capacity) {
    const size_t length = strlen(path) + 1;
    *d = (tn__disk_tier){.folder = -1, .lock = -1, .budget = budget};
    d->path = tn_malloc(length);
    d->memory = tn_malloc_aligned(tn__blob_index_bytes(capacity), 64);
    if (!d->path || !d->memory) {
        tn__disk_tier_close(d);
        return TN_E_NOMEM;
    }
    memcpy(d->path, path, length);
    tn__blob_index_bind(&d->index, capacity, d->memory);
    tn_status status = open_folder(d);
    if (status != TN_OK) tn__disk_tier_close(d);
    return status;
}

void tn__disk_tier_close(tn__disk_tier *d) {
    if (d->path && d->lock >= 0) close(d->lock);
    if (d->path && d->folder >= 0) close(d->folder);
    tn_free(d->path);
    tn_free(d->memory);
    *d = (tn__disk_tier){.folder = -1, .lock = -1};
}

/* ---- Writing and reading ---- */

/* With the lock held: detects changes of others, evicts files and writes. */
static tn_status write_locked(tn__disk_tier *d, pthread_mutex_t *mutex, const tn__blob_id *id,
                              const tn__blob_content *content, size_t bytes, uint64_t sum) {
    const uint64_t size = sizeof(tn__blob_header) + (uint64_t)bytes;
    lock_record record = {.changes = 0};
    tn_status status = TN_OK;
    pthread_mutex_lock(mutex);
    if (!read_record(d, &record) || record.changes != d->changes) {
        status = list_folder(d);
        d->changes = TN__MAX(record.changes, d->changes);
    }
    const bool held = status == TN_OK && tn__blob_index_holds(&d->index, id) >= 0; /* another process wrote it */
    if (status == TN_OK && !held) status = make_disk_room(d, size);
    pthread_mutex_unlock(mutex);
    if (status != TN_OK || held) return status;
    d->changes++; /* before the change, so that if this process is killed, others list the folder again */
    if (!write_record(d)) return tn_fail(TN_E_IO, "%s cannot be written: %s", d->path, strerror(errno));
    TN_TRY(tn__blob_file_write(d->folder, id, content, bytes, sum));
    pthread_mutex_lock(mutex);
    for (int32_t i; (i = tn__blob_index_shorter(&d->index, id)) >= 0;) tn__disk_tier_remove(d, i);
    const int32_t i = tn__blob_index_add(&d->index, id, wall_ns());
    d->index.blobs[i].bytes = size;
    d->bytes += size;
    pthread_mutex_unlock(mutex);
    return TN_OK;
}

tn_status tn__disk_tier_write(tn__disk_tier *d, pthread_mutex_t *mutex, const tn__blob_id *id,
                              const tn__blob_content *content, size_t bytes, uint64_t sum) {
    if (tn_time_ns() < d->retry) return TN_E_IO;
    if (!lock_folder(d)) return tn_fail(TN_E_IO, "%s cannot be locked: %s", d->path, strerror(errno));
    tn_status status = write_locked(d, mutex, id, content, bytes, sum);
    unlock_folder(d);
    if (status == TN_OK || status == TN_E_FULL) return status;
    d->retry = tn_time_ns() + RETRY_NS;
    if (!d->noted_failure) tn_log(TN_LOG_WARN, "prefixes are not kept on disk for now: %s", tn_error());
    d->noted_failure = true;
    return status;
}

tn_status tn__disk_tier_read(tn__disk_tier *d, pthread_mutex_t *mutex, const tn__blob_id *id, void *to,
                             size_t bytes) {
    const tn_status status = tn__blob_file_read(d->folder, id, to, bytes);
    pthread_mutex_lock(mutex);
    const int32_t i = tn__blob_index_named(&d->index, id->key, tn__blob_mark(id->tokens, id->n), id->kind);
    if (i >= 0 && status == TN_OK) d->index.used[i] = wall_ns();
    if (status != TN_OK && status != TN_E_NOT_FOUND) note_damage(d, tn_error());
    if (i >= 0 && status != TN_OK) tn__disk_tier_remove(d, i);
    pthread_mutex_unlock(mutex);
    return status;
}
