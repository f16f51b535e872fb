# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""SQL92 expressions for Python: compiled, and tried on messages.  The rules are those of core/sql.h.

A program refers to the UTF-8 of its expression, which CPython keeps with the text.  Programs run without the
interpreter lock; they take it for a text that only the reference can read as a number.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

import os

from haservice.broker.pull.sql_values import LONG_MAX, EvaluationFault, double_of, integer_of

cdef extern from "core/sql_evaluate.h" nogil:
    enum:
        HS_SQL_NESTING_MAX
        HS_SQL_BYTES_MAX
        HS_SQL_NO_NUMBER
        HS_SQL_NUMBER
        HS_SQL_NO_MEMORY
        HS_SQL_FALSE
        HS_SQL_TRUE
        HS_SQL_FAULT
        HS_SQL_DOUBLE
    ctypedef union hs_sql_number:
        int64_t integer
        double number
    ctypedef int (*hs_sql_reader)(const uint8_t*, size_t, int, hs_sql_number*) noexcept nogil
    ctypedef struct hs_sql_node:
        pass
    ctypedef struct hs_sql_program:
        hs_sql_node* nodes
        uint32_t count
    ctypedef struct hs_sql_fault:
        uint8_t code, wanted, low_kind, high_kind
        uint32_t position, start, bytes
        hs_sql_number low, high
    ctypedef struct hs_sql_message:
        pass
    int hs_sql_parse(const uint8_t*, uint32_t, uint32_t, hs_sql_reader, hs_sql_program*, uint32_t*, hs_sql_fault*)
    int hs_sql_gather(hs_sql_message*, const uint8_t*, size_t, uint32_t, hs_sql_reader)
    void hs_sql_forget(hs_sql_message*)
    uint8_t hs_sql_outcome(const hs_sql_program*, const uint8_t*, const hs_sql_message*)

NESTING_MAX = HS_SQL_NESTING_MAX

# Nobody outside knows which names fall together.
cdef uint32_t _seed = int.from_bytes(os.urandom(4), "little")


cdef int _read_odd(const uint8_t* p, size_t n, int is_double, hs_sql_number* number) noexcept with gil:
    try:
        text = (<const char*>p)[:n].decode("utf-8", "replace")
        if is_double:
            number.number = double_of(text)
        else:
            number.integer = integer_of(text, LONG_MAX)
    except EvaluationFault:
        return HS_SQL_NO_NUMBER
    return HS_SQL_NUMBER


cdef int _read_literal(const uint8_t* p, size_t n, int is_double, hs_sql_number* number) noexcept with gil:
    """Digits, a point, an exponent: what the grammar takes, float() reads."""
    number.number = float((<const char*>p)[:n])
    return HS_SQL_NUMBER


cdef class Program:
    """A compiled expression; called with the properties of a record, it says whether they pass."""
    cdef hs_sql_program program
    cdef const uint8_t* text
    cdef readonly str expression
    cdef object __weakref__

    def __dealloc__(self):
        free(self.program.nodes)

    def __call__(self, bytes properties):
        return self.outcome(properties) == HS_SQL_TRUE

    def evaluate(self, bytes properties):
        """True, False, or None for unknown.  Raises EvaluationFault if values cannot be compared."""
        cdef int outcome = self.outcome(properties)
        if outcome == HS_SQL_FAULT:
            raise EvaluationFault("values cannot be compared")
        return True if outcome == HS_SQL_TRUE else False if outcome == HS_SQL_FALSE else None

    @property
    def size_bytes(self):
        """What it takes beside the text."""
        return self.program.count * sizeof(hs_sql_node)

    cdef int outcome(self, bytes properties) except -1:
        cdef hs_sql_message message
        cdef int outcome
        properties = _sound(properties)
        if not hs_sql_gather(
            &message, <const uint8_t*>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), _seed, _read_odd
        ):
            raise MemoryError
        with nogil:
            outcome = hs_sql_outcome(&self.program, self.text, &message)
            hs_sql_forget(&message)
        return outcome


def compile(str expression):
    """(program, bytes of the text that it ends after); or a fault: (code, wanted, position, start, bytes, (low, high)),
    counted in bytes.  None for what only the reference reads: text that UTF-8 has no bytes for.
    """
    cdef Py_ssize_t size = 0
    cdef const char* text
    cdef Program made = Program.__new__(Program)
    cdef hs_sql_fault fault
    cdef uint32_t end = 0
    cdef int sound
    try:
        text = PyUnicode_AsUTF8AndSize(expression, &size)
    except UnicodeEncodeError:
        return None
    if size > HS_SQL_BYTES_MAX:
        return None
    made.expression, made.text = expression, <const uint8_t*>text
    with nogil:
        sound = hs_sql_parse(made.text, <uint32_t>size, _seed, _read_literal, &made.program, &end, &fault)
    if sound:
        return made, end
    if fault.code == HS_SQL_NO_MEMORY:
        raise MemoryError
    bounds = _number(fault.low_kind, fault.low), _number(fault.high_kind, fault.high)
    return fault.code, fault.wanted, fault.position, fault.start, fault.bytes, bounds


def matching(list selectors, bytes properties):
    """The numbers of the selectors that let these properties through; all programs in one go."""
    cdef Py_ssize_t count = len(selectors), i, programs = 0
    cdef Program program
    cdef hs_sql_message message
    cdef const hs_sql_program** found
    cdef const uint8_t** texts
    cdef uint8_t* outcomes
    cdef bytes sound = _sound(properties)
    cdef list matched = []
    found = <const hs_sql_program**>PyMem_Malloc(count * (2 * sizeof(void*) + 1) + 1)
    if found == NULL:
        raise MemoryError
    texts = <const uint8_t**>(found + count)
    outcomes = <uint8_t*>(texts + count)
    try:
        for i in range(count):
            found[i] = NULL
            if type(selectors[i]) is Program:
                program = <Program>selectors[i]
                found[i], texts[i] = &program.program, program.text
                programs += 1
        if programs:
            if not hs_sql_gather(
                &message, <const uint8_t*>PyBytes_AS_STRING(sound), PyBytes_GET_SIZE(sound), _seed, _read_odd
            ):
                raise MemoryError
            with nogil:
                for i in range(count):
                    outcomes[i] = hs_sql_outcome(found[i], texts[i], &message) if found[i] != NULL else 0
                hs_sql_forget(&message)
        for i in range(count):
            if outcomes[i] == HS_SQL_TRUE if found[i] != NULL else selectors[i](properties):
                matched.append(i)
    finally:
        PyMem_Free(found)
    return matched


cdef object _number(uint8_t kind, hs_sql_number number):
    return number.number if kind == HS_SQL_DOUBLE else number.integer


cdef bytes _sound(bytes properties):
    """As bytes of sound UTF-8: what is none is replaced as the reference replaces it."""
    if properties.isascii():
        return properties
    return properties.decode("utf-8", "replace").encode()
