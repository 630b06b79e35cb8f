/* The table of architectures. */
#include "llm/arch/arch.h"

#include <string.h>

static const tn__arch *const archs[] = {
#define TN_X(name) &tn__arch_##name,
    TN__ARCH_TABLE(TN_X)
#undef TN_X
};

const char *tn_architecture_name(size_t index) { return index < sizeof archs / sizeof *archs ? archs[index]->name : NULL; }

const tn__arch *tn__arch_find(const char *name) {
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i]->name, name) == 0) return archs[i];
    return NULL;
}
