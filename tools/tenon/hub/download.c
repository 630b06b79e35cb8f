/* One file over HTTP: resumed, checked, and renamed when it is complete. */
#include "hub/download.h"

#include "cli/term.h"
#include "hub/http.h"
#include "hub/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ATTEMPTS = 5 }; /* in a row without a new byte */

struct download_state {
    const struct download *d;
    int file;
    uint64_t have, requested; /* bytes in the partial file; where this request began */
    uint64_t expected;        /* 0: unknown */
    struct sha256 hash;       /* of the bytes in the partial file */
    struct progress bar;
    bool begun;      /* the first bytes of this request came */
    int write_error; /* of the disk */
    char tag[160];   /* of the bytes in the partial file; "" is unknown */
    bool changed;    /* the server has other content now than when it was asked about it */
    bool again;      /* … and it must be requested from its first byte */
    bool other;      /* what came is no model */
};

bool make_folders_of(const char *path) {
    char folder[HUB_PATH];
    if ((size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder) return false;
    for (char *slash = folder + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) return false;
        *slash = '/';
    }
    return true;
}

int fail_http(const char *what, const struct http_response *r) {
    if (interrupted()) return EXIT_INTERRUPTED;
    if (r->error[0]) return fail("%s: %s", what, r->error);
    switch (r->status) {
    case 401:
    case 403:
        return fail("%s: access denied (status %ld): accept the model's terms on its page and set HF_TOKEN, or check "
                    "the name",
                    what, r->status);
    case 404: return fail("%s: not found (status 404): check the name", what);
    case 429: return fail("%s: too many requests (status 429): try again later, or set HF_TOKEN", what);
    default: return fail("%s: the server answered with status %ld", what, r->status);
    }
}

void wait_to_retry(int attempt, long retry_after) {
    const char *text = getenv("TENON_PULL_WAIT_MS"); /* the first pause, for tests */
    const long unit = text && *text ? strtol(text, NULL, 10) : 1000;
    long ms = retry_after >= 0 ? (retry_after < 120 ? retry_after : 120) * unit : unit << (attempt < 5 ? attempt : 5);
    for (; ms > 0 && !interrupted(); ms -= 100)
        nanosleep(&(struct timespec){.tv_nsec = (ms < 100 ? ms : 100) * 1000000}, NULL);
}

/* ---- The partial file ---- */

static bool restart_partial(struct download_state *s) {
    s->have = 0;
    sha256_start(&s->hash);
    return ftruncate(s->file, 0) == 0 && lseek(s->file, 0, SEEK_SET) == 0;
}

/* Opens it and hashes what it has. */
static int open_partial(struct download_state *s) {
    static char buffer[1 << 16];
    if (!make_folders_of(s->d->partial)) return fail("cannot make the folder of %s: %m", s->d->partial);
    s->file = open(s->d->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->file < 0) return fail("cannot write %s: %m", s->d->partial);
    ssize_t n;
    sha256_start(&s->hash);
    while ((n = read(s->file, buffer, sizeof buffer)) > 0) {
        sha256_add(&s->hash, buffer, (size_t)n);
        s->have += (uint64_t)n;
        if (interrupted()) return EXIT_INTERRUPTED;
    }
    if (n < 0) return fail("cannot read %s: %m", s->d->partial);
    if (s->expected && s->have > s->expected && !restart_partial(s))
        return fail("cannot write %s: %m", s->d->partial);
    return EXIT_OK;
}

/* Bytes of two contents are never joined. False where this response cannot be used. */
static bool check_tag(struct download_state *s, const struct http_response *r) {
    if (s->d->sha256 || !r->etag[0] || strcmp(s->tag, r->etag) == 0) return true;
    s->again = s->have > 0 && r->status == 206;
    if (*s->tag) {
        s->changed = true;
        s->expected = r->status == 206 ? r->total : r->length;
    }
    snprintf(s->tag, sizeof s->tag, "%s", r->etag);
    return !s->again && (!s->changed || s->d->tag_path);
}

/* Login pages of networks and error pages of servers come with status 200, too. */
static bool is_other_content(const struct download_state *s) {
    const size_t length = strlen(s->d->name);
    char magic[4];
    return length > 5 && strcmp(s->d->name + length - 5, ".gguf") == 0 &&
           (pread(s->file, magic, sizeof magic, 0) != sizeof magic || memcmp(magic, "GGUF", sizeof magic) != 0);
}

static bool on_bytes(void *user, const struct http_response *r, const void *bytes, size_t size) {
    struct download_state *s = user;
    if (!s->begun) {
        if (!check_tag(s, r)) return false;
        s->begun = true;
        /* A server that ignores the range sends the file from its beginning. */
        if (r->status == 200 && s->have && !restart_partial(s)) s->write_error = errno;
        const uint64_t total = r->status == 206 ? r->total : r->length;
        if (!s->expected) s->expected = total;
        progress_start(&s->bar, s->d->name, s->expected, PROGRESS_BYTES);
    }
    for (size_t done = 0; done < size && !s->write_error;) {
        ssize_t n = write(s->file, (const char *)bytes + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) s->write_error = errno;
        if (n > 0) done += (size_t)n;
    }
    if (s->write_error) return false;
    const bool first = s->have < 4 && s->have + size >= 4;
    sha256_add(&s->hash, bytes, size);
    s->have += size;
    s->other = first && is_other_content(s);
    if (s->other) return false;
    progress_update(&s->bar, s->have);
    /* More than there should be is wrong content, however long it goes on. */
    return !interrupted() && (!s->expected || s->have <= s->expected);
}

/* ---- Transfers ---- */

static int fail_other_content(const struct download_state *s) {
    unlink(s->d->partial);
    return fail("%s: what the server sent is no GGUF file; the file was deleted", s->d->name);
}

static bool may_pass(long status) { return status == 429 || status >= 500; }

/* Requests what is missing until everything is there. */
static int transfer(struct download_state *s) {
    uint64_t furthest = s->have; /* only what goes beyond it is progress */
    for (int attempt = 0;;) {
        if (s->expected && s->have >= s->expected) return EXIT_OK;
        const uint64_t before = s->have;
        struct http_response r;
        s->begun = false;
        struct http_request request = {
            .url = s->d->url, .token = s->d->token, .from = s->have, .write = on_bytes, .user = s};
        const bool complete = http_perform(&request, &r);
        if (s->begun) progress_end(&s->bar);
        if (interrupted()) {
            fprintf(stderr, "tenon: stopped; the same command continues\n");
            return EXIT_INTERRUPTED;
        }
        if (s->write_error) return fail("cannot write %s: %s", s->d->partial, strerror(s->write_error));
        if (s->other) return fail_other_content(s);
        if (s->changed && !s->d->tag_path) return fail("%s changed on the server meanwhile; try again", s->d->name);
        if (s->again) {
            s->again = false;
            furthest = 0;
            if (!restart_partial(s)) return fail("cannot write %s: %m", s->d->partial);
            if (++attempt >= MAX_ATTEMPTS) return fail("%s changes on the server all the time", s->d->name);
            continue;
        }
        if (complete && (r.status == 200 || r.status == 206)) {
            if (!s->expected || s->have >= s->expected) return EXIT_OK;
            snprintf(r.error, sizeof r.error, "the server sent %llu of %llu bytes", (unsigned long long)s->have,
                     (unsigned long long)s->expected);
            r.cut = true;
        } else if (complete && r.status == 416) { /* the partial file is not a part of it */
            if (!before || !restart_partial(s)) return fail_http(s->d->name, &r);
            if (++attempt >= MAX_ATTEMPTS) return fail_http(s->d->name, &r);
            continue;
        } else if (s->expected && s->have > s->expected) {
            return EXIT_OK; /* checked by the caller */
        } else if (complete ? !may_pass(r.status) : !r.cut) {
            return fail_http(s->d->name, &r);
        }
        attempt = s->have > furthest ? 0 : attempt + 1;
        if (s->have > furthest) furthest = s->have;
        if (attempt >= MAX_ATTEMPTS) return fail_http(s->d->name, &r);
        char status[32];
        snprintf(status, sizeof status, "status %ld", r.status);
        fprintf(stderr, "tenon: %s: %s; trying again\n", s->d->name, r.error[0] ? r.error : status);
        wait_to_retry(attempt, complete ? r.retry_after : -1);
        if (interrupted()) return EXIT_INTERRUPTED;
    }
}

static int check_space(const struct download_state *s) {
    struct statvfs info;
    char needed[HUMAN_SIZE], there[HUMAN_SIZE];
    if (!s->expected || fstatvfs(s->file, &info) != 0) return EXIT_OK;
    const uint64_t room = (uint64_t)info.f_bavail * info.f_frsize;
    if (s->expected - s->have <= room) return EXIT_OK;
    return fail("%s needs %s more, but %s has room for %s", s->d->name, human_bytes(needed, s->expected - s->have),
                s->d->path, human_bytes(there, room));
}

/* A file that is not the right one is never kept. */
static int check_content(struct download_state *s) {
    char found[65];
    if (s->expected && s->have != s->expected) {
        unlink(s->d->partial);
        return fail("%s: %llu bytes came instead of %llu; the file was deleted", s->d->name,
                    (unsigned long long)s->have, (unsigned long long)s->expected);
    }
    sha256_text(&s->hash, found);
    if (!s->d->sha256 || strcmp(found, s->d->sha256) == 0)
        return is_other_content(s) ? fail_other_content(s) : EXIT_OK;
    unlink(s->d->partial);
    return fail("%s: its SHA-256 is %.16s… instead of %.16s…; the file was deleted, try again", s->d->name, found,
                s->d->sha256);
}

static bool write_tag(const struct download *d, const char *tag) {
    char partial[HUB_PATH + 16];
    if ((size_t)snprintf(partial, sizeof partial, "%s.new", d->tag_path) >= sizeof partial) return false;
    FILE *file = fopen(partial, "w");
    if (!file) return false;
    const bool written = fputs(tag, file) >= 0;
    return fclose(file) == 0 && written && rename(partial, d->tag_path) == 0;
}

static int download_locked(const struct download *d) {
    struct download_state s = {.d = d, .file = -1, .expected = d->size};
    snprintf(s.tag, sizeof s.tag, "%s", d->tag ? d->tag : "");
    if (!d->sha256 && !*s.tag) unlink(d->partial); /* what it is a beginning of is not known */
    int code = open_partial(&s);
    if (!code) code = check_space(&s);
    if (!code && s.have && s.have < s.expected) {
        char have[HUMAN_SIZE];
        fprintf(stderr, "tenon: %s: continuing after %s\n", d->name, human_bytes(have, s.have));
    }
    if (!code) code = transfer(&s);
    if (!code) code = check_content(&s);
    if (!code && (fsync(s.file) != 0 || !make_folders_of(d->path) || rename(d->partial, d->path) != 0))
        code = fail("cannot write %s: %m", d->path);
    /* The name of the partial file stands for the content that was asked about. */
    if (code && s.changed) unlink(d->partial);
    if (!code && d->tag_path && !write_tag(d, d->tag && *d->tag ? s.tag : ""))
        code = fail("cannot write %s: %m", d->tag_path);
    if (s.file >= 0) close(s.file);
    return code;
}

/* ---- One process at a time ---- */

static int take_lock(const struct download *d, int *lock) {
    if (!make_folders_of(d->lock)) return fail("cannot make the folder of %s: %m", d->lock);
    *lock = open(d->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*lock < 0) return fail("cannot write %s: %m", d->lock);
    for (bool told = false; flock(*lock, LOCK_EX | LOCK_NB) != 0; told = true) {
        if (errno != EWOULDBLOCK && errno != EINTR) return fail("cannot lock %s: %m", d->lock);
        if (!told) fprintf(stderr, "tenon: another process downloads %s; waiting for it\n", d->name);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        if (interrupted()) return EXIT_INTERRUPTED;
    }
    return EXIT_OK;
}

static bool is_complete(const struct download *d) {
    struct stat info;
    if (d->tag_path) {
        char known[160] = "";
        FILE *file = fopen(d->tag_path, "r");
        if (file && !fgets(known, sizeof known, file)) known[0] = '\0';
        if (file) fclose(file);
        if (strcmp(known, d->tag ? d->tag : "") != 0) return false;
    }
    return stat(d->path, &info) == 0 && S_ISREG(info.st_mode) && (!d->size || (uint64_t)info.st_size == d->size);
}

int download_file(const struct download *d) {
    int lock = -1;
    if (is_complete(d)) return EXIT_OK;
    int code = take_lock(d, &lock);
    if (!code && !is_complete(d)) code = download_locked(d);
    if (lock >= 0) close(lock);
    return code;
}
