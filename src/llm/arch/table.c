/* The table of architectures: the lists of all files of this folder, and looking them up. */
#include "llm/arch/families.h"

#include <string.h>

/* Each ends with a row without a name. Lists of architectures follow this order. The last one is found by name only:
 * its files are no models on their own. */
static const tn__arch *const arch_lists[] = {tn__transformers,   tn__dense_families,   tn__moe_families,
                                             tn__hybrids,        tn__latent_families,  tn__sparse_families,
                                             tn__gemma_families, tn__encoder_families, tn__heads};
enum { ARCH_LISTS = sizeof arch_lists / sizeof *arch_lists, MODEL_LISTS = ARCH_LISTS - 1 };

/* The row after this one, or the first; NULL at the end. *list is the number of its list. */
static const tn__arch *next_row(const tn__arch *row, size_t *list) {
    row = row ? row + 1 : arch_lists[ *list = 0];
    while (!row->info.name) {
        if (++*list == ARCH_LISTS) return NULL;
        row = arch_lists[*list];
    }
    return row;
}

const tn__arch *tn__arch_find(const char *name) {
    size_t list;
    for (const tn__arch *row = next_row(NULL, &list); row; row = next_row(row, &list))
        if (strcmp(row->info.name, name) == 0) return row;
    return NULL;
}

const tn_arch *tn_arch_at(size_t index) {
    size_t list;
    const tn__arch *row = next_row(NULL, &list);
    while (row && index--) row = next_row(row, &list);
    return row && list < MODEL_LISTS ? &row->info : NULL;
}

const tn_arch *tn_arch_find(const char *name) {
    const tn__arch *arch = name ? tn__arch_find(name) : NULL;
    return arch ? &arch->info : NULL;
}

const tn_arch *tn_arch_find_class(const char *class_name, const tn_arch_class **found) {
    size_t list;
    for (const tn__arch *row = next_row(NULL, &list); row && class_name; row = next_row(row, &list))
        for (const tn_arch_class *c = row->info.classes; c->name; c++)
            if (!c->entry && strcmp(c->name, class_name) == 0) {
                if (found) *found = c;
                return &row->info;
            }
    return NULL;
}
