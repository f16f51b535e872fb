# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""The C core for Python: takes buffers, returns numbers.  core/*.h describes each function.

Long calls release the interpreter lock.  Short ones keep it: handing it over would cost more than the call.
"""

import os

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EAGAIN, EIO, ENODATA, EOPNOTSUPP
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

cdef extern from "core/records.h" nogil:
    void hs_crc_init()
    uint32_t hs_crc32(uint32_t, const uint8_t*, size_t)
    size_t hs_scan(const uint8_t*, size_t, int64_t, int, int64_t, int64_t*, int64_t*)
    ctypedef struct hs_piece:
        const uint8_t* p
        size_t n
    enum:
        HS_CUT_BYTES_MAX
    size_t hs_scan_pieces(const hs_piece*, size_t, int64_t, int64_t, uint8_t*)

cdef extern from "core/frames.h" nogil:
    enum:
        HS_FRAME_HEADER_BYTES
    size_t hs_frames(const uint8_t*, size_t, int64_t, uint32_t, uint64_t, hs_piece*, size_t, size_t*, uint64_t*)
    ssize_t hs_send_frame(int, int64_t, const uint8_t*, uint32_t)
    int hs_send_frames(int, int, int64_t, int64_t, uint64_t, uint32_t, int64_t*)

cdef extern from "core/arrivals.h" nogil:
    ctypedef struct hs_arrivals:
        int socket, file
        int64_t start, whole, end
        uint64_t room
        uint8_t *buffer
        size_t size, parsed, left, filled
        uint32_t frame_most
        size_t piece, most
        int64_t most_ns
        size_t received
        uint64_t failed
    int hs_arrivals_take(hs_arrivals*)

cdef extern from "core/index.h" nogil:
    size_t hs_index_enter(const uint8_t*, size_t, int32_t, int32_t*, uint32_t, int64_t, int64_t*, int64_t*, int32_t*)

cdef extern from "core/entries.h" nogil:
    ctypedef struct hs_entry:
        int64_t physical_offset
        int64_t queue_offset
        int32_t size
    size_t hs_sound(const uint8_t*, size_t, int64_t, const hs_entry*, size_t, const uint8_t*, size_t, int64_t)

cdef extern from "core/pulls.h" nogil:
    ctypedef struct hs_pull_rules:
        int64_t floor, limit, odd_from, most, near_from, near_bytes, far_most, far_bytes
        const int32_t *codes
        size_t code_count
    ctypedef struct hs_choice:
        int64_t taken, bytes, first, last_seen, seen_end
    ctypedef enum hs_choice_end:
        HS_CHOICE_GOES_ON
        HS_CHOICE_FULL
        HS_CHOICE_ODD
    hs_choice_end hs_choose(
        const hs_pull_rules*, hs_choice*, const uint8_t*, size_t, int64_t, uint8_t*, int64_t*, size_t*
    )
    size_t hs_units_bytes(const uint8_t*, size_t, int64_t)
    enum:
        HS_AHEAD_BYTES_MAX
    ctypedef enum hs_gather_end:
        HS_GATHERED
        HS_NOT_GATHERED
        HS_NOT_IN_MEMORY
        HS_MEMORY_UNKNOWN
    hs_gather_end hs_gather(int, int64_t, const uint8_t*, size_t, uint8_t*, int, const uint8_t*, size_t)
    size_t hs_sound_gathered(
        const uint8_t*, size_t, const uint8_t*, const int64_t*, size_t, const uint8_t*, size_t, int64_t
    )

cdef extern from "core/loops.h" nogil:
    enum:
        HS_COLUMNS
        HS_NO_MEMORY
        HS_OUTSIDE
    ctypedef struct hs_pieces:
        int64_t *owners
        int64_t *names
        int64_t *assigns
        int64_t *ends
        size_t room, count
    size_t hs_walk(const uint8_t*, size_t, size_t, int64_t, int64_t*, size_t)
    void hs_lay_out(
        const uint8_t*, size_t, const int64_t*, const int64_t*, const int64_t*, int64_t*, size_t, uint8_t*
    )
    size_t hs_seek(const uint8_t*, size_t, size_t*, int64_t, int64_t*, size_t)
    int64_t hs_tally(
        const uint8_t*, size_t, size_t, int64_t, uint64_t, int64_t*, int64_t*, size_t, size_t*
    )
    int64_t hs_number(
        const uint8_t*, size_t, const int64_t*, const int64_t*, size_t, uint64_t, int32_t*, int64_t*
    )
    int hs_sum(const uint8_t*, size_t, const int64_t*, const int64_t*, size_t, uint32_t*)
    int hs_split(const uint8_t*, size_t, const int64_t*, const int64_t*, size_t, hs_pieces*)

cdef extern from "core/dispatch.h" nogil:
    enum:
        HS_QUEUE_ENTRY_BYTES
        HS_INDEX_HEADER_BYTES
        HS_INDEX_SLOT_BYTES
        HS_INDEX_ENTRY_BYTES
        HS_INDEX_PUT_BYTES
    ctypedef enum hs_dispatch_end:
        HS_DISPATCH_ORDINARY
        HS_DISPATCH_STOPPED
        HS_DISPATCH_FULL
        HS_DISPATCH_NO_MEMORY
    ctypedef struct hs_lane:
        int64_t next, known, code
        int32_t queue_id
        uint32_t count, at
        uint8_t mixed, topic_bytes
        uint8_t *topic
    ctypedef struct hs_dispatch:
        hs_lane *lanes
        uint32_t *touched
        uint8_t *sorted
        uint8_t *puts
        uint32_t lane_count, touched_count, entry_count, put_count
        int64_t stored_ms
        uint8_t meets
    int64_t hs_lane_learn(hs_dispatch*, const uint8_t*, size_t, int32_t, int64_t, int64_t)
    void hs_lanes_forget(hs_dispatch*)
    void hs_dispatch_free(hs_dispatch*)
    hs_dispatch_end hs_dispatch_gather(hs_dispatch*, const uint8_t*, size_t, int64_t, int64_t, size_t*)
    int hs_dispatch_sort(hs_dispatch*)
    void hs_dispatch_taken(hs_dispatch*)

cdef extern from "core/ledger.h" nogil:
    enum:
        HS_LEDGER_UNIT_BYTES
    ctypedef struct hs_ledger_run:
        int64_t count, index, term, position, last_term, last_at
    size_t hs_ledger_scan(const uint8_t*, size_t, int, hs_ledger_run*)
    int64_t hs_ledger_heads(uint8_t*, size_t, int64_t, int64_t, int64_t)
    void hs_ledger_units(const uint8_t*, int64_t, uint8_t*)
    size_t hs_ledger_bytes(const uint8_t*, int64_t)

cdef extern from "core/writes.h" nogil:
    ctypedef struct hs_write:
        const uint8_t *data
        size_t bytes
        int64_t offset
        int fd
    int hs_write_all(const hs_write*, size_t, size_t*)

cdef extern from "core/index_puts.h" nogil:
    ctypedef struct hs_index:
        uint8_t *map
        const uint8_t *puts
        size_t put_count
        int64_t slots, entries
        int64_t begin_ms, end_ms, begin_offset, end_offset, used, next
    int hs_index_put(hs_index*)
    int hs_bus_take()

# Calls with at least so many bytes release the lock: that is some 10 µs of work.
cdef enum:
    LONG_BYTES = 64 << 10
    # Up to so many frames fit on the stack; a slave that has caught up gets one or two at a time.
    FEW_FRAMES = 4
    # Up to so many entries of a queue fit on the stack, as those of a pull do.
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


def index_enter(entries, int32_t number, slots, int64_t end, int64_t before, int64_t last, int32_t seconds):
    """Enters the ordinary ones of `entries`, 20 bytes each, into `slots`, an array of 4-byte numbers.

    Returns (how many, offset of the last message but one, offset of the last one, its seconds).
    """
    cdef Py_buffer data, numbers
    cdef size_t done = 0
    PyObject_GetBuffer(entries, &data, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(slots, &numbers, PyBUF_WRITABLE)
        try:
            if (number >= 0 and 4 <= numbers.len and numbers.len // 4 <= 0x7fffffff
                    and data.len // 20 <= 0x7fffffff - number):
                with nogil:
                    done = hs_index_enter(
                        <const uint8_t*>data.buf, data.len // 20, number, <int32_t*>numbers.buf,
                        <uint32_t>(numbers.len // 4), end, &before, &last, &seconds)
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&data)
    return done, before, last, seconds


def scan_pieces(pieces, Py_ssize_t position, int64_t offset):
    """Scans whole, ordinary records, with their CRCs, in a list of buffers that follow each other in the log.  It
    begins at `position` of the first buffer, which is at `offset` in the log.  Returns how many bytes."""
    cdef Py_ssize_t count = len(pieces), number, held = 0, size = 0
    cdef size_t done = 0
    cdef uint8_t cut[HS_CUT_BYTES_MAX]
    cdef Py_buffer* buffers
    cdef hs_piece* views
    if not count or position < 0:
        return 0
    buffers = <Py_buffer*>malloc(count * sizeof(Py_buffer))
    views = <hs_piece*>malloc(count * sizeof(hs_piece))
    try:
        if buffers == NULL or views == NULL:
            raise MemoryError()
        for number in range(count):
            PyObject_GetBuffer(pieces[number], buffers + number, PyBUF_SIMPLE)
            held += 1
            views[number].p, views[number].n = <const uint8_t*>buffers[number].buf, buffers[number].len
            size += buffers[number].len
        if <size_t>position <= views[0].n:
            views[0].p += position
            views[0].n -= position
            if size >= LONG_BYTES:
                with nogil:
                    done = hs_scan_pieces(views, count, offset, INT64_MAX, cut)
            else:
                done = hs_scan_pieces(views, count, offset, INT64_MAX, cut)
    finally:
        for number in range(held):
            PyBuffer_Release(buffers + number)
        free(buffers)
        free(views)
    return done


def frames(view, Py_ssize_t position, Py_ssize_t end, int64_t offset, uint32_t most, uint64_t room, bint check):
    """Passes frames of `view` from `position` on, all there before `end`, that continue a log at `offset`: none of them
    empty or longer than `most` bytes, all of them within `room` bytes of the log.

    Returns (place behind the last frame, views of their bodies, where the log ends with them, up to where it is known
    to be whole, ordinary records with sound bodies).  It scans for these only with `check`, for an `offset` where a
    record begins; else the last is -1.
    """
    cdef hs_piece few[FEW_FRAMES]
    cdef hs_piece* pieces = few
    cdef uint8_t cut[HS_CUT_BYTES_MAX]
    cdef Py_buffer buffer
    cdef const uint8_t* start
    cdef size_t count, passed = 0, number
    cdef uint64_t size = 0
    cdef int64_t whole = -1
    cdef Py_ssize_t at
    cdef list bodies = []
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        end = min(end, buffer.len)
        if 0 <= position < end:
            start = <const uint8_t*>buffer.buf + position
            count = hs_frames(start, end - position, offset, most, room, pieces, FEW_FRAMES, &passed, &size)
            if count > FEW_FRAMES:
                pieces = <hs_piece*>malloc(count * sizeof(hs_piece))
                if pieces == NULL:
                    raise MemoryError()
                hs_frames(start, passed, offset, most, room, pieces, count, &passed, &size)
            for number in range(count):
                at = pieces[number].p - <const uint8_t*>buffer.buf
                bodies.append(view[at:at + <Py_ssize_t>pieces[number].n])
            if check and size >= LONG_BYTES:
                with nogil:
                    whole = offset + <int64_t>hs_scan_pieces(pieces, count, offset, INT64_MAX, cut)
            elif check:
                whole = offset + <int64_t>hs_scan_pieces(pieces, count, offset, INT64_MAX, cut)
            position += passed
    finally:
        if pieces != few:
            free(pieces)
        PyBuffer_Release(&buffer)
    return position, bodies, offset + <int64_t>size, whole


def send_frame(int fd, int64_t offset, body):
    """Sends `body`, the bytes at `offset` of a log, as one frame, without waiting.  Returns how many bytes of the frame
    went out, 0 if there is no room.  Raises OSError."""
    cdef Py_buffer buffer
    cdef ssize_t sent
    PyObject_GetBuffer(body, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len > INT32_MAX:
            raise ValueError("a frame's size has four bytes")
        with nogil:
            sent = hs_send_frame(fd, offset, <const uint8_t*>buffer.buf, <uint32_t>buffer.len)
        if sent < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        PyBuffer_Release(&buffer)
    return sent


def send_frames(int socket, int file, int64_t at, int64_t offset, uint64_t size, uint32_t most):
    """Sends `size` bytes of a file from `at` on, which are at `offset` of a log, as frames of at most `most` bytes.
    Waits for room as long as the socket does.  Raises OSError, also if the file ends before."""
    cdef int error
    cdef int64_t reached
    if not most:
        raise ValueError("a frame of no bytes is a heartbeat")
    with nogil:
        error = hs_send_frames(socket, file, at, offset, size, most, &reached)
    if error == ENODATA:
        raise OSError(f"segment ended within the transfer of {min(size, most)} bytes at {reached}")
    if error:
        raise OSError(error, os.strerror(error))


def take_arrivals(
    int socket, int file, int64_t start, int64_t whole, int64_t end, uint64_t room,
    space, Py_ssize_t parsed, Py_ssize_t left, Py_ssize_t filled,
    uint32_t frame_most, Py_ssize_t piece, Py_ssize_t most, int64_t most_ns,
):
    """Writes the whole, ordinary records with sound bodies among frames in `space` to a file of a log, and goes on
    with what `socket` has without waiting; core/arrivals.h says what each number is.

    Returns (parsed, left, filled, end of the log then, bytes received, errno of a write that failed or 0, how many
    bytes from the end on that write was for).
    """
    cdef hs_arrivals a
    cdef Py_buffer buffer
    cdef int error
    if min(parsed, left, filled, piece, most) < 0:
        raise ValueError("places and sizes are not negative")
    PyObject_GetBuffer(space, &buffer, PyBUF_WRITABLE)
    try:
        a.socket, a.file = socket, file
        a.start, a.whole, a.end, a.room = start, whole, end, room
        a.buffer, a.size = <uint8_t*>buffer.buf, buffer.len
        a.parsed, a.left, a.filled = parsed, left, filled
        a.frame_most, a.piece, a.most, a.most_ns = frame_most, piece, most, most_ns
        with nogil:
            error = hs_arrivals_take(&a)
    finally:
        PyBuffer_Release(&buffer)
    return a.parsed, a.left, a.filled, a.end, a.received, error, a.failed


def scan(view, Py_ssize_t position, int64_t offset, Py_ssize_t end, bint crc, int64_t torn_from):
    """Scans whole, ordinary records of `view` from `position`, which is at `offset` in the log, to `end` at most.

    Returns (place behind the last record, how many records, place of the last one or -1).
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
    """Returns the number behind the last entry of `run`, from number `first` on, whose record is ordinary and sound.
    An entry is a tuple of physical offset, size and more.  `data` is at `start` in the log.  With a `topic`, a record
    must also have that topic, `queue_id`, and the queue offset that `offsets` has for it."""
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
            # entry[0] of a named tuple would cost ten times as much.
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


# -- pulls: commitlog/queues/chosen.py says what these are for -------------------------------------------------

def choose(
    bytes entries not None, int64_t number, int64_t most, int64_t floor, int64_t limit, int64_t odd_from,
    int64_t near_from, int64_t near_bytes, int64_t far_most, int64_t far_bytes, codes, tuple before,
):
    """Chooses what a pull takes of `entries`, the first of which has the queue offset `number`.

    `codes`: a set of tags codes, or None for all.  `before`: (taken, bytes, first, last seen, seen end) of the entries
    before these.  Returns (the same tuple with these entries, how many entries are done with, the entries taken, their
    queue offsets, whether the batch is full).  Returns None if the reference has to judge: more than FEW_ENTRIES codes,
    or an entry that is not ordinary.
    """
    cdef int32_t few[FEW_ENTRIES]
    cdef hs_pull_rules rules
    cdef hs_choice choice
    cdef Py_ssize_t count = PyBytes_GET_SIZE(entries) // HS_QUEUE_ENTRY_BYTES, put
    cdef size_t passed = 0
    cdef hs_choice_end end
    cdef uint8_t *units
    cdef uint8_t *numbers
    rules.floor, rules.limit, rules.odd_from, rules.most = floor, limit, odd_from, most
    rules.near_from, rules.near_bytes, rules.far_most, rules.far_bytes = near_from, near_bytes, far_most, far_bytes
    rules.codes, rules.code_count = NULL, 0
    if codes is not None:
        if len(codes) > FEW_ENTRIES:
            return None
        for code in codes:
            few[rules.code_count] = code
            rules.code_count += 1
        rules.codes = few
    choice.taken, choice.bytes, choice.first, choice.last_seen, choice.seen_end = before
    put = choice.taken
    taken = PyBytes_FromStringAndSize(NULL, count * HS_QUEUE_ENTRY_BYTES)
    places = PyBytes_FromStringAndSize(NULL, count * 8)
    units, numbers = <uint8_t*>PyBytes_AS_STRING(taken), <uint8_t*>PyBytes_AS_STRING(places)
    end = hs_choose(
        &rules, &choice, <const uint8_t*>PyBytes_AS_STRING(entries), count, number, units, <int64_t*>numbers, &passed
    )
    if end == HS_CHOICE_ODD:
        return None
    put = choice.taken - put
    if put < count:
        taken, places = taken[:put * HS_QUEUE_ENTRY_BYTES], places[:put * 8]
    after = (choice.taken, choice.bytes, choice.first, choice.last_seen, choice.seen_end)
    return after, <Py_ssize_t>passed, taken, places, end == HS_CHOICE_FULL


def gather(int fd, int64_t base, bytes units not None, bint waits, bytes next_units not None):
    """As Files.gather(), where `base` is the place of the file's first byte in the log."""
    cdef Py_ssize_t count = PyBytes_GET_SIZE(units) // HS_QUEUE_ENTRY_BYTES
    cdef Py_ssize_t next_count = PyBytes_GET_SIZE(next_units) // HS_QUEUE_ENTRY_BYTES
    cdef const uint8_t *entries = <const uint8_t*>PyBytes_AS_STRING(units)
    cdef const uint8_t *next_entries = <const uint8_t*>PyBytes_AS_STRING(next_units)
    cdef size_t size = hs_units_bytes(entries, count, base)
    cdef size_t next_size = hs_units_bytes(next_entries, next_count, base)
    cdef uint8_t *out
    cdef hs_gather_end end
    if not size or size > <size_t>INT32_MAX:
        return None
    if not next_size or next_size > HS_AHEAD_BYTES_MAX:
        next_count = 0
    data = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(data)
    if waits or size >= LONG_BYTES:
        with nogil:
            end = hs_gather(fd, base, entries, count, out, waits, next_entries, next_count)
    else:
        end = hs_gather(fd, base, entries, count, out, waits, next_entries, next_count)
    if end == HS_NOT_IN_MEMORY:
        raise BlockingIOError(EAGAIN, "the disk has to be read")
    if end == HS_MEMORY_UNKNOWN:
        raise BlockingIOError(EOPNOTSUPP, "the disk may have to be read")
    return data if end == HS_GATHERED else None


def sound_gathered(bytes data not None, bytes units not None, numbers, bytes topic, int64_t queue_id):
    """Whether `data` has exactly the records of the entries `units`, each ordinary and sound.  With a `topic`, each
    must also have that topic, `queue_id`, and its queue offset in `numbers`, an array of 8-byte numbers."""
    cdef Py_ssize_t count = PyBytes_GET_SIZE(units) // HS_QUEUE_ENTRY_BYTES
    cdef const uint8_t *entries = <const uint8_t*>PyBytes_AS_STRING(units)
    cdef const uint8_t *p = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t *name = NULL
    cdef size_t size = PyBytes_GET_SIZE(data), name_bytes = 0, passed
    cdef Py_buffer places
    if hs_units_bytes(entries, count, 0) != size:
        return False
    PyObject_GetBuffer(numbers, &places, PyBUF_SIMPLE)
    try:
        if topic is not None:
            name, name_bytes = <const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
            if places.len != count * 8:
                return False
        if size >= LONG_BYTES:
            with nogil:
                passed = hs_sound_gathered(
                    p, size, entries, <const int64_t*>places.buf, count, name, name_bytes, queue_id)
        else:
            passed = hs_sound_gathered(
                p, size, entries, <const int64_t*>places.buf, count, name, name_bytes, queue_id)
    finally:
        PyBuffer_Release(&places)
    return <Py_ssize_t>passed == count


# -- loops: loops.py describes each of these -------------------------------------------------------------------

# They always release the lock: their callers have windows of a log, or thousands of texts.

# It is secret, so nobody can prepare texts that all fall into one slot of a table.
cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")


cdef int hold(Py_buffer *views, tuple arrays, int read_only) except -1:
    """Gets views of all arrays, or of none; the first `read_only` of them are read-only."""
    cdef int held = 0
    try:
        for array in arrays:
            PyObject_GetBuffer(array, &views[held], PyBUF_SIMPLE if held < read_only else PyBUF_WRITABLE)
            held += 1
    except BaseException:
        release(views, held)
        raise
    return 0


cdef void release(Py_buffer *views, int held) noexcept:
    cdef int number
    for number in range(held):
        PyBuffer_Release(&views[number])


cdef int check_rows(Py_buffer *views, int first, int end, Py_ssize_t row_bytes, Py_ssize_t rows) except -1:
    """Raises ValueError unless each view from `first` to `end` has `rows` rows."""
    cdef int number
    for number in range(first, end):
        if views[number].len != row_bytes * rows:
            raise ValueError(f"array {number} has {views[number].len} bytes, not {rows} rows of {row_bytes}")
    return 0


def walk(data, Py_ssize_t until, int64_t offset, layout):
    cdef Py_buffer views[2]
    cdef size_t count
    hold(views, (data, layout), 1)
    try:
        with nogil:
            count = hs_walk(
                <const uint8_t*>views[0].buf, views[0].len, max(until, 0), offset,
                <int64_t*>views[1].buf, views[1].len // (8 * HS_COLUMNS),
            )
    finally:
        release(views, 2)
    return count


def lay_out(data, places, ends, offsets, layout, sound):
    cdef Py_buffer views[6]
    cdef Py_ssize_t rows
    hold(views, (data, places, ends, offsets, layout, sound), 4)
    try:
        rows = views[5].len
        check_rows(views, 1, 4, 8, rows)
        check_rows(views, 4, 5, 8 * HS_COLUMNS, rows)
        with nogil:
            hs_lay_out(
                <const uint8_t*>views[0].buf, views[0].len, <const int64_t*>views[1].buf,
                <const int64_t*>views[2].buf, <const int64_t*>views[3].buf, <int64_t*>views[4].buf, rows,
                <uint8_t*>views[5].buf,
            )
    finally:
        release(views, 6)


def seek(data, Py_ssize_t place, int64_t offset, places):
    cdef Py_buffer views[2]
    cdef size_t at = max(place, 0), count
    hold(views, (data, places), 1)
    try:
        with nogil:
            count = hs_seek(
                <const uint8_t*>views[0].buf, views[0].len, &at, offset, <int64_t*>views[1].buf,
                views[1].len // 8,
            )
    finally:
        release(views, 2)
    return count, at


def tally(data, Py_ssize_t until, int64_t offset, topics, sums):
    cdef Py_buffer views[3]
    cdef size_t end
    cdef int64_t count
    cdef Py_ssize_t room
    hold(views, (data, topics, sums), 1)
    try:
        room = views[1].len // 16
        check_rows(views, 2, 3, 24, room)
        with nogil:
            count = hs_tally(
                <const uint8_t*>views[0].buf, views[0].len, max(until, 0), offset, SEED,
                <int64_t*>views[1].buf, <int64_t*>views[2].buf, room, &end,
            )
    finally:
        release(views, 3)
    if count == HS_NO_MEMORY:
        raise MemoryError("no memory for a table of topics")
    return count, end


def sum_bodies(data, begins, ends, sums):
    cdef Py_buffer views[4]
    cdef Py_ssize_t count
    cdef int well
    hold(views, (data, begins, ends, sums), 3)
    try:
        count = views[1].len // 8
        check_rows(views, 1, 3, 8, count)
        check_rows(views, 3, 4, 4, count)
        with nogil:
            well = hs_sum(
                <const uint8_t*>views[0].buf, views[0].len, <const int64_t*>views[1].buf,
                <const int64_t*>views[2].buf, count, <uint32_t*>views[3].buf,
            )
    finally:
        release(views, 4)
    if not well:
        raise ValueError("a body is not within the data")


def number(data, begins, ends, numbers, texts):
    cdef Py_buffer views[5]
    cdef int64_t found
    cdef Py_ssize_t count
    hold(views, (data, begins, ends, numbers, texts), 3)
    try:
        count = views[1].len // 8
        if count > INT32_MAX:
            raise ValueError(f"{count} texts are too many")
        check_rows(views, 1, 3, 8, count)
        check_rows(views, 3, 4, 4, count)
        check_rows(views, 4, 5, 16, count)
        with nogil:
            found = hs_number(
                <const uint8_t*>views[0].buf, views[0].len, <const int64_t*>views[1].buf,
                <const int64_t*>views[2].buf, count, SEED, <int32_t*>views[3].buf, <int64_t*>views[4].buf,
            )
    finally:
        release(views, 5)
    if found == HS_NO_MEMORY:
        raise MemoryError("no memory for a table of texts")
    if found == HS_OUTSIDE:
        raise ValueError("a text is not within the data")
    return found


def split(data, begins, ends, pieces):
    cdef Py_buffer views[4]
    cdef hs_pieces out
    cdef int64_t *cells
    cdef Py_ssize_t count
    cdef int ascii
    hold(views, (data, begins, ends, pieces), 3)
    try:
        count = views[1].len // 8
        check_rows(views, 1, 3, 8, count)
        cells = <int64_t*>views[3].buf
        out.room, out.count = views[3].len // 32, 0
        out.owners, out.names = cells, cells + out.room
        out.assigns, out.ends = out.names + out.room, out.names + 2 * out.room
        with nogil:
            ascii = hs_split(
                <const uint8_t*>views[0].buf, views[0].len, <const int64_t*>views[1].buf,
                <const int64_t*>views[2].buf, count, &out,
            )
    finally:
        release(views, 4)
    if ascii == HS_OUTSIDE:
        raise ValueError("a text is not within the data, or its pieces have no room")
    return out.count, bool(ascii)


cdef class Lanes:
    """The native twin of dispatching.Lanes, which describes each method."""

    cdef hs_dispatch dispatch
    cdef list owners

    def __cinit__(self, bint meets=False):
        self.owners = []
        self.dispatch.meets = meets

    def __dealloc__(self):
        hs_dispatch_free(&self.dispatch)

    @property
    def count(self):
        return self.dispatch.lane_count

    cdef _own_met(self):
        """Gives lanes that were met their owner: (topic, queue id)."""
        cdef uint32_t number
        cdef hs_lane *lane
        for number in range(<uint32_t>len(self.owners), self.dispatch.lane_count):
            lane = &self.dispatch.lanes[number]
            topic = PyBytes_FromStringAndSize(<char*>lane.topic, lane.topic_bytes)
            self.owners.append((topic.decode("ascii"), lane.queue_id))

    def learn(self, bytes topic, queue_id, next_offset, known_physical_offset, owner):
        cdef int64_t next_ = min(next_offset, INT64_MAX), known = min(known_physical_offset, INT64_MAX)
        cdef const uint8_t *name = <const uint8_t*>PyBytes_AS_STRING(topic)
        cdef int64_t number
        self._own_met()
        number = hs_lane_learn(&self.dispatch, name, PyBytes_GET_SIZE(topic), queue_id, next_, known)
        if number == <int64_t>len(self.owners):
            self.owners.append(owner)
        elif number >= 0:
            self.owners[number] = owner

    def forget(self):
        hs_lanes_forget(&self.dispatch)
        self.owners.clear()

    def gather(self, data, Py_ssize_t at, int64_t offset, Py_ssize_t end, int64_t indexed_to):
        cdef Py_buffer buffer
        cdef const uint8_t *start
        cdef size_t size, moved = 0
        cdef hs_dispatch_end why = HS_DISPATCH_STOPPED
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            end = min(end, buffer.len)
            if 0 <= at < end:
                start = <const uint8_t*>buffer.buf + at
                size = end - at
                if size >= LONG_BYTES:
                    with nogil:
                        why = hs_dispatch_gather(&self.dispatch, start, size, offset, indexed_to, &moved)
                else:
                    why = hs_dispatch_gather(&self.dispatch, start, size, offset, indexed_to, &moved)
        finally:
            PyBuffer_Release(&buffer)
        if why == HS_DISPATCH_NO_MEMORY and not moved:
            raise MemoryError("no memory to gather what is to be dispatched")
        return <Py_ssize_t>moved, why == HS_DISPATCH_FULL, self.dispatch.stored_ms

    def take(self):
        cdef uint32_t i
        cdef hs_lane *lane
        cdef list runs = []
        cdef Py_ssize_t size = <Py_ssize_t>self.dispatch.put_count * HS_INDEX_PUT_BYTES
        cdef bint laid
        if self.dispatch.entry_count * HS_QUEUE_ENTRY_BYTES >= LONG_BYTES:
            with nogil:
                laid = hs_dispatch_sort(&self.dispatch)
        else:
            laid = hs_dispatch_sort(&self.dispatch)
        if not laid:
            raise MemoryError("no memory to gather what is to be dispatched")
        self._own_met()
        for i in range(self.dispatch.touched_count):
            lane = &self.dispatch.lanes[self.dispatch.touched[i]]
            entries = PyBytes_FromStringAndSize(
                <char*>self.dispatch.sorted + <size_t>lane.at * HS_QUEUE_ENTRY_BYTES,
                <Py_ssize_t>lane.count * HS_QUEUE_ENTRY_BYTES,
            )
            code = None if lane.mixed else lane.code
            runs.append((self.owners[self.dispatch.touched[i]], entries, lane.next, lane.known, code))
        puts = PyBytes_FromStringAndSize(<char*>self.dispatch.puts, size) if size else b""
        hs_dispatch_taken(&self.dispatch)
        return runs, puts


def write_all(list writes):
    """Makes writes of (descriptor, bytes, offset), in order.  Returns how many are complete, and the errno of the next
    one, or 0."""
    cdef Py_ssize_t count = len(writes), i
    cdef size_t done = 0
    cdef int error = 0
    cdef hs_write *all_
    cdef tuple write
    cdef bytes data
    if not count:
        return 0, 0
    all_ = <hs_write*>malloc(count * sizeof(hs_write))
    if all_ is NULL:
        raise MemoryError("no memory to write what is gathered")
    try:
        for i in range(count):
            write = writes[i]
            data = write[1]
            all_[i].fd = write[0]
            all_[i].data = <const uint8_t*>PyBytes_AS_STRING(data)
            all_[i].bytes = PyBytes_GET_SIZE(data)
            all_[i].offset = write[2]
        with nogil:
            error = hs_write_all(all_, count, &done)
    finally:
        free(all_)
    return <Py_ssize_t>done, error


def index_put(mapped, puts, int64_t slots, int64_t entries, tuple header):
    """Enters `puts`, packed by INDEX_PUT, into a mapped index file with so many slots and entries, as far as there is
    room, and writes the file's header.

    `header`: begin and end ms, begin and end offset, used slots, next entry.  Returns the header afterwards, and
    whether all went well.  If the disk failed under the mapping, the header is right for the puts before the failure.
    """
    cdef Py_buffer target, source
    cdef hs_index index
    cdef int well = 0
    index.begin_ms, index.end_ms, index.begin_offset, index.end_offset, index.used, index.next = header
    PyObject_GetBuffer(mapped, &target, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(puts, &source, PyBUF_SIMPLE)
        try:
            if not (0 < slots <= 0x7FFFFFFF and 0 < entries <= 0x7FFFFFFF and 1 <= index.next <= entries):
                raise ValueError("no index file has such numbers")
            if target.len < HS_INDEX_HEADER_BYTES + HS_INDEX_SLOT_BYTES * slots + HS_INDEX_ENTRY_BYTES * entries:
                raise ValueError("the mapping is shorter than the index file")
            index.map, index.puts = <uint8_t*>target.buf, <const uint8_t*>source.buf
            index.slots, index.entries = slots, entries
            index.put_count = source.len // HS_INDEX_PUT_BYTES
            if not hs_bus_take():
                raise OSError(EIO, "SIGBUS cannot be handled")
            with nogil:
                well = hs_index_put(&index)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)
    header = (index.begin_ms, index.end_ms, index.begin_offset, index.end_offset, index.used, index.next)
    return header, bool(well)


def ledger_scan(bytes data not None):
    """The whole, sound entries that follow each other from the begin of `data` on.

    Returns (their bytes, how many, index, term and position of the first, term of the last and where it begins).
    """
    cdef hs_ledger_run run
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef size_t size = PyBytes_GET_SIZE(data), passed
    if size >= LONG_BYTES:
        with nogil:
            passed = hs_ledger_scan(start, size, 1, &run)
    else:
        passed = hs_ledger_scan(start, size, 1, &run)
    return passed, run.count, run.index, run.term, run.position, run.last_term, run.last_at


def ledger_heads(space, int64_t index, int64_t term, int64_t position):
    """Writes heads of entries of `term`, from number `index` and `position` of the log on, into the room before each
    record of `space`.  Returns how many; 0 if it is not filled by records with such room."""
    cdef Py_buffer buffer
    cdef int64_t count
    PyObject_GetBuffer(space, &buffer, PyBUF_WRITABLE)
    try:
        count = hs_ledger_heads(<uint8_t*>buffer.buf, buffer.len, index, term, position)
    finally:
        PyBuffer_Release(&buffer)
    return count


def ledger_units(bytes data not None):
    """The index units of the entries that fill `data`.  Raises ValueError if anything else is in it."""
    cdef hs_ledger_run run
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef bytes units
    if hs_ledger_scan(start, PyBytes_GET_SIZE(data), 0, &run) != <size_t>PyBytes_GET_SIZE(data):
        raise ValueError("not all of it is entries")
    units = PyBytes_FromStringAndSize(NULL, run.count * HS_LEDGER_UNIT_BYTES)
    hs_ledger_units(start, run.count, <uint8_t*>PyBytes_AS_STRING(units))
    return units


def ledger_bytes(bytes data not None, int64_t count):
    """Bytes of the first `count` of the entries that fill `data`.  Raises ValueError if there are fewer."""
    cdef hs_ledger_run run
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    hs_ledger_scan(start, PyBytes_GET_SIZE(data), 0, &run)
    if not 0 <= count <= run.count:
        raise ValueError(f"{run.count} entries, asked for {count}")
    return hs_ledger_bytes(start, count)
