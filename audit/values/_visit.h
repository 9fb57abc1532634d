/* A visit among several in a row, as nearly all are: see `VisitMaker.make_item` of recorders/visit/make.py.
 *
 * Its beginning and its end do all that their twins in Python do, or nothing: whatever is unusual is left to those. */

/* What is the same for all visits in a row, a tuple; see `Instrument.plan_visits` and `VisitMaker.begin_sequence`. */
enum { V_EXPECTED, V_LENGTHS, V_TYPE, V_PIPELINE, V_FOLLOWER, V_OPENED, V_CURRENT, V_STEPS, V_TORCH, V_REFUSES, V_DERIVES, V_ACTIVITY, V_PLANNED };

enum { S_VISIT, S_REFUSES, S_DERIVES, S_INDEX, S_SAMPLE, S_PROCESS, S_CALLS, S_STAGES, S_IN_PLACE, S_ASKED, S_PROBLEM, S_PICTURE, S_ROUTE, S_AXES,
       S_COUNT };
static const char *const visit_texts[S_COUNT] = {"visit", "refuse_none", "derives", "index", "_sample", "_process", "calls", "_stages",
                                                 "changed_in_place", "asked", "problem", "_picture", "route", "ndim"};
static PyObject *visit_names[S_COUNT];

static int prepare_visits(void) {
    for (int i = 0; i < S_COUNT; i++)
        if (!(visit_names[i] = PyUnicode_InternFromString(visit_texts[i]))) return -1;
    return 0;
}

static int set(PyObject *of, PyObject *name, PyObject *value) { return PyObject_SetAttr(of, name, value); }

/* Write to the memory that other processes read (recorders/activity.py); 0, or -1 where there is none yet. */
static int write_at(PyObject *activity, PyObject *name, const void *from, Py_ssize_t size) {
    Py_buffer view;
    PyObject *place = PyObject_GetAttr(activity, name);
    int good = place && place != Py_None ? PyObject_GetBuffer(place, &view, PyBUF_WRITABLE) : -1;
    if (good == 0) {
        good = view.len >= size ? 0 : -1;
        if (good == 0) memcpy(view.buf, from, (size_t)size);
        PyBuffer_Release(&view);
    }
    Py_XDECREF(place);
    return good;
}

/* As `Activity.begin`: the process, the sample and the time, and that it is loaded. */
static int note_sample(PyObject *activity, PyObject *index) {
    static const char loading[] = "\2\4load";
    struct { int64_t process, index; double begun; } sample;
    PyObject *process = PyObject_GetAttr(activity, visit_names[S_PROCESS]);
    sample.process = process ? PyLong_AsLongLong(process) : -1;
    sample.index = PyLong_AsLongLong(index);
    sample.begun = (double)nanoseconds() * 1e-9;
    Py_XDECREF(process);
    if (PyErr_Occurred() || write_at(activity, attribute_names[A_PLACE], "", 1) < 0) return -1;
    return write_at(activity, visit_names[S_SAMPLE], &sample, sizeof sample) | write_at(activity, attribute_names[A_PLACE], loading, 6);
}

static int is_visit_plan(PyObject *plan) {
    return PyTuple_Check(plan) && PyTuple_Size(plan) == V_PLANNED && PyList_Check(PyTuple_GetItem(plan, V_EXPECTED)) &&
           PyList_Check(PyTuple_GetItem(plan, V_LENGTHS)) && PyList_Check(PyTuple_GetItem(plan, V_OPENED)) &&
           PyTuple_Check(PyTuple_GetItem(plan, V_TORCH)) && PyLong_Check(PyTuple_GetItem(plan, V_STEPS));
}

/* A visit that is under way, or NULL where something is unusual. Raises nothing. */
static PyObject *begin_visit(PyObject *plan, PyObject *index, PyObject *level) {
    PyObject *activity = PyTuple_GetItem(plan, V_ACTIVITY), *opened = PyTuple_GetItem(plan, V_OPENED);
    if (holds_items(PyTuple_GetItem(plan, V_EXPECTED), PyTuple_GetItem(plan, V_LENGTHS)) != 1) return PyErr_Clear(), NULL;
    PyObject *visit = PyObject_CallFunctionObjArgs(PyTuple_GetItem(plan, V_TYPE), PyTuple_GetItem(plan, V_PIPELINE), level, NULL);
    int is = visit && is_visit(visit);
    if (is) set_field(visit, F_ACTIVITY, activity), set_field(visit, F_FOLLOWER, PyTuple_GetItem(plan, V_FOLLOWER));
    /* The last two are what other code sees of the visit: nothing can fail after them. */
    if (is && set(visit, visit_names[S_REFUSES], PyTuple_GetItem(plan, V_REFUSES)) == 0 &&
        set(visit, visit_names[S_DERIVES], PyTuple_GetItem(plan, V_DERIVES)) == 0 && set(visit, visit_names[S_INDEX], index) == 0 &&
        set(visit, load_names[L_OPENED], opened) == 0 && PyList_SetSlice(opened, 0, PyList_Size(opened), NULL) == 0 &&
        (activity == Py_None || note_sample(activity, index) == 0) && set(PyTuple_GetItem(plan, V_CURRENT), visit_names[S_VISIT], visit) == 0)
        return visit;
    PyErr_Clear();
    Py_XDECREF(visit);
    return NULL;
}

static int is_none(PyObject *of, PyObject *name) { return attribute_is(of, name, Py_None); }

/* Whether an item is (tensor, whole number), the tensor what the last stage gave, and nothing of the visit is left to explain. */
static int is_plain_end(PyObject *plan, PyObject *visit, PyObject *item, PyObject *rows, PyObject *last) {
    PyObject *torch = PyTuple_GetItem(plan, V_TORCH);
    if (!PyTuple_CheckExact(item) || PyTuple_Size(item) != 2 || !PyLong_CheckExact(PyTuple_GetItem(item, 1))) return 0;
    PyObject *value = PyTuple_GetItem(item, 0);
    if (PyTuple_Size(torch) != KNOWN || (PyObject *)Py_TYPE(value) != PyTuple_GetItem(torch, TENSOR) || !PyDict_Check(rows)) return 0;
    if (PyDict_Size(rows) != PyLong_AsSsize_t(PyTuple_GetItem(plan, V_STEPS)) || PyDict_Contains(rows, number_zero) != 1) return 0;
    if (is_none(visit, row_names[R_ERROR]) != 1 || is_none(visit, visit_names[S_CALLS]) != 1 || is_none(visit, visit_names[S_STAGES]) != 1 ||
        is_none(visit, visit_names[S_ASKED]) != 1 || is_none(visit, visit_names[S_PROBLEM]) != 1)
        return 0;
    PyObject *changed = PyObject_GetAttr(visit, visit_names[S_IN_PLACE]), *axes = PyObject_GetAttr(value, visit_names[S_AXES]);
    int is = changed && axes && PyObject_IsTrue(changed) == 0 && PyObject_IsTrue(axes) == 1 && is_last_output(visit, value, last) == 1;
    Py_XDECREF(axes);
    Py_XDECREF(changed);
    return is;
}

/* Whether the visit has ended; 0 where something is unusual. Raises nothing. */
static int end_visit(PyObject *plan, PyObject *visit, PyObject *item) {
    PyObject *activity = PyTuple_GetItem(plan, V_ACTIVITY), *list = PyTuple_GetItem(plan, V_OPENED);
    PyObject *rows = new_ref(field(visit, F_ROWS)), *last = new_ref(field(visit, F_LAST)), *passed = new_ref(field(visit, F_PASSED));
    PyObject *route = NULL, *opened = NULL;
    int is = PyDict_Check(passed) && is_plain_end(plan, visit, item, rows, last);
    if (is && (route = PySequence_Tuple(rows)) && (opened = PyList_GetSlice(list, 0, PyList_Size(list)))) {
        PyDict_Clear(passed);
        is = set(visit, load_names[L_OPENED], opened) == 0 && set(visit, visit_names[S_ROUTE], route) == 0 &&
             set(visit, visit_names[S_PICTURE], Py_None) == 0 && set(PyTuple_GetItem(plan, V_CURRENT), visit_names[S_VISIT], Py_None) == 0;
        if (is) set_field(visit, F_VALUE, Py_None), set_field(visit, F_LAST, Py_None);
        if (is && activity != Py_None && write_at(activity, attribute_names[A_PLACE], "", 1) < 0) PyErr_Clear();
    } else is = 0;
    PyErr_Clear();
    Py_XDECREF(opened);
    Py_XDECREF(route);
    Py_XDECREF(passed);
    Py_XDECREF(last);
    Py_XDECREF(rows);
    return is;
}

/* What shows in memory that nothing was drawn, a tuple; see `Watch.unchanged_memory` of recorders/randomness/watch.py. */
enum { U_PLACES, U_BYTES, U_HELD, U_HOLDERS, U_SIZES, U_EMPTY, U_COUNT };

static int has_drawn_nothing(PyObject *memory) {
    PyObject *m[U_COUNT];
    if (!PyTuple_Check(memory) || PyTuple_Size(memory) != U_COUNT) return 0;
    for (int i = 0; i < U_COUNT; i++) m[i] = PyTuple_GetItem(memory, i);
    for (int i = U_HELD; i < U_COUNT; i++)
        if (!PyList_Check(m[i])) return 0;
    int is = has_same_state(m[U_PLACES], m[U_BYTES], m[U_HELD]) == 1 && has_same_holders(m[U_HOLDERS], m[U_SIZES], m[U_EMPTY]) == 1;
    PyErr_Clear();
    return is;
}

/* Take the exception that is set, with its traceback. */
static PyObject *take_error(void) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace && error) PyException_SetTraceback(error, trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return error ? error : new_ref(Py_None);
}

/* make_visit(plan, memory, dataset, index, level) -> (visit, item, what the dataset raised, whether the visit has ended, whether it is
 * certain that it drew nothing); None where it must be begun in another way. */
static PyObject *py_make_visit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 5 || !is_visit_plan(args[0]))
        return PyErr_SetString(PyExc_TypeError, "make_visit takes a plan, memory, a dataset, an index and a level"), NULL;
    PyObject *visit = begin_visit(args[0], args[3], args[4]);
    if (!visit) Py_RETURN_NONE;
    PyObject *item = PyObject_GetItem(args[2], args[3]), *error = item ? new_ref(Py_None) : take_error();
    int has_ended = item && end_visit(args[0], visit, item);
    int is_still = has_ended && has_drawn_nothing(args[1]);
    return Py_BuildValue("(NNNOO)", visit, item ? item : new_ref(Py_None), error, has_ended ? Py_True : Py_False,
                         is_still ? Py_True : Py_False);
}
