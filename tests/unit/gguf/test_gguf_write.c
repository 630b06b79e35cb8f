/* The GGUF writer: round trips, files that are complete or absent, edits, splits, plan-only files. */
#include "models/every_model.h"
#include "support.h"
#include "tenon/gguf.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Helpers ---- */

static char folder[64]; /* fresh for every test */

static int make_folder(void **state) {
    strcpy(folder, "/tmp/tenon-write-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}
static int files_in_folder(void) {
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}
static int remove_folder(void **state) {
    char path[512];
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            unlink(path);
        }
    closedir(dir);
    return rmdir(folder);
}
static const char *in_folder(const char *name) {
    static char paths[4][256];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

static bool same_value(const tn_gguf_value *a, const tn_gguf_value *b) {
    if (a->type != b->type) return false;
    if (a->type == TN_GGUF_STR) return a->str.size == b->str.size && !memcmp(a->str.data, b->str.data, a->str.size);
    if (a->type == TN_GGUF_F32 || a->type == TN_GGUF_F64) return a->f == b->f || (isnan(a->f) && isnan(b->f));
    if (a->type == TN_GGUF_BOOL) return a->b == b->b;
    if (a->type != TN_GGUF_ARR) return a->u == b->u;
    if (a->arr.type != b->arr.type || a->arr.count != b->arr.count) return false;
    for (uint64_t i = 0; i < a->arr.count; i++) {
        tn_gguf_value x, y;
        tn_gguf_arr_at(&a->arr, i, &x);
        tn_gguf_arr_at(&b->arr, i, &y);
        if (!same_value(&x, &y)) return false;
    }
    return true;
}

/* The same keys in the same order (except those set by the writer), and the same tensors with the same bytes. */
static void assert_same_content(const tn_gguf *a, const tn_gguf *b) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < tn_gguf_key_count(a); i++) {
        const tn_gguf_kv *x = tn_gguf_key_at(a, i), *y;
        if (strncmp(x->key.data, "split.", 6) == 0) continue;
        y = tn_gguf_key_at(b, at++);
        assert_non_null(y);
        assert_string_equal(x->key.data, y->key.data);
        if (!same_value(&x->value, &y->value)) fail_msg("%s: %s differs", tn_gguf_path(a), x->key.data);
    }
    assert_int_equal(tn_gguf_tensor_count(a), tn_gguf_tensor_count(b));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(a); i++) {
        const tn_gguf_tensor *x = tn_gguf_tensor_at(a, i), *y = tn_gguf_tensor_at(b, i);
        assert_string_equal(x->name, y->name);
        assert_true(x->type == y->type && x->n_dims == y->n_dims && x->size == y->size);
        assert_memory_equal(x->ne, y->ne, sizeof x->ne);
        assert_memory_equal(x->data, y->data, x->size);
    }
}

/* A file with keys of all kinds and some tensors. */
static tn_status write_sample(const char *path, const tn_gguf_writer_params *params) {
    tn_gguf_writer *w = NULL;
    tn_status status;
    const tn_gguf_str words[] = {{"one", 3}, {"", 0}, {"th\0ree", 6}};
    const int32_t numbers[] = {1, -2, 3};
    const tn_gguf_arr arrays[] = {{words, 3, TN_GGUF_STR}, {numbers, 3, TN_GGUF_I32}, {NULL, 0, TN_GGUF_BOOL}};
    static float data[3000];
    for (int i = 0; i < 3000; i++) data[i] = (float)i;
    TN_TRY_GOTO(tn_gguf_writer_new(path, params, &w), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_cstr(w, "general.architecture", "sample"), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_u32(w, "general.alignment", 64), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_i32(w, "i32", -5), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_f32(w, "f32", 0.1f), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_bool(w, "bool", true), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "words", TN_GGUF_STR, words, 3), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set_array(w, "arrays", TN_GGUF_ARR, arrays, 3), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set(w, "u8", &(tn_gguf_value){.type = TN_GGUF_U8, .u = 255}), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set(w, "i16", &(tn_gguf_value){.type = TN_GGUF_I16, .i = -32768}), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set(w, "f64", &(tn_gguf_value){.type = TN_GGUF_F64, .f = 0.1}), status, out);
    TN_TRY_GOTO(tn_gguf_writer_set(w, "u64", &(tn_gguf_value){.type = TN_GGUF_U64, .u = UINT64_MAX}), status, out);
    TN_TRY_GOTO(tn_gguf_writer_add(w, "scalar", TN_F32, 0, NULL), status, out);
    TN_TRY_GOTO(tn_gguf_writer_add(w, "vector", TN_F32, 1, (int64_t[]){999}), status, out);
    TN_TRY_GOTO(tn_gguf_writer_add(w, "matrix", TN_F32, 2, (int64_t[]){100, 20}), status, out);
    TN_TRY_GOTO(tn_gguf_writer_begin(w), status, out);
    if (!params || !params->no_data)
        for (size_t at = 0; at < sizeof data; at += 1000) /* pieces cut across tensors */
            TN_TRY_GOTO(tn_gguf_writer_write(w, (const char *)data + at, 1000), status, out);
    status = tn_gguf_writer_finish(w);
out:
    tn_gguf_writer_free(w);
    return status;
}

/* ---- Tests ---- */

static void what_is_written_is_read_back(void **state) {
    const char *path = in_folder("sample.gguf");
    tn_gguf *file;
    assert_ok(write_sample(path, NULL));
    assert_int_equal(files_in_folder(), 1);
    struct stat info;
    assert_true(stat(path, &info) == 0 && (info.st_mode & 0400));
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_int_equal(tn_gguf_file_bytes(file), info.st_size);
    assert_int_equal(tn_gguf_alignment(file), 64);
    assert_int_equal(tn_gguf_get_i32(file, "i32", 0), -5);
    assert_true(tn_gguf_get_f32(file, "f32", 0) == 0.1f);
    assert_true(tn_gguf_get_f64(file, "f64", 0) == 0.1);
    assert_true(tn_gguf_get_bool(file, "bool", false));
    assert_int_equal(tn_gguf_get_u32(file, "u8", 0), 255);
    assert_int_equal(tn_gguf_get_i32(file, "i16", 0), -32768);
    assert_true(tn_gguf_get_u64(file, "u64", 0) == UINT64_MAX);
    const tn_gguf_arr *arrays = tn_gguf_get_arr(file, "arrays")->data;
    assert_memory_equal(((const tn_gguf_str *)arrays[0].data)[2].data, "th\0ree", 7);
    assert_int_equal(((const int32_t *)arrays[1].data)[1], -2);
    assert_int_equal(arrays[2].type, TN_GGUF_BOOL);
    float next = 0;
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(file, i);
        assert_int_equal((uintptr_t)t->data % 64, 0);
        for (size_t k = 0; k < t->size / 4; k++) assert_true(((const float *)t->data)[k] == next++);
    }
    assert_true(next == 3000);
    tn_gguf_close(file);
}

static void copy_and_compare(const char *path) {
    tn_gguf *file, *again;
    const char *copy = in_folder("copy.gguf");
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_ok(tn_gguf_copy(file, copy, NULL));
    assert_ok(tn_gguf_open(copy, NULL, &again));
    assert_int_equal(tn_gguf_key_count(file), tn_gguf_key_count(again));
    assert_same_content(file, again);
    tn_gguf_close(file);
    tn_gguf_close(again);
}

static void models_survive_writing_and_reading(void **state) {
    char own[256];
    snprintf(own, sizeof own, "%s", in_folder("model.gguf"));
    assert_true(for_each_tiny_model(own, copy_and_compare) > 40);
    static const char *const folders[] = {"quants", "archs", "vocab"};
    if (!golden_path("README.md")) return;
    int count = 0;
    for (int k = 0; k < 3; k++) {
        char root[512], path[1024];
        snprintf(root, sizeof root, "%s", golden_path(folders[k]));
        DIR *dir = opendir(root);
        assert_non_null(dir);
        for (struct dirent *e; (e = readdir(dir));) {
            size_t length = strlen(e->d_name);
            if (length < 5 || strcmp(e->d_name + length - 5, ".gguf") != 0) continue;
            snprintf(path, sizeof path, "%s/%s", root, e->d_name);
            copy_and_compare(path);
            count++;
        }
        closedir(dir);
    }
    assert_true(count >= 26);
}

static void an_unfinished_file_never_appears(void **state) {
    const char *path = in_folder("half.gguf");
    tn_gguf_writer *w;
    char bytes[100] = {0};
    assert_ok(tn_gguf_writer_new(path, NULL, &w));
    assert_ok(tn_gguf_writer_add(w, "t", TN_F32, 1, (int64_t[]){100}));
    assert_fails(TN_E_STATE, tn_gguf_writer_write(w, bytes, 4));
    assert_fails(TN_E_STATE, tn_gguf_writer_finish(w));
    assert_ok(tn_gguf_writer_begin(w));
    assert_fails(TN_E_STATE, tn_gguf_writer_begin(w));
    assert_fails(TN_E_STATE, tn_gguf_writer_set_u32(w, "late", 1));
    assert_fails(TN_E_STATE, tn_gguf_writer_add(w, "late", TN_F32, 1, (int64_t[]){1}));
    for (int i = 0; i < 3; i++) assert_ok(tn_gguf_writer_write(w, bytes, 100));
    assert_fails(TN_E_STATE, tn_gguf_writer_finish(w));
    assert_non_null(strstr(tn_error(), "300 of its 400 bytes"));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(files_in_folder(), 1); /* the temporary one */
    tn_gguf_writer_free(w);
    assert_int_equal(files_in_folder(), 0);

    assert_ok(tn_gguf_writer_new("/no/such/folder/x.gguf", NULL, &w));
    assert_fails(TN_E_IO, tn_gguf_writer_begin(w));
    tn_gguf_writer_free(w);
}

static void mistakes_in_writing_are_errors(void **state) {
    tn_gguf_writer *w;
    char bytes[8] = {0}, name[300];
    assert_fails(TN_E_INVALID, tn_gguf_writer_new("", NULL, &w));
    assert_ok(tn_gguf_writer_new(in_folder("x.gguf"), NULL, &w));
    assert_fails(TN_E_INVALID, tn_gguf_writer_set_u32(w, "", 1));
    assert_fails(TN_E_INVALID, tn_gguf_writer_set(w, "k", &(tn_gguf_value){.type = TN_GGUF_U8, .u = 256}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_set(w, "k", &(tn_gguf_value){.type = TN_GGUF_I8, .i = -129}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_set(w, "k", &(tn_gguf_value){.type = (tn_gguf_type)13}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_set_array(w, "k", TN_GGUF_U64, bytes, UINT64_MAX / 4));
    assert_fails(TN_E_INVALID, tn_gguf_writer_add(w, "t", TN_Q8_0, 1, (int64_t[]){33}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_add(w, "t", TN_F32, 1, (int64_t[]){0}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_add(w, "t", TN_F32, 5, (int64_t[]){1, 1, 1, 1, 1}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_add(w, "t", (tn_type)31, 1, (int64_t[]){32}));
    assert_fails(TN_E_INVALID, tn_gguf_writer_add(w, "t", TN_FP8, 1, (int64_t[]){32}));
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_fails(TN_E_INVALID, tn_gguf_writer_add(w, name, TN_F32, 1, (int64_t[]){1}));
    assert_ok(tn_gguf_writer_add(w, "t", TN_F32, 1, (int64_t[]){1}));
    assert_fails(TN_E_EXISTS, tn_gguf_writer_add(w, "t", TN_F32, 1, (int64_t[]){1}));
    assert_ok(tn_gguf_writer_set_u32(w, "general.alignment", 24));
    assert_fails(TN_E_INVALID, tn_gguf_writer_begin(w));
    assert_ok(tn_gguf_writer_set_u32(w, "general.alignment", 8));
    assert_ok(tn_gguf_writer_begin(w));
    assert_fails(TN_E_INVALID, tn_gguf_writer_write(w, bytes, 5));
    assert_non_null(strstr(tn_error(), "1 bytes past the last tensor"));
    tn_gguf_writer_free(w);
    tn_gguf_writer_free(NULL);
}

static void keys_are_replaced_in_place_and_removed(void **state) {
    tn_gguf_writer *w;
    tn_gguf *file;
    const char *path = in_folder("keys.gguf");
    assert_ok(tn_gguf_writer_new(path, NULL, &w));
    for (int i = 0; i < 200; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        assert_ok(tn_gguf_writer_set_i32(w, key, i));
    }
    assert_ok(tn_gguf_writer_set_cstr(w, "k100", "text now"));
    assert_true(tn_gguf_writer_remove(w, "k50"));
    assert_false(tn_gguf_writer_remove(w, "k50"));
    assert_ok(tn_gguf_writer_set_u32(w, "split.count", 9)); /* ignored: the writer sets it */
    assert_ok(tn_gguf_writer_begin(w));
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_int_equal(tn_gguf_key_count(file), 199);
    assert_string_equal(tn_gguf_key_at(file, 99)->key.data, "k100");
    assert_string_equal(tn_gguf_get_cstr(file, "k100", ""), "text now");
    assert_int_equal(tn_gguf_get_i32(file, "k199", 0), 199);
    assert_null(tn_gguf_find(file, "k50"));
    tn_gguf_close(file);
}

static void an_edit_replaces_the_file_in_one_step(void **state) {
    const char *path = in_folder("edit.gguf");
    tn_gguf *before, *after;
    assert_ok(write_sample(path, NULL));
    assert_ok(tn_gguf_open(path, NULL, &before));
    tn_gguf_kv set[] = {{{"i32", 3}, {.type = TN_GGUF_STR, .str = {"changed", 7}}},
                        {{"new", 3}, {.type = TN_GGUF_BOOL, .b = true}}};
    const char *gone[] = {"words"};
    tn_gguf_rename names[] = {{"vector", "matrix"}, {"matrix", "vector"}};
    tn_gguf_copy_params edit = {
        .set = set, .set_count = 2, .remove = gone, .remove_count = 1, .rename = names, .rename_count = 2};
    assert_ok(tn_gguf_copy(before, path, &edit));
    assert_int_equal(files_in_folder(), 1);
    assert_ok(tn_gguf_open(path, NULL, &after));
    assert_int_equal(tn_gguf_key_count(after), tn_gguf_key_count(before));
    assert_string_equal(tn_gguf_get_cstr(after, "i32", ""), "changed");
    assert_true(tn_gguf_get_bool(after, "new", false));
    assert_null(tn_gguf_find(after, "words"));
    assert_int_equal(tn_gguf_find_tensor(after, "matrix")->ne[0], 999);
    assert_memory_equal(tn_gguf_find_tensor(after, "vector")->data, tn_gguf_find_tensor(before, "matrix")->data,
                        8000);
    edit.remove = (const char *[]){"nothing"};
    assert_fails(TN_E_NOT_FOUND, tn_gguf_copy(before, path, &edit));
    edit.remove_count = 0;
    names[0].from = "nothing";
    assert_fails(TN_E_NOT_FOUND, tn_gguf_copy(before, path, &edit));
    names[0] = (tn_gguf_rename){"scalar", "vector"}; /* a name twice */
    edit.rename_count = 1;
    assert_fails(TN_E_EXISTS, tn_gguf_copy(before, path, &edit));
    assert_int_equal(files_in_folder(), 1);
    tn_gguf_close(before);
    tn_gguf_close(after);
}

/* Another process knows the model from its head: metadata, and the tensors of all parts in their order. */
static void a_head_describes_all_parts(void **state) {
    const char *whole = in_folder("whole.gguf"), *base = in_folder("set.gguf");
    tn_gguf *file, *head;
    char name[512];
    void *bytes;
    size_t size;
    assert_ok(write_sample(whole, NULL));
    assert_ok(tn_gguf_open(whole, NULL, &file));
    assert_ok(tn_gguf_copy(file, base, &(tn_gguf_copy_params){.part_bytes = 5000}));
    tn_gguf_close(file);
    assert_ok(tn_gguf_part_name(base, 0, 2, name, sizeof name));
    assert_ok(tn_gguf_open(name, NULL, &file));
    const int files = files_in_folder();
    assert_ok(tn_gguf_head(file, &bytes, &size));
    assert_int_equal(files_in_folder(), files);
    assert_ok(tn_gguf_open_memory(bytes, size, &(tn_gguf_params){.name = "elsewhere.gguf"}, &head));
    tn_free(bytes);
    assert_string_equal(tn_gguf_path(head), "elsewhere.gguf");
    assert_false(tn_gguf_has_data(head));
    assert_int_equal(tn_gguf_tensor_count(head), tn_gguf_tensor_count(file));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(file); i++) {
        const tn_gguf_tensor *a = tn_gguf_tensor_at(file, i), *b = tn_gguf_tensor_at(head, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->size, b->size);
        assert_memory_equal(a->ne, b->ne, sizeof a->ne);
        assert_null(b->data);
    }
    for (uint64_t i = 0; i < tn_gguf_key_count(file); i++) {
        const tn_gguf_kv *kv = tn_gguf_key_at(file, i);
        const tn_gguf_value *value = tn_gguf_find(head, kv->key.data);
        if (strncmp(kv->key.data, "split.", 6) == 0) continue;
        assert_non_null(value);
        assert_int_equal(value->type, kv->value.type);
        if (value->type == TN_GGUF_STR) assert_string_equal(value->str.data, kv->value.str.data);
        if (value->type == TN_GGUF_ARR) assert_int_equal(value->arr.count, kv->value.arr.count);
    }
    tn_gguf_close(head);
    tn_gguf_close(file);
}

static bool stop_at_once(void *user, uint64_t done, uint64_t total) { return false; }

static void a_stopped_copy_leaves_the_old_file(void **state) {
    const char *path = in_folder("stop.gguf");
    tn_gguf *file;
    assert_ok(write_sample(path, NULL));
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_fails(TN_E_ABORTED, tn_gguf_copy(file, path, &(tn_gguf_copy_params){.progress = stop_at_once}));
    assert_ok(tn_gguf_check_unchanged(file));
    assert_int_equal(files_in_folder(), 1);
    tn_gguf_close(file);
}

static void a_split_set_reads_like_the_whole(void **state) {
    const char *whole = in_folder("whole.gguf"), *base = in_folder("set.gguf");
    tn_gguf *one, *set, *merged;
    char name[512], other[512];
    assert_ok(write_sample(whole, NULL));
    assert_ok(tn_gguf_open(whole, NULL, &one));
    assert_ok(tn_gguf_copy(one, base, &(tn_gguf_copy_params){.part_bytes = 5000}));
    /* The first file holds scalar, vector and all metadata; the matrix of 8000 bytes has its own file. */
    assert_int_equal(files_in_folder(), 3);
    for (int k = 0; k < 2; k++) { /* any part opens the whole set */
        assert_ok(tn_gguf_part_name(base, k, 2, name, sizeof name));
        assert_ok(tn_gguf_open(name, NULL, &set));
        assert_int_equal(tn_gguf_part_count(set), 2);
        assert_string_equal(tn_gguf_part_path(set, k), name);
        assert_int_equal(tn_gguf_get_u32(set, "split.tensors.count", 0), 3);
        assert_int_equal(tn_gguf_find_tensor(set, "matrix")->part, 1);
        assert_same_content(set, one);
        if (k == 0) tn_gguf_close(set);
    }
    struct stat info;
    assert_ok(tn_gguf_part_name(base, 0, 2, name, sizeof name));
    assert_int_equal(stat(name, &info), 0);
    assert_true(info.st_size <= 5000);
    assert_ok(tn_gguf_copy(set, in_folder("merged.gguf"), NULL));
    assert_ok(tn_gguf_open(in_folder("merged.gguf"), NULL, &merged));
    assert_same_content(one, merged);
    assert_null(tn_gguf_find(merged, "split.count"));
    tn_gguf_close(merged);
    tn_gguf_close(set);

    tn_gguf *part;
    assert_ok(tn_gguf_open(name, &(tn_gguf_params){.one_part = true}, &part));
    assert_int_equal(tn_gguf_tensor_count(part), 2);
    tn_gguf_close(part);
    assert_ok(tn_gguf_part_name(base, 1, 2, other, sizeof other));
    unlink(other);
    assert_fails(TN_E_IO, tn_gguf_open(name, NULL, &set));
    assert_non_null(strstr(tn_error(), "-00002-of-00002.gguf"));
    assert_int_equal(rename(name, other), 0); /* part 1 under the name of part 2 */
    assert_ok(tn_gguf_copy(one, base, &(tn_gguf_copy_params){.part_bytes = 100000}));
    assert_int_equal(access(in_folder("set-00001-of-00001.gguf"), R_OK), 0);
    assert_int_equal(link(in_folder("set-00001-of-00001.gguf"), name), 0);
    assert_fails(TN_E_FORMAT, tn_gguf_open(name, NULL, &set));
    assert_non_null(strstr(tn_error(), "metadata of part 1 of 1"));
    tn_gguf_close(one);
}

static void a_plan_only_file_has_tables_but_no_data(void **state) {
    const char *path = in_folder("plan.gguf");
    tn_gguf *file;
    char byte;
    assert_ok(write_sample(path, &(tn_gguf_writer_params){.no_data = true}));
    assert_ok(tn_gguf_open(path, NULL, &file));
    assert_false(tn_gguf_has_data(file));
    const tn_gguf_tensor *t = tn_gguf_find_tensor(file, "matrix");
    assert_int_equal(t->size, 8000);
    assert_null(t->data);
    assert_true(tn_gguf_file_bytes(file) < 1500);
    assert_fails(TN_E_STATE, tn_gguf_read(file, t, 0, &byte, 1));
    assert_ok(tn_gguf_copy(file, in_folder("again.gguf"), NULL));
    tn_gguf_close(file);
    assert_ok(tn_gguf_open(in_folder("again.gguf"), NULL, &file));
    assert_false(tn_gguf_has_data(file));
    tn_gguf_close(file);
}

/* ---- Memory ---- */

static tn_status write_one(void *user) {
    tn_status status = write_sample(in_folder("oom.gguf"), user);
    if (status != TN_OK && files_in_folder() != 0) fail_msg("a failed write left a file behind");
    if (status == TN_OK) unlink(in_folder("oom.gguf"));
    return status;
}
static tn_status copy_split(void *user) {
    return tn_gguf_copy(user, in_folder("parts.gguf"), &(tn_gguf_copy_params){.part_bytes = 5000});
}

static void every_failing_allocation_is_survived(void **state) {
    check_every_allocation_failure(write_one, NULL);
    tn_gguf *file;
    assert_ok(write_sample(in_folder("source.gguf"), NULL));
    assert_ok(tn_gguf_open(in_folder("source.gguf"), NULL, &file));
    check_every_allocation_failure(copy_split, file);
    tn_gguf_close(file);
}

#define test(function) cmocka_unit_test_setup_teardown(function, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        test(what_is_written_is_read_back),           test(models_survive_writing_and_reading),
        test(an_unfinished_file_never_appears),       test(mistakes_in_writing_are_errors),
        test(keys_are_replaced_in_place_and_removed), test(an_edit_replaces_the_file_in_one_step),
        test(a_stopped_copy_leaves_the_old_file),     test(a_head_describes_all_parts),
        test(a_split_set_reads_like_the_whole),       test(a_plan_only_file_has_tables_but_no_data),
        test(every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
