/* JSON on standard output, for the --json option of commands. */
#include "cli/json_output.h"

#include "cli/cli.h"

static int dump_json(json_t *root, size_t flags) {
    if (!root) return fail("out of memory");
    int failed = json_dumpf(root, stdout, flags);
    putchar('\n');
    json_decref(root);
    return failed ? fail("cannot write JSON to standard output") : EXIT_OK;
}

int print_json_document(json_t *root) { return dump_json(root, JSON_INDENT(2)); }
int print_json_line(json_t *root) { return dump_json(root, JSON_COMPACT); }
