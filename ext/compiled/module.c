/* The compiled parts of steptrace as a Python module. Whatever they do, a Python part does too, more slowly. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "loops.h"
#include "scan.h"

/* Goes up with whatever the Python side must know: as VERSION of steptrace.compiled. */
#define VERSION 2

typedef struct {
    PyObject_HEAD
    Scanner scanner;
} ScannerObject;

static void scanner_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Scanner *scanner = &((ScannerObject *)self)->scanner;
    intern_free(&scanner->names);
    intern_free(&scanner->threads);
    intern_free(&scanner->types);
    intern_free(&scanner->sorts);
    for (int kind = 0; kind < KINDS; kind++)
        free(scanner->rows[kind].values);
    free(scanner->thread_names.spans);
    free(scanner->collectives.spans);
    free(scanner->counts);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Scanner(seed, [(sort, kind), ...]) */
static int scanner_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    unsigned long long seed;
    PyObject *sorts;
    Scanner *scanner = &((ScannerObject *)self)->scanner;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Scanner takes no keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "KO!", &seed, &PyList_Type, &sorts))
        return -1;
    if (scanner->names.slots) {
        PyErr_SetString(PyExc_RuntimeError, "a Scanner is made once");
        return -1;
    }
    if (PyList_Size(sorts) > (Py_ssize_t)sizeof scanner->kinds) {
        PyErr_SetString(PyExc_ValueError, "too many sorts of events");
        return -1;
    }
    if (intern_init(&scanner->names, seed) || intern_init(&scanner->threads, seed) ||
        intern_init(&scanner->types, seed) || intern_init(&scanner->sorts, seed)) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(sorts); i++) {
        const char *text;
        Py_ssize_t length;
        int kind;
        if (!PyArg_ParseTuple(PyList_GetItem(sorts, i), "y#i", &text, &length, &kind))
            return -1;
        if (kind < 0 || kind >= KINDS || intern(&scanner->sorts, text, (size_t)length) != (int64_t)i) {
            PyErr_SetString(PyExc_ValueError, "sorts of events are distinct, and each of a known kind");
            return -1;
        }
        scanner->kinds[i] = (int8_t)kind;
        scanner->known_sorts++;
    }
    return 0;
}

static PyObject *column(const Rows *rows, int place, int small)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows->rows * (small ? 4 : 8)));
    if (!bytes)
        return NULL;
    char *out = PyBytes_AsString(bytes);
    const int64_t *value = rows->values + place;
    for (size_t row = 0; row < rows->rows; row++, value += COLUMNS) {
        if (small) {
            int32_t number = (int32_t)*value;
            memcpy(out + row * 4, &number, 4);
        } else
            memcpy(out + row * 8, value, 8);
    }
    return bytes;
}

/* Appends to a list and takes the reference; -1 where there is none to take. */
static int append(PyObject *list, PyObject *item)
{
    int failed = !item || PyList_Append(list, item);
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* Each kind's columns, as a list of lists of bytes. */
static PyObject *columns(const Scanner *scanner)
{
    PyObject *kinds = PyList_New(0);
    for (int kind = 0; kinds && kind < KINDS; kind++) {
        PyObject *list = PyList_New(0);
        int failed = !list;
        for (int place = 0; !failed && place < COLUMN_COUNTS[kind]; place++)
            failed = append(list, column(&scanner->rows[kind], place, SMALL_COLUMNS[kind] >> place & 1));
        if (failed) {
            Py_XDECREF(list);
            Py_CLEAR(kinds);
        } else if (append(kinds, list))
            Py_CLEAR(kinds);
    }
    return kinds;
}

static PyObject *span_list(const Spans *spans)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < spans->count; i++)
        if (append(list, Py_BuildValue("(nn)", (Py_ssize_t)spans->spans[i].begin, (Py_ssize_t)spans->spans[i].end)))
            Py_CLEAR(list);
    return list;
}

/* The strings of the four tables that have come since `told`. */
static PyObject *new_strings(Scanner *scanner)
{
    const Intern *tables[4] = {&scanner->names, &scanner->threads, &scanner->types, &scanner->sorts};
    PyObject *found = PyList_New(0);
    for (int table = 0; found && table < 4; table++) {
        PyObject *list = PyList_New(0);
        int failed = !list;
        for (size_t i = scanner->told[table]; !failed && i < tables[table]->count; i++) {
            size_t length;
            const char *text = intern_text(tables[table], i, &length);
            failed = append(list, PyBytes_FromStringAndSize(text, (Py_ssize_t)length));
        }
        if (failed) {
            Py_XDECREF(list);
            Py_CLEAR(found);
        } else if (append(found, list))
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *result(Scanner *scanner)
{
    PyObject *parts[5] = {
        columns(scanner),
        span_list(&scanner->thread_names),
        span_list(&scanner->collectives),
        PyBytes_FromStringAndSize((const char *)scanner->counts, (Py_ssize_t)(scanner->sorts.count * 8)),
        new_strings(scanner),
    };
    PyObject *tuple = NULL;
    if (parts[0] && parts[1] && parts[2] && parts[3] && parts[4]) {
        tuple = PyTuple_Pack(5, parts[0], parts[1], parts[2], parts[3], parts[4]);
        scanner->told[0] = scanner->names.count;
        scanner->told[1] = scanner->threads.count;
        scanner->told[2] = scanner->types.count;
        scanner->told[3] = scanner->sorts.count;
    }
    for (int i = 0; i < 5; i++)
        Py_XDECREF(parts[i]);
    return tuple;
}

static PyObject *scanner_scan(PyObject *self, PyObject *args)
{
    PyObject *text;
    int exact;
    Scanner *scanner = &((ScannerObject *)self)->scanner;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "Op", &text, &exact) || PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE))
        return NULL;
    if (scanner->busy || !scanner->names.slots) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_RuntimeError, "a Scanner reads one chunk at a time");
        return NULL;
    }
    scanner->busy = 1;
    PyThreadState *state = PyEval_SaveThread();
    int status = scan_chunk(scanner, buffer.buf, (size_t)buffer.len, exact);
    PyEval_RestoreThread(state);
    scanner->busy = 0;
    PyBuffer_Release(&buffer);
    if (status == NO_MEMORY)
        return PyErr_NoMemory();
    if (status == PLAIN)
        return result(scanner);
    return PyBool_FromLong(status == NEEDS_EXACT);
}

static PyMethodDef SCANNER_METHODS[] = {
    {"scan", scanner_scan, METH_VARARGS,
     "scan(text, exact): the columns of a chunk; False if it is not plain, True if its times need `exact`."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SCANNER_SLOTS[] = {
    {Py_tp_init, scanner_init},
    {Py_tp_dealloc, scanner_free},
    {Py_tp_methods, SCANNER_METHODS},
    {0, NULL},
};

static PyType_Spec SCANNER = {"steptrace._compiled.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, SCANNER_SLOTS};

#define MOST_ARRAYS 6

/* Takes `count` buffers of int64 from the arguments; those from `out` on are written to. */
static int take_arrays(PyObject *args, int count, int out, Py_buffer *arrays)
{
    if (PyTuple_Size(args) != count) {
        PyErr_Format(PyExc_TypeError, "%d arrays are expected", count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        int flags = i < out ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        int failed = PyObject_GetBuffer(PyTuple_GetItem(args, i), &arrays[i], flags);
        if (!failed && arrays[i].len % 8) {
            PyBuffer_Release(&arrays[i]);
            PyErr_SetString(PyExc_TypeError, "arrays of int64 are expected");
            failed = 1;
        }
        if (failed) {
            while (i--)
                PyBuffer_Release(&arrays[i]);
            return -1;
        }
    }
    return 0;
}

static PyObject *release(Py_buffer *arrays, int count, const char *wrong)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&arrays[i]);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    Py_RETURN_NONE;
}

static int same_length(const Py_buffer *arrays, int first, int last)
{
    for (int i = first; i <= last; i++)
        if (arrays[i].len != arrays[first].len)
            return 0;
    return 1;
}

static PyObject *py_nesting_parents(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[4];
    if (take_arrays(args, 4, 3, a))
        return NULL;
    int fits = same_length(a, 0, 3);
    if (fits)
        nesting_parents((size_t)a[0].len / 8, a[0].buf, a[1].buf, a[2].buf, a[3].buf);
    return release(a, 4, fits ? NULL : "arrays of one length are expected");
}

static PyObject *py_nest(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[5];
    if (take_arrays(args, 5, 2, a))
        return NULL;
    int fits = same_length(a, 0, 4);
    if (fits)
        nest((size_t)a[0].len / 8, a[0].buf, a[1].buf, a[2].buf, a[3].buf, a[4].buf);
    return release(a, 5, fits ? NULL : "arrays of one length are expected");
}

static PyObject *py_longest_paths(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[4];
    if (take_arrays(args, 4, 3, a))
        return NULL;
    int fits = same_length(a, 0, 2) && !longest_paths((size_t)a[0].len / 8, a[0].buf, a[1].buf, a[2].buf,
                                                      (size_t)a[3].len / 8, a[3].buf);
    return release(a, 4, fits ? NULL : "edges of one length between known nodes are expected");
}

static PyObject *py_path(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[4];
    long long node, begin;
    PyObject *arrays = PyTuple_GetSlice(args, 0, 4);
    PyObject *rest = PyTuple_GetSlice(args, 4, PyTuple_Size(args));
    int failed = !arrays || !rest || !PyArg_ParseTuple(rest, "LL", &node, &begin) || take_arrays(arrays, 4, 3, a);
    Py_XDECREF(rest);
    if (failed) {
        Py_XDECREF(arrays);
        return NULL;
    }
    size_t nodes = (size_t)a[0].len / 8, edges = (size_t)a[1].len / 8;
    int64_t count = -1;
    if (a[2].len == a[0].len && a[3].len == a[0].len)
        count = path(nodes, edges, a[0].buf, a[1].buf, a[2].buf, a[3].buf, node, begin);
    PyObject *none = release(a, 4, count < 0 ? "a path between known nodes is expected" : NULL);
    Py_DECREF(arrays);
    Py_XDECREF(none);
    return none ? PyLong_FromLongLong(count) : NULL;
}

static PyMethodDef METHODS[] = {
    {"path", py_path, METH_VARARGS, "path(binding, source, time, found, node, begin): how many edges it has found."},
    {"nesting_parents", py_nesting_parents, METH_VARARGS, "nesting_parents(group, start, end, parent): fills `parent`."},
    {"nest", py_nest, METH_VARARGS, "nest(group, start, end, parent, open): cuts `end` and fills `parent`."},
    {"longest_paths", py_longest_paths, METH_VARARGS, "longest_paths(source, target, weight, reached)."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    PyObject *scanner = PyType_FromSpec(&SCANNER);
    int failed = !scanner || PyModule_AddObjectRef(module, "Scanner", scanner) ||
                 PyModule_AddIntConstant(module, "VERSION", VERSION);
    Py_XDECREF(scanner);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, fill}, {0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_compiled", "The compiled parts of steptrace.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&MODULE);
}
