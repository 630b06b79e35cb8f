/* Included by clang-tidy before every file: what the analyser cannot see across files. tn_fail and tn_fail_more
 * return the status they are given, which is never TN_OK; without that it follows paths that cannot happen. */
#ifdef __clang_analyzer__
#include "tenon/base.h"
#define tn_fail(status, ...) ((void)tn_fail(status, __VA_ARGS__), (status))
#define tn_fail_more(status, ...) ((void)tn_fail_more(status, __VA_ARGS__), (status))
#endif
