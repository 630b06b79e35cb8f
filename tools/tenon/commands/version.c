/* tenon version: version, platform and compiler. */
#include "cli/cli.h"

#ifdef __clang__
#define COMPILER __VERSION__ /* starts with the compiler's name */
#else
#define COMPILER "gcc " __VERSION__
#endif

static int run_version(const struct args *args) {
    if (args_flag(args, "json"))
        printf("{\"version\": \"%s\", \"compiler\": \"%s\", \"platform\": \"%s\"}\n", tn_version(), COMPILER,
               TENON_PLATFORM);
    else
        printf("tenon %s (%s, %s)\n", tn_version(), TENON_PLATFORM, COMPILER);
    return EXIT_OK;
}

static const struct option options[] = {OPTION_JSON, {0}};

const struct command command_version = {
    .name = "version",
    .summary = "print version, platform and compiler",
    .section = SECTION_ABOUT,
    .options = options,
    .examples = "tenon version\ntenon version --json\n",
    .run = run_version,
};
