/* Helpers of all unit tests: cmocka, the golden folder, random numbers, and failing allocations. */
#ifndef TN_TESTS_SUPPORT_H
#define TN_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tenon/llm.h"

/* Asserts that a call succeeded; prints its message otherwise. */
#define assert_ok(expr)                                                                                              \
    do {                                                                                                             \
        tn_status assert_ok_status_ = (expr);                                                                        \
        if (assert_ok_status_ != TN_OK)                                                                              \
            fail_msg("%s: %s: %s", #expr, tn_status_name(assert_ok_status_), tn_error());                            \
    } while (0)

/* Asserts a particular failure, and that it left a message. */
#define assert_fails(expected, expr)                                                                                 \
    do {                                                                                                             \
        tn_error_clear();                                                                                            \
        tn_status assert_fails_status_ = (expr);                                                                     \
        if (assert_fails_status_ != (expected))                                                                      \
            fail_msg("%s: expected %s, got %s (%s)", #expr, tn_status_name(expected),                                \
                     tn_status_name(assert_fails_status_), tn_error());                                              \
        if (!*tn_error()) fail_msg("%s: failed without a message", #expr);                                           \
    } while (0)

/* The bytes of a session plan that is not kept. */
static inline tn_status plan_fit(tn_model *model, const tn_session_params *params, tn_fit *fit) {
    tn_session_plan *plan;
    *fit = (tn_fit){0};
    TN_TRY(tn_session_plan_new(model, params, &plan));
    tn_status status = tn_session_plan_fit(plan, fit);
    tn_session_plan_free(plan);
    return status;
}

/* Path of a golden file, or NULL if the folder is absent ($TENON_GOLDEN, otherwise ../shared/golden relative to the
 * project). The result is valid until the next call. Use GOLDEN_OR_SKIP inside a test. */
const char *golden_path(const char *relative);
#define GOLDEN_OR_SKIP(variable, relative)                                                                           \
    const char *variable = golden_path(relative);                                                                    \
    if (!variable) {                                                                                                 \
        print_message("skipped: no golden file %s (set TENON_GOLDEN)\n", relative);                                  \
        skip();                                                                                                      \
    }

/* Reads a whole file and appends a NUL; the caller frees with free(). NULL if it cannot be read. */
void *read_file(const char *path, size_t *size);

/* A small seeded generator, the same numbers everywhere. */
typedef struct rng {
    uint64_t state;
} rng;
uint64_t rng_next(rng *r);
uint64_t rng_below(rng *r, uint64_t bound); /* 0 … bound-1 */
double rng_unit(rng *r);                    /* [0, 1) */
float rng_normal(rng *r);

/* Runs `scenario` with the n-th allocation of the library failing, for n = 1, 2, … until no allocation fails. The
 * scenario returns its status and cleans up: with a failing allocation the status must be TN_E_NOMEM (or TN_OK, if
 * the library does not need the memory), and nothing may leak. */
typedef tn_status (*alloc_scenario)(void *user);
void check_every_allocation_failure(alloc_scenario scenario, void *user);

/* Asserts that the library's live blocks are the same before and after `scenario`. */
void check_no_leak(alloc_scenario scenario, void *user);

#endif
