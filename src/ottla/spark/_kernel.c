/* Finds the fields of records in bulk, packs records from fields, and hashes bytes. The Python
 * fallbacks in kernel_read.py, kernel_write.py and content_digest.py are the specification; property
 * tests compare their results. Input comes from a network: nothing is read before its bounds are
 * checked, and nothing is written beyond the caller's buffer.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { TIMESTAMP, OFFSET, KEY_AT, KEY_BYTES, VALUE_AT, VALUE_BYTES, HEADERS_AT, HEADER_COUNT, FIELD_COUNT };
enum { NAME_AT, NAME_BYTES, CONTENT_AT, CONTENT_BYTES, HEADER_FIELD_COUNT };
enum { KEY, VALUE, HEADERS, PART_COUNT }; /* each has two rows in the table: position and size */

typedef struct {
    const uint8_t *bytes;
    int64_t at;
    int64_t end; /* of the buffer */
} Cursor;

/* Reads a zig-zag number of at most `size_max` bytes and `bits` bits; returns 0 if there is none. */
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

/* Finds a field after its length; every negative length is null and becomes -1. */
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
        PyErr_SetString(PyExc_IndexError, "the rows or the bytes are not inside their buffers");
        return NULL;
    }
    if (!found) {
        PyErr_SetString(PyExc_ValueError, "a record cannot be read");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* find_headers(source, ats, counts, out, room) -> None: the headers of all rows in order. */
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
            int64_t *out_row = rows + number;
            fits = skip_field(&cursor, source.len, &out_row[NAME_AT * room], &out_row[NAME_BYTES * room]) &&
                   skip_field(&cursor, source.len, &out_row[CONTENT_AT * room], &out_row[CONTENT_BYTES * room]);
        }
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&ats);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&out);
    if (!fits || number != room) {
        PyErr_SetString(PyExc_IndexError, "the headers are not inside their buffers");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Packing */

typedef struct {
    const Py_buffer *sources; /* by part */
    const int64_t *table;
    int64_t room; /* columns of the table */
    uint8_t *at;
    uint8_t *end;
} Packer;

typedef struct {
    const uint8_t *bytes;
    int64_t size; /* -1 is null */
} Piece;

static inline int64_t signed_bytes(int64_t value) {
    uint64_t left = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    int64_t size = 1;
    while (left >>= 7) size++;
    return size;
}

static inline uint8_t *write_signed(uint8_t *at, int64_t value) {
    uint64_t left = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; left >= 0x80; left >>= 7) *at++ = (uint8_t)(left | 0x80);
    *at++ = (uint8_t)left;
    return at;
}

static inline int find_piece(const Packer *packer, int part, int64_t row, Piece *out) {
    int64_t at = packer->table[2 * part * packer->room + row];
    int64_t size = packer->table[(2 * part + 1) * packer->room + row];
    out->bytes = packer->sources[part].buf;
    out->size = size < 0 ? -1 : size;
    if (size <= 0) return 1;
    if (at < 0 || size > INT32_MAX || at > packer->sources[part].len - size) return 0;
    out->bytes += at;
    return 1;
}

static inline int64_t piece_bytes(const Piece *piece) {
    return signed_bytes(piece->size) + (piece->size < 0 ? 0 : piece->size);
}

static inline uint8_t *write_piece(uint8_t *at, const Piece *piece) {
    at = write_signed(at, piece->size);
    if (piece->size <= 0) return at;
    memcpy(at, piece->bytes, piece->size);
    return at + piece->size;
}

static int pack_record(Packer *packer, int64_t row, int64_t delta) {
    Piece key, value, headers;
    if (!find_piece(packer, KEY, row, &key) || !find_piece(packer, VALUE, row, &value) ||
        !find_piece(packer, HEADERS, row, &headers))
        return 0;
    int64_t headers_bytes = headers.size > 0 ? headers.size : 1; /* none: a count of 0 */
    int64_t body = 2 + signed_bytes(delta) + piece_bytes(&key) + piece_bytes(&value) + headers_bytes;
    if (body > INT32_MAX || signed_bytes(body) + body > packer->end - packer->at) return 0;
    uint8_t *at = write_signed(packer->at, body);
    *at++ = 0; /* attributes, unused */
    *at++ = 0; /* timestamp delta: all records have their batch's time */
    at = write_piece(write_piece(write_signed(at, delta), &key), &value);
    if (headers.size > 0)
        memcpy(at, headers.bytes, headers.size);
    else
        *at = 0;
    packer->at = at + headers_bytes;
    return 1;
}

/* pack_records(keys, values, headers, table, room, rows, out) -> number of bytes written */
static PyObject *pack_records(PyObject *module, PyObject *args) {
    Py_buffer sources[PART_COUNT], table, rows, out;
    Py_ssize_t room;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*y*ny*w*", &sources[KEY], &sources[VALUE], &sources[HEADERS], &table,
                          &room, &rows, &out))
        return NULL;
    int fits = room >= 0 && room <= table.len / (8 * 2 * PART_COUNT);
    Packer packer = {sources, table.buf, room, out.buf, (uint8_t *)out.buf + out.len};
    const int64_t *row_of = rows.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t number = 0; fits && number < rows.len / 8; number++)
        fits = 0 <= row_of[number] && row_of[number] < room && pack_record(&packer, row_of[number], number);
    Py_END_ALLOW_THREADS
    Py_ssize_t written = packer.at - (uint8_t *)out.buf;
    for (int part = 0; part < PART_COUNT; part++) PyBuffer_Release(&sources[part]);
    PyBuffer_Release(&table);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    if (!fits) {
        PyErr_SetString(PyExc_IndexError, "the records are not inside their buffers");
        return NULL;
    }
    return PyLong_FromSsize_t(written);
}

/* MurmurHash2 of 32 bits with the seed that Kafka's clients agreed on. */
static uint32_t murmur2(const uint8_t *bytes, int64_t size) {
    const uint32_t multiplier = 0x5BD1E995;
    uint32_t value = 0x9747B28C ^ (uint32_t)size;
    for (; size >= 4; bytes += 4, size -= 4) {
        uint32_t word = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
        word *= multiplier;
        word = (word ^ word >> 24) * multiplier;
        value = value * multiplier ^ word;
    }
    if (size == 3) value ^= (uint32_t)bytes[2] << 16;
    if (size >= 2) value ^= (uint32_t)bytes[1] << 8;
    if (size >= 1) value = (value ^ bytes[0]) * multiplier;
    value = (value ^ value >> 13) * multiplier;
    return value ^ value >> 15;
}

/* hash_keys(keys, ats, sizes, out) -> None: 32 bits for each key; null keys are skipped. */
static PyObject *hash_keys(PyObject *module, PyObject *args) {
    Py_buffer keys, ats, sizes, out;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &keys, &ats, &sizes, &out)) return NULL;
    int fits = ats.len == sizes.len && ats.len / 8 == out.len / 4;
    const int64_t *at_of = ats.buf, *size_of = sizes.buf;
    uint32_t *hashes = out.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; fits && row < ats.len / 8; row++) {
        if (size_of[row] < 0) continue;
        fits = at_of[row] >= 0 && size_of[row] <= keys.len && at_of[row] <= keys.len - size_of[row];
        if (fits) hashes[row] = murmur2((const uint8_t *)keys.buf + at_of[row], size_of[row]);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&keys);
    PyBuffer_Release(&ats);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&out);
    if (!fits) {
        PyErr_SetString(PyExc_IndexError, "the keys are not inside their buffer");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* A 64-bit hash of bytes, eight at a time: `content_digest.hash_of_bytes` is the same in Python. */
static uint64_t mix64(uint64_t value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ value >> 27) * 0x94D049BB133111EBull;
    return value ^ value >> 31;
}

/* A little-endian number of up to eight bytes on any machine. */
static inline uint64_t read_word(const uint8_t *data, int size) {
    uint64_t word = 0;
    memcpy(&word, data, size);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint64_t hash64(const uint8_t *data, int64_t size) {
    const uint64_t multiplier = 0x9E3779B97F4A7C15ull;
    uint64_t value = ((uint64_t)size + 1) * multiplier;
    for (; size >= 8; data += 8, size -= 8) {
        value = (value ^ read_word(data, 8)) * multiplier;
        value ^= value >> 32;
    }
    if (size > 0) value = (value ^ read_word(data, (int)size)) * multiplier;
    return mix64(value);
}

/* hash_bytes(source, ats, sizes, out) -> None: 64 bits for each value; null values are skipped. */
static PyObject *hash_bytes(PyObject *module, PyObject *args) {
    Py_buffer source, ats, sizes, out;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &source, &ats, &sizes, &out)) return NULL;
    int fits = ats.len == sizes.len && ats.len == out.len;
    const int64_t *at_of = ats.buf, *size_of = sizes.buf;
    uint64_t *hashes = out.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; fits && row < ats.len / 8; row++) {
        if (size_of[row] < 0) continue;
        fits = at_of[row] >= 0 && size_of[row] <= source.len
               && at_of[row] <= source.len - size_of[row];
        if (fits) hashes[row] = hash64((const uint8_t *)source.buf + at_of[row], size_of[row]);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&source);
    PyBuffer_Release(&ats);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&out);
    if (!fits) {
        PyErr_SetString(PyExc_IndexError, "the values are not inside their buffer");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"find_fields", find_fields, METH_VARARGS, NULL},
    {"find_headers", find_headers, METH_VARARGS, NULL},
    {"pack_records", pack_records, METH_VARARGS, NULL},
    {"hash_keys", hash_keys, METH_VARARGS, NULL},
    {"hash_bytes", hash_bytes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
