/* The picture of memory on the first device against predicted decode rate, one dot per choice. */
#include "cli/term.h"
#include "engine/budget_options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 420, LEFT = 64, RIGHT = 24, TOP = 24, BOTTOM = 52, MAX_LABELS = 24, TEXT_HEIGHT = 13 };

struct rectangle {
    double x, y, width, height;
};

struct frontier {
    const tn_budget_ladder *ladder;
    const struct frontier_mark *mark; /* or NULL */
    FILE *out;
    double x_max, y_min, y_max; /* of the axes: bytes, and tokens per second on a logarithmic scale */
    struct rectangle taken[MAX_LABELS];
    size_t n_taken;
};

static double memory_x(const struct frontier *f, double bytes) {
    return LEFT + bytes / f->x_max * (WIDTH - LEFT - RIGHT);
}
static double rate_y(const struct frontier *f, double rate) {
    return HEIGHT - BOTTOM - log(rate / f->y_min) / log(f->y_max / f->y_min) * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten such that about five steps cover the range. */
static double axis_step(double most) {
    const double power = pow(10, floor(log10(most / 5)));
    const double ratio = most / 5 / power;
    return power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
}

/* ---- Axes ---- */

/* The next of 1, 2, 5, 10, 20, 50, … after a rate. */
static double next_tick(double rate) {
    static const double digits[] = {1, 2, 5, 10};
    const double power = pow(10, floor(log10(rate) + 1e-9));
    for (size_t i = 0; i < 4; i++)
        if (digits[i] * power > rate * 1.0001) return digits[i] * power;
    return 20 * power;
}

static void draw_frontier_axes(const struct frontier *f) {
    const double gib = 1 << 30, unit = f->x_max >= gib ? gib : 1 << 20, step = axis_step(f->x_max / unit);
    fprintf(f->out, "<g stroke=\"currentColor\" stroke-opacity=\".18\">\n");
    for (double rate = next_tick(f->y_min); rate <= f->y_max; rate = next_tick(rate))
        fprintf(f->out, "<path d=\"M%d %.1fH%d\"/>\n", LEFT, rate_y(f, rate), WIDTH - RIGHT);
    for (int i = 1; i * step * unit <= f->x_max; i++)
        fprintf(f->out, "<path d=\"M%.1f %dV%d\"/>\n", memory_x(f, i * step * unit), TOP, HEIGHT - BOTTOM);
    fprintf(f->out, "</g>\n<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"currentColor\"/>\n", LEFT, TOP,
            HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (double rate = next_tick(f->y_min); rate <= f->y_max; rate = next_tick(rate))
        fprintf(f->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, rate_y(f, rate) + 4,
                rate);
    for (int i = 0; i * step * unit <= f->x_max; i++)
        fprintf(f->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", memory_x(f, i * step * unit),
                HEIGHT - BOTTOM + 18, i * step);
    fprintf(f->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s on %s</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 12, unit == gib ? "GiB" : "MiB", f->ladder->devices[0].name);
    fprintf(f->out,
            "<text transform=\"rotate(-90 16 %d)\" x=\"16\" y=\"%d\" text-anchor=\"middle\">decode, tokens/s "
            "(predicted)</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
}

/* ---- Labels ---- */

static bool labels_overlap(const struct rectangle *a, const struct rectangle *b) {
    return a->x < b->x + b->width && b->x < a->x + a->width && a->y < b->y + b->height && b->y < a->y + a->height;
}

/* Whether a label may be there: inside the picture, over no other label and over no dot. */
static bool is_free(const struct frontier *f, const struct rectangle *r) {
    if (r->x < LEFT + 4 || r->x + r->width > WIDTH - 4 || r->y < 2 || r->y + r->height > HEIGHT - BOTTOM - 2)
        return false;
    for (size_t i = 0; i < f->n_taken; i++)
        if (labels_overlap(r, &f->taken[i])) return false;
    for (size_t i = 0; i < f->ladder->n_choices; i++) {
        const tn_budget_choice *c = &f->ladder->choices[i];
        const double size = c->chosen ? 9 : 5;
        const struct rectangle dot = {memory_x(f, (double)c->bytes[0]) - size, rate_y(f, c->decode) - size, 2 * size,
                                      2 * size};
        if (labels_overlap(r, &dot)) return false;
    }
    if (f->mark) {
        const struct rectangle diamond = {memory_x(f, f->mark->bytes) - 9, rate_y(f, f->mark->decode) - 9, 18, 18};
        if (labels_overlap(r, &diamond)) return false;
    }
    return true;
}

/* Tries positions around a point, nearest first; a thin line leads to farther ones. A label without room is left out:
 * the dot's title has the text. */
static void draw_frontier_label(struct frontier *f, double x, double y, const char *text, bool strong) {
    static const double steps[][2] = {{14, 0},   {-14, 0},   {14, -16}, {-14, -16}, {14, 16},  {-14, 16},
                                      {24, -34}, {-24, -34}, {24, 34},  {-24, 34},  {36, -56}, {-36, -56},
                                      {36, 56},  {-36, 56},  {60, -80}, {-60, -80}, {60, 80},  {-60, 80}};
    const double width = (strong ? 7.0 : 6.4) * (double)strlen(text) + 4;
    if (f->n_taken == MAX_LABELS) return;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const bool left = steps[i][0] < 0;
        const double end = x + steps[i][0], line = y + steps[i][1];
        const struct rectangle r = {end - (left ? width : 0), line - TEXT_HEIGHT / 2.0, width, TEXT_HEIGHT};
        if (!is_free(f, &r)) continue;
        f->taken[f->n_taken++] = r;
        if (fabs(steps[i][1]) > 12)
            fprintf(
                f->out,
                "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"currentColor\" stroke-opacity=\".4\" fill=\"none\"/>\n", x,
                y, left ? end + 2 : end - 2, line);
        fprintf(f->out, "<text x=\"%.1f\" y=\"%.1f\"%s%s>%s</text>\n", end, line + 4,
                left ? " text-anchor=\"end\"" : "", strong ? " font-weight=\"bold\"" : "", text);
        return;
    }
}

/* Beside a mark, what would be chosen is not what is in use. */
static void label_text(const struct frontier *f, const tn_budget_choice *c, char *text, size_t size) {
    const char *chosen = !c->chosen || !c->fits ? "" : f->mark ? "best: " : "chosen: ";
    if (c->n_host_experts)
        snprintf(text, size, "%sexperts of %d layers on the host", chosen, c->n_host_experts);
    else
        snprintf(text, size, "%s%d layers", chosen, c->n_layers);
}

/* ---- Dots ---- */

static void draw_dot(const struct frontier *f, const tn_budget_choice *c) {
    const double x = memory_x(f, (double)c->bytes[0]), y = rate_y(f, c->decode);
    char text[256], size[HUMAN_SIZE];
    describe_choice(c, text, sizeof text);
    if (c->chosen)
        fprintf(f->out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"9\" fill=\"none\" stroke=\"#e8590c\" "
                "stroke-width=\"2\"/>\n",
                x, y);
    fprintf(f->out,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.5\"><title>%s: %s, "
            "decode %.1f tokens/s%s</title></circle>\n",
            x, y, c->fits ? (c->chosen ? "#e8590c" : "#3b82f6") : "none", c->chosen ? "#e8590c" : "#3b82f6", text,
            human_bytes(size, c->bytes[0]), c->decode, c->fits ? "" : ", does not fit");
}

static void draw_mark(struct frontier *f) {
    const struct frontier_mark *m = f->mark;
    if (!m) return;
    const double x = memory_x(f, m->bytes), y = rate_y(f, m->decode);
    char size[HUMAN_SIZE];
    fprintf(f->out,
            "<path d=\"M%.1f %.1fl8 8l-8 8l-8 -8z\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\">"
            "<title>%s: %s, decode %.1f tokens/s</title></path>\n",
            x, y - 8, m->text, human_bytes(size, (size_t)m->bytes), m->decode);
    draw_frontier_label(f, x, y, m->text, true);
}

static void draw_budget(struct frontier *f) {
    const tn_budget_device *d = &f->ladder->devices[0];
    char text[96], size[HUMAN_SIZE];
    if (!d->budget) return;
    const double x = memory_x(f, (double)d->budget);
    fprintf(f->out, "<path d=\"M%.1f %dV%d\" stroke=\"#e8590c\" stroke-dasharray=\"5 4\"/>\n", x, TOP,
            HEIGHT - BOTTOM);
    snprintf(text, sizeof text, "budget %s", human_bytes(size, d->budget));
    draw_frontier_label(f, x - 8, TOP + 8, text, false);
}

/* Whether a choice gets a label: the first of its placement. */
static bool has_label(const tn_budget_ladder *l, size_t i) {
    for (size_t k = 0; k < i; k++)
        if (l->choices[k].n_layers == l->choices[i].n_layers &&
            l->choices[k].n_host_experts == l->choices[i].n_host_experts)
            return false;
    return true;
}

void draw_frontier(const tn_budget_ladder *l, const struct frontier_mark *mark, FILE *out) {
    struct frontier f = {.ladder = l, .mark = mark && mark->decode > 0 ? mark : NULL, .out = out};
    if (!l->predicted || !l->n_choices) return;
    for (size_t i = 0; i < l->n_choices; i++) {
        if (f.mark && l->n_choices) {
            f.x_max = fmax(f.x_max, f.mark->bytes);
            f.y_max = fmax(f.y_max, f.mark->decode);
            f.y_min = fmin(f.y_min, f.mark->decode);
        }
        f.x_max = fmax(f.x_max, (double)l->choices[i].bytes[0]);
        f.y_max = fmax(f.y_max, l->choices[i].decode);
        if (i == 0 || l->choices[i].decode < f.y_min) f.y_min = l->choices[i].decode;
    }
    f.x_max = fmax(f.x_max, (double)l->devices[0].budget) * 1.08;
    f.y_max *= 1.4;
    f.y_min /= 1.4;
    if (!(f.x_max > 0) || !(f.y_min > 0)) return;
    fprintf(out,
            "<svg class=\"frontier\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\" aria-label=\"Memory against predicted decode rate\" font-family=\"system-ui,"
            "sans-serif\" font-size=\"12\" fill=\"currentColor\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_frontier_axes(&f);
    for (size_t i = l->n_choices; i-- > 0;) draw_dot(&f, &l->choices[i]); /* the chosen one last, on top */
    draw_budget(&f);
    draw_mark(&f);
    for (size_t i = 0; i < l->n_choices; i++) {
        const tn_budget_choice *c = &l->choices[i];
        char text[96];
        if (!has_label(l, i)) continue;
        label_text(&f, c, text, sizeof text);
        draw_frontier_label(&f, memory_x(&f, (double)c->bytes[0]), rate_y(&f, c->decode), text, c->chosen);
    }
    fputs("</svg>\n", out);
}
