"""The checker: a history in, broken promises out.  Pure; it knows nothing of who wrote the history.

    lost            OK was said, and the record is not in the surviving log
    duplicated      more records than sends of one message
    reordered       sent after an OK, and before it in the queue
    queue gap       a queue's offsets are not 0, 1, 2, … in the order of a log
    offset reused   one queue offset stands for two messages
    phantom         consumed, then gone
    wrong OK        OK was said for fewer copies, or fewer flushed ones, than the mode promises
    diverged        two nodes hold different bytes at one offset
    corrupt         a record whose bytes are not those that were sent, served or stored
    invented        a record that nobody sent
    not readable    OK was said, it is in the log, and a broker does not give it to a reader of its queue
    not delivered   a delayed message, or one of a committed transaction, that never came
    ill delivered   before its time, or although its transaction was rolled back
    hang            no answer within HANG_S of the deadline
    not settled     healed, and yet no OK, or a slave that does not become level
    election storm  a fault has more elections than it should

A promise ends when the history says that it was voided; what was promised again later, counts again.
"""

from __future__ import annotations

import enum
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.history import (
    OK,
    UNKNOWN,
    Answered,
    Consumed,
    Delivered,
    Event,
    Faulted,
    FinalLog,
    Healed,
    Invoked,
    Owed,
    Promised,
    Sampled,
    Served,
    Settled,
    Voided,
    Waiting,
)

HANG_S = 10.0


class Violation(enum.Enum):
    """Every way to break a promise."""

    LOST = "lost"
    DUPLICATED = "duplicated by the broker"
    REORDERED = "reordered"
    QUEUE_GAP = "queue gap"
    OFFSET_REUSED = "offset reused"
    PHANTOM = "phantom"
    WRONG_OK = "wrong OK"
    DIVERGED = "diverged bytes"
    CORRUPT = "corrupt"
    INVENTED = "invented"
    NOT_READABLE = "not readable"
    NOT_DELIVERED = "not delivered"
    ILL_DELIVERED = "ill delivered"
    HANG = "hang"
    NOT_SETTLED = "not settled"
    ELECTION_STORM = "election storm"


class Verdict(NamedTuple):
    """One broken promise."""

    violation: Violation
    text: str
    at_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.violation.value} at {self.at_s:.3f} s: {self.text}"


class _Suspect(NamedTuple):
    """Two messages that cannot both be right.  It counts unless one of them is void when all is over."""

    keys: set[str]
    verdict: Verdict


class Recovery(NamedTuple):
    """After a fault of the kind `what`: until the first OK behind its end, and what was lost by it."""

    what: str
    began_s: float
    healed_s: float
    seconds: float


@dataclass(slots=True)
class Findings:
    """What a history says.  Latencies in seconds, of sends that were answered OK."""

    verdicts: list[Verdict] = field(default_factory=list)
    sends: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    consumed: int = 0
    owed: int = 0
    """Messages that had to come later: delayed, or of a committed transaction."""
    delivered_again: int = 0
    """Deliveries of those beyond the first of each, which is allowed."""
    recoveries: list[Recovery] = field(default_factory=list)
    lost_bytes: Counter[str] = field(default_factory=Counter)
    """By kind of fault: acknowledged bytes that are gone, and were not promised to survive it."""
    waiting: list[Waiting] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(verdict.violation.value for verdict in self.verdicts)

    def latency_s(self, share: float) -> float:
        """The latency that `share` of all sends had at most; 0 without any."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def check(events: Sequence[Event]) -> Findings:
    """Judges a history, whose events are in the order of time."""
    judge = _Judge(events)
    for event in events:
        judge.take(event)
    judge.finish()
    return judge.findings


class _Send:
    __slots__ = ("answered", "invoked")

    def __init__(self, invoked: Invoked) -> None:
        self.invoked = invoked
        self.answered: Answered | None = None


class _Judge:
    """Goes once over the events, then looks at the final logs."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.findings = Findings()
        self._end_s = events[-1].at_s if events else 0.0
        self._levels: dict[str, Promised] = {}
        self._sends: dict[str, _Send] = {}
        self._attempts: Counter[str] = Counter()
        self._crcs: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        # What is promised now: the OK of each message, and who consumed it.
        self._promised: dict[str, Answered] = {}
        self._seen: dict[str, Consumed] = {}
        self._voided: dict[str, str] = {}
        self._suspects: list[_Suspect] = []
        """By key: places that contradict others, unless their promise ends."""
        # (topic, queue) → queue offset → key, of what is promised; and the highest offset answered.
        self._places: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        self._highest: dict[tuple[str, int], int] = {}
        self._faults: dict[int, Faulted] = {}
        self._healed: dict[int, Healed] = {}
        self._ok_s: list[float] = []
        self._settled: Settled | None = None
        self._logs: list[FinalLog] = []
        self._served: list[Served] = []
        self._owed: dict[str, Owed] = {}
        self._delivered: defaultdict[str, list[Delivered]] = defaultdict(list)

    def _say(self, violation: Violation, text: str, at_s: float) -> None:
        self.findings.verdicts.append(Verdict(violation, text, at_s))

    def take(self, event: Event) -> None:
        match event:
            case Invoked():
                self.findings.sends += 1
                self._sends[event.send] = _Send(event)
                self._attempts[event.key] += 1
                self._crcs[event.key] = event.crc
                self._sizes[event.key] = event.size
            case Answered():
                self._answered(event)
            case Consumed():
                self._consumed(event)
            case Promised():
                self._levels[event.node] = event
            case Voided():
                self._void(event)
            case Faulted():
                self._faults[event.fault] = event
            case Healed():
                self._healed[event.fault] = event
            case Waiting():
                self.findings.waiting.append(event)
            case Settled():
                self._settled = event
            case FinalLog():
                self._logs.append(event)
            case Served():
                self._served.append(event)
            case Owed():
                self._owed[event.key] = event
            case Delivered():
                self._delivered[event.key].append(event)
            case _:
                pass

    # -- as it happens ------------------------------------------------------------------------------

    def _answered(self, event: Answered) -> None:
        send = self._sends.get(event.send)
        if send is None:
            raise ValueError(f"an answer to {event.send}, which was never sent")
        send.answered = event
        invoked = send.invoked
        if invoked.deadline_s and event.at_s > invoked.deadline_s + HANG_S:
            self._say(
                Violation.HANG,
                f"{event.send} answered {event.at_s - invoked.deadline_s:.1f} s late",
                event.at_s,
            )
        if event.status == UNKNOWN:
            self.findings.unknown += 1
        elif event.status != OK:
            self.findings.refused += 1
        else:
            self.findings.acknowledged += 1
            self.findings.latencies_s.append(event.at_s - invoked.at_s)
            self._ok_s.append(event.at_s)
            self._check_level(event, invoked.key)
            self._place(event, invoked)
            self._promised[invoked.key] = event
            self._voided.pop(invoked.key, None)

    def _check_level(self, event: Answered, key: str) -> None:
        level = self._levels.get(event.node) or self._levels.get("") or Promised(0.0, 1, 0)
        for what, nodes, wanted in (
            ("held", event.held_by, level.replicas),
            ("flushed", event.flushed_by, level.flushed),
        ):
            if nodes is not None and len(set(nodes)) < wanted:
                self._say(
                    Violation.WRONG_OK,
                    f"{key} at {event.offset} was OK, {what} by {', '.join(nodes) or 'nobody'} of {wanted}",
                    event.at_s,
                )

    def _place(self, event: Answered, invoked: Invoked) -> None:
        if event.queue_offset < 0:
            return
        where = (invoked.topic, invoked.queue)
        places = self._places[where]
        other = places.get(event.queue_offset)
        if other is not None and other != invoked.key:
            before = self._promised.get(other)
            text = (
                f"{where[0]}/{where[1]} offset {event.queue_offset} is {invoked.key} by {event.node},"
                f" and was {other}" + (f", OK by {before.node}" if before is not None else "")
            )
            self._suspects.append(
                _Suspect({invoked.key, other}, Verdict(Violation.OFFSET_REUSED, text, event.at_s))
            )
        if event.queue_offset <= self._highest.get(where, -1):
            for offset, key in places.items():
                answered = self._promised.get(key)
                if offset > event.queue_offset and answered is not None and answered.at_s < invoked.at_s:
                    text = (
                        f"{where[0]}/{where[1]}: {invoked.key} at {event.queue_offset} was sent after"
                        f" the OK for {key} at {offset}"
                    )
                    self._suspects.append(
                        _Suspect({invoked.key, key}, Verdict(Violation.REORDERED, text, event.at_s))
                    )
                    break
        places[event.queue_offset] = invoked.key
        self._highest[where] = max(self._highest.get(where, -1), event.queue_offset)

    def _consumed(self, event: Consumed) -> None:
        self.findings.consumed += 1
        if event.key not in self._crcs:
            self._say(Violation.INVENTED, f"{event.node} served {event.key!r}, sent by nobody", event.at_s)
        elif self._crcs[event.key] != event.crc:
            self._say(Violation.CORRUPT, f"{event.node} served {event.key} with other bytes", event.at_s)
        if event.below_level:
            self._say(Violation.PHANTOM, f"{event.key} was shown {event.below_level}", event.at_s)
        places = self._places[(event.topic, event.queue)]
        other = places.setdefault(event.queue_offset, event.key)
        if other != event.key:
            text = f"{event.topic}/{event.queue} offset {event.queue_offset} was served as {event.key}, and is {other}"
            self._suspects.append(
                _Suspect({event.key, other}, Verdict(Violation.OFFSET_REUSED, text, event.at_s))
            )
        self._seen[event.key] = event

    def _void(self, event: Voided) -> None:
        gone = set(event.keys)
        for key in event.keys:
            if self._promised.pop(key, None) is not None or key in self._seen:
                self._voided[key] = event.why
            self._seen.pop(key, None)
        self._suspects = [one for one in self._suspects if gone.isdisjoint(one.keys)]
        if event.places:
            for topic, queue, offset in event.places:
                self._places[topic, queue].pop(offset, None)
            return
        for places in self._places.values():
            for offset in [offset for offset, key in places.items() if key in gone]:
                del places[offset]

    # -- when it is over ----------------------------------------------------------------------------

    def finish(self) -> None:
        for send in self._sends.values():
            deadline_s = send.invoked.deadline_s
            if send.answered is None and deadline_s and self._end_s > deadline_s + HANG_S:
                self._say(Violation.HANG, f"{send.invoked.send} was never answered", self._end_s)
        self.findings.verdicts += [one.verdict for one in self._suspects]
        if self._settled is not None and not self._settled.ok and not self.findings.waiting:
            self._say(Violation.NOT_SETTLED, self._settled.why, self._settled.at_s)
        survivor = next((log for log in self._logs if log.surviving), None)
        for log in self._logs:
            self._check_log(log)
            if survivor is not None and log is not survivor:
                self._compare(survivor, log)
        if survivor is not None:
            self._check_kept(survivor)
            self._check_served(survivor)
        self._check_owed()
        self._recoveries()

    def _check_kept(self, log: FinalLog) -> None:
        copies = Counter(record.key for record in log.records)
        for key, answered in self._promised.items():
            if not copies[key] and not 0 <= answered.offset < log.start:
                self._say(
                    Violation.LOST,
                    f"{key}, OK from {answered.node} at {answered.offset}, is not in the log of {log.node}",
                    answered.at_s,
                )
        for key, consumed in self._seen.items():
            if not copies[key] and not log.start:
                self._say(
                    Violation.PHANTOM,
                    f"{key}, consumed from {consumed.node}, is not in the log of {log.node}",
                    consumed.at_s,
                )
        for key, count in copies.items():
            if count > self._attempts[key] > 0:
                self._say(
                    Violation.DUPLICATED, f"{count} records of {self._attempts[key]} sends of {key}", log.at_s
                )
        for key, why in self._voided.items():
            if not copies[key]:
                self.findings.lost_bytes[why] += self._sizes.get(key, 0)

    def _check_served(self, log: FinalLog) -> None:
        """Each acknowledged record of the log, through its queue, at every node that was read."""
        wanted: defaultdict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        for record in log.records:
            if record.key in self._promised:
                wanted[record.topic, record.queue].append((record.queue_offset, record.key))
        for served in self._served:
            there = set(served.records)
            gone = [one for one in wanted[served.topic, served.queue] if one not in there]
            if gone:
                (offset, key), queue = gone[0], f"{served.topic}/{served.queue}"
                more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
                text = f"{served.node} does not serve {key} at {queue} offset {offset}{more}"
                self._say(Violation.NOT_READABLE, text, served.at_s)

    def _check_owed(self) -> None:
        for key, owed in self._owed.items():
            came = self._delivered[key]
            if owed.deliver:
                self.findings.owed += 1
                self.findings.delivered_again += max(0, len(came) - 1)
                if not came:
                    self._say(
                        Violation.NOT_DELIVERED, f"{key} of {owed.topic} never came: {owed.why}", owed.at_s
                    )
            elif owed.deliver is False and came:
                self._say(Violation.ILL_DELIVERED, f"{key} of {owed.topic} came: {owed.why}", came[0].at_s)
            if came and came[0].at_s < owed.due_s:
                early_s = owed.due_s - came[0].at_s
                self._say(Violation.ILL_DELIVERED, f"{key} came {early_s:.3f} s early", came[0].at_s)

    def _check_log(self, log: FinalLog) -> None:
        if log.damage:
            self._say(Violation.CORRUPT, f"log of {log.node}: {log.damage}", log.at_s)
        following: dict[tuple[str, int], int] = {}
        for record in log.records:
            crc = self._crcs.get(record.key)
            if crc is None:
                self._say(
                    Violation.INVENTED, f"{log.node} stores {record.key!r} at {record.offset}", log.at_s
                )
            elif crc != record.crc:
                self._say(
                    Violation.CORRUPT,
                    f"{log.node} stores other bytes for {record.key} at {record.offset}",
                    log.at_s,
                )
            where = (record.topic, record.queue)
            wanted = following.get(where, 0 if log.start == 0 else record.queue_offset)
            if record.queue_offset != wanted:
                self._say(
                    Violation.QUEUE_GAP if record.queue_offset > wanted else Violation.OFFSET_REUSED,
                    f"{log.node} {record.topic}/{record.queue}: {record.queue_offset} at {record.offset},"
                    f" wanted {wanted}",
                    log.at_s,
                )
            following[where] = record.queue_offset + 1

    def _compare(self, survivor: FinalLog, log: FinalLog) -> None:
        start, end = max(survivor.start, log.start), min(survivor.end, log.end)
        if log.end > survivor.end:
            self._say(
                Violation.DIVERGED,
                f"{log.node} holds {log.end - survivor.end} bytes beyond the end of {survivor.node}",
                log.at_s,
            )
        for offset, digest in log.digests.items():
            if survivor.digests.get(offset, digest) != digest:
                self._say(
                    Violation.DIVERGED, f"{log.node} and {survivor.node} differ behind {offset}", log.at_s
                )
                return
        common = [
            record for record in log.records if start <= record.offset and record.offset + record.size <= end
        ]
        theirs = {record for record in survivor.records if start <= record.offset < end}
        for record in common:
            if record not in theirs:
                self._say(
                    Violation.DIVERGED,
                    f"{log.node} has {record.key} at {record.offset}, {survivor.node} has not",
                    log.at_s,
                )
                return

    def _recoveries(self) -> None:
        ok_s = self._ok_s
        for number, fault in self._faults.items():
            healed = self._healed.get(number)
            since_s = healed.at_s if healed is not None else fault.at_s
            after = next((at_s for at_s in ok_s if at_s >= since_s), None)
            if after is not None:
                self.findings.recoveries.append(Recovery(fault.what, fault.at_s, since_s, after - since_s))


# -- for plots ---------------------------------------------------------------------------------------


class Timeline(NamedTuple):
    """Acknowledged sends a second, lag in bytes by node, and when which faults were there."""

    throughput: list[tuple[float, float]]
    lag: dict[str, list[tuple[float, float]]]
    faults: list[tuple[str, float, float]]


def timeline(events: Iterable[Event], step_s: float = 1.0) -> Timeline:
    """What happened, by the clock."""
    acknowledged: Counter[int] = Counter()
    lag: dict[str, list[tuple[float, float]]] = defaultdict(list)
    open_: dict[int, Faulted] = {}
    faults: list[tuple[str, float, float]] = []
    end_s = 0.0
    for event in events:
        end_s = max(end_s, event.at_s)
        match event:
            case Answered(status=status) if status == OK:
                acknowledged[int(event.at_s / step_s)] += 1
            case Sampled():
                lag[event.node].append((event.at_s, float(event.lag_bytes)))
            case Faulted():
                open_[event.fault] = event
            case Healed():
                fault = open_.pop(event.fault, None)
                if fault is not None:
                    faults.append((fault.what, fault.at_s, event.at_s))
            case _:
                pass
    faults += [(fault.what, fault.at_s, end_s) for fault in open_.values()]
    throughput = [
        (number * step_s, acknowledged[number] / step_s) for number in range(int(end_s / step_s) + 1)
    ]
    return Timeline(throughput, dict(lag), sorted(faults, key=lambda fault: fault[1]))


def median_recovery_s(recoveries: Iterable[Recovery]) -> dict[str, float]:
    """By kind of fault."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for recovery in recoveries:
        seconds[recovery.what].append(recovery.seconds)
    return {what: statistics.median(all_) for what, all_ in sorted(seconds.items())}
