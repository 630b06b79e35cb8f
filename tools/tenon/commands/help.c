/* tenon help: the list of commands, the help of one command, and the documents made from the command table. */
#include "cli/cli.h"
#include "cli/peer_flags.h"

#include "tenon/arch.h"

/* docs/architectures.md: the architecture table in Markdown. */
static void print_architectures(void) {
    puts(
        "# Architectures\n\n"
        "Tenon runs GGUF models of these architectures, and `tenon convert` makes them from folders of these Hugging "
        "Face\nclasses. `tenon help --architectures` prints this page from the table in "
        "[src/llm/arch](../src/llm/arch);\n[adding a model](adding-a-model.md) shows how to add a row.\n\n"
        "| Architecture | Kind | Hugging Face classes |\n|---|---|---|");
    for (size_t i = 0; tn_arch_at(i); i++) {
        const tn_arch *arch = tn_arch_at(i);
        printf("| %s | %s |", arch->name,
               arch->traits & TN_ARCH_ENCODER     ? "embeddings"
               : arch->traits & TN_ARCH_DIFFUSION ? "text diffusion: logits only"
               : arch->traits & TN_ARCH_EXPERTS   ? "text, mixture of experts"
                                                  : "text");
        for (const tn_arch_class *c = arch->classes; c->name; c++)
            printf("%s%s%s%s", c == arch->classes ? " " : ", ", c->name, c->entry ? " with " : "",
                   c->entry ? c->entry : "");
        puts(" |");
    }
    puts(
        "\n## Where programs differ\n\n"
        "Tenon computes what Hugging Face's transformers computes. Where that does not decide, files of other "
        "programs are "
        "read as\nthose programs read them.\n\n"
        "- Phi 3 has windows if the file lists the layers that have them, as converted files do. Other programs "
        "write a "
        "window and do\n  not use it.\n"
        "- GPT-OSS blends the frequencies of YaRN without rounding; other programs round.\n"
        "- MPT, Falcon, GPT-NeoX, BERT and ModernBERT use the exact form of GELU; other programs use the tanh form.\n"
        "- EXAONE 4 has windows with 64 layers, or if the file lists the layers that have them.\n"
        "- Baichuan has RoPE with 32 layers and ALiBi with 40; files do not say which.\n"
        "- Biases that OLMo 2, ERNIE 4.5 and LLaDA files may hold are not used; folders with such biases are not "
        "converted.\n"
        "- Text diffusion (Dream, LLaDA): `tn_session_decode` gives the logits of whole sequences. Generating is not "
        "supported.\n"
        "- The bias that Nomic's embeddings 2 add to the sum of their experts is converted and applied; other "
        "programs "
        "leave it out and\n  do not load a file that has it.\n"
        "- Not supported: the decoder of T5 (`t5`; its encoder is `t5encoder`), RWKV in the layers of Qwen 2 "
        "(`rwkv6qwen2`, `arwkv7`),\n  hyper-connections (`deepseek4`). Such files are refused by name. RWKV folders "
        "are "
        "not converted; GGUF files are read.");
}

static int run_help(const struct args *args) {
    const char *shell = args_text(args, "completion");
    if (shell)
        help_completion(stdout, shell);
    else if (args_flag(args, "markdown"))
        help_markdown(stdout);
    else if (args_flag(args, "man"))
        help_man(stdout);
    else if (args_flag(args, "architectures"))
        print_architectures();
    else if (args_flag(args, "flags"))
        help_flags(stdout);
    else if (args_flag(args, "flags-tsv"))
        help_flags_tsv(stdout);
    else if (args->count == 0)
        help_commands(stdout);
    else {
        const struct command *command = command_find(args->values[0]);
        const char *suggestion = suggest_command(args->values[0]);
        if (!command && suggestion)
            return fail_usage(args, "unknown command \"%s\"; did you mean \"%s\"?", args->values[0], suggestion);
        if (!command) return fail_usage(args, "unknown command \"%s\"", args->values[0]);
        help_command(stdout, command);
    }
    return EXIT_OK;
}

static const struct option options[] = {
    {.name = "markdown", .help = "print the reference of all commands in Markdown", .kind = OPTION_FLAG},
    {.name = "man", .help = "print the manual page", .kind = OPTION_FLAG},
    {.name = "architectures",
     .help = "list the model architectures and their Hugging Face classes",
     .kind = OPTION_FLAG},
    {.name = "flags", .help = "list llama.cpp's options and what happens to each, in Markdown", .kind = OPTION_FLAG},
    {.name = "flags-tsv", .help = "the same, separated by tabs", .kind = OPTION_FLAG},
    {.name = "completion",
     .value = "SHELL",
     .choices = "bash zsh fish",
     .kind = OPTION_TEXT,
     .help = "print the completion script for a shell"},
    {0},
};

const struct command command_help = {
    .name = "help",
    .summary = "list the commands, or explain one",
    .section = SECTION_ABOUT,
    .arguments = "[COMMAND]",
    .max_arguments = 1,
    .options = options,
    .examples = "tenon help version                     # same as: tenon version --help\n"
                "tenon help --man | man -l -            # read the manual without installing it\n"
                "source <(tenon help --completion bash) # enable completion in this shell\n",
    .run = run_help,
};
