"""Fast sends: the native path of plain sends, from the bytes of a read to the log and to their answers.

    bytes of reads ─▶ take: frame, header, properties, record ─▶ append: stamps, one write ─▶ answers' bytes
                        │ stops before what is not plain             │ what the log refused
                        ▼                                            ▼
                      the processor, as without this               requests again, for the processor to answer

native/core/send.h defines which sends are plain, Admission for which topics.  A send that is not plain is no
error: it takes the longer way.  Everything runs on the remoting loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.log.log import EncodedRun
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
    record_lead: int

    def append_run(self, run: EncodedRun) -> CommitLogError | None: ...


class AppendAnswers(Protocol):
    """The answers of what one append has stored."""

    waiting: int
    """How many wait for proofs, up to `waiting_end` in the log."""
    waiting_end: int
    prompt: int
    """How many do not wait, and get an answer."""

    def render(self, now: int, later: int) -> list[tuple[Connection, bytes]]:
        """By connection: the answers that do not wait with the code `now`, those that do with `later`; with
        NOT_YET they are left out.
        """
        ...

    def waiters(self) -> list[tuple[Connection, int, int, bool]]:
        """Those that wait for proofs: see as_request()."""
        ...


# Instead of a code.
NOT_YET = -1

# Of one append: the answers to what was stored, the requests that were not, and why.
AppendOutcome = tuple[AppendAnswers, list[tuple[Connection, RemotingCommand]], Exception | None]


class FastSends:
    """The run of plain sends that is being gathered; stores and answers them.

    `run.count` is how many there are; `run.full`: the last take() stopped, they have to be appended first.
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
        """`core` is the compiled module; `trace` has each answer's fields besides the message's place."""
        self.run: Any = core.Sends(admission.cluster_property, store_host, log.record_lead)
        self._admission = admission
        self._log = log
        self._stats = stats
        self._id_prefix = store_host.hex().upper()
        self._version, self._limits = admission.generation
        self._learn_limits()
        self.answer_with(trace)
        stats.traffic.feed = self.run.collect

    def answer_with(self, trace: Mapping[str, str]) -> None:
        """Sets the fields of each answer besides the message's place, from the next append on."""
        self.run.answer_with(*answer_pieces(trace, self._id_prefix))

    def begin(self, most: int) -> None:
        """Begins a run of up to `most` sends, with the present topics and limits."""
        version, limits = self._admission.generation
        if version is not self._version or limits is not self._limits:
            self._version, self._limits = version, limits
            self._learn_limits()
        self.run.most = most

    def take(self, connection: Connection, data: bytes, position: int) -> int:
        """Gathers plain sends from `position` on; returns where the rest begins."""
        run, host = self.run, connection.peer_host
        position = run.take(connection, data, position, host)
        while run.unknown is not None and self._learn(run.unknown.decode()):
            position = run.take(connection, data, position, host)
        return position

    def append(self, error: Exception | None = None) -> AppendOutcome:
        """Stores and counts what is gathered, or nothing of it for an `error`, and empties the run."""
        run = self.run
        if error is None:
            began_s = time.monotonic()
            try:
                error = self._log.append_run(run)
            except Exception as fault:
                logger.exception("sends failed count=%d", run.count)
                error = fault
            count, size = run.stored
            self._stats.put(count, size, time.monotonic() - began_s)
        answers, lost = run.finish()
        return answers, [as_request(*each) for each in lost] if lost else lost, error

    def _learn_limits(self) -> None:
        log = self._log
        self.run.forget()
        self.run.configure(min(self._limits.max_message_bytes, log.body_bytes_max), log.record_bytes_max)

    def _learn(self, topic: str) -> bool:
        """False if the run has to be appended first, or for an unknown topic.  Unknown ones are not kept, for
        their names come from the wire."""
        queues = self._admission.plain_queues(topic)
        return queues is not None and self.run.teach(topic, queues)


def fast_sends(
    admission: Admission, log: Log, stats: Stats, *, store_host: bytes, trace: Mapping[str, str]
) -> FastSends | None:
    """None if the native code was not built, or is switched off."""
    if native.sends is None:
        return None
    return FastSends(native.sends, admission, log, stats, store_host=store_host, trace=trace)


def as_request(
    connection: Connection, opaque: int, serialize_type: int, oneway: bool
) -> tuple[Connection, RemotingCommand]:
    """The parts of a send that its answer needs."""
    request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, oneway=oneway)
    request.opaque, request.serialize_type = opaque, serialize_type
    return connection, request


# -- the pieces of answers -------------------------------------------------------------------------------

Pieces = tuple[bytes, ...]

# Placeholders for an answer's numbers.
_CODE, _OPAQUE = 1_900_000_001, 1_900_000_002
_PLACE = "0123456789abcdef"  # as long as a physical offset
_QUEUE, _QUEUE_OFFSET = "queue-0123456789", "offset-0123456789"


def answer_pieces(trace: Mapping[str, str], id_prefix: str) -> tuple[Pieces, Pieces]:
    """What is the same in all answers, in JSON and in the binary form, as hs_put_answer takes it.

    The pieces are cut from answers of the codec, so only the codec knows the formats.
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
    """The pieces between the marks, searched from the end: the trace before them may have any text."""
    pieces: Pieces = ()
    for mark in reversed(marks):
        header, _, behind = header.rpartition(mark.encode())
        pieces = (behind, *pieces)
    return (header, *pieces)
