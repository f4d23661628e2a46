/* What tensors tell of themselves through Python. Included after _native_kernel.h. */

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
