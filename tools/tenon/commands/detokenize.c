/* tenon detokenize: token ids to text. */
#include "cli/json_output.h"
#include "cli/text_input.h"
#include "engine/loaded_model.h"
#include "files/metadata_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Appends the ids in a text; they may be separated by spaces, commas and brackets, as in JSON. */
static bool parse_ids(const char *text, tn_token **ids, size_t *count, size_t *capacity) {
    while (*text) {
        if (isspace((unsigned char)*text) || strchr(",[]", *text)) {
            text++;
            continue;
        }
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || errno || id < 0 || id > INT32_MAX) {
            fail("\"%.40s\" is not a token id", text);
            return false;
        }
        if (*count == *capacity) {
            *capacity = *capacity ? 2 * *capacity : 1024;
            tn_token *larger = realloc(*ids, *capacity * sizeof **ids);
            if (!larger) {
                fail("out of memory for %zu tokens", *capacity);
                return false;
            }
            *ids = larger;
        }
        (*ids)[(*count)++] = (tn_token)id;
        text = end;
    }
    return true;
}

static int run_detokenize(const struct args *args) {
    tn_tokenizer *t;
    tn_token *ids = NULL;
    size_t count = 0, capacity = 0;
    int code = load_tokenizer(args->values[0], true, &t); /* the pre-tokenizer only matters for encoding */
    if (code) return code;
    bool parsed = true;
    if (args->count == 1 || (args->count == 2 && !strcmp(args->values[1], "-"))) {
        char *input = NULL;
        size_t size;
        code = read_input(&input, &size);
        parsed = !code && parse_ids(input, &ids, &count, &capacity);
        if (!code) free(input);
    } else {
        for (int i = 1; i < args->count && parsed; i++) parsed = parse_ids(args->values[i], &ids, &count, &capacity);
    }
    if (!parsed && !code) code = EXIT_ERROR;
    tn_text text = {0};
    if (!code) {
        tn_status status =
            tn_tokenizer_decode(t, ids, count, args_flag(args, "special") ? TN_DECODE_SPECIAL : 0, &text);
        if (status != TN_OK) {
            code = fail_status(status, "detokenize");
        } else if (args_flag(args, "json")) {
            code =
                print_json_line(json_pack("{s:o}", "text", show_json_text((tn_gguf_str){text.bytes, text.length})));
        } else {
            fwrite(text.bytes, 1, text.length, stdout);
        }
    }
    tn_text_free(&text);
    free(ids);
    tn_tokenizer_free(t);
    return code;
}

static const struct option options[] = {
    {.name = "special", .help = "print control tokens instead of leaving them out", .kind = OPTION_FLAG},
    OPTION_JSON,
    {0},
};

const struct command command_detokenize = {
    .name = "detokenize",
    .summary = "convert token ids to text",
    .section = SECTION_TEXT,
    .arguments = "MODEL [ID…]",
    .min_arguments = 1,
    .max_arguments = -1,
    .details = "Prints exactly the bytes of the tokens, without a line end. Without ids, or with \"-\", the ids are "
               "read from "
               "standard input, separated by spaces, commas or line ends.",
    .options = options,
    .examples = "tenon detokenize model.gguf 1206 1435\n"
                "tenon tokenize model.gguf \"Hello world\" | tenon detokenize model.gguf\n",
    .run = run_detokenize,
};
