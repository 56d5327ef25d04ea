/* Finds the fields of records in bulk. The plain twin in fields.py says what is meant; tests hold
 * both to the same answers. Input comes from a network: nothing is read before its bounds are
 * checked, and nothing is written beyond the rows that the caller made room for.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>

enum { TIMESTAMP, OFFSET, KEY_AT, KEY_BYTES, VALUE_AT, VALUE_BYTES, HEADERS_AT, HEADER_COUNT, FIELD_COUNT };
enum { NAME_AT, NAME_BYTES, CONTENT_AT, CONTENT_BYTES, HEADER_FIELD_COUNT };

typedef struct {
    const uint8_t *bytes;
    int64_t at;
    int64_t end; /* of all there is */
} Cursor;

/* A zig-zag number of at most `size_max` bytes and `bits` bits; 0 when there is none. */
static inline int read_signed(Cursor *cursor, int size_max, int bits, int64_t *out) {
    uint64_t value = 0;
    for (int size = 0; size < size_max; size++) {
        if (cursor->at >= cursor->end) return 0;
        uint8_t byte = cursor->bytes[cursor->at++];
        uint64_t part = byte & 0x7F;
        if (size == 9 && part > 1) return 0; /* the tenth byte holds bit 63 only */
        value |= part << (7 * size);
        if (byte < 0x80) {
            if (bits == 32 && value > UINT32_MAX) return 0;
            *out = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            return 1;
        }
    }
    return 0;
}

static inline int read_varint(Cursor *cursor, int64_t *out) { return read_signed(cursor, 5, 32, out); }
static inline int read_varlong(Cursor *cursor, int64_t *out) { return read_signed(cursor, 10, 64, out); }

/* Where a field behind its length lies; every negative length is null and becomes -1. */
static inline int skip_field(Cursor *cursor, int64_t end, int64_t *at, int64_t *size) {
    if (!read_varint(cursor, size)) return 0;
    *at = cursor->at;
    if (*size < 0) {
        *size = -1;
        return 1;
    }
    if (*size > end - cursor->at) return 0;
    cursor->at += *size;
    return 1;
}

static int skip_headers(Cursor *cursor, int64_t end, int64_t count) {
    int64_t at, size;
    for (int64_t number = 0; number < count; number++) {
        if (!skip_field(cursor, end, &at, &size) || size < 0) return 0;
        if (!skip_field(cursor, end, &at, &size)) return 0;
    }
    return 1;
}

static int find_record(Cursor *cursor, int64_t *row, int64_t stride) {
    int64_t size, end, delta;
    if (!read_varint(cursor, &size) || size < 0 || size > cursor->end - cursor->at) return 0;
    end = cursor->at + size;
    cursor->at++; /* attributes, unused */
    if (!read_varlong(cursor, &delta)) return 0;
    row[TIMESTAMP * stride] = delta;
    if (!read_varint(cursor, &delta)) return 0;
    row[OFFSET * stride] = delta;
    if (!skip_field(cursor, end, &row[KEY_AT * stride], &row[KEY_BYTES * stride])) return 0;
    if (!skip_field(cursor, end, &row[VALUE_AT * stride], &row[VALUE_BYTES * stride])) return 0;
    if (!read_varint(cursor, &delta) || delta < 0) return 0;
    row[HEADERS_AT * stride] = cursor->at;
    row[HEADER_COUNT * stride] = delta;
    return skip_headers(cursor, end, delta) && cursor->at == end;
}

/* find_fields(source, start, end, count, out, row, room) -> None */
static PyObject *find_fields(PyObject *module, PyObject *args) {
    Py_buffer source, out;
    Py_ssize_t start, end, count, row, room;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nnnw*nn", &source, &start, &end, &count, &out, &row, &room)) return NULL;
    int fits = 0 <= start && start <= end && end <= source.len && 0 <= count && 0 <= row &&
               row <= room && count <= room - row && room <= out.len / (8 * FIELD_COUNT);
    int found = fits;
    if (fits) {
        Cursor cursor = {source.buf, start, end};
        int64_t *rows = (int64_t *)out.buf + row;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t number = 0; found && number < count; number++)
            found = find_record(&cursor, rows + number, room);
        found = found && cursor.at == end;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&out);
    if (!fits) {
        PyErr_SetString(PyExc_IndexError, "the rows or the bytes do not lie inside their buffers");
        return NULL;
    }
    if (!found) {
        PyErr_SetString(PyExc_ValueError, "a record cannot be read");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* find_headers(source, ats, counts, out, room) -> None: the headers of every row in turn. */
static PyObject *find_headers(PyObject *module, PyObject *args) {
    Py_buffer source, ats, counts, out;
    Py_ssize_t room;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*w*n", &source, &ats, &counts, &out, &room)) return NULL;
    int fits = ats.len == counts.len && room >= 0 && room <= out.len / (8 * HEADER_FIELD_COUNT);
    const int64_t *at_of = ats.buf, *count_of = counts.buf;
    int64_t *rows = out.buf;
    Py_ssize_t number = 0;
    for (Py_ssize_t row = 0; fits && row < ats.len / 8; row++) {
        Cursor cursor = {source.buf, at_of[row], source.len};
        fits = 0 <= cursor.at && cursor.at <= source.len && count_of[row] <= room - number;
        for (int64_t header = 0; fits && header < count_of[row]; header++, number++) {
            int64_t *place = rows + number;
            fits = skip_field(&cursor, source.len, &place[NAME_AT * room], &place[NAME_BYTES * room]) &&
                   skip_field(&cursor, source.len, &place[CONTENT_AT * room], &place[CONTENT_BYTES * room]);
        }
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&ats);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&out);
    if (!fits || number != room) {
        PyErr_SetString(PyExc_IndexError, "the headers do not lie inside their buffers");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"find_fields", find_fields, METH_VARARGS, NULL},
    {"find_headers", find_headers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fields", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fields(void) { return PyModuleDef_Init(&definition); }
