/* Recurrent layers in plain C: the reference for all other levels. Sums use double. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels/shared.h"

static const float *row_of(const float *rows, size_t stride, int32_t token) {
    return (const float *)(const void *)((const char *)rows + (size_t)token * stride);
}
static float *out_row(float *rows, size_t stride, int32_t token) {
    return (float *)(void *)((char *)rows + (size_t)token * stride);
}

static void conv_weights(int64_t n, int64_t width, const float *w, float *to) {
    for (int64_t c = 0; c < n; c++)
        for (int64_t j = 0; j < width; j++) to[j * n + c] = w[c * width + j];
}
static void conv_token(const tn__conv_job *job, const float *const *rows, float *out) {
    for (int64_t c = 0; c < job->n; c++) {
        double sum = job->bias ? job->bias[c] : 0;
        for (int64_t j = 0; j < job->width; j++) sum += (double)job->w[j * job->n + c] * rows[j][c];
        out[c] = (float)(job->silu ? sum / (1 + exp(-sum)) : sum);
    }
}

/* One column of the state and one token. */
static float linear_column(const tn__linear_job *job, const float *q, const float *k, const float *g, float v,
                           float beta, float *s) {
    const int64_t dk = job->dk;
    double out = 0, predicted = 0;
    if (job->u)
        for (int64_t i = 0; i < dk; i++) out += (double)s[i] * q[i];
    for (int64_t i = 0; i < dk; i++) {
        if (g) s[i] *= expf(g[job->channels ? i : 0]);
        predicted += (double)s[i] * k[i];
    }
    const float added = job->delta ? beta * (float)(v - predicted) : beta * v;
    for (int64_t i = 0; i < dk; i++) {
        s[i] += k[i] * added;
        out += job->u ? (double)job->u[i] * k[i] * added * q[i] : (double)s[i] * q[i];
    }
    return (float)(job->scale * out);
}
static void linear_attention(const tn__linear_job *job) {
    if (job->from != job->state) memcpy(job->state, job->from, (size_t)(job->dv * job->dk) * sizeof(float));
    for (int64_t t = 0; t < job->n; t++) {
        const int32_t token = job->tokens[t];
        const float *v = row_of(job->v, job->v_token, token);
        const float beta = job->beta ? *row_of(job->beta, job->beta_token, token) : 1;
        float *out = out_row(job->out, job->out_token, token);
        for (int64_t j = 0; j < job->dv; j++)
            out[j] = linear_column(job, row_of(job->q, job->q_token, token), row_of(job->k, job->k_token, token),
                                   job->g ? row_of(job->g, job->g_token, token) : NULL, v[j], beta,
                                   job->state + j * job->dk);
    }
}

static void selective_scan(const tn__scan_job *job) {
    for (int64_t t = 0; t < job->n_tokens; t++) {
        const int32_t token = job->tokens[t];
        const float *x = row_of(job->x, job->x_token, token), *dt = row_of(job->dt, job->dt_token, token);
        const float *B = row_of(job->B, job->b_token, token), *C = row_of(job->C, job->c_token, token);
        float *out = out_row(job->out, job->out_token, token);
        for (int64_t c = 0; c < job->n; c++) {
            float *s = job->state + c * job->d;
            double sum = 0;
            for (int64_t i = 0; i < job->d; i++) {
                s[i] = expf(dt[c] * job->A[c * job->d + i]) * s[i] + dt[c] * x[c] * B[i];
                sum += (double)s[i] * C[i];
            }
            out[c] = (float)sum;
        }
    }
}

static void rwkv7(const tn__rwkv7_job *job) {
    for (int64_t t = 0; t < job->n_tokens; t++) {
        const int32_t token = job->tokens[t];
        const float *r = row_of(job->r, job->r_token, token), *w = row_of(job->w, job->w_token, token);
        const float *k = row_of(job->k, job->k_token, token), *v = row_of(job->v, job->v_token, token);
        const float *a = row_of(job->a, job->a_token, token), *b = row_of(job->b, job->b_token, token);
        float *out = out_row(job->out, job->out_token, token);
        for (int64_t j = 0; j < job->n; j++) {
            float *s = job->state + j * job->d;
            double sa = 0, sum = 0;
            for (int64_t i = 0; i < job->d; i++) sa += (double)s[i] * a[i];
            for (int64_t i = 0; i < job->d; i++) {
                s[i] = s[i] * w[i] + (float)sa * b[i] + v[j] * k[i];
                sum += (double)s[i] * r[i];
            }
            out[j] = (float)sum;
        }
    }
}

void tn__kernels_generic_recurrent(tn__cpu_kernels *table) {
    table->conv_weights = conv_weights;
    table->conv_token = conv_token;
    table->linear_attention = linear_attention;
    table->selective_scan = selective_scan;
    table->rwkv7 = rwkv7;
}
