/* The reference's recurrent layers: one token after another, one element of the state after another. */
#include "forward/forward.h"

#include <math.h>
#include <string.h>

enum { STATE = 4 * FORWARD_MOST * 16 };

static double l2_scale(const forward_model *m, const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return 1 / fmax(sqrt(sum), m->eps);
}
static void to_unit(const forward_model *m, double *x, int n) {
    const double scale = l2_scale(m, x, n);
    for (int i = 0; i < n; i++) x[i] *= scale;
}

/* A causal convolution of every column over the tokens; the kernel's last weight is that of the token itself. */
static void convolve(const forward_model *m, int il, const char *name, bool silu, int channels, forward_rows x) {
    static forward_rows y;
    char full[80];
    strcat(strcpy(full, name), ".weight");
    const tn_gguf_tensor *kernel = forward_tensor(m, il, full);
    strcat(strcpy(full, name), ".bias");
    const float *w = kernel->data, *b = forward_weight(m, il, full);
    const int width = (int)kernel->ne[0];
    for (int t = 0; t < m->tokens; t++)
        for (int c = 0; c < channels; c++) {
            double sum = b ? (double)b[c] : 0;
            for (int j = 0; j < width; j++)
                if (t - j >= 0) sum += (double)w[c * width + width - 1 - j] * x[t - j][c];
            y[t][c] = silu ? forward_silu(sum) : sum;
        }
    for (int t = 0; t < m->tokens; t++) memcpy(x[t], y[t], (size_t)channels * sizeof **x);
}

/* One step of a head's memory, which maps keys to values: it fades, learns v under k, and answers q. With the delta
 * rule it learns only what it did not know. `decay` has one logarithm for all elements of a key, or one for each. */
static void remember(double *memory, int nk, int nv, const double *q, const double *k, const double *v,
                     const double *decay, int n_decay, double beta, bool delta, double *out) {
    for (int j = 0; j < nv; j++) {
        double *row = memory + j * nk, known = 0;
        for (int i = 0; i < nk; i++) {
            row[i] *= exp(decay[n_decay > 1 ? i : 0]);
            known += row[i] * k[i];
        }
        out[j] = 0;
        for (int i = 0; i < nk; i++) {
            row[i] += beta * (v[j] - (delta ? known : 0)) * k[i];
            out[j] += row[i] * q[i];
        }
    }
}

static double of(const forward_model *m, const char *key) { return forward_key(m, key, 0); }

static void mamba(forward_model *m, int il, forward_rows x) {
    static forward_rows u, z;
    static double state[STATE];
    const int inner = (int)of(m, "ssm.inner_size"), n = (int)of(m, "ssm.state_size"),
              rank = (int)of(m, "ssm.time_step_rank");
    const float *a = forward_weight(m, il, "ssm_a"), *d = forward_weight(m, il, "ssm_d");
    memset(state, 0, sizeof state);
    for (int t = 0; t < m->tokens; t++) {
        double both[FORWARD_MOST];
        forward_linear(m, il, "ssm_in", 0, x[t], both);
        memcpy(u[t], both, (size_t)inner * sizeof *both);
        memcpy(z[t], both + inner, (size_t)inner * sizeof *both);
    }
    convolve(m, il, "ssm_conv1d", true, inner, u);
    for (int t = 0; t < m->tokens; t++) {
        double parts[FORWARD_MOST], dt[FORWARD_MOST], *b = parts + rank, *c = b + n, y[FORWARD_MOST];
        forward_linear(m, il, "ssm_x", 0, u[t], parts);
        forward_norm_named(m, il, "ssm_dt_norm", rank, parts);
        forward_norm_named(m, il, "ssm_b_norm", n, b);
        forward_norm_named(m, il, "ssm_c_norm", n, c);
        forward_linear(m, il, "ssm_dt", 0, parts, dt);
        for (int i = 0; i < inner; i++) {
            const double step = forward_softplus(dt[i]);
            y[i] = (double)d[i] * u[t][i];
            for (int k = 0; k < n; k++) {
                double *s = &state[i * n + k];
                *s = *s * exp(step * (double)a[i * n + k]) + step * b[k] * u[t][i];
                y[i] += *s * c[k];
            }
            y[i] *= forward_silu(z[t][i]);
        }
        forward_linear(m, il, "ssm_out", 0, y, x[t]);
    }
}

static void mamba2(forward_model *m, int il, forward_rows x) {
    static forward_rows all, conv;
    static double state[STATE];
    const int inner = (int)of(m, "ssm.inner_size"), n = (int)of(m, "ssm.state_size"),
              heads = (int)of(m, "ssm.time_step_rank");
    const int groups = (int)of(m, "ssm.group_count"), channels = inner + 2 * groups * n, size = inner / heads;
    const float *a = forward_weight(m, il, "ssm_a"), *d = forward_weight(m, il, "ssm_d");
    const float *bias = forward_weight(m, il, "ssm_dt.bias"), *norm = forward_weight(m, il, "ssm_norm.weight");
    memset(state, 0, sizeof state);
    for (int t = 0; t < m->tokens; t++) {
        forward_linear(m, il, "ssm_in", 0, x[t], all[t]);
        memcpy(conv[t], all[t] + inner, (size_t)channels * sizeof **conv);
    }
    convolve(m, il, "ssm_conv1d", true, channels, conv);
    for (int t = 0; t < m->tokens; t++) {
        double y[FORWARD_MOST];
        for (int h = 0; h < heads; h++) {
            const double dt = forward_softplus(all[t][inner + channels + h] + (double)bias[h]),
                         decay = dt * (double)a[h];
            const double *u = conv[t] + h * size, *b = conv[t] + inner + h / (heads / groups) * n,
                         *c = b + groups * n;
            double v[FORWARD_MOST];
            for (int i = 0; i < size; i++) v[i] = dt * u[i];
            remember(state + h * size * n, n, size, c, b, v, &decay, 1, 1, false, y + h * size);
            for (int i = 0; i < size; i++)
                y[h * size + i] = (y[h * size + i] + (double)d[h] * u[i]) * forward_silu(all[t][h * size + i]);
        }
        for (int g = 0; g < groups && norm; g++)
            forward_norm(m, false, norm + g * (inner / groups), NULL, inner / groups, m->eps,
                         y + g * (inner / groups));
        forward_linear(m, il, "ssm_out", 0, y, x[t]);
    }
}

static void plamo(forward_model *m, int il, forward_rows x) {
    static forward_rows u, z;
    static double state[STATE];
    const int inner = (int)of(m, "ssm.inner_size"), n = (int)of(m, "ssm.state_size"),
              heads = (int)of(m, "ssm.time_step_rank");
    const int size = inner / heads;
    const float *a = forward_weight(m, il, "ssm_a"), *d = forward_weight(m, il, "ssm_d");
    memset(state, 0, sizeof state);
    for (int t = 0; t < m->tokens; t++) {
        double both[FORWARD_MOST];
        forward_linear(m, il, "ssm_in", 0, x[t], both);
        for (int h = 0; h < heads; h++) {
            memcpy(z[t] + h * size, both + 2 * h * size, (size_t)size * sizeof *both);
            memcpy(u[t] + h * size, both + (2 * h + 1) * size, (size_t)size * sizeof *both);
        }
    }
    convolve(m, il, "ssm_conv1d", true, inner, u);
    for (int t = 0; t < m->tokens; t++) {
        double parts[FORWARD_MOST], dt[FORWARD_MOST], y[FORWARD_MOST], v[FORWARD_MOST];
        const int rank = forward_linear(m, il, "ssm_x", 0, u[t], parts) - 2 * n;
        forward_norm_named(m, il, "ssm_b_norm", n, parts);
        forward_norm_named(m, il, "ssm_c_norm", n, parts + n);
        forward_norm_named(m, il, "ssm_dt_norm", rank, parts + 2 * n);
        forward_linear(m, il, "ssm_dt", 0, parts + 2 * n, dt);
        for (int h = 0; h < heads; h++) {
            const double step = forward_softplus(dt[h]), decay = step * (double)a[h];
            for (int i = 0; i < size; i++) v[i] = step * u[t][h * size + i];
            remember(state + h * size * n, n, size, parts + n, parts, v, &decay, 1, 1, false, y + h * size);
            for (int i = h * size; i < (h + 1) * size; i++)
                y[i] = (y[i] + (double)d[h] * u[t][i]) * forward_silu(z[t][i]);
        }
        forward_linear(m, il, "ssm_out", 0, y, x[t]);
    }
}

static void short_conv(forward_model *m, int il, forward_rows x) {
    static forward_rows all, u;
    const int W = m->width;
    for (int t = 0; t < m->tokens; t++) {
        forward_linear(m, il, "shortconv.in_proj", 0, x[t], all[t]);
        for (int i = 0; i < W; i++) u[t][i] = all[t][i] * all[t][2 * W + i];
    }
    convolve(m, il, "shortconv.conv", false, W, u);
    for (int t = 0; t < m->tokens; t++) {
        for (int i = 0; i < W; i++) u[t][i] *= all[t][W + i];
        forward_linear(m, il, "shortconv.out_proj", 0, u[t], x[t]);
    }
}

/* Strength of learning and logarithm of fading of head h. */
static void delta_gates(const forward_model *m, int il, int h, int heads, int groups, const double *x, double *beta,
                        double *decay) {
    double b[FORWARD_MOST], a[FORWARD_MOST];
    const int share = heads / groups, place = h / share * 2 * share + h % share;
    if (forward_linear(m, il, "ssm_ba", 0, x, b)) {
        *beta = forward_sigmoid(b[place]);
        a[h] = b[place + share];
    } else {
        forward_linear(m, il, "ssm_beta", 0, x, b);
        forward_linear(m, il, "ssm_alpha", 0, x, a);
        *beta = forward_sigmoid(b[h]);
    }
    *decay = forward_softplus(a[h] + (double)forward_weight(m, il, "ssm_dt.bias")[h]) *
             (double)forward_weight(m, il, "ssm_a")[h];
}

static void delta_net(forward_model *m, int il, forward_rows x) {
    static forward_rows conv;
    static double state[STATE];
    const int inner = (int)of(m, "ssm.inner_size"), n = (int)of(m, "ssm.state_size"),
              heads = (int)of(m, "ssm.time_step_rank");
    const int groups = (int)of(m, "ssm.group_count"), size = inner / heads, keys = groups * n;
    memset(state, 0, sizeof state);
    for (int t = 0; t < m->tokens; t++) forward_linear(m, il, "attn_qkv", 0, x[t], conv[t]);
    convolve(m, il, "ssm_conv1d", true, inner + 2 * keys, conv);
    for (int t = 0; t < m->tokens; t++) {
        double y[FORWARD_MOST], z[FORWARD_MOST];
        forward_linear(m, il, "attn_gate", 0, x[t], z);
        for (int g = 0; g < 2 * groups; g++) to_unit(m, conv[t] + g * n, n);
        for (int h = 0; h < heads; h++) {
            const int g = forward_is(m, "qwen3next") ? h / (heads / groups) : h % groups;
            double beta, decay;
            delta_gates(m, il, h, heads, groups, x[t], &beta, &decay);
            remember(state + h * size * n, n, size, conv[t] + g * n, conv[t] + keys + g * n,
                     conv[t] + 2 * keys + h * size, &decay, 1, beta, true, y + h * size);
            for (int i = h * size; i < (h + 1) * size; i++) y[i] /= sqrt(n);
            forward_norm_named(m, il, "ssm_norm", size, y + h * size);
            for (int i = h * size; i < (h + 1) * size; i++) y[i] *= forward_silu(z[i]);
        }
        forward_linear(m, il, "ssm_out", 0, y, x[t]);
    }
}

static void kda_decay(const forward_model *m, int il, const double *x, double *g) {
    const forward_layer *l = &m->layer[il];
    const double bound = forward_key(m, "kda.gate_lower_bound", 0);
    const float *bias = forward_weight(m, il, "ssm_dt.bias"), *a = forward_weight(m, il, "ssm_a");
    double low[FORWARD_MOST];
    forward_linear(m, il, "ssm_f_a", 0, x, low);
    if (!forward_linear(m, il, "ssm_f_b", 0, low, g)) memcpy(g, low, sizeof low);
    for (int i = 0; i < l->heads * l->head_k; i++) {
        const double f = g[i] + (double)bias[i], rate = (double)a[i / l->head_k];
        g[i] = bound == 0 ? forward_softplus(f) * rate : bound * forward_sigmoid(-f * rate);
    }
}

static void kda(forward_model *m, int il, forward_rows x) {
    static forward_rows q, k, v;
    static double state[STATE];
    const forward_layer *l = &m->layer[il];
    const int size = l->head_k, n = l->heads * size;
    memset(state, 0, sizeof state);
    for (int t = 0; t < m->tokens; t++) {
        forward_linear(m, il, "attn_q", 0, x[t], q[t]);
        forward_linear(m, il, "attn_k", 0, x[t], k[t]);
        forward_linear(m, il, "attn_v", 0, x[t], v[t]);
    }
    convolve(m, il, "ssm_conv1d_q", true, n, q);
    convolve(m, il, "ssm_conv1d_k", true, n, k);
    convolve(m, il, "ssm_conv1d_v", true, n, v);
    for (int t = 0; t < m->tokens; t++) {
        double beta[FORWARD_MOST], g[FORWARD_MOST], gate[FORWARD_MOST], low[FORWARD_MOST], y[FORWARD_MOST];
        forward_linear(m, il, "ssm_beta", 0, x[t], beta);
        kda_decay(m, il, x[t], g);
        if (!forward_linear(m, il, "ssm_g", 0, x[t], gate)) {
            forward_linear(m, il, "ssm_g_a", 0, x[t], low);
            if (!forward_linear(m, il, "ssm_g_b", 0, low, gate)) memcpy(gate, low, sizeof low);
        }
        for (int h = 0; h < l->heads; h++) {
            const int at = h * size;
            to_unit(m, q[t] + at, size);
            to_unit(m, k[t] + at, size);
            remember(state + at * size, size, size, q[t] + at, k[t] + at, v[t] + at, g + at, size,
                     forward_sigmoid(beta[h]), true, y + at);
            for (int i = at; i < at + size; i++) y[i] /= sqrt(size);
            forward_norm_named(m, il, "ssm_norm", size, y + at);
            for (int i = at; i < at + size; i++) y[i] *= forward_sigmoid(gate[i]);
        }
        forward_linear(m, il, "attn_output", 0, y, x[t]);
    }
}

static void lightning(forward_model *m, int il, forward_rows x) {
    static double state[STATE];
    const forward_layer *l = &m->layer[il];
    const int size = l->head_k;
    const double ratio = pow(2, -8.0 / l->heads), later = 1 - (double)il / (m->layers - 1) + 1e-5;
    memset(state, 0, sizeof state);
    for (int t = 0; t < m->tokens; t++) {
        double all[FORWARD_MOST], y[FORWARD_MOST], gate[FORWARD_MOST];
        const int n = forward_linear(m, il, "attn_qkv", 0, x[t], all);
        for (int i = 0; i < n; i++) all[i] = forward_silu(all[i]);
        for (int h = 0; h < l->heads; h++) {
            const double *q = all + 3 * h * size, decay = -pow(ratio, h + 1) * later;
            remember(state + h * size * size, size, size, q, q + size, q + 2 * size, &decay, 1, 1, false,
                     y + h * size);
        }
        forward_norm_named(m, il, "attn_norm_2", l->heads * size, y);
        forward_linear(m, il, "attn_gate", 0, x[t], gate);
        for (int i = 0; i < l->heads * size; i++) y[i] *= forward_sigmoid(gate[i]);
        forward_linear(m, il, "attn_output", 0, y, x[t]);
    }
}

void forward_recurrent(forward_model *m, int il, forward_rows x) {
    switch (m->layer[il].kind) {
    case MIX_MAMBA: mamba(m, il, x); break;
    case MIX_MAMBA2:
    case MIX_BOTH: mamba2(m, il, x); break;
    case MIX_PLAMO: plamo(m, il, x); break;
    case MIX_CONV: short_conv(m, il, x); break;
    case MIX_DELTA: delta_net(m, il, x); break;
    case MIX_KDA: kda(m, il, x); break;
    case MIX_LIGHTNING: lightning(m, il, x); break;
    default: break;
    }
}
