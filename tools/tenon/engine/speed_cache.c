/* Measured peaks of devices, remembered in a file beside the user's other caches. */
#include "engine/speed_cache.h"

#include "cli/term.h"

#include "tenon/cpu.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE = 4 << 20, FORMAT = 4 };

bool user_cache_path(const char *name, char *path, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(path, size, "%s/tenon/%s", cache, name);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.cache/tenon/%s", home, name);
    return n > 0 && (size_t)n < size;
}
bool speed_cache_path(char *path, size_t size) { return user_cache_path("devices.json", path, size); }

/* ---- Names of the fields ---- */

#define SPEED_FIELD(name) #name, offsetof(tn_device_speed, name)
static const struct speed_field {
    const char *name;
    size_t offset;
} fields[] = {
    {SPEED_FIELD(read)},
    {SPEED_FIELD(read_mapped)},
    {SPEED_FIELD(move)},
    {SPEED_FIELD(ramp)},
    {SPEED_FIELD(attention_fixed)},
    {SPEED_FIELD(attention_many)},
    {SPEED_FIELD(link)},
    {SPEED_FIELD(run)},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static double *field_of(tn_device_speed *s, size_t i) { return (double *)(void *)((char *)s + fields[i].offset); }

/* ---- Reading ---- */

/* A rate or a time: anything else in the file is refused. */
static bool number_of(const json_t *value, double *to) {
    if (!json_is_number(value)) return false;
    const double x = json_number_value(value);
    if (!isfinite(x) || x < 0 || x > 1e18) return false;
    *to = x;
    return true;
}

static bool numbers_of(const json_t *list, double *to, size_t n) {
    if (!json_is_array(list) || json_array_size(list) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (!number_of(json_array_get(list, i), &to[i])) return false;
    return true;
}

static bool speed_from_json(const json_t *entry, tn_device_speed *s) {
    *s = (tn_device_speed){0};
    for (size_t i = 0; i < FIELDS; i++)
        if (!number_of(json_object_get(entry, fields[i].name), field_of(s, i))) return false;
    const char *name;
    json_t *rates, *types = json_object_get(entry, "multiply");
    if (!json_is_object(types)) return false;
    json_object_foreach(types, name, rates) {
        tn_type type;
        if (tn_type_parse(name, &type) != TN_OK || !numbers_of(rates, s->multiply[type], TN_SPEED_POINTS))
            return false;
    }
    return s->read > 0 && numbers_of(json_object_get(entry, "experts"), s->experts, TN_SPEED_POINTS) &&
           numbers_of(json_object_get(entry, "launch"), s->launch, TN_LAUNCH_KINDS) &&
           numbers_of(json_object_get(entry, "attention_keys"), s->attention_keys, TN_SPEED_GROUPS) &&
           s->attention_fixed <= 1;
}

static json_t *load_document(void) {
    char path[4096];
    json_error_t error;
    struct stat info;
    if (!speed_cache_path(path, sizeof path)) return NULL;
    FILE *in = fopen(path, "re");
    if (!in) return NULL;
    json_t *root = NULL;
    if (fstat(fileno(in), &info) == 0 && S_ISREG(info.st_mode) && info.st_size <= MAX_FILE)
        root = json_loadf(in, 0, &error);
    fclose(in);
    const json_t *devices = json_object_get(root, "devices"), *format = json_object_get(root, "format");
    if (json_is_array(devices) && json_integer_value(format) == FORMAT) return root;
    tn_log(TN_LOG_WARN, "%s is not a list of measured devices and is ignored", path);
    json_decref(root);
    return NULL;
}

static bool text_is(const json_t *entry, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(entry, key));
    return value && strcmp(value, text) == 0;
}

static bool is_entry_of(const json_t *entry, const tn_device *device) {
    const bool cpu = tn_device_get_kind(device) == TN_DEVICE_CPU;
    return text_is(entry, "name", tn_device_name(device)) &&
           text_is(entry, "description", tn_device_description(device)) && text_is(entry, "version", tn_version()) &&
           (!cpu || text_is(entry, "kernels", tn_cpu_level()));
}

void speed_cache_load(void) {
    json_t *root = load_document(), *entry;
    size_t i;
    json_array_foreach(json_object_get(root, "devices"), i, entry) {
        const json_int_t threads = json_integer_value(json_object_get(entry, "threads"));
        tn_device_speed speed;
        if (threads < 0 || threads > TN_MAX_THREADS) continue;
        for (size_t d = 0; d < tn_device_count(); d++) {
            tn_device *device = tn_device_get(d);
            if (!is_entry_of(entry, device)) continue;
            if (!speed_from_json(entry, &speed))
                tn_log(TN_LOG_WARN, "the remembered peaks of %s are damaged: run tenon devices --measure",
                       tn_device_name(device));
            else if (tn_device_set_speed(device, (int)threads, &speed) != TN_OK)
                tn_log(TN_LOG_WARN, "%s", tn_error());
        }
    }
    json_decref(root);
}

/* ---- Writing ---- */

static json_t *list_json(const double *values, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_real(values[i]));
    return list;
}

static json_t *entry_json(const tn_device *device, int n_threads, const tn_device_speed *speed) {
    tn_device_speed s = *speed;
    const bool cpu = tn_device_get_kind(device) == TN_DEVICE_CPU;
    json_t *entry = json_pack("{s:s, s:s, s:s, s:s, s:i}", "name", tn_device_name(device), "description",
                              tn_device_description(device), "version", tn_version(), "kernels",
                              cpu ? tn_cpu_level() : "", "threads", cpu ? n_threads : 0);
    json_t *types = json_object();
    for (size_t i = 0; i < FIELDS; i++) json_object_set_new(entry, fields[i].name, json_real(*field_of(&s, i)));
    for (int t = 0; t < TN_TYPE_LIMIT; t++)
        if (tn_type_valid((tn_type)t) && s.multiply[t][0] > 0)
            json_object_set_new(types, tn_type_name((tn_type)t), list_json(s.multiply[t], TN_SPEED_POINTS));
    json_object_set_new(entry, "multiply", types);
    json_object_set_new(entry, "experts", list_json(s.experts, TN_SPEED_POINTS));
    json_object_set_new(entry, "launch", list_json(s.launch, TN_LAUNCH_KINDS));
    json_object_set_new(entry, "attention_keys", list_json(s.attention_keys, TN_SPEED_GROUPS));
    return entry;
}

/* Creates the folders above a file. */
static void make_folders(char *path) {
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0777); /* a failure shows when the file is written */
        *at = '/';
    }
}

/* Another process may read the file at any time: it sees the old or the new one. */
static int write_document(json_t *root, const char *path) {
    char temporary[4200];
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    bool written = root && json_dump_file(root, temporary, JSON_INDENT(1)) == 0 && rename(temporary, path) == 0;
    if (written) return EXIT_OK;
    const int code = fail("cannot write %s: %s", path, strerror(errno));
    unlink(temporary);
    return code;
}

int speed_cache_store(tn_device *device, int n_threads, const tn_device_speed *speed) {
    char path[4096];
    const bool cpu = tn_device_get_kind(device) == TN_DEVICE_CPU;
    if (cpu && n_threads <= 0) n_threads = tn_cpu_count();
    if (!cpu) n_threads = 0;
    tn_status status = tn_device_set_speed(device, n_threads, speed);
    if (status != TN_OK) return fail_status(status, "%s", "");
    if (!speed_cache_path(path, sizeof path)) return fail("no folder for caches: set HOME or XDG_CACHE_HOME");
    json_t *root = load_document();
    if (!root) root = json_pack("{s:i, s:[]}", "format", FORMAT, "devices");
    json_t *list = json_object_get(root, "devices");
    for (size_t i = json_array_size(list); i-- > 0;) {
        const json_t *entry = json_array_get(list, i);
        if (text_is(entry, "name", tn_device_name(device)) &&
            text_is(entry, "description", tn_device_description(device)) &&
            json_integer_value(json_object_get(entry, "threads")) == n_threads)
            json_array_remove(list, i);
    }
    json_array_append_new(list, entry_json(device, n_threads, speed));
    make_folders(path);
    const int code = write_document(root, path);
    json_decref(root);
    return code;
}

/* ---- Measuring ---- */

static bool show_measuring(void *user, size_t done, size_t total) {
    struct progress *progress = user;
    progress->total = total;
    progress_update(progress, done);
    return !interrupted();
}

static int report_measured(tn_device *device, int n_threads, tn_status status, const tn_device_speed *speed) {
    if (status != TN_OK) return fail_status(status, "cannot measure %s", tn_device_name(device));
    return speed_cache_store(device, n_threads, speed);
}

int speed_measure(tn_device *device, int n_threads, double seconds) {
    char title[96];
    struct progress progress;
    tn_device_speed speed;
    snprintf(title, sizeof title, "measuring %.60s", tn_device_name(device));
    progress_start(&progress, title, 1, PROGRESS_ITEMS);
    const tn_measure_params params = {
        .n_threads = n_threads, .seconds = seconds, .progress = show_measuring, .user = &progress};
    tn_status status = tn_device_measure(device, &params, &speed);
    progress_end(&progress);
    return report_measured(device, n_threads, status, &speed);
}

static bool wait_for_ranks(void *user, size_t done, size_t total) {
    (void)done;
    (void)total;
    return tn_net_barrier(user) == TN_OK && !interrupted();
}

int speed_measure_together(tn_device *device, int n_threads, tn_net *net) {
    /* A fixed list: all ranks take the same steps. */
    static const tn_type types[] = {TN_Q4_K, TN_F16, TN_Q6_K, TN_Q8_0, TN_BF16, TN_F32, TN_Q4_0, TN_Q5_K};
    tn_device_speed speed;
    const tn_measure_params params = {.n_threads = n_threads,
                                      .types = types,
                                      .n_types = sizeof types / sizeof *types,
                                      .progress = wait_for_ranks,
                                      .user = net};
    tn_status status = tn_net_barrier(net);
    if (status == TN_OK) status = tn_device_measure(device, &params, &speed);
    return report_measured(device, n_threads, status, &speed);
}
