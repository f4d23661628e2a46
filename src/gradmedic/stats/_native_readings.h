/* What a sampled step reads of activations and of attention, fp32. Included after _native_kernel.h. */

/* Add to `counts` where elements of a row of n lie above one bound, or reach another one, or are down to a third. A bound
 * that is NaN is none. */
CLONES static void count_row(const float *x, int64_t n, float above, float high, float low, int32_t *counts)
{
    SIMD()
    for (int64_t i = 0; i < n; i++)
        counts[i] += (x[i] > above) | (x[i] >= high) | (x[i] <= low);
}

CLONES static int64_t count_run(const float *x, int64_t n, float above, float high, float low)
{
    int64_t count = 0;
    SIMD(reduction(+ : count))
    for (int64_t i = 0; i < n; i++)
        count += (x[i] > above) | (x[i] >= high) | (x[i] <= low);
    return count;
}

/* Products of a query with n keys that lie `apart`. */
CLONES static void multiply_row(const float *q, const float *k, int64_t n, int64_t apart, int64_t depth, float scale,
                                float *out)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4, k += 4 * apart) {
        float one = 0, two = 0, three = 0, four = 0;
        SIMD(reduction(+ : one, two, three, four))
        for (int64_t j = 0; j < depth; j++) {
            one += q[j] * k[j];
            two += q[j] * k[apart + j];
            three += q[j] * k[2 * apart + j];
            four += q[j] * k[3 * apart + j];
        }
        out[i] = scale * one;
        out[i + 1] = scale * two;
        out[i + 2] = scale * three;
        out[i + 3] = scale * four;
    }
    for (; i < n; i++, k += apart) {
        float sum = 0;
        SIMD(reduction(+ : sum))
        for (int64_t j = 0; j < depth; j++)
            sum += q[j] * k[j];
        out[i] = scale * sum;
    }
}

/* Attention of some query rows on all keys. Strides are in elements; those of the innermost dimension are 1. */
typedef struct {
    int64_t query, key; /* addresses */
    int64_t samples, heads, sharing, rows, keys, depth; /* so many heads share one of the keys */
    int64_t query_sample, query_head, query_row, key_sample, key_head, key_row;
    int64_t step, first, causal; /* rows lie so far apart; from the first on entropy is taken; keys behind are hidden */
} Attention;

/* Replace logits by exp(x - highest), and return the sum of these, and of them times x - highest. What is below e^-87 of
 * the largest counts as that. The polynomial is that of Cephes (Moshier, expf): right to 2 units in the last place. */
CLONES static void exponentiate(float *x, int64_t n, float highest, float *total, float *weighted)
{
    float sum = 0, products = 0;
    SIMD(reduction(+ : sum, products))
    for (int64_t i = 0; i < n; i++) {
        const float lower = x[i] - highest > -87.0f ? x[i] - highest : -87.0f;
        const float whole = (lower * 1.44269504f + 12582912.0f) - 12582912.0f; /* adding 1.5 * 2^23 rounds */
        const float rest = lower - whole * 0.693359375f + whole * 2.12194440e-4f;
        float value = 1.9875691500e-4f;
        value = value * rest + 1.3981999507e-3f;
        value = value * rest + 8.3334519073e-3f;
        value = value * rest + 4.1665795894e-2f;
        value = value * rest + 1.6666665459e-1f;
        value = value * rest + 5.0000001201e-1f;
        value = value * rest * rest + rest + 1.0f;
        union {
            int32_t bits;
            float number;
        } power = {.bits = ((int32_t)whole + 127) << 23};
        x[i] = value * power.number;
        sum += x[i];
        products += x[i] * lower;
    }
    *total = sum;
    *weighted = products;
}

enum { MAX_FETCHED = 1 << 15 }; /* elements: half of a small second-level cache */

/* Entropy of one row of logits, in nats. Turns the logits into weights: zeros where softmax has no numbers. */
static double row_entropy(float *x, int64_t n, float highest)
{
    float total, weighted;
    if (!isfinite(highest)) {
        memset(x, 0, (size_t)n * sizeof *x);
        return 0;
    }
    exponentiate(x, n, highest, &total, &weighted);
    const double entropy = log((double)total) - (double)weighted / total;
    for (int64_t i = 0; i < n; i++)
        x[i] /= total;
    return entropy > 0 ? entropy : 0;
}

/* Have the rows of the next head brought up meanwhile: they lie far apart, each on lines of its own. */
static void fetch(const float *x, int64_t n, int64_t apart, int64_t depth)
{
    for (int64_t i = 0; i < n && n * depth <= MAX_FETCHED; i++)
        for (int64_t j = 0; j < depth; j += 16)
            __builtin_prefetch(x + i * apart + j);
}

/* Write for each head of each sample: mean entropy of the rows from `first` on, largest logit (NaN where there is one),
 * and the mean weight of later keys, over the rows that have any. `x` has room for a row. */
static void attend(const Attention *a, float scale, float *x, double *entropy, double *largest, double *ahead)
{
    for (int64_t at = 0; at < a->samples * a->heads; at++) {
        const int64_t sample = at / a->heads, head = at % a->heads;
        const float *q = (const float *)(uintptr_t)a->query + sample * a->query_sample + head * a->query_head;
        const float *k = (const float *)(uintptr_t)a->key + sample * a->key_sample + head / a->sharing * a->key_head;
        if (at % a->heads + a->sharing < a->heads && at % a->sharing == 0)
            fetch(k + a->key_head, a->keys, a->key_row, a->depth);
        if (at % a->heads + 1 < a->heads)
            fetch(q + a->query_head, a->rows, a->query_row, a->depth);
        double sum = 0, later = 0, top = -INFINITY;
        int64_t able = 0;
        for (int64_t row = 0; row < a->rows; row++) {
            const int64_t place = row * a->step;
            const int64_t seen = a->causal && place + 1 < a->keys ? place + 1 : a->keys;
            float highest = -INFINITY, bad = 0;
            multiply_row(q + row * a->query_row, k, seen, a->key_row, a->depth, scale, x);
            for (int64_t i = 0; i < seen; i++) {
                highest = x[i] > highest ? x[i] : highest;
                bad = x[i] != x[i] ? x[i] : bad;
            }
            top = bad != 0 || top != top ? NAN : highest > top ? highest : top;
            const double nats = a->causal && row < a->first ? 0 : row_entropy(x, seen, bad != 0 ? bad : highest);
            sum += row < a->first ? 0 : nats;
            able += place < a->keys - 1;
            for (int64_t i = place + 1; i < seen; i++)
                later += x[i];
        }
        entropy[at] = sum / (double)(a->rows - a->first);
        largest[at] = top;
        ahead[at] = later / (double)(able ? able : 1);
    }
}

/* Write sum and sum of squares, in double, of each unit of [samples, units, rows, depth] with these strides in elements;
 * that of the innermost dimension is 1. */
CLONES static void sum_units(const float *x, const int64_t *sizes, const int64_t *strides, double *sums, double *squares)
{
    for (int64_t unit = 0; unit < sizes[1]; unit++) {
        double sum = 0, square = 0;
        for (int64_t sample = 0; sample < sizes[0]; sample++)
            for (int64_t row = 0; row < sizes[2]; row++) {
                const float *at = x + sample * strides[0] + unit * strides[1] + row * strides[2];
                SIMD(reduction(+ : sum, square))
                for (int64_t i = 0; i < sizes[3]; i++) {
                    sum += (double)at[i];
                    square += (double)at[i] * (double)at[i];
                }
            }
        sums[unit] = sum;
        squares[unit] = square;
    }
}
