/* Comparison of two engines (engine.h): sends them the same commands in turn, on the same processors, prints medians
 * and ratios, and writes all samples to a JSON file. bench/README.md explains the table.
 *
 *   compare --ours PROGRAM --peer PROGRAM FOLDER --tenon PROGRAM --out FILE [--quick] [--text FILE]
 *           [--repeat 3] [--budget 20] [--limit SECONDS] [--threads 2] [--note KEY=VALUE]…
 *           [--vocabulary MODEL]… [--quantize MODEL] [--sequences MODEL] [--cpu-time] MODEL… */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OURS, PEER, LOWERED, ENGINES, MOST_SAMPLES = 16, MAX_ROWS = 256, CELLS = 4608, MOST_NOTES = 16 };

typedef struct engine {
    pid_t pid;
    FILE *to, *from;
    double started;
    char name[64], version[64], variant[64];
} engine;

typedef struct row {
    char model[64], what[80];
    const char *unit;
    bool less;   /* is better; the ratio is then a share */
    double aim;  /* the goal, if it does not follow from the other fields */
    bool enough; /* ours is near what the machine can do at most: the goal holds whatever the ratio */
    double samples[ENGINES][MOST_SAMPLES];
    int n[ENGINES];
} row;

static struct options {
    const char *ours, *peer, *folder, *tenon, *out, *text, *quantize, *sequences;
    const char *models[16], *vocabularies[8], *notes[MOST_NOTES];
    int n_models, n_vocabularies, n_notes, repeat, threads;
    double budget; /* seconds after which a measurement is not repeated again */
    double limit;  /* seconds after which no measurement is started; 0: no limit */
    double load;   /* of the machine at the start */
    bool quick;
    bool cpu_time; /* decodes of many sequences are measured in CPU time */
    cpu_set_t cpus;
    char cpu_list[256];
} opt;
static row rows[MAX_ROWS];
static int n_rows;
static engine seen[ENGINES]; /* name and version reported by each */
static double began;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void give_up(const char *what, const char *why) {
    fprintf(stderr, "compare: %s: %s\n", what, why);
    exit(1);
}

static bool late(void) { return opt.limit > 0 && now() - began > opt.limit; }

/* ---- Rows ---- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static row *new_row(const char *model, const char *what, const char *unit, bool less) {
    if (n_rows == MAX_ROWS) give_up("table", "too many rows");
    row *r = &rows[n_rows++];
    snprintf(r->model, sizeof r->model, "%s", base_name(model));
    char *dot = strstr(r->model, ".gguf");
    if (dot) *dot = '\0';
    snprintf(r->what, sizeof r->what, "%s", what);
    r->unit = unit;
    r->less = less;
    return r;
}

static void add(row *r, int who, double value) {
    if (r->n[who] < MOST_SAMPLES) r->samples[who][r->n[who]++] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const row *r, int who) {
    double sorted[MOST_SAMPLES];
    int n = r->n[who];
    if (n == 0) return 0;
    memcpy(sorted, r->samples[who], sizeof sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* ---- Engines ---- */

static engine spawn(int who) {
    engine c = {.started = now()};
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) give_up("pipe", strerror(errno));
    c.pid = fork();
    if (c.pid < 0) give_up("fork", strerror(errno));
    if (c.pid == 0) {
        const char *program = who == PEER ? opt.peer : opt.ours;
        dup2(in[0], 0);
        dup2(out[1], 1);
        sched_setaffinity(0, sizeof opt.cpus, &opt.cpus);
        if (who == LOWERED) setenv("TENON_CPU", "avx512", 1);
        execl(program, program, who == PEER ? opt.folder : NULL, NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    c.to = fdopen(in[1], "w");
    c.from = fdopen(out[0], "r");
    char line[1024] = "";
    if (!c.to || !c.from || !fgets(line, sizeof line, c.from) ||
        sscanf(line, "ready %63s %63s %63s", c.name, c.version, c.variant) != 3)
        give_up(who == PEER ? opt.peer : opt.ours, line[0] ? line : "did not start");
    seen[who] = c;
    return c;
}

/* Sends a command and reads up to three numbers. */
static bool ask(engine *c, double answer[3], const char *command) {
    char line[1024];
    fprintf(c->to, "%s\n", command);
    fflush(c->to);
    if (!fgets(line, sizeof line, c->from)) give_up(c->name, "ended early");
    if (sscanf(line, "ok %lf %lf %lf", &answer[0], &answer[1], &answer[2]) >= 1) return true;
    fprintf(stderr, "compare: %s: %s: %s", c->name, command, line);
    return false;
}

static void dismiss(engine *c) {
    fclose(c->to);
    fclose(c->from);
    waitpid(c->pid, NULL, 0);
}

/* A field of /proc/PID/status, in bytes. */
static double status_field(pid_t pid, const char *field) {
    char path[64], line[256];
    double value = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0) value = strtod(line + strlen(field) + 1, NULL) * 1024;
    if (f) fclose(f);
    return value;
}

/* ---- Measurements ---- */

/* Sends a command to all engines in turn, in an order that changes every round, until there are enough samples or
 * time is up. With `amount`, times are converted to rates. */
static void interleave(row *r, engine *c, int n, const char *command, double amount) {
    double start = now();
    for (int round = 0; round < opt.repeat && (round == 0 || now() - start < opt.budget); round++) {
        for (int i = 0; i < n; i++) {
            int who = round % 2 ? n - 1 - i : i;
            double answer[3];
            if (ask(&c[who], answer, command)) add(r, who, amount > 0 ? amount / answer[0] : answer[0]);
        }
    }
}

/* Evicts a file from the page cache; false for a file system in memory. */
static bool forget(const char *path) {
    struct statfs fs;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstatfs(fd, &fs) != 0) return false;
    bool memory = fs.f_type == 0x01021994; /* tmpfs */
    fsync(fd);
    bool done = !memory && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
    close(fd);
    return done;
}

static void measure_load(const char *model, bool cold) {
    if (cold && !forget(model)) return;
    row *load = new_row(model, cold ? "load, cold cache" : "load, warm cache", "s", true);
    row *first = new_row(model, cold ? "first token, cold cache" : "first token, warm cache", "s", true);
    int repeat = cold && opt.repeat > 2 ? 2 : opt.repeat;
    for (int round = 0; round < repeat; round++) {
        for (int i = 0; i < 2; i++) {
            int who = round % 2 ? 1 - i : i;
            double answer[3];
            char command[1200];
            if (cold) forget(model);
            engine c = spawn(who);
            snprintf(command, sizeof command, "load %s %d %d", model, CELLS, opt.threads);
            if (ask(&c, answer, command)) {
                add(load, who, answer[1]);
                if (ask(&c, answer, "prefill 16")) add(first, who, now() - c.started);
            }
            dismiss(&c);
        }
    }
}

/* At the current depth of the KV caches. */
static void measure_decode(const char *model, engine *c, int depth) {
    char what[48], command[48];
    int tokens = opt.quick ? 16 : 32;
    snprintf(what, sizeof what, "decode at depth %d", depth);
    snprintf(command, sizeof command, "decode %d", tokens);
    interleave(new_row(model, what, "t/s", false), c, 2, command, tokens);
}

static void measure_model(const char *model, bool lowered) {
    engine c[ENGINES];
    int n = lowered ? 3 : 2;
    char command[1200];
    double answer[3];
    static const int prompts[] = {128, 512, 2048};
    if (late()) return;
    if (!opt.quick) measure_load(model, true);
    measure_load(model, false);
    for (int who = 0; who < n; who++) {
        c[who] = spawn(who);
        snprintf(command, sizeof command, "load %s %d %d", model, CELLS, opt.threads);
        if (!ask(&c[who], answer, command)) give_up(c[who].name, model);
        ask(&c[who], answer, "prefill 32"); /* touches everything once */
    }
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        char what[48];
        if (opt.quick && prompts[i] != 512) continue;
        if (prompts[i] == 2048) {
            for (int who = 0; who < 2; who++) ask(&c[who], answer, "fill 0");
            measure_decode(model, c, 0);
        }
        if (late()) break;
        snprintf(command, sizeof command, "fill %d", prompts[i]);
        snprintf(what, sizeof what, "prefill %d", prompts[i]);
        interleave(new_row(model, what, "t/s", false), c, n, command, prompts[i]);
    }
    if (opt.quick) {
        for (int who = 0; who < 2; who++) ask(&c[who], answer, "fill 0");
        measure_decode(model, c, 0);
    }
    if (!opt.quick && !late()) { /* the longest prompt, still in the cache, is the first half of the depth */
        for (int who = 0; who < 2; who++) ask(&c[who], answer, "extend 2048");
        measure_decode(model, c, 4096);
    }
    row *compute = new_row(model, "compute buffers", "MiB", true);
    row *cache = new_row(model, "KV cache", "MiB", true);
    row *resident = new_row(model, "resident memory", "MiB", true);
    row *peak = new_row(model, "peak resident memory", "MiB", true);
    for (int who = 0; who < 2; who++) {
        if (!ask(&c[who], answer, "memory")) continue;
        add(compute, who, answer[0] / 1048576);
        add(cache, who, answer[1] / 1048576);
        add(resident, who, status_field(c[who].pid, "VmRSS:") / 1048576);
        add(peak, who, status_field(c[who].pid, "VmHWM:") / 1048576);
    }
    for (int who = 0; who < n; who++) dismiss(&c[who]);
}

/* ---- Many sequences ---- */

/* Cells of all sequences. The peer rounds the cells of a sequence up to a multiple of 256 and does not make batches
 * larger than its context. */
static int sequence_cells(int depth, int n) {
    enum { ROOM = 256, BATCH = 2048 };
    const int cells = n * (depth + ROOM);
    return cells > BATCH ? cells : BATCH;
}

/* Memory that programs can still take. */
static double available_memory(void) {
    char line[256];
    double bytes = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "MemAvailable:", 13) == 0) bytes = strtod(line + 13, NULL) * 1024;
    if (f) fclose(f);
    return bytes;
}

/* An engine whose sequences all have `depth` tokens, in cells of their own; false: it cannot. */
static bool spawn_sequences(engine *c, int who, const char *model, int depth, int n) {
    char command[1200];
    double answer[3];
    *c = spawn(who);
    snprintf(command, sizeof command, "load %s %d %d %d", model, sequence_cells(depth, n), opt.threads, n);
    if (!ask(c, answer, command)) return false;
    snprintf(command, sizeof command, "spread %d %d", depth, n);
    return ask(c, answer, command);
}

/* The share of the machine's read rate that each side's decodes of one sequence reach. */
static void measure_share(const char *model, const char *what, row *speed, engine *c, double cache) {
    double answer[3] = {0};
    char name[80];
    if (!ask(c, answer, "read") || answer[0] <= 0) return;
    snprintf(name, sizeof name, "%s, of the read rate", what);
    row *share = new_row(model, name, "%", false);
    for (int who = 0; who < 2; who++) add(share, who, 100 * median(speed, who) * (answer[1] + cache) / answer[0]);
    speed->enough = median(share, OURS) >= 90;
}

/* Both engines stay loaded where memory suffices for two caches of this size. Else they take turns: each is started
 * and filled again in every round. */
static void measure_steps(const char *model, int depth, int n) {
    engine c[2] = {0};
    bool there[2] = {false}, together = false;
    char what[48], command[48];
    double answer[3], free_before = available_memory(), cache = 0;
    const int steps = n >= 16 ? 4 : 16;
    snprintf(what, sizeof what, "%d × 1 token at depth %d", n, depth);
    snprintf(command, sizeof command, "steps %d %d", steps, n);
    row *r = new_row(model, what, opt.cpu_time ? "t/s of CPU time" : "t/s", false);
    r->aim = n > 1 ? 1.5 : 1.3;
    for (int round = 0; round < opt.repeat && !(round > 0 && late()); round++) {
        for (int i = 0; i < 2; i++) {
            const int who = round % 2 ? 1 - i : i;
            if (!there[who]) there[who] = spawn_sequences(&c[who], who, model, depth, n);
            if (there[who] && round == 0 && who == OURS && ask(&c[who], answer, "memory")) {
                cache = answer[1];
                together = free_before > 2 * cache + 4e9;
            }
            if (there[who] && !together) ask(&c[who], answer, "steps 1 1"); /* wakes everything up */
            if (there[who] && ask(&c[who], answer, command)) add(r, who, steps * n / answer[opt.cpu_time]);
            if (there[who] && together) continue;
            dismiss(&c[who]);
            there[who] = false;
        }
    }
    if (n == 1 && there[OURS] && !opt.cpu_time)
        measure_share(model, what, r, &c[OURS], cache * depth / sequence_cells(depth, 1));
    for (int who = 0; who < 2; who++)
        if (there[who]) dismiss(&c[who]);
}

static void write_json(void);

static void measure_sequences(const char *model) {
    static const int depths[] = {256, 4096}, counts[] = {1, 4, 16, 64};
    for (int d = 0; d < (opt.quick ? 1 : 2); d++)
        for (int i = 0; i < 4 && !late(); i++) {
            measure_steps(model, depths[d], counts[i]);
            write_json();
        }
}

static void measure_tokenizer(const char *model) {
    engine c[2];
    char command[2400];
    double answer[3], sizes[2] = {0};
    struct stat st;
    if (!opt.text || stat(opt.text, &st) != 0) return;
    row *r = new_row(model, "tokenize", "MB/s", false);
    for (int who = 0; who < 2; who++) {
        c[who] = spawn(who);
        snprintf(command, sizeof command, "load %s 2048 %d", model, opt.threads);
        if (!ask(&c[who], answer, command)) give_up(c[who].name, model);
        snprintf(command, sizeof command, "tokenize %s 1", opt.text);
        if (ask(&c[who], answer, command)) sizes[who] = answer[1];
    }
    snprintf(command, sizeof command, "tokenize %s %d", opt.text, opt.quick ? 1 : 4);
    interleave(r, c, 2, command, (double)st.st_size * (opt.quick ? 1 : 4) * 1e-6);
    if (sizes[0] != sizes[1])
        fprintf(stderr, "compare: %s: %.0f tokens here, %.0f there\n", model, sizes[0], sizes[1]);
    for (int who = 0; who < 2; who++) dismiss(&c[who]);
}

static double run_quantize(const char *from, const char *to, const char *type) {
    char threads[16];
    snprintf(threads, sizeof threads, "%d", opt.threads);
    double start = now();
    pid_t pid = fork();
    if (pid == 0) {
        int nothing = open("/dev/null", O_WRONLY);
        dup2(nothing, 1);
        sched_setaffinity(0, sizeof opt.cpus, &opt.cpus);
        execl(opt.tenon, opt.tenon, "quantize", from, to, type, "-t", threads, NULL);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) return 0;
    return now() - start;
}

static void measure_quantize(const char *from, const char *type) {
    char what[48], command[3000], to[1100];
    struct stat st;
    if (stat(from, &st) != 0) return;
    snprintf(what, sizeof what, "quantize to %s", type);
    row *r = new_row(from, what, "MB/s", false);
    double start = now(), answer[3];
    for (int round = 0; round < opt.repeat && (round == 0 || now() - start < opt.budget); round++) {
        for (int who = 0; who < 2; who++) {
            snprintf(to, sizeof to, "%s.%s.%d", from, type, who);
            if (who == OURS) {
                answer[0] = run_quantize(from, to, type);
            } else {
                engine c = spawn(PEER);
                snprintf(command, sizeof command, "quantize %s %s %s %d", from, to, type, opt.threads);
                if (!ask(&c, answer, command)) answer[0] = 0;
                dismiss(&c);
            }
            if (answer[0] > 0) add(r, who, (double)st.st_size * 1e-6 / answer[0]);
            unlink(to);
        }
    }
}

/* ---- Results ---- */

/* The project's goal on two cores of a processor with AMX, for models of about 1 B parameters; 0: none. */
static double goal(const row *r) {
    bool q4 = strstr(r->model, "q4_0") || strstr(r->model, "Q4_0"), q8 = strstr(r->model, "q8_0") != NULL;
    bool mix = strstr(r->model, "Q4_K_M") || strstr(r->model, "q4_K_M"), bf16 = strstr(r->model, "bf16") != NULL;
    if (r->aim > 0) return r->aim;
    if (strncmp(r->what, "prefill", 7) == 0) return q4 || q8 ? 4 : mix || bf16 ? 3 : 0;
    if (strncmp(r->what, "decode", 6) == 0) return q4 || mix ? 1.3 : q8 ? 1.1 : 0;
    if (strncmp(r->what, "load", 4) == 0) return 1;
    if (strcmp(r->what, "compute buffers") == 0) return 0.35;
    return 0;
}

/* Prints the rows added since the last call. */
static void print_rows(void) {
    static int i;
    bool tiles = strcmp(seen[OURS].variant, "amx") == 0;
    if (i == 0)
        printf("| model | what | tenon | %s | unit | ratio | goal |\n|---|---|--:|--:|---|--:|---|\n",
               seen[PEER].name);
    for (; i < n_rows; i++) {
        const row *r = &rows[i];
        double ours = median(r, OURS), peer = median(r, PEER), lowered = median(r, LOWERED), aim = goal(r);
        bool seconds = strcmp(r->unit, "s") == 0;
        if (r->n[OURS] == 0 || r->n[PEER] == 0) continue;
        double ratio = seconds ? peer / ours : ours / peer; /* times: how much faster */
        char promise[64] = "";
        bool share = r->less && !seconds;
        if (aim > 0)
            snprintf(promise, sizeof promise, "%s %.2f%s", share ? "≤" : "≥", aim,
                     !tiles && strncmp(r->what, "prefill", 7) == 0 ? " (with AMX)"
                     : (share ? ratio <= aim : ratio >= aim)       ? ""
                     : r->enough                                   ? ", or 90% of the read rate"
                                                                   : " missed");
        printf("| %s | %s | %.*f | %.*f | %s | %.2f× | %s |\n", r->model, r->what, ours < 10 ? 3 : 1, ours,
               peer < 10 ? 3 : 1, peer, r->unit, ratio, promise);
        if (r->n[LOWERED])
            printf("| %s | %s, TENON_CPU=avx512 | %.1f | %.1f | %s | %.2f× | ≥ 1.00%s |\n", r->model, r->what,
                   lowered, peer, r->unit, lowered / peer, lowered >= peer ? "" : " missed");
    }
    fflush(stdout);
}

static void json_text(FILE *f, const char *text) {
    fputc('"', f);
    for (; *text; text++)
        if ((unsigned char)*text >= 0x20 && *text != '"' && *text != '\\') fputc(*text, f);
    fputc('"', f);
}

static void json_field(FILE *f, const char *key, const char *value) {
    fprintf(f, "\"%s\": ", key);
    json_text(f, value);
    fputs(", ", f);
}

static void machine_line(const char *path, const char *key, char *value, size_t room) {
    char line[512];
    FILE *f = fopen(path, "r");
    snprintf(value, room, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(value, room, "%s", colon);
        break;
    }
    if (f) fclose(f);
}

static void write_json(void) {
    FILE *f = fopen(opt.out, "w");
    if (!f) give_up(opt.out, strerror(errno));
    char date[32], cpu[128], memory[64];
    time_t t = time(NULL);
    struct utsname kernel;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    machine_line("/proc/cpuinfo", "model name", cpu, sizeof cpu);
    machine_line("/proc/meminfo", "MemTotal", memory, sizeof memory);
    uname(&kernel);
    fputs("{\n  ", f);
    json_field(f, "date", date);
    fputs("\n  \"machine\": {", f);
    json_field(f, "cpu", cpu);
    json_field(f, "memory", memory);
    json_field(f, "kernel", kernel.release);
    json_field(f, "pinned_to", opt.cpu_list);
    fprintf(f, "\"load_average\": %.2f, \"processors\": %ld},\n  ", opt.load, sysconf(_SC_NPROCESSORS_ONLN));
    for (int who = 0; who < 2; who++) {
        fprintf(f, "\"%s\": {", who == OURS ? "ours" : "peer");
        json_field(f, "name", seen[who].name);
        json_field(f, "version", seen[who].version);
        fprintf(f, "\"variant\": \"%s\"},\n  ", seen[who].variant);
    }
    for (int i = 0; i < opt.n_notes; i++) {
        char key[64] = "";
        const char *equals = strchr(opt.notes[i], '=');
        if (!equals) continue;
        snprintf(key, sizeof key, "%.*s", (int)(equals - opt.notes[i]), opt.notes[i]);
        json_field(f, key, equals + 1);
    }
    fprintf(f, "\"threads\": %d, \"cells\": %d,\n  \"rows\": [", opt.threads, CELLS);
    for (int i = 0; i < n_rows; i++) {
        const row *r = &rows[i];
        fprintf(f, "%s\n    {\"model\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"less_is_better\": %s",
                i ? "," : "", r->model, r->what, r->unit, r->less ? "true" : "false");
        static const char *const keys[] = {"ours", "peer", "ours_avx512"};
        for (int who = 0; who < ENGINES; who++) {
            if (r->n[who] == 0) continue;
            fprintf(f, ", \"%s\": %.6g, \"%s_samples\": [", keys[who], median(r, who), keys[who]);
            for (int k = 0; k < r->n[who]; k++) fprintf(f, "%s%.6g", k ? ", " : "", r->samples[who][k]);
            fputs("]", f);
        }
        fputs("}", f);
    }
    fputs("\n  ]\n}\n", f);
    if (fclose(f) != 0) give_up(opt.out, strerror(errno));
}

/* ---- The command line ---- */

/* The first processors on distinct cores; if there are too few, any. */
static void choose_cpus(int wanted) {
    cpu_set_t allowed;
    int found = 0;
    sched_getaffinity(0, sizeof allowed, &allowed);
    CPU_ZERO(&opt.cpus);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < CPU_SETSIZE && found < wanted; i++) {
            char path[96];
            int first = i;
            if (!CPU_ISSET(i, &allowed) || CPU_ISSET(i, &opt.cpus)) continue;
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
            FILE *f = fopen(path, "r");
            if (f && fscanf(f, "%d", &first) != 1) first = i;
            if (f) fclose(f);
            if (pass == 0 && first != i) continue;
            CPU_SET(i, &opt.cpus);
            found++;
        }
    }
}

static void list_cpus(void) {
    for (int i = 0; i < CPU_SETSIZE; i++) {
        size_t used = strlen(opt.cpu_list);
        if (CPU_ISSET(i, &opt.cpus))
            snprintf(opt.cpu_list + used, sizeof opt.cpu_list - used, "%s%d", used ? "," : "", i);
    }
}

static void read_options(int argc, char **argv) {
    opt.repeat = 3;
    opt.budget = 20;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--quick") == 0 || strcmp(name, "--cpu-time") == 0) {
            *(name[2] == 'q' ? &opt.quick : &opt.cpu_time) = true;
            continue;
        }
        if (strncmp(name, "--", 2) != 0) {
            if (opt.n_models < 16) opt.models[opt.n_models++] = name;
            continue;
        }
        i++;
        if (strcmp(name, "--ours") == 0)
            opt.ours = value;
        else if (strcmp(name, "--tenon") == 0)
            opt.tenon = value;
        else if (strcmp(name, "--out") == 0)
            opt.out = value;
        else if (strcmp(name, "--text") == 0)
            opt.text = value;
        else if (strcmp(name, "--quantize") == 0)
            opt.quantize = value;
        else if (strcmp(name, "--sequences") == 0)
            opt.sequences = value;
        else if (strcmp(name, "--repeat") == 0)
            opt.repeat = atoi(value);
        else if (strcmp(name, "--budget") == 0)
            opt.budget = atof(value);
        else if (strcmp(name, "--limit") == 0)
            opt.limit = atof(value);
        else if (strcmp(name, "--threads") == 0)
            opt.threads = atoi(value);
        else if (strcmp(name, "--note") == 0 && opt.n_notes < MOST_NOTES)
            opt.notes[opt.n_notes++] = value;
        else if (strcmp(name, "--vocabulary") == 0 && opt.n_vocabularies < 8)
            opt.vocabularies[opt.n_vocabularies++] = value;
        else if (strcmp(name, "--peer") == 0 && i + 1 < argc)
            opt.peer = value, opt.folder = argv[++i];
        else
            give_up(name, "unknown option");
    }
    if (!opt.ours || !opt.peer || !opt.tenon || !opt.out) give_up("usage", "see the top of compare.c");
    if (opt.threads < 1) opt.threads = 2;
    if (opt.repeat < 1 || opt.repeat > MOST_SAMPLES) opt.repeat = 3;
    if (opt.quick) opt.repeat = opt.repeat < 2 ? 1 : 2;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    began = now();
    read_options(argc, argv);
    choose_cpus(opt.threads);
    list_cpus();
    engine us = spawn(OURS);
    bool tiles = strcmp(us.variant, "amx") == 0;
    dismiss(&us);
    engine them = spawn(PEER);
    dismiss(&them);
    printf("tenon %s (%s) and %s %s (%s), pinned to processors %s, %d threads\n", us.version, us.variant, them.name,
           them.version, them.variant, opt.cpu_list, opt.threads);
    if (getloadavg(&opt.load, 1) == 1 && opt.load > 0.5)
        printf("The load average is %.1f: other programs are running, which affects the figures.\n", opt.load);
    printf("\n");
    for (int i = 0; i < opt.n_models; i++) {
        measure_model(opt.models[i], tiles && !opt.quick);
        print_rows();
        write_json();
    }
    if (opt.sequences && !late()) {
        measure_sequences(opt.sequences);
        print_rows();
        write_json();
    }
    for (int i = 0; i < opt.n_vocabularies && !late(); i++) measure_tokenizer(opt.vocabularies[i]);
    if (opt.quantize && !late()) {
        measure_quantize(opt.quantize, "Q8_0");
        measure_quantize(opt.quantize, "Q4_K_M");
    }
    print_rows();
    write_json();
    return 0;
}
