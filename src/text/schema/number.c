/* Integers and decimal numbers within bounds, as grammar expressions over their digits. */
#include "base/checked.h"
#include "text/schema/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longest generated number: different texts of up to 15 digits are different doubles. */
enum { DIGITS_MAX = 15 };

/* ---- Whole numbers ---- */

static void emit_any_digits(tn__text *out, size_t n) {
    if (n == 1) tn__text_puts(out, "[0-9]");
    if (n > 1) tn__text_printf(out, "[0-9]{%zu}", n);
}
static void emit_digit_range(tn__text *out, char low, char high) {
    if (low == high)
        tn__text_printf(out, "\"%c\"", low);
    else
        tn__text_printf(out, "[%c-%c]", low, high);
}
static bool all_digits_are(const char *digits, size_t n, char digit) {
    for (size_t i = 0; i < n; i++)
        if (digits[i] != digit) return false;
    return true;
}

/* Digit strings of length n from `low` to `high`. */
static void emit_same_length(tn__text *out, const char *low, const char *high, size_t n) {
    size_t same = 0;
    while (same < n && low[same] == high[same]) same++;
    if (same > 0) tn__text_printf(out, "\"%.*s\"%s", (int)same, low, same < n ? " " : "");
    low += same;
    high += same;
    n -= same;
    if (n == 0) return;
    bool low_open = all_digits_are(low + 1, n - 1, '0'), high_open = all_digits_are(high + 1, n - 1, '9');
    char from = low_open ? low[0] : (char)(low[0] + 1), to = high_open ? high[0] : (char)(high[0] - 1);
    char nines[20], zeros[20];
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    const char *bar = "";
    tn__text_puts(out, "(");
    if (!low_open) {
        tn__text_printf(out, "\"%c\" ", low[0]);
        emit_same_length(out, low + 1, nines, n - 1);
        bar = " | ";
    }
    if (from <= to) {
        tn__text_puts(out, bar);
        emit_digit_range(out, from, to);
        tn__text_puts(out, " ");
        emit_any_digits(out, n - 1);
        bar = " | ";
    }
    if (!high_open) {
        tn__text_printf(out, "%s\"%c\" ", bar, high[0]);
        emit_same_length(out, zeros, high + 1, n - 1);
    }
    tn__text_puts(out, ")");
}

/* Whole numbers from low to high, without sign and leading zeros. */
static void emit_whole(tn__text *out, uint64_t low, uint64_t high) {
    char a[24], b[24];
    uint64_t limit = 9; /* largest number with as many digits as `low` */
    const char *bar = "";
    tn__text_puts(out, "(");
    while (low > limit) limit = limit * 10 + 9;
    for (;;) {
        uint64_t to = TN__MIN(high, limit);
        int n = snprintf(a, sizeof a, "%llu", (unsigned long long)low), longest = n;
        tn__text_puts(out, bar);
        bar = " | ";
        if (to == limit && low > 0 && low == limit / 10 + 1) {
            /* All numbers of this length, and of the next lengths while they are in range too. */
            for (; to < high && limit * 10 + 9 <= high; longest++) to = limit = limit * 10 + 9;
            tn__text_printf(out, "[1-9] [0-9]{%d,%d}", n - 1, longest - 1);
        } else {
            snprintf(b, sizeof b, "%llu", (unsigned long long)to);
            emit_same_length(out, a, b, (size_t)n);
        }
        if (to == high) break;
        low = to + 1;
        limit = limit * 10 + 9;
    }
    tn__text_puts(out, ")");
}

/* ---- Fractions ----
 * The fraction of a bound is its digits after the point without trailing zeros. A tail is the digits that can follow
 * those already written, compared with the bound's remaining digits. `must` requires at least one digit. */

typedef struct fraction_tail {
    tn__text *out;
    size_t free_digits; /* how many digits can follow once the comparison is decided */
} fraction_tail;

static void emit_free(const fraction_tail *t, size_t least) {
    tn__text_printf(t->out, "[0-9]{%zu,%zu}", least, t->free_digits + least);
}

/* Digits that are not all zero. */
static void emit_positive(const fraction_tail *t) {
    tn__text_printf(t->out, "\"0\"{0,%zu} [1-9] ", t->free_digits);
    emit_free(t, 0);
}

static void emit_at_least(const fraction_tail *t, const char *bound, bool strictly, bool must) {
    if (!*bound) {
        if (strictly)
            emit_positive(t);
        else
            emit_free(t, must);
        return;
    }
    tn__text_puts(t->out, "(");
    if (*bound < '9') {
        emit_digit_range(t->out, (char)(*bound + 1), '9');
        tn__text_puts(t->out, " ");
        emit_free(t, 0);
        tn__text_puts(t->out, " | ");
    }
    tn__text_printf(t->out, "\"%c\" ", *bound);
    emit_at_least(t, bound + 1, strictly, false);
    tn__text_puts(t->out, ")");
}

/* Returns false and writes nothing if no tail is small enough. */
static bool emit_at_most(const fraction_tail *t, const char *bound, bool strictly, bool must) {
    if (!*bound) {
        if (strictly) return false;
        tn__text_printf(t->out, "\"0\"{%d,%zu}", must ? 1 : 0, t->free_digits + 1);
        return true;
    }
    bool ends = !bound[1] && strictly; /* only equality with the bound is left, and it is excluded */
    if (ends && must && *bound == '0') return false;
    const char *bar = "";
    tn__text_puts(t->out, "(");
    if (!must) {
        tn__text_puts(t->out, "\"\"");
        bar = " | ";
    }
    if (*bound > '0') {
        tn__text_puts(t->out, bar);
        emit_digit_range(t->out, '0', (char)(*bound - 1));
        tn__text_puts(t->out, " ");
        emit_free(t, 0);
        bar = " | ";
    }
    if (!ends) {
        tn__text_printf(t->out, "%s\"%c\" ", bar, *bound);
        emit_at_most(t, bound + 1, strictly, false);
    }
    tn__text_puts(t->out, ")");
    return true;
}

static bool emit_between(const fraction_tail *t, const char *low, bool above, const char *high, bool below,
                         bool must) {
    if (!*low && !above) return emit_at_most(t, high, below, must);
    if (!*high) return false; /* more than zero and at most zero */
    char l = *low ? *low : '0', h = *high;
    const char *low_rest = *low ? low + 1 : low;
    if (l > h) return false;
    size_t start = t->out->length;
    if (l == h) {
        tn__text_printf(t->out, "\"%c\" ", l);
        if (emit_between(t, low_rest, above, high + 1, below, false)) return true;
        tn__text_truncate(t->out, start);
        return false;
    }
    tn__text_printf(t->out, "(\"%c\" ", l);
    emit_at_least(t, low_rest, above, false);
    if (l + 1 <= h - 1) {
        tn__text_puts(t->out, " | ");
        emit_digit_range(t->out, (char)(l + 1), (char)(h - 1));
        tn__text_puts(t->out, " ");
        emit_free(t, 0);
    }
    size_t before = t->out->length;
    tn__text_printf(t->out, " | \"%c\" ", h);
    if (!emit_at_most(t, high + 1, below, false)) tn__text_truncate(t->out, before);
    tn__text_puts(t->out, ")");
    return true;
}

/* ---- Decimals ---- */

typedef struct decimal {
    uint64_t whole;
    char fraction[DIGITS_MAX + 1];
} decimal;

/* The exact decimal of a non-negative bound; false if it has too many digits. */
static bool exact_decimal(double x, decimal *out) {
    char shortest[32], plain[400];
    tn__number_text(x, shortest);
    if (x >= 1e15) return false;
    /* Enough decimal places for every digit of the shortest form: its digits, and its exponent if negative. */
    const char *e = strchr(shortest, 'e');
    int decimals = 17 + (e && e[1] == '-' ? atoi(e + 2) : 0);
    if (decimals > 320) return false;
    /* %f prints the double's exact value; the loop rounds it to the shortest form. */
    for (int p = 0; p <= decimals; p++) {
        snprintf(plain, sizeof plain, "%.*f", p, x);
        if (strtod(plain, NULL) == x) break;
    }
    char *point = strchr(plain, '.');
    size_t n = point ? strlen(point + 1) : 0;
    while (n > 0 && point[n] == '0') n--;
    if (n > DIGITS_MAX) return false;
    if (n) memcpy(out->fraction, point + 1, n);
    out->fraction[n] = '\0';
    out->whole = strtoull(plain, NULL, 10);
    return true;
}

/* A bound with more digits than are generated moves inwards to the next number with fewer digits. That number is a
 * different double, so it no longer matters whether the bound itself was excluded. */
static void shorten_bound(double *bound, bool *exclusive, double inwards) {
    char text[32];
    size_t digits = 0;
    tn__number_text(*bound, text);
    for (const char *c = text; *c && *c != 'e'; c++) digits += *c >= '0' && *c <= '9';
    if (isinf(*bound) || digits <= DIGITS_MAX) return;
    double step = inwards * pow(10, floor(log10(fabs(*bound))) - (DIGITS_MAX - 2)), x = *bound;
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "%.*g", DIGITS_MAX - 1, *bound + i * step);
        x = strtod(text, NULL);
        if (inwards > 0 ? x > *bound : x < *bound) break;
    }
    *bound = x;
    *exclusive = false;
}

static size_t count_digits(uint64_t x) {
    size_t n = 1;
    while (x >= 10) {
        x /= 10;
        n++;
    }
    return n;
}

static const uint64_t WHOLE_MAX = 999999999999999;    /* DIGITS_MAX nines */
static const uint64_t FRACTION_WHOLE_MAX = 999999999; /* larger numbers are generated without fraction */

/* Non-negative decimals between two bounds; `high` may be NULL. Returns whether there are any. */
static bool emit_magnitude(tn__text *out, const decimal *low, bool above, const decimal *high, bool below) {
    uint64_t high_whole = high ? high->whole : WHOLE_MAX;
    if (low->whole > high_whole) return false;
    size_t used = TN__MAX(strlen(low->fraction), high ? strlen(high->fraction) : 0) + count_digits(low->whole) + 2;
    if (high) used = TN__MAX(used, strlen(high->fraction) + count_digits(high->whole) + 2);
    fraction_tail t = {out, used < DIGITS_MAX ? DIGITS_MAX - used : 0};
    const char *bar = "";
    size_t start = out->length;
    if (high && low->whole == high->whole) {
        bool zero_fits = !*low->fraction && !above && (*high->fraction || !below);
        if (zero_fits) {
            tn__text_printf(out, "\"%llu\"", (unsigned long long)low->whole);
            bar = " | ";
        }
        size_t before = out->length;
        tn__text_printf(out, "%s\"%llu.\" ", bar, (unsigned long long)low->whole);
        if (!emit_between(&t, low->fraction, above, high->fraction, below, true)) tn__text_truncate(out, before);
        return out->length > start;
    }
    /* Numbers with the lowest whole part, then those in between, then those with the highest. */
    if (!*low->fraction && !above) {
        tn__text_printf(out, "\"%llu\" | ", (unsigned long long)low->whole);
    }
    tn__text_printf(out, "\"%llu.\" ", (unsigned long long)low->whole);
    emit_at_least(&t, low->fraction, above, true);
    uint64_t last = high ? high->whole - 1 : WHOLE_MAX;
    if (low->whole + 1 <= last) {
        uint64_t with_fraction = TN__MIN(last, FRACTION_WHOLE_MAX);
        if (low->whole + 1 <= with_fraction) {
            tn__text_puts(out, " | ");
            emit_whole(out, low->whole + 1, with_fraction);
            tn__text_printf(out, " (\".\" [0-9]{1,%zu})?", DIGITS_MAX - count_digits(with_fraction));
        }
        if (last > with_fraction) {
            tn__text_puts(out, " | ");
            emit_whole(out, TN__MAX(low->whole, with_fraction) + 1, last);
        }
    }
    if (high && (*high->fraction || !below)) {
        tn__text_printf(out, " | \"%llu\"", (unsigned long long)high->whole);
        size_t before = out->length;
        tn__text_puts(out, " (\".\" ");
        if (emit_at_most(&t, high->fraction, below, true))
            tn__text_puts(out, ")?");
        else
            tn__text_truncate(out, before);
    }
    return true;
}

static tn_status emit_bounded_number(tn__schema *s, tn__bounds *b, const tn__schema_path *path, tn__text *out,
                                     bool *empty) {
    shorten_bound(&b->low, &b->above_low, 1);
    shorten_bound(&b->high, &b->below_high, -1);
    *empty = b->low > b->high;
    if (*empty) return TN_OK;
    decimal zero = {0}, low = {0}, high = {0};
    bool has_low = b->low > -1e15, has_high = b->high < 1e15;
    if ((has_low && !exact_decimal(fabs(b->low), &low)) || (has_high && !exact_decimal(fabs(b->high), &high))) {
        tn__text_puts(out, "number");
        return tn__schema_unsupported(s, path, "a bound of a number has too many digits");
    }
    *empty = true;
    if (!has_low || b->low < 0) { /* negative numbers: from the upper bound, or 0, down to the lower one */
        tn__text part = TN__SCHEMA_TEXT;
        bool negative_high = has_high && (b->high < 0 || (b->high == 0 && b->below_high));
        bool any = emit_magnitude(&part, negative_high ? &high : &zero, negative_high && b->below_high,
                                  has_low ? &low : NULL, b->above_low);
        if (any) tn__text_printf(out, "\"-\" (%s)", part.data ? part.data : "");
        *empty = !any;
        tn_status status = part.status;
        tn__text_free(&part);
        TN_TRY(status);
    }
    if (!has_high || b->high >= 0) {
        tn__text part = TN__SCHEMA_TEXT;
        bool positive_low = has_low && b->low >= 0;
        bool any = emit_magnitude(&part, positive_low ? &low : &zero, positive_low && b->above_low,
                                  has_high ? &high : NULL, b->below_high);
        if (any) tn__text_printf(out, "%s(%s)", *empty ? "" : " | ", part.data ? part.data : "");
        *empty &= !any;
        tn_status status = part.status;
        tn__text_free(&part);
        TN_TRY(status);
    }
    return TN_OK;
}

static void emit_bounded_integer(const tn__bounds *b, tn__text *out, bool *empty) {
    double low = ceil(b->low), high = floor(b->high);
    if (b->above_low && low == b->low) low += 1;
    if (b->below_high && high == b->high) high -= 1;
    low = fmax(low, -(double)WHOLE_MAX);
    high = fmin(high, (double)WHOLE_MAX);
    *empty = true;
    if (low > high) return;
    if (low < 0) {
        tn__text_puts(out, "\"-\" ");
        emit_whole(out, high < 0 ? (uint64_t)-high : 1, (uint64_t)-low);
        *empty = false;
    }
    if (high >= 0) {
        tn__text_puts(out, *empty ? "" : " | ");
        emit_whole(out, low > 0 ? (uint64_t)low : 0, (uint64_t)high);
        *empty = false;
    }
}

/* Numbers without bounds that are multiples of 2, 5, a power of ten, or of a negative power of ten. False: another
 * number, or no number at all. */
static bool emit_multiple(double of, bool integer, tn__text *out) {
    double power = 10;
    if (of == 2 || of == 5) {
        const char *last = of == 2 ? "[02468]" : "[05]", *only = of == 2 ? "[2468]" : "\"5\"";
        tn__text_printf(out, "\"0\" | \"-\"? (%s | [1-9] [0-9]{0,13} %s)", only, last);
        return true;
    }
    for (int digits = 1; digits <= 9; digits++, power *= 10) {
        if (of == power) {
            tn__text_printf(out, "\"0\" | \"-\"? [1-9] [0-9]{0,%d} \"0\"{%d}", 14 - digits, digits);
            return true;
        }
        if (!integer && fabs(of * power - 1) < 1e-12) {
            tn__text_printf(out, "\"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,%d})?", digits);
            return true;
        }
    }
    return false;
}

tn_status tn__schema_emit_number(tn__schema *s, json_t *flat, bool integer, const tn__schema_path *path,
                                 tn__text *out, bool *empty) {
    json_t *multiple = json_object_get(flat, "multipleOf");
    const double of = json_number_value(multiple);
    tn__bounds b;
    TN_TRY(tn__schema_bounds(flat, path, &b));
    *empty = false;
    if (multiple && of == 1)
        integer = true; /* a multiple of 1 is an integer */
    else if (multiple) {
        if (isinf(b.low) && isinf(b.high) && emit_multiple(of, integer, out)) return TN_OK;
        TN_TRY(tn__schema_unsupported(
            s, path, "\"multipleOf\" is supported for 1, and without bounds for 2, 5 and powers of ten"));
        if (of >= 1 && of == floor(of)) integer = true;
    }
    if (isinf(b.low) && isinf(b.high)) {
        tn__text_printf(out, integer ? "integer" : "number");
        return TN_OK;
    }
    if (!integer) return emit_bounded_number(s, &b, path, out, empty);
    if (b.low > (double)WHOLE_MAX || b.high < -(double)WHOLE_MAX) {
        tn__text_puts(out, "integer");
        return tn__schema_unsupported(s, path, "integers of more than %d digits are not supported", DIGITS_MAX);
    }
    emit_bounded_integer(&b, out, empty);
    return TN_OK;
}
