/* SHA-256 (FIPS 180-4), of data that comes in pieces. */
#include "hub/sha256.h"

#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void sha256_start(struct sha256 *h) {
    /* The same of the square roots of the first 8 primes. */
    *h = (struct sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static uint32_t rotate_right(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void add_block(struct sha256 *h, const unsigned char *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10);
    }
    memcpy(s, h->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t mix = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25),
                       choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t first = s[7] + mix + choice + round_constants[i] + w[i];
        const uint32_t other = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + other + majority;
    }
    for (int i = 0; i < 8; i++) h->state[i] += s[i];
}

void sha256_add(struct sha256 *h, const void *bytes, size_t size) {
    const unsigned char *from = bytes;
    while (size > 0) {
        const size_t used = h->bytes % 64, room = 64 - used, n = size < room ? size : room;
        if (used == 0 && n == 64) {
            add_block(h, from);
        } else {
            memcpy(h->block + used, from, n);
            if (n == room) add_block(h, h->block);
        }
        h->bytes += n;
        from += n;
        size -= n;
    }
}

void sha256_text(struct sha256 *h, char text[65]) {
    const uint64_t bits = h->bytes * 8;
    unsigned char length[8];
    sha256_add(h, "\x80", 1);
    while (h->bytes % 64 != 56) sha256_add(h, "", 1);
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(h, length, 8);
    for (int i = 0; i < 8; i++) snprintf(text + 8 * i, 9, "%08x", (unsigned)h->state[i]);
}
