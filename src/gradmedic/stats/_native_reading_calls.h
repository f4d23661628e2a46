/* Readings of modules as Python calls them. Included after _native_readings.h. */

/* count(address, samples, apart, rows, units, run, above, high, low, out): int64 [units] at `out`. */
static PyObject *count(PyObject *self, PyObject *args)
{
    unsigned long long address, out_address;
    long long samples, apart, rows, units, run;
    double above, high, low;
    (void)self;
    if (!PyArg_ParseTuple(args, "KLLLLLdddK", &address, &samples, &apart, &rows, &units, &run, &above, &high, &low,
                          &out_address))
        return NULL;
    int64_t *out = (int64_t *)(uintptr_t)out_address;
    int32_t *counts = calloc((size_t)units + 1, sizeof *counts);
    if (!counts)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < samples * rows; i++) {
        const float *x = (const float *)(uintptr_t)address + i / rows * apart + i % rows * units * run;
        if (run == 1)
            count_row(x, units, (float)above, (float)high, (float)low, counts);
        else
            for (int64_t unit = 0; unit < units; unit++)
                counts[unit] += (int32_t)count_run(x + unit * run, run, (float)above, (float)high, (float)low);
    }
    for (int64_t unit = 0; unit < units; unit++)
        out[unit] = counts[unit];
    Py_END_ALLOW_THREADS
    free(counts);
    Py_RETURN_NONE;
}

/* attention(geometry, scale, out): `geometry` is the address of the fields of Attention. */
static PyObject *attention(PyObject *self, PyObject *args)
{
    unsigned long long geometry_address, out_address;
    double scale_by;
    (void)self;
    if (!PyArg_ParseTuple(args, "KdK", &geometry_address, &scale_by, &out_address))
        return NULL;
    const Attention *geometry = (const Attention *)(uintptr_t)geometry_address;
    const int64_t n = geometry->samples * geometry->heads;
    double *out = (double *)(uintptr_t)out_address;
    float *row = calloc((size_t)geometry->keys + 1, sizeof *row);
    if (!row)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    attend(geometry, (float)scale_by, row, out, out + n, out + 2 * n);
    Py_END_ALLOW_THREADS
    free(row);
    Py_RETURN_NONE;
}

/* sums(address, geometry, out): `geometry` is the address of four sizes and three strides. */
static PyObject *sums(PyObject *self, PyObject *args)
{
    unsigned long long address, geometry_address, out_address;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKK", &address, &geometry_address, &out_address))
        return NULL;
    const int64_t *geometry = (const int64_t *)(uintptr_t)geometry_address;
    double *out = (double *)(uintptr_t)out_address;
    Py_BEGIN_ALLOW_THREADS
    sum_units((const float *)(uintptr_t)address, geometry, geometry + 4, out, out + geometry[1]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
