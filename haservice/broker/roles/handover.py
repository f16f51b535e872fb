"""Handing over: a master promotes a slave that has everything it has, and nothing is lost on the way.  Pure.

    master                                    slave
    appends held, all flushed
    until the slave has acknowledged the end
    ──── PROMOTE: end, token ───────────────▶ last copy of side state, link down
    ◀─── GET_LINEAGE ──────────────────────── is it still handing over, by this token?
    ──── yes ───────────────────────────────▶ new epoch and role, durable
    ◀─── promoted ───────────────────────────
    a slave from now on

A full disk does not matter: the master has nothing to append, and the epoch begins in the slave's log.

Nobody is asked for a pledge.  So the epoch is the next promotion's above the master's own, never a higher
one.  Otherwise a slave might leave for it a candidate that it has pledged to, and may have acknowledged to by
now.

A failure before the slave has asked back undoes the switchover: the token is void, and a PROMOTE still under
way has no effect.  If the answer is lost, the slave's word decides, however long that takes.  Until then the
master refuses writes.  The lineage file says whom it hands over to, so a restart does not make it accept
writes either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from haservice.broker.roles.actions import (
    Ask,
    AskOne,
    AwaitLevel,
    Done,
    End,
    Failed,
    FindOut,
    LogLevel,
    LookAtSlaves,
    Lost,
    Refuse,
    Result,
    Say,
    SendPromote,
    Slaves,
    Write,
)
from haservice.broker.roles.new_epoch import Following
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import NewerMaster, next_number
from haservice.broker.roles.state import Change, RoleState, Step, View
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader, SwitchoverBody, SwitchoverHeader
from haservice.replication.lineage.file import HandingOver
from haservice.replication.status import SlaveStatus

PROMOTE_SECONDS_MIN = 2.0
SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class HandOver:
    """What all stages know; `until_s` is when the slave has to have caught up."""

    ticket: int
    header: SwitchoverHeader
    token: str
    until_s: float
    slaves: Sequence[SlaveStatus] = ()
    heard: Heard = field(default_factory=Heard)

    def undone(self, state: RoleState, reason: str) -> Step:
        """Nobody was promoted; the master accepts writes as before."""
        return state.but(change=None), (Refuse(self.ticket, reason),)


@dataclass(frozen=True, slots=True)
class _Stage(Change):
    """A stage of the switchover; `hold` and `token` are set from Levelling to Told."""

    over: HandOver


def hand_over(state: RoleState, ticket: int, header: SwitchoverHeader, view: View) -> Step:
    """40005."""
    if state.who.is_slave:
        return state, (Refuse(ticket, "this broker is a slave; ask its master"),)
    if why := state.held or view.unwritable:
        return state, (Refuse(ticket, f"this master refuses writes itself: {why}"),)
    if why := _why_overtaken(state, header, view):
        return state, (Refuse(ticket, why),)
    patience_s = min(max(header.timeout_millis, 0) / 1000, SECONDS_MAX)
    token = f"{view.kept.replica_id}-{view.now_ms}-{ticket}"
    over = HandOver(ticket, header, token, view.now_s + patience_s)
    return state.but(change=Choosing(over)), (LookAtSlaves(),)


def _why_overtaken(state: RoleState, header: SwitchoverHeader, view: View) -> str:
    """Whether our epoch is not the one to hand over any more, by what the tool has seen; "" if it is."""
    last = view.kept.lineage.last
    begins = next_number(last.number if last is not None else -1, -1, promoted=True)
    if header.min_epoch <= begins:
        return ""
    return (
        f"epoch {header.min_epoch - 1} has begun or is pledged, so there may be a newer master, and a switchover from"
        f" here begins {begins}; if there is none: mqadmin failover --to {state.who.broker_addr} begins one above"
    )


class Choosing(_Stage):
    """Finds who is connected and may become the master."""

    __slots__ = ()

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Slaves), result
        ready = _ready(result.slaves, self.over.header.target)
        if isinstance(ready, str):
            return self.over.undone(state, ready)
        change = Checking(replace(self.over, slaves=ready))
        return state.but(change=change), (Ask(tuple(one.broker_addr for one in ready)),)


def _ready(slaves: Sequence[SlaveStatus], wanted: str) -> list[SlaveStatus] | str:
    """Who may become the master, the nearest first, or only the one that is wanted; or why there is none."""
    ours = [one for one in slaves if one.broker_addr and one.replica_id]
    if not ours:
        return "no slave is connected that could be the master; mqadmin haStatus shows who is there"
    if wanted:
        found = [one for one in ours if one.broker_addr == wanted]
        if not found:
            there = ", ".join(sorted(one.broker_addr for one in ours))
            return f"no slave at {wanted} is connected; connected are: {there}"
        ours = found[:1]
    ours.sort(key=lambda one: (one.in_sync, one.ack), reverse=True)
    if not ours[0].in_sync:
        return f"the slave at {ours[0].broker_addr} is not ready: {ours[0].reason}"
    return [one for one in ours if one.in_sync]


class Checking(_Stage):
    """Finds the first slave that is the same replica where clients reach it as on the HA port."""

    __slots__ = ()

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        assert isinstance(result, Heard), result
        over = replace(self.over, heard=result)
        said = {one.replica_id: one for one in result.peers}
        troubles = []
        for slave in over.slaves:
            target = said.get(slave.replica_id)
            if target is None:
                continue
            if target.changing or target.is_master:
                troubles.append(f"{target.broker_addr} is changing its role, or has: it is {target.role}")
                continue
            why = f"switching over to {slave.broker_addr}"
            change = Levelling(over, target, hold=why, token=over.token)
            patience_s = max(0.0, over.until_s - view.now_s)
            return state.but(change=change), (AwaitLevel(slave.replica_id, slave.broker_addr, patience_s),)
        silent = [one for one in over.slaves if one.replica_id not in said]
        return Complaining(over, silent=silent, troubles=tuple(troubles)).begin(state)


@dataclass(frozen=True, slots=True)
class Complaining(_Stage):
    """None of them can be promoted: asks the silent ones what is wrong."""

    silent: Sequence[SlaveStatus] = ()
    troubles: tuple[str, ...] = ()

    def begin(self, state: RoleState) -> Step:
        if not self.silent:
            return self.over.undone(state, "; ".join(self.troubles))
        return state.but(change=self), (AskOne(self.silent[0].broker_addr),)

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        addr = self.silent[0].broker_addr
        text = f"the slave at {addr} does not answer there, which it would as a master: "
        if isinstance(result, Failed) and result.answered:
            text = (
                f"the slave at {addr} refuses what this broker asks of it: {result.reason}; where access control"
                " is on, brokers sign with the keys of the file that aclCredentialsFile names"
            )
        else:
            text += result.reason if isinstance(result, Failed) else "another broker does"
        return replace(self, silent=self.silent[1:], troubles=(*self.troubles, text)).begin(state)


@dataclass(frozen=True, slots=True)
class _Targeted(_Stage):
    """A stage that has its slave; `end` is where our log ends, once that is known."""

    target: LineageBody
    end: int = -1

    @property
    def addr(self) -> str:
        return self.target.broker_addr


class Levelling(_Targeted):
    """Appends are held: everything is flushed here, and acknowledged by the slave."""

    __slots__ = ()

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return self.over.undone(state, result.reason)
        assert isinstance(result, End), result
        handing = HandingOver(self.addr, self.target.replica_id)
        change = Noted(self.over, self.target, result.offset, hold=self.hold, token=self.token)
        return state.but(change=change), (Write({"handing_over": handing}),)


class Noted(_Targeted):
    """The file names the slave: from here on its word decides, whatever becomes of us."""

    __slots__ = ()

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, Failed):
            return self.over.undone(state, f"that it is handed over cannot be written: {result.reason}")
        last = view.kept.lineage.last
        header = PromoteHeader(
            role=state.who.role.role.value,
            expected_end=self.end,
            min_epoch=max((last.number if last is not None else 0) + 1, self.over.header.min_epoch),
            why=f"switchover from {state.who.broker_addr}",
            confirm_addr=state.who.broker_addr,
            token=self.token,
        )
        seconds = max(self.over.until_s - view.now_s, PROMOTE_SECONDS_MIN)
        change = Told(self.over, self.target, self.end, header.min_epoch, hold=self.hold, token=self.token)
        return state.but(change=change), (SendPromote(self.addr, header, seconds),)


@dataclass(frozen=True, slots=True)
class Told(_Targeted):
    """The slave was told, and its answer is awaited; with `asking`, its outcome is being found out."""

    epoch: int = -1
    asking: str = ""

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        if isinstance(result, LineageBody):
            return self._promoted(state, result, view)
        if isinstance(result, Failed):
            # It is certain: the master accepts writes at once, and writes this down when it can.
            voiding = Voiding(self.over, f"{self.addr} was not promoted: {result.reason}")
            return state.but(change=voiding), (Write({"handing_over": None}),)
        assert isinstance(result, Lost), result
        if self.asking:
            return self._doubt(state)
        # From here on the slave gets no confirmation.  So once it says that it is no master, and changes
        # nothing, what we sent will not make it one.
        text = (
            f"the answer of the slave that was to be promoted is lost addr={self.addr} reason={result.reason}"
        )
        change = replace(self, token="", asking=result.reason)
        find_out = FindOut(self.addr, self.target.replica_id, self.epoch)
        return state.but(change=change), (Say(LogLevel.WARNING, text), find_out)

    def _promoted(self, state: RoleState, body: LineageBody, view: View) -> Step:
        # The slave's present id is free from its next registration on.
        newer = NewerMaster(
            body.epoch,
            body.broker_addr,
            body.ha_addr,
            self.target.broker_id or self.target.file_broker_id,
            body.replica_id,
        )
        answer = SwitchoverBody(newer.broker_addr, newer.epoch, self.end)
        why = f"switched over to {newer.broker_addr}"
        return Following(newer, why, self.over.heard, self.over.ticket, answer).begin(state, view)

    def _doubt(self, state: RoleState) -> Step:
        why = (
            f"it is not known whether {self.addr} became the master: it does not answer since it was told to"
        )
        said = Say(LogLevel.ERROR, f"nothing is taken reason={why}")
        refuse = Refuse(self.over.ticket, f"{why}; nothing is taken until it is")
        return state.but(change=None, doubt=why), (said, refuse)


@dataclass(frozen=True, slots=True)
class Voiding(_Stage):
    """It is written that nobody is handed over to any more; if that fails, the next start asks the slave."""

    why: str

    def advance(self, state: RoleState, result: Result, view: View) -> Step:
        after, actions = self.over.undone(state, self.why)
        if isinstance(result, Done):
            return after, actions
        assert isinstance(result, Failed), result
        text = f"that the switchover is over cannot be written reason={result.reason}"
        return after, (Say(LogLevel.WARNING, text), *actions)
