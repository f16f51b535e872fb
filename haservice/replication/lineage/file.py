"""LineageFile: what a broker must not forget about its log, in `lineage/state.json` beside it.

    format        1; a version that knows only lower ones refuses the file
    replicaId     who we are: made up at the first start, and never changed
    bootId        the machine's boot and its disk's mount at the last start, see commitlog/disk/storage_id.py:
                  a different one means that unflushed pages are lost
    epochs        the epochs of our log, see lineage.py
    masterRole    the brokerRole of the master that we followed last
    masterEnd     the furthest end of its log that we heard of since our last epoch changed, and when
    replicas      who followed us, until when, and how far: id → address, role of its own, offset
    command       a role given by command, until the properties file asks for another one
    sealed        no master of this epoch, or of an older one, gets an ack of ours any more; see docs/failover.md
    joined        the newest epoch that a coordinator has told us
    acknowledged  of a slave: up to where its masters have told that its log is acknowledged, see slave/shown_end.py
    ackedCuts     what was cut here although a slave had acknowledged it, see acked_cuts.py
    forgotten     of a master: whom an operator forgot, see own_record.py
    handingOver   of a master: the slave that may have been promoted, while its answer is not known

It lies outside RocketMQ's own directories: a stock broker refuses a store with a file that it does not know.
Every change is on the disk when the call returns; a power cut leaves the old or the new file whole.

Who changes what: the greeting changes a slave's epochs and masterRole; a master's recorder the replicas;
whoever decides on roles changes all else.  started() writes bootId, once the start has decided what it means.
"""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from commitlog.disk.files import Files, OSFiles
from commitlog.disk.seal import differ_in_a_bit, with_bit_back
from commitlog.disk.storage_id import is_same_storage, storage_id
from commitlog.errors import CommitLogError, StoreUnreadable
from commitlog.upkeep.unstepped_clock import UnsteppedClock
from haservice import typed_json
from haservice.bounds import LONG_MAX, OFFSET_MAX
from haservice.errors import ProtocolError
from haservice.persisted_file import PersistedFile
from haservice.replication.lineage.acked_cuts import AckedCut
from haservice.replication.lineage.epochs import (
    EPOCHS_MAX,
    PROMOTION_STEP,
    UNKNOWN_EPOCH,
    Epoch,
    Lineage,
    LogSpan,
    of_one_promotion,
)
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.wire.hello import (
    decode_epoch_list,
    decode_epochs,
    decode_members,
    encode_epoch_list,
    encode_epochs,
    encode_members,
)

logger = logging.getLogger(__name__)

# Beyond it, the longest unseen goes first.
REPLICAS_MAX = 16
# A replica that was not in sync, and has been away for so long, is forgotten.
FORGET_MS = 7 * 24 * 3600 * 1000


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """Another broker of our name: where clients reach it, the end of its log when last heard, and when."""

    broker_addr: str
    offset: int
    seen_ms: int
    in_sync: bool


class RoleCommand(msgspec.Struct, frozen=True, rename="camel"):
    """A role given by command, in force while the file's brokerRole is still `file_role`."""

    role: str
    broker_id: int
    file_role: str
    since_ms: int
    why: str
    ha_master: str = ""
    """For a slave: the HA address of the master that it was told to follow; "" to ask the nameserver."""


class HandingOver(msgspec.Struct, frozen=True, rename="camel"):
    """The slave that a master hands over to: the address to ask it at, and its replica id."""

    broker_addr: str
    replica_id: str


class Pledge(msgspec.Struct, frozen=True, rename="camel"):
    """A slave's promise to a candidate for the master's role: it follows nobody of an epoch below `epoch`.

    It stands until an epoch from `epoch` on begins, or the candidate says that it was not promoted.
    """

    epoch: int
    replica_id: str
    broker_addr: str

    def allows(self, epoch: Epoch) -> bool:
        """Whether the master of that epoch may be followed."""
        if of_one_promotion(epoch.number, self.epoch):
            return epoch.master == self.replica_id and epoch.number >= self.epoch
        return epoch.number > self.epoch


class ListChanged(OSError):
    """Two threads changed the list of replicas at once; the second one has to look again."""


@dataclass(frozen=True, slots=True)
class LineageState:
    """Everything in the file."""

    replica_id: str
    boot_id: str = ""
    lineage: Lineage = field(default_factory=Lineage)
    master_role: str = ""
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    command: RoleCommand | None = None
    master_end: int = -1
    """-1 if it is unknown; a new lineage resets it."""
    master_heard_ms: int = 0
    handing_over: HandingOver | None = None
    members: ReplicaList = field(default_factory=ReplicaList)
    """Which replicas may hold an OK, by the newest list that this broker knows."""
    given: ReplicaList = field(default_factory=ReplicaList)
    """On a slave: the same list as its master gave it, if replicas were forgotten here since."""
    pledge: Pledge | None = None
    whole_from: int = 0
    """On a slave: below here it may have lost acknowledged bytes, until its log reaches this far again."""
    lost_power: bool = False
    """Whether `whole_from` stands for a power cut alone, and for no log that was emptied or put back for good."""
    sealed: int = -1
    """Nothing is acknowledged any more to a master of this epoch or an older one; -1: to any."""
    joined: int = -1
    """The newest epoch that was read in a coordinator; -1 if none ever was."""
    acknowledged: int = 0
    """Below here consumers may read this broker as a slave with haReadMark=STRICT."""
    acked_cuts: tuple[AckedCut, ...] = ()
    """What was cut of this broker's log although a slave had acknowledged it, the newest last."""
    forgotten: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Replicas that an operator forgot while we were the master, the newest last: the version of the list without."""
    past: tuple[Epoch, ...] = ()
    """Epochs that left no byte, in the order of their numbers.  For people; nothing is decided by them."""

    def seals_out(self, epoch: int) -> bool:
        """Whether a master of that epoch gets no ack of ours any more, by what we sealed."""
        return self.sealed >= 0 and (epoch <= self.sealed or of_one_promotion(epoch, self.sealed))

    def may_come(self, replica_id: str) -> bool:
        """Not one that is on no list any more: it was forgotten, or another store has its address."""
        listed = [each.replicas for each in self.members.lists if each.replicas]
        return not listed or any(replica_id in each for each in listed)


def without_its_log(state: LineageState, newest: int = -1) -> dict[str, Any]:
    """What changes before the log is emptied, or once it is found so, or found to be an older copy.  Until it reaches
    a master's end again it lacks what it acknowledged, and no master counts for that but of the last epoch in which
    it did, or of a newer one; of `newest`, if that is known to be the last one.
    """
    last, changes = state.lineage.last, dict[str, Any](whole_from=OFFSET_MAX, lost_power=False)
    epoch = max(last.number if last is not None else -1, newest)
    if epoch >= 0 and max(state.joined, newest) >= 0:
        changes["sealed"] = max(state.sealed, epoch // PROMOTION_STEP * PROMOTION_STEP - 1)
    return changes


def without_power(state: LineageState, end: int) -> dict[str, Any]:
    """What changes once a power cut may have taken what was acknowledged, of a log that ends at `end` now."""
    return {"whole_from": OFFSET_MAX, "lost_power": is_or_was_whole(state, end)}


def is_or_was_whole(state: LineageState, end: int) -> bool:
    """Whether a log that ends at `end` lacks only what power cuts took: if it was emptied, it was whole again since."""
    return state.lost_power or end >= state.whole_from


def whole_again_from(whole_from: int, end: int, master_end: int, acked: int = -1) -> int:
    """`whole_from` of a slave whose log ends at `end`, once it follows a master, who remembers acks up to `acked`.

    The master has what may be lost here, so the log is whole again at the end of the master's.  From then on it stays
    whole, however far it is behind at its next connection.  The mark stays, too: a machine that goes down may take
    what had come by then.
    """
    return master_end if end < max(whole_from, acked) else whole_from


def lacks_its_log(state: LineageState, log: LogSpan) -> bool:
    """Whether the log was emptied, or replaced by an older one, behind our back: it had these bytes for certain."""
    last = state.lineage.last
    if log.is_empty and log.end == 0 and last is not None and (last.start > 0 or state.master_end > 0):
        return True
    return any(one.master == state.replica_id and one.start > log.end for one in state.lineage.epochs)


class LineageFile:
    """The state and its file.  Any thread may read `state`; `update` replaces it, durably."""

    _in_doubt: tuple[Epoch, ...] = ()
    """Epochs that may have lost bytes when the machine went down."""

    def __init__(self, root: Path, files: Files | None = None, log_path: Path | None = None) -> None:
        """Reads the file below the store's root, or makes one.  `files` reaches the disk.  `log_path` is
        where the log lies; None means commitlog below the root.

        A file that does not parse counts as none, and is reported in the log.  Raises OSError.
        """
        self.root = root
        files = files if files is not None else OSFiles()
        self._file = PersistedFile(root / "lineage" / "state.json", files, keeps_sums=False)
        self._lock = threading.Lock()  # guards replacing state; held while the file is written
        self._clock_s: Callable[[], float] = UnsteppedClock()
        was_there = files.exists(self._file.path)
        try:
            state = self._file.load(decode_state)
        except NewerFormat as error:
            raise StoreUnreadable(self._file.path, str(error)) from None
        if state is None and was_there:
            logger.error(
                "who this broker was is lost, it begins as a new one: the role of its properties file, no"
                " epochs, no replica that it would wait for path=%s",
                self._file.path,
            )
        self.is_new = state is None
        self.state = state if state is not None else LineageState(uuid.uuid4().hex)
        self.boot = storage_id(log_path if log_path is not None else root / "commitlog")
        """The machine's present boot, and the mount of the log's disk."""
        self.booted_anew = not is_same_storage(self.state.boot_id, self.boot)
        """Whether the machine was started, or the log's disk mounted, since the last start of this broker."""
        if not self.boot:
            logger.error(
                "this system tells no boot id, so a start that follows no clean stop counts as one after a power cut"
                " path=/proc/sys/kernel/random/boot_id"
            )
        if self.booted_anew:
            self._in_doubt = self.state.lineage.epochs
        if self.is_new:
            self._write(self.state)
        else:
            # Its writer may have died before the file's name was durable, and we act upon what we read here.
            files.sync_directory(self._file.path.parent)

    def update(self, *, listed: ReplicaList | None = None, **changes: Any) -> LineageState:
        """Replaces fields of the state, and writes it.  Raises OSError, with nothing changed.

        `listed` is the list of replicas that the changes were made from; ListChanged if it has changed.
        """
        with self._lock:
            if listed is not None and listed != self.state.members:
                raise ListChanged("the list of replicas has changed just now; try again")
            return self._replace(**changes)

    def followed(
        self, lineage: Lineage, *, end: int, cut: bool = False, acked: int = -1, **changes: Any
    ) -> LineageState:
        """As update(), for a slave that follows a master with this lineage.  A pledge to one of its epochs,
        or to an older one, is over; a pledge given at the same time to another epoch stands.  `end` is where
        our log ends, `acked` how far our acks went, as the master remembers.  `cut`: the slave had to cut bytes
        first.  Raises OSError.
        """
        with self._lock:
            pledge, last = self.state.pledge, lineage.last
            if pledge is not None and last is not None and pledge.allows(last):
                pledge = None
            if (
                not cut
                and _left_nothing(self.state, lineage)
                and self.state.lineage.last not in self._in_doubt
            ):
                changes["past"] = _past(self.state, lineage, own_unwritten=True)
            whole_from = whole_again_from(self.state.whole_from, end, changes["master_end"], acked)
            changes |= {"pledge": pledge, "whole_from": whole_from, "given": ReplicaList()}
            changes["acknowledged"] = min(self.state.acknowledged, end)
            return self._replace(lineage=lineage, **changes)

    def begin(self, epoch: Epoch) -> LineageState:
        """Adds an epoch.  Raises OSError, or ValueError if it is no newer than those before."""
        with self._lock:
            return self._replace(lineage=self.state.lineage.begun(epoch))

    def saw(self, replica_id: str, replica: Replica) -> None:
        """Remembers a replica.  Forgets some: beyond REPLICAS_MAX, or after FORGET_MS."""
        self.saw_all({replica_id: replica})

    def saw_all(self, replicas: Mapping[str, Replica]) -> None:
        """As saw(), with one write for all."""
        with self._lock:
            known = {
                **self.state.replicas,
                **{name: self._furthest(name, one) for name, one in replicas.items()},
            }
            now_ms = max((one.seen_ms for one in replicas.values()), default=0)
            # By a clock that nobody sets ahead: who was seen yesterday is not forgotten for that.
            gone_ms = min(now_ms, self._clock_s() * 1000) - FORGET_MS
            known = {name: one for name, one in known.items() if one.in_sync or one.seen_ms > gone_ms}
            self._replace(replicas=_newest(known))

    def _furthest(self, replica_id: str, now: Replica) -> Replica:
        """Its acks stay known: a slave whose log was put back from an older copy hears of them."""
        known = self.state.replicas.get(replica_id)
        return (
            now
            if known is None or known.offset <= now.offset
            else msgspec.structs.replace(now, offset=known.offset)
        )

    def heard_master(
        self, lineage: Lineage, end: int, heard_ms: int, acknowledged: int | None = None
    ) -> None:
        """Notes that the master's log goes up to `end`, and is acknowledged up to `acknowledged` if it told that.

        As heard in this lineage; ignored in another one.  Raises OSError.
        """
        with self._lock:
            if lineage == self.state.lineage:
                told = self.state.acknowledged if acknowledged is None else acknowledged
                self._replace(master_end=end, master_heard_ms=heard_ms, acknowledged=told)

    def reached(self, end: int) -> None:
        """Notes of a log that ends at `end` that it is whole again, once it is: what it lacks from then on, a power cut
        took.  Raises OSError.
        """
        with self._lock:
            if self.state.whole_from > 0 and is_or_was_whole(self.state, end):
                self._replace(lost_power=True)

    def started(self) -> None:
        """Notes the present boot and mount: the next start compares with these for booted_anew."""
        self.update(boot_id=self.boot)

    def _replace(self, **changes: Any) -> LineageState:
        assert self._lock.locked()
        if changes.get("lineage", self.state.lineage) != self.state.lineage:
            past = _past(self.state, changes["lineage"])
            left = _with_last_master(self.state, changes.get("replicas", self.state.replicas))
            changes = {"master_end": -1, "master_heard_ms": 0, "past": past, **changes, "replicas": left}
        state = replace(self.state, **changes)
        if state != self.state:
            self._write(state)
            self.state = state
        return state

    def _write(self, state: LineageState) -> None:
        self._file.save(lambda: encode_state(state))


def _newest(replicas: Mapping[str, Replica]) -> dict[str, Replica]:
    return dict(sorted(replicas.items(), key=lambda item: item[1].seen_ms)[-REPLICAS_MAX:])


def _with_last_master(state: LineageState, replicas: Mapping[str, Replica]) -> Mapping[str, Replica]:
    """Adds the master that was followed so far, so that the time of its last word outlives its epoch."""
    last, heard_ms = state.lineage.last, state.master_heard_ms
    if last is None or last.master in ("", state.replica_id) or not heard_ms:
        return replicas
    known = replicas.get(last.master, Replica("", -1, 0, in_sync=False))
    if known.seen_ms >= heard_ms:
        return replicas
    addr = state.members.replicas.get(last.master, "") or known.broker_addr
    return _newest(
        {**replicas, last.master: msgspec.structs.replace(known, broker_addr=addr, seen_ms=heard_ms)}
    )


def _left_nothing(state: LineageState, lineage: Lineage) -> bool:
    """Whether our own last epoch ended where it began: the next one in `lineage` begins there."""
    own = state.lineage.last
    if own is None or own.master != state.replica_id:
        return False
    return any(one.number > own.number and one.start == own.start for one in lineage.epochs)


def _past(state: LineageState, lineage: Lineage, *, own_unwritten: bool = False) -> tuple[Epoch, ...]:
    """The epochs that were known and are no longer, or never were, in `lineage`."""
    present = {one.identity for one in lineage.epochs}
    known = {one.identity: one for one in (*state.past, *state.lineage.epochs)}
    if own_unwritten and (own := state.lineage.last) is not None:
        known[own.identity] = replace(own, unwritten=True)
    gone = [one for identity, one in known.items() if identity not in present and one.number > UNKNOWN_EPOCH]
    return tuple(sorted(gone, key=lambda one: one.number)[-EPOCHS_MAX:])


FORMAT = 1
"""Raised when the file gets something that an older version must not drop unread."""


class NewerFormat(CommitLogError):
    """A newer version wrote the file, and says that this one must not use it."""


class _Written(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The file.  What has a default is not in every file, or not in those of our first versions."""

    format: int = FORMAT
    replica_id: str
    boot_id: str
    epochs: list[Any]
    master_role: str
    master_end: int = -1
    master_heard_ms: int = 0
    replicas: dict[str, Replica]
    members: Any = None
    given: Any = None
    whole_from: int = 0
    lost_power: bool = False
    sealed: int = -1
    joined: int = -1
    acknowledged: int = 0
    acked_cuts: tuple[AckedCut, ...] = ()
    forgotten: dict[str, tuple[int, int]] = {}
    past: list[Any] = []
    pledge: Pledge | UnsetType | None = None
    command: RoleCommand | UnsetType | None = None
    handing_over: HandingOver | UnsetType | None = None


class _Format(msgspec.Struct, frozen=True):
    """As much of it as any version understands."""

    format: int = FORMAT


_OTHER_FORM = {"format", "epochs", "members", "given", "past"}
_SAME_FORM = [name for name in _Written.__struct_fields__ if name not in _OTHER_FORM]


def encode_state(state: LineageState) -> bytes:
    values = {name: getattr(state, name) for name in _SAME_FORM}
    same: dict[str, Any] = {name: UNSET if value is None else value for name, value in values.items()}
    written = _Written(
        **same,
        epochs=encode_epochs(state.lineage),
        members=encode_members(state.members),
        given=encode_members(state.given),
        past=encode_epoch_list(state.past),
    )
    body = typed_json.encode_pretty(written)
    return b"%b\n%b\n" % (_head(body), body)


def decode_state(content: bytes) -> LineageState:
    """Raises ValueError when the content is not what was written, NewerFormat if a newer version wrote it."""
    head, _, body = content.partition(b"\n")
    body = _sound(head, body.removesuffix(b"\n"))
    if (number := typed_json.decode(_Format, body).format) > FORMAT:
        raise NewerFormat(
            f"its format is {number}, and this version knows {FORMAT}: it would drop what it does not know; run the"
            " version that wrote it, or a newer one"
        )
    written = typed_json.decode(_Written, body)
    try:
        # This broker wrote it and believed it once; a start that refuses it would help nobody.
        return LineageState(
            **{name: getattr(written, name) for name in _SAME_FORM},
            lineage=decode_epochs(written.epochs, LONG_MAX),
            past=decode_epoch_list(written.past, LONG_MAX),
            members=decode_members(written.members, LONG_MAX),
            given=decode_members(written.given, LONG_MAX),
        )
    except ProtocolError as error:
        raise ValueError(str(error)) from None


def _head(body: bytes) -> bytes:
    return b'{"crc32":%d}' % zlib.crc32(body)


def _sound(head: bytes, body: bytes) -> bytes:
    """The body, with one flipped bit turned back if there is one.  Raises ValueError if more is wrong."""
    right = _head(body)
    if head == right:
        return body
    if differ_in_a_bit(head, right):  # it is the checksum that rotted
        logger.error("a bit of the lineage file's checksum had flipped, its content is sound")
        return body
    crc = typed_json.decode(dict[str, int], head).get("crc32", -1)
    fixed = with_bit_back(body, crc) if 0 <= crc < 1 << 32 else None
    if fixed is None:
        raise ValueError("its checksum is another one")
    logger.error("a bit of the lineage file had flipped, it is turned back")
    return fixed
