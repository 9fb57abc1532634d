/* Stage 0 of a visit as it is in nearly all folders of pictures: torchvision's loader, given the path of a file.
 *
 * It does what `load_path` of recorders/visit/file_load.py does, which every other call is handed to. Nothing is decided after the
 * file was opened: until then, whatever is unusual goes to `load_path`. */
#include <sys/stat.h>
#include <unistd.h>

/* What the reading of a file needs, a tuple; see recorders/visit/file_load.py. */
enum { OPEN, FLAGS, READ, BACKEND, DECODE, HASHED_LATER, LOADER };

enum { L_OPENED, L_BYTES, L_PATH, L_DATA, L_LOAD, L_HASH, L_NOTE, L_COUNT };
static const char *const load_texts[L_COUNT] = {"opened", "source_bytes", "source_path", "_source_data", "_load", "hash_source", "note_loaded"};
static PyObject *load_names[L_COUNT];

static int prepare_loads(void) {
    for (int i = 0; i < L_COUNT; i++)
        if (!(load_names[i] = PyUnicode_InternFromString(load_texts[i]))) return -1;
    return 0;
}

/* At most so many bytes of an open file, as Python's own function reads them; NULL for an error. */
static PyObject *read_bytes(PyObject *loader, PyObject *file, Py_ssize_t most) {
    PyObject *size = PyLong_FromSsize_t(most);
    PyObject *data = size ? PyObject_CallFunctionObjArgs(PyTuple_GetItem(loader, READ), file, size, NULL) : NULL;
    Py_XDECREF(size);
    if (data && !PyBytes_Check(data)) PyErr_SetString(PyExc_TypeError, "a file has bytes"), Py_DECREF(data), data = NULL;
    return data;
}

/* The whole content of an open file, with as few calls of the system as possible; NULL for an error. */
static PyObject *read_content(PyObject *loader, PyObject *file, int number) {
    struct stat found;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = fstat(number, &found);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_SetFromErrno(PyExc_OSError);
    Py_ssize_t size = (Py_ssize_t)found.st_size;
    PyObject *data = read_bytes(loader, file, size + 1);
    /* Where it grew meanwhile, is not a plain file, or is larger than one call reads. */
    while (data && PyBytes_Size(data) != size) {
        PyObject *more = read_bytes(loader, file, 1 << 20);
        if (!more) Py_CLEAR(data);
        else if (PyBytes_Size(more)) PyBytes_ConcatAndDel(&data, more);
        else return Py_DECREF(more), data;
    }
    return data;
}

/* The content of a file. Python's own function opens it, and so tells audit hooks of it. */
static PyObject *read_file(PyObject *loader, PyObject *path) {
    PyObject *opened = PyObject_CallFunctionObjArgs(PyTuple_GetItem(loader, OPEN), path, PyTuple_GetItem(loader, FLAGS), NULL);
    int number = opened ? (int)PyLong_AsLong(opened) : -1;
    if (number < 0) return Py_XDECREF(opened), NULL;
    PyObject *data = read_content(loader, opened, number), *kind, *error, *trace;
    Py_DECREF(opened);
    Py_BEGIN_ALLOW_THREADS
    close(number);
    Py_END_ALLOW_THREADS
    if (!data && PyErr_ExceptionMatches(PyExc_OSError)) { /* of a folder for example: as `open` says it */
        PyErr_Fetch(&kind, &error, &trace);
        PyErr_NormalizeException(&kind, &error, &trace);
        if (PyObject_SetAttrString(error, "filename", path) < 0) PyErr_Clear();
        PyErr_Restore(kind, error, trace);
    }
    return data;
}

/* Whether the loader of a visit is called as nearly always; -1 for an error. `rows` is a reference of its own where it is set. */
static int is_usual_load(PyObject *loader, PyObject *visit, PyObject *given, PyObject *named, PyObject **rows) {
    *rows = NULL;
    if (!is_visit(visit) || PyTuple_Size(given) != 1 || PyDict_Size(named) || !PyUnicode_CheckExact(PyTuple_GetItem(given, 0))) return 0;
    int is = is_unfollowed(visit, A_HAS_CALLS);
    if (is != 1 || (is = attribute_is(visit, load_names[L_BYTES], Py_None)) != 1) return is;
    if (field(visit, F_LEVEL) == verify_level) return 0;
    *rows = new_ref(field(visit, F_ROWS));
    if (!PyDict_Check(*rows) || (is = PyDict_Contains(*rows, number_zero)) != 0) return is < 0 ? is : 0;
    PyObject *backend = PyObject_CallNoArgs(PyTuple_GetItem(loader, BACKEND));
    is = !backend ? -1 : PyUnicode_Check(backend) && PyUnicode_CompareWithASCIIString(backend, "PIL") == 0;
    Py_XDECREF(backend);
    return is;
}

/* Note the bytes that were read. Small ones are hashed later, as `hash_source` does, which has the reason. */
static int note_source(PyObject *loader, PyObject *visit, PyObject *data, PyObject *path) {
    Py_ssize_t length = PyBytes_Size(data);
    if (length > PyLong_AsSsize_t(PyTuple_GetItem(loader, HASHED_LATER))) {
        PyObject *made = PyObject_CallMethodObjArgs(visit, load_names[L_HASH], data, path, NULL);
        Py_XDECREF(made);
        return made ? 0 : -1;
    }
    PyObject *size = PyLong_FromSsize_t(length);
    int good = size ? PyObject_SetAttr(visit, load_names[L_BYTES], size) | PyObject_SetAttr(visit, load_names[L_PATH], path) |
                          PyObject_SetAttr(visit, load_names[L_DATA], data)
                    : -1;
    Py_XDECREF(size);
    return good;
}

/* Note what was decoded. Of several files that were opened, `note_loaded` decides which is the source. */
static int note_loaded(PyObject *plan, PyObject *visit, PyObject *rows, PyObject *value, long long spent, long long ended) {
    PyObject *opened = PyObject_GetAttr(visit, load_names[L_OPENED]);
    Py_ssize_t count = opened && PyList_Check(opened) ? PyList_Size(opened) : -1;
    Py_XDECREF(opened);
    if (count == 0 || count == 1) {
        int good = PyObject_SetAttr(visit, load_names[L_LOAD], value);
        return good == 0 ? note_output(plan, visit, rows, Py_None, value, NULL, spent, ended) : good;
    }
    PyErr_Clear();
    PyObject *time = PyLong_FromLongLong(spent);
    PyObject *made = time ? PyObject_CallMethodObjArgs(visit, load_names[L_NOTE], value, time, NULL) : NULL;
    Py_XDECREF(time);
    Py_XDECREF(made);
    return made ? 0 : -1;
}

/* note_load(plan, visit, value, nanoseconds) -> whether the value of stage 0 is noted; False where it needs another way. */
static PyObject *py_note_load(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != PLANNED)
        return PyErr_SetString(PyExc_TypeError, "note_load takes a plan, a visit, a value and a number of nanoseconds"), NULL;
    if (!is_visit(args[1])) Py_RETURN_FALSE;
    PyObject *plan = args[0], *visit = args[1], *value = args[2], *rows = new_ref(field(visit, F_ROWS)), *facts = NULL;
    long long spent = PyLong_AsLongLong(args[3]), begun = nanoseconds();
    int is = PyDict_Check(rows) && PyDict_Contains(rows, number_zero) == 0 && is_unfollowed(visit, A_HAS_CALLS) == 1 &&
             field(visit, F_LEVEL) != verify_level && (facts = facts_of_output(plan, value)) && facts != Py_None;
    if (is && PyObject_SetAttr(visit, load_names[L_LOAD], value) == 0)
        is = note_output(plan, visit, rows, Py_None, value, new_ref(facts), spent, begun) == 0;
    else is = 0;
    PyErr_Clear();
    Py_XDECREF(facts);
    Py_DECREF(rows);
    return PyBool_FromLong(is);
}

/* run_load(plan, loader, visit, callable, args, kwargs) -> the picture that the callable would return. */
static PyObject *py_run_load(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != PLANNED || !PyTuple_Check(args[1]) ||
        PyTuple_Size(args[1]) != LOADER || !PyTuple_Check(args[4]) || !PyDict_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "run_load takes a plan, a loader, a visit, a callable, its arguments and its keyword arguments");
        return NULL;
    }
    PyObject *plan = args[0], *loader = args[1], *visit = args[2], *rows, *value = NULL;
    if (is_usual_load(loader, visit, args[4], args[5], &rows) != 1) {
        Py_XDECREF(rows);
        PyErr_Clear(); /* what could not be looked at is unusual */
        return PyObject_CallFunctionObjArgs(PyTuple_GetItem(plan, SLOW), visit, args[3], args[4], args[5], NULL);
    }
    PyObject *path = PyTuple_GetItem(args[4], 0), *stage = PyTuple_GetItem(plan, NAME), *data = read_file(loader, path);
    if (!data) {
        note_failure(visit, A_FAIL, stage);
    } else {
        if (note_source(loader, visit, data, path) < 0) PyErr_Clear(); /* recording never raises into the user's code */
        long long begun = nanoseconds();
        value = PyObject_CallFunctionObjArgs(PyTuple_GetItem(loader, DECODE), data, path, NULL);
        long long ended = nanoseconds();
        if (!value) note_failure(visit, A_FAIL_LOAD, stage);
        else if (note_loaded(plan, visit, rows, value, ended - begun, ended) < 0) PyErr_Clear();
    }
    Py_XDECREF(data);
    Py_DECREF(rows);
    return value;
}
