/* What each stage of a visit reads and writes, and the row that it leaves: members of the base classes of visits and rows
 * (recorders/visit/visit_state.py).
 *
 * Between two stages the user's code takes the processor's caches, so that to look up thirty attributes by their names takes longer
 * than all else that is done for a stage, but hashing its output. */
#include <stddef.h>
#include <structmember.h>

enum { F_VALUE, F_DIGEST, F_LAST, F_ROWS, F_LEVEL, F_FOLLOWER, F_ACTIVITY, F_PASSED, F_RAN, F_COUNT };
enum { W_FACTS, W_CHANGED, W_PARAMS, W_TIME, W_TARGET, W_PREVIEW, W_FULL, W_SHARED, W_VERSION, W_COUNT };
enum { W_GIVEN = 4 }; /* the first of them, in this order, are what a row is made of */

typedef struct {
    PyObject_HEAD
    PyObject *fields[F_COUNT]; /* NULL is None */
    long long overhead;
} VisitState;

typedef struct {
    PyObject_HEAD
    PyObject *fields[W_COUNT]; /* NULL is None */
} RowState;

#define FIELD(TYPE, NAME, NUMBER) {NAME, T_OBJECT, offsetof(TYPE, fields) + NUMBER * sizeof(PyObject *), 0, NULL}
static PyMemberDef visit_members[] = {
    FIELD(VisitState, "_value", F_VALUE), FIELD(VisitState, "_digest", F_DIGEST), FIELD(VisitState, "_last", F_LAST),
    FIELD(VisitState, "rows", F_ROWS), FIELD(VisitState, "_level", F_LEVEL), FIELD(VisitState, "follower", F_FOLLOWER),
    FIELD(VisitState, "activity", F_ACTIVITY), FIELD(VisitState, "_passed", F_PASSED), FIELD(VisitState, "_ran", F_RAN),
    {"_overhead", T_LONGLONG, offsetof(VisitState, overhead), 0, NULL}, {NULL, 0, 0, 0, NULL},
};
static PyMemberDef row_members[] = {
    FIELD(RowState, "facts", W_FACTS), FIELD(RowState, "changed", W_CHANGED), FIELD(RowState, "params", W_PARAMS),
    FIELD(RowState, "microseconds", W_TIME), FIELD(RowState, "target", W_TARGET), FIELD(RowState, "preview", W_PREVIEW),
    FIELD(RowState, "full", W_FULL), FIELD(RowState, "shared", W_SHARED), FIELD(RowState, "version", W_VERSION), {NULL, 0, 0, 0, NULL},
};

/* Both begin alike, with their objects: this is all that Python's garbage collector needs to know of either. */
static int visit_objects(PyObject *self, int count, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < count; i++) Py_VISIT(((RowState *)self)->fields[i]);
    return 0;
}

static int clear_objects(PyObject *self, int count) {
    for (int i = 0; i < count; i++) Py_CLEAR(((RowState *)self)->fields[i]);
    return 0;
}

static void free_objects(PyObject *self, int count) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_objects(self, count);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int visit_traverse(PyObject *self, visitproc visit, void *arg) { return visit_objects(self, F_COUNT, visit, arg); }
static int visit_clear(PyObject *self) { return clear_objects(self, F_COUNT); }
static void visit_dealloc(PyObject *self) { free_objects(self, F_COUNT); }
static int row_traverse(PyObject *self, visitproc visit, void *arg) { return visit_objects(self, W_COUNT, visit, arg); }
static int row_clear(PyObject *self) { return clear_objects(self, W_COUNT); }
static void row_dealloc(PyObject *self) { free_objects(self, W_COUNT); }

static void put_object(PyObject **place, PyObject *value) {
    PyObject *before = *place;
    *place = new_ref(value);
    Py_XDECREF(before);
}

/* Row(facts, changed, params, microseconds) */
static int row_init(PyObject *self, PyObject *args, PyObject *named) {
    if (PyTuple_Size(args) != W_GIVEN || (named && PyDict_Size(named)))
        return PyErr_SetString(PyExc_TypeError, "a row is made of facts, changed, params and microseconds"), -1;
    RowState *row = (RowState *)self;
    for (int i = 0; i < W_GIVEN; i++) put_object(row->fields + i, PyTuple_GetItem(args, i));
    put_object(row->fields + W_SHARED, Py_False);
    return 0;
}

static PyType_Slot visit_slots[] = {
    {Py_tp_members, visit_members}, {Py_tp_traverse, visit_traverse}, {Py_tp_clear, visit_clear}, {Py_tp_dealloc, visit_dealloc}, {0, NULL},
};
static PyType_Slot row_slots[] = {
    {Py_tp_members, row_members}, {Py_tp_traverse, row_traverse}, {Py_tp_clear, row_clear}, {Py_tp_dealloc, row_dealloc},
    {Py_tp_init, row_init}, {0, NULL},
};
enum { STATE_FLAGS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC };
static PyType_Spec visit_spec = {"audit.values._native.VisitState", sizeof(VisitState), 0, STATE_FLAGS, visit_slots};
static PyType_Spec row_spec = {"audit.values._native.RowState", sizeof(RowState), 0, STATE_FLAGS, row_slots};
static PyTypeObject *visit_type, *row_type;

static int prepare_state(PyObject *module) {
    visit_type = (PyTypeObject *)PyType_FromSpec(&visit_spec);
    row_type = (PyTypeObject *)PyType_FromSpec(&row_spec);
    if (!visit_type || !row_type) return -1;
    return PyModule_AddObjectRef(module, "VisitState", (PyObject *)visit_type) | PyModule_AddObjectRef(module, "RowState", (PyObject *)row_type);
}

static int is_visit(PyObject *o) { return PyObject_TypeCheck(o, visit_type); }
static int is_row(PyObject *o) { return PyObject_TypeCheck(o, row_type); }

/* A member of a visit or of a row: borrowed. */
static PyObject *field(PyObject *visit, int number) {
    PyObject *found = ((VisitState *)visit)->fields[number];
    return found ? found : Py_None;
}

static PyObject *row_field(PyObject *row, int number) {
    PyObject *found = ((RowState *)row)->fields[number];
    return found ? found : Py_None;
}

static void set_field(PyObject *visit, int number, PyObject *value) { put_object(((VisitState *)visit)->fields + number, value); }
