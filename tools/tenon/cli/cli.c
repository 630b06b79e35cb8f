/* Messages on standard error, and interruption by signals. */
#include "cli/cli.h"
#include "cli/term.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static void print_message(const char *label, enum style colour, const char *format, va_list list) {
    fflush(stdout);
    progress_hide();
    fprintf(stderr, "%stenon:%s %s%s%s", style(stderr, STYLE_BOLD), style(stderr, STYLE_NONE), style(stderr, colour),
            label, style(stderr, STYLE_NONE));
    vfprintf(stderr, format, list);
}

int fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    print_message("", STYLE_RED, format, list);
    va_end(list);
    fputc('\n', stderr);
    return EXIT_ERROR;
}

int fail_status(tn_status status, const char *format, ...) {
    if (status == TN_E_ABORTED && interrupted()) return EXIT_INTERRUPTED;
    char context[512];
    va_list list;
    va_start(list, format);
    vsnprintf(context, sizeof context, format, list);
    va_end(list);
    const char *particulars = *tn_error() ? tn_error() : tn_status_text(status);
    bool named = strncmp(particulars, context, strlen(context)) == 0; /* the message starts with the same file name */
    fail("%s%s%s", named ? "" : context, named ? "" : ": ", particulars);
    return EXIT_ERROR;
}

int fail_usage(const struct args *args, const char *format, ...) {
    va_list list;
    va_start(list, format);
    print_message("", STYLE_RED, format, list);
    va_end(list);
    fprintf(stderr, "\nSee: tenon %s --help\n", args->command->name);
    args_set_misused(args);
    return args->command->usage_exit ? args->command->usage_exit : EXIT_USAGE;
}

void warn(const char *format, ...) {
    va_list list;
    va_start(list, format);
    print_message("warning: ", STYLE_YELLOW, format, list);
    va_end(list);
    fputc('\n', stderr);
}

/* ---- Interruption ---- */

static volatile sig_atomic_t signal_pending;

static void on_signal(int number) {
    if (signal_pending) {
        /* The work did not stop after the first signal: this one has its default effect. */
        signal(number, SIG_DFL);
        raise(number);
    }
    signal_pending = 1;
}

/* SIGBUS on a mapped page: the file was truncated. The work cannot go on, but the message says why. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    static const char text[] = "\ntenon: a model file was truncated while it was in use\n";
    (void)context;
    if (info->si_code == BUS_ADRERR) {
        ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
        (void)ignored;
        _exit(EXIT_ERROR);
    }
    signal(number, SIG_DFL); /* another cause: the fault repeats with its default effect */
}

void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal};
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* reaching the file size limit is then an error of write(), with a message */
}

bool interrupted(void) { return signal_pending != 0; }
void interrupt_clear(void) { signal_pending = 0; }
bool interrupted_callback(void *unused) { return interrupted(); }
