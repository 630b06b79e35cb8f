/* Random numbers of draws: the Mersenne Twister (mt19937), which llama.cpp's samplers use as well. A number in
 * [0, 1) takes two of its words, the first as the lower half, as std::uniform_real_distribution<double> of libstdc++
 * does: so the same seed draws the same tokens there and here. */
#include "text/sampler/internal.h"

#include "base/hash.h"

#include <sys/random.h>

enum { LENGTH = 624, MIDDLE = 397 };

static void seed_word(uint32_t *state, uint32_t seed) {
    state[0] = seed;
    for (uint32_t i = 1; i < LENGTH; i++) state[i] = 1812433253u * (state[i - 1] ^ state[i - 1] >> 30) + i;
}

/* Seeds of up to 32 bits initialize the state directly, longer ones as a key of two words (init_by_array of the
 * generator's authors), so that all seeds differ. */
void tn__random_seed(tn__random *random, uint64_t seed) {
    uint32_t *state = random->state;
    random->next = LENGTH;
    if (seed <= UINT32_MAX) {
        seed_word(state, (uint32_t)seed);
        return;
    }
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    seed_word(state, 19650218u);
    uint32_t i = 1;
    for (uint32_t k = 0; k < LENGTH; k++) {
        state[i] = (state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1664525u) + key[k % 2] + k % 2;
        if (++i < LENGTH) continue;
        state[0] = state[LENGTH - 1];
        i = 1;
    }
    for (uint32_t k = 1; k < LENGTH; k++) {
        state[i] = (state[i] ^ (state[i - 1] ^ state[i - 1] >> 30) * 1566083941u) - i;
        if (++i < LENGTH) continue;
        state[0] = state[LENGTH - 1];
        i = 1;
    }
    state[0] = 1u << 31;
}

static void next_block(uint32_t *state) {
    for (uint32_t i = 0; i < LENGTH; i++) {
        const uint32_t y = (state[i] & 0x80000000u) | (state[(i + 1) % LENGTH] & 0x7fffffffu);
        state[i] = state[(i + MIDDLE) % LENGTH] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
}

static uint32_t next_word(tn__random *random) {
    if (random->next >= LENGTH) {
        next_block(random->state);
        random->next = 0;
    }
    uint32_t y = random->state[random->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

double tn__random_unit(tn__random *random) {
    const double low = next_word(random), unit = (low + next_word(random) * 0x1p32) * 0x1p-64;
    return unit < 1 ? unit : 1 - 0x1p-53; /* the sum may round up to 2^64 */
}

uint64_t tn__random_system_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) seed = tn__mix64(tn_time_ns());
    return seed >> 11; /* 53 bits: every JSON parser keeps them exactly, and TN_SEED_RANDOM is out of reach */
}
