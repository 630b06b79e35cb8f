/* tenon chat: a conversation with a model. */
#include "chat/conversation.h"
#include "engine/adapter_options.h"
#include "engine/context_shift.h"
#include "engine/load_options.h"
#include "engine/options.h"
#include "engine/sampling.h"
#include "speculate/speculation.h"

static const struct option options[] = {
    OPTIONS_CONVERSATION,
    {.name = "prompt", .letter = "p", .value = "TEXT", .kind = OPTION_TEXT, .help = "the first message"},
    {.name = "file", .letter = "f", .value = "FILE", .kind = OPTION_TEXT, .help = "read the first message from FILE"},
    {.name = "predict",
     .letter = "n",
     .aliases = "--n-predict",
     .value = "N",
     .kind = OPTION_INT,
     .min = -1,
     .max = 1e9,
     .fallback = "1024",
     .words = "-2=-1",
     .help = "max tokens of a reply, -1 for no limit",
     .env = "LLAMA_ARG_N_PREDICT"},
    OPTIONS_CONTEXT_SHIFT("on", "-1"),
    {0},
};
static const struct option_group *const groups[] = {
    &model_options,       &load_options, &adapter_options, &template_options, &sampling_options,
    &speculation_options, NULL};

const struct command command_chat = {
    .name = "chat",
    .summary = "talk with a model",
    .arguments = "[MODEL] [QUESTION]",
    .options = options,
    .groups = groups,
    .details =
        "Lines can be edited, and their history is kept between conversations. A line that ends in a backslash "
        "continues on the next, Alt-Enter starts a new line, and pasted lines stay together. Ctrl-C interrupts a "
        "reply. When the context is full, the oldest messages are dropped, unless --no-context-shift is given. /help "
        "lists more commands.\n\n"
        "With a QUESTION the program prints the reply and ends; text from a pipe or a file follows the question. "
        "Otherwise, if standard input is not a terminal, every line is a message. Only replies go to standard "
        "output.",
    .examples = "tenon chat model.gguf\n"
                "tenon chat model.gguf -sys \"You answer in rhymes.\" --temp 0.5\n"
                "tenon chat model.gguf \"Why is the sky blue?\"\n"
                "tenon chat model.gguf \"What is this about?\" < letter.txt\n"
                "tenon chat model.gguf < questions.txt > answers.txt\n"
                "tenon chat model.gguf -j '{\"type\": \"object\"}'        # replies in JSON",
    .section = SECTION_USE,
    .max_arguments = 2,
    .run = converse_with,
};
