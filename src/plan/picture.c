/* Pictures of packings as SVG: time to the right, addresses upwards, one panel per chunk. */
#include "base/text.h"
#include "tenon/pack.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Ten colours that most people can tell apart, light enough for black text. */
static const char *const colours[] = {"#8fb8de", "#f2b279", "#9fd39b", "#e79aa0", "#c3aadb",
                                      "#cfb38f", "#f0b8dc", "#bcbcbc", "#d8d67c", "#8fd6de"};
enum { N_COLOURS = sizeof colours / sizeof colours[0] };

enum {
    LEFT = 84,
    RIGHT = 24,
    TOP = 64,
    BOTTOM = 40,
    PANEL_GAP = 26,
    MIN_WIDTH = 1400,
    MAX_WIDTH = 30000,
    BOX_WIDTH = 4, /* pixels of width per box in a picture of many boxes, so that labels stay readable */
    PLOT_HEIGHT = 780,
    MIN_PANEL = 60,
    MIN_TEXT = 3, /* pixels; text this small becomes readable when zoomed in */
};

typedef struct frame {
    const tn_picture *picture;
    int64_t begin, end; /* time */
    double per_step, per_byte;
    double *bottom; /* y of address 0 of each chunk */
    double width, height;
} frame;

static double x_of(const frame *f, int64_t time) { return LEFT + ((double)time - (double)f->begin) * f->per_step; }
static double y_of(const frame *f, uint32_t chunk, size_t address) {
    return f->bottom[chunk] - (double)address * f->per_byte;
}

/* Distance between about `count` marks over `range`: 1, 2 or 5 times a power of ten, or for bytes a power of two. */
static double mark_distance(double range, int count, bool bytes) {
    double raw = range / count;
    if (raw <= 1) return 1;
    if (bytes) return exp2(ceil(log2(raw)));
    double power = pow(10, floor(log10(raw))), lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

/* The part of a label that fits, truncated between characters. */
static void add_label(tn__text *t, const char *label, size_t room) {
    char cut[64];
    size_t length = strlen(label);
    if (length <= room) {
        tn__text_xml(t, label);
        return;
    }
    length = TN__MIN(room - 1, sizeof cut - 1);
    while (length && ((unsigned char)label[length] & 0xc0) == 0x80) length--;
    memcpy(cut, label, length);
    cut[length] = '\0';
    tn__text_xml(t, cut);
    tn__text_append(t, "…", strlen("…"));
}

/* Draws the label horizontally, or vertically if that leaves more room. Characters are about 0.6 em wide. A longer
 * label with room for fewer than three characters is omitted. */
static void draw_label(tn__text *t, const char *label, double x, double y, double width, double height) {
    double across = TN__MIN(11, height * 0.8), upwards = TN__MIN(11, width * 0.8);
    int room = across >= MIN_TEXT ? (int)((width - 4) / (across * 0.6)) : 0;
    int room_upwards = upwards >= MIN_TEXT ? (int)((height - 4) / (upwards * 0.6)) : 0;
    int length = label ? (int)strlen(label) : 0;
    bool turned = room < length && room_upwards > room;
    if (turned) room = room_upwards;
    if (length == 0 || (room < 3 && room < length)) return;
    double em = turned ? upwards : across, middle_x = x + width / 2, middle_y = y + height / 2;
    if (turned)
        tn__text_printf(t, "<text transform=\"translate(%.2f %.2f) rotate(-90)\" font-size=\"%.1f\">",
                        middle_x + em * 0.35, middle_y, em);
    else
        tn__text_printf(t, "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%.1f\">", middle_x, middle_y + em * 0.35, em);
    add_label(t, label, (size_t)room);
    tn__text_printf(t, "</text>");
}

static void draw_box(tn__text *t, const frame *f, const tn_picture_box *box, unsigned colour) {
    char size[32], at[32];
    double x = x_of(f, box->start), y = y_of(f, box->chunk, box->offset + box->size);
    double width = ((double)box->end - (double)box->start) * f->per_step, height = (double)box->size * f->per_byte;
    tn__text_printf(t, "<g><rect class=\"c%u%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/><title>",
                    colour, width < 3 || height < 3 ? " s" : "", x, y, TN__MAX(width, 0.3), TN__MAX(height, 0.3));
    tn__text_xml(t, box->label ? box->label : "");
    tn__text_printf(t, "\n%s (%zu bytes) at %s, steps %lld to %lld", tn__text_size(box->size, size, sizeof size),
                    box->size, tn__text_size(box->offset, at, sizeof at), (long long)box->start,
                    (long long)box->end - 1);
    if (f->picture->chunk_count > 1) tn__text_printf(t, ", chunk %u", box->chunk);
    if (box->note) {
        tn__text_append(t, "\n", 1);
        tn__text_xml(t, box->note);
    }
    tn__text_printf(t, "</title>");
    draw_label(t, box->label, x, y, width, height);
    tn__text_printf(t, "</g>\n");
}

static void draw_axes(tn__text *t, const frame *f) {
    const tn_picture *p = f->picture;
    char text[32];
    double right = f->width - RIGHT, range = (double)f->end - (double)f->begin;
    for (size_t c = 0; c < p->chunk_count; c++) {
        double bottom = f->bottom[c], top = y_of(f, (uint32_t)c, p->chunk_sizes[c]);
        double step = mark_distance((double)p->chunk_sizes[c], (int)TN__MAX((bottom - top) / 60, 1), true);
        for (double a = 0; a <= (double)p->chunk_sizes[c] && step > 0; a += step) {
            double y = bottom - a * f->per_byte;
            tn__text_size((size_t)a, text, sizeof text);
            tn__text_printf(t, "<line class=\"grid\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, right, y,
                            y);
            tn__text_printf(t, "<text class=\"y\" x=\"%d\" y=\"%.1f\">%s</text>\n", LEFT - 6, y + 4, text);
        }
        tn__text_printf(t, "<rect class=\"frame\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", LEFT, top,
                        right - LEFT, bottom - top);
        if (p->chunk_count > 1)
            tn__text_printf(t, "<text class=\"h\" x=\"%d\" y=\"%.1f\">chunk %zu: %s</text>\n", LEFT, top - 5, c,
                            tn__text_size(p->chunk_sizes[c], text, sizeof text));
    }
    double step = mark_distance(range, (int)(f->width / 100), false),
           bottom = p->chunk_count ? f->bottom[p->chunk_count - 1] : TOP;
    for (double s = ceil((double)f->begin / step) * step; s <= (double)f->end; s += step)
        tn__text_printf(t, "<text class=\"x\" x=\"%.1f\" y=\"%.1f\">%.0f</text>\n",
                        LEFT + (s - (double)f->begin) * f->per_step, bottom + 16, s);
    tn__text_printf(t, "<text class=\"x\" x=\"%.1f\" y=\"%.1f\">step</text>\n", (LEFT + right) / 2, bottom + 34);
}

/* A picture wider than a screen repeats the labels of its grid lines. */
static void draw_repeated_marks(tn__text *t, const frame *f) {
    const tn_picture *p = f->picture;
    char text[32];
    for (double x = LEFT + MIN_WIDTH; x < f->width - RIGHT - MIN_WIDTH / 2; x += MIN_WIDTH) {
        for (size_t c = 0; c < p->chunk_count; c++) {
            double height = (double)p->chunk_sizes[c] * f->per_byte;
            double step = mark_distance((double)p->chunk_sizes[c], (int)TN__MAX(height / 60, 1), true);
            for (double a = step; a <= (double)p->chunk_sizes[c] && step > 0; a += step)
                tn__text_printf(t, "<text class=\"m\" x=\"%.0f\" y=\"%.1f\">%s</text>\n", x,
                                f->bottom[c] - a * f->per_byte - 3, tn__text_size((size_t)a, text, sizeof text));
        }
    }
}

static void draw_legend(tn__text *t, const frame *f, const unsigned *used) {
    const tn_picture *p = f->picture;
    double x = LEFT;
    for (size_t k = 0; k < p->kind_count; k++) {
        if (!used[k % N_COLOURS]) continue;
        tn__text_printf(t,
                        "<rect class=\"c%zu\" x=\"%.1f\" y=\"32\" width=\"12\" height=\"12\"/><text class=\"h\" "
                        "x=\"%.1f\" y=\"42\">",
                        k % N_COLOURS, x, x + 16);
        tn__text_xml(t, p->kinds[k]);
        tn__text_printf(t, "</text>\n");
        x += 30 + 7 * (double)strlen(p->kinds[k]);
    }
    if (p->kind_count == 0)
        tn__text_printf(t,
                        "<text class=\"h\" x=\"%d\" y=\"42\">colours show sizes: one colour for each power "
                        "of two</text>\n",
                        LEFT);
}

/* Without kinds the size determines the colour: one for each power of two. */
static unsigned colour_of(const tn_picture *p, const tn_picture_box *box) {
    if (p->kind_count) return box->kind % N_COLOURS;
    unsigned log = 0;
    for (size_t s = box->size; s > 1; s /= 2) log++;
    return log % N_COLOURS;
}

static void lay_out_picture(frame *f) {
    const tn_picture *p = f->picture;
    f->begin = INT64_MAX;
    f->end = INT64_MIN;
    size_t total = 0;
    for (size_t i = 0; i < p->box_count; i++) {
        f->begin = TN__MIN(f->begin, p->boxes[i].start);
        f->end = TN__MAX(f->end, p->boxes[i].end);
    }
    if (f->begin >= f->end) f->end = f->begin = 0;
    f->width = TN__MIN(TN__MAX((double)MIN_WIDTH, (double)BOX_WIDTH * (double)p->box_count), (double)MAX_WIDTH);
    f->per_step = f->end > f->begin ? (f->width - LEFT - RIGHT) / ((double)f->end - (double)f->begin) : 1;
    size_t smallest = SIZE_MAX;
    for (size_t c = 0; c < p->chunk_count; c++) {
        total += p->chunk_sizes[c];
        if (p->chunk_sizes[c]) smallest = TN__MIN(smallest, p->chunk_sizes[c]);
    }
    f->per_byte = total ? (double)PLOT_HEIGHT / (double)total : 0;
    /* Chunks share one scale. With many chunks the picture grows, so that the panels keep a minimum height. */
    if (total && (double)smallest * f->per_byte < MIN_PANEL && p->chunk_count > 1)
        f->per_byte = TN__MIN(MIN_PANEL / (double)smallest, 20.0 * PLOT_HEIGHT / (double)total);
    double y = TOP;
    for (size_t c = 0; c < p->chunk_count; c++) {
        if (p->chunk_count > 1) y += PANEL_GAP;
        y += (double)p->chunk_sizes[c] * f->per_byte;
        f->bottom[c] = y;
    }
    f->height = y + BOTTOM;
}

tn_status tn_picture_svg(const tn_picture *p, char **text) {
    if (!p || !text) return tn_fail(TN_E_INVALID, "tn_picture_svg: NULL argument");
    *text = NULL;
    for (size_t i = 0; i < p->box_count; i++)
        if (p->boxes[i].chunk >= p->chunk_count && p->boxes[i].size)
            return tn_fail(TN_E_INVALID, "tn_picture_svg: box %zu is in chunk %u of %zu", i, p->boxes[i].chunk,
                           p->chunk_count);
    frame f = {.picture = p, .bottom = tn_malloc(p->chunk_count * sizeof *f.bottom)};
    if (!f.bottom) return TN_E_NOMEM;
    lay_out_picture(&f);
    tn__text t = {0};
    tn__text_printf(
        &t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\">\n<title>",
        f.width, f.height, f.width, f.height);
    tn__text_xml(&t, p->title ? p->title : "packing");
    tn__text_printf(&t,
                    "</"
                    "title>\n<style>rect{stroke:#fff;stroke-width:.5}rect.s{stroke:none}g:hover>rect{stroke:#000;"
                    "stroke-width:2}g>text{text-anchor:middle;pointer-events:none}"
                    ".frame{fill:none;stroke:#444;stroke-width:1;pointer-events:none}.grid{stroke:#ddd;stroke-width:"
                    "1}.bound{stroke:#c00;stroke-width:1.5;stroke-dasharray:6 4}"
                    ".m{font-size:12px;fill:#333;font-weight:bold;stroke:#fff;stroke-width:3;paint-order:stroke}.h,."
                    "x,.y{font-size:12px;fill:#333}.x{text-anchor:middle}.y{text-anchor:end}.b{font-size:12px;"
                    "fill:#c00;text-anchor:end}");
    for (int c = 0; c < N_COLOURS; c++) tn__text_printf(&t, ".c%d{fill:%s}", c, colours[c]);
    tn__text_printf(&t,
                    "</style>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"22\" "
                    "font-size=\"16\" font-weight=\"bold\">",
                    f.width, f.height, LEFT);
    tn__text_xml(&t, p->title ? p->title : "packing");
    tn__text_printf(&t, "</text>\n");
    draw_axes(&t, &f);
    unsigned used[N_COLOURS] = {0};
    for (size_t i = 0; i < p->box_count; i++) {
        const tn_picture_box *box = &p->boxes[i];
        if (box->size == 0 || box->end <= box->start) continue;
        unsigned colour = colour_of(p, box);
        used[colour] = 1;
        draw_box(&t, &f, box, colour);
    }
    draw_legend(&t, &f, used);
    draw_repeated_marks(&t, &f);
    if (p->lower_bound && p->chunk_count == 1 && p->lower_bound <= p->chunk_sizes[0]) {
        double y = y_of(&f, 0, p->lower_bound);
        char size[32];
        tn__text_printf(
            &t,
            "<line class=\"bound\" x1=\"%d\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"b\" x=\"%.0f\" "
            "y=\"42\">lower bound %s (dashed)</text>\n",
            LEFT, f.width - RIGHT, y, y, (double)(MIN_WIDTH - RIGHT),
            tn__text_size(p->lower_bound, size, sizeof size));
    }
    tn__text_printf(&t, "</svg>\n");
    tn_free(f.bottom);
    return tn__text_take(&t, text);
}

tn_status tn_pack_svg(const tn_pack_item *items, const char *const *ids, const tn_pack_result *result,
                      const char *title, char **text) {
    tn_picture_box *boxes = tn_calloc(result->count, sizeof *boxes);
    char(*numbers)[24] = tn_malloc(result->count * sizeof *numbers);
    tn_status status = TN_E_NOMEM;
    if (!boxes || !numbers) goto out;
    for (size_t i = 0; i < result->count; i++) {
        snprintf(numbers[i], sizeof numbers[i], "%zu", i);
        boxes[i] = (tn_picture_box){.start = items[i].start,
                                    .end = items[i].end,
                                    .offset = result->offsets[i],
                                    .size = items[i].size,
                                    .chunk = result->chunks[i],
                                    .label = ids ? ids[i] : numbers[i]};
    }
    tn_picture picture = {.title = title,
                          .box_count = result->count,
                          .boxes = boxes,
                          .chunk_count = result->chunk_count,
                          .chunk_sizes = result->chunk_sizes,
                          .lower_bound = result->lower_bound};
    status = tn_picture_svg(&picture, text);
out:
    tn_free(boxes);
    tn_free(numbers);
    return status;
}
