/* tenon version: version of the program and of the library it runs with. */
#include "cli.h"

static int run(const struct args *args) {
    if (args_flag(args, "json"))
        printf("{\"version\": \"%s\", \"compiler\": \"%s\", \"platform\": \"%s\"}\n", tn_version(), __VERSION__,
               TENON_PLATFORM);
    else
        printf("tenon %s (%s, compiler %s)\n", tn_version(), TENON_PLATFORM, __VERSION__);
    return EXIT_OK;
}

static const struct option options[] = {OPTION_JSON, {0}};

const struct command command_version = {
    .name = "version",
    .summary = "version, platform and compiler",
    .section = SECTION_ABOUT,
    .options = options,
    .examples = "tenon version\ntenon version --json\n",
    .run = run,
};
