/* One stage of a visit as nearly all are: called with one value, the very one that the last stage returned.
 *
 * It does what `Visit.run` does, which every other call is handed to, and twenty Python functions for each stage of each sample
 * otherwise. Nothing is decided after the user's callable was called: until then, whatever is unusual goes to `Visit.run`. */
#include <time.h>

/* What is the same for every call of a stage, a tuple; see recorders/visit/planned_stage.py. */
enum { SLOW, ORDINAL, NAME, NOTE, ROW, SINGLE, BY_TYPE, TENSOR_KIND, TORCH, IMAGE_KIND, PILLOW, KEEPS_PIXELS, PLANNED };

/* Attributes of a visit, its rows and its notes, beside its members. */
enum { A_HAS_CALLS, A_CHANGES, A_PLACE, A_COUNTED, A_IS_INFERENCE, A_FAIL, A_FAIL_LOAD, A_NOTE, A_KEEP, A_CHECK_NONE, A_PIXELS, A_COUNT };
static const char *const attribute_texts[A_COUNT] = {
    "has_calls", "changes_in_place", "place", "_version", "is_inference", "fail", "fail_load", "_note", "_keep", "check_none", "_im"};
static PyObject *attribute_names[A_COUNT], *verify_level, *digest_level, *number_zero;

static int prepare_stages(void) {
    for (int i = 0; i < A_COUNT; i++)
        if (!(attribute_names[i] = PyUnicode_InternFromString(attribute_texts[i]))) return -1;
    verify_level = PyUnicode_InternFromString("verify");
    digest_level = PyUnicode_InternFromString("digest");
    number_zero = PyLong_FromLong(0);
    return verify_level && digest_level && number_zero ? 0 : -1;
}

static PyObject *get(PyObject *of, int name) { return PyObject_GetAttr(of, attribute_names[name]); }

/* The clock of Python's time.monotonic, which activity.py compares it with. */
#ifdef CLOCK_UPTIME_RAW
#define CLOCK CLOCK_UPTIME_RAW
#else
#define CLOCK CLOCK_MONOTONIC
#endif

static long long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long overhead_of(PyObject *visit) { return ((VisitState *)visit)->overhead; }

/* Whether an attribute is this object; -1 for an error. */
static int is_at(PyObject *of, int name, PyObject *wanted) { return attribute_is(of, attribute_names[name], wanted); }

/* Whether the visit has no follower, or one of which an attribute is False; -1 for an error. */
static int is_unfollowed(PyObject *visit, int name) {
    PyObject *follower = new_ref(field(visit, F_FOLLOWER));
    int is = follower == Py_None ? 1 : is_at(follower, name, Py_False);
    Py_DECREF(follower);
    return is;
}

/* Whether a value is the last stage's output as it was described, so that its digest is known; -1 for an error. */
static int is_last_output(PyObject *visit, PyObject *value, PyObject *last) {
    if (!is_row(last) || field(visit, F_VALUE) != value) return 0;
    PyObject *version = new_ref(row_field(last, W_VERSION)), *now = NULL;
    int is = -1;
    if (version == Py_None) {
        is = is_unfollowed(visit, A_CHANGES); /* arrays and pictures do not count their changes */
    } else if ((now = get(value, A_COUNTED))) {
        is = PyObject_RichCompareBool(now, version, Py_EQ);
    }
    Py_DECREF(version);
    Py_XDECREF(now);
    return is;
}

typedef struct {
    PyObject *rows, *last, *came_in; /* references of its own, while `is_usual` is 1 */
} Before;

/* Whether a call is as nearly all are; -1 for an error. */
static int is_usual(PyObject *plan, PyObject *visit, PyObject *given, PyObject *named, Before *b) {
    memset(b, 0, sizeof *b);
    if (PyTuple_Size(given) != 1 || PyDict_Size(named)) return 0;
    PyObject *value = PyTuple_GetItem(given, 0);
    int is = PyTuple_Check(value) ? 0 : PySet_Contains(PyTuple_GetItem(plan, SINGLE), (PyObject *)Py_TYPE(value));
    if (is != 1 || (is = is_unfollowed(visit, A_HAS_CALLS)) != 1) return is;
    if (field(visit, F_LEVEL) == verify_level) return 0;
    b->rows = new_ref(field(visit, F_ROWS)), b->last = new_ref(field(visit, F_LAST)), b->came_in = new_ref(field(visit, F_DIGEST));
    if (!PyDict_Check(b->rows) || b->came_in == Py_None) return 0;
    is = PyDict_Contains(b->rows, number_zero);
    if (is == 1 && (is = PyDict_Contains(b->rows, PyTuple_GetItem(plan, ORDINAL))) >= 0) is = !is;
    return is == 1 ? is_last_output(visit, value, b->last) : is;
}

static void forget(Before *b) {
    Py_CLEAR(b->rows);
    Py_CLEAR(b->last);
    Py_CLEAR(b->came_in);
}

/* What other processes can read of this one (recorders/activity.py): the stage while it runs, then what was there before. */
#define NOTED_MOST 128
typedef struct {
    Py_buffer view;
    Py_ssize_t size;
    int is_held;
    char before[NOTED_MOST];
} Noted;

static void note_begin(PyObject *visit, PyObject *note, Noted *n) {
    n->is_held = 0;
    PyObject *activity = new_ref(field(visit, F_ACTIVITY)), *place = activity != Py_None ? get(activity, A_PLACE) : NULL;
    n->size = PyBytes_Check(note) ? PyBytes_Size(note) : 0;
    if (place && place != Py_None && n->size && PyObject_GetBuffer(place, &n->view, PyBUF_WRITABLE) == 0) {
        n->is_held = 1;
        if (n->view.len > NOTED_MOST || n->view.len < n->size) n->size = 0;
        memcpy(n->before, n->view.buf, n->size ? (size_t)n->view.len : 0);
        memcpy(n->view.buf, PyBytes_AsString(note), (size_t)n->size);
    }
    PyErr_Clear(); /* a note is not worth an error */
    Py_XDECREF(place);
    Py_DECREF(activity);
}

#define LOADING 2
static const char own_code[] = "\1\7dataset";

static void note_end(Noted *n) {
    if (!n->is_held) return;
    if (n->size && n->before[0] == LOADING) memcpy(n->view.buf, own_code, sizeof own_code - 1);
    else if (n->size) memcpy(n->view.buf, n->before, (size_t)n->view.len);
    PyBuffer_Release(&n->view);
}

/* Tell the visit of the exception that is set, which stays set: `method` is given the stage and the exception. */
static void note_failure(PyObject *visit, int method, PyObject *stage) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace && error) PyException_SetTraceback(error, trace);
    Py_XDECREF(PyObject_CallMethodObjArgs(visit, attribute_names[method], stage, error, NULL));
    PyErr_Clear();
    PyErr_Restore(kind, error, trace);
}

/* The facts of an output, where these loops are what describes its kind; None for every other value, NULL for an error. */
static PyObject *facts_of_output(PyObject *plan, PyObject *output) {
    PyObject *kind = PyDict_GetItemWithError(PyTuple_GetItem(plan, BY_TYPE), (PyObject *)Py_TYPE(output));
    if (!kind) return PyErr_Occurred() ? NULL : new_ref(Py_None);
    if (kind == PyTuple_GetItem(plan, TENSOR_KIND)) return facts_of_tensor(output, PyTuple_GetItem(plan, TORCH));
    return kind == PyTuple_GetItem(plan, IMAGE_KIND) ? facts_of_picture(output, PyTuple_GetItem(plan, PILLOW)) : new_ref(Py_None);
}

/* Note how often a tensor was changed in place; pictures, and tensors of inference mode, do not count that. */
static int note_version(PyObject *plan, PyObject *output, PyObject *row) {
    PyObject *torch = PyTuple_GetItem(plan, TORCH);
    if (PyTuple_Size(torch) != KNOWN || (PyObject *)Py_TYPE(output) != PyTuple_GetItem(torch, TENSOR)) return 0;
    int is_counted = method_gives(output, attribute_names[A_IS_INFERENCE], Py_False);
    if (is_counted != 1) return is_counted;
    PyObject *version = get(output, A_COUNTED);
    if (!version) return -1;
    put_object(((RowState *)row)->fields + W_VERSION, version);
    Py_DECREF(version);
    return 0;
}

/* Make the row of an output, and make it the visit's last one; `came_in` is the digest that it may share, or None.
 * 0, or -1 for an error. */
static int note_facts(PyObject *plan, PyObject *visit, PyObject *rows, PyObject *came_in, PyObject *output, PyObject *facts, long long spent) {
    PyObject *digest = PyTuple_GetItem(facts, 4), *time = PyFloat_FromDouble(spent / 1000.0), *row = NULL;
    int good = -1, is_same = PyObject_RichCompareBool(digest, came_in, Py_EQ);
    if (time && is_same >= 0)
        row = PyObject_CallFunctionObjArgs(PyTuple_GetItem(plan, ROW), facts, is_same ? Py_False : Py_True, Py_None, time, NULL);
    Py_XDECREF(time);
    if (!row || !is_row(row)) return Py_XDECREF(row), -1;
    if (note_version(plan, output, row) < 0) goto done;
    if (field(visit, F_LEVEL) != digest_level || is_same) {
        PyObject *kept = PyObject_CallMethodObjArgs(visit, attribute_names[A_KEEP], row, output, NULL);
        if (!kept) goto done;
        Py_DECREF(kept);
    }
    if (PyDict_SetItem(rows, PyTuple_GetItem(plan, ORDINAL), row) < 0) goto done;
    set_field(visit, F_VALUE, output), set_field(visit, F_DIGEST, digest), set_field(visit, F_LAST, row);
    good = 0;
done:
    Py_DECREF(row);
    return good;
}

/* Note that a stage ran, what it was given and what it returned; 0, or -1 for an error. */
static int note_passed(PyObject *plan, PyObject *visit, PyObject *value, PyObject *output) {
    PyObject *ordinal = PyTuple_GetItem(plan, ORDINAL), *passed = new_ref(field(visit, F_PASSED)), *ran = new_ref(field(visit, F_RAN));
    PyObject *pair = PyTuple_Pack(2, value, output);
    int good = pair ? PyObject_SetItem(passed, ordinal, pair) | PyList_Append(ran, ordinal) : -1;
    Py_XDECREF(pair);
    Py_DECREF(passed);
    Py_DECREF(ran);
    return good;
}

/* The facts of a stage's input where its output is a picture with the same pixels in the same memory; else NULL. Raises nothing. */
static PyObject *facts_of_input(PyObject *plan, PyObject *last, PyObject *value, PyObject *output) {
    if (PyTuple_GetItem(plan, KEEPS_PIXELS) != Py_True || !is_row(last)) return NULL;
    PyObject *before = get(value, A_PIXELS), *after = before ? get(output, A_PIXELS) : NULL, *facts = NULL;
    if (after && after == before && after != Py_None) facts = new_ref(row_field(last, W_FACTS));
    Py_XDECREF(before);
    Py_XDECREF(after);
    PyErr_Clear();
    return facts;
}

/* Describe what a stage returned, unless `facts` are known; takes that reference. A problem of describing is not one of the user's:
 * `Visit._note` notes it. */
static int note_output(PyObject *plan, PyObject *visit, PyObject *rows, PyObject *came_in, PyObject *output, PyObject *facts,
                       long long spent, long long ended) {
    if (!facts) facts = facts_of_output(plan, output);
    if (facts && facts != Py_None && note_facts(plan, visit, rows, came_in, output, facts, spent) == 0) {
        Py_DECREF(facts);
        ((VisitState *)visit)->overhead += nanoseconds() - ended;
        return 0;
    }
    PyErr_Clear();
    Py_XDECREF(facts);
    PyObject *time = PyLong_FromLongLong(spent), *made = NULL;
    if (time)
        made = PyObject_CallMethodObjArgs(visit, attribute_names[A_NOTE], PyTuple_GetItem(plan, ORDINAL), output, came_in, time, Py_None,
                                          NULL);
    Py_XDECREF(time);
    Py_XDECREF(made);
    return made ? 0 : -1;
}

/* run_stage(plan, visit, callable, args, kwargs) -> what the callable returns. */
static PyObject *py_run_stage(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Before b;
    Noted noted;
    if (count != 5 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != PLANNED || !PyTuple_Check(args[3]) || !PyDict_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "run_stage takes a plan, a visit, a callable, its arguments and its keyword arguments");
        return NULL;
    }
    PyObject *plan = args[0], *visit = args[1], *given = args[3], *output = NULL;
    int usual = is_visit(visit) ? is_usual(plan, visit, given, args[4], &b) : (memset(&b, 0, sizeof b), 0);
    if (usual != 1) {
        forget(&b);
        PyErr_Clear(); /* what could not be looked at is unusual */
        return PyObject_CallFunctionObjArgs(PyTuple_GetItem(plan, SLOW), visit, args[2], given, args[4], NULL);
    }
    long long overhead = overhead_of(visit);
    note_begin(visit, PyTuple_GetItem(plan, NOTE), &noted);
    long long begun = nanoseconds();
    output = PyObject_Call(args[2], given, NULL);
    long long ended = nanoseconds();
    note_end(&noted);
    if (!output) {
        note_failure(visit, A_FAIL, PyTuple_GetItem(plan, NAME));
        forget(&b);
        return NULL;
    }
    if (output == Py_None) {
        PyObject *allowed = PyObject_CallMethodObjArgs(visit, attribute_names[A_CHECK_NONE], PyTuple_GetItem(plan, NAME), NULL);
        Py_XDECREF(allowed);
        if (!allowed) {
            Py_DECREF(output);
            forget(&b);
            return NULL;
        }
    }
    PyObject *known = facts_of_input(plan, b.last, PyTuple_GetItem(given, 0), output);
    int good = note_output(plan, visit, b.rows, b.came_in, output, known, ended - begun - (overhead_of(visit) - overhead), ended);
    if (good == 0) good = note_passed(plan, visit, PyTuple_GetItem(given, 0), output);
    if (good != 0) PyErr_Clear(); /* recording never raises into the user's code */
    forget(&b);
    return output;
}
