/* CRC-32 as zlib computes it (reflected, 0xEDB88320), by carry-less multiplication if the processor has it.

   Folding: multiply a block of 16 bytes by x^n modulo the polynomial, and it has the same effect n bits further on.
   So each block is folded onto a later one until one block is left.  The table sums that block and the last bytes.
   The factors are x^(n+32) and x^(n-32), reflected: n is 128 for one block, 512 for four, 2048 for sixteen. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t hs_crc_table[8][256];
static int hs_crc_level; /* 0: the table only, 1: 128 bits at a time, 2: 512 bits */

static void hs_crc_init(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
        hs_crc_table[0][byte] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = hs_crc_table[row - 1][byte];
            hs_crc_table[row][byte] = hs_crc_table[0][before & 255] ^ (before >> 8);
        }
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) hs_crc_level = 1;
    if (hs_crc_level && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl"))
        hs_crc_level = 2;
#endif
}

static inline uint32_t hs_crc_by_table(uint32_t crc, const uint8_t *p, size_t n) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word ^= crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++) crc ^= hs_crc_table[7 - byte][(word >> (8 * byte)) & 255];
    }
#endif
    while (n--) crc = hs_crc_table[0][(crc ^ *p++) & 255] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>


__attribute__((target("pclmul,sse4.1"))) static inline __m128i hs_fold(__m128i block, __m128i by, __m128i onto) {
    __m128i low = _mm_clmulepi64_si128(block, by, 0x00), high = _mm_clmulepi64_si128(block, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

#define HS_LOAD(at) _mm_loadu_si128((const __m128i *)(p + (at)))
#define HS_PAIR(low, high) _mm_set_epi64x(high, low)

__attribute__((target("pclmul,sse4.1"))) static inline uint32_t hs_crc_end(__m128i block, const uint8_t *p, size_t n) {
    const __m128i by = HS_PAIR(0x01751997d0LL, 0x00ccaa009eLL);
    for (; n >= 16; p += 16, n -= 16) block = hs_fold(block, by, HS_LOAD(0));
    uint8_t last[16];
    _mm_storeu_si128((__m128i *)last, block);
    return hs_crc_by_table(hs_crc_by_table(0, last, 16), p, n);
}

/* n >= 64 */
__attribute__((target("pclmul,sse4.1"))) static uint32_t hs_crc_by_128(uint32_t crc, const uint8_t *p, size_t n) {
    const __m128i by_4 = HS_PAIR(0x0154442bd4LL, 0x01c6e41596LL), by_1 = HS_PAIR(0x01751997d0LL, 0x00ccaa009eLL);
    __m128i a = _mm_xor_si128(HS_LOAD(0), _mm_cvtsi32_si128((int)crc));
    __m128i b = HS_LOAD(16), c = HS_LOAD(32), d = HS_LOAD(48);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = hs_fold(a, by_4, HS_LOAD(0));
        b = hs_fold(b, by_4, HS_LOAD(16));
        c = hs_fold(c, by_4, HS_LOAD(32));
        d = hs_fold(d, by_4, HS_LOAD(48));
    }
    return hs_crc_end(hs_fold(hs_fold(hs_fold(a, by_1, b), by_1, c), by_1, d), p, n);
}

#define HS_WIDE __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.1")))

HS_WIDE static inline __m512i hs_fold_wide(__m512i block, __m512i by, __m512i onto) {
    __m512i low = _mm512_clmulepi64_epi128(block, by, 0x00), high = _mm512_clmulepi64_epi128(block, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, onto, 0x96);
}

/* n >= 256 */
HS_WIDE static uint32_t hs_crc_by_512(uint32_t crc, const uint8_t *p, size_t n) {
    const __m512i by_16 = _mm512_broadcast_i32x4(HS_PAIR(0x011542778aLL, 0x01322d1430LL));
    const __m512i by_4 = _mm512_broadcast_i32x4(HS_PAIR(0x0154442bd4LL, 0x01c6e41596LL));
    const __m128i by_1 = HS_PAIR(0x01751997d0LL, 0x00ccaa009eLL);
#define HS_LOAD_WIDE(at) _mm512_loadu_si512((const void *)(p + (at)))
    __m512i first = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc));
    __m512i a = _mm512_xor_si512(HS_LOAD_WIDE(0), first);
    __m512i b = HS_LOAD_WIDE(64), c = HS_LOAD_WIDE(128), d = HS_LOAD_WIDE(192);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = hs_fold_wide(a, by_16, HS_LOAD_WIDE(0));
        b = hs_fold_wide(b, by_16, HS_LOAD_WIDE(64));
        c = hs_fold_wide(c, by_16, HS_LOAD_WIDE(128));
        d = hs_fold_wide(d, by_16, HS_LOAD_WIDE(192));
    }
    a = hs_fold_wide(hs_fold_wide(hs_fold_wide(a, by_4, b), by_4, c), by_4, d);
    for (; n >= 64; p += 64, n -= 64) a = hs_fold_wide(a, by_4, HS_LOAD_WIDE(0));
    __m128i block = _mm512_extracti32x4_epi32(a, 0);
    block = hs_fold(block, by_1, _mm512_extracti32x4_epi32(a, 1));
    block = hs_fold(block, by_1, _mm512_extracti32x4_epi32(a, 2));
    block = hs_fold(block, by_1, _mm512_extracti32x4_epi32(a, 3));
    return hs_crc_end(block, p, n);
}
#endif

/* As zlib.crc32(bytes, crc). */
static inline uint32_t hs_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (n >= 256 && hs_crc_level == 2) return ~hs_crc_by_512(crc, p, n);
    if (n >= 64 && hs_crc_level) return ~hs_crc_by_128(crc, p, n);
#endif
    return ~hs_crc_by_table(crc, p, n);
}
