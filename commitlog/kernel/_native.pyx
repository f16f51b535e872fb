# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""The C core for Python: buffers in, numbers out.  What each function does is said in core/*.h.

The interpreter lock is let go where there is enough to do: handing it over costs more than a short run.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

cdef extern from "core/records.h" nogil:
    void hs_crc_init()
    uint32_t hs_crc32(uint32_t, const uint8_t*, size_t)
    size_t hs_scan(const uint8_t*, size_t, int64_t, int, int64_t, int64_t*, int64_t*)

cdef extern from "core/entries.h" nogil:
    ctypedef struct hs_entry:
        int64_t physical_offset
        int64_t queue_offset
        int32_t size
    size_t hs_sound(const uint8_t*, size_t, int64_t, const hs_entry*, size_t, const uint8_t*, size_t, int64_t)

# From here on the lock is let go: some 10 µs of work.
cdef enum:
    LONG_BYTES = 64 << 10
    # So many entries of a queue need no memory of their own: a pull's.
    FEW_ENTRIES = 64

hs_crc_init()


def crc32(data, uint32_t value=0):
    """As zlib.crc32."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len >= LONG_BYTES:
            with nogil:
                value = hs_crc32(value, <const uint8_t*>buffer.buf, buffer.len)
        else:
            value = hs_crc32(value, <const uint8_t*>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return value


def scan(view, Py_ssize_t position, int64_t offset, Py_ssize_t end, bint crc, int64_t torn_from):
    """Over the whole, ordinary records of `view` from `position`, which is `offset` in the log, to `end` at most.

    (place behind the last of them, how many, place of the last or -1)
    """
    cdef Py_buffer buffer
    cdef int64_t count = 0, last = -1
    cdef size_t moved = 0, size
    cdef const uint8_t* start
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        end = min(end, buffer.len)
        if 0 <= position < end:
            start = <const uint8_t*>buffer.buf + position
            size = end - position
            if size >= LONG_BYTES:
                with nogil:
                    moved = hs_scan(start, size, offset, crc, torn_from, &count, &last)
            else:
                moved = hs_scan(start, size, offset, crc, torn_from, &count, &last)
    finally:
        PyBuffer_Release(&buffer)
    return position + <Py_ssize_t>moved, count, position + last if last >= 0 else -1


@cython.boundscheck(True)
def sound(data, int64_t start, run, Py_ssize_t first, bytes topic, int64_t queue_id, offsets):
    """Behind those entries of `run`, tuples of physical offset, size and more, from number `first` on, whose records
    in `data`, which is at `start` in the log, are ordinary and sound; with a `topic`, of these queue offsets of it."""
    cdef Py_buffer buffer
    cdef hs_entry few[FEW_ENTRIES]
    cdef hs_entry* entries = few
    cdef const uint8_t* bytes_there
    cdef const uint8_t* name = NULL
    cdef Py_ssize_t count = len(run) - first, name_bytes = 0, number, passed
    if first < 0 or count <= 0:
        return first
    if topic is not None:
        name, name_bytes = <const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if count > FEW_ENTRIES:
            entries = <hs_entry*>malloc(count * sizeof(hs_entry))
            if entries == NULL:
                raise MemoryError()
        for number in range(count):
            entry = run[first + number]
            # Of a named tuple entry[0] would cost ten times as much.
            if not PyTuple_Check(entry) or PyTuple_GET_SIZE(entry) < 2:
                raise TypeError("an entry is a tuple of physical offset, size and more")
            entries[number].physical_offset = <object>PyTuple_GET_ITEM(entry, 0)
            entries[number].size = <object>PyTuple_GET_ITEM(entry, 1)
            entries[number].queue_offset = offsets[first + number] if name != NULL else 0
        bytes_there = <const uint8_t*>buffer.buf
        if buffer.len >= LONG_BYTES:
            with nogil:
                passed = hs_sound(bytes_there, buffer.len, start, entries, count, name, name_bytes, queue_id)
        else:
            passed = hs_sound(bytes_there, buffer.len, start, entries, count, name, name_bytes, queue_id)
    finally:
        if entries != few:
            free(entries)
        PyBuffer_Release(&buffer)
    return first + passed
