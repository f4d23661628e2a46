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

/* Elements of an item of work, and of the work that is worth another thread: on a busy machine, a thread may have to
 * wait for its first turn, and the call for the thread. */
enum { CHUNK = 1 << 17, PER_THREAD = 1 << 21, MAX_THREADS = 64, TEAM_ITEMS = 4 };
/* Rows of `moments` and of `counts`, as types.MOMENT_COLUMNS and types.COUNT_COLUMNS. */
enum { NORM, MAX_ABS, MIN_ABS, MEAN, STD, MEAN_ABS };
enum { NUMEL, ZEROS, NANS, INFS };

/* GOMP_parallel of the OpenMP runtime that torch computes with: calls `work` with `data` on up to `threads` threads,
 * 0 being its default. */
typedef void (*Team)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

/* One piece of work: elements [start, start + CHUNK) of one tensor, or all of the small tensors [tensor, last). */
typedef struct {
    int64_t tensor, last, start;
    Sums sums;
} Item;

typedef struct {
    const uintptr_t *addresses;
    const int64_t *numels;
    const unsigned char *kinds;
    int64_t n_tensors, n_items, next; /* next: item that no thread has taken yet */
    double *moments;
    int64_t *counts, *histogram, *item_histograms;
    const double *factors; /* of each tensor, to multiply by; NULL: measure */
    Item *items;
    Team team; /* NULL: threads of our own */
} Job;

/* Write the row of one tensor from its sums. */
static void publish(const Job *job, int64_t tensor, const Sums *sums)
{
    const int64_t stride = job->n_tensors;
    double *moments = job->moments + tensor;
    int64_t *counts = job->counts + tensor;
    const double n = (double)sums->finite, mean = scale(sums->mean, -sums->exponent);
    moments[NORM * stride] = scale(sqrt(sums->scatter + n * mean * mean), sums->exponent);
    moments[MAX_ABS * stride] = sums->max_abs;
    moments[MIN_ABS * stride] = sums->min_abs;
    moments[MEAN * stride] = sums->mean;
    moments[STD * stride] = n > 0 ? scale(sqrt(sums->scatter / n), sums->exponent) : 0;
    moments[MEAN_ABS * stride] = sums->mean_abs;
    counts[NUMEL * stride] = job->numels[tensor];
    counts[ZEROS * stride] = sums->zeros;
    counts[NANS * stride] = sums->nan;
    counts[INFS * stride] = sums->inf;
}

static void scale_item(const Job *job, const Item *item)
{
    const int64_t last = item->last ? item->last : item->tensor + 1;
    for (int64_t i = item->tensor; i < last; i++) {
        const int64_t left = job->kinds[i] == SKIP || job->factors[i] == 1.0 ? 0 : job->numels[i] - item->start;
        if (left > 0)
            scale_elements((char *)job->addresses[i] + item->start * ITEM_SIZE[job->kinds[i]], job->kinds[i],
                           left < CHUNK ? left : CHUNK, job->factors[i]);
    }
}

static void do_item(const Job *job, Item *item, int64_t *item_histogram)
{
    if (item->last == 0) {
        const int64_t left = job->numels[item->tensor] - item->start;
        const int kind = job->kinds[item->tensor];
        add_elements((const char *)job->addresses[item->tensor] + item->start * ITEM_SIZE[kind], kind,
                     left < CHUNK ? left : CHUNK, &item->sums, item_histogram);
        return;
    }
    for (int64_t i = item->tensor; i < item->last; i++) {
        Sums sums = {0};
        if (job->kinds[i] == SKIP)
            continue;
        if (i + 1 < item->last && job->kinds[i + 1] != SKIP)
            prefetch((const char *)job->addresses[i + 1],
                     (job->numels[i + 1] < BLOCK ? job->numels[i + 1] : BLOCK) * ITEM_SIZE[job->kinds[i + 1]]);
        add_elements((const char *)job->addresses[i], job->kinds[i], job->numels[i], &sums,
                     job->histogram ? job->histogram + i * BINS : NULL);
        publish(job, i, &sums);
    }
}

static void *work(void *argument)
{
    Job *job = argument;
    for (;;) {
        const int64_t i = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (i >= job->n_items)
            return NULL;
        if (job->factors) { /* from the end: what was measured last is in the caches still */
            scale_item(job, job->items + job->n_items - 1 - i);
            continue;
        }
        do_item(job, job->items + i, job->histogram ? job->item_histograms + i * BINS : NULL);
    }
}

/* Cut the work into items; returns their number, and writes them where `items` is not NULL. */
static int64_t plan(const Job *job, Item *items)
{
    int64_t count = 0, first = 0, gathered = 0;
    for (int64_t i = 0; i <= job->n_tensors; i++) {
        const int64_t n = i == job->n_tensors || job->kinds[i] == SKIP ? 0 : job->numels[i];
        const int large = n > CHUNK;
        if ((large || i == job->n_tensors || gathered + n > CHUNK) && i > first) {
            if (items)
                items[count] = (Item){.tensor = first, .last = i};
            count++;
            first = i;
            gathered = 0;
        }
        gathered += n + BLOCK / 16; /* a tensor costs something, however small */
        for (int64_t start = 0; large && start < n; start += CHUNK, count++)
            if (items)
                items[count] = (Item){.tensor = i, .start = start};
        if (large) {
            first = i + 1;
            gathered = 0;
        }
    }
    return count;
}

/* Join the items of each large tensor, in order. */
static void finish(const Job *job)
{
    for (int64_t i = 0; i < job->n_items;) {
        const Item *head = job->items + i;
        const int64_t tensor = head->tensor;
        Sums total = {0};
        if (head->last != 0) {
            i++;
            continue;
        }
        for (; i < job->n_items && job->items[i].last == 0 && job->items[i].tensor == tensor; i++) {
            merge(&total, &job->items[i].sums);
            for (int bin = 0; job->histogram && bin < BINS; bin++)
                job->histogram[tensor * BINS + bin] += job->item_histograms[i * BINS + bin];
        }
        publish(job, tensor, &total);
    }
}

static void work_in_team(void *job)
{
    (void)work(job);
}

/* Threads of our own live for one call: nothing to wait for in a forked child, nothing to shut down. */
static void run_on_own_threads(Job *job, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    int started = 0;
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    if (n_threads > job->n_items * CHUNK / PER_THREAD)
        n_threads = (int)(job->n_items * CHUNK / PER_THREAD);
    while (started + 1 < n_threads && started + 1 < job->n_items) {
        if (pthread_create(&threads[started], NULL, work, job) != 0)
            break;
        started++;
    }
    work(job);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* Run on torch's threads where there is a team: after a backward pass they spin for some milliseconds in wait for more,
 * and a thread of our own would find no core that is free. Whoever comes takes the next item, so that any number of
 * threads gives the same result. 0 asks for as many as torch's own loops have: another number would end some of them. */
static void run(Job *job, int n_threads)
{
    if (job->team && n_threads > 1 && job->n_items >= TEAM_ITEMS)
        job->team(work_in_team, job, 0, 0);
    else
        run_on_own_threads(job, job->team ? 1 : n_threads);
    if (!job->factors)
        finish(job);
}

/* What Python hands over once and for all: how to ask a tensor about itself. */
enum { PLAIN_TYPES, DTYPES, STRIDED, DTYPE, IS_CPU, LAYOUT, IS_CONTIGUOUS, IS_NEG, NUMEL_OF, DATA_PTR, QUESTIONS };

/* Position of `wanted` in the tuple, by identity; -1 where it is not in it. */
static int position(PyObject *tuple, const PyObject *wanted)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++)
        if (PyTuple_GetItem(tuple, i) == wanted)
            return (int)i;
    return -1;
}

/* Whether the attribute is that very object. */
static int attribute_is(PyObject *tensor, PyObject *name, const PyObject *expected)
{
    PyObject *value = PyObject_GetAttr(tensor, name);
    Py_XDECREF(value); /* dtypes, layouts and booleans are immortal: comparing the address is safe */
    return value == expected;
}

static int answer_is(PyObject *tensor, PyObject *method, const PyObject *expected)
{
    PyObject *value = PyObject_CallFunctionObjArgs(method, tensor, NULL);
    Py_XDECREF(value);
    return value == expected;
}

static unsigned long long answer_number(PyObject *tensor, PyObject *method)
{
    PyObject *value = PyObject_CallFunctionObjArgs(method, tensor, NULL);
    const unsigned long long number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return number;
}

/* Kind of a tensor that can be read in place, with its address and size; SKIP for all others. */
static unsigned char describe(PyObject *tensor, PyObject *const *ask, uintptr_t *address, int64_t *numel)
{
    *numel = 0;
    if (position(ask[PLAIN_TYPES], (PyObject *)Py_TYPE(tensor)) < 0)
        return SKIP;
    PyObject *dtype = PyObject_GetAttr(tensor, ask[DTYPE]);
    Py_XDECREF(dtype);
    const int kind = dtype ? position(ask[DTYPES], dtype) : -1;
    if (kind < 0 || !attribute_is(tensor, ask[IS_CPU], Py_True) || !attribute_is(tensor, ask[LAYOUT], ask[STRIDED]) ||
        !answer_is(tensor, ask[IS_CONTIGUOUS], Py_True) || !answer_is(tensor, ask[IS_NEG], Py_False))
        return SKIP;
    *numel = (int64_t)answer_number(tensor, ask[NUMEL_OF]);
    *address = (uintptr_t)answer_number(tensor, ask[DATA_PTR]);
    if (PyErr_Occurred() || (*numel > 0 && *address == 0) || *address % ITEM_SIZE[kind] != 0) {
        *numel = 0;
        return SKIP;
    }
    return (unsigned char)kind;
}

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

/* Ask for the questions' parts; 0, or -1 with an exception set. */
static int unpack(PyObject *tensors, PyObject *questions, PyObject **ask)
{
    if (!PyList_Check(tensors) || !PyTuple_Check(questions) || PyTuple_Size(questions) != QUESTIONS) {
        PyErr_SetString(PyExc_TypeError, "expected a list of tensors and the tuple of questions");
        return -1;
    }
    for (int i = 0; i < QUESTIONS; i++)
        ask[i] = PyTuple_GetItem(questions, i);
    return 0;
}

/* A tensor's bytes in memory. */
typedef struct {
    uintptr_t start, end;
} Extent;

static int by_start(const void *one, const void *other)
{
    const uintptr_t a = ((const Extent *)one)->start, b = ((const Extent *)other)->start;
    return a < b ? -1 : a > b;
}

/* Whether tensors may share memory, so that two threads must not change them at once. */
static int overlapping(const Job *job)
{
    Extent *extents = calloc((size_t)job->n_tensors + 1, sizeof *extents);
    int64_t count = 0;
    int found = !extents;
    for (int64_t i = 0; extents && i < job->n_tensors; i++)
        if (job->kinds[i] != SKIP && job->numels[i] > 0) {
            const uintptr_t start = job->addresses[i];
            extents[count++] = (Extent){start, start + (uintptr_t)job->numels[i] * ITEM_SIZE[job->kinds[i]]};
        }
    if (extents)
        qsort(extents, (size_t)count, sizeof *extents, by_start);
    for (int64_t i = 1; i < count && !found; i++)
        found = extents[i].start < extents[i - 1].end;
    free(extents);
    return found;
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
