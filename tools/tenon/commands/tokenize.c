/* tenon tokenize: text to token ids. */
#include "cli/json_output.h"
#include "cli/text_input.h"
#include "engine/loaded_model.h"
#include "files/metadata_text.h"

#include <stdlib.h>
#include <string.h>

static const char *type_name(tn_token_type type) {
    switch (type) {
    case TN_TOKEN_NORMAL: return "normal";
    case TN_TOKEN_UNKNOWN: return "unknown";
    case TN_TOKEN_CONTROL: return "control";
    case TN_TOKEN_USER_DEFINED: return "user-defined";
    case TN_TOKEN_UNUSED: return "unused";
    case TN_TOKEN_BYTE: return "byte";
    }
    return "?";
}

static tn_gguf_str piece_of(const tn_tokenizer *t, tn_token id) {
    tn_gguf_str piece;
    piece.data = tn_token_piece(t, id, &piece.size);
    return piece;
}

static void print_pieces(const tn_tokenizer *t, const tn_tokens *tokens) {
    for (size_t i = 0; i < tokens->count; i++) {
        printf("%7d  %-12s  '", tokens->ids[i], type_name(tn_token_get_type(t, tokens->ids[i])));
        show_text(stdout, piece_of(t, tokens->ids[i]), SIZE_MAX);
        puts("'");
    }
}

static int print_tokens_json(const tn_tokenizer *t, const tn_tokens *tokens, bool pieces) {
    json_t *ids = json_array(), *texts = pieces ? json_array() : NULL;
    for (size_t i = 0; i < tokens->count; i++) {
        json_array_append_new(ids, json_integer(tokens->ids[i]));
        if (pieces) json_array_append_new(texts, show_json_text(piece_of(t, tokens->ids[i])));
    }
    json_t *all = json_pack("{s:I, s:o}", "count", (json_int_t)tokens->count, "tokens", ids);
    if (all && pieces) json_object_set_new(all, "pieces", texts);
    return print_json_line(all);
}

static int print_tokens(const struct args *args, const tn_tokenizer *t, const tn_tokens *tokens) {
    if (args_flag(args, "json")) return print_tokens_json(t, tokens, args_flag(args, "pieces"));
    if (args_flag(args, "count")) {
        printf("%zu\n", tokens->count);
    } else if (args_flag(args, "pieces")) {
        print_pieces(t, tokens);
    } else {
        for (size_t i = 0; i < tokens->count; i++) printf(i ? " %d" : "%d", tokens->ids[i]);
        putchar('\n');
    }
    return EXIT_OK;
}

static int print_encoded(const struct args *args, const tn_tokenizer *t, const char *text, size_t size,
                         tn_tokens *tokens) {
    unsigned flags = (args_flag(args, "add-special") ? TN_ENCODE_ADD_SPECIAL : 0) |
                     (args_flag(args, "parse-special") ? TN_ENCODE_PARSE_SPECIAL : 0);
    tokens->count = 0;
    tn_status status = tn_tokenizer_encode(t, text, size, flags, tokens);
    return status == TN_OK ? print_tokens(args, t, tokens) : fail_status(status, "tokenize");
}

/* Each line of the input is a JSON string, so that a text can contain line ends. */
static int encode_lines(const struct args *args, const tn_tokenizer *t, const char *input, size_t size,
                        tn_tokens *tokens) {
    int code = EXIT_OK, number = 0;
    for (size_t at = 0; at < size && code == EXIT_OK;) {
        const char *end = memchr(input + at, '\n', size - at);
        size_t length = end ? (size_t)(end - input) - at : size - at;
        json_error_t error;
        json_t *text = json_loadb(input + at, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        number++;
        at += length + 1;
        if (json_is_string(text))
            code = print_encoded(args, t, json_string_value(text), json_string_length(text), tokens);
        else
            code = fail("line %d of the input is not a JSON string", number);
        json_decref(text);
    }
    return code;
}

static int run_tokenize(const struct args *args) {
    tn_tokenizer *t;
    if (args_flag(args, "lines") && args->count > 1 && strcmp(args->values[1], "-") != 0)
        return fail_usage(args, "--lines reads standard input, not a TEXT");
    int code = load_tokenizer(args->values[0], args_flag(args, "allow-unknown-pre"), &t);
    if (code) return code;
    char *input = NULL;
    const char *text = args->count > 1 ? args->values[1] : "-";
    size_t size = strlen(text);
    if (!strcmp(text, "-")) {
        code = read_input(&input, &size);
        text = input;
    }
    tn_tokens tokens = {0};
    if (code == EXIT_OK) {
        code = args_flag(args, "lines") ? encode_lines(args, t, text, size, &tokens)
                                        : print_encoded(args, t, text, size, &tokens);
        free(input);
    }
    tn_tokens_free(&tokens);
    tn_tokenizer_free(t);
    return code;
}

static const struct option options[] = {
    {.name = "add-special",
     .help = "add the tokens that the model expects at the start and end of a text",
     .kind = OPTION_FLAG},
    {.name = "parse-special",
     .help = "treat control tokens written in the text, such as <|im_end|>, as tokens",
     .kind = OPTION_FLAG},
    {.name = "lines",
     .help = "treat each line of standard input as one text, written as a JSON string",
     .kind = OPTION_FLAG},
    {.name = "pieces", .help = "print one token per line, with its type and text", .kind = OPTION_FLAG},
    {.name = "count", .help = "print only the number of tokens", .kind = OPTION_FLAG},
    {.name = "allow-unknown-pre",
     .help = "use the default pre-tokenizer when the model's is unknown",
     .kind = OPTION_FLAG},
    OPTION_JSON,
    {0},
};

const struct command command_tokenize = {
    .name = "tokenize",
    .summary = "convert text to token ids",
    .section = SECTION_TEXT,
    .arguments = "MODEL [TEXT]",
    .min_arguments = 1,
    .max_arguments = 2,
    .details =
        "Prints the token ids on one line, separated by spaces. Without TEXT, or with \"-\", the text is read from "
        "standard input. Reads only the metadata of the model file.",
    .options = options,
    .examples = "tenon tokenize model.gguf \"Hello world\"\n"
                "tenon tokenize model.gguf --pieces \"Hello world\"\n"
                "tenon tokenize model.gguf --count - < book.txt  # number of tokens in a book\n",
    .run = run_tokenize,
};
