/* LoRA adapters and control vectors of tiny models, and merged models. */
#include "models/tiny_adapters.h"

#include "support.h"

#include "tenon/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which weights ---- */

static bool is_adaptable(const tn_gguf *model, const tn_gguf_tensor *t) {
    static const char *const names[] = {
        "attn_q.weight",        "attn_k.weight",           "attn_v.weight",        "attn_qkv.weight",
        "attn_output.weight",   "attn_q_a.weight",         "attn_q_b.weight",      "attn_kv_a_mqa.weight",
        "attn_k_b.weight",      "attn_v_b.weight",         "attn_gate.weight",     "ffn_gate.weight",
        "ffn_up.weight",        "ffn_down.weight",         "ffn_gate_exps.weight", "ffn_up_exps.weight",
        "ffn_down_exps.weight", "ffn_up_shexp.weight",     "ssm_in.weight",        "ssm_out.weight",
        "ssm_x.weight",         "shortconv.in_proj.weight"};
    const bool tied = !tn_gguf_find_tensor(model, "output.weight");
    if (strcmp(t->name, "token_embd.weight") == 0) return !tied;
    if (strcmp(t->name, "output.weight") == 0) return true;
    const char *dot = strncmp(t->name, "blk.", 4) == 0 ? strchr(t->name + 4, '.') : NULL;
    for (size_t i = 0; dot && i < sizeof names / sizeof *names; i++)
        if (strcmp(dot + 1, names[i]) == 0) return true;
    return false;
}

static int layer_of(const char *name) { return strncmp(name, "blk.", 4) == 0 ? atoi(name + 4) : 1 << 20; }

static bool is_wanted(const tn_gguf *model, const tn_gguf_tensor *t, const tiny_adapter_options *o) {
    return is_adaptable(model, t) && (!o->only || strstr(t->name, o->only)) && layer_of(t->name) >= o->first_layer;
}

/* ---- Adapters ---- */

/* Multiples of 1/64, which every type holds exactly. */
static float small_number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int)(*state >> 40) % 17 - 8) / 64;
}

static void add_matrix(tn_gguf_writer *w, const char *name, char which, tn_type type, const int64_t ne[3]) {
    char text[160];
    snprintf(text, sizeof text, "%s.lora_%c", name, which);
    assert_ok(tn_gguf_writer_add(w, text, type, ne[2] > 1 ? 3 : 2, ne));
}
static void write_matrix(tn_gguf_writer *w, tn_type type, const int64_t ne[3], uint64_t *state) {
    const int64_t n = ne[0] * ne[1] * ne[2];
    float *values = calloc((size_t)n, sizeof *values);
    void *bytes = calloc((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = small_number(state);
    assert_ok(tn_type_from_f32(type, values, bytes, n, NULL));
    assert_ok(tn_gguf_writer_write(w, bytes, (size_t)n * tn_type_bytes(type)));
    free(values);
    free(bytes);
}

static void shape_pair(const tn_gguf_tensor *t, const tiny_adapter_options *o, int number, int64_t a[3],
                       int64_t b[3]) {
    const int64_t rank = (o->rank ? o->rank : 4) << (number & 1);
    const bool lookup = strcmp(t->name, "token_embd.weight") == 0;
    a[0] = lookup ? rank : t->ne[0];
    a[1] = lookup ? t->ne[1] : rank;
    b[0] = rank;
    b[1] = lookup ? t->ne[0] : t->ne[1];
    a[2] = b[2] = t->ne[2];
}

int tiny_adapter_write(const char *path, const char *model_path, const tiny_adapter_options *o) {
    tn_gguf *model;
    tn_gguf_writer *w;
    assert_ok(tn_gguf_open(model_path, NULL, &model));
    assert_ok(tn_gguf_writer_new(path, NULL, &w));
    assert_ok(tn_gguf_writer_set_cstr(w, "general.type", "adapter"));
    assert_ok(
        tn_gguf_writer_set_cstr(w, "general.architecture", tn_gguf_get_cstr(model, "general.architecture", "")));
    assert_ok(tn_gguf_writer_set_cstr(w, "adapter.type", "lora"));
    assert_ok(tn_gguf_writer_set_f32(w, "adapter.lora.alpha", o->alpha));
    uint64_t state = o->seed * 77 + 5;
    int n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (uint64_t i = 0; i < tn_gguf_tensor_count(model); i++) {
            const tn_gguf_tensor *t = tn_gguf_tensor_at(model, i);
            int64_t a[3], b[3];
            if (!is_wanted(model, t, o)) continue;
            shape_pair(t, o, n++, a, b);
            if (pass == 0) {
                add_matrix(w, t->name, 'a', o->type, a);
                add_matrix(w, t->name, 'b', o->type, b);
            } else {
                write_matrix(w, o->type, a, &state);
                write_matrix(w, o->type, b, &state);
            }
        }
        if (pass == 0) assert_ok(tn_gguf_writer_begin(w));
    }
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
    tn_gguf_close(model);
    return n;
}

/* ---- Merging ---- */

static float *read_floats(const tn_gguf_tensor *t) {
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float *values = calloc((size_t)n, sizeof *values);
    assert_ok(tn_type_to_f32(t->type, t->data, values, n));
    return values;
}

static void merge_tensor(const tn_gguf_tensor *t, const tn_gguf *adapter, float scale, double *sum) {
    char name[160];
    snprintf(name, sizeof name, "%s.lora_a", t->name);
    const tn_gguf_tensor *ta = tn_gguf_find_tensor(adapter, name);
    snprintf(name, sizeof name, "%s.lora_b", t->name);
    const tn_gguf_tensor *tb = tn_gguf_find_tensor(adapter, name);
    if (!ta || !tb) return;
    const int64_t rank = tb->ne[0], in = t->ne[0], out = t->ne[1];
    const bool lookup = strcmp(t->name, "token_embd.weight") == 0;
    const float alpha = tn_gguf_get_f32(adapter, "adapter.lora.alpha", 0);
    const double factor = (double)scale * (alpha != 0 ? (double)alpha / (double)rank : 1);
    float *a = read_floats(ta), *b = read_floats(tb);
    for (int64_t e = 0; e < t->ne[2]; e++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                for (int64_t k = 0; k < rank; k++)
                    sum[(e * out + o) * in + i] +=
                        factor * (lookup ? (double)a[o * rank + k] * (double)b[i * rank + k]
                                         : (double)b[(e * out + o) * rank + k] * (double)a[(e * rank + k) * in + i]);
    free(a);
    free(b);
}

/* Copies a model; `change` may change the values of f32 tensors. */
typedef void (*change_fn)(const tn_gguf_tensor *t, double *values, void *user);
static void copy_changed(const char *path, const char *model_path, change_fn change, void *user) {
    tn_gguf *model;
    tn_gguf_writer *w;
    assert_ok(tn_gguf_open(model_path, NULL, &model));
    assert_ok(tn_gguf_writer_new(path, NULL, &w));
    assert_ok(tn_gguf_writer_copy_keys(w, model));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(model); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(model, i);
        assert_ok(tn_gguf_writer_add(w, t->name, t->type, t->n_dims, t->ne));
    }
    assert_ok(tn_gguf_writer_begin(w));
    for (uint64_t i = 0; i < tn_gguf_tensor_count(model); i++) {
        const tn_gguf_tensor *t = tn_gguf_tensor_at(model, i);
        if (t->type != TN_F32) {
            assert_ok(tn_gguf_writer_write(w, t->data, t->size));
            continue;
        }
        const int64_t n = (int64_t)(t->size / sizeof(float));
        double *sum = calloc((size_t)n, sizeof *sum);
        float *values = calloc((size_t)n, sizeof *values);
        for (int64_t k = 0; k < n; k++) sum[k] = (double)((const float *)t->data)[k];
        change(t, sum, user);
        for (int64_t k = 0; k < n; k++) values[k] = (float)sum[k];
        assert_ok(tn_gguf_writer_write(w, values, t->size));
        free(sum);
        free(values);
    }
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
    tn_gguf_close(model);
}

typedef struct merge_state {
    tn_gguf *files[8];
    const tiny_adapter *adapters;
    size_t n;
} merge_state;
static void merge_all(const tn_gguf_tensor *t, double *values, void *user) {
    const merge_state *m = user;
    for (size_t i = 0; i < m->n; i++) merge_tensor(t, m->files[i], m->adapters[i].scale, values);
}

void tiny_merge(const char *path, const char *model, const tiny_adapter *adapters, size_t n) {
    merge_state m = {.adapters = adapters, .n = n};
    for (size_t i = 0; i < n; i++) assert_ok(tn_gguf_open(adapters[i].path, NULL, &m.files[i]));
    copy_changed(path, model, merge_all, &m);
    for (size_t i = 0; i < n; i++) tn_gguf_close(m.files[i]);
}

/* ---- Control vectors ---- */

void tiny_control_vector_write(const char *path, const char *model_path, uint64_t seed) {
    tn_gguf *model;
    tn_gguf_writer *w;
    char key[80];
    assert_ok(tn_gguf_open(model_path, NULL, &model));
    const char *arch = tn_gguf_get_cstr(model, "general.architecture", "");
    snprintf(key, sizeof key, "%s.block_count", arch);
    const int layers = (int)tn_gguf_get_u32(model, key, 0);
    snprintf(key, sizeof key, "%s.embedding_length", arch);
    const int64_t ne[3] = {tn_gguf_get_u32(model, key, 0), 1, 1};
    assert_ok(tn_gguf_writer_new(path, NULL, &w));
    assert_ok(tn_gguf_writer_set_cstr(w, "general.architecture", "controlvector"));
    for (int i = 1; i < layers; i++) {
        snprintf(key, sizeof key, "direction.%d", i);
        assert_ok(tn_gguf_writer_add(w, key, TN_F32, 1, ne));
    }
    assert_ok(tn_gguf_writer_begin(w));
    uint64_t state = seed + 9;
    for (int i = 1; i < layers; i++) write_matrix(w, TN_F32, ne, &state);
    assert_ok(tn_gguf_writer_finish(w));
    tn_gguf_writer_free(w);
    tn_gguf_close(model);
}

typedef struct control_state {
    tn_gguf *vector;
    float scale;
    int first, last;
} control_state;
static void add_control(const tn_gguf_tensor *t, double *values, void *user) {
    const control_state *c = user;
    const int layer = layer_of(t->name);
    char name[80];
    snprintf(name, sizeof name, "blk.%d.ffn_down.bias", layer);
    if (strcmp(name, t->name) != 0 || layer < c->first || layer > c->last) return;
    snprintf(name, sizeof name, "direction.%d", layer);
    const tn_gguf_tensor *d = tn_gguf_find_tensor(c->vector, name);
    for (int64_t i = 0; d && i < t->ne[0]; i++) values[i] += (double)c->scale * (double)((const float *)d->data)[i];
}

void tiny_merge_control(const char *path, const char *model, const char *vector, float scale, int first, int last) {
    control_state c = {.scale = scale, .first = first, .last = last};
    assert_ok(tn_gguf_open(vector, NULL, &c.vector));
    copy_changed(path, model, add_control, &c);
    tn_gguf_close(c.vector);
}
