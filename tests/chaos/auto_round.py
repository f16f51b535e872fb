"""One round of a pair that fails over by itself: as other rounds, with what is promised then, and figures.

    history ── as_promised() ── checker ── terms, loss ── figures

What an ASYNC_MASTER may lose is no promise: an OK whose record is gone in the end is counted, its bytes are
held against what may be lost, and the rest is judged without it.  A record that was shown to a consumer before
any OK may be gone, too, in each mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.chaos.auto_coordinators import AutoCluster
from tests.chaos.auto_faults import ALL_FAULTS
from tests.chaos.checker import Recovery, Verdict, Violation
from tests.chaos.history import (
    OK,
    REFUSED,
    UNKNOWN,
    Answered,
    Consumed,
    Event,
    Faulted,
    FinalLog,
    Healed,
    Invoked,
)
from tests.chaos.proc_clients import History, Traffic
from tests.chaos.proc_round import Clients, Outcome, Play

# A master's epoch is the next multiple.
EPOCHS_A_TERM = 1000
# An OK that was lost by a failover, as it may be.
GONE = "OK, and gone"
# The end that a master told last is so old at most; on a busy machine its loop of a second takes longer.
TOLD_S = 3.0
# Of a record, above its body.
RECORD_BYTES = 200
UNTIL_TAKEN, UNTIL_OK = "until a message is stored", "until OK"


class AutoTraffic(Traffic):
    """Sends to a master that does not answer are given up sooner than a lease ends."""

    send_s = 1.0


class Given(NamedTuple):
    """An OK, with when its send began."""

    node: str
    invoked_s: float
    answered_s: float
    size: int
    gone: bool


class AutoPlay(Play):
    """The rounds of one cluster."""

    make_traffic = AutoTraffic

    def __init__(
        self, cluster: AutoCluster, name: str, max_loss_bytes: int, count: Callable[[str, int], None]
    ) -> None:
        """`name` is that of the shape, for figures; `count` is told what each round had of something."""
        super().__init__(cluster, ALL_FAULTS)
        self._auto = cluster
        self._name = name
        self._max_loss_bytes = max_loss_bytes
        self._count = count

    async def round(self, seed: int, steps: Sequence[tuple[str, ...]] | None = None) -> Outcome:
        before = await self._epoch()
        outcome = await super().round(seed, steps)
        new = (await self._epoch() - before) // EPOCHS_A_TERM
        self._count("new masters", new)
        if self.cluster.shape.role == "ASYNC_MASTER":
            findings, oks = outcome.findings, list(given(outcome.events))
            gone = [one for one in oks if one.gone]
            findings.acknowledged += len(gone)
            findings.lost_bytes["failover"] += sum(one.size for one in gone)
            findings.verdicts += verdicts_of_async(oks, new, self._max_loss_bytes)
            self._count("acknowledged by an ASYNC_MASTER and lost, as may be", len(gone))
        return outcome

    async def _epoch(self) -> int:
        said = [body.epoch for body in (await self._auto.lineages()).values() if body is not None]
        return max(said, default=0)

    async def _calm(self, history: History, traffic: Traffic, further: Sequence[Clients]) -> float:
        await self._auto.heal_coordinators()
        return await super()._calm(history, traffic, further)

    def _judged(self, history: History, level_s: float, steps: Sequence[tuple[str, ...]]) -> Outcome:
        is_async = self.cluster.shape.role == "ASYNC_MASTER"
        history.events = as_promised(history.events, is_async)
        outcome = super()._judged(history, level_s, steps)
        outcome.findings.recoveries = silences(outcome.events, self._name)
        return outcome


def verdicts_of_async(oks: Sequence[Given], new: int, max_loss_bytes: int) -> list[Verdict]:
    """One master at a time, and each of the `new` ones lost no more than it may."""
    verdicts = []
    if (needed := terms_needed(oks)) > new + 1:
        text = f"the OKs need {needed} masters one after the other, and there were {new + 1}"
        verdicts.append(Verdict(Violation.WRONG_OK, text))
    lost = sum(one.size for one in oks if one.gone)
    if lost > new * (max_loss_bytes + most_in(oks, TOLD_S)):
        text = f"{lost} bytes in OKs are gone with {new} new masters; haMaxLossBytes is {max_loss_bytes}"
        verdicts.append(Verdict(Violation.LOST, text))
    return verdicts


def as_promised(events: Sequence[Event], is_async: bool) -> list[Event]:
    """The history without what its mode does not promise."""
    log = next((one for one in events if isinstance(one, FinalLog) and one.surviving), None)
    if log is None:
        return list(events)
    stored = {(one.queue, one.queue_offset, one.key) for one in log.records}
    sends = {one.send: one for one in events if isinstance(one, Invoked)}
    sent = {one.key for one in sends.values()}
    oks = [one for one in events if isinstance(one, Answered) and one.status == OK]
    promised = set() if is_async else {_place(one, sends[one.send]) for one in oks}
    may_show = stored | promised
    kept: list[Event] = []
    for event in events:
        match event:
            case Consumed(key=key, queue=queue, queue_offset=offset) if key in sent:
                if (queue, offset, key) in may_show:
                    kept.append(event)
            case Answered(send=send, status=status) if is_async and status == OK:
                is_there = _place(event, sends[send]) in stored
                kept.append(event if is_there else replace(event, status=GONE))
            case _:
                kept.append(event)
    return kept


def _place(answered: Answered, invoked: Invoked) -> tuple[int, int, str]:
    return invoked.queue, answered.queue_offset, invoked.key


def given(events: Iterable[Event]) -> Iterable[Given]:
    """Every OK, in the order of the answers."""
    sends: dict[str, Invoked] = {}
    for event in events:
        if isinstance(event, Invoked):
            sends[event.send] = event
        elif isinstance(event, Answered) and event.status in (OK, GONE):
            sent = sends[event.send]
            size = sent.size + RECORD_BYTES
            yield Given(event.node, sent.at_s, event.at_s, size, event.status == GONE)


def terms_needed(oks: Iterable[Given]) -> int:
    """How many masters, one after the other, can have given these OKs, each while it was the master; at least.

    An OK was given at some moment between its send and its answer.
    """
    master, left_s, terms = "", {}, 0
    for ok in oks:
        if ok.node != master and left_s.get(ok.node, -1.0) < ok.invoked_s:
            left_s[master] = ok.answered_s
            master = ok.node
            terms += 1
    return terms


def most_in(oks: Sequence[Given], seconds: float) -> int:
    """The most bytes that were answered with OK within so long."""
    most = total = first = 0
    for ok in oks:
        total += ok.size
        while oks[first].answered_s < ok.answered_s - seconds:
            total -= oks[first].size
            first += 1
        most = max(most, total)
    return most


def silences(events: Sequence[Event], name: str) -> list[Recovery]:
    """For each fault that was alone: the longest time from it on without a message stored, and without OK."""
    answers = [one for one in events if isinstance(one, Answered) and one.status not in (UNKNOWN, REFUSED)]
    oks = [one.at_s for one in answers if one.status in (OK, GONE)]
    healed = {one.fault: one.at_s for one in events if isinstance(one, Healed)}
    faults = [one for one in events if isinstance(one, Faulted) and one.fault in healed]
    recoveries = []
    for fault in faults:
        end_s = healed[fault.fault]
        others = [one for one in faults if one is not fault]
        if any(one.at_s <= end_s and healed[one.fault] >= fault.at_s for one in others):
            continue
        for times, until in (([one.at_s for one in answers], UNTIL_TAKEN), (oks, UNTIL_OK)):
            seconds = longest(times, fault.at_s, end_s)
            recoveries.append(Recovery(f"{name}: {fault.what}, {until}", fault.at_s, fault.at_s, seconds))
    return recoveries


def longest(times: Iterable[float], begin_s: float, end_s: float) -> float:
    """Between two of the times that follow each other, or from `begin_s` on; if it begins before `end_s`."""
    before_s, most = begin_s, 0.0
    for at_s in times:
        if at_s < begin_s:
            continue
        if before_s > end_s:
            break
        most = max(most, at_s - before_s)
        before_s = at_s
    return most
