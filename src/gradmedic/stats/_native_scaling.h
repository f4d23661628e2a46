/* Multiplying tensors in place. Included after _native_kernel.h. */

#define SCALE(NAME, REAL)                                                                                              \
    CLONES static void NAME(REAL *x, ptrdiff_t n, REAL factor)                                                         \
    {                                                                                                                  \
        SIMD()                                                                                                         \
        for (ptrdiff_t i = 0; i < n; i++)                                                                              \
            x[i] *= factor;                                                                                            \
    }

SCALE(scale_block_fp32, float)
SCALE(scale_block_fp64, double)

/* Multiply n elements of a kind for which `scalable` holds. */
static void scale_elements(char *data, int kind, int64_t n, double factor)
{
    for (int64_t start = 0; start < n; start += BLOCK) {
        const ptrdiff_t count = (ptrdiff_t)(n - start < BLOCK ? n - start : BLOCK);
        char *at = data + start * ITEM_SIZE[kind];
        const int64_t ahead = n - start - count;
        prefetch(at + count * ITEM_SIZE[kind], (ahead < BLOCK ? ahead : BLOCK) * ITEM_SIZE[kind]);
        if (kind == FP64)
            scale_block_fp64((double *)at, count, factor);
        else
            scale_block_fp32((float *)at, count, (float)factor);
    }
}

/* Narrow types are left to torch, which rounds the product to them. */
static int scalable(int kind)
{
    return kind == FP32 || kind == FP64;
}
