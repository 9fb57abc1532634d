/* Statistics, previews and palettes at the speed of memory, for audit/values; optional, and never the only way.
 *
 * Everything here has a twin in numpy that gives the same answer, which is used where this file was not compiled.
 * It holds no state, keeps no reference, writes to nothing but the buffers it is given or makes, and lets go of the
 * interpreter's lock around every loop. Limited API: one build serves every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "_kernels.h"
#include "_shapes.h"

/* ---- which loops ------------------------------------------------------------------------------------------- */

#if HAVE_AVX2
#define TWICE(RESULT, NAME, PARAMETERS, ARGUMENTS)                        \
    static RESULT NAME##_plain PARAMETERS { return NAME ARGUMENTS; }      \
    AVX2 static RESULT NAME##_avx2 PARAMETERS { return NAME ARGUMENTS; }
#define PICK(NAME) (wide_loops ? NAME##_avx2 : NAME##_plain)
#else
#define TWICE(RESULT, NAME, PARAMETERS, ARGUMENTS) \
    static RESULT NAME##_plain PARAMETERS { return NAME ARGUMENTS; }
#define PICK(NAME) NAME##_plain
#endif

static int wide_loops = 0; /* set once when the module is loaded, and by the tests */

TWICE(void, shrink_bytes, (const uint8_t *s, const Layout *l, uint16_t *c, uint8_t *o), (s, l, c, o))
TWICE(void, shrink_floats, (const uint8_t *s, const Layout *l, float *c, float *o), (s, l, c, o))
TWICE(int, scale_to_bytes, (const float *m, size_t n, uint8_t *o), (m, n, o))
TWICE(int, palette_levels, (const uint8_t *s, size_t n, uint8_t *o, Palette *p), (s, n, o, p))
TWICE(void, rgb_rows, (const uint8_t *s, size_t h, size_t w, Packing p, uint8_t *l, uint8_t *o), (s, h, w, p, l, o))

/* ---- where the bytes are ----------------------------------------------------------------------------------- */

/* The Arrow C data interface, whose layout its specification has frozen. */
typedef struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
} ArrowArray;

typedef struct {
    const uint8_t *data;
    Py_ssize_t size;
    Py_buffer view;
    int held;
} Source;

static void let_go(Source *s) {
    if (s->held) PyBuffer_Release(&s->view);
    s->held = 0;
}

/* A buffer, or the capsule in which Pillow hands out an RGB picture as fixed-size lists of four bytes. */
static int borrow(PyObject *from, Source *s) {
    s->held = 0;
    if (PyObject_CheckBuffer(from)) {
        if (PyObject_GetBuffer(from, &s->view, PyBUF_SIMPLE) < 0) return -1;
        s->held = 1;
        s->data = s->view.buf;
        s->size = s->view.len;
        return 0;
    }
    const ArrowArray *outer = PyCapsule_GetPointer(from, "arrow_array");
    if (!outer) return -1;
    if (outer->offset || outer->n_children != 1 || !outer->children) goto unknown;
    const ArrowArray *inner = outer->children[0];
    if (inner->length != 4 * outer->length || inner->offset || inner->n_buffers != 2 || !inner->buffers[1]) goto unknown;
    s->data = inner->buffers[1];
    s->size = (Py_ssize_t)inner->length;
    return 0;
unknown:
    PyErr_SetString(PyExc_ValueError, "an Arrow array of unknown layout");
    return -1;
}

static int borrow_to_write(PyObject *to, Py_ssize_t size, Py_buffer *view) {
    if (PyObject_GetBuffer(to, view, PyBUF_WRITABLE) < 0) return -1;
    if (view->len == size) return 0;
    PyBuffer_Release(view);
    PyErr_SetString(PyExc_ValueError, "the destination has another size");
    return -1;
}

/* ---- functions --------------------------------------------------------------------------------------------- */

static PyObject *sums(const Bytes *b) {
    return Py_BuildValue("IIKKK", b->low, b->high, (unsigned long long)b->sum, (unsigned long long)b->squares,
                         (unsigned long long)b->zeros);
}

static PyObject *py_rgbx(PyObject *self, PyObject *args) {
    PyObject *from, *to;
    Source s;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "OO:rgbx", &from, &to) || borrow(from, &s) < 0) return NULL;
    if (borrow_to_write(to, s.size, &out) < 0) return let_go(&s), NULL;
    Bytes b = {.low = 255};
    Py_BEGIN_ALLOW_THREADS
    PICK(rgbx)(s.data, out.buf, (size_t)s.size / 4, &b);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&out);
    let_go(&s);
    return sums(&b);
}

static PyObject *py_u8(PyObject *self, PyObject *from) {
    Source s;
    if (borrow(from, &s) < 0) return NULL;
    Bytes b = {.low = 255};
    Py_BEGIN_ALLOW_THREADS
    PICK(bytes)(s.data, (size_t)s.size, &b);
    Py_END_ALLOW_THREADS
    let_go(&s);
    return sums(&b);
}

static PyObject *py_f32(PyObject *self, PyObject *from) {
    Source s;
    if (borrow(from, &s) < 0) return NULL;
    Summary f;
    Py_BEGIN_ALLOW_THREADS
    summarise(s.data, (size_t)s.size / 4, PICK(floats), &f);
    Py_END_ALLOW_THREADS
    let_go(&s);
    unsigned long long zeros = f.zeros, nonfinite = f.nonfinite;
    if (!f.finite) return Py_BuildValue("OOOOKK", Py_None, Py_None, Py_None, Py_None, zeros, nonfinite);
    return Py_BuildValue("ddddKK", f.low, f.high, f.mean, f.std, zeros, nonfinite);
}

/* Divides rather than multiplies, so that no number given by a caller overflows. */
static int fits(const Layout *l, Py_ssize_t size, size_t width) {
    size_t left = (size_t)size / width, sides[] = {l->planes, l->height, l->width, l->step};
    int good = l->factor >= 1 && l->factor <= FACTOR_MOST && l->bands >= 1 && l->bands <= l->step;
    for (int i = 0; good && i < 4; i++) {
        good = sides[i] && left % sides[i] == 0;
        left = good ? left / sides[i] : 0;
    }
    if (good && left == 1) return 1;
    PyErr_SetString(PyExc_ValueError, "the layout does not fit the bytes");
    return 0;
}

/* shrink(source, is_float, planes, height, width, step, bands, factor) -> bytes, or None where floats forbid it. */
static PyObject *py_shrink(PyObject *self, PyObject *args) {
    PyObject *from, *made = NULL;
    Source s;
    Layout l;
    int floats, good = 1;
    if (!PyArg_ParseTuple(args, "Opnnnnnn:shrink", &from, &floats, &l.planes, &l.height, &l.width, &l.step, &l.bands,
                          &l.factor) || borrow(from, &s) < 0)
        return NULL;
    if (!fits(&l, s.size, floats ? 4 : 1)) return let_go(&s), NULL;
    size_t count = l.planes * l.bands * shrunk(l.height, l.factor) * shrunk(l.width, l.factor);
    size_t line = l.width * l.step;
    made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    void *column = PyMem_Malloc((2 * line + (floats ? count : 0)) * sizeof(float));
    if (!made || !column) {
        if (!column) PyErr_NoMemory();
        goto failed;
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(made);
    Py_BEGIN_ALLOW_THREADS
    if (floats) {
        float *means = (float *)column + 2 * line;
        PICK(shrink_floats)(s.data, &l, column, means);
        good = PICK(scale_to_bytes)(means, count, out);
    } else {
        PICK(shrink_bytes)(s.data, &l, column, out);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(column);
    let_go(&s);
    if (good) return made;
    Py_DECREF(made);
    Py_RETURN_NONE;
failed:
    PyMem_Free(column);
    Py_XDECREF(made);
    let_go(&s);
    return NULL;
}

static PyObject *py_unit(PyObject *self, PyObject *args) {
    PyObject *from, *to;
    Source s;
    Py_buffer out;
    int good = 1;
    if (!PyArg_ParseTuple(args, "OO:unit", &from, &to) || borrow(from, &s) < 0) return NULL;
    size_t n = (size_t)s.size / 4;
    if (borrow_to_write(to, (Py_ssize_t)n, &out) < 0) return let_go(&s), NULL;
    Py_BEGIN_ALLOW_THREADS
    /* In stretches, so that another kind of picture is given up early. */
    for (size_t at = 0; good && at < n; at += STRETCH) {
        size_t some = upto(n, at, STRETCH);
        good = PICK(unit_levels)(s.data + 4 * at, some, (uint8_t *)out.buf + at);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&out);
    let_go(&s);
    return PyBool_FromLong(good);
}

static PyObject *py_palette(PyObject *self, PyObject *args) {
    PyObject *from, *to;
    Source s;
    Py_buffer out;
    Palette p;
    int good;
    if (!PyArg_ParseTuple(args, "OO:palette", &from, &to) || borrow(from, &s) < 0) return NULL;
    size_t n = (size_t)s.size / 4;
    if (borrow_to_write(to, (Py_ssize_t)n, &out) < 0) return let_go(&s), NULL;
    Py_BEGIN_ALLOW_THREADS
    good = PICK(palette_levels)(s.data, n, out.buf, &p);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&out);
    let_go(&s);
    if (!good) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)p.table, 4 * (Py_ssize_t)p.count);
}

static PyObject *py_rgb_rows(PyObject *self, PyObject *args) {
    PyObject *from, *made;
    Source s;
    Py_ssize_t height, width;
    if (!PyArg_ParseTuple(args, "Onn:rgb_rows", &from, &height, &width) || borrow(from, &s) < 0) return NULL;
    if (height < 0 || width < 0 || s.size / 4 != height * width) {
        PyErr_SetString(PyExc_ValueError, "the size does not fit the bytes");
        return let_go(&s), NULL;
    }
    made = PyBytes_FromStringAndSize(NULL, 3 * height * width);
    uint8_t *line = PyMem_Malloc(2 * (3 * (size_t)width + 16));
    if (made && line) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(made);
        Py_BEGIN_ALLOW_THREADS
        PICK(rgb_rows)(s.data, (size_t)height, (size_t)width, PICK(pack), line, out);
        Py_END_ALLOW_THREADS
    } else {
        Py_XDECREF(made);
        made = PyErr_NoMemory();
    }
    PyMem_Free(line);
    let_go(&s);
    return made;
}

/* Memory at addresses that the caller has proved to be a generator's: pairs of address and size, as 64-bit numbers. */
static int walk_memory(PyObject *args, const char *format, int writes) {
    Py_buffer places, bytes;
    int same = 1;
    if (!PyArg_ParseTuple(args, format, &places, &bytes)) return -1;
    const uint64_t *pair = places.buf;
    size_t count = (size_t)places.len / 16, at = 0;
    for (size_t i = 0; i < count && same; i++, pair += 2) {
        if (pair[1] > (uint64_t)bytes.len - at) {
            PyErr_SetString(PyExc_ValueError, "the bytes do not fit the places");
            same = -1;
        } else if (writes) {
            memcpy((uint8_t *)bytes.buf + at, (const void *)(uintptr_t)pair[0], pair[1]);
        } else {
            same = memcmp((const uint8_t *)bytes.buf + at, (const void *)(uintptr_t)pair[0], pair[1]) == 0;
        }
        at += pair[1];
    }
    PyBuffer_Release(&places);
    PyBuffer_Release(&bytes);
    return same;
}

static PyObject *py_same_memory(PyObject *self, PyObject *args) {
    int same = walk_memory(args, "y*y*:same_memory", 0);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyObject *py_copy_memory(PyObject *self, PyObject *args) {
    if (walk_memory(args, "y*w*:copy_memory", 1) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_loops(PyObject *self, PyObject *args) {
    int wanted = -1;
    if (!PyArg_ParseTuple(args, "|p:loops", &wanted)) return NULL;
    int before = wide_loops;
#if HAVE_AVX2
    if (wanted >= 0) wide_loops = wanted && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return PyBool_FromLong(before);
}

static PyMethodDef methods[] = {
    {"rgbx", py_rgbx, METH_VARARGS, "Copy pixels with padding 255; (min, max, sum, sum of squares, zeros)."},
    {"u8", py_u8, METH_O, "(min, max, sum, sum of squares, zeros) of bytes."},
    {"f32", py_f32, METH_O, "(min, max, mean, std, zeros, nonfinite) of float32."},
    {"shrink", py_shrink, METH_VARARGS, "Means of boxes, as bytes."},
    {"unit", py_unit, METH_VARARGS, "Whether all float32 are k/255; the k are written."},
    {"palette", py_palette, METH_VARARGS, "Table of at most 256 float32; their levels are written. Else None."},
    {"rgb_rows", py_rgb_rows, METH_VARARGS, "R, G, B minus the row above."},
    {"same_memory", py_same_memory, METH_VARARGS, "Whether the memory at (address, size) pairs equals these bytes."},
    {"copy_memory", py_copy_memory, METH_VARARGS, "Copy the memory at (address, size) pairs."},
    {"loops", py_loops, METH_VARARGS, "Whether the wide loops are in use; an argument sets it, for tests."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
#if HAVE_AVX2
    __builtin_cpu_init();
    wide_loops = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
