/* The GGUF reader: valid and malformed files, limits, and failing allocations. */
#include "corpus.h"
#include "gguf_bytes.h"
#include "models/every_model.h"
#include "support.h"
#include "tenon/gguf.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Helpers ---- */

static tn_status open_bytes(const gguf_bytes *b, tn_gguf **file) {
    return tn_gguf_open_memory(b->data, b->size, NULL, file);
}

static void assert_refused(tn_status expected, const gguf_bytes *b, const char *text) {
    tn_gguf *file = NULL;
    tn_status status = open_bytes(b, &file);
    if (status == TN_OK) fail_msg("a file that should fail with \"%s\" was opened", text);
    if (status != expected || !strstr(tn_error(), text))
        fail_msg("expected %s with \"%s\", got %s: %s", tn_status_name(expected), text, tn_status_name(status),
                 tn_error());
    assert_null(file);
}

static bool same_str(tn_gguf_str a, tn_gguf_str b) { return a.size == b.size && memcmp(a.data, b.data, a.size) == 0; }

static bool same_value(const tn_gguf_value *a, const tn_gguf_value *b) {
    if (a->type != b->type) return false;
    if (a->type == TN_GGUF_STR) return same_str(a->str, b->str);
    if (a->type == TN_GGUF_F32 || a->type == TN_GGUF_F64) return a->f == b->f || (isnan(a->f) && isnan(b->f));
    if (a->type == TN_GGUF_BOOL) return a->b == b->b;
    if (a->type != TN_GGUF_ARR) return a->u == b->u;
    if (a->arr.type != b->arr.type || a->arr.count != b->arr.count) return false;
    for (uint64_t i = 0; i < a->arr.count; i++) {
        tn_gguf_value x, y;
        if (!tn_gguf_arr_at(&a->arr, i, &x) || !tn_gguf_arr_at(&b->arr, i, &y) || !same_value(&x, &y)) return false;
    }
    return true;
}

/* Every file of a golden folder, in turn. */
static int for_each_golden(const char *folder, void (*visit)(const char *path)) {
    const char *found = golden_path(folder);
    if (!found) return 0;
    char root[1024], path[2048];
    snprintf(root, sizeof root, "%s", found);
    DIR *dir = opendir(root);
    if (!dir) return 0;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".gguf") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        visit(path);
        count++;
    }
    closedir(dir);
    return count;
}

/* A valid file of about 5 KB with every metadata type, nested arrays and three tensors. */
static gguf_bytes small_file(void) {
    gguf_bytes b = {0};
    gb_header(&b, 3, 3, 18);
    gb_key_str(&b, "general.architecture", "test");
    gb_key_u32(&b, "general.alignment", 64);
    for (uint32_t type = 0; type <= 12; type++) {
        char key[32];
        snprintf(key, sizeof key, "scalar.%u", type);
        if (type == TN_GGUF_STR || type == TN_GGUF_ARR) continue;
        static const int bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        gb_str(&b, key);
        gb_u32(&b, type);
        gb_zeros(&b, (size_t)bytes[type] - 1);
        gb_u8(&b, 1);
    }
    gb_str(&b, "tokens"); /* 120 strings */
    gb_u32(&b, 9);
    gb_u32(&b, 8);
    gb_u64(&b, 120);
    for (int i = 0; i < 120; i++) {
        char token[16];
        snprintf(token, sizeof token, "token%d", i * i);
        gb_str(&b, token);
    }
    gb_str(&b, "nested"); /* [[1, 2, 3], ["a"], []] */
    gb_u32(&b, 9);
    gb_u32(&b, 9);
    gb_u64(&b, 3);
    gb_u32(&b, 2);
    gb_u64(&b, 3);
    for (uint16_t i = 1; i <= 3; i++) gb_put(&b, &i, 2);
    gb_u32(&b, 8);
    gb_u64(&b, 1);
    gb_str(&b, "a");
    gb_u32(&b, 12);
    gb_u64(&b, 0);
    gb_str(&b, "doubles");
    gb_u32(&b, 9);
    gb_u32(&b, 12);
    gb_u64(&b, 5);
    for (int i = 0; i < 5; i++) gb_put(&b, &(double){i * 0.5}, 8);
    gb_str(&b, "flags");
    gb_u32(&b, 9);
    gb_u32(&b, 7);
    gb_u64(&b, 4);
    gb_put(&b, "\1\0\0\1", 4);
    gb_key_str(&b, "last", "a string before the tensor table");
    gb_tensor(&b, "a", 0, 0, 2, (uint64_t[]){16, 16});        /* f32: 1024 bytes */
    gb_tensor(&b, "b", 8, 1024, 2, (uint64_t[]){64, 8});      /* q8_0: 544 bytes */
    gb_tensor(&b, "c.weight", 1, 1600, 1, (uint64_t[]){100}); /* f16 */
    gb_pad(&b, 64);
    for (int i = 0; i < 1800; i++) gb_u8(&b, (uint8_t)(i * 7));
    return b;
}

/* ---- Real files ---- */

static void check_modes_agree(const char *path) {
    tn_gguf *map, *copy, *meta;
    assert_ok(tn_gguf_open(path, NULL, &map));
    assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_READ}, &copy));
    assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &meta));
    assert_ok(tn_gguf_check_unchanged(map));
    assert_int_equal(tn_gguf_key_count(map), tn_gguf_key_count(meta));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(map); i++) {
        const tn_gguf_tensor *a = tn_gguf_tensor_at(map, i), *b = tn_gguf_tensor_at(copy, i),
                             *c = tn_gguf_tensor_at(meta, i);
        assert_ptr_equal(tn_gguf_find_tensor(map, a->name), a);
        assert_true((uintptr_t)a->data % 32 == 0 && (uintptr_t)b->data % 64 == 0);
        assert_memory_equal(a->data, b->data, a->size);
        assert_null(c->data);
        void *bytes = malloc(c->size);
        assert_ok(tn_gguf_read(meta, c, 0, bytes, c->size));
        assert_memory_equal(a->data, bytes, a->size);
        free(bytes);
    }
    for (uint64_t i = 0; i < tn_gguf_key_count(map); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(map, i);
        assert_int_equal(strlen(kv->key.data), kv->key.size);
        assert_ptr_equal(tn_gguf_find(map, kv->key.data), &kv->value);
    }
    tn_gguf_close(map);
    tn_gguf_close(copy);
    tn_gguf_close(meta);
}

static void files_open_alike_in_every_mode(void **state) {
    char own[] = "/tmp/tenon-modes-XXXXXX";
    close(mkstemp(own));
    assert_true(for_each_tiny_model(own, check_modes_agree) > 40);
    if (!golden_path("README.md")) return;
    assert_int_equal(for_each_golden("archs", check_modes_agree), 18);
    assert_true(for_each_golden("vocab", check_modes_agree) >= 7);
    assert_int_equal(for_each_golden("quants", check_modes_agree), 1);
    assert_int_equal(for_each_golden("models", check_modes_agree), 1);
}

static void values_of_every_type_are_read(void **state) {
    gguf_bytes b = small_file();
    tn_gguf *file;
    assert_ok(open_bytes(&b, &file));
    assert_int_equal(tn_gguf_version(file), 3);
    assert_int_equal(tn_gguf_alignment(file), 64);
    assert_string_equal(tn_gguf_path(file), "memory");
    assert_true(tn_gguf_has_data(file));
    assert_string_equal(tn_gguf_get_cstr(file, "general.architecture", "?"), "test");
    assert_string_equal(tn_gguf_get_cstr(file, "no.such", "?"), "?");
    assert_null(tn_gguf_get_str(file, "general.alignment").data);
    assert_int_equal(tn_gguf_get_u32(file, "scalar.0", 7), 1);
    assert_int_equal(tn_gguf_get_u32(file, "scalar.2", 7), 1 << 8);
    assert_int_equal(tn_gguf_get_i32(file, "scalar.5", 7), 1 << 24);
    assert_int_equal(tn_gguf_get_u32(file, "scalar.10", 7), 7); /* 2^56 does not fit */
    assert_true(tn_gguf_get_u64(file, "scalar.10", 7) == (uint64_t)1 << 56);
    assert_true(tn_gguf_get_i64(file, "scalar.11", 7) == (int64_t)1 << 56);
    assert_true(tn_gguf_get_bool(file, "scalar.7", false));
    assert_true(tn_gguf_get_f64(file, "scalar.0", 0) == 1.0); /* integers convert to floats */
    assert_true(tn_gguf_get_u32(file, "scalar.6", 9) == 9);   /* but floats do not convert to integers */
    assert_true(tn_gguf_get_f32(file, "general.architecture", 4.5f) == 4.5f);

    uint64_t count;
    const tn_gguf_str *tokens = tn_gguf_get_array(file, "tokens", TN_GGUF_STR, &count);
    assert_int_equal(count, 120);
    assert_string_equal(tokens[59].data, "token3481");
    assert_null(tn_gguf_get_array(file, "tokens", TN_GGUF_F32, &count));
    assert_int_equal(count, 0);
    const double *doubles = tn_gguf_get_array(file, "doubles", TN_GGUF_F64, &count);
    assert_true(count == 5 && doubles[3] == 1.5);
    assert_true(tn_gguf_get_bool_at(file, "flags", 3, false) && !tn_gguf_get_bool_at(file, "flags", 2, true));
    assert_true(tn_gguf_get_bool_at(file, "flags", 4, true));
    assert_int_equal(tn_gguf_get_u32_at(file, "general.alignment", 17, 0), 64);
    assert_true(tn_gguf_get_f32_at(file, "doubles", 1, 0) == 0.5f);
    const tn_gguf_arr *nested = tn_gguf_get_arr(file, "nested");
    assert_true(nested->type == TN_GGUF_ARR && nested->count == 3);
    const tn_gguf_arr *inner = nested->data;
    assert_int_equal(((const uint16_t *)inner[0].data)[2], 3);
    assert_string_equal(((const tn_gguf_str *)inner[1].data)[0].data, "a");
    assert_true(inner[2].type == TN_GGUF_F64 && inner[2].count == 0);

    uint32_t u;
    tn_gguf_str str;
    assert_fails(TN_E_NOT_FOUND, tn_gguf_need_u32(file, "no.such", &u));
    assert_non_null(strstr(tn_error(), "no.such"));
    assert_fails(TN_E_FORMAT, tn_gguf_need_u32(file, "general.architecture", &u));
    assert_non_null(strstr(tn_error(), "\"general.architecture\" has type str, not a 32-bit integer"));
    assert_fails(TN_E_FORMAT, tn_gguf_need_str(file, "general.alignment", &str));
    assert_non_null(strstr(tn_error(), "\"general.alignment\" is "));
    assert_non_null(strstr(tn_error(), " (u32), not "));
    assert_ok(tn_gguf_need_u32(file, "general.alignment", &u));
    assert_int_equal(u, 64);

    assert_int_equal(tn_gguf_tensor_count(file), 3);
    const tn_gguf_tensor *c = tn_gguf_find_tensor(file, "c.weight");
    assert_true(c->type == TN_F16 && c->n_dims == 1 && c->ne[0] == 100 && c->ne[3] == 1 && c->size == 200);
    assert_int_equal(((const uint8_t *)c->data)[1], (uint8_t)(1601 * 7));
    assert_null(tn_gguf_find_tensor(file, "d"));
    assert_null(tn_gguf_tensor_at(file, 3));
    uint8_t two[2];
    assert_ok(tn_gguf_read(file, c, 198, two, 2));
    assert_fails(TN_E_INVALID, tn_gguf_read(file, c, 199, two, 2));
    assert_fails(TN_E_INVALID, tn_gguf_read(file, c, SIZE_MAX, two, 2));

    tn_gguf *shared = tn_gguf_share(file);
    tn_gguf_close(file);
    assert_int_equal(tn_gguf_tensor_count(shared), 3); /* still open for its other owner */
    tn_gguf_close(shared);
    tn_gguf_close(NULL);
    gb_free(&b);
}

/* ---- Malformed files ---- */

static void wrong_headers_are_refused(void **state) {
    gguf_bytes b = {0};
    gb_header(&b, 3, 0, 0);
    b.data[0] = 'X';
    assert_refused(TN_E_FORMAT, &b, "byte 0: not a GGUF file");
    gb_header(&b, 1, 0, 0);
    assert_refused(TN_E_VERSION, &b, "version 1");
    gb_header(&b, 4, 0, 0);
    assert_refused(TN_E_VERSION, &b, "version 4");
    gb_header(&b, 3u << 24, 0, 0);
    assert_refused(TN_E_VERSION, &b, "big-endian");
    gb_header(&b, 3, 0, UINT64_MAX);
    assert_refused(TN_E_FORMAT, &b, "byte 16: the number of metadata keys");
    gb_header(&b, 3, (uint64_t)1 << 40, 0);
    assert_refused(TN_E_FORMAT, &b, "byte 8: the number of tensors");
    b.size = 3;
    assert_refused(TN_E_FORMAT, &b, "the file ends inside the magic number");
    b.size = 0;
    assert_refused(TN_E_FORMAT, &b, "byte 0");
    gb_header(&b, 2, 0, 0); /* a file without keys and tensors is valid */
    tn_gguf *file;
    assert_ok(open_bytes(&b, &file));
    tn_gguf_close(file);
    tn_gguf *none = (tn_gguf *)&b;
    assert_fails(TN_E_INVALID, tn_gguf_open("", NULL, &none));
    assert_null(none);
    assert_fails(TN_E_IO, tn_gguf_open("/no/such/file.gguf", NULL, &none));
    assert_fails(TN_E_IO, tn_gguf_open("/tmp", NULL, &none));
    gb_free(&b);
}

static void wrong_metadata_is_refused(void **state) {
    gguf_bytes b = {0};
    gb_header(&b, 3, 0, 1);
    gb_key_u32(&b, "", 1);
    assert_refused(TN_E_FORMAT, &b, "byte 24: a key's length is 0");
    gb_header(&b, 3, 0, 2);
    gb_key_u32(&b, "twice", 1);
    gb_key_u32(&b, "twice", 2);
    assert_refused(TN_E_FORMAT, &b, "\"twice\" appears twice");
    gb_header(&b, 3, 0, 1);
    gb_str(&b, "key");
    gb_u32(&b, 13);
    gb_u64(&b, 0);
    assert_refused(TN_E_FORMAT, &b, "byte 35: unknown metadata type 13");
    gb_header(&b, 3, 0, 1);
    gb_u64(&b, UINT64_MAX - 8); /* a length that wraps when added to the position */
    gb_zeros(&b, 64);
    assert_refused(TN_E_FORMAT, &b, "byte 24: a key's length");
    gb_header(&b, 3, 0, 1);
    gb_str(&b, "key");
    gb_u32(&b, TN_GGUF_ARR);
    gb_u32(&b, TN_GGUF_U64);
    gb_u64(&b, (uint64_t)1 << 61); /* times 8 wraps to 0 */
    gb_zeros(&b, 64);
    assert_refused(TN_E_FORMAT, &b, "an array's length");
    gb_header(&b, 3, 0, 1);
    gb_str(&b, "key");
    gb_u32(&b, TN_GGUF_BOOL);
    gb_u8(&b, 2);
    assert_refused(TN_E_FORMAT, &b, "a bool is 2");
    gb_header(&b, 3, 0, 1);
    gb_str(&b, "key");
    for (int i = 0; i < 9; i++) { /* nine levels of [[[…]]] */
        gb_u32(&b, TN_GGUF_ARR);
        if (i) gb_u64(&b, 1);
    }
    gb_u32(&b, TN_GGUF_U8);
    gb_u64(&b, 0);
    gb_zeros(&b, 64);
    assert_refused(TN_E_LIMIT, &b, "nested too deeply");
    gb_header(&b, 3, 0, 1);
    gb_u64(&b, 3);
    gb_put(&b, "a\0b", 3);
    gb_u32(&b, TN_GGUF_U8);
    gb_zeros(&b, 8);
    assert_refused(TN_E_FORMAT, &b, "NUL byte in a name");
    static const uint32_t alignments[] = {0, 3, 48, 0x80000001};
    for (int i = 0; i < 4; i++) {
        gb_header(&b, 3, 0, 1);
        gb_key_u32(&b, "general.alignment", alignments[i]);
        assert_refused(TN_E_FORMAT, &b, "not a power of two");
    }
    gb_header(&b, 3, 0, 1);
    gb_key_u32(&b, "general.alignment", 1u << 31);
    assert_refused(TN_E_LIMIT, &b, "general.alignment");
    gb_header(&b, 3, 0, 1);
    gb_key_str(&b, "general.alignment", "32");
    assert_refused(TN_E_FORMAT, &b, "general.alignment has type str");
    gb_free(&b);
}

/* One tensor with this shape, type and offset, and `data` bytes after the table. */
static void one_tensor(gguf_bytes *b, uint32_t type, uint32_t n_dims, const uint64_t *ne, uint64_t offset,
                       size_t data) {
    gb_header(b, 3, 1, 0);
    gb_tensor(b, "t", type, offset, n_dims, ne);
    gb_pad(b, 32);
    gb_zeros(b, data);
}

static void wrong_tensors_are_refused(void **state) {
    gguf_bytes b = {0};
    one_tensor(&b, 0, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 64);
    assert_refused(TN_E_FORMAT, &b, "5 dimensions");
    one_tensor(&b, 0, 2, (uint64_t[]){4, 0}, 0, 64);
    assert_refused(TN_E_FORMAT, &b, "dimension 1 is 0");
    one_tensor(&b, 0, 1, (uint64_t[]){(uint64_t)-4}, 0, 64);
    assert_refused(TN_E_FORMAT, &b, "dimension 0 is -4");
    one_tensor(&b, 0, 4, (uint64_t[]){1 << 16, 1 << 16, 1 << 16, 1 << 16}, 0, 64); /* 2^64 wraps to 0 */
    assert_refused(TN_E_FORMAT, &b, "overflow");
    one_tensor(&b, 0, 2, (uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 30}, 0, 64); /* times 4 bytes wraps to 0 */
    assert_refused(TN_E_FORMAT, &b, "overflow");
    one_tensor(&b, 8, 1, (uint64_t[]){33}, 0, 64);
    assert_refused(TN_E_FORMAT, &b, "not a multiple of the q8_0 block of 32");
    static const uint32_t unknown[] = {4, 5, 31, 38, 41, 1000, UINT32_MAX};
    for (int i = 0; i < 7; i++) {
        one_tensor(&b, unknown[i], 1, (uint64_t[]){256}, 0, 4096);
        assert_refused(TN_E_FORMAT, &b, "unknown tensor type");
    }
    one_tensor(&b, 0, 1, (uint64_t[]){4}, 8, 64);
    assert_refused(TN_E_FORMAT, &b, "not a multiple of the alignment 32");
    one_tensor(&b, 0, 1, (uint64_t[]){4}, 64, 64);
    assert_refused(TN_E_FORMAT, &b, "cut short");
    one_tensor(&b, 0, 1, (uint64_t[]){4}, (uint64_t)-32, 64);
    assert_refused(TN_E_FORMAT, &b, "cut short");
    one_tensor(&b, 0, 1, (uint64_t[]){17}, 0, 64);
    assert_refused(TN_E_FORMAT, &b, "takes 68 bytes from offset 0 of a data section of 64 bytes");
    gb_header(&b, 3, 2, 0);
    gb_tensor(&b, "a", 0, 0, 1, (uint64_t[]){16});
    gb_tensor(&b, "b", 0, 32, 1, (uint64_t[]){8});
    gb_pad(&b, 32);
    gb_zeros(&b, 64);
    assert_refused(TN_E_FORMAT, &b, "overlaps tensor \"b\"");
    gb_header(&b, 3, 2, 0);
    gb_tensor(&b, "same", 0, 0, 1, (uint64_t[]){8});
    gb_tensor(&b, "same", 0, 32, 1, (uint64_t[]){8});
    gb_pad(&b, 32);
    gb_zeros(&b, 64);
    assert_refused(TN_E_FORMAT, &b, "tensor \"same\" appears twice");
    gb_header(&b, 3, 1, 0);
    gb_tensor(&b, "", 0, 0, 1, (uint64_t[]){8});
    gb_pad(&b, 32);
    gb_zeros(&b, 64);
    assert_refused(TN_E_FORMAT, &b, "a tensor name's length is 0");
    gb_free(&b);
}

/* Data pointers are aligned to 32 even for files with a smaller alignment. */
static void small_alignment_is_copied_to_aligned_memory(void **state) {
    gguf_bytes b = {0};
    gb_header(&b, 3, 2, 1);
    gb_key_u32(&b, "general.alignment", 1);
    gb_tensor(&b, "a", 24, 0, 1, (uint64_t[]){3});
    gb_tensor(&b, "b", 0, 3, 1, (uint64_t[]){2});
    gb_put(&b, "abc", 3);
    gb_put(&b, (float[]){1.5f, 2.5f}, 8);
    tn_gguf *file;
    assert_ok(open_bytes(&b, &file));
    const tn_gguf_tensor *t = tn_gguf_find_tensor(file, "b");
    assert_int_equal((uintptr_t)t->data % 64, 0);
    assert_true(((const float *)t->data)[1] == 2.5f);
    tn_gguf_close(file);
    gb_free(&b);
}

/* ---- Damage ---- */

static size_t largest_allocation;
static void *watching_alloc(void *user, size_t size, size_t align) {
    if (size > largest_allocation) largest_allocation = size;
    void *pointer = NULL;
    return posix_memalign(&pointer, align < 16 ? 16 : align, size ? size : 1) == 0 ? pointer : NULL;
}
static void watching_free(void *user, void *pointer, size_t size) { free(pointer); }

/* Opens damaged bytes, in a block without slack at its end, and reads everything that the reader returns. */
static bool survives(const unsigned char *bytes, size_t size) {
    static volatile unsigned sink;
    unsigned char *exact = malloc(size ? size : 1);
    memcpy(exact, bytes, size);
    tn_gguf *file;
    uint64_t start = tn_time_ns();
    tn_status status = tn_gguf_open_memory(exact, size, NULL, &file);
    if (status == TN_OK) {
        for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
            const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
            if (!same_value(&kv->value, &kv->value)) fail_msg("a value differs from itself");
            sink += (unsigned)strlen(kv->key.data);
        }
        for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
            const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
            const unsigned char *data = t->data;
            if (data) sink += data[0] + data[t->size - 1];
        }
        tn_gguf_close(file);
    } else if (!*tn_error()) {
        fail_msg("refused without a message");
    }
    if (tn_time_ns() - start > 1000000000) fail_msg("opening %zu bytes took over a second", size);
    free(exact);
    return status == TN_OK;
}

static void no_truncation_or_mutation_breaks_the_reader(void **state) {
    gguf_bytes b = small_file();
    tn_allocator watch = {watching_alloc, watching_free, NULL};
    uint64_t live = tn_memory_get_stats().live_blocks;
    assert_true(b.size > 4500 && b.size < 5500);
    largest_allocation = 0;
    tn_set_allocator(&watch);
    for (size_t size = 0; size < b.size; size++)
        if (survives(b.data, size)) fail_msg("the file opens although cut to %zu of %zu bytes", size, b.size);
    assert_true(survives(b.data, b.size));

    size_t head = b.size - 1800;
    unsigned char *copy = malloc(b.size);
    rng r = {20261115};
    int opened = 0;
    const int rounds = getenv("TENON_LONG") ? 2000000 : 50000;
    for (int i = 0; i < rounds; i++) {
        memcpy(copy, b.data, b.size);
        for (uint64_t n = 1 + (i % 2 ? rng_below(&r, 8) : 0); n-- > 0;) {
            size_t at = (size_t)rng_below(&r, head);
            switch (rng_below(&r, 4)) {
            case 0: copy[at] ^= (unsigned char)(1u << rng_below(&r, 8)); break;
            case 1: copy[at] = (unsigned char)rng_next(&r); break;
            case 2: memset(copy + at, 0xff, head - at < 8 ? head - at : 8); break;
            default: memset(copy + at, 0, head - at < 4 ? head - at : 4); break;
            }
        }
        opened += survives(copy, b.size);
    }
    free(copy);
    tn_set_allocator(NULL);
    assert_true(opened > rounds / 20 && opened < rounds); /* some open and some fail */
    if (largest_allocation > ((size_t)64 << 20) + 4 * b.size)
        fail_msg("an allocation of %zu bytes for a file of %zu", largest_allocation, b.size);
    assert_int_equal(tn_memory_get_stats().live_blocks, live);
    gb_free(&b);
}

static int survive_input(const uint8_t *bytes, size_t size) {
    survives(bytes, size);
    return 0;
}

static void fuzz_corpus_is_survived(void **state) { assert_true(replay_corpus("gguf", survive_input) > 0); }

/* ---- Size ---- */

static void many_keys_and_tensors_open_quickly(void **state) {
    gguf_bytes b = {0};
    gb_header(&b, 3, TN_GGUF_MAX_TENSORS, TN_GGUF_MAX_KEYS);
    char name[64];
    for (int i = 0; i < TN_GGUF_MAX_KEYS; i++) {
        snprintf(name, sizeof name, "key.with.a.long.common.prefix.%d", i);
        gb_key_u32(&b, name, (uint32_t)i);
    }
    for (int i = 0; i < TN_GGUF_MAX_TENSORS; i++) {
        snprintf(name, sizeof name, "tensor.with.a.long.common.prefix.%d", i);
        gb_tensor(&b, name, 0, (uint64_t)i * 32, 1, (uint64_t[]){8});
    }
    gb_pad(&b, 32);
    gb_zeros(&b, (size_t)TN_GGUF_MAX_TENSORS * 32);
    tn_gguf *file;
    uint64_t start = tn_time_ns();
    assert_ok(open_bytes(&b, &file));
    assert_true(tn_time_ns() - start < 3000000000u); /* 0.1 s; a quadratic search would take minutes */
    assert_int_equal(tn_gguf_get_u32(file, "key.with.a.long.common.prefix.65535", 0), 65535);
    assert_non_null(tn_gguf_find_tensor(file, "tensor.with.a.long.common.prefix.131071"));
    tn_gguf_close(file);

    gb_header(&b, 3, 0, TN_GGUF_MAX_KEYS + 1);
    gb_zeros(&b, (size_t)14 * (TN_GGUF_MAX_KEYS + 1));
    assert_refused(TN_E_LIMIT, &b, "the limit is 65536");
    gb_header(&b, 3, TN_GGUF_MAX_TENSORS + 1, 0);
    gb_zeros(&b, (size_t)25 * (TN_GGUF_MAX_TENSORS + 1));
    assert_refused(TN_E_LIMIT, &b, "the limit is 131072");
    gb_header(&b, 3, 1, 0);
    memset(name, 'n', sizeof name);
    gb_u64(&b, TN_GGUF_MAX_NAME + 1);
    for (int i = 0; i < 4; i++) gb_put(&b, name, 64);
    gb_zeros(&b, 64);
    assert_refused(TN_E_LIMIT, &b, "the limit is 255");
    gb_free(&b);
}

static void a_file_cut_short_while_open_is_an_error(void **state) {
    gguf_bytes b = small_file();
    char path[] = "/tmp/tenon-gguf-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, b.data, b.size), (ssize_t)b.size);
    tn_gguf *file;
    assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file));
    assert_ok(tn_gguf_check_unchanged(file));
    assert_int_equal(ftruncate(fd, (off_t)b.size - 300), 0);
    unsigned char bytes[200];
    assert_fails(TN_E_IO, tn_gguf_read(file, tn_gguf_find_tensor(file, "c.weight"), 0, bytes, 200));
    assert_fails(TN_E_STATE, tn_gguf_check_unchanged(file));
    tn_gguf_close(file);

    /* Data that was read stays; mapped data is lost, which tn_gguf_check_unchanged detects before an access. */
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, b.data, b.size, 0), (ssize_t)b.size);
    tn_gguf *read, *mapped;
    assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_READ}, &read));
    assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_MAP}, &mapped));
    assert_int_equal(ftruncate(fd, 0), 0);
    for (uint64_t i = 0; i < tn_gguf_tensor_count(read); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(read, i);
        assert_memory_equal(t->data, b.data + t->file_offset, t->size);
    }
    assert_fails(TN_E_STATE, tn_gguf_check_unchanged(mapped));
    assert_fails(TN_E_STATE, tn_gguf_check_unchanged(read));
    assert_fails(TN_E_IO, tn_gguf_read(mapped, tn_gguf_find_tensor(mapped, "c.weight"), 0, bytes, 200));
    tn_gguf_close(read);
    tn_gguf_close(mapped);
    close(fd);
    unlink(path);
    gb_free(&b);
}

/* All threads read the same bytes at once, and every thread has its own error message. */
typedef struct reading {
    const tn_gguf *file;
    const gguf_bytes *bytes;
    bool cut;
    int wrong;
} reading;
static void *read_again_and_again(void *user) {
    reading *r = user;
    for (int i = 0; i < 200; i++)
        for (uint64_t k = 0; k < tn_gguf_tensor_count(r->file); k++) {
            const tn_gguf_tensor *t = tn_gguf_tensor_at(r->file, k);
            unsigned char got[4096];
            size_t offset = (size_t)i % t->size, size = t->size - offset < sizeof got ? t->size - offset : sizeof got;
            tn_status status = tn_gguf_read(r->file, t, offset, got, size);
            if (r->cut)
                r->wrong += status != TN_E_IO || !strstr(tn_error(), "cut short");
            else
                r->wrong += status != TN_OK || memcmp(got, r->bytes->data + t->file_offset + offset, size) != 0;
        }
    return NULL;
}
static void threads_read_at_once(void **state) {
    gguf_bytes b = small_file();
    char path[] = "/tmp/tenon-gguf-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, b.data, b.size), (ssize_t)b.size);
    tn_gguf *file;
    assert_ok(tn_gguf_open(path, &(tn_gguf_params){.mode = TN_GGUF_META}, &file));
    for (int cut = 0; cut < 2; cut++) {
        pthread_t threads[4];
        reading readings[4];
        if (cut) assert_int_equal(ftruncate(fd, 0), 0);
        for (int i = 0; i < 4; i++) {
            readings[i] = (reading){file, &b, cut, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, read_again_and_again, &readings[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(readings[i].wrong, 0);
        }
    }
    tn_gguf_close(file);
    close(fd);
    unlink(path);
    gb_free(&b);
}

/* ---- Memory ---- */

static tn_status open_and_close(void *user) {
    tn_gguf *file;
    tn_status status = open_bytes(user, &file);
    if (status == TN_OK) tn_gguf_close(file);
    return status;
}
static tn_status open_path_copied(void *user) {
    tn_gguf *file;
    tn_status status = tn_gguf_open(user, &(tn_gguf_params){.mode = TN_GGUF_READ}, &file);
    if (status == TN_OK) tn_gguf_close(file);
    return status;
}

static void every_failing_allocation_is_survived(void **state) {
    gguf_bytes b = small_file();
    check_every_allocation_failure(open_and_close, &b);
    char path[] = "/tmp/tenon-gguf-XXXXXX";
    close(mkstemp(path));
    assert_ok(tiny_model_write(path, &(tiny_options){.tokenizer = true}));
    check_every_allocation_failure(open_path_copied, path);
    unlink(path);
    const char *golden = golden_path("quants/all.gguf");
    if (golden) check_every_allocation_failure(open_path_copied, (void *)(uintptr_t)golden);
    gb_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_open_alike_in_every_mode),
        cmocka_unit_test(values_of_every_type_are_read),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(wrong_metadata_is_refused),
        cmocka_unit_test(wrong_tensors_are_refused),
        cmocka_unit_test(small_alignment_is_copied_to_aligned_memory),
        cmocka_unit_test(no_truncation_or_mutation_breaks_the_reader),
        cmocka_unit_test(fuzz_corpus_is_survived),
        cmocka_unit_test(many_keys_and_tensors_open_quickly),
        cmocka_unit_test(a_file_cut_short_while_open_is_an_error),
        cmocka_unit_test(threads_read_at_once),
        cmocka_unit_test(every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
