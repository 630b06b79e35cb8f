/* tenon detokenize: token ids to text. */
#include "cli/json_output.h"
#include "cli/text_buffer.h"
#include "cli/text_input.h"
#include "engine/loaded_model.h"
#include "files/metadata_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Appends the ids in a text; they may be separated by spaces, commas and brackets, as in JSON. Returns an exit code.
 */
static int parse_ids(const char *text, tn_tokens *ids) {
    while (*text) {
        if (isspace((unsigned char)*text) || strchr(",[]", *text)) {
            text++;
            continue;
        }
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || errno || id < 0 || id > INT32_MAX) return fail("\"%.40s\" is not a token id", text);
        tn_token token = (tn_token)id;
        if (tokens_append(ids, &token, 1) != TN_OK) return fail("out of memory for %zu tokens", ids->count);
        text = end;
    }
    return EXIT_OK;
}

static int read_ids(const struct args *args, tn_tokens *ids) {
    bool from_input = args->count == 1 || (args->count == 2 && strcmp(args->values[1], "-") == 0);
    int code = EXIT_OK;
    if (from_input) {
        char *input = NULL;
        size_t size;
        if ((code = read_input(&input, &size))) return code;
        code = parse_ids(input, ids);
        free(input);
    }
    for (int i = 1; i < args->count && !from_input && !code; i++) code = parse_ids(args->values[i], ids);
    return code;
}

static int print_decoded(const struct args *args, const tn_tokenizer *tokenizer, const tn_tokens *ids) {
    tn_text text = {0};
    unsigned flags = args_flag(args, "special") ? TN_DECODE_SPECIAL : 0;
    int code = EXIT_OK;
    tn_status status = tn_tokenizer_decode(tokenizer, ids->ids, ids->count, flags, &text);
    if (status != TN_OK)
        code = fail_status(status, "detokenize");
    else if (args_flag(args, "json"))
        code = print_json_line(json_pack("{s:o}", "text", show_json_text((tn_gguf_str){text.bytes, text.length})));
    else
        fwrite(text.bytes, 1, text.length, stdout);
    tn_text_free(&text);
    return code;
}

static int run_detokenize(const struct args *args) {
    tn_tokenizer *tokenizer;
    tn_tokens ids = {0};
    int code = load_tokenizer(args->values[0], true, &tokenizer); /* the pre-tokenizer only matters for encoding */
    if (code) return code;
    code = read_ids(args, &ids);
    if (!code) code = print_decoded(args, tokenizer, &ids);
    tn_tokens_free(&ids);
    tn_tokenizer_free(tokenizer);
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
