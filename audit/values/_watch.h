/* What a visit is watched by: whether any generator has changed, and which files are opened. */
#include <dlfcn.h>
#include <fcntl.h>

/* ---- what has not changed -------------------------------------------------------------------------------------- */

/* Memory at addresses that the caller has proved to be a generator's: pairs of address and size, as 64-bit numbers. */
static int walk_memory(const Py_buffer *places, const Py_buffer *bytes, int writes) {
    const uint64_t *pair = places->buf;
    size_t count = (size_t)places->len / 16, at = 0;
    for (size_t i = 0; i < count; i++, pair += 2) {
        if (pair[1] > (uint64_t)bytes->len - at) {
            PyErr_SetString(PyExc_ValueError, "the bytes do not fit the places");
            return -1;
        }
        const void *memory = (const void *)(uintptr_t)pair[0];
        if (writes) memcpy((uint8_t *)bytes->buf + at, memory, pair[1]);
        else if (memcmp((const uint8_t *)bytes->buf + at, memory, pair[1])) return 0;
        at += pair[1];
    }
    return 1;
}

static PyObject *py_copy_memory(PyObject *self, PyObject *args) {
    Py_buffer places, bytes;
    if (!PyArg_ParseTuple(args, "y*w*:copy_memory", &places, &bytes)) return NULL;
    int done = walk_memory(&places, &bytes, 1);
    PyBuffer_Release(&places);
    PyBuffer_Release(&bytes);
    if (done < 0) return NULL;
    Py_RETURN_NONE;
}

/* Whether each (holder, key, object) still holds: an item of a dict, or an attribute. */
static int same_objects(PyObject *held) {
    for (Py_ssize_t i = 0, count = PyList_Size(held); i < count; i++) {
        PyObject *holder, *key, *wanted, *triple = PyList_GetItem(held, i);
        if (!PyArg_ParseTuple(triple, "OOO:same_state", &holder, &key, &wanted)) return -1;
        PyObject *found = PyDict_Check(holder) ? PyDict_GetItemWithError(holder, key) : PyObject_GetAttr(holder, key);
        if (!found) return PyErr_Occurred() ? -1 : 0;
        if (!PyDict_Check(holder)) Py_DECREF(found);
        if (found != wanted) return 0;
    }
    return 1;
}

/* Whether the memory at (address, size) pairs and the objects are what they were; -1 for an error. */
static int has_same_state(PyObject *pairs, PyObject *content, PyObject *held) {
    Py_buffer places, bytes;
    if (PyObject_GetBuffer(pairs, &places, PyBUF_SIMPLE) < 0) return -1;
    if (PyObject_GetBuffer(content, &bytes, PyBUF_SIMPLE) < 0) return PyBuffer_Release(&places), -1;
    int same = walk_memory(&places, &bytes, 0);
    PyBuffer_Release(&places);
    PyBuffer_Release(&bytes);
    return same == 1 ? same_objects(held) : same;
}

/* same_state(places, content, held): whether the memory at (address, size) pairs and the objects are what they were. */
static PyObject *py_same_state(PyObject *self, PyObject *args) {
    PyObject *places, *bytes, *held;
    if (!PyArg_ParseTuple(args, "OOO!:same_state", &places, &bytes, &PyList_Type, &held)) return NULL;
    int same = has_same_state(places, bytes, held);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* Whether each container has its length, and each (dict, key) holds None; -1 for an error. */
static int has_same_holders(PyObject *holders, PyObject *sizes, PyObject *empty) {
    Py_ssize_t count = PyList_Size(holders), places = PyList_Size(empty);
    if (PyList_Size(sizes) != count) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size = PyObject_Size(PyList_GetItem(holders, i));
        if (size < 0) return -1;
        if (size != PyLong_AsSsize_t(PyList_GetItem(sizes, i))) return 0;
    }
    for (Py_ssize_t i = 0; i < places; i++) {
        PyObject *pair = PyList_GetItem(empty, i);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) return 0;
        PyObject *holder = PyTuple_GetItem(pair, 0);
        if (!PyDict_Check(holder)) return 0;
        PyObject *found = PyDict_GetItemWithError(holder, PyTuple_GetItem(pair, 1));
        if (!found && PyErr_Occurred()) return -1;
        if (found && found != Py_None) return 0;
    }
    return 1;
}

/* same_holders(holders, sizes, empty): whether each container has its length, and each (dict, key) holds None. */
static PyObject *py_same_holders(PyObject *self, PyObject *args) {
    PyObject *holders, *sizes, *empty;
    if (!PyArg_ParseTuple(args, "O!O!O!:same_holders", &PyList_Type, &holders, &PyList_Type, &sizes, &PyList_Type, &empty))
        return NULL;
    int same = has_same_holders(holders, sizes, empty);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* Whether each (holder, key, object) and each (holder, length) still holds; -1 for an error, which the caller may take for no. */
static int holds_items(PyObject *items, PyObject *lengths) {
    PyObject *holder, *key, *wanted;
    Py_ssize_t length;
    int same = 1;
    for (Py_ssize_t i = 0, count = PyList_Size(items); same && i < count; i++) {
        if (!PyArg_ParseTuple(PyList_GetItem(items, i), "OOO:same_items", &holder, &key, &wanted)) return -1;
        PyObject *found = PyObject_GetItem(holder, key);
        same = found == wanted;
        Py_XDECREF(found);
    }
    for (Py_ssize_t i = 0, count = PyList_Size(lengths); same && i < count; i++) {
        if (!PyArg_ParseTuple(PyList_GetItem(lengths, i), "On:same_items", &holder, &length)) return -1;
        same = PyObject_Size(holder) == length;
    }
    PyErr_Clear(); /* what is no longer there is not the same */
    return same;
}

/* same_items(items, lengths) -> whether all still holds. */
static PyObject *py_same_items(PyObject *self, PyObject *args) {
    PyObject *items, *lengths;
    if (!PyArg_ParseTuple(args, "O!O!:same_items", &PyList_Type, &items, &PyList_Type, &lengths)) return NULL;
    int same = holds_items(items, lengths);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* ---- which files are opened ------------------------------------------------------------------------------------ */

typedef int (*AddAuditHook)(int (*)(const char *, PyObject *, void *), void *);

static PyObject *noted_files = NULL; /* a list of the caller's; guarded by the interpreter's lock */
static unsigned long noting_thread = 0;
static int is_hook_added = 0; /* a forked process has the hook too */

/* Called for every audit event of the process, and so without any Python. Never fails. */
static int note_open(const char *event, PyObject *args, void *unused) {
    if (!noted_files || strcmp(event, "open") || PyThread_get_thread_ident() != noting_thread) return 0;
    PyObject *path = NULL, *mode, *flags;
    if (!PyTuple_Check(args) || PyTuple_Size(args) != 3 || !PyArg_ParseTuple(args, "OOO", &path, &mode, &flags)) {
        PyErr_Clear();
        return 0;
    }
    long bits = PyLong_Check(flags) ? PyLong_AsLong(flags) : 0;
    if (bits & (O_WRONLY | O_RDWR)) return PyErr_Clear(), 0;
    if (PyUnicode_Check(path)) {
        if (PyList_Append(noted_files, path) < 0) PyErr_Clear();
    } else if (PyBytes_Check(path)) {
        PyObject *decoded = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(path), PyBytes_Size(path));
        if (!decoded || PyList_Append(noted_files, decoded) < 0) PyErr_Clear();
        Py_XDECREF(decoded);
    }
    return 0;
}

/* note_opened(list or None, thread) -> whether files that the thread opens for reading are put into the list from now on. */
static PyObject *py_note_opened(PyObject *self, PyObject *args) {
    PyObject *list;
    unsigned long thread;
    if (!PyArg_ParseTuple(args, "Ok:note_opened", &list, &thread)) return NULL;
    if (!is_hook_added) {
        /* Not a part of the limited API, though every Python from 3.8 on has it. */
        AddAuditHook add = (AddAuditHook)dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
        if (!add || add(note_open, NULL) < 0) return PyErr_Clear(), new_ref(Py_False);
        is_hook_added = 1;
    }
    PyObject *before = noted_files;
    noted_files = PyList_Check(list) ? new_ref(list) : NULL;
    noting_thread = thread;
    Py_XDECREF(before);
    Py_RETURN_TRUE;
}
