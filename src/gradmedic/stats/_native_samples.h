/* Sampled coordinates of tensors, and what changed between two readings of them. Included after _native_kernel.h. */

/* Which elements of one tensor are read: `count` runs of `run` neighbours, `step` apart, from `offset`; they go to `out`
 * + `start`. */
typedef struct {
    int64_t offset, step, count, run, start;
} Stride;

/* Runs that are asked for ahead of their use: each lies on a cache line, mostly on a page, of its own. */
enum { AHEAD = 24 };

#define GATHER(TO, FROM, READ)                                                                                         \
    do {                                                                                                               \
        const FROM *x = (const FROM *)data + s->offset;                                                                \
        TO *to = (TO *)out + s->start;                                                                                 \
        for (int64_t i = 0; i < s->count; i++) {                                                                       \
            __builtin_prefetch(x + (i + AHEAD < s->count ? i + AHEAD : i) * s->step);                                  \
            for (int64_t j = 0; j < s->run; j++)                                                                       \
                to[i * s->run + j] = (TO)READ(x[i * s->step + j]);                                                     \
        }                                                                                                              \
    } while (0)

static inline float from_bf16(uint16_t value)
{
    float wide;
    widen_one_bf16(value, &wide);
    return wide;
}

static inline float from_fp16(uint16_t value)
{
    float wide;
    widen_one_fp16(value, &wide);
    return wide;
}

/* Write the coordinates of one tensor as floats, or as doubles where `wide`. */
static void gather_one(const char *data, int kind, const Stride *s, void *out, int wide)
{
    if (kind == FP32 && wide)
        GATHER(double, float, );
    else if (kind == FP32)
        GATHER(float, float, );
    else if (kind == FP64 && wide)
        GATHER(double, double, );
    else if (kind == FP64)
        GATHER(float, double, );
    else if (kind == BF16 && wide)
        GATHER(double, uint16_t, from_bf16);
    else if (kind == BF16)
        GATHER(float, uint16_t, from_bf16);
    else if (wide)
        GATHER(double, uint16_t, from_fp16);
    else
        GATHER(float, uint16_t, from_fp16);
}

/* Sums over one tensor's coordinates in two readings. */
enum { CHANGE, SAME, DOT, SQUARES, OTHER_SQUARES, SEGMENT_SUMS };

#define COMPARE(NAME, REAL)                                                                                            \
    CLONES static void NAME(const REAL *one, const REAL *other, int64_t n, double *sums)                               \
    {                                                                                                                  \
        double change = 0, same = 0, dot = 0, squares = 0, others = 0;                                                 \
        SIMD(reduction(+ : change, same, dot, squares, others))                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const double a = (double)one[i], b = (double)other[i];                                                     \
            change += (b - a) * (b - a);                                                                               \
            same += a == b ? 1.0 : 0.0;                                                                                \
            dot += a * b;                                                                                              \
            squares += a * a;                                                                                          \
            others += b * b;                                                                                           \
        }                                                                                                              \
        sums[CHANGE] = change;                                                                                         \
        sums[SAME] = same;                                                                                             \
        sums[DOT] = dot;                                                                                               \
        sums[SQUARES] = squares;                                                                                       \
        sums[OTHER_SQUARES] = others;                                                                                  \
    }

COMPARE(compare_fp32, float)
COMPARE(compare_fp64, double)
