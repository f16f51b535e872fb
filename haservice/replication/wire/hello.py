"""The handshake by which our brokers recognise each other on the HA port.  Pure: bytes in, values out.

    slave → master    report −1                          a stock master ignores it, and stays silent
    master → slave    offset −1 | size | MasterHello     a stock slave is never sent one
    slave → master    −2 | size | SlaveHello             what it will hold after it has changed its log
    master → slave    offset −2 | size | Verdict         after it has compared the digest with its own bytes
    slave → master    report ≥ 0                         from here on the classic wire

Bodies are JSON objects.  Unknown fields are ignored, so that later versions may say more.  The
master's headers are those of transfers (12 bytes), the slave's words those of reports (8 bytes each).

The digest covers the last `digestBytes` below `position` or below the end that the master's hello told,
whichever is nearer.  Both sides hold those bytes, even when the slave is ahead.  Where a segment ends in
zeros, the digest reaches back until it covers something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from haservice.bounds import EPOCH_MAX, INT_MAX, LONG_MAX, OFFSET_MAX
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import EPOCHS_MAX, Epoch, Lineage, LogSpan, Mark
from haservice.replication.lineage.membership import OVER_MAX, REPLICAS_MAX, ReplicaList

VERSION = 1
HELLO_OFFSET = -1
VERDICT_OFFSET = -2
SLAVE_HELLO_MARK = -2
HELLO_BYTES_MAX = 256 * 1024
# So many bytes are compared below the point where two logs are to be one.  It is more when they are all
# zeros, as the end of a segment may be for a whole message's length.
DIGEST_BYTES = 64 * 1024
DIGEST_BYTES_MAX = 16 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
# The most characters of a peer's text, for people.
_WORDS_MAX = 500
# Of a version; a longer one is cut.
_SOFTWARE_MAX = 50


@dataclass(frozen=True, slots=True)
class MasterHello:
    """Who the master is and what it holds.  `role` is its brokerRole, `broker_addr` where clients reach it.

    `nonce` is new each time; the slave's hello repeats it, so that no old hello can be replayed.
    """

    replica_id: str
    cluster_name: str
    broker_name: str
    broker_addr: str
    role: str
    segment_bytes: int
    log: LogSpan
    lineage: Lineage
    nonce: str = ""
    heartbeat_ms: int = 0
    """How often it speaks at least; 0 if it does not say."""
    software: str = ""
    """Its version of haservice, for people; "" before 0.5."""
    acknowledged: int = -1
    """Up to where its log has the acks that an OK takes; it tells slaves that ask when that moves.  -1: it tells
    nothing."""

    def encode(self) -> bytes:
        return _fitted(
            {
                "version": VERSION,
                "nonce": self.nonce,
                "heartbeatMs": self.heartbeat_ms,
                "haserviceVersion": self.software,
                "replicaId": self.replica_id,
                "clusterName": self.cluster_name,
                "brokerName": self.broker_name,
                "brokerAddr": self.broker_addr,
                "role": self.role,
                "segmentBytes": self.segment_bytes,
                "start": self.log.start,
                "end": self.log.end,
                "acknowledged": self.acknowledged,
                "epochs": encode_epochs(self.lineage),
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> MasterHello:
        """Raises ProtocolError."""
        said = _object(body, "the master's hello")
        return cls(
            replica_id=_text(said, "replicaId"),
            cluster_name=_text(said, "clusterName"),
            broker_name=_text(said, "brokerName"),
            broker_addr=_text(said, "brokerAddr"),
            role=_text(said, "role"),
            segment_bytes=_number(said, "segmentBytes", INT_MAX),
            log=_span(said),
            lineage=decode_epochs(said.get("epochs")),
            nonce=_nonce(said),
            heartbeat_ms=_heartbeat_ms(said),
            software=_words(said.get("haserviceVersion"))[:_SOFTWARE_MAX],
            acknowledged=_number(said, "acknowledged", least=-1) if "acknowledged" in said else -1,
        )


@dataclass(frozen=True, slots=True)
class SlaveHello:
    """Who the slave is, where it will go on, and a digest of `digest_bytes` below there.

    `log` is what it holds now.  A slave that is ahead shows it by `position` > the master's end: up to
    `position` it holds what the master lost; the bytes behind that are no part of the master's log.
    """

    replica_id: str
    broker_name: str
    broker_addr: str
    segment_bytes: int
    log: LogSpan
    position: int
    digest_bytes: int
    digest: str
    flushes: bool
    lineage: Lineage
    nonce: str = ""
    heartbeat_ms: int = 0
    """As in the master's hello."""
    keeps_list: bool = False
    """Whether it writes down the verdict's list before it reports; slaves before 0.5 do not."""
    software: str = ""
    """As in the master's hello."""
    takes_marks: bool = False
    """Whether it wants to be told how far the log is acknowledged."""
    members: ReplicaList = ReplicaList()  # noqa: RUF009 - frozen
    """The newest list of replicas that it knows; slaves before 0.5 send none."""

    def encode(self) -> bytes:
        return _fitted(
            {
                "version": VERSION,
                "nonce": self.nonce,
                "heartbeatMs": self.heartbeat_ms,
                "haserviceVersion": self.software,
                "replicaId": self.replica_id,
                "brokerName": self.broker_name,
                "brokerAddr": self.broker_addr,
                "segmentBytes": self.segment_bytes,
                "start": self.log.start,
                "end": self.log.end,
                "position": self.position,
                "digestBytes": self.digest_bytes,
                "digest": self.digest,
                "flushes": self.flushes,
                "keepsList": self.keeps_list,
                "takesMarks": self.takes_marks,
                "members": encode_members(self.members),
                "epochs": encode_epochs(self.lineage),
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> SlaveHello:
        """Raises ProtocolError."""
        said = _object(body, "the slave's hello")
        return cls(
            replica_id=_text(said, "replicaId"),
            broker_name=_text(said, "brokerName"),
            broker_addr=_text(said, "brokerAddr"),
            segment_bytes=_number(said, "segmentBytes", INT_MAX),
            log=_span(said),
            position=_number(said, "position"),
            digest_bytes=_number(said, "digestBytes"),
            digest=_text(said, "digest"),
            flushes=said.get("flushes") is True,
            lineage=decode_epochs(said.get("epochs")),
            nonce=_nonce(said),
            heartbeat_ms=_heartbeat_ms(said),
            software=_words(said.get("haserviceVersion"))[:_SOFTWARE_MAX],
            keeps_list=said.get("keepsList") is True,
            takes_marks=said.get("takesMarks") is True,
            members=decode_members(said.get("members")),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the slave may go on as it said; if not, why, and whether to ask again soon.

    `members` is the list of replicas that the slave has to write down before its first report; masters before
    0.5 send an empty one.  `acked` is how far this slave's acks went by what the master wrote down; -1 if nothing.
    """

    accepted: bool
    reason: str = ""
    again: bool = False
    members: ReplicaList = ReplicaList()  # noqa: RUF009 - frozen
    acked: int = -1

    def encode(self) -> bytes:
        said: dict[str, Any] = {"accepted": self.accepted, "reason": self.reason, "again": self.again}
        if self.acked >= 0:
            said["acked"] = self.acked
        return orjson.dumps({**said, "members": encode_members(self.members)})

    @classmethod
    def decode(cls, body: bytes) -> Verdict:
        """Raises ProtocolError."""
        said = _object(body, "the master's verdict")
        accepted, again = said.get("accepted") is True, said.get("again") is True
        acked = _number(said, "acked") if "acked" in said else -1
        return cls(accepted, _words(said.get("reason")), again, decode_members(said.get("members")), acked)


def digest(read: Callable[[int, int], bytes], begin: int, end: int) -> str:
    """SHA-256, in hexadecimal, of a log's bytes from `begin` to `end`; `read(offset, size)` may give less."""
    sum_ = hashlib.sha256()
    while begin < end:
        piece = read(begin, min(end - begin, _PIECE_BYTES))
        if not piece:
            raise ProtocolError(f"the log has nothing at {begin}, wanted is a digest up to {end}")
        sum_.update(piece)
        begin += len(piece)
    return sum_.hexdigest()


def encode_epochs(lineage: Lineage) -> list[dict[str, Any]]:
    return encode_epoch_list(lineage.epochs)


def encode_epoch_list(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    return [
        {
            "epoch": one.number,
            "start": one.start,
            "master": one.master,
            "beganMs": one.began_ms,
            "why": one.why,
            **({"unwritten": True} if one.unwritten else {}),
        }
        for one in epochs
    ]


def decode_epochs(said: object, epoch_max: int = EPOCH_MAX) -> Lineage:
    """Raises ProtocolError for anything but a list of epochs that rise, up to `epoch_max`."""
    try:
        return Lineage(decode_epoch_list(said, epoch_max))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def decode_epoch_list(said: object, epoch_max: int = EPOCH_MAX) -> tuple[Epoch, ...]:
    """Raises ProtocolError for anything but a list of epochs, up to `epoch_max`."""
    if not isinstance(said, list):
        raise ProtocolError("epochs are no list")
    if len(said) > EPOCHS_MAX:
        raise ProtocolError(f"{len(said)} epochs, wanted are {EPOCHS_MAX} at most")
    epochs = []
    for one in said:
        if not isinstance(one, Mapping):
            raise ProtocolError(f"an epoch is {str(one)[:_WORDS_MAX]!r}")
        began_ms = one.get("beganMs")
        epochs.append(
            Epoch(
                _number(one, "epoch", epoch_max),
                _number(one, "start"),
                _text(one, "master"),
                began_ms if type(began_ms) is int and 0 <= began_ms <= LONG_MAX else 0,
                _words(one.get("why")),
                one.get("unwritten") is True,
            )
        )
    return tuple(epochs)


def encode_members(members: ReplicaList) -> dict[str, Any] | None:
    if members == ReplicaList():
        return None
    return {
        "epoch": members.epoch,
        "number": members.number,
        "master": members.master,
        "needed": members.needed,
        "since": members.since.end,
        "sinceTerm": members.since.epoch,
        "replicas": dict(members.replicas),
        "over": [encode_members(one) for one in members.over],
    }


def decode_members(said: object, epoch_max: int = EPOCH_MAX) -> ReplicaList:
    """Raises ProtocolError for anything but what encode_members() gives."""
    if said is None:
        return ReplicaList()
    if not isinstance(said, Mapping):
        raise ProtocolError(f"the list of replicas is {str(said)[:_WORDS_MAX]!r}")
    replicas = said.get("replicas")
    if not isinstance(replicas, Mapping) or len(replicas) > REPLICAS_MAX:
        raise ProtocolError(f"the list of replicas is no object of {REPLICAS_MAX} at most")
    needed = _number(said, "needed")
    if not 1 <= needed <= REPLICAS_MAX:
        raise ProtocolError(f"needed is {needed}, wanted is a number from 1 to {REPLICAS_MAX}")
    return ReplicaList(
        epoch=_number(said, "epoch", epoch_max),
        number=_number(said, "number"),
        master=_text(said, "master"),
        needed=needed,
        since=Mark(_number(said, "sinceTerm", epoch_max, -1), _number(said, "since")),
        over=_over(said, epoch_max),
        replicas={_text({"replica": one}, "replica"): _text(replicas, one) for one in replicas},
    )


def _over(said: Mapping[str, Any], epoch_max: int) -> tuple[ReplicaList, ...]:
    over = said.get("over", [])
    if not isinstance(over, list) or len(over) > OVER_MAX:
        raise ProtocolError(f"a list of replicas stands over {OVER_MAX} others at most")
    if any(isinstance(one, Mapping) and one.get("over") for one in over):
        raise ProtocolError("a list of replicas stands over one that stands over another")
    return tuple(decode_members(one, epoch_max) for one in over)


def _fitted(said: dict[str, Any]) -> bytes:
    """JSON of at most HELLO_BYTES_MAX: the oldest epochs of a longer lineage are left out."""
    while len(body := orjson.dumps(said)) > HELLO_BYTES_MAX and said["epochs"]:
        said["epochs"] = said["epochs"][(len(said["epochs"]) + 1) // 2 :]
    return body


def _span(said: Mapping[str, Any]) -> LogSpan:
    start, end = _number(said, "start"), _number(said, "end")
    if start > end:
        raise ProtocolError(f"a log that begins at {start} and ends at {end}")
    return LogSpan(start, end)


def _object(body: bytes, what: str) -> Mapping[str, Any]:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{what} is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"{what} is no object")
    return said


def _number(said: Mapping[str, Any], name: str, largest: int = OFFSET_MAX, least: int = 0) -> int:
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        told = str(value)[:_WORDS_MAX]
        raise ProtocolError(f"{name} is {told!r}, wanted is a whole number within {least} ... {largest}")
    return value


def _nonce(said: Mapping[str, Any]) -> str:
    return _text(said, "nonce") if "nonce" in said else ""


def _heartbeat_ms(said: Mapping[str, Any]) -> int:
    return _number(said, "heartbeatMs", INT_MAX) if "heartbeatMs" in said else 0


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or len(value) > _WORDS_MAX or not value.isprintable():
        raise ProtocolError(f"{name} is {str(value)[:_WORDS_MAX]!r}, wanted is a text of one line")
    return value


def _words(value: object) -> str:
    """A peer's words, made fit for one line of a log; nothing else depends on them."""
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:_WORDS_MAX])
