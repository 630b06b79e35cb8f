/* Open GGUF files: reading, mapping, split sets, and access to tensors. */
#include "base/checked.h"
#include "gguf/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAP_ALIGNMENT = 32, COPY_ALIGNMENT = 64 }; /* minimum alignment of data pointers, as documented in gguf.h */

/* ---- Bytes of a part ---- */

static tn_status read_part(void *user, uint64_t offset, void *out, size_t size) {
    const tn__gguf_part *part = user;
    if (part->memory) {
        memcpy(out, part->memory + offset, size);
        return TN_OK;
    }
    char *to = out;
    while (size > 0) {
        ssize_t got = pread(part->fd, to, TN__MIN(size, (size_t)1 << 30), (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return tn_fail(TN_E_IO, "%s: byte %" PRIu64 ": %s", part->path, offset, strerror(errno));
        if (got == 0)
            return tn_fail(TN_E_IO, "%s: byte %" PRIu64 ": the file was cut short while it was open", part->path,
                           offset);
        to += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return TN_OK;
}

static tn_status open_input_part(tn__gguf_part *part) {
    struct stat info;
    part->fd = open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block: it is refused below */
    if (part->fd < 0) return tn_fail(TN_E_IO, "%s: %s", part->path, strerror(errno));
    if (fstat(part->fd, &info) != 0) return tn_fail(TN_E_IO, "%s: %s", part->path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return tn_fail(TN_E_IO, "%s: this is a folder, not a file", part->path);
    if (!S_ISREG(info.st_mode)) return tn_fail(TN_E_IO, "%s: not a regular file", part->path);
    if (info.st_size == 0) return tn_fail(TN_E_FORMAT, "%s: the file is empty, not a GGUF model", part->path);
    part->size = (uint64_t)info.st_size;
    part->modified = info.st_mtim;
    return TN_OK;
}

static tn_status parse_part(tn__gguf_part *part) {
    tn__gguf_source source = {.path = part->path, .size = part->size, .read = read_part, .user = part};
    return tn__gguf_head_parse(&source, &part->head);
}

static void close_input_part(tn__gguf_part *part) {
    if (part->map) munmap(part->map, part->map_size);
    if (part->fd >= 0) close(part->fd);
    tn_free(part->copy);
    tn_free(part->path);
    tn__gguf_head_free(&part->head);
}

/* ---- Tensor data ---- */

/* Copies all tensors into one allocated block. */
static tn_status copy_tensor_data(tn__gguf_part *part) {
    tn__gguf_head *head = &part->head;
    size_t total = 0;
    for (size_t i = 0; i < head->tensor_count; i++) {
        size_t padded;
        if (!tn__align_up_checked(head->tensors[i].size, COPY_ALIGNMENT, &padded) ||
            !tn__add_size(total, padded, &total))
            return tn_fail(TN_E_OVERFLOW, "%s: the tensors' sizes overflow", part->path);
    }
    char *to = part->copy = tn_malloc_aligned(total, COPY_ALIGNMENT);
    if (!to) return tn_fail_more(TN_E_NOMEM, " (tensor data of %s)", part->path);
    for (size_t i = 0; i < head->tensor_count; i++) {
        tn_gguf_tensor *tensor = &head->tensors[i];
        TN_TRY(read_part(part, tensor->file_offset, to, tensor->size));
        tensor->data = to;
        to += tn__align_up(tensor->size, COPY_ALIGNMENT);
    }
    return TN_OK;
}

static tn_status map_data(tn__gguf_part *part) {
    tn__gguf_head *head = &part->head;
    const unsigned char *base = part->memory;
    if (!base) {
        if (part->size > SIZE_MAX) return tn_fail(TN_E_TOO_BIG, "%s: larger than the address space", part->path);
        void *map = mmap(NULL, (size_t)part->size, PROT_READ, MAP_SHARED, part->fd, 0);
        if (map == MAP_FAILED)
            return tn_fail(TN_E_IO, "%s: cannot map %" PRIu64 " bytes: %s", part->path, part->size, strerror(errno));
        part->map = map;
        part->map_size = (size_t)part->size;
        base = map;
    }
    for (size_t i = 0; i < head->tensor_count; i++) head->tensors[i].data = base + head->tensors[i].file_offset;
    return TN_OK;
}

static tn_status load_data(tn__gguf_part *part, tn_gguf_mode mode) {
    if (mode == TN_GGUF_META || part->head.no_data || part->head.tensor_count == 0) return TN_OK;
    bool aligned = part->head.alignment >= MAP_ALIGNMENT && (uintptr_t)part->memory % MAP_ALIGNMENT == 0;
    return mode == TN_GGUF_MAP && aligned ? map_data(part) : copy_tensor_data(part);
}

/* ---- Open ---- */

static tn_status check_split_keys(const tn_gguf *file, int k) {
    const tn__gguf_part *part = &file->parts[k];
    const tn__gguf_head *head = &part->head;
    size_t no = tn__gguf_index_find(&head->key_index, head->keys, sizeof *head->keys, "split.no");
    size_t count = tn__gguf_index_find(&head->key_index, head->keys, sizeof *head->keys, "split.count");
    uint64_t no_value, count_value;
    if (no == SIZE_MAX || count == SIZE_MAX || !tn_gguf_value_u64(&head->keys[no].value, &no_value) ||
        !tn_gguf_value_u64(&head->keys[count].value, &count_value))
        return tn_fail(TN_E_FORMAT, "%s: has the name of a part of a split model, but no split.no and split.count",
                       part->path);
    if (no_value != (uint64_t)k || count_value != (uint64_t)file->part_count)
        return tn_fail(TN_E_FORMAT, "%s: metadata of part %" PRIu64 " of %" PRIu64 ", but the name of part %d of %d",
                       part->path, no_value + 1, count_value, k + 1, file->part_count);
    return TN_OK;
}

/* The tensors of all parts in one table. */
static tn_status join_tensors(tn_gguf *file) {
    for (int k = 0; k < file->part_count; k++) file->tensor_count += file->parts[k].head.tensor_count;
    if (file->tensor_count > TN_GGUF_MAX_TENSORS)
        return tn_fail(TN_E_LIMIT, "%s: %zu tensors in all parts, the limit is %d", file->parts[0].path,
                       file->tensor_count, TN_GGUF_MAX_TENSORS);
    file->tensors = tn_calloc(file->tensor_count, sizeof *file->tensors);
    if (!file->tensors) return TN_E_NOMEM;
    size_t at = 0, duplicate;
    for (int k = 0; k < file->part_count; k++)
        for (size_t i = 0; i < file->parts[k].head.tensor_count; i++) {
            file->tensors[at] = file->parts[k].head.tensors[i];
            file->tensors[at++].part = k;
        }
    TN_TRY(tn__gguf_index_build(&file->tensor_index, file->tensors, sizeof *file->tensors, file->tensor_count,
                                &duplicate));
    if (duplicate < file->tensor_count) {
        const tn_gguf_tensor *tensor = &file->tensors[duplicate];
        const tn__gguf_part *part = &file->parts[tensor->part];
        return tn_fail(TN_E_FORMAT, "%s: byte %zu: tensor \"%s\" appears twice", part->path,
                       (size_t)(tensor->name - (const char *)part->head.bytes), tensor->name);
    }
    uint64_t stated = tn_gguf_get_u64(file, "split.tensors.count", file->tensor_count);
    if (file->part_count > 1 && stated != file->tensor_count)
        return tn_fail(TN_E_FORMAT, "%s: the parts hold %zu tensors, but split.tensors.count is %" PRIu64,
                       file->parts[0].path, file->tensor_count, stated);
    return TN_OK;
}

static tn_status new_file(int parts, tn_gguf_mode mode, tn_gguf **out) {
    tn_gguf *file = tn_calloc(1, sizeof *file);
    if (!file) return TN_E_NOMEM;
    atomic_init(&file->owners, 1);
    file->mode = mode;
    file->part_count = parts;
    file->parts = tn_calloc((size_t)parts, sizeof *file->parts);
    if (!file->parts) {
        tn_free(file);
        return TN_E_NOMEM;
    }
    for (int k = 0; k < parts; k++) file->parts[k].fd = -1;
    *out = file;
    return TN_OK;
}

static tn_status finish_open(tn_gguf *file) {
    for (int k = 0; k < file->part_count; k++) TN_TRY(load_data(&file->parts[k], file->mode));
    return join_tensors(file);
}

tn_status tn_gguf_open(const char *path, const tn_gguf_params *params, tn_gguf **out) {
    *out = NULL;
    if (!path || !*path) return tn_fail(TN_E_INVALID, "no path was given for the GGUF file");
    char base[PATH_MAX], name[PATH_MAX];
    int part = 0, count = 1;
    bool split = !(params && params->one_part) && tn__gguf_part_parse(path, base, sizeof base, &part, &count);
    if (!split) count = 1;
    tn_gguf *file;
    TN_TRY(new_file(count, params ? params->mode : TN_GGUF_MAP, &file));
    tn_status status = TN_OK;
    for (int k = 0; k < count; k++) {
        if (split) TN_TRY_GOTO(tn_gguf_part_name(base, k, count, name, sizeof name), status, out);
        file->parts[k].path = tn_strdup(split ? name : path);
        if (!file->parts[k].path) {
            status = TN_E_NOMEM;
            goto out;
        }
        TN_TRY_GOTO(open_input_part(&file->parts[k]), status, out);
        TN_TRY_GOTO(parse_part(&file->parts[k]), status, out);
        if (split) TN_TRY_GOTO(check_split_keys(file, k), status, out);
    }
    status = finish_open(file);
out:
    if (status != TN_OK)
        tn_gguf_close(file);
    else
        *out = file;
    return status;
}

tn_status tn_gguf_open_memory(const void *bytes, size_t size, const tn_gguf_params *params, tn_gguf **out) {
    *out = NULL;
    if (!bytes) return tn_fail(TN_E_INVALID, "no memory was given for the GGUF file");
    tn_gguf *file;
    TN_TRY(new_file(1, params ? params->mode : TN_GGUF_MAP, &file));
    tn__gguf_part *part = &file->parts[0];
    part->memory = bytes;
    part->size = size;
    part->path = tn_strdup(params && params->name ? params->name : "memory");
    tn_status status = part->path ? parse_part(part) : TN_E_NOMEM;
    if (status == TN_OK) status = finish_open(file);
    if (status != TN_OK)
        tn_gguf_close(file);
    else
        *out = file;
    return status;
}

tn_gguf *tn_gguf_share(tn_gguf *file) {
    atomic_fetch_add(&file->owners, 1);
    return file;
}

void tn_gguf_close(tn_gguf *file) {
    if (!file || atomic_fetch_sub(&file->owners, 1) != 1) return;
    for (int k = 0; k < file->part_count; k++) close_input_part(&file->parts[k]);
    tn_free(file->parts);
    tn_free(file->tensors);
    tn_free(file->tensor_index.slots);
    tn_free(file);
}

/* ---- Properties ---- */

const char *tn_gguf_path(const tn_gguf *file) { return file->parts[0].path; }
const char *tn_gguf_part_path(const tn_gguf *file, int part) {
    return part >= 0 && part < file->part_count ? file->parts[part].path : NULL;
}
int tn_gguf_part_count(const tn_gguf *file) { return file->part_count; }
uint32_t tn_gguf_version(const tn_gguf *file) { return file->parts[0].head.version; }
uint32_t tn_gguf_alignment(const tn_gguf *file) { return file->parts[0].head.alignment; }

uint64_t tn_gguf_file_bytes(const tn_gguf *file) {
    uint64_t total = 0;
    for (int k = 0; k < file->part_count; k++) total += file->parts[k].size;
    return total;
}

bool tn_gguf_has_data(const tn_gguf *file) {
    for (int k = 0; k < file->part_count; k++)
        if (file->parts[k].head.no_data) return false;
    return true;
}

tn_status tn_gguf_check_unchanged(const tn_gguf *file) {
    for (int k = 0; k < file->part_count; k++) {
        const tn__gguf_part *part = &file->parts[k];
        struct stat info;
        if (part->fd < 0) continue;
        if (fstat(part->fd, &info) != 0) return tn_fail(TN_E_IO, "%s: %s", part->path, strerror(errno));
        if ((uint64_t)info.st_size != part->size)
            return tn_fail(TN_E_STATE, "%s: had %" PRIu64 " bytes when it was opened, now %" PRIu64, part->path,
                           part->size, (uint64_t)info.st_size);
        if (info.st_mtim.tv_sec != part->modified.tv_sec || info.st_mtim.tv_nsec != part->modified.tv_nsec)
            return tn_fail(TN_E_STATE, "%s: was modified since it was opened", part->path);
    }
    return TN_OK;
}

/* ---- Tensors ---- */

uint64_t tn_gguf_tensor_count(const tn_gguf *file) { return file->tensor_count; }

const tn_gguf_tensor *tn_gguf_tensor_at(const tn_gguf *file, uint64_t index) {
    return index < file->tensor_count ? &file->tensors[index] : NULL;
}

const tn_gguf_tensor *tn_gguf_find_tensor(const tn_gguf *file, const char *name) {
    size_t i = tn__gguf_index_find(&file->tensor_index, file->tensors, sizeof *file->tensors, name);
    return i == SIZE_MAX ? NULL : &file->tensors[i];
}

tn_status tn_gguf_read(const tn_gguf *file, const tn_gguf_tensor *tensor, size_t offset, void *out, size_t size) {
    tn__gguf_part *part = &file->parts[tensor->part];
    if (part->head.no_data) return tn_fail(TN_E_STATE, "%s: has no tensor data: it is for planning only", part->path);
    if (offset > tensor->size || size > tensor->size - offset)
        return tn_fail(TN_E_INVALID, "tensor \"%s\": bytes %zu to %zu requested, but it has %zu", tensor->name,
                       offset, offset + size, tensor->size);
    return read_part(part, tensor->file_offset + offset, out, size);
}

static void advise(const tn_gguf *file, const tn_gguf_tensor *tensor, int advice, bool whole_pages) {
    const tn__gguf_part *part = &file->parts[tensor->part];
    if (!part->map) return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)tensor->data, end = start + tensor->size;
    /* Prefetching may include neighbouring bytes; evicting must not. */
    start = whole_pages ? (start + page - 1) & ~(page - 1) : start & ~(page - 1);
    end = whole_pages ? end & ~(page - 1) : end;
    if (start < end) madvise((void *)start, end - start, advice);
}
void tn_gguf_prefetch(const tn_gguf *file, const tn_gguf_tensor *tensor) {
    advise(file, tensor, MADV_WILLNEED, false);
}
void tn_gguf_evict(const tn_gguf *file, const tn_gguf_tensor *tensor) { advise(file, tensor, MADV_DONTNEED, true); }

/* ---- Part names ---- */

static const char ending[] = ".gguf";

tn_status tn_gguf_part_name(const char *base, int part, int count, char *out, size_t size) {
    size_t stem = strlen(base), tail = sizeof ending - 1;
    if (stem >= tail && strcmp(base + stem - tail, ending) == 0) stem -= tail;
    int written = snprintf(out, size, "%.*s-%05d-of-%05d%s", (int)stem, base, part + 1, count, ending);
    if (written < 0 || (size_t)written >= size) return tn_fail(TN_E_LIMIT, "path too long: %s", base);
    return TN_OK;
}

static bool five_digits(const char *text, int *out) {
    int value = 0;
    for (int i = 0; i < 5; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (text[i] - '0');
    }
    *out = value;
    return true;
}

bool tn__gguf_part_parse(const char *path, char *base, size_t size, int *part, int *count) {
    const size_t tail = strlen("-00001-of-00001.gguf");
    size_t length = strlen(path);
    if (length <= tail || length >= size) return false;
    const char *t = path + length - tail;
    if (t[0] != '-' || !five_digits(t + 1, part) || strncmp(t + 6, "-of-", 4) != 0 || !five_digits(t + 10, count) ||
        strcmp(t + 15, ending) != 0)
        return false;
    if (*part < 1 || *count < 1 || *part > *count || *count > TN_GGUF_MAX_PARTS) return false;
    *part -= 1;
    snprintf(base, size, "%.*s%s", (int)(length - tail), path, ending);
    return true;
}
