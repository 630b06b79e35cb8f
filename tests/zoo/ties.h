/* Which of the positions with equal scores an indexer selects, as the references have it. */
#ifndef TN_TESTS_ZOO_TIES_H
#define TN_TESTS_ZOO_TIES_H

#include "tenon/sched.h"

typedef struct zoo_ties {
    enum { TIES_OWN, TIES_HEAP, TIES_QUICK } order;
    int32_t columns; /* QUICK: of the matrix of scores, with those that are masked */
} zoo_ties;

/* "heap" or "quick"; otherwise Tenon's own. */
zoo_ties zoo_ties_of(const char *text, int32_t columns);
/* For tn_sched_set_eval: replaces every selection. `user` is a zoo_ties. */
bool zoo_replace_ties(void *user, tn_tensor *node, bool ask);

#endif
