/* The reference's RWKV 6 and 7: a mixer over time with a state for each head, then one over channels. */
#include "forward/forward.h"

#include <math.h>
#include <string.h>

enum { PARTS_MOST = 6 };
static double state[FORWARD_WIDTH][FORWARD_WIDTH]; /* of one head, by value and key */
static forward_rows first_values;                  /* of RWKV 7's first layer */

static double element(const forward_model *m, int il, const char *name, int i) {
    const float *w = forward_weight(m, il, name);
    return w ? (double)w[i] : 0;
}

/* out = x moved towards the token before by the shares; before is NULL for the first token. */
static void lerp(const forward_model *m, const double *x, const double *before, const double *share, double *out) {
    for (int i = 0; i < m->width; i++) out[i] = x[i] + ((before ? before[i] : 0) - x[i]) * share[i];
}

static void normalise_heads(const forward_model *m, int il, int head, double *y) {
    for (int h = 0; h < m->width / head; h++) forward_norm(m, true, NULL, NULL, head, 64e-5, y + h * head);
    for (int i = 0; i < m->width; i++)
        y[i] = y[i] * element(m, il, "time_mix_ln.weight", i) + element(m, il, "time_mix_ln.bias", i);
}

/* ---- RWKV 6 ---- */

/* The inputs of w, k, v, r and g: the shares are weights plus what two small matrices make of the token. */
static void inputs_6(const forward_model *m, int il, const double *x, const double *before,
                     double in[][FORWARD_MOST]) {
    const int low = (int)forward_key(m, "time_mix_extra_dim", 0);
    const float *second = forward_weight(m, il, "time_mix_w2.weight"),
                *usual = forward_weight(m, il, "time_mix_lerp_fused.weight");
    double share[FORWARD_MOST], mixed[FORWARD_MOST], small[FORWARD_MOST];
    for (int i = 0; i < m->width; i++) share[i] = element(m, il, "time_mix_lerp_x.weight", i);
    lerp(m, x, before, share, mixed);
    forward_linear(m, il, "time_mix_w1", 0, mixed, small);
    for (int p = 0; p < 5; p++) {
        for (int i = 0; i < m->width; i++) {
            share[i] = (double)usual[p * m->width + i];
            for (int k = 0; k < low; k++)
                share[i] += (double)second[(p * m->width + i) * low + k] * tanh(small[p * low + k]);
        }
        lerp(m, x, before, share, in[p]);
    }
}

static void time_6(const forward_model *m, int il, const forward_rows x, forward_rows y) {
    static forward_rows r, k, v, w, gate;
    const int head = (int)forward_key(m, "wkv.head_size", 0);
    for (int t = 0; t < m->tokens; t++) {
        double in[PARTS_MOST][FORWARD_MOST], small[FORWARD_MOST];
        inputs_6(m, il, x[t], t ? x[t - 1] : NULL, in);
        forward_linear(m, il, "time_mix_receptance", 0, in[3], r[t]);
        forward_linear(m, il, "time_mix_key", 0, in[1], k[t]);
        forward_linear(m, il, "time_mix_value", 0, in[2], v[t]);
        forward_linear(m, il, "time_mix_gate", 0, in[4], gate[t]);
        const int n = forward_linear(m, il, "time_mix_decay_w1", 0, in[0], small);
        for (int i = 0; i < n; i++) small[i] = tanh(small[i]);
        forward_linear(m, il, "time_mix_decay_w2", 0, small, w[t]);
        for (int i = 0; i < m->width; i++) w[t][i] = exp(-exp(w[t][i] + element(m, il, "time_mix_decay.weight", i)));
    }
    for (int h = 0; h < m->width; h += head) {
        memset(state, 0, sizeof state);
        for (int t = 0; t < m->tokens; t++)
            for (int j = h; j < h + head; j++) {
                y[t][j] = 0;
                for (int i = h; i < h + head; i++) {
                    const double now = k[t][i] * v[t][j], u = element(m, il, "time_mix_first.weight", i);
                    y[t][j] += r[t][i] * (state[j][i] + u * now);
                    state[j][i] = state[j][i] * w[t][i] + now;
                }
            }
    }
    for (int t = 0; t < m->tokens; t++) {
        double out[FORWARD_MOST];
        normalise_heads(m, il, head, y[t]);
        for (int i = 0; i < m->width; i++) y[t][i] *= forward_silu(gate[t][i]);
        forward_linear(m, il, "time_mix_output", 0, y[t], out);
        memcpy(y[t], out, sizeof out);
    }
}

/* ---- RWKV 7 ---- */

/* bias + second · f(first · x) */
static void low_rank(const forward_model *m, int il, char part, double (*f)(double), const double *x, double *y) {
    char first[] = "time_mix_?1", second[] = "time_mix_?2", bias[] = "time_mix_?0.weight";
    double small[FORWARD_MOST];
    first[9] = second[9] = bias[9] = part;
    const int n = forward_linear(m, il, first, 0, x, small);
    for (int i = 0; i < n && f; i++) small[i] = f(small[i]);
    forward_linear(m, il, second, 0, small, y);
    for (int i = 0; i < m->width; i++) y[i] += element(m, il, bias, i);
}

static void time_7(const forward_model *m, int il, const forward_rows x, forward_rows y) {
    static forward_rows r, k, v, w, gate, removed, rate;
    const int W = m->width, head = (int)forward_key(m, "wkv.head_size", 0);
    for (int t = 0; t < m->tokens; t++) {
        double in[PARTS_MOST][FORWARD_MOST], share[FORWARD_MOST]; /* of r, w, k, v, a, g */
        for (int p = 0; p < PARTS_MOST; p++) {
            for (int i = 0; i < W; i++) share[i] = element(m, il, "time_mix_lerp_fused.weight", p * W + i);
            lerp(m, x[t], t ? x[t - 1] : NULL, share, in[p]);
        }
        forward_linear(m, il, "time_mix_receptance", 0, in[0], r[t]);
        forward_linear(m, il, "time_mix_key", 0, in[2], k[t]);
        forward_linear(m, il, "time_mix_value", 0, in[3], v[t]);
        low_rank(m, il, 'w', tanh, in[1], w[t]);
        low_rank(m, il, 'a', NULL, in[4], rate[t]);
        low_rank(m, il, 'g', forward_sigmoid, in[5], gate[t]);
        if (il == 0) memcpy(first_values[t], v[t], sizeof v[t]);
        if (il > 0) low_rank(m, il, 'v', NULL, in[3], share);
        for (int i = 0; i < W; i++) {
            if (il > 0) v[t][i] += (first_values[t][i] - v[t][i]) * forward_sigmoid(share[i]);
            w[t][i] = exp(-exp(-0.5) * forward_sigmoid(w[t][i]));
            rate[t][i] = forward_sigmoid(rate[t][i]);
            removed[t][i] = k[t][i] * element(m, il, "time_mix_k_k.weight", i);
            k[t][i] *= 1 + (rate[t][i] - 1) * element(m, il, "time_mix_k_a.weight", i);
        }
        for (int h = 0; h < W; h += head) {
            double square = 0;
            for (int i = h; i < h + head; i++) square += removed[t][i] * removed[t][i];
            for (int i = h; i < h + head; i++) removed[t][i] /= fmax(sqrt(square), 1e-12);
        }
    }
    for (int h = 0; h < W; h += head) {
        memset(state, 0, sizeof state);
        for (int t = 0; t < m->tokens; t++)
            for (int j = h; j < h + head; j++) {
                double old = 0;
                for (int i = h; i < h + head; i++) old += state[j][i] * removed[t][i];
                y[t][j] = 0;
                for (int i = h; i < h + head; i++) {
                    state[j][i] = state[j][i] * w[t][i] - old * removed[t][i] * rate[t][i] + v[t][j] * k[t][i];
                    y[t][j] += state[j][i] * r[t][i];
                }
            }
    }
    for (int t = 0; t < m->tokens; t++) {
        double out[FORWARD_MOST];
        normalise_heads(m, il, head, y[t]);
        for (int h = 0; h < W; h += head) {
            double own = 0;
            for (int i = h; i < h + head; i++) own += r[t][i] * k[t][i] * element(m, il, "time_mix_r_k.weight", i);
            for (int i = h; i < h + head; i++) y[t][i] = (y[t][i] + own * v[t][i]) * gate[t][i];
        }
        forward_linear(m, il, "time_mix_output", 0, y[t], out);
        memcpy(y[t], out, sizeof out);
    }
}

/* ---- The layer ---- */

void forward_rwkv_layer(forward_model *m, int il, forward_rows x) {
    static forward_rows in, y;
    const int halve = (int)forward_key(m, "rescale_every_n_layers", 0);
    memcpy(in, x, sizeof in);
    for (int t = 0; t < m->tokens; t++) forward_norm_named(m, il, "attn_norm", m->width, in[t]);
    forward_is(m, "rwkv6") ? time_6(m, il, in, y) : time_7(m, il, in, y);
    for (int t = 0; t < m->tokens; t++) {
        for (int i = 0; i < m->width; i++) x[t][i] += y[t][i];
        memcpy(in[t], x[t], sizeof in[t]);
        forward_norm_named(m, il, "attn_norm_2", m->width, in[t]);
    }
    for (int t = 0; t < m->tokens; t++) {
        double share[FORWARD_MOST], mixed[FORWARD_MOST], up[FORWARD_MOST], out[FORWARD_MOST], open[FORWARD_MOST];
        const double *before = t ? in[t - 1] : NULL;
        for (int i = 0; i < m->width; i++) share[i] = element(m, il, "channel_mix_lerp_k.weight", i);
        lerp(m, in[t], before, share, mixed);
        const int n = forward_linear(m, il, "channel_mix_key", 0, mixed, up);
        for (int i = 0; i < n; i++) up[i] = up[i] > 0 ? up[i] * up[i] : 0;
        forward_linear(m, il, "channel_mix_value", 0, up, out);
        for (int i = 0; i < m->width; i++) share[i] = element(m, il, "channel_mix_lerp_r.weight", i);
        lerp(m, in[t], before, share, mixed);
        const bool gated = forward_linear(m, il, "channel_mix_receptance", 0, mixed, open) > 0;
        for (int i = 0; i < m->width; i++) x[t][i] += out[i] * (gated ? forward_sigmoid(open[i]) : 1);
        for (int i = 0; i < m->width && halve > 0 && (il + 1) % halve == 0; i++) x[t][i] /= 2;
    }
}
