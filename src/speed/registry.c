/* The peaks that this process knows, by device and number of threads. */
#include "speed/speed_internal.h"

#include "tenon/cpu.h"

#include "base/checked.h"

#include <math.h>
#include <pthread.h>

enum { MAX_SPEEDS = 64 };

static struct known_speed {
    tn_device *device;
    int n_threads;
    tn_device_speed speed;
} known[MAX_SPEEDS];
static size_t n_known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static int threads_of(const tn_device *device, int n_threads) {
    if (tn_device_get_kind(device) != TN_DEVICE_CPU) return 0;
    return n_threads > 0 ? n_threads : tn_cpu_count();
}

static struct known_speed *find_known(const tn_device *device, int n_threads) {
    for (size_t i = 0; i < n_known; i++)
        if (known[i].device == device && known[i].n_threads == n_threads) return &known[i];
    return NULL;
}

tn_status tn_device_set_speed(tn_device *device, int n_threads, const tn_device_speed *speed) {
    if (!device) return tn_fail(TN_E_INVALID, "tn_device_set_speed: NULL argument");
    n_threads = threads_of(device, n_threads);
    tn_status status = TN_OK;
    pthread_mutex_lock(&known_lock);
    struct known_speed *entry = find_known(device, n_threads);
    if (!speed) {
        if (entry) *entry = known[--n_known];
    } else if (entry || n_known < MAX_SPEEDS) {
        if (!entry) entry = &known[n_known++];
        *entry = (struct known_speed){device, n_threads, *speed};
    } else {
        status = tn_fail(TN_E_FULL, "the speeds of %d devices are known already", (int)MAX_SPEEDS);
    }
    pthread_mutex_unlock(&known_lock);
    return status;
}

/* ---- Given rates ---- */

/* Typical costs, for devices whose specification leaves them out: a kernel in a CUDA graph, waiting for a run, and
 * sixteen lanes of PCIe 4. */
static const double default_launch = 3e-6, default_run = 20e-6, default_link = 25e9;

/* Block types are multiplied as bytes with few rows and are converted to f16 for many, as the CUDA backend does. */
static double given_multiply(const tn_device_rates *r, tn_type type, int64_t rows) {
    const double half = r->f16 > 0 ? r->f16 : r->f32;
    if (type == TN_F32 || type == TN_F64) return r->f32 > 0 ? r->f32 : half;
    return tn_type_is_quantized(type) && rows <= 8 && r->i8 > 0 ? r->i8 : half;
}

tn_device_speed tn_speed_from_rates(const tn_device_rates *r) {
    tn_device_speed speed = {.given = true,
                             .read = r->read,
                             .move = r->read,
                             .attention_many = r->f16 > 0 ? r->f16 : r->f32,
                             .link = r->link > 0 ? r->link : default_link,
                             .run = default_run};
    for (int i = 0; i < TN_LAUNCH_KINDS; i++) speed.launch[i] = r->launch > 0 ? r->launch : default_launch;
    for (int i = 0; i < TN_SPEED_GROUPS; i++) speed.attention_keys[i] = r->read / TN__KEY_BYTES;
    for (int p = 0; p < TN_SPEED_POINTS; p++) {
        speed.experts[p] = 1;
        for (int t = 0; t < TN_TYPE_LIMIT; t++)
            if (tn_type_valid((tn_type)t)) speed.multiply[t][p] = given_multiply(r, (tn_type)t, tn_speed_rows(p));
    }
    return speed;
}

static bool given_speed(tn_device *device, tn_device_speed *speed) {
    tn_device_rates r;
    if (!tn_device_given_rates(device, &r) || !(r.read > 0)) return false;
    *speed = tn_speed_from_rates(&r);
    return true;
}

tn_status tn_device_get_speed(tn_device *device, int n_threads, tn_device_speed *speed) {
    if (!device || !speed) return tn_fail(TN_E_INVALID, "tn_device_get_speed: NULL argument");
    n_threads = threads_of(device, n_threads);
    pthread_mutex_lock(&known_lock);
    const struct known_speed *entry = find_known(device, n_threads);
    if (entry) *speed = entry->speed;
    pthread_mutex_unlock(&known_lock);
    if (entry || given_speed(device, speed)) return TN_OK;
    if (n_threads)
        return tn_fail(TN_E_STATE, "the speed of %s with %d threads is not measured: run tenon devices --measure",
                       tn_device_name(device), n_threads);
    return tn_fail(TN_E_STATE, "the speed of %s is not measured: run tenon devices --measure",
                   tn_device_name(device));
}

/* ---- Rates between the points ---- */

int64_t tn_speed_rows(int point) {
    static const int64_t rows[TN_SPEED_POINTS] = {1, 8, 32, 128, 512};
    return point < 0 || point >= TN_SPEED_POINTS ? 0 : rows[point];
}

int64_t tn_speed_group(int point) {
    static const int64_t groups[TN_SPEED_GROUPS] = {1, 4, 8};
    return point < 0 || point >= TN_SPEED_GROUPS ? 0 : groups[point];
}

static double bits_per_weight(tn_type type) {
    return 8.0 * (double)tn_type_bytes(type) / (double)tn_type_block(type);
}

/* The measured type whose weights have about as many bits. */
static tn_type measured_type(const tn_device_speed *s, tn_type type) {
    tn_type best = type;
    double distance = INFINITY;
    if (tn_type_valid(type) && s->multiply[type][0] > 0) return type;
    for (int t = 0; t < TN_TYPE_LIMIT; t++) {
        if (!tn_type_valid((tn_type)t) || !(s->multiply[t][0] > 0)) continue;
        double d = tn_type_valid(type) ? fabs(log(bits_per_weight((tn_type)t) / bits_per_weight(type))) : 0;
        if (d < distance) {
            distance = d;
            best = (tn_type)t;
        }
    }
    return best;
}

/* Seconds per operation grow and shrink smoothly with the rows; the time of a matmul is close to linear in the rows
 * between two points. */
double tn__speed_between(const double rates[TN_SPEED_POINTS], double rows) {
    int p = 0;
    double time[2];
    while (p + 2 < TN_SPEED_POINTS && rows > (double)tn_speed_rows(p + 1) && rates[p + 2] > 0) p++;
    const double low = (double)tn_speed_rows(p), high = (double)tn_speed_rows(p + 1);
    if (!(rates[p] > 0)) return 0;
    if (rows <= low || !(rates[p + 1] > 0)) return rates[p];
    if (rows >= high) return rates[p + 1];
    time[0] = low / rates[p];
    time[1] = high / rates[p + 1];
    return rows / (time[0] + (time[1] - time[0]) * (rows - low) / (high - low));
}

double tn_speed_multiply(const tn_device_speed *speed, tn_type type, double rows) {
    const tn_type measured = measured_type(speed, type);
    return tn_type_valid(measured) ? tn__speed_between(speed->multiply[measured], rows) : 0;
}
