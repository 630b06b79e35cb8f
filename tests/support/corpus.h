/* Replays the inputs of a fuzz target in unit tests. */
#ifndef TN_TESTS_CORPUS_H
#define TN_TESTS_CORPUS_H

#include <stddef.h>
#include <stdint.h>

/* Runs `target` over all files below tests/fuzz/corpus/NAME and returns their number. The target traps on a failure.
 */
int replay_corpus(const char *name, int (*target)(const uint8_t *bytes, size_t size));

#endif
