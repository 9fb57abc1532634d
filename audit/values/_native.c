/* Statistics, previews and palettes at the speed of memory, for audit/values; optional, and never the only way.
 *
 * Everything here has a twin in numpy that gives the same answer, which is used where this file was not compiled.
 * It keeps no reference but to the list of opened files (_watch.h), writes to nothing but the buffers it is given or makes,
 * and lets go of the interpreter's lock around every long loop. Limited API: one build serves every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdio.h>

static PyObject *new_ref(PyObject *o) {
    Py_INCREF(o);
    return o;
}

#include "_kernels.h"
#include "_boxes.h"
#include "_shapes.h"
#include "_digest.h"
#include "_facts.h"
#include "_encode.h"
#include "_jpeg.h"
#include "_watch.h"
#include "_columns.h"

/* ---- which loops ------------------------------------------------------------------------------------------- */

#if HAVE_AVX2
#define TWICE(RESULT, NAME, PARAMETERS, ARGUMENTS)                        \
    static RESULT NAME##_plain PARAMETERS { return NAME ARGUMENTS; }      \
    AVX2 static RESULT NAME##_avx2 PARAMETERS { return NAME ARGUMENTS; }
#define PICK(NAME) (wide_loops ? NAME##_avx2 : NAME##_plain)
#define PICK_WIDEST(NAME) (wide_loops > 1 ? NAME##_avx512 : PICK(NAME))
#else
#define TWICE(RESULT, NAME, PARAMETERS, ARGUMENTS) \
    static RESULT NAME##_plain PARAMETERS { return NAME ARGUMENTS; }
#define PICK(NAME) NAME##_plain
#define PICK_WIDEST PICK
#endif

static int wide_loops = 0; /* 1: AVX2, 2: AVX-512. Set once when the module is loaded, and by the tests */

TWICE(void, shrink_bytes, (const uint8_t *s, const Layout *l, uint16_t *c, uint8_t *o), (s, l, c, o))
TWICE(void, shrink_floats, (const uint8_t *s, const Layout *l, float *c, float *o), (s, l, c, o))
TWICE(int, scale_to_bytes, (const float *m, size_t n, uint8_t *o), (m, n, o))
TWICE(int, palette_levels, (const uint8_t *s, size_t n, uint8_t *o, Palette *p), (s, n, o, p))
TWICE(void, rgb_rows, (const uint8_t *s, size_t h, size_t w, Packing p, uint8_t *l, uint8_t *o), (s, h, w, p, l, o))

TWICE(void, interleave, (const uint8_t *p, size_t n, uint8_t *o), (p, n, o))
TWICE(uint32_t, adler, (const uint8_t *p, size_t n), (p, n))
TWICE(int, is_unit, (const uint8_t *s, const uint8_t *p, size_t n), (s, p, n))
TWICE(int, same_pixels, (const uint8_t *a, const uint8_t *b, size_t n), (a, b, n))
TWICE(void, pad_pixels, (const uint8_t *s, size_t n, uint8_t *o), (s, n, o))

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
    PICK_WIDEST(rgbx)(s.data, out.buf, (size_t)s.size / 4, &b);
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
    PICK_WIDEST(bytes)(s.data, (size_t)s.size, &b);
    Py_END_ALLOW_THREADS
    let_go(&s);
    return sums(&b);
}

static PyObject *py_f32(PyObject *self, PyObject *from) {
    Source s;
    if (borrow(from, &s) < 0) return NULL;
    Summary f;
    Py_BEGIN_ALLOW_THREADS
    summarise(s.data, (size_t)s.size / 4, PICK_WIDEST(floats), &f);
    Py_END_ALLOW_THREADS
    let_go(&s);
    unsigned long long zeros = f.zeros, nonfinite = f.nonfinite;
    if (!f.finite) return Py_BuildValue("OOOOKK", Py_None, Py_None, Py_None, Py_None, zeros, nonfinite);
    return Py_BuildValue("ddddKK", f.low, f.high, f.mean, f.std, zeros, nonfinite);
}

/* ---- facts: digest and statistics at once ------------------------------------------------------------------ */

static Loops chosen_loops(void) {
    Loops use = {PICK_WIDEST(stripes), PICK_WIDEST(floats), NULL, PICK_WIDEST(bytes), PICK_WIDEST(rgbx), NULL};
#if HAVE_AVX2
    if (wide_loops > 1) use.pixel_stripes = pixel_stripes_avx512;
    if (wide_loops) use.float_stripes = wide_loops > 1 ? float_stripes_avx512 : float_stripes_avx2;
#endif
    return use;
}

static size_t put_text(char *to, size_t at, const char *text) {
    while (*text && at < HEADER_MOST) to[at++] = *text++;
    return at;
}

static size_t put_digits(char *to, size_t at, size_t number) {
    char digits[24];
    int count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count && at < HEADER_MOST) to[at++] = digits[--count];
    return at;
}

/* `kind|dtype|d0,d1,...|`, as hashing.header gives it; the length, or 0 where it is too long. No printf, whose code is long. */
static size_t write_header(char *to, const char *kind, const char *dtype, const Py_ssize_t *shape, Py_ssize_t axes) {
    size_t at = put_text(to, put_text(to, 0, kind), "|");
    at = put_text(to, put_text(to, at, dtype), "|");
    for (Py_ssize_t i = 0; i < axes; i++) at = put_digits(to, i ? put_text(to, at, ",") : at, (size_t)shape[i]);
    at = put_text(to, at, "|");
    return at < HEADER_MOST ? at : 0;
}

/* Letting go of the interpreter's lock for a few microseconds wakes the thread that waits for it, and costs more. */
#define SMALL_LOOP 65536 /* bytes */
#define BEGIN_LOOP(SIZE) PyThreadState *loop_state = (size_t)(SIZE) > SMALL_LOOP ? PyEval_SaveThread() : NULL;
#define END_LOOP if (loop_state) PyEval_RestoreThread(loop_state);

static PyObject *number_or_none(int is_known, double value) {
    return is_known ? PyFloat_FromDouble(value) : new_ref(Py_None);
}

/* Values of a run have few shapes. One tuple for all that are equal: each would be one more object that waits to be written,
 * and that Python's garbage collector looks at. Takes the reference, and returns one. */
#define SHAPES_KEPT 8
static PyObject *shared_shape(PyObject *shape) {
    static PyObject *kept[SHAPES_KEPT]; /* guarded by the interpreter's lock */
    static int next = 0;
    for (int i = 0; shape && i < SHAPES_KEPT && kept[i]; i++) {
        int is_equal = PyObject_RichCompareBool(kept[i], shape, Py_EQ);
        if (is_equal < 0) PyErr_Clear();
        if (is_equal != 1) continue;
        Py_DECREF(shape);
        return new_ref(kept[i]);
    }
    if (!shape) return NULL;
    PyObject *before = kept[next];
    kept[next] = new_ref(shape);
    next = (next + 1) % SHAPES_KEPT;
    Py_XDECREF(before);
    return shape;
}

/* In the order of the fields of values.Facts, a tuple of the class. Takes the reference to `shape`. */
static PyObject *facts_tuple(PyObject *type, PyObject *kind, PyObject *dtype, PyObject *shape, PyObject *mode, const Facts *f,
                             Py_ssize_t size) {
    PyObject *parts[12] = {
        new_ref(kind), new_ref(dtype), shared_shape(shape), new_ref(mode), PyUnicode_FromStringAndSize(f->digest, 32),
        number_or_none(f->s.finite > 0, f->s.low), number_or_none(f->s.finite > 0, f->s.high),
        number_or_none(f->s.finite > 0, f->s.mean), number_or_none(f->s.finite > 0, f->s.std),
        PyLong_FromUnsignedLongLong(f->s.zeros), PyLong_FromUnsignedLongLong(f->s.nonfinite), PyLong_FromSsize_t(size),
    };
    int is_tuple = PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type);
    if (!is_tuple) PyErr_SetString(PyExc_TypeError, "facts are a tuple");
    allocfunc allocate = is_tuple ? (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc) : NULL;
    PyObject *made = allocate ? allocate((PyTypeObject *)type, 12) : NULL;
    for (int i = 0; i < 12; i++) {
        if (made && parts[i]) PyTuple_SetItem(made, i, parts[i]);
        else Py_XDECREF(parts[i]);
        if (!parts[i] && made) Py_CLEAR(made);
    }
    return made;
}

/* What the caller knows of torch: see values/tensor.py. */
enum { TENSOR, FLOAT32, UINT8, STRIDED, KIND, FLOAT32_NAME, UINT8_NAME, DTYPE, IS_CPU, LAYOUT, IS_NESTED, IS_CONTIGUOUS,
       IS_NEG, IS_ZERO, DATA_PTR, SHAPE, FACTS, KNOWN };
#define AXES_MOST 16

typedef struct {
    const uint8_t *data;
    size_t width, count; /* bytes of an element, elements */
    PyObject *shape;     /* a tuple of its own */
    Py_ssize_t sides[AXES_MOST], axes;
} TensorMemory;

/* -1 for an error, 0 for no, 1 for yes. Steals nothing. */
static int attribute_is(PyObject *of, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_GetAttr(of, name);
    if (!found) return -1;
    int is = found == wanted;
    Py_DECREF(found);
    return is;
}

static int method_gives(PyObject *of, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_CallMethodObjArgs(of, name, NULL);
    if (!found) return -1;
    int is = found == wanted;
    Py_DECREF(found);
    return is;
}

static int read_shape(PyObject *value, PyObject *name, TensorMemory *m) {
    PyObject *shape = PyObject_GetAttr(value, name);
    if (!shape) return -1;
    m->shape = PySequence_Tuple(shape); /* torch.Size is a tuple of a class of its own */
    Py_DECREF(shape);
    if (!m->shape) return -1;
    m->axes = PyTuple_Size(m->shape);
    m->count = 1;
    if (m->axes > AXES_MOST) return 0;
    for (Py_ssize_t i = 0; i < m->axes; i++) {
        m->sides[i] = PyLong_AsSsize_t(PyTuple_GetItem(m->shape, i));
        if (m->sides[i] < 0) return PyErr_Occurred() ? -1 : 0;
        m->count *= (size_t)m->sides[i];
    }
    return 1;
}

/* Whether a tensor is plain, contiguous and on the CPU, of float32 or uint8, and not empty; else 0. Raises nothing. */
static int tensor_memory(PyObject *value, PyObject *known, TensorMemory *m) {
    PyObject *k[KNOWN];
    m->shape = NULL;
    if (!PyTuple_Check(known) || PyTuple_Size(known) != KNOWN) return 0;
    for (int i = 0; i < KNOWN; i++) k[i] = PyTuple_GetItem(known, i);
    if ((PyObject *)Py_TYPE(value) != k[TENSOR]) return 0;
    PyObject *dtype = PyObject_GetAttr(value, k[DTYPE]);
    m->width = dtype == k[FLOAT32] ? 4 : dtype == k[UINT8] ? 1 : 0;
    Py_XDECREF(dtype);
    int good = m->width && attribute_is(value, k[IS_CPU], Py_True) == 1 &&
               attribute_is(value, k[LAYOUT], k[STRIDED]) == 1 && attribute_is(value, k[IS_NESTED], Py_False) == 1 &&
               method_gives(value, k[IS_CONTIGUOUS], Py_True) == 1 && method_gives(value, k[IS_NEG], Py_False) == 1 &&
               method_gives(value, k[IS_ZERO], Py_False) == 1 && read_shape(value, k[SHAPE], m) == 1 && m->count;
    if (good) {
        PyObject *address = PyObject_CallMethodObjArgs(value, k[DATA_PTR], NULL);
        m->data = address ? PyLong_AsVoidPtr(address) : NULL;
        Py_XDECREF(address);
        good = m->data != NULL;
    }
    if (good) return 1;
    PyErr_Clear();
    Py_CLEAR(m->shape);
    return 0;
}

/* The facts of a plain float32 or uint8 tensor, or None for every other value. */
static PyObject *facts_of_tensor(PyObject *value, PyObject *known) {
    TensorMemory m;
    Hash h;
    Facts f;
    char header[HEADER_MOST];
    if (!tensor_memory(value, known, &m)) Py_RETURN_NONE;
    size_t head = write_header(header, "tensor", m.width == 4 ? "float32" : "uint8", m.sides, m.axes);
    if (!head || head + m.count * m.width < DIGEST_LEAST) return Py_DECREF(m.shape), new_ref(Py_None);
    const Loops use = chosen_loops();
    int good;
    hash_begin(&h, use.stripes, header, head, m.count * m.width);
    BEGIN_LOOP(m.count * m.width)
    good = m.width == 4 ? facts_of_floats(&use, &h, m.data, m.count, &f) : facts_of_bytes(&use, &h, m.data, m.count, &f);
    END_LOOP
    if (!good) return Py_DECREF(m.shape), new_ref(Py_None);
    PyObject *dtype = PyTuple_GetItem(known, m.width == 4 ? FLOAT32_NAME : UINT8_NAME);
    PyObject *type = PyTuple_GetItem(known, FACTS);
    return facts_tuple(type, PyTuple_GetItem(known, KIND), dtype, m.shape, Py_None, &f, (Py_ssize_t)(m.count * m.width));
}

/* tensor(value, known) -> its facts. */
static PyObject *py_tensor(PyObject *self, PyObject *args) {
    PyObject *value, *known;
    return PyArg_ParseTuple(args, "OO:tensor", &value, &known) ? facts_of_tensor(value, known) : NULL;
}

/* rows(value, known) -> the digest of each part of such a tensor along its first axis, or None. */
static PyObject *py_rows(PyObject *self, PyObject *args) {
    PyObject *value, *known, *made = NULL;
    TensorMemory m;
    char header[HEADER_MOST];
    if (!PyArg_ParseTuple(args, "OO:rows", &value, &known)) return NULL;
    if (!tensor_memory(value, known, &m)) Py_RETURN_NONE;
    Py_DECREF(m.shape);
    if (m.axes < 2) Py_RETURN_NONE;
    size_t count = (size_t)m.sides[0], size = m.count / count * m.width;
    size_t head = write_header(header, "tensor", m.width == 4 ? "float32" : "uint8", m.sides + 1, m.axes - 1);
    if (!head || head + size < DIGEST_LEAST) Py_RETURN_NONE;
    char *found = PyMem_Malloc(32 * count);
    if (!found) return PyErr_NoMemory();
    const StripesLoop stripes = PICK_WIDEST(stripes);
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < count; i++) {
        Hash h;
        hash_begin(&h, stripes, header, head, size);
        hash_feed(&h, m.data + i * size, size);
        hash_finish(&h, found + 32 * i);
    }
    Py_END_ALLOW_THREADS
    made = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; made && i < count; i++) {
        PyObject *digest = PyUnicode_FromStringAndSize(found + 32 * i, 32);
        if (!digest || PyList_SetItem(made, (Py_ssize_t)i, digest) < 0) Py_CLEAR(made);
    }
    PyMem_Free(found);
    return made;
}

/* The facts of an RGB picture with four bytes a pixel; None where they need another way. Does not take references. */
static PyObject *facts_of_rgb(PyObject *from, Py_ssize_t height, Py_ssize_t width, PyObject *kind, PyObject *dtype, PyObject *mode,
                              PyObject *type) {
    Source s;
    Hash h;
    Facts f;
    Py_ssize_t sides[3] = {height, width, 3};
    char header[HEADER_MOST];
    int good;
    if (borrow(from, &s) < 0) return NULL;
    size_t head = write_header(header, "image", "RGB", sides, 3);
    if (!head || s.size < DIGEST_LEAST || sides[0] < 1 || sides[1] < 1 || s.size / 4 / sides[0] != sides[1] ||
        s.size != 4 * sides[0] * sides[1])
        return let_go(&s), new_ref(Py_None);
    const Loops use = chosen_loops();
    hash_begin(&h, use.stripes, header, head, (size_t)s.size);
    BEGIN_LOOP(s.size)
    good = facts_of_pixels(&use, &h, s.data, (size_t)s.size / 4, &f);
    END_LOOP
    let_go(&s);
    if (!good) Py_RETURN_NONE;
    PyObject *shape = Py_BuildValue("nnn", sides[0], sides[1], sides[2]);
    return facts_tuple(type, kind, dtype, shape, mode, &f, 3 * sides[0] * sides[1]);
}

/* pixels(source, height, width, kind, dtype, mode, type) -> the facts of an RGB picture; None where they need another way. */
static PyObject *py_pixels(PyObject *self, PyObject *args) {
    PyObject *from, *kind, *dtype, *mode, *type;
    Py_ssize_t height, width;
    if (!PyArg_ParseTuple(args, "OnnUUUO:pixels", &from, &height, &width, &kind, &dtype, &mode, &type)) return NULL;
    return facts_of_rgb(from, height, width, kind, dtype, mode, type);
}

/* What the caller knows of Pillow: see values/image.py. */
enum { PICTURE, CORE, PICTURE_FACTS, PICTURE_KIND, PICTURE_DTYPE, RGB_MODE, P_SIZE, P_CORE, P_MODE, P_PALETTE, P_INFO, P_TRANSPARENCY, P_ARROW,
       P_TILE, PLAIN, PICTURE_KNOWN };

/* Whether a picture is of a class that has its pixels where Pillow's own class has them, and is decoded; see values/pixels.py. */
static int is_plain_picture(PyObject *value, PyObject **k) {
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type == k[PICTURE]) return 1;
    if (!PySet_Check(k[PLAIN]) || PySet_Contains(k[PLAIN], type) != 1) return 0;
    PyObject *tile = PyObject_GetAttr(value, k[P_TILE]);
    int is = tile && PyList_Check(tile) && PyList_Size(tile) == 0;
    Py_XDECREF(tile);
    return is;
}

/* The pixels of a plain RGB picture that Pillow has in memory; NULL for every other one, perhaps with an error. */
static PyObject *pixels_of_picture(PyObject *value, PyObject *known, Py_ssize_t *height, Py_ssize_t *width) {
    PyObject *k[PICTURE_KNOWN], *made = NULL;
    for (int i = 0; i < PICTURE_KNOWN; i++) k[i] = PyTuple_GetItem(known, i);
    if (!is_plain_picture(value, k)) return NULL;
    PyObject *core = PyObject_GetAttr(value, k[P_CORE]), *mode = PyObject_GetAttr(value, k[P_MODE]);
    PyObject *size = PyObject_GetAttr(value, k[P_SIZE]), *info = PyObject_GetAttr(value, k[P_INFO]);
    int good = core && mode && size && info && (PyObject *)Py_TYPE(core) == k[CORE] && PyUnicode_Check(mode) &&
               PyUnicode_CompareWithASCIIString(mode, "RGB") == 0 && PyTuple_Check(size) && PyTuple_Size(size) == 2 &&
               PyDict_Check(info) && PyDict_Contains(info, k[P_TRANSPARENCY]) == 0 && attribute_is(value, k[P_PALETTE], Py_None) == 1;
    if (good) {
        *width = PyLong_AsSsize_t(PyTuple_GetItem(size, 0));
        *height = PyLong_AsSsize_t(PyTuple_GetItem(size, 1));
        if (*width > 0 && *height > 0) made = PyObject_CallMethodObjArgs(core, k[P_ARROW], NULL);
    }
    Py_XDECREF(info);
    Py_XDECREF(size);
    Py_XDECREF(mode);
    Py_XDECREF(core);
    return made;
}

/* The facts of such a picture, or None for every other value. */
static PyObject *facts_of_picture(PyObject *value, PyObject *known) {
    Py_ssize_t height, width;
    if (!PyTuple_Check(known) || PyTuple_Size(known) != PICTURE_KNOWN) Py_RETURN_NONE;
    PyObject *pixels = pixels_of_picture(value, known, &height, &width);
    PyObject *found = !pixels ? NULL : facts_of_rgb(pixels, height, width, PyTuple_GetItem(known, PICTURE_KIND),
                                                    PyTuple_GetItem(known, PICTURE_DTYPE), PyTuple_GetItem(known, RGB_MODE),
                                                    PyTuple_GetItem(known, PICTURE_FACTS));
    Py_XDECREF(pixels);
    if (found) return found;
    PyErr_Clear(); /* the slower way decides */
    Py_RETURN_NONE;
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

/* Means of boxes as bytes; None where floats forbid it. */
static PyObject *shrunk_bytes(const uint8_t *data, const Layout *l, int floats) {
    size_t count = l->planes * l->bands * shrunk(l->height, l->factor) * shrunk(l->width, l->factor);
    size_t line = l->width * l->step;
    int good = 1;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    void *column = PyMem_Malloc((2 * line + (floats ? count : 0)) * sizeof(float));
    if (!made || !column) {
        PyMem_Free(column);
        Py_XDECREF(made);
        return PyErr_NoMemory();
    }
    uint8_t *out = (uint8_t *)PyBytes_AsString(made);
    Py_BEGIN_ALLOW_THREADS
    if (floats) {
        float *means = (float *)column + 2 * line;
        PICK(shrink_floats)(data, l, column, means);
        good = PICK(scale_to_bytes)(means, count, out);
    } else {
        PICK(shrink_bytes)(data, l, column, out);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(column);
    if (good) return made;
    Py_DECREF(made);
    Py_RETURN_NONE;
}

/* shrink(source, is_float, planes, height, width, step, bands, factor) -> bytes, or None where floats forbid it. */
static PyObject *py_shrink(PyObject *self, PyObject *args) {
    PyObject *from;
    Source s;
    Layout l;
    int floats;
    if (!PyArg_ParseTuple(args, "Opnnnnnn:shrink", &from, &floats, &l.planes, &l.height, &l.width, &l.step, &l.bands,
                          &l.factor) || borrow(from, &s) < 0)
        return NULL;
    PyObject *made = fits(&l, s.size, floats ? 4 : 1) ? shrunk_bytes(s.data, &l, floats) : NULL;
    let_go(&s);
    return made;
}

/* shrink_tensor(value, known, side) -> (bytes, height, width, bands) of a plain tensor that looks like a picture, made small
 * enough for `side`; None for every other tensor. As thumbnail._as_bands and thumbnail._layout see it. */
static PyObject *py_shrink_tensor(PyObject *self, PyObject *args) {
    PyObject *value, *known;
    Py_ssize_t side;
    TensorMemory m;
    if (!PyArg_ParseTuple(args, "OOn:shrink_tensor", &value, &known, &side)) return NULL;
    if (side < 1 || !tensor_memory(value, known, &m)) Py_RETURN_NONE;
    Py_DECREF(m.shape);
    if (m.axes < 2 || m.axes > 3) Py_RETURN_NONE;
    Py_ssize_t *d = m.sides, last = m.axes == 3 ? d[2] : 1;
    int interleaved = last == 1 || last == 3 || last == 4;
    if (!interleaved && d[0] != 1 && d[0] != 3 && d[0] != 4) Py_RETURN_NONE;
    size_t bands = (size_t)(interleaved ? last : d[0]);
    Layout l = {.height = (size_t)d[interleaved ? 0 : 1], .width = (size_t)d[interleaved ? 1 : 2]};
    l.planes = interleaved ? 1 : bands, l.step = l.bands = interleaved ? bands : 1;
    l.factor = shrunk(l.height > l.width ? l.height : l.width, (size_t)side);
    if (l.height < 2 || l.width < 2 || l.factor < 2 || l.factor > FACTOR_MOST) Py_RETURN_NONE;
    PyObject *made = shrunk_bytes(m.data, &l, m.width == 4);
    if (!made || made == Py_None) return made;
    return Py_BuildValue("Nnnn", made, (Py_ssize_t)shrunk(l.height, l.factor), (Py_ssize_t)shrunk(l.width, l.factor),
                         (Py_ssize_t)bands);
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

/* ---- previews and exact bytes ------------------------------------------------------------------------------ */

#define TINY_MOST 65000 /* bytes of all lines of an uncompressed PNG */

/* Interleaved bytes of a small picture as a PNG; takes the memory of `pixels`. */
static PyObject *png_of(uint8_t *pixels, size_t height, size_t width, size_t bands) {
    size_t size = height * (width * bands + 1);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + PNG_FRAME));
    if (made) write_png(pixels, height, width, bands, (Checksums){PICK(crc), PICK(adler)}, (uint8_t *)PyBytes_AsString(made));
    PyMem_Free(pixels);
    return made;
}

/* tiny(source, height, width) -> PNG of an RGB picture of four bytes a pixel; None where it is not tiny. */
static PyObject *py_tiny(PyObject *self, PyObject *args) {
    PyObject *from;
    Source s;
    Py_ssize_t height, width;
    if (!PyArg_ParseTuple(args, "Onn:tiny", &from, &height, &width) || borrow(from, &s) < 0) return NULL;
    if (height < 1 || width < 1 || s.size / 4 / height != width || s.size != 4 * height * width ||
        height * (3 * width + 1) > TINY_MOST)
        return let_go(&s), new_ref(Py_None);
    uint8_t *pixels = PyMem_Malloc((size_t)(3 * height * width + 16));
    if (pixels) PICK(pack)(s.data, (size_t)(height * width), pixels);
    let_go(&s);
    return pixels ? png_of(pixels, (size_t)height, (size_t)width, 3) : PyErr_NoMemory();
}

/* tiny_tensor(value, known, most) -> PNG of a tensor of at most so many elements that looks like a picture; else None. */
static PyObject *py_tiny_tensor(PyObject *self, PyObject *args) {
    PyObject *value, *known;
    Py_ssize_t most;
    TensorMemory m;
    if (!PyArg_ParseTuple(args, "OOn:tiny_tensor", &value, &known, &most)) return NULL;
    if (!tensor_memory(value, known, &m)) Py_RETURN_NONE;
    Py_DECREF(m.shape);
    if (m.axes < 2 || m.axes > 3 || m.count > (size_t)most || most > TINY_MOST / 2) Py_RETURN_NONE;
    Py_ssize_t *d = m.sides, last = m.axes == 3 ? d[2] : 1;
    int interleaved = m.axes == 2 || last == 1 || last == 3;
    if (!interleaved && (last == 4 || (d[0] != 1 && d[0] != 3))) Py_RETURN_NONE; /* four bands need another way */
    size_t bands = (size_t)(interleaved ? last : d[0]), height = (size_t)d[interleaved ? 0 : 1];
    size_t width = (size_t)d[interleaved ? 1 : 2], area = height * width;
    if (height < 2 || width < 2) Py_RETURN_NONE;
    uint8_t *pixels = PyMem_Malloc(m.count), *planes = NULL;
    float *floats = m.width == 4 ? PyMem_Malloc(4 * m.count) : NULL;
    int good = pixels && (m.width == 1 || floats);
    if (good && m.width == 4) {
        memcpy(floats, m.data, 4 * m.count);
        good = PICK(scale_to_bytes)(floats, m.count, pixels);
    } else if (good) {
        memcpy(pixels, m.data, m.count);
    }
    PyMem_Free(floats);
    if (good && !interleaved && bands > 1 && (planes = PyMem_Malloc(m.count))) {
        PICK(interleave)(pixels, area, planes); /* one band needs nothing, and four went away above */
        PyMem_Free(pixels);
        pixels = planes;
    }
    if (good && (interleaved || bands == 1 || planes)) return png_of(pixels, height, width, bands);
    PyMem_Free(pixels);
    Py_RETURN_NONE;
}

/* jpeg(pixels, height, width, head) -> the JPEG of interleaved bytes after a head of Pillow's; None where it needs another way. */
static PyObject *py_jpeg(PyObject *self, PyObject *args) {
    const uint8_t *pixels, *given;
    Py_ssize_t size, height, width, head;
    JpegTables tables;
    if (!PyArg_ParseTuple(args, "y#nny#:jpeg", &pixels, &size, &height, &width, &given, &head)) return NULL;
    if (height < 1 || width < 1 || height > JPEG_SIDE || width > JPEG_SIDE) Py_RETURN_NONE;
    uint8_t *out = PyMem_Malloc((size_t)head + jpeg_most((size_t)height, (size_t)width)), *end = NULL;
    JpegStrip *strip = PyMem_Malloc(sizeof *strip);
    if (out && strip) {
        memcpy(out, given, (size_t)head);
        if (read_head(out, (size_t)head, &tables) && size == height * width * tables.bands) {
            tables.sides[0] = 0, tables.sides[1] = (uint8_t)height, tables.sides[2] = 0, tables.sides[3] = (uint8_t)width;
            end = PICK(jpeg_data)(pixels, (size_t)height, (size_t)width, &tables, strip, out + head);
        }
    }
    if (end) *end++ = 0xFF, *end++ = 0xD9;
    PyObject *made = !out || !strip ? PyErr_NoMemory()
                     : end ? PyBytes_FromStringAndSize((const char *)out, end - out) : new_ref(Py_None);
    PyMem_Free(strip);
    PyMem_Free(out);
    return made;
}

/* Whether a source has height × width pixels of four bytes. */
static int is_rgb(const Source *s, Py_ssize_t height, Py_ssize_t width) {
    return height > 0 && width > 0 && s->size / 4 / height == width && s->size == 4 * height * width;
}

/* bits(source, height, width, head, scratch) -> an RGB picture of four bytes a pixel as docs/FORMAT-values.md has it, after `head`. */
static PyObject *py_bits(PyObject *self, PyObject *args) {
    PyObject *from, *scratch, *made = NULL;
    Source s;
    Py_buffer room;
    Py_ssize_t height, width, head;
    const char *begin;
    if (!PyArg_ParseTuple(args, "Onny#O:bits", &from, &height, &width, &begin, &head, &scratch) || borrow(from, &s) < 0)
        return NULL;
    if (PyObject_GetBuffer(scratch, &room, PyBUF_WRITABLE) < 0) return let_go(&s), NULL;
    size_t blocks = ((size_t)width + BITS_BLOCK - 1) / BITS_BLOCK, lines = 7 * blocks * BITS_BLOCK, size = 0;
    if (!is_rgb(&s, height, width) || (size_t)room.len < lines + 3 * (size_t)height * blocks * (BITS_BLOCK + 1) + 8) {
        PyErr_SetString(PyExc_ValueError, "the size does not fit the bytes");
    } else {
        uint8_t *out = (uint8_t *)room.buf + lines;
        Py_BEGIN_ALLOW_THREADS
        size = PICK(rgb_bits)(s.data, (size_t)height, (size_t)width, room.buf, out);
        Py_END_ALLOW_THREADS
        made = PyBytes_FromStringAndSize(NULL, head + (Py_ssize_t)size);
        if (made) {
            char *to = PyBytes_AsString(made);
            memcpy(to, begin, (size_t)head);
            memcpy(to + head, out, size);
        }
    }
    PyBuffer_Release(&room);
    let_go(&s);
    return made;
}

/* unbits(source, height, width) -> the bytes of the RGB picture that `bits` packed, three a pixel; None where the source has another length
 * than its widths say. */
static PyObject *py_unbits(PyObject *self, PyObject *args) {
    PyObject *from, *made = NULL;
    Source s;
    Py_ssize_t height, width;
    if (!PyArg_ParseTuple(args, "Onn:unbits", &from, &height, &width) || borrow(from, &s) < 0) return NULL;
    size_t line = ((size_t)width + BITS_BLOCK - 1) / BITS_BLOCK, size = (size_t)s.size;
    /* Each block has its width in the source, so that its length limits the size of the picture. */
    if (height <= 0 || width <= 0 || line > size / 3 || (size_t)height > size / (3 * line)) return let_go(&s), new_ref(Py_None);
    size_t blocks = 3 * (size_t)height * line, wanted = blocks;
    int good = 1;
    for (size_t i = 0; i < blocks; i++) {
        good &= s.data[i] <= 8;
        wanted += (size_t)s.data[i] * (BITS_BLOCK / 8);
    }
    if (!good || wanted != size) return let_go(&s), new_ref(Py_None);
    uint8_t *lines = PyMem_Malloc(4 * line * BITS_BLOCK);
    if (!lines) return let_go(&s), PyErr_NoMemory();
    made = PyBytes_FromStringAndSize(NULL, 3 * height * width);
    if (made) {
        uint8_t *out = (uint8_t *)PyBytes_AsString(made);
        Py_BEGIN_ALLOW_THREADS
        PICK(rgb_unbits)(s.data, s.data + blocks, (size_t)height, (size_t)width, lines, out);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(lines);
    let_go(&s);
    return made;
}

/* Whether a picture has this digest. */
static int has_digest(const Source *s, Py_ssize_t height, Py_ssize_t width, const char *digest) {
    Hash h;
    Py_ssize_t sides[3] = {height, width, 3};
    char header[HEADER_MOST], hex[32];
    size_t head = write_header(header, "image", "RGB", sides, 3), pixels = (size_t)s->size / 4;
    if (!head || head + (size_t)s->size < DIGEST_LEAST || strlen(digest) != sizeof hex) return 0;
    hash_begin(&h, PICK_WIDEST(stripes), header, head, (size_t)s->size);
    for (size_t at = 0; at < pixels; at += PIECE / 4) {
        uint8_t padded[PIECE];
        size_t some = upto(pixels, at, PIECE / 4);
        PICK(pad_pixels)(s->data + 4 * at, some, padded);
        hash_feed(&h, padded, 4 * some);
    }
    hash_finish(&h, hex);
    return memcmp(hex, digest, sizeof hex) == 0;
}

/* Borrow a picture where a value is float32 of shape (3, height, width): 1, 0 where it is not, and -1 for an error. */
static int borrow_planes(PyObject *from, Py_ssize_t height, Py_ssize_t width, PyObject *value, PyObject *known, Source *s, TensorMemory *m) {
    if (!tensor_memory(value, known, m)) return 0;
    Py_DECREF(m->shape);
    if (m->width != 4 || m->axes != 3 || m->sides[0] != 3 || m->sides[1] != height || m->sides[2] != width) return 0;
    if (borrow(from, s) < 0) return -1;
    if (is_rgb(s, height, width)) return 1;
    return let_go(s), 0;
}

/* unit_planes(source, height, width, digest, value, known) -> whether a tensor (3, height, width) is the bytes of a picture of this digest,
 * each divided by 255. */
static PyObject *py_unit_planes(PyObject *self, PyObject *args) {
    PyObject *from, *value, *known;
    Source s;
    Py_ssize_t height, width;
    const char *digest;
    TensorMemory m;
    if (!PyArg_ParseTuple(args, "OnnsOO:unit_planes", &from, &height, &width, &digest, &value, &known)) return NULL;
    int is = borrow_planes(from, height, width, value, known, &s, &m);
    if (is < 1) return is ? NULL : new_ref(Py_False);
    Py_BEGIN_ALLOW_THREADS
    is = PICK(is_unit)(s.data, m.data, m.count / 3) && has_digest(&s, height, width, digest);
    Py_END_ALLOW_THREADS
    let_go(&s);
    return PyBool_FromLong(is);
}

/* tables(source, height, width, digest, value, known) -> 3 * 256 float32, or None where a tensor (3, height, width) is not made of them,
 * or the picture has another digest. */
static PyObject *py_tables(PyObject *self, PyObject *args) {
    PyObject *from, *value, *known;
    Source s;
    Py_ssize_t height, width;
    const char *digest;
    TensorMemory m;
    uint32_t tables[3 * 256];
    if (!PyArg_ParseTuple(args, "OnnsOO:tables", &from, &height, &width, &digest, &value, &known)) return NULL;
    int good = borrow_planes(from, height, width, value, known, &s, &m);
    if (good < 1) return good ? NULL : new_ref(Py_None);
    size_t n = m.count / 3;
    memset(tables, 255, sizeof tables);
    Py_BEGIN_ALLOW_THREADS
    for (int band = 0; good && band < 3; band++)
        good = PICK(table_of)(s.data, m.data + 4 * n * (size_t)band, n, band, tables + 256 * band);
    good = good && has_digest(&s, height, width, digest);
    Py_END_ALLOW_THREADS
    let_go(&s);
    if (!good) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)tables, sizeof tables);
}

/* holds(whole, height, width, digest, part, its height, its width, left, top) -> whether that part of a picture of this digest
 * has these pixels. */
static PyObject *py_holds(PyObject *self, PyObject *args) {
    PyObject *from, *other;
    Source whole, part;
    Py_ssize_t height, width, tall, wide, left, top;
    const char *digest;
    int same = 0;
    if (!PyArg_ParseTuple(args, "OnnsOnnnn:holds", &from, &height, &width, &digest, &other, &tall, &wide, &left, &top)) return NULL;
    if (borrow(from, &whole) < 0) return NULL;
    if (borrow(other, &part) < 0) return let_go(&whole), NULL;
    if (is_rgb(&whole, height, width) && is_rgb(&part, tall, wide) && left >= 0 && top >= 0 && left <= width - wide &&
        top <= height - tall) {
        same = 1;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t y = 0; same && y < tall; y++)
            same = PICK(same_pixels)(whole.data + 4 * ((top + y) * width + left), part.data + 4 * y * wide, (size_t)wide);
        same = same && has_digest(&whole, height, width, digest);
        Py_END_ALLOW_THREADS
    }
    let_go(&part);
    let_go(&whole);
    return PyBool_FromLong(same);
}

/* The widest loops that this processor has. AVX-512 only where it comes with VBMI: earlier processors slow down for it. */
static int widest_loops(void) {
#if HAVE_AVX2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2") ||
        !__builtin_cpu_supports("pclmul"))
        return 0;
    int has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi");
    return has_512 ? 2 : 1;
#else
    return 0;
#endif
}

static PyObject *py_loops(PyObject *self, PyObject *args) {
    int wanted = -1, most = widest_loops();
    if (!PyArg_ParseTuple(args, "|i:loops", &wanted)) return NULL;
    int before = wide_loops;
    if (wanted >= 0) wide_loops = wanted < most ? wanted : most;
    return PyLong_FromLong(before);
}

#include "_state.h"
#include "_stage.h"
#include "_load.h"
#include "_sha.h"
#include "_rows.h"
#include "_visit.h"
#include "_grade.h"

static PyMethodDef methods[] = {
    {"rgbx", py_rgbx, METH_VARARGS, "Copy pixels with padding 255; (min, max, sum, sum of squares, zeros)."},
    {"u8", py_u8, METH_O, "(min, max, sum, sum of squares, zeros) of bytes."},
    {"f32", py_f32, METH_O, "(min, max, mean, std, zeros, nonfinite) of float32."},
    {"tensor", py_tensor, METH_VARARGS, "The facts of a plain tensor of float32 or uint8; else None."},
    {"rows", py_rows, METH_VARARGS, "The digests of the rows of such a tensor; else None."},
    {"pixels", py_pixels, METH_VARARGS, "The facts of an RGB picture of four bytes a pixel."},
    {"shrink", py_shrink, METH_VARARGS, "Means of boxes, as bytes."},
    {"shrink_tensor", py_shrink_tensor, METH_VARARGS, "The same of a plain tensor that looks like a picture; else None."},
    {"unit", py_unit, METH_VARARGS, "Whether all float32 are k/255; the k are written."},
    {"palette", py_palette, METH_VARARGS, "Table of at most 256 float32; their levels are written. Else None."},
    {"rgb_rows", py_rgb_rows, METH_VARARGS, "R, G, B minus the row above."},
    {"copy_memory", py_copy_memory, METH_VARARGS, "Copy the memory at (address, size) pairs."},
    {"tiny", py_tiny, METH_VARARGS, "A tiny RGB picture as an uncompressed PNG; else None."},
    {"tiny_tensor", py_tiny_tensor, METH_VARARGS, "A tiny tensor that looks like a picture as a PNG; else None."},
    {"jpeg", py_jpeg, METH_VARARGS, "A small picture as a JPEG, after a head of Pillow's; else None."},
    {"bits", py_bits, METH_VARARGS, "An RGB picture in as few bits as its rows need."},
    {"unbits", py_unbits, METH_VARARGS, "The RGB picture that `bits` packed."},
    {"unit_planes", py_unit_planes, METH_VARARGS, "Whether a float tensor is the bytes of a picture, divided by 255."},
    {"tables", py_tables, METH_VARARGS, "What each byte of a picture stands for in a float tensor; else None."},
    {"holds", py_holds, METH_VARARGS, "Whether a part of a picture has these pixels."},
    {"same_holders", py_same_holders, METH_VARARGS, "Whether containers have their lengths, and places hold None."},
    {"same_items", py_same_items, METH_VARARGS, "Whether containers hold objects in their places, and have their lengths."},
    {"same_state", py_same_state, METH_VARARGS, "Whether memory, and objects in their places, are what they were."},
    {"note_opened", py_note_opened, METH_VARARGS, "Put the files that a thread opens for reading into a list."},
    {"run_stage", (PyCFunction)(void (*)(void))py_run_stage, METH_FASTCALL, "Call a stage of a visit, and note what it returned."},
    {"run_load", (PyCFunction)(void (*)(void))py_run_load, METH_FASTCALL, "Read a visit's file, decode it, and note both."},
    {"note_load", (PyCFunction)(void (*)(void))py_note_load, METH_FASTCALL, "Note the value of stage 0; False where it needs another way."},
    {"make_visit", (PyCFunction)(void (*)(void))py_make_visit, METH_FASTCALL, "Make one of several visits in a row; else None."},
    {"make_visits", py_make_visits, METH_VARARGS, "Make visits in a row that wait for their rows, until one is unusual."},
    {"add_visits", py_add_visits, METH_VARARGS, "Append the rows of visits to lists, until one is unusual."},
    {"grade", py_grade, METH_VARARGS, "What follows from the outputs of a classifier; None where a label is unusual."},
    {"column", py_column, METH_VARARGS, "The buffers of an Arrow array of a list's values; else None."},
    {"loops", py_loops, METH_VARARGS, "How wide the loops in use are; an argument sets it, for tests."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
#if HAVE_AVX2
    __builtin_cpu_init();
#endif
    wide_loops = widest_loops();
    fill_crc_tables();
    return prepare_state(module) | prepare_stages() | prepare_loads() | prepare_rows() | prepare_visits();
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
