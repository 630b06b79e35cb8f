/* The part of cmocka that the kernel tests use, for cross builds where the library itself is not installed. */
#ifndef TN_TESTS_CROSS_CMOCKA_H
#define TN_TESTS_CROSS_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf cross_leave;
static int cross_skipped;

#define print_message(...) fprintf(stderr, __VA_ARGS__)
#define fail_msg(...)                                                                                                \
    do {                                                                                                             \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                              \
        fprintf(stderr, __VA_ARGS__);                                                                                \
        fputc('\n', stderr);                                                                                         \
        longjmp(cross_leave, 1);                                                                                     \
    } while (0)
#define assert_true(c) ((c) ? (void)0 : cross_fail(#c, __FILE__, __LINE__))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p) assert_true((p) == NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define skip()                                                                                                       \
    do {                                                                                                             \
        cross_skipped = 1;                                                                                           \
        longjmp(cross_leave, 2);                                                                                     \
    } while (0)

static inline void cross_fail(const char *what, const char *file, int line) {
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    longjmp(cross_leave, 1);
}

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f)                                                                                          \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) cross_run(tests, sizeof(tests) / sizeof((tests)[0]), setup)

static inline int cross_run(const struct CMUnitTest *tests, size_t n, int (*setup)(void **)) {
    volatile int failed = 0;
    void *state = NULL;
    if (setup) setup(&state);
    for (volatile size_t i = 0; i < n; i++) {
        cross_skipped = 0;
        if (setjmp(cross_leave) == 0) {
            tests[i].run(&state);
            fprintf(stderr, "ok      %s\n", tests[i].name);
        } else if (cross_skipped) {
            fprintf(stderr, "skipped %s\n", tests[i].name);
        } else {
            fprintf(stderr, "FAILED  %s\n", tests[i].name);
            failed++;
        }
    }
    return failed;
}

#endif
