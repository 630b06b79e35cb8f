/* tenon pull: get a model. */
#include "hub/hub.h"

#include <string.h>

static int run_pull(const struct args *args) {
    char path[HUB_PATH];
    if (args_flag(args, "list")) {
        hub_list(stdout);
        return EXIT_OK;
    }
    if (args->count == 0) return fail_usage(args, "missing argument: tenon pull OWNER/REPO[:QUANT] or a URL");
    const char *what = args->values[0];
    const char *page = "https://huggingface.co/";
    const bool is_url = strncmp(what, "http://", 7) == 0 ||
                        (strncmp(what, "https://", 8) == 0 &&
                         (strncmp(what, page, strlen(page)) != 0 || strstr(what, "/resolve/") != NULL));
    int code = is_url ? hub_fetch_url(args, what, path) : hub_fetch(args, what, args_text(args, "hf-file"), path);
    if (code == EXIT_OK) puts(path);
    return code;
}

static const struct option options[] = {
    OPTIONS_HUB,
    {.name = "list", .kind = OPTION_FLAG, .help = "list the models that were downloaded"},
    {0},
};

const struct command command_pull = {
    .name = "pull",
    .summary = "download a model",
    .section = SECTION_FILES,
    .arguments = "[OWNER/REPO[:QUANT] | URL]",
    .max_arguments = 1,
    .options = options,
    .details =
        "Without QUANT the file of Q4_K_M is taken or, where there is none, another common one. All files of a split "
        "model are downloaded. The path of the model is printed; run, chat, serve and bench take the same names with "
        "-hf and -mu. Files are kept where Hugging Face's programs keep them (HF_HUB_CACHE, HF_HOME), so that these "
        "share them. An interrupted download continues where it ended; contents are checked by their SHA-256.\n\n"
        "HF_TOKEN is the access token for models that need one, HF_ENDPOINT another hub. Proxies are those of the "
        "environment (https_proxy, no_proxy).",
    .examples = "tenon pull Qwen/Qwen3-8B-GGUF                  # Q4_K_M\n"
                "tenon pull Qwen/Qwen3-8B-GGUF:Q8_0\n"
                "tenon pull --list",
    .run = run_pull,
};
