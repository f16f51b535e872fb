# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""Plain sends for Python: gathered from reads, stamped under the log's lock, answered.  The rules are core/send.h's.

All of this belongs to the thread of the remoting loop.  The memory for records is one buffer, of a size that stays.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from "core/send.h" nogil:
    enum:
        HS_SEND_PROPERTIES_ROOM
        HS_TOPIC_BYTES_MAX
        HS_PIECES
        HS_ANSWER_NUMBERS_BYTES_MAX
    ctypedef struct hs_send:
        const uint8_t* topic
        uint32_t topic_bytes, body_bytes, properties_bytes
        int32_t opaque, queue_id
        uint8_t binary, oneway, wait
    ctypedef struct hs_stored:
        int64_t physical_offset, queue_offset
        int32_t opaque, queue_id
        uint8_t binary, oneway, wait
    ctypedef struct hs_answer_piece:
        const uint8_t* p
        size_t n
    void hs_crc_init()
    size_t hs_read_send(const uint8_t*, size_t, const uint8_t*, size_t, hs_send*, uint8_t*)
    uint64_t hs_record_bytes(const hs_send*, size_t, size_t)
    uint8_t* hs_write_record(uint8_t*, const hs_send*, const uint8_t*, const uint8_t*, size_t, const uint8_t*, size_t)
    void hs_write_body(uint8_t*, uint8_t*, const hs_send*)
    void hs_stamp(uint8_t*, int64_t, int64_t, int64_t)
    uint8_t* hs_put_answer(uint8_t*, const hs_stored*, int, const hs_answer_piece*)

cdef enum:
    # From here on the lock is let go: some 10 µs of work.
    LONG_BYTES = 64 << 10
    SENDS_MAX = 8192
    # Queues of all topics that are known at a time: 48 bytes each.
    LANES_MAX = 1 << 17

# What a run holds at most; a larger message goes the long way, which copies it once.
RUN_BYTES = 1 << 20

hs_crc_init()

cdef struct Put:
    hs_stored stored
    int32_t size, sender      # bytes of the record and of the room before it; place of its connection
    PyObject* topic           # a Topic that the run holds


cdef struct Lane:
    int64_t next, bytes       # next queue offset; bytes of what was stamped
    int64_t count, mark       # how many were; the stamping that saw it last
    int64_t told, told_bytes  # what is in the log of it, and was not collected


cdef class Topic:
    """A topic whose sends need no look at it, or none (`queues` is 0), and what its queues get from one stamping."""
    cdef bytes name
    cdef str text
    cdef int32_t queues
    cdef bytearray lanes      # of Lane
    cdef list keys            # (topic, queue id) of each queue that was met

    def __cinit__(self, str name, int32_t queues):
        self.text, self.name, self.queues = name, name.encode(), queues
        self.lanes = bytearray(self.queues * sizeof(Lane))
        self.keys = [None] * self.queues

    cdef inline Lane* lane(self, int32_t queue_id):
        return <Lane*>PyByteArray_AS_STRING(self.lanes) + queue_id

    cdef inline tuple key(self, int32_t queue_id):
        key = self.keys[queue_id]
        if key is None:
            key = self.keys[queue_id] = (self.text, queue_id)
        return <tuple>key


cdef class Pieces:
    """What every answer is made of but its numbers; see core/send.h for which piece is which."""
    cdef tuple kept
    cdef hs_answer_piece json[6]
    cdef hs_answer_piece binary[6]
    cdef size_t room          # for one answer

    def __cinit__(self, tuple json, tuple binary):
        cdef size_t json_bytes = 0, binary_bytes = 0
        cdef int i
        if len(json) != HS_PIECES or len(binary) != HS_PIECES:
            raise ValueError("an answer has another number of pieces")
        self.kept = (json, binary)
        for i in range(HS_PIECES):
            self.json[i] = _piece(json[i])
            self.binary[i] = _piece(binary[i])
            json_bytes += self.json[i].n
            binary_bytes += self.binary[i].n
        self.room = max(json_bytes, binary_bytes) + HS_ANSWER_NUMBERS_BYTES_MAX


cdef hs_answer_piece _piece(bytes text):
    cdef hs_answer_piece piece
    piece.p, piece.n = <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    return piece


cdef class Answers:
    """The answers of what a run has stored; kept while they wait for proofs."""
    cdef bytes puts           # of Put; the topics may be gone
    cdef list senders
    cdef Pieces pieces
    cdef readonly Py_ssize_t waiting
    """How many wait for proofs: all but one-way sends and those whose senders do not want to wait."""
    cdef readonly Py_ssize_t prompt
    """How many get their answers at once: those of senders who do not want to wait."""
    cdef readonly int64_t waiting_end
    """Where the last of those ends in the log; 0 without any."""

    def render(self, int now, int later):
        """[(connection, the bytes of its answers)], in their order.

        `now` is the code of those that do not wait, `later` of those that do; with one below 0 these are left out.
        """
        cdef Py_ssize_t count = PyBytes_GET_SIZE(self.puts) // sizeof(Put), i
        cdef const Put* put = <const Put*>PyBytes_AS_STRING(self.puts)
        cdef list rendered = []
        cdef int32_t sender = -1, code
        cdef uint8_t* out = <uint8_t*>PyMem_Malloc(count * self.pieces.room + 1)
        cdef uint8_t* p = out
        cdef const hs_stored* stored
        cdef const hs_answer_piece* json = &self.pieces.json[0]
        cdef const hs_answer_piece* binary = &self.pieces.binary[0]
        if out == NULL:
            raise MemoryError
        try:
            for i in range(count):
                stored = &put[i].stored
                code = later if stored.wait else now
                if stored.oneway or code < 0:
                    continue
                if put[i].sender != sender:
                    if p != out:
                        rendered.append((self.senders[sender], PyBytes_FromStringAndSize(<char*>out, p - out)))
                        p = out
                    sender = put[i].sender
                p = hs_put_answer(p, stored, code, binary if stored.binary else json)
            if p != out:
                rendered.append((self.senders[sender], PyBytes_FromStringAndSize(<char*>out, p - out)))
        finally:
            PyMem_Free(out)
        return rendered


    def waiters(self):
        """[(connection, opaque, serialize type, whether one-way)] of those that wait for proofs."""
        cdef Py_ssize_t count = PyBytes_GET_SIZE(self.puts) // sizeof(Put), i
        cdef const Put* put = <const Put*>PyBytes_AS_STRING(self.puts)
        cdef list found = []
        for i in range(count):
            if put[i].stored.wait and not put[i].stored.oneway:
                found.append((self.senders[put[i].sender], put[i].stored.opaque, int(put[i].stored.binary), False))
        return found


cdef class Sends:
    """A run of plain sends: gathered by take(), appended by CommitLog.append_run(), which stamps it, then finished."""
    cdef dict topics          # name → Topic, one and the same all through a run
    cdef Py_ssize_t lanes     # of all of them
    cdef Topic last           # the one met last, most likely the next
    cdef bytes cluster, store_host
    cdef Pieces pieces
    cdef uint32_t body_bytes_max
    cdef uint64_t record_bytes_max
    cdef bytearray records, puts
    cdef uint8_t* record      # begin of both
    cdef Put* put
    cdef object view
    cdef Py_ssize_t filled    # bytes of records
    cdef Py_ssize_t done, done_bytes       # of which are in the log
    cdef Py_ssize_t stamped, stamped_bytes # and are stamped for it
    cdef int64_t stampings
    cdef list senders, held   # connections; topics that Puts point to
    cdef list touched         # (Topic, queue id) of this stamping
    cdef list uncollected     # (Topic, queue id) of each lane of which something was not collected
    cdef dict sums            # (topic, queue id) → (count, bytes) of topics that are taught no more
    cdef uint8_t properties[32768]
    cdef readonly Py_ssize_t lead
    """Bytes of room before each record, for whoever stores them: 0, or those of an entry's head."""
    cdef readonly Py_ssize_t count
    """How many there are in the run."""
    cdef public Py_ssize_t most
    """How many there may be in it."""
    cdef readonly bytes unknown
    """The topic at which the last take() stopped because nobody has taught it, or None."""
    cdef readonly bint full
    """Whether the last take() stopped because the run has to be appended first."""

    def __cinit__(self, bytes cluster_property, bytes store_host, Py_ssize_t lead=0):
        if HS_SEND_PROPERTIES_ROOM > sizeof(self.properties) or len(store_host) not in (8, 20):
            raise ValueError("the store's host is of 8 or 20 bytes")
        if not 0 <= lead <= 4096:
            raise ValueError(f"room of {lead} bytes before each record, allowed are 0 to 4096")
        self.lead = lead
        self.cluster, self.store_host = cluster_property, store_host
        self.records, self.puts = bytearray(RUN_BYTES), bytearray(SENDS_MAX * sizeof(Put))
        self.record = <uint8_t*>PyByteArray_AS_STRING(self.records)
        self.put = <Put*>PyByteArray_AS_STRING(self.puts)
        self.view = memoryview(self.records)
        self.topics, self.sums, self.uncollected = {}, {}, []
        self.most = SENDS_MAX
        self._clear()
        self.forget()

    cdef _clear(self):
        self.count = self.filled = self.done = self.done_bytes = self.stamped = self.stamped_bytes = 0
        self.senders, self.held, self.touched = [], [], []

    # -- what is plain ------------------------------------------------------------------------------------------

    def configure(self, uint32_t body_bytes_max, uint64_t record_bytes_max):
        """Larger bodies and records are not plain."""
        self.body_bytes_max, self.record_bytes_max = body_bytes_max, record_bytes_max

    def answer_with(self, tuple json, tuple binary):
        """The pieces of answers, from the next run that is finished on."""
        self.pieces = Pieces(json, binary)

    def teach(self, str topic, int32_t queues):
        """Sends to these queues of the topic need no look at it; with 0 of them each does.

        False if there is no room before this run is appended.
        """
        cdef Topic taught
        if not 0 < queues <= LANES_MAX:
            queues = 0
        if self.lanes + queues >= LANES_MAX or len(self.topics) >= LANES_MAX:
            if self.count:
                self.full = True
                return False
            self.forget()
        taught = Topic(topic, queues)
        self.topics[taught.name] = taught
        self.lanes += queues
        return True

    def forget(self):
        """Knows no topic any more.  Not amid a run, in which two of one name would count the same places."""
        if self.count:
            raise ValueError("a run is being gathered")
        self._sum_up()
        self.topics, self.last, self.lanes = {}, None, 0

    # -- gathering ----------------------------------------------------------------------------------------------

    def take(self, connection, bytes data not None, Py_ssize_t position, bytes born_host not None):
        """Gathers the plain sends that stand in `data` from `position` on, which is a frame's begin; where the first
        frame begins that is none, or not all there, or one too many.
        """
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef const uint8_t* born = <const uint8_t*>PyBytes_AS_STRING(born_host)
        cdef const uint8_t* store = <const uint8_t*>PyBytes_AS_STRING(self.store_host)
        cdef const uint8_t* cluster = <const uint8_t*>PyBytes_AS_STRING(self.cluster)
        cdef size_t cluster_bytes = PyBytes_GET_SIZE(self.cluster), frame_bytes
        cdef size_t born_bytes = PyBytes_GET_SIZE(born_host), store_bytes = PyBytes_GET_SIZE(self.store_host)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef uint64_t record_bytes, stored_bytes
        cdef uint8_t* record
        cdef uint8_t* body_at
        cdef hs_send send
        cdef Put* put
        cdef Topic topic
        self.unknown, self.full = None, False
        if born_bytes != 8 and born_bytes != 20 or position < 0:
            return position
        while position < size and self.count < self.most:
            frame_bytes = hs_read_send(p + position, size - position, cluster, cluster_bytes, &send, self.properties)
            if frame_bytes == 0 or send.body_bytes > self.body_bytes_max:
                break
            topic = self._topic(send.topic, send.topic_bytes)
            if topic is None:
                self.unknown = send.topic[:send.topic_bytes]
                break
            if send.queue_id >= topic.queues:
                break
            record_bytes = hs_record_bytes(&send, born_bytes, store_bytes)
            stored_bytes = record_bytes + self.lead
            if record_bytes > self.record_bytes_max or stored_bytes > <uint64_t>RUN_BYTES:
                break
            if self.count == SENDS_MAX or stored_bytes > <uint64_t>(RUN_BYTES - self.filled):
                self.full = True
                break
            record = self.record + self.filled + self.lead
            body_at = hs_write_record(record, &send, self.properties, born, born_bytes, store, store_bytes)
            if send.body_bytes >= LONG_BYTES:
                with nogil:
                    hs_write_body(record, body_at, &send)
            else:
                hs_write_body(record, body_at, &send)
            if not self.senders or self.senders[len(self.senders) - 1] is not connection:
                self.senders.append(connection)
            if not self.held or self.held[len(self.held) - 1] is not topic:
                self.held.append(topic)
            put = self.put + self.count
            put.stored.physical_offset = put.stored.queue_offset = 0
            put.stored.opaque, put.stored.queue_id = send.opaque, send.queue_id
            put.stored.binary, put.stored.oneway, put.stored.wait = send.binary, send.oneway, send.wait
            put.size, put.sender, put.topic = <int32_t>stored_bytes, <int32_t>(len(self.senders) - 1), <PyObject*>topic
            self.filled += stored_bytes
            self.count += 1
            position += frame_bytes
        return position

    cdef inline Topic _topic(self, const uint8_t* name, uint32_t n):
        cdef Topic last = self.last
        if last is not None and PyBytes_GET_SIZE(last.name) == n and not memcmp(PyBytes_AS_STRING(last.name), name, n):
            return last
        found = self.topics.get(name[:n])
        if found is not None:
            self.last = <Topic>found
        return <Topic>found

    # -- appending: under the log's lock ------------------------------------------------------------------------

    @property
    def next_bytes(self):
        """Size of the first record that is not in the log, and of the room before it; 0 when all are."""
        return self.put[self.done].size if self.done < self.count else 0

    def stamp(self, int64_t offset, int64_t room, int64_t now_ms, dict queue_offsets not None):
        """Stamps as many of the records that are not in the log as fit into `room` bytes, for `offset`; their bytes,
        with the room before each.

        They begin with the first one that fits; nobody else's numbers change before written() says so.
        """
        cdef Py_ssize_t at = self.done, bytes_at = self.done_bytes
        cdef Put* put
        cdef Lane* lane
        cdef Topic topic
        self.stampings += 1
        self.touched = []
        while at < self.count:
            put = self.put + at
            if put.size > room:
                break
            topic = <Topic>put.topic
            lane = topic.lane(put.stored.queue_id)
            if lane.mark != self.stampings:
                known = queue_offsets.get(topic.key(put.stored.queue_id))
                lane.mark, lane.count, lane.bytes = self.stampings, 0, 0
                lane.next = 0 if known is None else <int64_t>known
                self.touched.append((topic, put.stored.queue_id))
            put.stored.queue_offset, put.stored.physical_offset = lane.next, offset + self.lead
            hs_stamp(self.record + bytes_at + self.lead, lane.next, offset + self.lead, now_ms)
            lane.next += 1
            lane.count += 1
            lane.bytes += put.size - self.lead
            offset += put.size
            room -= put.size
            bytes_at += put.size
            at += 1
        self.stamped, self.stamped_bytes = at, bytes_at
        return self.view[self.done_bytes:bytes_at]

    def written(self, dict queue_offsets not None):
        """What was stamped is in the log: the queues' next offsets say so from now on."""
        cdef Topic topic
        cdef Lane* lane
        cdef int32_t queue_id
        for found, number in self.touched:
            topic, queue_id = <Topic>found, number
            lane = topic.lane(queue_id)
            queue_offsets[topic.key(queue_id)] = lane.next
            if not lane.told:
                self.uncollected.append((topic, queue_id))
            lane.told += lane.count
            lane.told_bytes += lane.bytes
        self.touched = []
        self.done, self.done_bytes = self.stamped, self.stamped_bytes

    # -- the end of a run ---------------------------------------------------------------------------------------

    @property
    def stored(self):
        """(how many are in the log, their bytes)"""
        return self.done, self.done_bytes - self.done * self.lead

    def finish(self):
        """(answers of what is in the log, the others as `lost` says), and the run is empty."""
        cdef Answers answers = Answers.__new__(Answers)
        cdef Put* put
        cdef Py_ssize_t i
        if self.pieces is None:
            raise ValueError("no answers are known")
        answers.puts = PyBytes_FromStringAndSize(<char*>self.put, self.done * sizeof(Put))
        answers.senders, answers.pieces = self.senders, self.pieces
        for i in range(self.done):
            put = self.put + i
            if put.stored.oneway:
                continue
            if put.stored.wait:
                answers.waiting += 1
                answers.waiting_end = put.stored.physical_offset + put.size - self.lead
            else:
                answers.prompt += 1
        result = answers, self._lost() if self.done < self.count else []
        self._clear()
        return result

    cdef list _lost(self):
        """[(connection, opaque, serialize type, whether one-way)]"""
        cdef Put* put
        cdef Py_ssize_t i
        cdef list lost = []
        for i in range(self.done, self.count):
            put = self.put + i
            lost.append((self.senders[put.sender], put.stored.opaque, int(put.stored.binary), bool(put.stored.oneway)))
        return lost

    # -- statistics ---------------------------------------------------------------------------------------------

    def collect(self):
        """{(topic, queue id): (count, bytes)} of all that came into the log since the last call."""
        cdef dict sums
        self._sum_up()
        sums, self.sums = self.sums, {}
        return sums

    cdef _sum_up(self):
        cdef Topic topic
        cdef Lane* lane
        cdef int32_t queue_id
        for found, number in self.uncollected:
            topic, queue_id = <Topic>found, number
            lane = topic.lane(queue_id)
            count, size = self.sums.get(topic.key(queue_id), (0, 0))
            self.sums[topic.key(queue_id)] = (count + lane.told, size + lane.told_bytes)
            lane.told = lane.told_bytes = 0
        self.uncollected = []
