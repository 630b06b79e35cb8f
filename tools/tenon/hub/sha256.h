/* SHA-256 (FIPS 180-4), of data that comes in pieces. */
#ifndef TENON_TOOL_SHA256_H
#define TENON_TOOL_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
};

void sha256_start(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const void *bytes, size_t size);
void sha256_text(struct sha256 *hash, char text[65]); /* ends it; lower-case hexadecimal digits */

#endif
