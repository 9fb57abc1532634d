/* What follows from the outputs of a classifier for a batch: the same as `_grade_with_numpy` of recorders/model/predictions.py computes.
 *
 * numpy takes thirty calls for it, whatever the size of the batch: for few classes they take longer than the numbers. */

enum { G_LABEL, G_LABEL_NAME, G_PREDICTED, G_PREDICTED_NAME, G_CONFIDENCE, G_CORRECT, G_MARGIN, G_ENTROPY, G_RANK, G_INSIDE, G_COUNT };

/* The best class and the second best probability of a row, and its entropy. */
typedef struct {
    Py_ssize_t best;
    int is_finite;
    double top, second, entropy;
} Grade;

static Grade grade_row(const float *probabilities, const float *ranked, Py_ssize_t width) {
    Grade g = {.is_finite = 1, .second = width > 1 ? -INFINITY : 0.0};
    double sum = 0.0;
    for (Py_ssize_t i = 0; i < width; i++) {
        double p = probabilities[i];
        if (!isfinite(p)) return (Grade){.is_finite = 0};
        if (p > 0) sum += p * log(p);
        if (ranked[i] > ranked[g.best]) g.best = i;
    }
    g.top = probabilities[g.best], g.entropy = -sum;
    for (Py_ssize_t i = 0; i < width; i++)
        if (i != g.best && probabilities[i] > g.second) g.second = probabilities[i];
    return g;
}

/* The rank of a class, from 1 for the greatest; of equal ones the first is first. */
static Py_ssize_t rank_of(const float *ranked, Py_ssize_t width, Py_ssize_t at) {
    Py_ssize_t rank = 1;
    for (Py_ssize_t i = 0; i < width; i++) rank += ranked[i] > ranked[at] || (ranked[i] == ranked[at] && i < at);
    return rank;
}

static PyObject *class_name(PyObject *classes, Py_ssize_t number) {
    return new_ref(number >= 0 && number < PyList_Size(classes) ? PyList_GetItem(classes, number) : Py_None);
}

/* Put the values of one row into the lists; the place of its label, or 0, into `*at`. 0, or -1 for an error or an unusual label. */
static int grade_sample(PyObject **lists, Py_ssize_t row, PyObject *label, PyObject *classes, const Grade *g, const float *ranked,
                        Py_ssize_t width, int64_t *at) {
    PyObject *made[G_COUNT];
    int is_known = label != Py_None, is_named = classes != Py_None, good = 0;
    if (is_known && !PyLong_CheckExact(label)) return -1;
    Py_ssize_t number = is_known ? PyLong_AsSsize_t(label) : -1;
    if (number == -1 && PyErr_Occurred()) return -1;
    int is_inside = is_known && number >= 0 && number < width;
    *at = is_inside ? number : 0;
    for (int i = 0; i < G_COUNT; i++) made[i] = NULL;
    made[G_LABEL] = new_ref(label);
    made[G_LABEL_NAME] = is_known && is_named ? class_name(classes, number) : new_ref(Py_None);
    made[G_INSIDE] = PyBool_FromLong(is_inside);
    made[G_CORRECT] = is_known ? PyBool_FromLong(g->is_finite && is_inside && g->best == number) : new_ref(Py_None);
    if (g->is_finite) {
        made[G_PREDICTED] = PyLong_FromSsize_t(g->best);
        made[G_PREDICTED_NAME] = is_named ? class_name(classes, g->best) : new_ref(Py_None);
        made[G_CONFIDENCE] = PyFloat_FromDouble((float)g->top);
        made[G_MARGIN] = PyFloat_FromDouble((float)(g->top - g->second));
        made[G_ENTROPY] = PyFloat_FromDouble((float)g->entropy);
        if (is_inside) made[G_RANK] = PyLong_FromSsize_t(rank_of(ranked, width, number));
    }
    for (int i = 0; i < G_COUNT; i++) {
        if (!made[i] && PyErr_Occurred()) good = -1;
        if (PyList_SetItem(lists[i], row, made[i] ? made[i] : new_ref(Py_None)) < 0) good = -1; /* takes the reference */
    }
    return good;
}

/* grade(probabilities, ranked, labels, classes) -> label, label_name, predicted, predicted_name, confidence, correct, margin, entropy,
 * label_rank, whether the label is one of the classes, as lists, and the places of the labels as 64-bit numbers. The first two are
 * rows of float32, of as many rows as there are labels. None where a label is not a whole number, or too large. */
static PyObject *py_grade(PyObject *self, PyObject *args) {
    PyObject *from, *by, *labels, *classes, *lists[G_COUNT], *places = NULL, *found = NULL;
    Py_buffer p, r;
    if (!PyArg_ParseTuple(args, "OOO!O:grade", &from, &by, &PyList_Type, &labels, &classes)) return NULL;
    Py_ssize_t count = PyList_Size(labels), width = 0;
    if (classes != Py_None && !PyList_Check(classes)) return PyErr_SetString(PyExc_TypeError, "classes must be a list"), NULL;
    if (PyObject_GetBuffer(from, &p, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(by, &r, PyBUF_SIMPLE) < 0) return PyBuffer_Release(&p), NULL;
    int good = count > 0 && p.len == r.len && p.len % (4 * count) == 0 && (width = p.len / 4 / count) > 0 ? 0 : -1;
    if (good < 0) PyErr_SetString(PyExc_ValueError, "as many rows of float32 as labels are needed");
    for (int i = 0; i < G_COUNT; i++) lists[i] = good == 0 ? PyList_New(count) : NULL;
    for (int i = 0; i < G_COUNT; i++)
        if (good == 0 && !lists[i]) good = -1;
    if (good == 0 && !(places = PyByteArray_FromStringAndSize(NULL, 8 * count))) good = -1;
    for (Py_ssize_t row = 0; good == 0 && row < count; row++) {
        const float *own = (const float *)p.buf + row * width, *ranked = (const float *)r.buf + row * width;
        const Grade g = grade_row(own, ranked, width);
        int64_t at = 0;
        good = grade_sample(lists, row, PyList_GetItem(labels, row), classes, &g, ranked, width, &at);
        memcpy(PyByteArray_AsString(places) + 8 * row, &at, 8);
    }
    PyBuffer_Release(&p);
    PyBuffer_Release(&r);
    if (good == 0 && (found = PyTuple_New(G_COUNT + 1))) {
        for (int i = 0; i < G_COUNT; i++) PyTuple_SetItem(found, i, new_ref(lists[i]));
        PyTuple_SetItem(found, G_COUNT, new_ref(places));
    } else if (good < 0 && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_OverflowError))) {
        PyErr_Clear();
        found = new_ref(Py_None);
    }
    for (int i = 0; i < G_COUNT; i++) Py_XDECREF(lists[i]);
    Py_XDECREF(places);
    return found;
}
