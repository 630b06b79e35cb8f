/* Looking up architectures by name and by Hugging Face class. */
#include "llm/arch/arch.h"

#include <string.h>

static const tn__arch *const arch_rows[] = {
#define TN_X(name) &tn__arch_##name,
    TN__ARCH_TABLE(TN_X)
#undef TN_X
};
enum { ARCH_ROWS = sizeof arch_rows / sizeof *arch_rows };

const tn__arch *tn__arch_find(const char *name) {
    for (size_t i = 0; i < ARCH_ROWS; i++)
        if (strcmp(arch_rows[i]->info.name, name) == 0) return arch_rows[i];
    return NULL;
}

const tn_arch *tn_arch_at(size_t index) { return index < ARCH_ROWS ? &arch_rows[index]->info : NULL; }

const tn_arch *tn_arch_find(const char *name) {
    const tn__arch *arch = name ? tn__arch_find(name) : NULL;
    return arch ? &arch->info : NULL;
}

const tn_arch *tn_arch_find_class(const char *class_name, const tn_arch_class **found) {
    for (size_t i = 0; class_name && i < ARCH_ROWS; i++)
        for (const tn_arch_class *c = arch_rows[i]->info.classes; c->name; c++)
            if (strcmp(c->name, class_name) == 0) {
                if (found) *found = c;
                return &arch_rows[i]->info;
            }
    return NULL;
}
