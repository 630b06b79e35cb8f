/* The command line: option parsing, suggestions and help, with a command table made for the test. */
#include "cli/cli.h"
#include "cli/term.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"

static int run_nothing(const struct args *args) { return EXIT_OK; }

static const struct option own_options[] = {
    {.name = "gpu-layers",
     .letter = "ngl",
     .aliases = "--n-gpu-layers -gl",
     .value = "N",
     .kind = OPTION_INT,
     .min = 0,
     .max = 1000,
     .fallback = "7",
     .help = "layers",
     .env = "TENON_TEST_NGL LLAMA_ARG_TEST_NGL"},
    {.name = "temp",
     .value = "T",
     .kind = OPTION_REAL,
     .min = 0,
     .max = 10,
     .fallback = "0.8",
     .help = "temperature"},
    {.name = "cache-type-k",
     .letter = "ctk",
     .value = "TYPE",
     .choices = "f16 q8_0 q4_0",
     .kind = OPTION_TEXT,
     .fallback = "f16",
     .help = "type"},
    {.name = "n-predict", .letter = "n", .value = "N", .kind = OPTION_INT, .min = -2, .max = 1e9, .help = "tokens"},
    {.name = "capacity", .value = "BYTES", .kind = OPTION_SIZE, .help = "bytes"},
    {.name = "limit", .value = "SECONDS", .kind = OPTION_SECONDS, .fallback = "1.5", .help = "seconds"},
    {.name = "mmap", .kind = OPTION_FLAG, .fallback = "on", .help = "map", .env = "TENON_TEST_MMAP"},
    {.name = "bias", .value = "B", .kind = OPTION_TEXT, .repeats = true, .help = "bias"},
    {0},
};
static const struct option shared_options[] = {OPTION_JSON, {0}};
static const struct option_group shared = {"Shared options", shared_options};
static const struct option_group *const groups[] = {&shared, NULL};
static const struct command command_try = {.name = "try",
                                           .summary = "a command to try",
                                           .arguments = "[A] [B]",
                                           .max_arguments = 2,
                                           .options = own_options,
                                           .groups = groups,
                                           .examples = "tenon try",
                                           .run = run_nothing};
static const struct command command_help = {
    .name = "help", .summary = "help", .section = SECTION_ABOUT, .run = run_nothing};
static const struct command command_strict = {.name = "strict",
                                              .summary = "own exit code",
                                              .arguments = "FILE",
                                              .min_arguments = 1,
                                              .max_arguments = 1,
                                              .usage_exit = 9,
                                              .run = run_nothing};
const struct command *const command_table[] = {&command_help, &command_strict, &command_try, NULL};

/* Parses a command line that is split at spaces; the messages are kept in `message`. */
static char message[1024];
static int parse(const struct command *command, const char *line, struct args *args) {
    static char words[512];
    char *argv[32] = {(char *)command->name};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    FILE *capture = tmpfile();
    assert_non_null(capture);
    dup2(fileno(capture), STDERR_FILENO);
    int code = args_parse(command, argc, argv, args);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(capture);
    message[fread(message, 1, sizeof message - 1, capture)] = '\0';
    fclose(capture);
    return code;
}

static void assert_refused(const char *line, const char *expected) {
    struct args args;
    assert_int_equal(parse(&command_try, line, &args), EXIT_USAGE);
    args_free(&args);
    if (!strstr(message, expected)) fail_msg("%s: expected \"%s\" in: %s", line, expected, message);
}

static void options_not_given_have_their_fallbacks(void **state) {
    struct args args;
    assert_int_equal(parse(&command_try, "", &args), 0);
    assert_int_equal(args_int(&args, "gpu-layers"), 7);
    assert_true(args_real(&args, "temp") == 0.8);
    assert_string_equal(args_text(&args, "cache-type-k"), "f16");
    assert_true(args_real(&args, "limit") == 1.5);
    assert_true(args_flag(&args, "mmap"));
    assert_false(args_flag(&args, "json"));
    assert_false(args_given(&args, "gpu-layers"));
    assert_int_equal(args_size(&args, "capacity"), 0);
    assert_null(args_text(&args, "bias"));
    args_free(&args);
}

static void all_spellings_reach_the_same_option(void **state) {
    static const char *const lines[] = {"-ngl 10",           "--gpu-layers 10", "--gpu-layers=10", "--gpu_layers 10",
                                        "--n-gpu-layers 10", "-gl 10",          "-ngl=10",         "-ngl 3 -ngl 10"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct args args;
        assert_int_equal(parse(&command_try, lines[i], &args), 0);
        assert_int_equal(args_int(&args, "gpu-layers"), 10);
        assert_int_equal(args.count, 0);
        assert_true(args_given(&args, "gpu-layers"));
        args_free(&args);
    }
}

static void arguments_and_options_mix(void **state) {
    struct args args;
    assert_int_equal(parse(&command_try, "a -n -1 --temp 0.5 - --no-mmap --json", &args), 0);
    assert_int_equal(args.count, 2);
    assert_string_equal(args.values[0], "a");
    assert_string_equal(args.values[1], "-");
    assert_int_equal(args_int(&args, "n-predict"), -1);
    assert_true(args_real(&args, "temp") == 0.5);
    assert_false(args_flag(&args, "mmap"));
    assert_true(args_flag(&args, "json"));
    args_free(&args);
    assert_int_equal(parse(&command_try, "-- --json -ngl", &args), 0);
    assert_int_equal(args.count, 2);
    assert_false(args_flag(&args, "json"));
    args_free(&args);
}

static void repeated_values_are_all_kept(void **state) {
    struct args args;
    assert_int_equal(parse(&command_try, "--bias 1 --bias=2 --bias 3", &args), 0);
    assert_int_equal(args_repeats(&args, "bias"), 3);
    assert_string_equal(args_text_at(&args, "bias", 0), "1");
    assert_string_equal(args_text_at(&args, "bias", 2), "3");
    assert_null(args_text_at(&args, "bias", 3));
    args_free(&args);
}

static void wrong_usage_is_refused_with_advice(void **state) {
    assert_refused("-ngl ten", "-ngl takes a whole number, not \"ten\"");
    assert_refused("-ngl 10x", "whole number");
    assert_refused("-ngl 1001", "between 0 and 1000");
    assert_refused("--temp nan", "takes a number");
    assert_refused("-ctk q9", "one of: f16 q8_0 q4_0");
    assert_refused("--capacity lots", "a size such as");
    assert_refused("--limit -3", "a time such as");
    assert_refused("-ngl", "needs a value: -ngl N");
    assert_refused("--bias --json", "--bias needs a value");
    assert_refused("--json=maybe", "on or off");
    assert_refused("--gpu-layer 3", "did you mean --gpu-layers?");
    assert_refused("--tmep 3", "did you mean --temp?");
    assert_refused("-ctkk q8_0", "did you mean -ctk?");
    assert_refused("--zzzzzzzz", "unknown option --zzzzzzzz\n");
    assert_refused("a b c", "unexpected argument \"c\"");
    struct args args;
    assert_int_equal(parse(&command_strict, "", &args), 9);
    assert_non_null(strstr(message, "missing argument: tenon strict FILE"));
    args_free(&args);
    assert_int_equal(parse(&command_strict, "--help", &args), 0);
    args_free(&args);
}

static void the_environment_is_below_the_command_line(void **state) {
    struct args args;
    setenv("LLAMA_ARG_TEST_NGL", "20", 1);
    setenv("TENON_TEST_MMAP", "false", 1);
    assert_int_equal(parse(&command_try, "", &args), 0);
    assert_int_equal(args_int(&args, "gpu-layers"), 20);
    assert_false(args_flag(&args, "mmap"));
    args_free(&args);
    setenv("TENON_TEST_NGL", "30", 1);
    assert_int_equal(parse(&command_try, "", &args), 0);
    assert_int_equal(args_int(&args, "gpu-layers"), 30);
    args_free(&args);
    assert_int_equal(parse(&command_try, "-ngl 40 --mmap", &args), 0);
    assert_int_equal(args_int(&args, "gpu-layers"), 40);
    assert_true(args_flag(&args, "mmap"));
    args_free(&args);
    setenv("TENON_TEST_NGL", "many", 1);
    assert_refused("", "TENON_TEST_NGL takes a whole number");
    unsetenv("TENON_TEST_NGL");
    unsetenv("LLAMA_ARG_TEST_NGL");
    unsetenv("TENON_TEST_MMAP");
}

static void sizes_and_times_have_units(void **state) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0},
                 {"4096", 4096},
                 {"64K", 65536},
                 {"1.5M", 1572864},
                 {"2GiB", UINT64_C(1) << 31},
                 {"3kb", 3072},
                 {"18446744073709551615", UINT64_MAX},
                 {"512B", 512}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t bytes = 1;
        assert_true(parse_size(sizes[i].text, &bytes));
        assert_true(bytes == sizes[i].bytes);
    }
    uint64_t bytes;
    static const char *const wrong[] = {"", "K", "-1", "1X", "1KiBs", "99999999999T", "18446744073709551616", "inf"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_false(parse_size(wrong[i], &bytes));
    double seconds;
    assert_true(parse_seconds("2m", &seconds) && seconds == 120);
    assert_true(parse_seconds("250ms", &seconds) && seconds == 0.25);
    assert_false(parse_seconds("5 parsecs", &seconds));
}

static void numbers_for_people_are_rounded(void **state) {
    char text[HUMAN_SIZE];
    assert_string_equal(human_bytes(text, 312), "312 B");
    assert_string_equal(human_bytes(text, 1536), "1.50 KiB");
    assert_string_equal(human_bytes(text, UINT64_C(25) << 29), "12.5 GiB");
    assert_string_equal(human_bytes(text, UINT64_MAX), "16.0 EiB");
    assert_string_equal(human_count(text, 1100000000), "1.10 B");
    assert_string_equal(human_seconds(text, 0.85), "850 ms");
    assert_string_equal(human_seconds(text, 245), "4 m 05 s");
}

static void typing_mistakes_are_corrected(void **state) {
    assert_string_equal(suggest_command("tyr"), "try");
    assert_string_equal(suggest_command("hlep"), "help");
    assert_string_equal(suggest_command("str"), "strict");
    assert_null(suggest_command("zebra"));
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    assert_int_equal(edit_distance("ab", "ba"), 1);
    assert_int_equal(edit_distance("", "abc"), 3);
}

static void write_progress(struct progress *p, uint64_t done, double seconds_ago) {
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    FILE *capture = tmpfile();
    assert_non_null(capture);
    dup2(fileno(capture), STDERR_FILENO);
    progress_start(p, "Reading", 1000, PROGRESS_ITEMS);
    p->started_ns -= (uint64_t)(seconds_ago * 1e9);
    progress_update(p, done);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(capture);
    message[fread(message, 1, sizeof message - 1, capture)] = '\0';
    fclose(capture);
}

static void progress_appears_after_a_second_with_rate_and_time_left(void **state) {
    struct progress p;
    write_progress(&p, 250, 0.2);
    assert_string_equal(message, "");
    write_progress(&p, 250, 2);
    assert_string_equal(message, "Reading  25% 250 of 1.00 K, 125/s, 6.0 s left\n");
}

static char *captured(void (*write)(FILE *out)) {
    static char text[65536];
    FILE *out = tmpfile();
    assert_non_null(out);
    write(out);
    rewind(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    fclose(out);
    return text;
}

static void write_try_help(FILE *out) { help_command(out, &command_try); }
static void write_fish(FILE *out) { assert_true(help_completion(out, "fish")); }

static void every_document_has_every_command_and_option(void **state) {
    void (*const writers[])(FILE *) = {help_markdown, write_fish, write_try_help};
    for (size_t w = 0; w < sizeof writers / sizeof *writers; w++) {
        const char *text = captured(writers[w]);
        for (const struct option *o = own_options; o->name; o++)
            if (!strstr(text, o->name)) fail_msg("document %zu lacks --%s", w, o->name);
        assert_non_null(strstr(text, "json"));
        assert_null(strchr(text, '\033'));
    }
    const char *start = captured(help_commands);
    for (int i = 0; command_table[i]; i++) assert_non_null(strstr(start, command_table[i]->summary));
    assert_non_null(strstr(captured(help_man), "\\-\\-gpu\\-layers"));
    assert_false(help_completion(stdout, "tcsh"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_not_given_have_their_fallbacks),
        cmocka_unit_test(all_spellings_reach_the_same_option),
        cmocka_unit_test(arguments_and_options_mix),
        cmocka_unit_test(repeated_values_are_all_kept),
        cmocka_unit_test(wrong_usage_is_refused_with_advice),
        cmocka_unit_test(the_environment_is_below_the_command_line),
        cmocka_unit_test(sizes_and_times_have_units),
        cmocka_unit_test(numbers_for_people_are_rounded),
        cmocka_unit_test(typing_mistakes_are_corrected),
        cmocka_unit_test(progress_appears_after_a_second_with_rate_and_time_left),
        cmocka_unit_test(every_document_has_every_command_and_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
