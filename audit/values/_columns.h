/* Columns of Arrow arrays from a list of Python values: one pass, no object for a value. */
#if defined(__linux__)
#include <sys/mman.h>
#endif

typedef struct {
    PyObject *list;
    Py_ssize_t start, step, count;
} Values;

static PyObject *value_at(const Values *v, Py_ssize_t i) { return PyList_GetItem(v->list, v->start + i * v->step); }

/* The bits of values that are not None; `*nulls` is how many are. No bytes where none is. */
static PyObject *validity(const Values *v, Py_ssize_t *nulls) {
    *nulls = 0;
    for (Py_ssize_t i = 0; i < v->count; i++) *nulls += value_at(v, i) == Py_None;
    if (!*nulls || *nulls == v->count) return new_ref(Py_None);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (v->count + 7) / 8);
    if (!made) return NULL;
    uint8_t *bits = (uint8_t *)PyBytes_AsString(made);
    memset(bits, 0, (size_t)(v->count + 7) / 8);
    for (Py_ssize_t i = 0; i < v->count; i++)
        if (value_at(v, i) != Py_None) bits[i / 8] |= (uint8_t)(1 << i % 8);
    return made;
}

/* Whole numbers and floats; 0 where a value is of another kind, or too large. NULL is written as 0. */
static int put_values(const Values *v, char kind, void *to) {
    for (Py_ssize_t i = 0; i < v->count; i++) {
        PyObject *o = value_at(v, i);
        if (kind == 'd' || kind == 'f') {
            double number = 0.0;
            if (PyFloat_CheckExact(o)) number = PyFloat_AsDouble(o);
            else if (o != Py_None) return 0;
            if (kind == 'd') ((double *)to)[i] = number;
            else ((float *)to)[i] = (float)number;
            continue;
        }
        int overflow = 0;
        long long number = 0;
        if (PyLong_CheckExact(o)) number = PyLong_AsLongLongAndOverflow(o, &overflow);
        else if (o != Py_None) return 0;
        if (overflow || (kind == 'i' && number != (int32_t)number)) return 0;
        if (kind == 'i') ((int32_t *)to)[i] = (int32_t)number;
        else ((int64_t *)to)[i] = number;
    }
    return 1;
}

static int put_truths(const Values *v, uint8_t *to) {
    memset(to, 0, (size_t)(v->count + 7) / 8);
    for (Py_ssize_t i = 0; i < v->count; i++) {
        PyObject *o = value_at(v, i);
        if (o == Py_True) to[i / 8] |= (uint8_t)(1 << i % 8);
        else if (o != Py_False && o != Py_None) return 0;
    }
    return 1;
}

/* The bytes of a text or of bytes, or the count of a tuple; -1 where a value is of another kind. */
static Py_ssize_t length_of(PyObject *o, char kind, const char **data) {
    Py_ssize_t size = 0;
    *data = NULL;
    if (o == Py_None) return 0;
    if (kind == 's' && PyUnicode_CheckExact(o)) {
        *data = PyUnicode_AsUTF8AndSize(o, &size);
        return *data ? size : -1;
    }
    if (kind == 'z' && PyBytes_CheckExact(o)) return *data = PyBytes_AsString(o), PyBytes_Size(o);
    return kind == 'l' && PyTuple_CheckExact(o) ? PyTuple_Size(o) : -1;
}

#define HUGE_LEAST ((size_t)4 << 20)
#define HUGE_PAGE ((uintptr_t)2 << 20)

/* Let large new memory be used in huge pages, as store/part_buffer.py does. */
static void use_huge_pages(char *memory, size_t size) {
#if defined(__linux__)
    uintptr_t from = ((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), to = ((uintptr_t)memory + size) & ~(HUGE_PAGE - 1);
    if (size >= HUGE_LEAST && from < to) madvise((void *)from, to - from, MADV_HUGEPAGE); /* an advice: it may fail */
#endif
}

/* Offsets, and behind them the bytes of texts, or the whole numbers of tuples. */
static int put_parts(const Values *v, char kind, int32_t *ends, PyObject **content) {
    const char *data;
    Py_ssize_t total = 0, width = kind == 'l' ? 8 : 1;
    ends[0] = 0;
    for (Py_ssize_t i = 0; i < v->count; i++) {
        Py_ssize_t size = length_of(value_at(v, i), kind, &data);
        if (size < 0 || (total += size) > INT32_MAX / 16) return 0;
        ends[i + 1] = (int32_t)total;
    }
    if (!(*content = PyBytes_FromStringAndSize(NULL, width * total))) return 0;
    char *to = PyBytes_AsString(*content);
    use_huge_pages(to, (size_t)(width * total));
    for (Py_ssize_t i = 0; i < v->count; i++) {
        PyObject *o = value_at(v, i);
        Py_ssize_t size = length_of(o, kind, &data);
        if (data) memcpy(to + ends[i], data, (size_t)size);
        for (Py_ssize_t k = 0; kind == 'l' && k < size; k++) {
            PyObject *side = PyTuple_GetItem(o, k);
            int overflow = 0;
            long long number = PyLong_CheckExact(side) ? PyLong_AsLongLongAndOverflow(side, &overflow) : (overflow = 1);
            if (overflow) return 0;
            ((int64_t *)to)[ends[i] + k] = number;
        }
    }
    return 1;
}

/* column(values, start, step, kind) -> (nulls, validity, first buffer, second buffer) of every step-th value, or None.
 *
 * Kinds: i and q are whole numbers of 32 and 64 bits, f and d floats, ? truth values, s texts, z bytes, l tuples of whole
 * numbers. Values of other types, also of subclasses, need another way. */
static PyObject *py_column(PyObject *self, PyObject *args) {
    Values v;
    int kind;
    if (!PyArg_ParseTuple(args, "O!nnC:column", &PyList_Type, &v.list, &v.start, &v.step, &kind)) return NULL;
    Py_ssize_t length = PyList_Size(v.list), nulls, size;
    if (v.start < 0 || v.step < 1) Py_RETURN_NONE;
    v.count = length > v.start ? (length - v.start + v.step - 1) / v.step : 0;
    PyObject *valid = validity(&v, &nulls), *first = NULL, *second = NULL;
    if (!valid) return NULL;
    if (nulls == v.count) return Py_DECREF(valid), Py_BuildValue("nOOO", nulls, Py_None, Py_None, Py_None);
    int is_parts = kind == 's' || kind == 'z' || kind == 'l';
    size = is_parts ? 4 * (v.count + 1) : kind == '?' ? (v.count + 7) / 8 : v.count * (kind == 'i' || kind == 'f' ? 4 : 8);
    int good = (is_parts || kind == '?' || kind == 'i' || kind == 'q' || kind == 'f' || kind == 'd') &&
               (first = PyBytes_FromStringAndSize(NULL, size)) != NULL;
    if (good) {
        void *to = PyBytes_AsString(first);
        good = is_parts ? put_parts(&v, (char)kind, to, &second)
               : kind == '?' ? put_truths(&v, to) : put_values(&v, (char)kind, to);
    }
    PyErr_Clear();
    PyObject *made = good ? Py_BuildValue("nOOO", nulls, valid, first, second ? second : Py_None) : new_ref(Py_None);
    Py_XDECREF(second);
    Py_XDECREF(first);
    Py_DECREF(valid);
    return made;
}
