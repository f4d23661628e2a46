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

CLONES static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    SIMD(reduction(+ : sum))
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Attention of some query rows on all keys. Strides are in elements; those of the innermost dimension are 1. */
typedef struct {
    int64_t query, key; /* addresses */
    int64_t samples, heads, sharing, rows, keys, depth; /* so many heads share one of the keys */
    int64_t query_sample, query_head, query_row, key_sample, key_head, key_row;
    int64_t step, first, causal; /* rows lie so far apart; from the first on entropy is taken; keys behind are hidden */
} Attention;

/* Entropy of one row of logits, in nats; 0 where softmax has no numbers. Turns the logits into weights. */
static double row_entropy(float *x, int64_t n, float highest)
{
    double total = 0, weighted = 0;
    for (int64_t i = 0; i < n; i++) {
        const float lower = x[i] - highest;
        x[i] = expf(lower);
        total += x[i];
        weighted += x[i] > 0 ? (double)x[i] * lower : 0;
    }
    const double entropy = log(total) - weighted / total;
    for (int64_t i = 0; i < n; i++)
        x[i] = entropy == entropy ? (float)(x[i] / total) : 0;
    return entropy == entropy ? entropy : 0;
}

/* Write for each head of each sample: mean entropy of the rows from `first` on, largest logit (NaN where there is one),
 * and the mean weight of later keys, over the rows that have any. `x` has room for a row. */
static void attend(const Attention *a, float scale, float *x, double *entropy, double *largest, double *ahead)
{
    for (int64_t at = 0; at < a->samples * a->heads; at++) {
        const int64_t sample = at / a->heads, head = at % a->heads;
        const float *q = (const float *)(uintptr_t)a->query + sample * a->query_sample + head * a->query_head;
        const float *k = (const float *)(uintptr_t)a->key + sample * a->key_sample + head / a->sharing * a->key_head;
        double sum = 0, later = 0, top = -INFINITY;
        int64_t able = 0;
        for (int64_t row = 0; row < a->rows; row++) {
            const int64_t place = row * a->step;
            const int64_t seen = a->causal && place + 1 < a->keys ? place + 1 : a->keys;
            float highest = -INFINITY, bad = 0;
            for (int64_t i = 0; i < seen; i++) {
                x[i] = scale * dot(q + row * a->query_row, k + i * a->key_row, a->depth);
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
