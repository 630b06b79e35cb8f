/* Sessions with kept prefixes on models of every architecture. */
#ifndef TN_TESTS_PREFIX_CASES_H
#define TN_TESTS_PREFIX_CASES_H

#include "models/kept_cases.h"

enum { SEQS = 4, KEPT = 16, WINDOW = 16 };

static char prefix_model_path[64];
static int32_t case_every; /* checkpoint_every of the sessions that keep prefixes */

/* The answers of a session's abort callback: false, until it was asked so many times; -1: for ever. */
static int aborts_after = -1;
static inline bool abort_when_told(void *user) {
    (void)user;
    return aborts_after >= 0 && aborts_after-- == 0;
}

static inline void open_case(kept_case *c, const char *arch, int32_t n_ctx, int32_t n_prefixes) {
    const tiny_options options = {.arch = arch, .context = POOL, .vocab = VOCAB};
    tn_session_params warm = kept_params(n_ctx, SEQS, n_prefixes);
    warm.checkpoint_every = case_every;
    if (case_every) warm.n_checkpoints = 8;
    open_kept(c, prefix_model_path, &options, &warm);
}

static const char *const some_archs[] = {"llama", "gemma2", "gemma3", "phi3", "gpt2", NULL};

/* Runs a test on every causal architecture, or on some. */
static inline void on_archs(bool all, void (*test)(kept_case *c), int32_t n_ctx, int32_t n_prefixes) {
    kept_case c;
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        bool wanted = all && tiny_arch_is_tested(arch->name);
        for (size_t k = 0; some_archs[k]; k++) wanted = wanted || strcmp(some_archs[k], arch->name) == 0;
        if (!wanted || arch->traits & (TN_ARCH_ENCODER | TN_ARCH_DIFFUSION)) continue;
        open_case(&c, arch->name, n_ctx, n_prefixes);
        test(&c);
        close_kept(&c);
    }
}

static inline int make_prefix_path(void **state) {
    (void)state;
    strcpy(prefix_model_path, "/tmp/tenon-prefixes-XXXXXX");
    int file = mkstemp(prefix_model_path);
    if (file >= 0) close(file);
    return file < 0;
}
static inline int remove_prefix_path(void **state) {
    (void)state;
    return unlink(prefix_model_path);
}

#endif
