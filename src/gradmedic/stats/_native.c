/* Statistics of many dense CPU tensors in one pass over memory, on several threads, without the GIL.
 *
 * Python's limited API (3.10) and raw addresses only: one binary serves every later Python and every torch. The work is
 * cut at boundaries that depend on the sizes alone, and partial results are joined in order, so that the result depends
 * neither on the number of threads nor on their timing.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "_native_kernel.h"
#include "_native_readings.h"
#include "_native_samples.h"
#include "_native_scaling.h"

#include "_native_describe.h"
#include "_native_job.h"
#include "_native_reading_calls.h"

/* Run the job over tensors that have been described; 0, or -1 without memory. Called with the GIL. */
static int execute(Job *job, int n_threads)
{
    job->n_items = plan(job, NULL);
    job->items = calloc((size_t)job->n_items + 1, sizeof *job->items);
    if (job->histogram)
        job->item_histograms = calloc((size_t)job->n_items + 1, BINS * sizeof *job->item_histograms);
    const int ready = job->items && (!job->histogram || job->item_histograms);
    if (ready) {
        plan(job, job->items);
        Py_BEGIN_ALLOW_THREADS
        run(job, n_threads);
        Py_END_ALLOW_THREADS
    }
    free(job->items);
    free(job->item_histograms);
    return ready ? 0 : -1;
}

/* List of the positions that were skipped. */
static PyObject *skipped(const Job *job)
{
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list && i < job->n_tensors; i++) {
        if (job->kinds[i] != SKIP)
            continue;
        PyObject *at = PyLong_FromLongLong(i);
        if (!at || PyList_Append(list, at) != 0)
            Py_CLEAR(list);
        Py_XDECREF(at);
    }
    return list;
}

/* Describe the tensors, run the job over those that can be read in place and are `wanted` (NULL: all), and return the
 * positions of all others. */
static PyObject *run_over(PyObject *tensors, PyObject *const *ask, Job *job, int (*wanted)(int kind), int n_threads)
{
    const Py_ssize_t n = PyList_Size(tensors);
    PyObject *result = NULL;
    uintptr_t *addresses = calloc((size_t)n + 1, sizeof *addresses);
    int64_t *numels = calloc((size_t)n + 1, sizeof *numels);
    unsigned char *kinds = calloc((size_t)n + 1, sizeof *kinds);
    job->addresses = addresses;
    job->numels = numels;
    job->kinds = kinds;
    job->n_tensors = n;
    if (!addresses || !numels || !kinds) {
        PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        kinds[i] = describe(PyList_GetItem(tensors, i), ask, addresses + i, numels + i);
        PyErr_Clear(); /* a tensor that cannot answer is skipped */
        if (wanted && kinds[i] != SKIP && !wanted(kinds[i]))
            kinds[i] = SKIP;
    }
    if (execute(job, job->factors && n_threads > 1 && overlapping(job) ? 1 : n_threads) != 0)
        PyErr_NoMemory();
    else
        result = skipped(job);
end:
    free(addresses);
    free(numels);
    free(kinds);
    return result;
}

static PyObject *measure(PyObject *self, PyObject *args)
{
    PyObject *tensors, *questions, *ask[QUESTIONS];
    unsigned long long moments, counts, histogram, team;
    int n_threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOKKKiK", &tensors, &questions, &moments, &counts, &histogram, &n_threads, &team) ||
        unpack(tensors, questions, ask) != 0)
        return NULL;
    Job job = {
        .moments = (double *)(uintptr_t)moments,
        .counts = (int64_t *)(uintptr_t)counts,
        .histogram = (int64_t *)(uintptr_t)histogram,
        .team = (Team)(uintptr_t)team,
    };
    return run_over(tensors, ask, &job, NULL, n_threads);
}

static PyObject *multiply(PyObject *self, PyObject *args)
{
    PyObject *tensors, *questions, *ask[QUESTIONS];
    unsigned long long factors, team;
    int n_threads;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOKiK", &tensors, &questions, &factors, &n_threads, &team) ||
        unpack(tensors, questions, ask) != 0)
        return NULL;
    Job job = {.factors = (const double *)(uintptr_t)factors, .team = (Team)(uintptr_t)team};
    return run_over(tensors, ask, &job, scalable, n_threads);
}

/* gather(tensors, questions, geometry, out, wide): `geometry` is int64 [6, N]: number of elements, then Stride. */
enum { ELEMENTS_ROW, OFFSET_ROW, STEP_ROW, COUNT_ROW, RUN_ROW, START_ROW };
static PyObject *gather(PyObject *self, PyObject *args)
{
    PyObject *tensors, *questions, *ask[QUESTIONS];
    unsigned long long geometry_address, out_address;
    int wide;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOKKi", &tensors, &questions, &geometry_address, &out_address, &wide) ||
        unpack(tensors, questions, ask) != 0)
        return NULL;
    const Py_ssize_t n = PyList_Size(tensors);
    const int64_t *geometry = (const int64_t *)(uintptr_t)geometry_address;
    void *out = (void *)(uintptr_t)out_address;
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left && i < n; i++) {
        const int64_t *at_i = geometry + i;
        const Stride stride = {at_i[OFFSET_ROW * n], at_i[STEP_ROW * n], at_i[COUNT_ROW * n], at_i[RUN_ROW * n],
                               at_i[START_ROW * n]};
        uintptr_t address = 0;
        int64_t numel = 0;
        const unsigned char kind = describe(PyList_GetItem(tensors, i), ask, &address, &numel);
        PyErr_Clear(); /* a tensor that cannot answer is skipped */
        if (kind != SKIP && numel == geometry[i]) {
            gather_one((const char *)address, kind, &stride, out, wide);
            continue;
        }
        PyObject *at = PyLong_FromSsize_t(i);
        if (!at || PyList_Append(left, at) != 0)
            Py_CLEAR(left);
        Py_XDECREF(at);
    }
    return left;
}

/* compare(one, other, wide, geometry, n, out): writes float64 [5, N] at `out`, from two readings of `gather`. */
static PyObject *compare(PyObject *self, PyObject *args)
{
    unsigned long long one, other, geometry_address, out_address;
    int wide;
    long long n;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKiKLK", &one, &other, &wide, &geometry_address, &n, &out_address))
        return NULL;
    const int64_t *geometry = (const int64_t *)(uintptr_t)geometry_address;
    double *out = (double *)(uintptr_t)out_address, sums[SEGMENT_SUMS];
    for (int64_t i = 0; i < n; i++) {
        const int64_t count = geometry[COUNT_ROW * n + i] * geometry[RUN_ROW * n + i];
        const int64_t start = geometry[START_ROW * n + i];
        if (wide)
            compare_fp64((const double *)(uintptr_t)one + start, (const double *)(uintptr_t)other + start, count, sums);
        else
            compare_fp32((const float *)(uintptr_t)one + start, (const float *)(uintptr_t)other + start, count, sums);
        for (int row = 0; row < SEGMENT_SUMS; row++)
            out[row * n + i] = sums[row];
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"measure", measure, METH_VARARGS,
     "measure(tensors, questions, moments, counts, histogram, n_threads, team) -> list of skipped positions\n\n"
     "Writes column-wise into float64 [6, N] and int64 [4, N] at the addresses `moments` and `counts`, and adds to\n"
     "int64 [N, 64] at `histogram` where that is not 0. Rows of skipped tensors are not touched. `team` is the\n"
     "address of a GOMP_parallel whose threads work, or 0 for threads of our own."},
    {"multiply", multiply, METH_VARARGS,
     "multiply(tensors, questions, factors, n_threads, team) -> list of skipped positions\n\n"
     "Multiplies each tensor of float32 or float64 in place by its factor, float64 [N] at the address `factors`."},
    {"gather", gather, METH_VARARGS,
     "gather(tensors, questions, geometry, out, wide) -> list of skipped positions\n\n"
     "Writes sampled coordinates as float32, or as float64 where `wide`, at the address `out`. `geometry` is the\n"
     "address of int64 [6, N]: elements of the tensor, offset, step, count and length of runs, and place in the\n"
     "output. A tensor with another number of elements than expected is skipped."},
    {"compare", compare, METH_VARARGS,
     "compare(one, other, wide, geometry, n, out)\n\n"
     "Writes float64 [5, N] at `out`, for each tensor's coordinates in two readings: sum of squared differences,\n"
     "number of equal ones, dot product, sum of squares of the one and of the other."},
    {"count", count, METH_VARARGS,
     "count(address, samples, apart, rows, units, run, above, high, low, out)\n\n"
     "Counts, for each unit of float32 [samples, rows, units, run] whose samples are `apart` elements from each other,\n"
     "elements > above, >= high or <= low; a bound that is NaN is none. Writes int64 [units] at `out`."},
    {"attention", attention, METH_VARARGS,
     "attention(geometry, scale, out)\n\n"
     "Writes float64 [3, samples * heads] at `out`: entropy, largest logit and weight on later keys of float32 queries\n"
     "and keys, whose addresses, sizes and strides are int64 at `geometry`, in the order of the struct Attention."},
    {"sums", sums, METH_VARARGS,
     "sums(address, geometry, out)\n\n"
     "Writes float64 [2, units] at `out`: sum and sum of squares of each unit of float32 [samples, units, rows, depth],\n"
     "whose sizes and first three strides are int64 [7] at `geometry`."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "One-pass statistics of CPU tensors.",
    .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
