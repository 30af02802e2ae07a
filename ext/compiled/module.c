/* The compiled parts of steptrace as a Python module. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "loops.h"
#include "scan.h"

/* Goes up with whatever the Python side must know: as VERSION of steptrace.compiled. */
#define VERSION 13

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
    for (int kind = 0; kind < MOST_KINDS; kind++)
        free(scanner->rows[kind].values);
    for (int i = 0; i < scanner->args.count; i++)
        free((char *)scanner->args.names[i]);
    free(scanner->others.spans);
    free(scanner->collectives.spans);
    free(scanner->counts);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* The place of a name of an argument, -1 where it is new. */
static int known_arg(const Keys *args, const char *name, size_t length)
{
    for (int i = 0; i < args->count; i++)
        if (args->lengths[i] == length && !memcmp(args->names[i], name, length))
            return args->places[i];
    return -1;
}

/* The place of an argument, whose names have bars between them, and which is added where it is new; -1 without room. */
static int place_of_arg(Keys *args, const char *names, size_t length)
{
    const char *end = names + length, *bar = memchr(names, '|', length);
    int place = known_arg(args, names, bar ? (size_t)(bar - names) : length);
    if (place >= 0)
        return place;
    for (; names <= end; names = bar + 1) {
        bar = memchr(names, '|', (size_t)(end - names));
        bar = bar ? bar : end;
        size_t size = (size_t)(bar - names);
        char *copy = args->count < MOST_ARGS ? malloc(size + 1) : NULL;
        if (!copy)
            return -1;
        memcpy(copy, names, size);
        args->names[args->count] = copy;
        args->lengths[args->count] = size;
        args->places[args->count++] = (int8_t)args->place_count;
    }
    return args->place_count++;
}

/* Takes a column, (form, argument, bytes of a value); -1 with an error set. */
static int take_column(Scanner *scanner, PyObject *given, int kind)
{
    const char *form, *arg;
    Py_ssize_t length;
    int width, form_number = 0, place = scanner->column_counts[kind];
    if (!PyArg_ParseTuple(given, "sy#i", &form, &arg, &length, &width))
        return -1;
    while (form_number < FORMS && strcmp(form, FORM_NAMES[form_number]))
        form_number++;
    int named = form_number >= INTEGER && form_number < FORMS;
    int number = named ? place_of_arg(&scanner->args, arg, (size_t)length) : -1;
    if (form_number == FORMS || place == MOST_COLUMNS || (named && number < 0) || (width != 4 && width != 8)) {
        PyErr_Format(PyExc_ValueError, "no room for a column '%s', or no such form", form);
        return -1;
    }
    scanner->columns[kind][place] = (Column){(int8_t)form_number, (int8_t)number, width == 4};
    scanner->column_counts[kind]++;
    return 0;
}

/* Takes a kind's columns, the sorts of events that are of it, which Python numbers in this order, and endings of further
   categories of complete events that are; -1 with an error. */
static int take_kind(Scanner *scanner, PyObject *given)
{
    PyObject *columns, *sorts, *endings;
    int kind = scanner->kind_count;
    if (!PyArg_ParseTuple(given, "O!O!O!", &PyList_Type, &columns, &PyList_Type, &sorts, &PyList_Type, &endings))
        return -1;
    if (kind == MOST_KINDS || scanner->declared_sorts + (size_t)PyList_Size(sorts) > sizeof scanner->kinds) {
        PyErr_SetString(PyExc_ValueError, "too many kinds or sorts of events");
        return -1;
    }
    scanner->kind_count++;
    for (Py_ssize_t i = 0; i < PyList_Size(columns); i++)
        if (take_column(scanner, PyList_GetItem(columns, i), kind))
            return -1;
    for (Py_ssize_t i = 0; i < PyList_Size(sorts); i++) {
        char *text;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GetItem(sorts, i), &text, &length))
            return -1;
        if (intern(&scanner->sorts, text, (size_t)length) != (int64_t)scanner->declared_sorts) {
            PyErr_SetString(PyExc_ValueError, "sorts of events must be distinct");
            return -1;
        }
        scanner->kinds[scanner->declared_sorts++] = (int8_t)kind;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(endings); i++) {
        char *text;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GetItem(endings, i), &text, &length))
            return -1;
        Ending *ending = &scanner->endings[scanner->ending_count];
        if (scanner->ending_count == MOST_ENDINGS || (size_t)length > sizeof ending->text) {
            PyErr_SetString(PyExc_ValueError, "too many endings of categories, or too long");
            return -1;
        }
        memcpy(ending->text, text, (size_t)length);
        ending->length = (size_t)length;
        ending->kind = (int8_t)kind;
        scanner->ending_count++;
    }
    return 0;
}

/* Scanner(seed, [([(form, argument's names, bytes of a value), ...], [sort, ...], [ending, ...]), ...]) */
static int scanner_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    unsigned long long seed;
    PyObject *kinds;
    Scanner *scanner = &((ScannerObject *)self)->scanner;
    if (keywords && PyDict_Size(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Scanner takes no keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "KO!", &seed, &PyList_Type, &kinds))
        return -1;
    if (scanner->names.slots) {
        PyErr_SetString(PyExc_RuntimeError, "a Scanner is made once");
        return -1;
    }
    if (intern_init(&scanner->names, seed) || intern_init(&scanner->threads, seed) ||
        intern_init(&scanner->types, seed) || intern_init(&scanner->sorts, seed)) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(kinds); i++)
        if (take_kind(scanner, PyList_GetItem(kinds, i)))
            return -1;
    if (grow((void **)&scanner->counts, &scanner->counts_room, 0, sizeof scanner->kinds, sizeof *scanner->counts)) {
        PyErr_NoMemory();
        return -1;
    }
    memset(scanner->counts, 0, scanner->counts_room * sizeof *scanner->counts);
    return 0;
}

static PyObject *column(const Rows *rows, int place, int small)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(rows->rows * (small ? 4 : 8)));
    if (!bytes)
        return NULL;
    char *out = PyBytes_AsString(bytes);
    const int64_t *value = rows->values + place;
    for (size_t row = 0; row < rows->rows; row++, value += MOST_COLUMNS) {
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
    for (int kind = 0; kinds && kind < scanner->kind_count; kind++) {
        PyObject *list = PyList_New(0);
        int failed = !list;
        for (int place = 0; !failed && place < scanner->column_counts[kind]; place++)
            failed = append(list, column(&scanner->rows[kind], place, scanner->columns[kind][place].small));
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

/* The strings of the four tables that have come since the last chunk. */
static PyObject *new_strings(Scanner *scanner)
{
    const Intern *tables[4] = {&scanner->names, &scanner->threads, &scanner->types, &scanner->sorts};
    PyObject *lists = PyList_New(0);
    for (int table = 0; lists && table < 4; table++) {
        PyObject *list = PyList_New(0);
        int failed = !list;
        for (size_t i = scanner->given[table]; !failed && i < tables[table]->count; i++) {
            size_t length;
            const char *text = intern_text(tables[table], i, &length);
            failed = append(list, PyBytes_FromStringAndSize(text, (Py_ssize_t)length));
        }
        if (failed) {
            Py_XDECREF(list);
            Py_CLEAR(lists);
        } else if (append(lists, list))
            Py_CLEAR(lists);
    }
    return lists;
}

static PyObject *result(Scanner *scanner)
{
    PyObject *parts[5] = {
        columns(scanner),
        span_list(&scanner->others),
        span_list(&scanner->collectives),
        PyBytes_FromStringAndSize((const char *)scanner->counts, (Py_ssize_t)(scanner->sorts.count * 8)),
        new_strings(scanner),
    };
    PyObject *tuple = NULL;
    if (parts[0] && parts[1] && parts[2] && parts[3] && parts[4]) {
        tuple = Py_BuildValue("(OOOOOnO)", parts[0], parts[1], parts[2], parts[3], parts[4], (Py_ssize_t)scanner->taken,
                              scanner->ended ? Py_True : Py_False);
        scanner->given[0] = scanner->names.count;
        scanner->given[1] = scanner->threads.count;
        scanner->given[2] = scanner->types.count;
        scanner->given[3] = scanner->sorts.count;
    }
    for (int i = 0; i < 5; i++)
        Py_XDECREF(parts[i]);
    return tuple;
}

static PyObject *scanner_scan(PyObject *self, PyObject *args)
{
    PyObject *text;
    Scanner *scanner = &((ScannerObject *)self)->scanner;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "O", &text) || PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE))
        return NULL;
    if (scanner->busy || !scanner->names.slots) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_RuntimeError, "a Scanner reads one chunk at a time");
        return NULL;
    }
    scanner->busy = 1;
    PyThreadState *state = PyEval_SaveThread();
    int status = scan_chunk(scanner, buffer.buf, (size_t)buffer.len);
    PyEval_RestoreThread(state);
    scanner->busy = 0;
    PyBuffer_Release(&buffer);
    return status == NO_MEMORY ? PyErr_NoMemory() : result(scanner);
}

static PyMethodDef SCANNER_METHODS[] = {
    {"scan", scanner_scan, METH_VARARGS,
     "scan(text): the columns of the next whole events, how much of the text they are, and whether they are the last."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SCANNER_SLOTS[] = {
    {Py_tp_init, scanner_init},
    {Py_tp_dealloc, scanner_free},
    {Py_tp_methods, SCANNER_METHODS},
    {0, NULL},
};

static PyType_Spec SCANNER = {"steptrace._compiled.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, SCANNER_SLOTS};

#define MOST_ARRAYS 21

/* Takes an array for each of `widths` (bytes of an element, a digit each) from the arguments; those from `out` on are
   written to. */
static int take_arrays(PyObject *args, const char *widths, int out, Py_buffer *arrays)
{
    int count = (int)strlen(widths);
    if (PyTuple_Size(args) != count) {
        PyErr_Format(PyExc_TypeError, "%d arrays are expected", count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        int flags = i < out ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        int failed = PyObject_GetBuffer(PyTuple_GetItem(args, i), &arrays[i], flags);
        if (!failed && (arrays[i].len % (widths[i] - '0') || arrays[i].len / (widths[i] - '0') > INT32_MAX)) {
            PyBuffer_Release(&arrays[i]);
            PyErr_Format(PyExc_TypeError, "an array of elements of %c bytes is expected", widths[i]);
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

static PyObject *release(Py_buffer *arrays, const char *widths, const char *wrong)
{
    for (size_t i = 0; i < strlen(widths); i++)
        PyBuffer_Release(&arrays[i]);
    if (wrong && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, wrong);
    if (wrong)
        return NULL;
    Py_RETURN_NONE;
}

static int same_length(const Py_buffer *arrays, const char *widths, int first, int last)
{
    for (int i = first; i <= last; i++)
        if (arrays[i].len / (widths[i] - '0') != arrays[first].len / (widths[first] - '0'))
            return 0;
    return 1;
}

/* Takes the arrays that come first in the arguments, and gives the rest of these; NULL where they are none. */
static PyObject *split(PyObject *args, const char *widths, int out, Py_buffer *arrays)
{
    Py_ssize_t count = (Py_ssize_t)strlen(widths);
    PyObject *first = PyTuple_GetSlice(args, 0, count), *rest = PyTuple_GetSlice(args, count, PyTuple_Size(args));
    if (!first || !rest || take_arrays(first, widths, out, arrays))
        Py_CLEAR(rest);
    Py_XDECREF(first);
    return rest;
}

static const char *const LENGTHS = "arrays of one length are expected";

static PyObject *py_nesting_parents(PyObject *self, PyObject *args)
{
    (void)self;
    static const char widths[] = "8888";
    Py_buffer a[4];
    if (take_arrays(args, widths, 3, a))
        return NULL;
    int fits = same_length(a, widths, 0, 3);
    if (fits)
        nesting_parents((size_t)a[0].len / 8, a[0].buf, a[1].buf, a[2].buf, a[3].buf);
    return release(a, widths, fits ? NULL : LENGTHS);
}

static PyObject *py_enclosing(PyObject *self, PyObject *args)
{
    (void)self;
    static const char widths[] = "888888";
    Py_buffer a[6];
    if (take_arrays(args, widths, 5, a))
        return NULL;
    int made = same_length(a, widths, 0, 2) && same_length(a, widths, 3, 5) &&
               !enclosing((size_t)a[0].len / 8, a[0].buf, a[1].buf, a[2].buf, (size_t)a[3].len / 8, a[3].buf, a[4].buf,
                          a[5].buf);
    return release(a, widths, made ? NULL : LENGTHS);
}

static PyObject *py_nearest(PyObject *self, PyObject *args)
{
    (void)self;
    static const char widths[] = "414";
    Py_buffer a[3];
    if (take_arrays(args, widths, 2, a))
        return NULL;
    int made = same_length(a, widths, 0, 2) && !nearest((size_t)a[0].len / 4, a[0].buf, a[1].buf, a[2].buf);
    return release(a, widths, made ? NULL : "rows of one length in a forest are expected");
}

static PyObject *py_latest(PyObject *self, PyObject *args)
{
    (void)self;
    static const char widths[] = "888888";
    Py_buffer a[6];
    if (take_arrays(args, widths, 5, a))
        return NULL;
    int made = same_length(a, widths, 0, 1) && same_length(a, widths, 2, 5) &&
               !latest((size_t)a[0].len / 8, a[0].buf, a[1].buf, (size_t)a[2].len / 8, a[2].buf, a[3].buf, a[4].buf,
                       a[5].buf);
    return release(a, widths, made ? NULL : "ranks below their number, and queries in order of place, are expected");
}

static PyObject *py_call_tree(PyObject *self, PyObject *args)
{
    (void)self;
    static const char widths[] = "888888888888144444888";
    Py_buffer a[MOST_ARRAYS];
    Events tables[TABLES];
    if (take_arrays(args, widths, 3 * TABLES, a))
        return NULL;
    size_t count = 0;
    int fits = same_length(a, widths, 3 * TABLES, 20), made = 0;
    for (int i = 0; i < TABLES; i++) {
        fits = fits && same_length(a, widths, 3 * i, 3 * i + 2);
        tables[i] = (Events){a[3 * i].buf, a[3 * i + 1].buf, a[3 * i + 2].buf, (size_t)a[3 * i].len / 8};
        count += tables[i].count;
    }
    const Py_buffer *out = a + 3 * TABLES;
    Tree tree = {out[0].buf, out[1].buf, out[2].buf, out[3].buf, out[4].buf, out[5].buf, out[6].buf, out[7].buf, out[8].buf};
    if (fits && (size_t)out[0].len == count)
        made = !call_tree(tables, count, &tree);
    return release(a, widths, made ? NULL : LENGTHS);
}

static PyObject *py_inside_same(PyObject *self, PyObject *args)
{
    (void)self;
    static const char widths[] = "441";
    Py_buffer a[3];
    long long keys = -1;
    PyObject *rest = split(args, widths, 2, a);
    if (!rest)
        return NULL;
    int made = PyArg_ParseTuple(rest, "L", &keys) && same_length(a, widths, 0, 2) && keys >= 0 && keys <= INT32_MAX &&
               !inside_same((size_t)a[0].len / 4, a[0].buf, a[1].buf, (size_t)keys, a[2].buf);
    Py_DECREF(rest);
    return release(a, widths, made ? NULL : "keys below their number, and arrays of one length, are expected");
}

static PyMethodDef METHODS[] = {
    {"nesting_parents", py_nesting_parents, METH_VARARGS, "nesting_parents(group, start, end, parent): fills `parent`."},
    {"enclosing", py_enclosing, METH_VARARGS, "enclosing(group, start, end, query_group, time, row): fills `row`."},
    {"nearest", py_nearest, METH_VARARGS, "nearest(parent, wanted, row): fills `row`."},
    {"latest", py_latest, METH_VARARGS, "latest(rank, group, place, limit, not_of, item): fills `item`."},
    {"call_tree", py_call_tree, METH_VARARGS,
     "call_tree(thread, ts, dur of each table; kind, row, thread, parent, depth, size, ts, host, own): fills the latter."},
    {"inside_same", py_inside_same, METH_VARARGS, "inside_same(key, size, inside, keys): fills `inside`."},
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
