/* The registry of devices: built-in ones, then those of loadable backends, then devices that the caller adds or makes
 * from a specification such as "sim:8G". */
#include "backend/registry.h"

#include "base/checked.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Fixed tables: the registry allocates nothing, so the CPU is available even without memory for anything else. */
enum { MAX_DEVICES = 256, MAX_DESCRIBERS = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static tn_device *devices[MAX_DEVICES];
static size_t n_devices;
/* Modules that make devices from specifications, the first loaded first. */
static struct describer {
    const char *name;
    tn_status (*describe)(const char *spec, tn_device **device);
} describers[MAX_DESCRIBERS];
static size_t n_describers;
/* A module whose driver found no device. Loading it would load libraries of hundreds of megabytes, so it waits until
 * a device is described ("cuda:h200"), which needs no hardware. */
static struct deferred_module {
    char path[4096];
    const char *name;
} deferred;

/* With the lock held. */
static tn_device *find_locked(const char *name) {
    for (size_t i = 0; i < n_devices; i++)
        if (strcmp(devices[i]->name, name) == 0) return devices[i];
    return NULL;
}

static tn_status add_locked(tn_device *device) {
    if (!device->name[0]) return tn_fail(TN_E_INVALID, "a device needs a name");
    if (find_locked(device->name)) return tn_fail(TN_E_EXISTS, "a device named '%s' is already there", device->name);
    if (n_devices == MAX_DEVICES) return tn_fail(TN_E_FULL, "more than %d devices", MAX_DEVICES);
    devices[n_devices++] = device;
    return TN_OK;
}

/* All or none of a module's devices. */
static tn_status add_module(const char *path, const tn_backend_module *module) {
    pthread_mutex_lock(&lock);
    size_t before = n_devices;
    tn_status status = TN_OK;
    for (size_t i = 0; i < module->n_devices && status == TN_OK; i++) status = add_locked(module->devices[i]);
    if (status != TN_OK) n_devices = before;
    if (status == TN_OK && module->describe && n_describers < MAX_DESCRIBERS)
        describers[n_describers++] = (struct describer){module->name, module->describe};
    pthread_mutex_unlock(&lock);
    return status == TN_OK ? status : tn_fail_more(status, " (from %s)", path);
}

static bool is_loaded(const char *path) {
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (module) dlclose(module);
    return module != NULL;
}

/* A loaded module stays loaded: its devices live until the process ends. */
static tn_status load(const char *path) {
    if (is_loaded(path)) return tn_fail(TN_E_EXISTS, "%s is loaded already", path);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return tn_fail(TN_E_IO, "cannot load backend: %s", dlerror());
    tn_backend_entry_fn entry;
    void *symbol = dlsym(module, TN_BACKEND_ENTRY_NAME);
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from object to function pointers */
    tn_status status;
    if (!symbol) {
        status = tn_fail(TN_E_FORMAT, "%s: not a backend (no %s)", path, TN_BACKEND_ENTRY_NAME);
        goto unload;
    }
    tn_backend_module info = {.interface = 0};
    status = entry(&info);
    if (status != TN_OK) {
        status = tn_fail(status, "%s: its backend did not start: %s", path, tn_status_text(status));
        goto unload;
    }
    if (info.interface != TN_BACKEND_INTERFACE) {
        status = tn_fail(TN_E_VERSION, "%s: built for backend interface %u, this library has %u", path,
                         (unsigned)info.interface, (unsigned)TN_BACKEND_INTERFACE);
        goto unload;
    }
    if (info.n_devices == 0) tn_log(TN_LOG_INFO, "%s: no usable device", path);
    if (info.n_devices == 0 && !info.describe) goto unload;
    status = add_module(path, &info);
    if (status == TN_OK) return TN_OK;
unload:
    dlclose(module);
    return status;
}

/* libtenon-NAME.so is a backend, except for the LLM layer, which carries the same prefix. */
static bool is_backend_file(const char *name) {
    static const char prefix[] = "libtenon-", suffix[] = ".so";
    size_t length = strlen(name);
    if (length <= sizeof prefix + sizeof suffix - 2 || strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    return strcmp(name + length - (sizeof suffix - 1), suffix) == 0 && strcmp(name, "libtenon-llm.so") != 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int wanted(const struct dirent *entry) { return is_backend_file(entry->d_name); }

/* Whether the CUDA driver is installed and finds a device. The driver's own library is small. */
static bool cuda_has_device(void) {
    typedef int (*init_fn)(unsigned);
    typedef int (*count_fn)(int *);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) return false;
    init_fn init;
    count_fn count;
    void *init_symbol = dlsym(driver, "cuInit"), *count_symbol = dlsym(driver, "cuDeviceGetCount");
    memcpy(&init, &init_symbol, sizeof init);
    memcpy(&count, &count_symbol, sizeof count);
    int n = 0;
    bool found = init_symbol && count_symbol && init(0) == 0 && count(&n) == 0 && n > 0;
    if (!found) dlclose(driver);
    return found;
}

/* A module beside the library whose hardware is missing is not loaded yet. */
static bool defer_module(const char *path, const char *file) {
    if (strcmp(file, "libtenon-cuda.so") != 0 || cuda_has_device()) return false;
    if (!deferred.name) snprintf(deferred.path, sizeof deferred.path, "%s", path);
    deferred.name = "cuda";
    tn_log(TN_LOG_INFO, "%s: no CUDA driver or device; not loaded", path);
    return true;
}

/* The same file may be found twice, next to the library and in TENON_BACKEND_PATH. */
static void load_or_log(const char *path) {
    if (is_loaded(path)) return;
    if (load(path) != TN_OK) {
        tn_log(TN_LOG_WARN, "skipped backend: %s", tn_error());
        tn_error_clear();
    }
}

/* With `defers`, modules whose hardware is missing wait. */
static void load_folder(const char *folder, bool defers) {
    struct dirent **entries;
    int count = scandir(folder, &entries, wanted, by_name);
    for (int i = 0; i < count; i++) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (length > 0 && (size_t)length < sizeof path && !(defers && defer_module(path, entries[i]->d_name)))
            load_or_log(path);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

static void load_next_to_library(void) {
    Dl_info info;
    char folder[4096];
    static const char anchor;
    if (!dladdr(&anchor, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t length = slash ? (size_t)(slash - info.dli_fname) : 0;
    if (!slash || length >= sizeof folder) return;
    memcpy(folder, info.dli_fname, length);
    folder[length] = '\0';
    load_folder(length ? folder : "/", true);
}

/* TENON_BACKEND_PATH: folders and files, separated by colons. */
static void load_from_environment(void) {
    const char *rest = getenv("TENON_BACKEND_PATH");
    while (rest && *rest) {
        size_t length = strcspn(rest, ":");
        char path[4096];
        if (length > 0 && length < sizeof path) {
            memcpy(path, rest, length);
            path[length] = '\0';
            struct stat info;
            if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
                load_folder(path, false);
            else
                load_or_log(path);
        }
        rest += length + (rest[length] == ':');
    }
}

static void start(void) {
    devices[n_devices++] = tn__cpu_device();
    load_next_to_library();
    load_from_environment();
}
static void ensure_started(void) { pthread_once(&once, start); }

size_t tn_device_count(void) {
    ensure_started();
    pthread_mutex_lock(&lock);
    size_t count = n_devices;
    pthread_mutex_unlock(&lock);
    return count;
}

tn_device *tn_device_get(size_t index) {
    ensure_started();
    pthread_mutex_lock(&lock);
    tn_device *device = index < n_devices ? devices[index] : NULL;
    pthread_mutex_unlock(&lock);
    return device;
}

tn_device *tn__registry_first_of_card(const char *card) {
    tn_device *first = NULL;
    ensure_started();
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_devices && !first; i++)
        if (strcmp(devices[i]->card, card) == 0) first = devices[i];
    pthread_mutex_unlock(&lock);
    return first;
}

static tn_status not_found(const char *name) {
    char known[512] = "";
    size_t used = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_devices && used < sizeof known; i++) {
        int n = snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", devices[i]->name);
        if (n > 0) used += (size_t)n;
    }
    pthread_mutex_unlock(&lock);
    return tn_fail(TN_E_NOT_FOUND, "no device named '%s' (there are: %s)", name, known);
}

static tn_device *find_device(const char *name) {
    pthread_mutex_lock(&lock);
    tn_device *device = find_locked(name);
    pthread_mutex_unlock(&lock);
    return device;
}
static tn_status add_or_free(tn_device *device) {
    tn_status status = tn_registry_add(device);
    if (status != TN_OK && device->ops->free) device->ops->free(device);
    return status;
}

/* A simulated device. A specification with a name of its own names the same device every time. */
static tn_status find_simulated(const char *spec, tn_device **device) {
    const char *own = strstr(spec, ",name=");
    char text[sizeof(*device)->name];
    if (own && (size_t)snprintf(text, sizeof text, "%.*s", (int)strcspn(own + 6, ","), own + 6) < sizeof text) {
        tn_device *known = find_device(text);
        if (known && tn__sim_is(known, spec)) {
            *device = known;
            return TN_OK;
        }
    }
    tn_device *made;
    TN_TRY(tn__sim_device_new(spec, &made));
    TN_TRY(add_or_free(made));
    *device = made;
    return TN_OK;
}
/* Loads the deferred module if the specification names it. */
static void load_deferred(const char *name) {
    char path[sizeof deferred.path] = "";
    pthread_mutex_lock(&lock);
    const size_t length = deferred.name ? strlen(deferred.name) : 0;
    if (length && strncmp(name, deferred.name, length) == 0 && name[length] == ':') {
        snprintf(path, sizeof path, "%s", deferred.path);
        deferred.name = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (*path) load_or_log(path);
}

/* A device that a module makes from "module:spec"; TN_E_NOT_FOUND without such a module. */
static tn_status find_described(const char *name, tn_device **device) {
    tn_status (*describe)(const char *, tn_device **) = NULL;
    const char *colon = strchr(name, ':');
    load_deferred(name);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; colon && !describe && i < n_describers; i++)
        if (strlen(describers[i].name) == (size_t)(colon - name) &&
            strncmp(describers[i].name, name, (size_t)(colon - name)) == 0)
            describe = describers[i].describe;
    pthread_mutex_unlock(&lock);
    if (!describe) return not_found(name);
    tn_device *made, *known;
    TN_TRY(describe(colon + 1, &made));
    /* A name of its own in the specification: the same description names the same device. */
    known = find_device(made->name);
    if (known && known->ops == made->ops && strcmp(known->description, made->description) == 0) {
        if (made->ops->free) made->ops->free(made);
        *device = known;
        return TN_OK;
    }
    TN_TRY(add_or_free(made));
    *device = made;
    return TN_OK;
}

tn_status tn_device_find(const char *name, tn_device **device) {
    if (!name || !device) return tn_fail(TN_E_INVALID, "tn_device_find: missing argument");
    ensure_started();
    tn_device *known = find_device(name);
    if (known) {
        *device = known;
        return TN_OK;
    }
    return strncmp(name, "sim:", 4) == 0 ? find_simulated(name, device) : find_described(name, device);
}

tn_status tn_registry_load(const char *path) {
    if (!path) return tn_fail(TN_E_INVALID, "tn_registry_load needs a path");
    ensure_started();
    return load(path);
}

tn_status tn_registry_add(tn_device *device) {
    if (!device || !device->ops || !device->buffer_type)
        return tn_fail(TN_E_INVALID, "a device needs its functions and a buffer type");
    ensure_started();
    pthread_mutex_lock(&lock);
    tn_status status = add_locked(device);
    pthread_mutex_unlock(&lock);
    return status;
}

void tn_registry_remove(tn_device *device) {
    if (!device || device == tn__cpu_device()) return;
    bool removed = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_devices; i++) {
        if (devices[i] != device) continue;
        memmove(devices + i, devices + i + 1, (n_devices - i - 1) * sizeof devices[0]);
        n_devices--;
        removed = true;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (removed && device->ops->free) device->ops->free(device);
}
