"""Fast sends: plain sends, natively, from the bytes of a read to the log, and back to the bytes of their answers.

    bytes of reads ─▶ take: frame, header, properties, record ─▶ append: stamps, one write ─▶ answers, rendered
                        │ stops before what is not plain             │ what the log refused
                        ▼                                            ▼
                      the processor, as without this               requests again, for the processor to answer

What is plain is said in native/core/send.h, for which topics by Admission.  Not being plain is no fault: it only
takes the longer way.  Everything runs on the remoting loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from commitlog.errors import CommitLogError
from commitlog.log.log import Run
from haservice.broker.send import native
from haservice.broker.send.admission import Admission
from haservice.broker.stats.counters import Stats
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand, encode_head
from haservice.remoting.connection import Connection
from haservice.remoting.frame import PREFIX_BYTES, SERIALIZE_ROCKETMQ

logger = logging.getLogger(__name__)


class Log(Protocol):
    """The commit log, as far as fast sends use it."""

    body_bytes_max: int
    record_bytes_max: int

    def append_run(self, run: Run) -> CommitLogError | None: ...


class Answers(Protocol):
    """The answers of what one append has stored."""

    waiting: int
    """How many are to wait for proofs, up to `waiting_end` in the log."""
    waiting_end: int
    prompt: int
    """How many are not, and get an answer."""

    def render(self, code: int, now: bool, later: bool) -> list[tuple[Connection, bytes]]:
        """Those that do not wait if `now`, those that do, with `code`, if `later`; by connection."""
        ...


class Outcome(NamedTuple):
    """Of one append: the answers of what is in the log; requests that are not, and why."""

    answers: Answers
    lost: list[tuple[Connection, RemotingCommand]]
    error: Exception | None


class FastSends:
    """The run of plain sends that is being gathered, and what it takes to store and answer them.

    `run.count` is how many there are, `run.full` whether the last take() stopped because these have to be appended
    first.
    """

    def __init__(
        self,
        core: Any,
        admission: Admission,
        log: Log,
        stats: Stats,
        *,
        store_host: bytes,
        trace: Mapping[str, str],
    ) -> None:
        """`core` is the compiled module; `trace` is what each answer tells besides its places."""
        self.run: Any = core.Sends(admission.cluster_property, store_host)
        self._admission = admission
        self._log = log
        self._stats = stats
        self._id_prefix = store_host.hex().upper()
        self._version, self._limits = admission.generation
        self._learn_limits()
        self.answer_with(trace)
        stats.traffic.feed = self.run.collect

    def answer_with(self, trace: Mapping[str, str]) -> None:
        """What each answer tells besides its places, from the next append on."""
        self.run.answer_with(*answer_pieces(trace, self._id_prefix))

    def begin(self, most: int) -> None:
        """A run of up to `most` sends, by the topics and limits of now."""
        version, limits = self._admission.generation
        if version is not self._version or limits is not self._limits:
            self._version, self._limits = version, limits
            self._learn_limits()
        self.run.most = most

    def take(self, connection: Connection, data: bytes, position: int) -> int:
        """Gathers plain sends from `position` on; where what it leaves begins."""
        run, host = self.run, connection.peer_host
        position = run.take(connection, data, position, host)
        while run.unknown is not None and self._learn(run.unknown.decode()):
            position = run.take(connection, data, position, host)
        return position

    def append(self) -> Outcome:
        """Stores what is gathered, counts it, and is empty."""
        began_s = time.monotonic()
        error: Exception | None
        try:
            error = self._log.append_run(self.run)
        except Exception as fault:
            logger.exception("sends failed count=%d", self.run.count)
            error = fault
        return self._finish(error, began_s)

    def refuse(self, error: Exception) -> Outcome:
        """Stores none of what is gathered, and is empty."""
        return self._finish(error, None)

    def _finish(self, error: Exception | None, began_s: float | None) -> Outcome:
        count, size = self.run.stored
        answers, lost = self.run.finish()
        if began_s is not None:
            self._stats.put(count, size, time.monotonic() - began_s)
        return Outcome(answers, [_request(*each) for each in lost], error)

    def _learn_limits(self) -> None:
        log = self._log
        self.run.forget()
        self.run.configure(min(self._limits.max_message_bytes, log.body_bytes_max), log.record_bytes_max)

    def _learn(self, topic: str) -> bool:
        """False for a topic that is not there, which nobody remembers, for names come from the wire; and where the
        run has to be appended first."""
        queues = self._admission.plain_queues(topic)
        return queues is not None and self.run.teach(topic, queues)


def fast_sends(
    admission: Admission, log: Log, stats: Stats, *, store_host: bytes, trace: Mapping[str, str]
) -> FastSends | None:
    """None where the native code was not built, or is not wanted."""
    if native.sends is None:
        return None
    return FastSends(native.sends, admission, log, stats, store_host=store_host, trace=trace)


def _request(
    connection: Connection, opaque: int, serialize_type: int, oneway: bool
) -> tuple[Connection, RemotingCommand]:
    """As much of a send as its answer needs."""
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, oneway=oneway)
    request.opaque, request.serialize_type = opaque, serialize_type
    return connection, request


# -- the pieces of answers -------------------------------------------------------------------------------

Pieces = tuple[bytes, ...]

# They stand where an answer's numbers will.
_CODE, _OPAQUE = 1_900_000_001, 1_900_000_002
_PLACE = "0123456789abcdef"  # as long as a physical offset
_QUEUE, _QUEUE_OFFSET = "queue-0123456789", "offset-0123456789"


def answer_pieces(trace: Mapping[str, str], id_prefix: str) -> tuple[Pieces, Pieces]:
    """What is the same in all answers, in JSON and in the binary form, as hs_put_answer has it.

    Cut out of answers that the codec made, so that it alone knows what they look like.
    """
    texts = {**trace, "msgId": id_prefix + _PLACE, "queueId": _QUEUE, "queueOffset": _QUEUE_OFFSET}
    request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque=_OPAQUE)
    json = encode_head(request.answer(_CODE, None, texts))[PREFIX_BYTES:]
    before, _, rest = json.partition(str(_CODE).encode())
    json_pieces = (before, *_cut(rest, _PLACE, _QUEUE, _QUEUE_OFFSET, str(_OPAQUE)))
    request.serialize_type = SERIALIZE_ROCKETMQ
    binary = encode_head(request.answer(0, None, texts))[PREFIX_BYTES:]
    before, between, behind, _ = _cut(binary, _PLACE, _QUEUE, _QUEUE_OFFSET)
    # | code 2 | language, version | opaque 4 | flag, remark length | ext length 4 | ext, with lengths of 4
    return json_pieces, (b"", before[2:5], before[9:17], before[21:], between[:-4], behind[:-4])


def _cut(header: bytes, *marks: str) -> Pieces:
    """The pieces between the marks, from the end, for before them stands whatever the trace says."""
    pieces: Pieces = ()
    for mark in reversed(marks):
        header, _, behind = header.rpartition(mark.encode())
        pieces = (behind, *pieces)
    return (header, *pieces)
