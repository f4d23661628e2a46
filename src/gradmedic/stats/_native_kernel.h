/* The sums over a run of elements of one kind, independent of Python and of threads. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One machine code for each generation of vector units, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones) && defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#elif __has_attribute(target_clones) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif __has_attribute(target_clones)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef CLONES
#define CLONES
#endif
#define PRAGMA(text) _Pragma(#text)
#define SIMD(clauses) PRAGMA(omp simd clauses)

enum { FP32, FP64, BF16, FP16, KINDS, SKIP = 255 };
static const unsigned char ITEM_SIZE[KINDS] = {4, 8, 2, 2};

enum { BLOCK = 1024, PART = 256, LEAD = 32, FEW = 64, LANES = 32, BINS = 64 };

typedef unsigned char Bytes __attribute__((vector_size(LANES)));

/* What is known of some elements. `scatter` is the sum of (x - mean)^2 in units of 4^exponent; everything else is in
 * true units. The exponent is 0 unless squares would leave the range of the sums. */
typedef struct {
    int64_t finite, zeros, nan, inf;
    double mean, mean_abs, scatter, max_abs, min_abs;
    int exponent, nonfinite, missed; /* the latter two of one block: it has NaN or infinity; its shift was far off */
} Sums;

/* Join two sets (Chan, Golub, LeVeque 1979: updating formulae for variances). */
static void merge(Sums *total, const Sums *part)
{
    total->nan += part->nan;
    total->inf += part->inf;
    total->zeros += part->zeros;
    if (part->finite == 0)
        return;
    if (total->finite == 0) {
        const Sums counts = *total;
        *total = *part;
        total->nan = counts.nan;
        total->inf = counts.inf;
        total->zeros = counts.zeros;
        return;
    }
    const double n = (double)(total->finite + part->finite);
    const double share = (double)part->finite / n, rest = (double)total->finite / n;
    double mean = total->mean, other = part->mean, scatter = total->scatter + part->scatter;
    if (total->exponent | part->exponent) {
        int exponent = total->exponent > part->exponent ? total->exponent : part->exponent;
        if (total->max_abs == 0 || part->max_abs == 0) /* zeros fit every scale */
            exponent = total->max_abs == 0 ? part->exponent : total->exponent;
        scatter = ldexp(total->scatter, 2 * (total->exponent - exponent)) +
                  ldexp(part->scatter, 2 * (part->exponent - exponent));
        mean = ldexp(mean, -exponent);
        other = ldexp(other, -exponent);
        total->exponent = exponent;
    }
    const double delta = other - mean;
    total->scatter = scatter + delta * delta * share * (double)total->finite;
    total->mean = total->mean * rest + part->mean * share;
    total->mean_abs = total->mean_abs * rest + part->mean_abs * share;
    total->max_abs = part->max_abs > total->max_abs ? part->max_abs : total->max_abs;
    total->min_abs = part->min_abs < total->min_abs ? part->min_abs : total->min_abs;
    total->finite += part->finite;
}

/* value * 2^exponent, without the call where there is nothing to do. */
static inline double scale(double value, int exponent)
{
    return exponent == 0 ? value : ldexp(value, exponent);
}

/* Count how often each bin occurs in bins[0..n). Gradients of one block rarely span more than fifteen powers of two, so
 * that comparing bytes, 32 at a time, for each bin in the range is several times faster than one increment per element.
 * Zeros have been put into bin 0 and do not belong there. */
CLONES static void count_bins(unsigned char *bins, ptrdiff_t n, int64_t zeros, int64_t *histogram)
{
    unsigned char lowest = 255, highest = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const unsigned char wrapped = (unsigned char)(bins[i] - 1); /* bin 0, by subtraction below, does not widen it */
        lowest = wrapped < lowest ? wrapped : lowest;
        highest = bins[i] > highest ? bins[i] : highest;
    }
    int64_t rest = n - zeros;
    if (n < 8 * (highest - lowest)) {
        for (ptrdiff_t i = 0; i < n; i++)
            histogram[bins[i]]++;
        histogram[0] -= zeros;
        return;
    }
    memset(bins + n, 255, (size_t)(-n & (2 * LANES - 1)));
    for (int bin = lowest + 1; bin <= highest; bin++) {
        const Bytes wanted = (Bytes){0} + (unsigned char)bin;
        Bytes first = {0}, second = {0}; /* BLOCK / LANES increments at most: a byte can count them */
        for (ptrdiff_t start = 0; start < n; start += 2 * LANES) {
            Bytes some, more;
            memcpy(&some, bins + start, LANES);
            memcpy(&more, bins + start + LANES, LANES);
            first -= (Bytes)(some == wanted); /* -1 where equal */
            second -= (Bytes)(more == wanted);
        }
        first += second;
        int count = 0;
        for (int lane = 0; lane < LANES; lane++)
            count += first[lane];
        histogram[bin] += count;
        rest -= count;
    }
    histogram[0] += rest;
}

#define REAL double
#define BITS uint64_t
#define SIGNED int64_t
#define ABS_MASK UINT64_C(0x7fffffffffffffff)
#define INF_BITS UINT64_C(0x7ff0000000000000)
#define MANTISSA_BITS 52
#define FIRST_BIN (1023 - 48)
#define SAFE_HIGH 0x1p480
#define SAFE_LOW 0x1p-440
#define NAME(x) x##_fp64
#include "_native_block.h"
#undef REAL
#undef BITS
#undef SIGNED
#undef ABS_MASK
#undef INF_BITS
#undef MANTISSA_BITS
#undef FIRST_BIN
#undef SAFE_HIGH
#undef SAFE_LOW
#undef NAME
#define REAL float
#define BITS uint32_t
#define SIGNED int32_t
#define ABS_MASK 0x7fffffffu
#define INF_BITS 0x7f800000u
#define MANTISSA_BITS 23
#define FIRST_BIN (127 - 48)
#define SAFE_HIGH 0x1p57  /* BLOCK (2 max)^2 stays finite */
#define SAFE_LOW 0x1p-38  /* the square of the last digit of max is a normal number */
#define NAME(x) x##_fp32
#include "_native_block.h"

__attribute__((always_inline)) static inline void widen_one_bf16(uint16_t from, float *to)
{
    const uint32_t u = (uint32_t)from << 16;
    memcpy(to, &u, sizeof u);
}

__attribute__((always_inline)) static inline void widen_one_fp16(uint16_t from, float *to)
{
    const uint32_t h = from, sign = (h & 0x8000u) << 16, field = h & 0x7c00u, digits = h & 0x7fffu;
    const float small = (float)(int32_t)(h & 0x03ffu) * 0x1p-24f; /* denormal in fp16, normal in fp32 */
    uint32_t denormal;
    memcpy(&denormal, &small, sizeof denormal);
    const uint32_t normal = (digits << 13) + ((field == 0x7c00u ? 224u : 112u) << 23);
    const uint32_t u = sign | (field == 0 ? denormal : normal);
    memcpy(to, &u, sizeof u);
}

CLONES static void widen_bf16(const uint16_t *from, ptrdiff_t n, float *to)
{
    for (ptrdiff_t i = 0; i < n; i++)
        widen_one_bf16(from[i], to + i);
}

CLONES static void widen_fp16(const uint16_t *from, ptrdiff_t n, float *to)
{
    for (ptrdiff_t i = 0; i < n; i++)
        widen_one_fp16(from[i], to + i);
}

/* Ask for the bytes of the block to come. The hardware's own prefetcher starts anew at every page, and a block is a
 * page: without this a third of the bandwidth is lost. (Inline, for GCC takes a function that only prefetches to have
 * no effect, and drops its calls.) */
__attribute__((always_inline)) static inline void prefetch(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(at + i);
}

/* Add at most FEW elements, in double: so few can afford it, and small tensors come out as computed by hand. */
static void add_few(const float *x, ptrdiff_t n, Sums *total, int64_t *histogram)
{
    double wide[FEW];
    for (ptrdiff_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    add_block_fp64(wide, n, total, histogram);
}

/* Add n elements of the given kind at `data` to `total`. */
static void add_elements(const char *data, int kind, int64_t n, Sums *total, int64_t *histogram)
{
    float wide[BLOCK];
    for (int64_t start = 0; start < n; start += BLOCK) {
        const ptrdiff_t count = (ptrdiff_t)(n - start < BLOCK ? n - start : BLOCK);
        const char *at = data + start * ITEM_SIZE[kind];
        const int64_t ahead = n - start - count;
        prefetch(at + count * ITEM_SIZE[kind], (ahead < BLOCK ? ahead : BLOCK) * ITEM_SIZE[kind]);
        if (kind == FP64) {
            add_block_fp64((const double *)at, count, total, histogram);
            continue;
        }
        const float *x = (const float *)at;
        if (kind != FP32) {
            (kind == BF16 ? widen_bf16 : widen_fp16)((const uint16_t *)at, count, wide);
            x = wide;
        }
        if (count <= FEW) {
            add_few(x, count, total, histogram);
            continue;
        }
        add_block_fp32(x, count, total, histogram);
    }
}
