/* Messages, exit codes and interruption: what every command shares. */
#include "cli/cli.h"
#include "cli/term.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static void message(const char *label, enum style colour, const char *format, va_list list) {
    fflush(stdout);
    progress_hide();
    fprintf(stderr, "%stenon:%s %s%s%s", style(stderr, STYLE_BOLD), style(stderr, STYLE_NONE), style(stderr, colour),
            label, style(stderr, STYLE_NONE));
    vfprintf(stderr, format, list);
}

int fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    message("", STYLE_RED, format, list);
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
    const char *particulars = tn_error();
    fail("%s%s%s", context, *context ? ": " : "", *particulars ? particulars : tn_status_text(status));
    return EXIT_ERROR;
}

int fail_usage(const struct args *args, const char *format, ...) {
    va_list list;
    va_start(list, format);
    message("", STYLE_RED, format, list);
    va_end(list);
    fprintf(stderr, "\nSee: tenon %s --help\n", args->command->name);
    return args->command->usage_exit ? args->command->usage_exit : EXIT_USAGE;
}

void warn(const char *format, ...) {
    va_list list;
    va_start(list, format);
    message("warning: ", STYLE_YELLOW, format, list);
    va_end(list);
    fputc('\n', stderr);
}

/* ---- Interruption -------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t pending;

static void on_signal(int number) {
    if (pending) {
        /* The work did not stop in time: let the signal have its usual effect. */
        signal(number, SIG_DFL);
        raise(number);
    }
    pending = 1;
}

/* Touching a mapped page that its file no longer has. Nothing of the work can be saved, but the reason can be told.
 */
static void on_lost_page(int number, siginfo_t *info, void *context) {
    static const char text[] = "\ntenon: a model file became shorter while it was in use\n";
    (void)context;
    if (info->si_code == BUS_ADRERR) {
        ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
        (void)ignored;
        _exit(EXIT_ERROR);
    }
    signal(number, SIG_DFL); /* something else: happens again, with its usual effect */
}

void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal};
    struct sigaction lost = {.sa_sigaction = on_lost_page, .sa_flags = SA_SIGINFO};
    sigemptyset(&lost.sa_mask);
    sigaction(SIGBUS, &lost, NULL);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write(), with a message */
}

bool interrupted(void) { return pending != 0; }
void interrupt_clear(void) { pending = 0; }
bool interrupted_callback(void *unused) { return interrupted(); }
