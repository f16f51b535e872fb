"""Greeting: how two brokers of ours agree, before a byte flows, from where the slave goes on.  Pure.

    SlaveGreeting                                  MasterGreeting
    call()          ──── report −1 ────▶           hello()         its bytes, once
    on_hello(body)  ◀──── hello ────────
                    ──── slave hello ──▶           answer(body)    a verdict, and what it means
    on_verdict(body)    ◀──── verdict ──────
    plan, master                                   slave, outcome

Both take the bodies that a TransferReader or a ReportReader found in the stream, and return bytes to send.
Between on_verdict() and its first report the slave does what it has to do to its log: see Rejoin.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from commitlog.errors import CommitLogError
from haservice import __version__
from haservice.errors import ProtocolError
from haservice.replication.lineage.epochs import Lineage, LogSpan, Plan, Step, plan
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.wire.hello import (
    DIGEST_BYTES,
    DIGEST_BYTES_MAX,
    HELLO_OFFSET,
    VERDICT_OFFSET,
    MasterHello,
    SlaveHello,
    Verdict,
    digest,
)
from haservice.replication.wire.protocol import REPORT, REPORT_NOT_YET, greeting_bytes, slave_hello_block


@dataclass(frozen=True, slots=True)
class Facts:
    """What a broker says of itself.  `broker_addr` is where clients reach it; `heartbeat_ms` is how often it
    speaks at least; `software` is its version of haservice."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    heartbeat_ms: int = 0
    software: str = __version__


class GreetedLog(Protocol):
    """The log as either side of a greeting uses it."""

    segment_bytes: int
    end: int

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class GreetingRefused(ProtocolError):
    """The two brokers cannot go on together.  `cause` stays the same as long as the reason does, whatever
    numbers the reason names.

    `again`: it may pass by itself, soon.
    """

    def __init__(self, cause: str, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.cause = cause
        self.again = again


class GreetingOutcome(enum.Enum):
    """The outcome of a greeting, for the master."""

    ACCEPTED = "accepted"
    AHEAD = "ahead"
    OLD_MASTER = "knows a newer epoch"
    OLDER_COPY = "has what its master lost before it began an epoch"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class GreetingAnswer:
    """`encoded`, the verdict, goes to the slave; unless the slave is accepted, the connection then ends."""

    encoded: bytes
    outcome: GreetingOutcome
    slave: SlaveHello
    verdict: Verdict


def _answer(outcome: GreetingOutcome, slave: SlaveHello, verdict: Verdict) -> GreetingAnswer:
    return GreetingAnswer(greeting_bytes(VERDICT_OFFSET, verdict.encode()), outcome, slave, verdict)


def span_of(log: GreetedLog) -> LogSpan:
    """What the log holds at this moment."""
    return LogSpan(log.start, log.end)


class MasterGreeting:
    """The master's half, for one connection.  `role` is its brokerRole; `lineage` gives its epochs.

    `acknowledged` gives up to where the log has the acks that an OK takes; None tells nobody.
    `objection(slave)` may say why this slave may not come now, for a reason that its hello does not show.
    `members(slave)` gives the list of replicas with this slave on it, written down; None keeps no list.
    `older(slave)` says why, by what that slave has, our log is an older copy of itself; "" if it is none.
    `acked(slave)` says how far that replica's acks went, as it was written down; -1 if it was not.
    `is_appointed` is plan()'s.
    """

    def __init__(
        self,
        facts: Facts,
        replica_id: str,
        role: str,
        log: GreetedLog,
        lineage: Callable[[], Lineage],
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
        objection: Callable[[SlaveHello], str] = lambda _: "",
        members: Callable[[SlaveHello], ReplicaList] | None = None,
        acked: Callable[[SlaveHello], int] = lambda _: -1,
        is_appointed: bool = False,
        acknowledged: Callable[[], int] | None = None,
        older: Callable[[SlaveHello], str] = lambda _: "",
    ) -> None:
        self._is_appointed = is_appointed
        self._acknowledged = acknowledged
        self._older = older
        self._acked = acked
        self._nonce = nonce
        self._objection = objection
        self._members = members
        self._facts = facts
        self._replica_id = replica_id
        self._role = role
        self._log = log
        self._lineage = lineage
        self.said: MasterHello | None = None
        """What hello() told the slave; None before."""
        self._epochs_said = Lineage()
        self._answered = False

    def hello(self) -> bytes:
        """The bytes that answer a first report of −1; empty if it was sent already."""
        if self.said is not None:
            return b""
        lineage, log = self._lineage(), span_of(self._log)
        self._epochs_said = lineage
        self.said = MasterHello(
            replica_id=self._replica_id,
            cluster_name=self._facts.cluster_name,
            broker_name=self._facts.broker_name,
            broker_addr=self._facts.broker_addr,
            role=self._role,
            segment_bytes=self._log.segment_bytes,
            log=log,
            lineage=lineage.or_unknown(log),
            nonce=self._nonce(),
            heartbeat_ms=self._facts.heartbeat_ms,
            software=self._facts.software,
            acknowledged=self._acknowledged() if self._acknowledged is not None else -1,
        )
        return greeting_bytes(HELLO_OFFSET, self.said.encode())

    def answer(self, body: bytes) -> GreetingAnswer:
        """Judges a slave's hello.  Raises ProtocolError if it is no hello, or comes out of turn."""
        if self.said is None or self._answered:
            raise ProtocolError("a slave's hello that nobody asked for")
        slave = SlaveHello.decode(body)
        self._answered = True
        outcome, reason, again = self._judge(slave, self.said)
        if outcome is not GreetingOutcome.ACCEPTED:
            return _answer(outcome, slave, Verdict(False, reason, again))
        if self._members is None:
            return _answer(outcome, slave, Verdict(True, acked=self._acked(slave)))
        members = self._members(slave)
        if slave.replica_id not in members.replicas:
            full = f"the list of replicas has its {len(members.replicas)} at most; mqadmin forget makes room"
            return _answer(GreetingOutcome.REFUSED, slave, Verdict(False, full))
        return _answer(outcome, slave, Verdict(True, members=members, acked=self._acked(slave)))

    def _judge(self, slave: SlaveHello, said: MasterHello) -> tuple[GreetingOutcome, str, bool]:
        """Outcome, reason, and whether the slave should ask again soon."""
        if slave.nonce != said.nonce:
            return GreetingOutcome.REFUSED, "it does not answer our hello: an old one, played back?", False
        reason = _strangers(said, slave.replica_id, slave.broker_name, slave.segment_bytes)
        if reason:
            return GreetingOutcome.REFUSED, reason[1], False
        objection = self._objection(slave)
        if objection:
            return GreetingOutcome.REFUSED, objection, True
        if self._lineage() != self._epochs_said:
            return GreetingOutcome.REFUSED, "a new epoch has begun since our hello", True
        wanted = plan(
            slave.lineage,
            slave.log,
            said.lineage,
            said.log,
            slave.replica_id,
            is_appointed=self._is_appointed,
        )
        if wanted.step is Step.OLD_MASTER:
            return (
                GreetingOutcome.OLD_MASTER,
                "the slave knows of a newer epoch, or another master of ours",
                True,
            )
        if wanted.step is Step.REFUSE:
            return GreetingOutcome.REFUSED, f"as the slave has it, {wanted.reason}", False
        if not said.log.start <= slave.position <= wanted.position:
            where = f"the slave would go on at {slave.position}, right were {wanted.position}"
            return GreetingOutcome.REFUSED, f"{where}: {wanted.reason or wanted.step.value}", False
        point = min(slave.position, said.log.end)
        try:
            reason_differs = self._compare(slave, said, point)
        except (CommitLogError, ProtocolError) as error:
            return GreetingOutcome.REFUSED, f"our own bytes below {point} cannot be read: {error}", True
        if reason_differs:
            return GreetingOutcome.REFUSED, reason_differs, False
        if slave.position > said.log.end:
            lost = slave.position - said.log.end
            return (
                GreetingOutcome.AHEAD,
                f"this slave has {lost} bytes that its master lost: the master copies them back",
                True,
            )
        if older := self._older(slave):
            return GreetingOutcome.OLDER_COPY, f"the master's log is an older copy of itself: {older}", True
        try:
            self._log.read(point, 1)
        except CommitLogError as error:
            # A repair takes its time: the slave must not dial again and again for nothing.
            return GreetingOutcome.REFUSED, f"our own bytes from {point} on cannot be sent: {error}", False
        return GreetingOutcome.ACCEPTED, "", False

    def _compare(self, slave: SlaveHello, said: MasterHello, point: int) -> str:
        """Why the slave's bytes below `point` differ from ours; empty if they do not."""
        room = max(0, point - max(said.log.start, slave.log.start))
        if not min(DIGEST_BYTES, room) <= slave.digest_bytes <= min(DIGEST_BYTES_MAX, room):
            return f"a digest of {slave.digest_bytes} bytes below {point}, of {room} that both have"
        # A stranger cannot make us read megabytes: a slave reaches further back only over zeros.
        justified = slave.digest_bytes <= DIGEST_BYTES or _only_zeros(self._log, point - DIGEST_BYTES, point)
        if justified and digest(self._log.read, point - slave.digest_bytes, point) == slave.digest:
            return ""
        return (
            f"the {slave.digest_bytes} bytes below {point} are not the same in both logs, though by their"
            f" epochs they should be{_whose_log_stays(said, slave.broker_addr, slave.log.end)}"
        )


class SlaveGreeting:
    """The slave's half, for one connection.  `flushes`: its reports speak of flushed bytes; `takes_marks`: it
    wants to be told how far the log is acknowledged; `is_appointed` is plan()'s; `listed` is the newest list of
    replicas that it knows.
    """

    def __init__(
        self,
        facts: Facts,
        replica_id: str,
        log: GreetedLog,
        lineage: Lineage,
        *,
        flushes: bool = False,
        takes_marks: bool = False,
        is_appointed: bool = False,
        listed: ReplicaList = ReplicaList(),  # noqa: B008 - frozen
    ) -> None:
        self._is_appointed = is_appointed
        self._takes_marks = takes_marks
        self._listed = listed
        self._facts = facts
        self._replica_id = replica_id
        self._log = log
        self._lineage = lineage
        self._flushes = flushes
        self.master: MasterHello | None = None
        """What the master said; None before on_hello()."""
        self.members = ReplicaList()
        """The list to write down before the first report; set once on_verdict() has returned."""
        self.plan: Plan | None = None
        """What to do before the first report; set once on_verdict() has returned."""
        self.acked = -1
        """How far our acks went, as the master remembers it; -1 if it does not.  Set with `members`."""
        self._strange: tuple[str, str] | None = None

    @property
    def epoch(self) -> int:
        """The number of the master's newest epoch; -1 before on_hello(), or if it has none."""
        last = self.master.lineage.last if self.master is not None else None
        return last.number if last is not None else -1

    def call(self) -> bytes:
        """The first bytes of a connection: a report that a stock master ignores."""
        return REPORT.pack(REPORT_NOT_YET)

    def on_hello(self, body: bytes) -> bytes:
        """Takes the master's hello; returns ours, even to a stranger, who then sees why we do not follow.

        Raises GreetingRefused, or ProtocolError if `body` is no hello.
        """
        if self.master is not None:
            raise ProtocolError("a second hello of the master")
        self.master = master = MasterHello.decode(body)
        log = span_of(self._log)
        self._strange = _strangers(master, self._replica_id, self._facts.broker_name, self._log.segment_bytes)
        if self._strange is not None:
            return self._hello(master, Lineage(), log, log.end, log.end, log.end)
        lineage = self._lineage.or_unknown(log)
        self.plan = decided = plan(
            lineage, log, master.lineage, master.log, self._replica_id, is_appointed=self._is_appointed
        )
        if decided.step is Step.REFUSE:
            way_out = _whose_log_stays(master, self._facts.broker_addr, log.end)
            raise GreetingRefused(decided.step.name, decided.reason + way_out)
        point = min(decided.position, master.log.end)
        begin = self._digest_begin(max(log.start, master.log.start), point, log.end)
        return self._hello(master, lineage, log, decided.position, begin, point)

    def _hello(
        self, master: MasterHello, lineage: Lineage, log: LogSpan, position: int, begin: int, point: int
    ) -> bytes:
        """Our hello, with a digest from `begin` up to `point`."""
        hello = SlaveHello(
            replica_id=self._replica_id,
            broker_name=self._facts.broker_name,
            broker_addr=self._facts.broker_addr,
            segment_bytes=self._log.segment_bytes,
            log=log,
            position=position,
            digest_bytes=point - begin,
            digest=digest(self._log.read, begin, point),
            flushes=self._flushes,
            lineage=lineage,
            nonce=master.nonce,
            heartbeat_ms=self._facts.heartbeat_ms,
            software=self._facts.software,
            keeps_list=True,
            takes_marks=self._takes_marks,
            members=self._listed,
        )
        return slave_hello_block(hello.encode())

    def on_verdict(self, body: bytes) -> Plan:
        """Takes the verdict; returns what to do now.  Raises GreetingRefused, or ProtocolError."""
        if self._strange is not None:
            raise GreetingRefused(*self._strange)
        if self.plan is None:
            raise ProtocolError("a verdict before the hello")
        verdict = Verdict.decode(body)
        if self.plan.step in (Step.AHEAD, Step.OLD_MASTER):
            reason = f"{self.plan.reason}; the master: {verdict.reason or 'nothing'}"
            raise GreetingRefused(self.plan.step.name, reason, again=verdict.again)
        if not verdict.accepted:
            raise GreetingRefused("VERDICT", f"refused by the master: {verdict.reason}", again=verdict.again)
        self.members, self.acked = verdict.members, verdict.acked
        return self.plan

    def _digest_begin(self, floor: int, point: int, log_end: int) -> int:
        """Where the digest begins: far enough below `point` to cover more than zeros, or at `floor`."""
        if point > log_end or point <= floor:
            return point
        size, upper = DIGEST_BYTES, point
        while True:
            begin = max(floor, point - size)
            if begin == floor or size >= DIGEST_BYTES_MAX or not _only_zeros(self._log, begin, upper):
                return begin
            size, upper = 2 * size, begin


def _whose_log_stays(master: MasterHello, slave_addr: str, slave_end: int) -> str:
    """What an operator can do about two logs that do not go together, to end a sentence.

    A slave with the longer log may be the only one that has its messages: nobody is told to empty it.
    """
    keep = (
        f"to keep this slave's log, stop the master, run mqadmin failover -b {master.broker_name} --to {slave_addr},"
        " with --force if it says that what the master alone has may be lost, move the old master's store aside, and"
        " start it again"
    )
    if slave_end > master.log.end:
        return f"; this slave's log is the longer one, up to {slave_end}, and may be the only copy: {keep}"
    return f"; {keep}; to keep the master's, run mqadmin reinit -b {slave_addr}, which shows what the master lacks"


def _only_zeros(log: GreetedLog, begin: int, end: int) -> bool:
    while begin < end:
        piece = log.read(begin, end - begin)
        if not piece or piece.strip(b"\0"):
            return False
        begin += len(piece)
    return True


def _strangers(
    master: MasterHello, replica_id: str, broker_name: str, segment_bytes: int
) -> tuple[str, str] | None:
    """Why the two can never be master and slave, whatever their logs hold: the cause, and the words."""
    if broker_name != master.broker_name:
        return "NAME", f"the slave's brokerName is {broker_name}, the master's {master.broker_name}"
    if segment_bytes != master.segment_bytes:
        return "SEGMENT", (
            f"mappedFileSizeCommitLog is {segment_bytes} on the slave and {master.segment_bytes} on the "
            "master: set the slave's to the master's, and give it an empty store"
        )
    if replica_id == master.replica_id:
        return "IDENTITY", (
            f"master and slave have the same replica id {replica_id}: one's store is a copy of the other's; restart"
            " the slave while the master runs, and it gets an id of its own"
        )
    return None
