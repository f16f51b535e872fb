# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""The C core for Python: buffers in, numbers out.  What each function does is said in core/*.h.

The interpreter lock is let go where there is enough to do: handing it over costs more than a short run.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "core/records.h" nogil:
    void hs_crc_init()
    uint32_t hs_crc32(uint32_t, const uint8_t*, size_t)
    size_t hs_scan(const uint8_t*, size_t, int64_t, int, int64_t, int64_t*, int64_t*)

# From here on the lock is let go: some 10 µs of work.
cdef enum:
    LONG_BYTES = 64 << 10

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
