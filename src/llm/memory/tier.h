/* Tiers below the KV cache: the contents of evicted prefixes are stored in host memory, then on disk, and loaded
 * when a sequence begins with the same tokens.
 *
 * The content is cut into blobs. A blob holds the cells of up to TN__BLOCK tokens, which lie in one block of
 * positions [k·TN__BLOCK, (k + 1)·TN__BLOCK), of all layers of one kind; or the recurrent state after a token. Its
 * key is the hash of the model's identity, the caller's key and all tokens up to its first one; its own tokens are
 * stored with it and compared one by one. Blobs with the same tokens are stored once, so that a tree of conversations
 * takes the memory of its distinct blocks. A blob is read only after its checksum was verified. */
#ifndef TN_LLM_MEMORY_TIER_H
#define TN_LLM_MEMORY_TIER_H

#include "llm/memory/kv_cache.h"

#include <pthread.h>

enum { TN__BLOCK = 32 };

/* Of the key and of all tokens up to one; 0: unknown. */
__extension__ typedef unsigned __int128 tn__hash128;

/* ---- Kinds ---- */

/* The cells of each group of layers are a kind. States of recurrent layers are another, whose blobs have one token:
 * the last one that the state covers. */
enum { TN__BLOB_STATES = TN__CACHE_GROUPS, TN__BLOB_KINDS };

/* The parts of the blobs of a kind: each has one row per token. */
typedef struct tn__blob_part {
    tn_tensor *tensor; /* rows by cell, or by state */
    size_t row;        /* bytes */
    size_t before;     /* bytes per token of the parts before this one */
} tn__blob_part;

typedef struct tn__blob_kind {
    tn__blob_part *parts;
    size_t n_parts, token_bytes;
} tn__blob_kind;

/* ---- Index (tier_index.c): blobs by key ---- */

typedef struct tn__blob {
    tn__hash128 key;
    uint64_t mark;      /* of the tokens: with key and kind the name of its file */
    uint64_t bytes;     /* of the content; on disk of the whole file */
    uint64_t sum;       /* of the content, in host memory */
    int32_t kind, from; /* from: the position of its first token */
    int32_t n;          /* tokens; 0: a file that is counted but cannot be used */
    int32_t next;       /* with the same bucket, or of the unused ones; -1: none */
    int32_t unit;       /* host memory: its first unit */
    int32_t pins;       /* pins: users that prevent its eviction */
    bool resident;      /* in host memory: the device has it as well */
    bool handled;       /* in host memory: it was written to disk, or could not be */
    bool seen;          /* on disk: the folder has it */
    tn_token tokens[TN__BLOCK];
} tn__blob;

typedef struct tn__blob_index {
    int32_t capacity, n, unused;
    size_t n_buckets;
    tn__blob *blobs;
    int32_t *buckets;
    uint64_t *used; /* per blob: when; 0: unused entry */
} tn__blob_index;

/* The key and tokens of a lookup or insertion. */
typedef struct tn__blob_id {
    tn__hash128 key;
    int32_t kind, from, n;
    const tn_token *tokens;
} tn__blob_id;

size_t tn__blob_index_bytes(int32_t capacity);
/* An empty index in memory of that size, aligned to 16. */
void tn__blob_index_bind(tn__blob_index *index, int32_t capacity, void *memory);
/* The blob with the longest common prefix, of *common > 0 tokens; -1: none. */
int32_t tn__blob_index_find(const tn__blob_index *index, const tn__blob_id *id, int32_t *common);
/* A blob that holds all of these tokens, or -1. */
int32_t tn__blob_index_holds(const tn__blob_index *index, const tn__blob_id *id);
/* A blob whose tokens are a proper prefix of these tokens; -1: none. */
int32_t tn__blob_index_shorter(const tn__blob_index *index, const tn__blob_id *id);
/* The blob whose file has this name, or -1. */
int32_t tn__blob_index_named(const tn__blob_index *index, tn__hash128 key, uint64_t mark, int32_t kind);
/* -1: the index is full. */
int32_t tn__blob_index_add(tn__blob_index *index, const tn__blob_id *id, uint64_t used);
void tn__blob_index_remove(tn__blob_index *index, int32_t blob);
/* The least recently used blob without pins; -1: none. */
int32_t tn__blob_index_oldest(const tn__blob_index *index);
uint64_t tn__blob_mark(const tn_token *tokens, int32_t n);

/* ---- Content: in one piece, or in units of host memory ---- */

enum { TN__BLOB_UNITS = 4 * TN__BLOCK };
typedef struct tn__blob_content {
    char *base;
    size_t unit;                   /* bytes per piece, a multiple of 64; 0: all in one piece */
    int32_t units[TN__BLOB_UNITS]; /* numbers of the pieces */
} tn__blob_content;

static inline char *tn__blob_piece(const tn__blob_content *c, size_t offset, size_t *size) {
    if (!c->unit) return c->base + offset;
    const size_t inside = offset % c->unit;
    if (*size > c->unit - inside) *size = c->unit - inside;
    return c->base + (size_t)c->units[offset / c->unit] * c->unit + inside;
}
/* The checksum of the content, independent of its pieces. It detects every change of a single word. */
uint64_t tn__blob_sum(const tn__blob_content *content, size_t bytes);

/* ---- Host memory (tier_host.c) ---- */

typedef struct tn__host_tier {
    tn__blob_index index;
    char *memory; /* one allocation: units, links, index */
    size_t bytes; /* of it */
    size_t unit;
    char *units;
    int32_t *links; /* per unit: the next one of its blob, or of the unused ones; -1: none */
    int32_t n_units, n_unused, unused;
    uint64_t clock;
} tn__host_tier;

/* The unit for blobs of up to TN__BLOCK tokens whose cells have `token_bytes`, and states of `state_bytes`. */
size_t tn__host_tier_unit(size_t token_bytes, size_t state_bytes);
/* Sizes a tier of at most `budget` bytes. TN_E_INVALID: too small for a few blobs. */
tn_status tn__host_tier_size(tn__host_tier *tier, size_t budget, size_t unit);
/* Bytes of a tier of `n` units. */
size_t tn__host_tier_bytes_for(int32_t n, size_t unit);
tn_status tn__host_tier_allocate(tn__host_tier *tier);
void tn__host_tier_free(tn__host_tier *tier);
int32_t tn__host_tier_units(const tn__host_tier *tier, size_t bytes);
/* Adds a blob, for which there is space. It is pinned. */
int32_t tn__host_tier_add(tn__host_tier *tier, const tn__blob_id *id, size_t bytes);
bool tn__host_tier_has_room(const tn__host_tier *tier, size_t bytes);
void tn__host_tier_remove(tn__host_tier *tier, int32_t blob);
void tn__host_tier_touch(tn__host_tier *tier, int32_t blob);
/* Marks a blob as present on the device: it is evicted first. */
void tn__host_tier_demote(tn__host_tier *tier, int32_t blob);
tn__blob_content tn__host_tier_content(const tn__host_tier *tier, int32_t blob);

/* ---- Disk (tier_disk.c, tier_file.c) ---- */

typedef struct tn__disk_tier {
    tn__blob_index index;
    char *memory; /* of the index */
    char *path;
    int folder, lock; /* files; -1: the tier is off */
    uint64_t budget;  /* bytes */
    uint64_t bytes;   /* of all files */
    uint64_t changes; /* of the folder, as far as the index knows */
    uint64_t salt[2]; /* of all keys of the folder */
    uint64_t retry;   /* after a failure: the time from which on files are written again */
    bool noted_damage, noted_failure;
} tn__disk_tier;

/* The capacity of an index in files, if blobs have up to TN__BLOCK units. */
int32_t tn__disk_tier_capacity(uint64_t budget, size_t unit);
/* Opens or creates the folder and lists its blobs. TN_E_IO: the folder cannot be used. */
tn_status tn__disk_tier_open(tn__disk_tier *tier, const char *path, uint64_t budget, int32_t capacity);
void tn__disk_tier_close(tn__disk_tier *tier);
/* Writes a file, evicting others if necessary. `mutex` protects the index; the caller does not hold it. */
tn_status tn__disk_tier_write(tn__disk_tier *tier, pthread_mutex_t *mutex, const tn__blob_id *id,
                              const tn__blob_content *content, size_t bytes, uint64_t sum);
/* Reads and verifies the content of a blob. On failure the blob is dropped. Called without the mutex. */
tn_status tn__disk_tier_read(tn__disk_tier *tier, pthread_mutex_t *mutex, const tn__blob_id *id, void *to,
                             size_t bytes);
/* Drops a blob. Called with the mutex. */
void tn__disk_tier_remove(tn__disk_tier *tier, int32_t blob);

/* Files (tier_file.c). Names have 48 hexadecimal digits, the kind, and a suffix. */
enum { TN__BLOB_NAME = 64 };
/* The beginning of a file; the content follows. */
typedef struct tn__blob_header {
    char magic[8];
    uint32_t version, kind;
    uint64_t key[2];
    int32_t from, n;
    uint64_t bytes, sum; /* of the content */
    tn_token tokens[TN__BLOCK];
    uint64_t header_sum; /* of all before */
} tn__blob_header;

void tn__blob_file_name(char name[TN__BLOB_NAME], tn__hash128 key, uint64_t mark, int32_t kind, bool partial);
/* Key, mark and kind of a name; false: it is not such a name. */
bool tn__blob_file_parse(const char *name, tn__hash128 *key, uint64_t *mark, int32_t *kind, bool *partial);
/* Whether the file's header is valid and agrees with its name and size. */
bool tn__blob_file_check(int folder, const char *name, uint64_t size, tn__blob_header *header);
tn_status tn__blob_file_write(int folder, const tn__blob_id *id, const tn__blob_content *content, size_t bytes,
                              uint64_t sum);
tn_status tn__blob_file_read(int folder, const tn__blob_id *id, void *to, size_t bytes);
bool tn__blob_write_all(int file, const void *bytes, size_t size);

/* ---- Tiers of a session (tiers.c, tier_take.c, tier_writer.c) ---- */

/* The source of a block of positions. */
typedef struct tn__tier_step {
    int32_t blob;               /* of the host's index */
    int32_t from, end;          /* the positions that it has for the prompt */
    int32_t n;                  /* tokens of the blob */
    uint8_t tier;               /* TN__TIER_… */
    tn_token tokens[TN__BLOCK]; /* of a blob on disk, which other processes may remove */
} tn__tier_step;
enum { TN__TIER_NONE, TN__TIER_HOST, TN__TIER_DISK };

/* What a sequence can take of a kind of cells: the positions from `first` on. A list on the device has those from
 * `held` to held_end - 1, blobs have the others. */
typedef struct tn__tier_range {
    int32_t first, held, held_end;
} tn__tier_range;

typedef struct tn__tiers {
    bool on;
    tn__blob_kind kinds[TN__BLOB_KINDS];
    tn__blob_part *parts;
    tn__tier_step *steps[TN__CACHE_GROUPS]; /* per block of the context; NULL: the kind has no parts */
    tn__tier_step state;
    int32_t n_blocks;
    tn__tier_range ranges[TN__CACHE_GROUPS];
    char *buffer; /* a blob that is read from disk */
    tn__host_tier host;
    tn__disk_tier disk;
    tn_tier_usage counts;
    /* The writer: a thread that writes blobs to disk before their host memory is needed. */
    pthread_mutex_t mutex; /* of both indexes and of what follows */
    pthread_cond_t work, done;
    pthread_t thread;
    bool has_mutex, has_thread, stopping, flushing;
    int32_t wanted; /* a blob whose memory is needed now; -1: none */
} tn__tiers;

struct tn_session;
struct tn_session_plan;

/* Copies rows a … b - 1 of a blob of n tokens from their cells, or to them. */
tn_status tn__blob_copy(const tn__blob_kind *kind, int32_t n, int32_t a, int32_t b, const int32_t *cells,
                        const tn__blob_content *content, bool to_cells);
/* Part of all keys: with a disk the same in every session of this model with these settings, otherwise random. */
tn__hash128 tn__tiers_seed(const struct tn_session *session);
/* Bytes of the host tier, and of the metadata of all tiers. */
tn_status tn__tiers_bytes(const struct tn_session_plan *plan, size_t *host, size_t *beside);
tn_status tn__tiers_new(struct tn_session *session);
/* Writes the stored blobs to disk, if there is one, and frees everything. */
void tn__tiers_free(struct tn_session *session);
/* Call before a kept prefix loses its cells: stores those that no other list holds. */
void tn__tiers_store(struct tn_session *session, int32_t list);
/* Call before a list loses its recurrent state, which covers n tokens: stores it. */
void tn__tiers_store_state(struct tn_session *session, int32_t list, int32_t n);
/* Call before cells of a micro-batch are allocated: stores the blocks that leave the windows of its sequences, so
 * that later sequences can branch anywhere in their texts. */
void tn__tiers_leave_window(struct tn_session *session, int32_t n, const int32_t *positions, const int32_t *seqs);
/* Drops the blobs that the tokens begin with. Their hashes are those of the last prompt. */
void tn__tiers_forget(struct tn_session *session, const tn_token *tokens, int32_t n);
/* Drops all blobs in host memory. */
void tn__tiers_clear(struct tn_session *session);
/* The number of tokens with which an empty sequence can begin, if `list` holds the first `n_held` of them (-1:
 * no list does). *n_full is that number if all windows were present. The hashes of the tokens are those of the last
 * prompt. */
int32_t tn__tiers_find(struct tn_session *session, int32_t list, int32_t n_held, const tn_token *tokens, int32_t n,
                       int32_t *n_full);
/* Starts an empty sequence with *n tokens, as found; *n decreases if a blob cannot be used. After a failure the
 * sequence is empty. */
tn_status tn__tiers_load(struct tn_session *session, int32_t seq, int32_t list, const tn_token *tokens, int32_t *n);
/* Bytes of a blob. */
static inline size_t tn__blob_bytes(const tn__tiers *t, int32_t kind, int32_t n) {
    return t->kinds[kind].token_bytes * (size_t)n;
}

/* The writer (tier_writer.c). All but start and stop are called with the mutex. */
tn_status tn__tier_writer_start(tn__tiers *tiers);
/* Waits until the blob is on disk or could not be written. */
void tn__tier_writer_move(tn__tiers *tiers, int32_t blob);
/* Writes all blobs of host memory that fit on disk, and ends. */
void tn__tier_writer_stop(tn__tiers *tiers);
void tn__tier_writer_wake(tn__tiers *tiers);

#endif
