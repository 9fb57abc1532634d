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

/* A visit that was made, perhaps not to its end, and what came of it: references of its own. */
typedef struct {
    PyObject *visit, *item, *error;
    int has_ended, is_still;
} Made;

/* 0, or -1 where the visit must be begun in another way. */
static int make_one(PyObject *plan, PyObject *memory, PyObject *dataset, PyObject *index, PyObject *level, Made *m) {
    if (!(m->visit = begin_visit(plan, index, level))) return -1;
    m->item = PyObject_GetItem(dataset, index);
    m->error = m->item ? new_ref(Py_None) : take_error();
    m->has_ended = m->item && end_visit(plan, m->visit, m->item);
    m->is_still = m->has_ended && has_drawn_nothing(memory);
    return 0;
}

/* (visit, item, what the dataset raised, whether the visit has ended, whether it is certain that it drew nothing) */
static PyObject *give_made(Made *m) {
    return Py_BuildValue("(NNNOO)", m->visit, m->item ? m->item : new_ref(Py_None), m->error, m->has_ended ? Py_True : Py_False,
                         m->is_still ? Py_True : Py_False);
}

/* make_visit(plan, memory, dataset, index, level) -> what `give_made` gives; None where it must be begun in another way. */
static PyObject *py_make_visit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Made m;
    if (count != 5 || !is_visit_plan(args[0]))
        return PyErr_SetString(PyExc_TypeError, "make_visit takes a plan, memory, a dataset, an index and a level"), NULL;
    if (make_one(args[0], args[1], args[2], args[3], args[4], &m) < 0) Py_RETURN_NONE;
    return give_made(&m);
}

/* Where visits wait until their rows are gathered, a tuple; see `ItemRecorder.record_row` of recorders/visit/item_recorder.py. */
enum { Q_WAITING, Q_MADE, Q_FIND_FILE, Q_EMPTY, Q_COUNT };

static int is_queue(PyObject *queue) {
    return PyTuple_Check(queue) && PyTuple_Size(queue) == Q_COUNT && PyList_Check(PyTuple_GetItem(queue, Q_WAITING)) &&
           PyTuple_Check(PyTuple_GetItem(queue, Q_EMPTY));
}

/* Whether no thread has opened files, and nothing else has happened that a visit does not tell. */
static int are_empty(PyObject *containers) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(containers); i++)
        if (PyObject_Size(PyTuple_GetItem(containers, i)) != 0) return 0;
    return 1;
}

/* Let a visit wait, as `_add_later` does. The bytes of its file, or -1 where it is unusual, perhaps with an error. */
static long long add_to_queue(PyObject *queue, PyObject *dataset, PyObject *index, Made *m) {
    if (!m->is_still || !are_empty(PyTuple_GetItem(queue, Q_EMPTY))) return -1;
    PyObject *size = PyObject_GetAttr(m->visit, load_names[L_BYTES]), *file = NULL, *made = NULL, *one = NULL;
    int waits = 0;
    long long bytes = size && PyLong_CheckExact(size) ? PyLong_AsLongLong(size) : -1;
    Py_XDECREF(size);
    if (bytes < 0) return -1;
    file = PyObject_CallFunctionObjArgs(PyTuple_GetItem(queue, Q_FIND_FILE), dataset, index, NULL);
    if (file && file != Py_None) {
        PyObject *value = PyTuple_GetItem(m->item, 0), *label = PyTuple_GetItem(m->item, 1);
        made = PyObject_CallFunctionObjArgs(PyTuple_GetItem(queue, Q_MADE), m->visit, m->item, value, label, NULL);
    }
    if (made && (one = PyTuple_Pack(3, index, made, file)))
        waits = set(m->visit, load_names[L_LOAD], Py_None) == 0 && PyList_Append(PyTuple_GetItem(queue, Q_WAITING), one) == 0;
    Py_XDECREF(file);
    Py_XDECREF(made);
    Py_XDECREF(one);
    return waits ? bytes : -1;
}

static int is_index(PyObject *index) {
    if (!PyLong_CheckExact(index)) return 0;
    int overflow;
    return PyLong_AsLongLongAndOverflow(index, &overflow) >= 0 && !overflow;
}

/* make_visits(plan, memory, dataset, indices, level, items, queue, most, most_bytes) -> the first one that is unusual as `give_made` gives
 * it, or None, and the bytes of the files of those that wait. Makes the items that are missing in `items`, at most `most`. */
static PyObject *py_make_visits(PyObject *self, PyObject *args) {
    PyObject *plan, *memory, *dataset, *indices, *level, *items, *queue;
    Py_ssize_t most;
    long long most_bytes, bytes = 0;
    if (!PyArg_ParseTuple(args, "OOOO!OO!OnL:make_visits", &plan, &memory, &dataset, &PyList_Type, &indices, &level, &PyList_Type, &items,
                          &queue, &most, &most_bytes))
        return NULL;
    if (!is_visit_plan(plan) || !is_queue(queue)) return PyErr_SetString(PyExc_TypeError, "make_visits takes a plan and a queue"), NULL;
    for (; most > 0 && bytes <= most_bytes && PyList_Size(items) < PyList_Size(indices); most--) {
        Made m;
        PyObject *index = new_ref(PyList_GetItem(indices, PyList_Size(items)));
        if (!is_index(index) || make_one(plan, memory, dataset, index, level, &m) < 0) {
            Py_DECREF(index);
            break;
        }
        long long size = add_to_queue(queue, dataset, index, &m);
        Py_DECREF(index);
        if (size < 0) {
            PyErr_Clear(); /* the slower way meets it too */
            return Py_BuildValue("(NL)", give_made(&m), bytes);
        }
        bytes += size;
        int is_added = PyList_Append(items, m.item);
        Py_DECREF(m.visit);
        Py_DECREF(m.item);
        Py_DECREF(m.error);
        if (is_added < 0) return NULL;
    }
    return Py_BuildValue("(OL)", Py_None, bytes);
}
