/* Files of log-probabilities: writing and reading. */
#include "files/log_probs.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};

struct log_probs_file {
    FILE *stream;
    char path[PATH_MAX], partial[PATH_MAX]; /* partial: "" when reading or finished */
    uint16_t *row;
    size_t row_words;
};

static size_t row_words(int32_t n_vocab) { return ((size_t)n_vocab + 1) / 2 * 2 + 4; }
static int64_t rows_per_chunk(int32_t n_ctx) { return n_ctx - 1 - n_ctx / 2; }

static tn_status open_log_probs(const char *path, bool write, struct log_probs *p) {
    *p = (struct log_probs){.file = tn_calloc(1, sizeof *p->file)};
    struct log_probs_file *f = p->file;
    if (!f) return TN_E_NOMEM;
    snprintf(f->path, sizeof f->path, "%s", path);
    if (write && (size_t)snprintf(f->partial, sizeof f->partial, "%s.partial", path) >= sizeof f->partial)
        return tn_fail(TN_E_LIMIT, "%s: the name is too long", path);
    f->stream = fopen(write ? f->partial : path, write ? "wb" : "rb");
    return f->stream ? TN_OK : tn_fail(TN_E_IO, "%s: %m", write ? f->partial : path);
}

static tn_status make_row(struct log_probs *p) {
    p->file->row_words = row_words(p->n_vocab);
    p->file->row = tn_calloc(p->file->row_words, sizeof *p->file->row);
    return p->file->row ? TN_OK : TN_E_NOMEM;
}

/* ---- Writing ---- */

static tn_status write_log_probs(struct log_probs_file *f, const void *bytes, size_t size) {
    if (fwrite(bytes, 1, size, f->stream) == size) return TN_OK;
    return tn_fail(TN_E_IO, "%s: %m", f->partial);
}

tn_status log_probs_create(const char *path, int32_t n_ctx, int32_t n_vocab, int32_t n_chunks, const tn_token *tokens,
                           struct log_probs *p) {
    tn_status status = open_log_probs(path, true, p);
    p->n_ctx = n_ctx;
    p->n_vocab = n_vocab;
    p->n_chunks = n_chunks;
    const int32_t numbers[3] = {n_ctx, n_vocab, n_chunks};
    if (status == TN_OK) status = make_row(p);
    if (status == TN_OK) status = write_log_probs(p->file, magic, sizeof magic);
    if (status == TN_OK) status = write_log_probs(p->file, numbers, sizeof numbers);
    if (status == TN_OK) status = write_log_probs(p->file, tokens, (size_t)n_ctx * (size_t)n_chunks * sizeof *tokens);
    if (status != TN_OK) log_probs_close(p);
    return status;
}

tn_status log_probs_append(struct log_probs *p, const float *logits) {
    struct log_probs_file *f = p->file;
    float most = logits[0], least = logits[0], head[2];
    double sum = 0;
    for (int32_t i = 1; i < p->n_vocab; i++) {
        most = logits[i] > most ? logits[i] : most;
        least = logits[i] < least ? logits[i] : least;
    }
    if (!(least > most - 16)) least = most - 16;
    for (int32_t i = 0; i < p->n_vocab; i++) sum += exp((double)logits[i] - (double)most);
    head[0] = (most - least) / 65535;
    head[1] = (float)((double)least - (double)most - log(sum));
    memcpy(f->row, head, sizeof head);
    const float inverse = head[0] > 0 ? 1 / head[0] : 0;
    for (int32_t i = 0; i < p->n_vocab; i++) {
        const float number = logits[i] > least ? rintf(inverse * (logits[i] - least)) : 0;
        f->row[4 + i] = (uint16_t)(number < 65535 ? number : 65535);
    }
    return write_log_probs(f, f->row, f->row_words * sizeof *f->row);
}

tn_status log_probs_finish(struct log_probs *p) {
    struct log_probs_file *f = p->file;
    const int closed = fclose(f->stream);
    f->stream = NULL;
    if (closed != 0 || rename(f->partial, f->path) != 0) return tn_fail(TN_E_IO, "%s: %m", f->path);
    f->partial[0] = '\0';
    return TN_OK;
}

/* ---- Reading ---- */

static tn_status read_log_probs(struct log_probs_file *f, void *bytes, size_t size) {
    if (fread(bytes, 1, size, f->stream) == size) return TN_OK;
    return tn_fail(TN_E_FORMAT, "%s: byte %ld: the file ends too early", f->path, ftell(f->stream));
}

static tn_status read_head(struct log_probs *p) {
    struct log_probs_file *f = p->file;
    char start[sizeof magic];
    int32_t numbers[3];
    struct stat info;
    TN_TRY(read_log_probs(f, start, sizeof start));
    if (memcmp(start, magic, sizeof magic) != 0)
        return tn_fail(TN_E_FORMAT, "%s: not a file of log-probabilities (--kl-divergence-base)", f->path);
    TN_TRY(read_log_probs(f, numbers, sizeof numbers));
    p->n_ctx = numbers[0];
    p->n_vocab = numbers[1];
    p->n_chunks = numbers[2];
    if (p->n_ctx < 4 || p->n_vocab < 1 || p->n_chunks < 1 || p->n_ctx > 1 << 24 || p->n_vocab > 1 << 26)
        return tn_fail(TN_E_FORMAT, "%s: %d chunks of %d tokens from a vocabulary of %d", f->path, p->n_chunks,
                       p->n_ctx, p->n_vocab);
    const uint64_t tokens = (uint64_t)p->n_ctx * (uint64_t)p->n_chunks * sizeof *p->tokens;
    const uint64_t rows = (uint64_t)rows_per_chunk(p->n_ctx) * (uint64_t)p->n_chunks;
    const double expected = 20.0 + (double)tokens + (double)rows * 2 * (double)row_words(p->n_vocab);
    if (fstat(fileno(f->stream), &info) != 0) return tn_fail(TN_E_IO, "%s: %m", f->path);
    if ((double)info.st_size != expected)
        return tn_fail(TN_E_FORMAT, "%s: %" PRId64 " bytes instead of %.0f: truncated or damaged", f->path,
                       (int64_t)info.st_size, expected);
    p->tokens = tn_malloc((size_t)tokens);
    if (!p->tokens) return TN_E_NOMEM;
    TN_TRY(read_log_probs(f, p->tokens, (size_t)tokens));
    for (int64_t i = 0; i < (int64_t)p->n_ctx * p->n_chunks; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= p->n_vocab)
            return tn_fail(TN_E_FORMAT, "%s: token %d of a vocabulary of %d", f->path, p->tokens[i], p->n_vocab);
    return make_row(p);
}

tn_status log_probs_open(const char *path, struct log_probs *p) {
    tn_status status = open_log_probs(path, false, p);
    if (status == TN_OK) status = read_head(p);
    if (status != TN_OK) log_probs_close(p);
    return status;
}

tn_status log_probs_next(struct log_probs *p, float *row) {
    struct log_probs_file *f = p->file;
    float head[2];
    TN_TRY(read_log_probs(f, f->row, f->row_words * sizeof *f->row));
    memcpy(head, f->row, sizeof head);
    for (int32_t i = 0; i < p->n_vocab; i++) row[i] = head[0] * (float)f->row[4 + i] + head[1];
    return TN_OK;
}

void log_probs_close(struct log_probs *p) {
    if (p->file) {
        if (p->file->stream) fclose(p->file->stream);
        if (p->file->partial[0]) unlink(p->file->partial);
        tn_free(p->file->row);
    }
    tn_free(p->file);
    tn_free(p->tokens);
    *p = (struct log_probs){0};
}
