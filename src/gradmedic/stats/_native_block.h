/* Statistics of one block of at most BLOCK reals, for REAL = float or double.
 *
 * Included twice by _native_kernel.h with REAL, BITS (unsigned integer of the same size), SIGNED, ABS_MASK, INF_BITS,
 * MANTISSA_BITS, FIRST_BIN (exponent field of bin 0), SAFE_LOW, SAFE_HIGH and NAME(x) defined.
 *
 * Sums are taken of d = x - shift, with the mean of the first LEAD elements for a shift: summing x^2 loses everything
 * when |mean| >> std. The sum of |x| is shifted in the same way, for the rounding error of a sum grows with its size.
 * Where the first elements were not typical, so that a shift misses the mean by more than the standard deviation or is
 * more than twice the mean of |x|, the block is done again with better ones. The subtractions below then cost one bit
 * at most, whatever the data.
 */

/* `shifts`: those of x and of |x|, or NULL. */
CLONES static void NAME(block)(const REAL *x, ptrdiff_t n, const REAL *shifts, Sums *out)
{
    const ptrdiff_t lead = shifts ? 0 : n < LEAD ? n : LEAD;
    REAL shift = 0, abs_shift = 0;
    SIMD(reduction(+ : shift, abs_shift))
    for (ptrdiff_t i = 0; i < lead; i++) {
        shift += x[i];
        abs_shift += x[i] < 0 ? -x[i] : x[i];
    }
    shift = shifts ? shifts[0] : shift / (REAL)lead;
    abs_shift = shifts ? shifts[1] : abs_shift / (REAL)lead;

    /* Sums of few addends in REAL, their totals in double: a sum that meets equal addends is rounded one way each time.
     * One stream from front to back, for two streams at once confuse the hardware's prefetcher. */
    double d = 0, q = 0, a = 0;
    SIGNED high = 0, low = (SIGNED)ABS_MASK;
    for (ptrdiff_t start = 0; start < n; start += PART) {
        const ptrdiff_t stop = n - start < PART ? n - start : PART;
        const REAL *p = x + start;
        REAL d0 = 0, q0 = 0, a0 = 0;
        SIMD(reduction(+ : d0, q0, a0) reduction(max : high) reduction(min : low))
        for (ptrdiff_t i = 0; i < stop; i++) {
            SIGNED u;
            REAL s, e;
            memcpy(&u, p + i, sizeof u);
            u &= (SIGNED)ABS_MASK; /* the bits of |x|: ordered as integers like the values, infinity and NaN on top */
            memcpy(&s, &u, sizeof s);
            high = u > high ? u : high;
            low = u < low ? u : low;
            e = p[i] - shift;
            d0 += e;
            q0 += e * e;
            a0 += s - abs_shift;
        }
        d += (double)d0;
        q += (double)q0;
        a += (double)a0;
    }
    SIGNED zeros = high == 0 ? (SIGNED)n : 0;
    if (low == 0 && high > 0) { /* rarely: a second look is cheaper than counting in every block */
        for (ptrdiff_t i = 0; i < n; i++)
            zeros += x[i] == 0;
    }
    REAL high_value, low_value;
    memcpy(&high_value, &high, sizeof high);
    memcpy(&low_value, &low, sizeof low);
    const double count = (double)n, delta = d / count;
    const double scatter = q - count * delta * delta;
    memset(out, 0, sizeof *out);
    out->finite = n;
    out->zeros = (int64_t)zeros;
    out->nonfinite = high >= (SIGNED)INF_BITS;
    out->max_abs = (double)high_value;
    out->min_abs = (double)low_value;
    out->mean = (double)shift + delta;
    out->mean_abs = (double)abs_shift + a / count;
    out->scatter = scatter > 0 ? scatter : 0;
    out->missed = count * delta * delta > out->scatter || (double)abs_shift > 2 * out->mean_abs;
}

/* The same, with shifts that fit: none where few elements outweigh all others, for then the means fit none of them. */
static void NAME(measure_block)(const REAL *x, ptrdiff_t n, Sums *out)
{
    NAME(block)(x, n, NULL, out);
    if (!out->nonfinite && out->missed) {
        const int uneven = out->scatter > (double)n * out->mean_abs * out->mean_abs;
        const REAL shifts[2] = {uneven ? 0 : (REAL)out->mean, uneven ? 0 : (REAL)out->mean_abs};
        NAME(block)(x, n, shifts, out);
    }
}

/* Copy the finite elements of x to `to`, count the others; returns how many were copied. */
static ptrdiff_t NAME(compact)(const REAL *x, ptrdiff_t n, REAL *to, Sums *total)
{
    ptrdiff_t kept = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        BITS u;
        memcpy(&u, x + i, sizeof u);
        u &= ABS_MASK;
        total->nan += u > INF_BITS;
        total->inf += u == INF_BITS;
        to[kept] = x[i];
        kept += u < INF_BITS;
    }
    return kept;
}

/* Add the elements of x, all finite, to the histogram. */
CLONES static void NAME(bin)(const REAL *x, ptrdiff_t n, int64_t zeros, int64_t *histogram)
{
    unsigned char bins[BLOCK];
    for (ptrdiff_t i = 0; i < n; i++) {
        SIGNED u;
        memcpy(&u, x + i, sizeof u);
        u = (SIGNED)(((BITS)u & ABS_MASK) >> MANTISSA_BITS) - FIRST_BIN;
        u = u < 0 ? 0 : u;
        bins[i] = (unsigned char)(u > BINS - 1 ? BINS - 1 : u);
    }
    count_bins(bins, n, zeros, histogram);
}

/* Add the block x[0..n) to `total`, redoing it where it holds non-finite values or values whose squares do not fit. */
static void NAME(add_block)(const REAL *x, ptrdiff_t n, Sums *total, int64_t *histogram)
{
    REAL finite[BLOCK];
    Sums sums;
    NAME(measure_block)(x, n, &sums);
    if (sums.nonfinite) {
        n = NAME(compact)(x, n, finite, total);
        if (n == 0)
            return;
        x = finite;
        NAME(measure_block)(x, n, &sums);
    }
    if (histogram && sums.max_abs > 0)
        NAME(bin)(x, n, sums.zeros, histogram);
    if (sums.max_abs > SAFE_HIGH || (sums.max_abs < SAFE_LOW && sums.max_abs > 0)) {
        REAL scaled[BLOCK];
        Sums redone;
        int exponent;
        frexp(sums.max_abs, &exponent);
        /* In two steps: 2^-exponent itself need not be a normal number. */
        const double factor = ldexp(1.0, -exponent / 2), rest = ldexp(1.0, -exponent - -exponent / 2);
        for (ptrdiff_t i = 0; i < n; i++)
            scaled[i] = (REAL)((double)x[i] * factor * rest);
        NAME(measure_block)(scaled, n, &redone);
        sums.mean = ldexp(redone.mean, exponent);
        sums.mean_abs = ldexp(redone.mean_abs, exponent);
        sums.scatter = sizeof(REAL) == sizeof(double) ? redone.scatter : ldexp(redone.scatter, 2 * exponent);
        sums.exponent = sizeof(REAL) == sizeof(double) ? exponent : 0;
    }
    merge(total, &sums);
}
