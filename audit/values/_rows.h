/* The rows of visits of a dataset with a list of files, nearly all as each other: one call for many visits.
 *
 * It appends what `_add_listed` of recorders/visit/item_recorder.py appends, value behind value, to the lists that it is given. A visit
 * that is unusual is left to `_add_listed`, with nothing of it appended. */

/* What is the same for all visits, a tuple, and the lists that grow; see recorders/visit/gathered_rows.py. */
enum { STAGE_NAMES, CLASSES, WORKER, SHA256, FOLDER_OF, WIDTHS, GATHERING };
/* How many values the rows have that are made here; where the caller's have more, nothing is made. */
enum { SAMPLE_WIDTH = 14, SOURCE_WIDTH = 9, FACTS_WIDTH = 12, OUTPUT_WIDTH = 9 + FACTS_WIDTH, PAYLOAD_WIDTH = 7 };
enum { TO_SAMPLES, TO_SOURCES, TO_OUTPUTS, TO_PAYLOADS, TO_INDICES, TO_DIGESTS, TO_LAST_ROWS, TO_LABELS, TO_TARGETS, TO_ROUTES, TO_OK, LISTS };

enum { R_VISIT, R_LABEL, R_ERROR, R_OPENED, R_ROWS, R_BYTES, R_DATA, R_DIGEST, R_LAST, R_ROUTE, R_MEDIA, R_CONTENT, R_ENCODING, R_HEX, R_COUNT };
static const char *const row_texts[R_COUNT] = {
    "visit", "label", "error", "opened", "rows", "source_bytes", "_source_data", "_source_digest", "_digest", "route", "media_type", "data", "encoding", "hexdigest"};
enum { TEXT_OK, TEXT_NONE, TEXT_PREVIEW, TEXT_FULL, TEXT_COUNT };
static const char *const word_texts[TEXT_COUNT] = {"ok", "none", "preview", "full"};
static PyObject *row_names[R_COUNT], *row_words[TEXT_COUNT];
static int is_sha = 0, is_many = 0;

static int prepare_rows(void) {
    is_sha = has_sha(), is_many = has_many();
    for (int i = 0; i < R_COUNT; i++)
        if (!(row_names[i] = PyUnicode_InternFromString(row_texts[i]))) return -1;
    for (int i = 0; i < TEXT_COUNT; i++)
        if (!(row_words[i] = PyUnicode_InternFromString(word_texts[i]))) return -1;
    return 0;
}

/* Append values to a list; 0, or -1 for an error, also where one of them is NULL. */
static int append_all(PyObject *list, PyObject *const *values, int count) {
    for (int i = 0; i < count; i++)
        if (!values[i] || PyList_Append(list, values[i]) < 0) return -1;
    return 0;
}

static void drop_all(PyObject **values, int count) {
    for (int i = 0; i < count; i++) Py_CLEAR(values[i]);
}

/* The text of an ASCII string, and its length; NULL for every other object. */
static const char *ascii_text(PyObject *o, Py_ssize_t *length) {
    const char *text = PyUnicode_CheckExact(o) ? PyUnicode_AsUTF8AndSize(o, length) : NULL;
    for (Py_ssize_t i = 0; text && i < *length; i++)
        if (text[i] & 0x80) return NULL;
    return text;
}

/* A path as seen from the folder that it lies below, as `_path_below` gives it; NULL where it has detours, or is not ASCII. */
static PyObject *path_below(PyObject *path, PyObject *folder) {
    Py_ssize_t length, above;
    const char *text = ascii_text(path, &length), *root = ascii_text(folder, &above);
    while (root && above && root[above - 1] == '/') above--;
    if (!text || !root || !above || length < above + 2 || memcmp(text, root, (size_t)above) || text[above] != '/') return NULL;
    while (above + 2 < length && text[above + 1] == '/') above++;
    const char *below = text + above;
    if (strstr(below, "//") || strstr(below, "/.") || text[length - 1] == '/') return NULL;
    return PyUnicode_FromStringAndSize(below + 1, length - above - 1);
}

/* The name of a stored file; NULL where it is unusual, perhaps with an error. `root` is the folder as the list of files has it. */
static PyObject *source_name(PyObject *path, PyObject *name, PyObject *folder, PyObject *root) {
    Py_ssize_t length;
    if (name == Py_None) {
        PyObject *found = path_below(path, folder), *given = found || PyErr_Occurred() ? NULL : PyOS_FSPath(root);
        if (given) found = path_below(path, given);
        Py_XDECREF(given);
        return found;
    }
    return ascii_text(name, &length) && length ? new_ref(name) : NULL;
}

/* The SHA-256 of a visit's file, which is hashed now if that was left for later. */
static PyObject *digest_of_source(PyObject *visit, PyObject *sha256) {
    PyObject *data = PyObject_GetAttr(visit, row_names[R_DATA]), *made = NULL;
    if (data && !PyBytes_CheckExact(data)) made = PyObject_GetAttr(visit, row_names[R_DIGEST]);
    else if (data) {
        PyObject *hash = PyObject_CallFunctionObjArgs(sha256, data, NULL);
        if (hash) made = PyObject_CallMethodObjArgs(hash, row_names[R_HEX], NULL);
        Py_XDECREF(hash);
    }
    Py_XDECREF(data);
    return made;
}

enum { MOST_HASHED = 64 };

/* Hash the files of visits that were left for later, together. Raises nothing: `digest_of_source` hashes what is left. */
static void hash_sources(PyObject *waiting, Py_ssize_t start, Py_ssize_t end) {
    PyObject *visits[MOST_HASHED], *contents[MOST_HASHED];
    const uint8_t *data[MOST_HASHED];
    size_t sizes[MOST_HASHED], count = 0;
    uint64_t digests[4 * MOST_HASHED];
    char text[64];
    int lanes = !wide_loops ? 0 : is_many && (wide_loops > 1 || !is_sha) ? FILES : is_sha ? 2 : 0;
    if (!lanes) return;
    for (Py_ssize_t at = start; at < end && count < MOST_HASHED; at++) {
        PyObject *one = PyList_GetItem(waiting, at), *made = PyTuple_Check(one) && PyTuple_Size(one) == 3 ? PyTuple_GetItem(one, 1) : NULL;
        PyObject *visit = made ? PyObject_GetAttr(made, row_names[R_VISIT]) : NULL, *content = visit ? PyObject_GetAttr(visit, row_names[R_DATA]) : NULL;
        if (content && PyBytes_CheckExact(content)) {
            visits[count] = visit, contents[count] = content;
            data[count] = (const uint8_t *)PyBytes_AsString(content), sizes[count] = (size_t)PyBytes_Size(content);
            count++;
            continue;
        }
        Py_XDECREF(content);
        Py_XDECREF(visit);
    }
    if (!count) return PyErr_Clear();
    Py_BEGIN_ALLOW_THREADS
    hash_files(data, sizes, count, lanes, is_sha, digests);
    Py_END_ALLOW_THREADS
    for (size_t i = 0; i < count; i++) {
        for (int half = 0; half < 2; half++) write_hex(digests[4 * i + 2 * half], digests[4 * i + 2 * half + 1], text + 32 * half);
        PyObject *digest = PyUnicode_FromStringAndSize(text, 64);
        if (digest && PyObject_SetAttr(visits[i], row_names[R_DIGEST], digest) == 0) PyObject_SetAttr(visits[i], row_names[R_DATA], Py_None);
        Py_XDECREF(digest);
        Py_DECREF(contents[i]);
        Py_DECREF(visits[i]);
    }
    PyErr_Clear();
}

/* The name of a label, or None; NULL for an error. `label` is a whole number. */
static PyObject *name_of_label(PyObject *classes, PyObject *label) {
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(label, &overflow);
    int is_named = PyList_Check(classes) && !overflow && number >= 0 && number < PyList_Size(classes);
    return is_named ? new_ref(PyList_GetItem(classes, (Py_ssize_t)number)) : PyErr_Occurred() ? NULL : new_ref(Py_None);
}

/* The payloads of one stage of a visit; 0, or -1 for an error. */
static int add_payloads(PyObject *to, PyObject *const *key, PyObject *kind, PyObject *preview, PyObject *full) {
    int good = 0;
    if (preview != Py_None) {
        PyObject *made[2] = {PyObject_GetAttr(preview, row_names[R_MEDIA]), PyObject_GetAttr(preview, row_names[R_CONTENT])};
        PyObject *row[PAYLOAD_WIDTH] = {key[0], key[1], key[2], row_words[TEXT_PREVIEW], kind, made[0], made[1]};
        good = append_all(to, row, PAYLOAD_WIDTH);
        drop_all(made, 2);
    }
    if (good == 0 && full != Py_None) {
        if (!PyTuple_Check(full) || PyTuple_Size(full) != 2) return -1;
        PyObject *exact = PyTuple_GetItem(full, 1);
        PyObject *made[2] = {PyObject_GetAttr(exact, row_names[R_ENCODING]), PyObject_GetAttr(exact, row_names[R_CONTENT])};
        PyObject *row[PAYLOAD_WIDTH] = {key[0], key[1], key[2], row_words[TEXT_FULL], PyTuple_GetItem(full, 0), made[0], made[1]};
        good = append_all(to, row, PAYLOAD_WIDTH);
        drop_all(made, 2);
    }
    return good;
}

/* The row of one stage of a visit, and its payloads, as `Row.write` does; 0, or -1 for an error. */
static int add_output(PyObject *lists, PyObject *const *key, PyObject *name, PyObject *row) {
    PyObject *to = PyTuple_GetItem(lists, TO_OUTPUTS), *facts, *preview, *full;
    if (!is_row(row) || !PyTuple_Check(facts = row_field(row, W_FACTS)) || PyTuple_Size(facts) != FACTS_WIDTH) return -1;
    preview = row_field(row, W_PREVIEW), full = row_field(row, W_FULL);
    PyObject *level = row_words[full != Py_None ? TEXT_FULL : preview != Py_None ? TEXT_PREVIEW : TEXT_NONE];
    PyObject *first[9] = {key[0], key[1], key[2], name, row_field(row, W_CHANGED), row_field(row, W_PARAMS), row_field(row, W_TIME), level,
                          row_field(row, W_TARGET)};
    int good = append_all(to, first, 9);
    for (int i = 0; good == 0 && i < FACTS_WIDTH; i++) good = PyList_Append(to, PyTuple_GetItem(facts, i));
    if (good == 0 && row_field(row, W_SHARED) == Py_False)
        good = add_payloads(PyTuple_GetItem(lists, TO_PAYLOADS), key, PyTuple_GetItem(facts, 0), preview, full);
    return good ? -1 : 0;
}

/* The rows of all stages; they must be in the order of their numbers. `*last` is borrowed. 0, or -1 where they are not. */
static int add_outputs(PyObject *lists, PyObject *index, PyObject *position, PyObject *names, PyObject *rows, PyObject **last) {
    Py_ssize_t at = 0, before = -1;
    PyObject *ordinal, *row;
    if (!PyDict_Check(rows)) return -1;
    while (PyDict_Next(rows, &at, &ordinal, &row)) {
        Py_ssize_t number = PyLong_CheckExact(ordinal) ? PyLong_AsSsize_t(ordinal) : -1;
        if (number <= before || number >= PyTuple_Size(names)) return -1;
        PyObject *const key[3] = {index, position, ordinal};
        if (add_output(lists, key, PyTuple_GetItem(names, number), row) < 0) return -1;
        before = number, *last = row;
    }
    return before < 0 ? -1 : 0;
}

/* Append the rows of one visit: (index, made visit, listed file). 0, or -1 where it is unusual, perhaps with an error. */
static int add_visit(PyObject *plan, PyObject *lists, PyObject *waiting, PyObject *folder) {
    PyObject *index = PyTuple_GetItem(waiting, 0), *made = PyTuple_GetItem(waiting, 1), *file = PyTuple_GetItem(waiting, 2), *last = NULL;
    PyObject *path = PyTuple_GetItem(file, 0), *list[LISTS], *v[9];
    for (int i = 0; i < LISTS; i++) list[i] = PyTuple_GetItem(lists, i);
    memset(v, 0, sizeof v);
    enum { VISIT, LABEL, OPENED, VISIT_ROWS, SIZE, DIGEST_NOW, ROUTE, SOURCE, POSITION };
    int good = -1;
    if (!(v[VISIT] = PyObject_GetAttr(made, row_names[R_VISIT])) || !(v[LABEL] = PyObject_GetAttr(made, row_names[R_LABEL]))) goto done;
    if (attribute_is(v[VISIT], row_names[R_ERROR], Py_None) != 1 || !PyLong_CheckExact(v[LABEL])) goto done;
    v[OPENED] = PyObject_GetAttr(v[VISIT], row_names[R_OPENED]);
    if (!v[OPENED] || !PyList_Check(v[OPENED]) || PyList_Size(v[OPENED]) != 1) goto done;
    if (PyObject_RichCompareBool(PyList_GetItem(v[OPENED], 0), path, Py_EQ) != 1) goto done;
    if (!(v[SOURCE] = source_name(path, PyTuple_GetItem(file, 3), folder, PyTuple_GetItem(file, 1)))) goto done;
    v[VISIT_ROWS] = PyObject_GetAttr(v[VISIT], row_names[R_ROWS]);
    v[SIZE] = PyObject_GetAttr(v[VISIT], row_names[R_BYTES]);
    v[DIGEST_NOW] = PyObject_GetAttr(v[VISIT], row_names[R_LAST]);
    v[ROUTE] = PyObject_GetAttr(v[VISIT], row_names[R_ROUTE]);
    v[POSITION] = PyLong_FromSsize_t(PyList_Size(list[TO_INDICES]));
    if (!v[VISIT_ROWS] || !v[SIZE] || !v[DIGEST_NOW] || !v[ROUTE] || !v[POSITION]) goto done;
    PyObject *digest = digest_of_source(v[VISIT], PyTuple_GetItem(plan, SHA256)), *name = name_of_label(PyTuple_GetItem(plan, CLASSES), v[LABEL]);
    PyObject *sample[SAMPLE_WIDTH] = {index, v[POSITION], PyTuple_GetItem(file, 4), v[SOURCE], folder, Py_None, digest, v[SIZE],
                            v[LABEL], name, row_words[TEXT_OK], Py_None, Py_None, PyTuple_GetItem(plan, WORKER)};
    PyObject *source[SOURCE_WIDTH] = {index, v[POSITION], number_zero, Py_None, v[SOURCE], folder, digest, v[SIZE], Py_None};
    if (append_all(list[TO_SAMPLES], sample, SAMPLE_WIDTH) == 0 && append_all(list[TO_SOURCES], source, SOURCE_WIDTH) == 0 &&
        add_outputs(lists, index, v[POSITION], PyTuple_GetItem(plan, STAGE_NAMES), v[VISIT_ROWS], &last) == 0) {
        PyObject *known[7] = {index, v[DIGEST_NOW], last, v[LABEL], Py_None, v[ROUTE], v[POSITION]};
        good = 0;
        for (int i = 0; good == 0 && i < 7; i++) good = PyList_Append(list[TO_INDICES + i], known[i]);
    }
    Py_XDECREF(digest);
    Py_XDECREF(name);
done:
    drop_all(v, 9);
    return good;
}

/* Take back what was appended to the lists behind these lengths. */
static void shorten(PyObject *lists, const Py_ssize_t *lengths) {
    for (int i = 0; i < LISTS; i++) {
        PyObject *list = PyTuple_GetItem(lists, i);
        if (PyList_SetSlice(list, lengths[i], PyList_Size(list), NULL) < 0) PyErr_Clear();
    }
}

static int knows_widths(PyObject *widths) {
    Py_ssize_t samples, sources, outputs, payloads;
    if (!PyArg_ParseTuple(widths, "nnnn:add_visits", &samples, &sources, &outputs, &payloads)) return PyErr_Clear(), 0;
    return samples == SAMPLE_WIDTH && sources == SOURCE_WIDTH && outputs == OUTPUT_WIDTH && payloads == PAYLOAD_WIDTH;
}

/* add_visits(waiting, start, plan, lists) -> how many visits were added, from `start` on until one is unusual. */
static PyObject *py_add_visits(PyObject *self, PyObject *args) {
    PyObject *waiting, *plan, *lists, *root = NULL, *folder = NULL;
    Py_ssize_t start, at, lengths[LISTS];
    if (!PyArg_ParseTuple(args, "O!nO!O!:add_visits", &PyList_Type, &waiting, &start, &PyTuple_Type, &plan, &PyTuple_Type, &lists)) return NULL;
    int good = start >= 0 && PyTuple_Size(plan) == GATHERING && PyTuple_Size(lists) == LISTS && PyTuple_Check(PyTuple_GetItem(plan, STAGE_NAMES));
    for (int i = 0; good && i < LISTS; i++) good = PyList_Check(PyTuple_GetItem(lists, i));
    if (!good) return PyErr_SetString(PyExc_TypeError, "add_visits takes visits, a start, a plan and lists"), NULL;
    PyObject *widths = PyTuple_GetItem(plan, WIDTHS);
    Py_ssize_t end = PyTuple_Check(widths) && knows_widths(widths) ? PyList_Size(waiting) : start;
    hash_sources(waiting, start, end);
    for (at = start; at < end; at++) {
        PyObject *one = PyList_GetItem(waiting, at), *file = PyTuple_Check(one) && PyTuple_Size(one) == 3 ? PyTuple_GetItem(one, 2) : NULL;
        if (!file || !PyTuple_Check(file) || PyTuple_Size(file) != 5) break;
        if (!folder || PyTuple_GetItem(file, 1) != root) { /* one root for all, as a rule */
            Py_XDECREF(folder);
            root = PyTuple_GetItem(file, 1);
            folder = root == Py_None ? NULL : PyObject_CallFunctionObjArgs(PyTuple_GetItem(plan, FOLDER_OF), root, NULL);
            if (!folder) break;
        }
        for (int i = 0; i < LISTS; i++) lengths[i] = PyList_Size(PyTuple_GetItem(lists, i));
        if (add_visit(plan, lists, one, folder) == 0) continue;
        PyErr_Clear(); /* the slower way meets it too, and says so */
        shorten(lists, lengths);
        break;
    }
    PyErr_Clear();
    Py_XDECREF(folder);
    return PyLong_FromSsize_t(at - start);
}
