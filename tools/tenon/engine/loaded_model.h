/* A model that was opened and made ready to run, with the memory that was planned for it. */
#ifndef TENON_TOOL_LOADED_MODEL_H
#define TENON_TOOL_LOADED_MODEL_H

#include "cli/cli.h"
#include "engine/adapter_options.h"

#include "tenon/generate.h"

struct loaded_model {
    tn_model *model;
    tn_session *session;
    struct opened_adapters adapters;
    tn_threadpool *threads;       /* of the session */
    tn_net *net;                  /* to the other ranks, or NULL */
    struct device_ranks *devices; /* ranks in threads, or NULL */
    size_t planned_bytes;         /* on all devices, from the plan that was made before the session */
};

/* Says on standard error how to get a model that is not there, where its name is that of a repository or of another
 * program's model. */
void advise_download(const char *path);
/* Opens the model, plans its memory and makes a session, with a progress bar. Where the context is left open, a line
 * on standard error says which one was chosen. Prints a message and returns an exit code on failure; `loaded` is
 * empty then. */
int loaded_model_open(const struct args *args, const char *path, const tn_session_params *params,
                      struct loaded_model *loaded);
void loaded_model_close(struct loaded_model *loaded); /* an empty one is fine */
/* Plans a session; with `use_cache` takes the plan from the user's cache, or keeps it there. */
tn_status session_plan_make(tn_model *model, const tn_session_params *params, bool use_cache, tn_session_plan **plan);
/* The same by --plan-cache, or loads the plan that --plan names. */
tn_status session_plan_from(const struct args *args, tn_model *model, const tn_session_params *params,
                            tn_session_plan **plan);

/* Bytes that a plan or a session takes on one device, without the weights that stay in the mapped file. */
static inline size_t device_bytes(const tn_fit_device *d) {
    return d->weights + d->adapters + d->cache + d->compute + d->scratch + d->staging + d->tier + d->own;
}
/* What the devices that share one memory take together; `first` is the first of them. */
struct domain_use {
    size_t bytes, mapped, n_devices;
};
struct domain_use domain_use(const tn_fit *fit, size_t first);
/* One line for every memory that several devices draw from, and for every device that does not report its memory. */
void print_domains(const tn_fit *fit, const char *indent, FILE *out);

/* Bytes on all devices. Weights that stay in the mapped file are not part of `planned` and `used`. */
struct memory_use {
    size_t planned, used, mapped;
};
bool loaded_model_memory(const struct loaded_model *loaded, struct memory_use *use); /* false after a message */
/* One line on standard error: "105 tokens, prompt 812.3 tokens/s, generation 44.1 tokens/s, memory planned 1.20 GiB =
 * used 1.20 GiB". */
void print_closing_line(const struct loaded_model *loaded, const tn_speculator *speculator);

/* Warns when the user chose a longer context than the model was trained with. */
void warn_long_context(const struct args *args, const tn_model *model, const tn_session_params *params);
/* Says why a context that was left open has this length. Returns `text`. */
const char *describe_open_context(int32_t n_ctx, int32_t trained, char *text, size_t size);
/* For --verbose: what was loaded, on which devices, and how long it took. */
void log_session(const char *path, const tn_model *model, const tn_session *session, uint64_t began_ns);
/* How many prompt tokens to process next, so that progress is shown every few seconds. Starts small (last is 0), then
 * follows the time of the last chunk, up to one micro-batch, which is fastest. */
size_t prompt_chunk(const tn_session *session, size_t last, uint64_t last_ns);

/* Loads only the tokenizer of a model file. Prints a message and returns an exit code on failure. */
int load_tokenizer(const char *path, bool allow_unknown_pre, tn_tokenizer **out);

#endif
