"""Rounds: renew, read, decide, act; what a broker remembers from one to the next.  It does no I/O.

A round is a generator.  It yields what the coordinator is to be asked, and is sent the answer, or thrown a
CoordinatorError; `drive` does that with a real one, a simulation with one that is late.  Between two questions any
time may pass, or the process stand still.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from haservice.coordination.candidate import twin, why_hurt, why_restored
from haservice.coordination.cluster import (
    MASTER,
    MEMBERS,
    REQUEST,
    SETTINGS,
    STATUS,
    VOTERS,
    Cluster,
    MemberState,
    Settings,
    decode,
)
from haservice.coordination.coordinator import (
    ABSENT,
    Coordinator,
    CoordinatorError,
    SessionEnded,
    Snapshot,
    Transaction,
    outside,
)
from haservice.coordination.decision import (
    Action,
    Alarm,
    Block,
    Decided,
    Doubt,
    Follow,
    Promote,
    Seal,
    Serve,
    decide,
    give_back,
    why_untold,
)
from haservice.coordination.facts import (
    TELL_SECONDS,
    LeaseFacts,
    Own,
    OwnSession,
    VotersChange,
    may_promise,
)
from haservice.coordination.history import prune
from haservice.replication.lineage.epochs import Mark
from haservice.typed_json import encode

# -- what is asked ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSession:
    """→ the session's ttl in seconds"""

    ttl_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """→ nothing"""


@dataclass(frozen=True, slots=True)
class Read:
    """→ Snapshot"""


@dataclass(frozen=True, slots=True)
class Transact:
    """→ whether it happened"""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Prune:
    """→ nothing; removes what the history has too much of"""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """→ what is wrong with the coordinator itself, "" if nothing is"""

    cleans: bool


Question = OpenSession | Renew | Read | Transact | Prune | Upkeep
_DOING = {
    OpenSession: "a session is opened",
    Renew: "the session is renewed",
    Read: "the keys are read",
    Transact: "keys are written",
    Prune: "the history is pruned",
    Upkeep: "it is asked for alarms",
}
Round = Generator[Question, Any, float]
"""Returns after how many seconds the next round is due, if nothing wakes us before."""

# What others change while we are the master or a slave, and what we have to look at then at once.
WATCHED = (MASTER, SETTINGS, REQUEST)
# A coordinator that has not answered for so long may be gone: a master that asks for a promise cannot wait.
LATE_SECONDS = 0.3
# While nobody is master, members are looked at so often in one `haLoopWait`.
LOOKS = 5
# How often the coordinator is asked for alarms.
UPKEEP_SECONDS = 10.0


class Host(Protocol):
    """The broker."""

    def now_s(self) -> float:
        """By a clock of this host that no one sets, and that runs while the host is suspended."""

    def now_ms(self) -> int:
        """By the wall clock: for people, and for what they ask for at some time."""

    def own(self) -> Own: ...

    def act(self, action: Action, /) -> None:
        """A Seal and a Doubt are durable when this returns, a Block in force."""


# -- the rounds -------------------------------------------------------------------------------------


class Rounds:
    """One life of a broker.  Used by one thread, but for `promise` and `promised`, which lock nothing either."""

    def __init__(self, host: Host, life: str, defaults: Settings | None = None) -> None:
        """`life` tells this process from all others.  `defaults` are the settings of its properties file: those of
        the first master are written to the coordinator, and hold for all from then on.
        """
        self.why = "the coordinator was not asked yet"
        """Why this broker is not the master; "" if it is."""
        self.trouble = ""
        """What kept it from reading or writing the coordinator in the last round, or will soon; "" if nothing."""
        self.seen: Cluster | None = None
        self.is_fresh = False
        """Whether it was read in this round, or in the last one."""
        self._host = host
        self._life = life
        self._defaults = defaults if defaults is not None else Settings()
        self._sessions = itertools.count(1)
        self._session: OwnSession | None = None
        self._was_fresh = False
        """Whether the last round that asked the coordinator got its answer."""
        self._asked_s = math.inf
        """When the question of a round that has no answer yet was asked."""
        self._change: VotersChange | None = None
        self._alarm = ""
        """What the coordinator said of itself when it was last asked."""
        self._upkeep_s = -math.inf
        """When that was."""
        self._unwritten = ""
        """Why the last transaction did not get through; "" if it did."""
        self._member_told_s = self._status_told_s = -math.inf
        """When our member's key was last written, and `status`."""
        self._has_acted = False
        """Whether this life has followed or led: a log that comes back with less does so before."""
        self._loud = ""
        self._told: dict[str, Mark] = {}
        """The furthest place of each replica's log that this life has read or heard of: a coordinator that was put
        back from a backup knows less.
        """
        self._pruned = -1
        """In which epoch of ours the history was pruned."""
        self._began_s = host.now_s()
        self._promised_until_s = -math.inf
        self._promises: dict[str, float] = {}
        self._gave_back: tuple[int, int] | None = None
        self._fell_back = -1
        self._request: tuple[int, float] = (ABSENT, math.inf)
        """The version of `request` as last read, and when we first read it."""

    def facts(self) -> LeaseFacts:
        return LeaseFacts(
            self._host.now_s(),
            self._host.own(),
            self.seen,
            self.is_fresh,
            self._session,
            self._change,
            # Whatever an earlier life promised is over after a ttl.
            max(self._promised_until_s, self._began_s + self._settings.ttl_s),
            dict(self._promises),
            self._gave_back,
            self._fell_back,
            self._request[1],
            self._status_told_s,
        )

    def round(self) -> Round:
        """One round."""
        self.is_fresh, self._asked_s = False, self._host.now_s()
        try:
            yield from self._keep_session()
            self.seen = self._remembering(decode((yield Read()), self._defaults).at(self._host.now_ms()))
            self._has_answer(True)
            self._note_request(self.seen.version(REQUEST) if self.seen.request is not None else ABSENT)
        except CoordinatorError as error:
            self._has_answer(False)
            self._decide_unread()
            self.why, self.trouble = f"{self.why}: {error}", str(error)
            # To ask took time already, and a master that lives by promises has not much.
            return self._loop_s / LOOKS
        except ValueError as error:
            self._has_answer(False)
            self._host.act(Block(str(error)))
            self.why = self.trouble = str(error)
            return self._loop_s
        self._look_back()
        commit = self._decide()
        takes = commit is not None and MASTER in commit.puts
        try:
            if not takes:
                yield from self._publish()
            if commit is not None and MASTER in commit.deletes:
                self._gave_back = (self.seen.epoch, self.seen.version(STATUS))
            if commit is not None and STATUS in commit.puts and not self.facts().goes_on:
                self._fell_back = self.seen.version(STATUS)
            loud = self._loud
            if commit is not None and (yield from self._write(commit)) and not _only_tells(commit):
                if loud:
                    self._host.act(Alarm(loud))
                return 0.0
            if takes:
                yield from self._publish()
            if commit is None and self._pruned != self.seen.epoch and self.facts().is_last_master:
                self._pruned = self.seen.epoch
                yield Prune()
            yield from self._look_after()
            self.trouble = self._unwritten or self._alarm
        except SessionEnded:
            self._session = None
            return 0.0
        except CoordinatorError as error:
            self.trouble = str(error)
            if self.why or takes:
                self.why = ": ".join(filter(None, (self.why, self.trouble)))
            if untold := why_untold(self.facts()):
                self._host.act(Block(f"the coordinator takes no word: {untold}"))
        is_calm = self.seen.master is not None and self.seen.request is None
        return self._loop_s if is_calm else self._loop_s / LOOKS

    def farewell(self) -> Round:
        """A clean stop: appends are over for good, so the lease is given back, and what we told last is all."""
        if self._session is not None:
            self.is_fresh = False
            self.seen = self._remembering(decode((yield Read()), self._defaults))
            if (transaction := give_back(self.facts())) is not None:
                yield Transact(transaction)
        return 0.0

    # -- failsafe, over the HA link -----------------------------------------------------------------

    def promise(self, epoch: int, ttl_s: float) -> str:
        """Promises our master to take no lease for `ttl_s`; returns why not, or "" if it is promised."""
        is_late = self._host.now_s() >= self._asked_s + LATE_SECONDS
        if why := may_promise(replace(self.facts(), is_fresh=self._was_fresh and not is_late), epoch):
            return why
        self._promised_until_s = max(self._promised_until_s, self._host.now_s() + ttl_s)
        return ""

    def promised(self, replica_id: str, sent_s: float) -> None:
        """A voter has promised; `sent_s` is when it was asked."""
        self._promises[replica_id] = max(sent_s, self._promises.get(replica_id, -math.inf))

    @property
    def is_read(self) -> bool:
        """Whether the last question for the keys was answered: `seen` is what they are now."""
        return self._was_fresh

    @property
    def _loop_s(self) -> float:
        return self._settings.loop_s

    @property
    def _settings(self) -> Settings:
        return self.seen.settings if self.seen is not None else self._defaults

    # -- the parts of a round -----------------------------------------------------------------------

    def _has_answer(self, is_fresh: bool) -> None:
        self.is_fresh = self._was_fresh = is_fresh
        self._asked_s = math.inf

    def _keep_session(self) -> Generator[Question, Any, None]:
        sent_s = self._host.now_s()
        if self._session is not None:
            try:
                yield Renew()
            except SessionEnded:
                self._session = None
            else:
                self._session = replace(self._session, sent_s=sent_s)
                return
        sent_s, name = self._host.now_s(), f"{self._life}/{next(self._sessions)}"
        ttl_s = yield OpenSession(self._settings.ttl_s)
        self._session = OwnSession(name, sent_s, ttl_s, opened_s=self._host.now_s())

    def _note_request(self, version: int) -> None:
        if version == ABSENT:
            self._request = (ABSENT, math.inf)
        elif version != self._request[0]:
            self._request = (version, self._host.now_s())

    def _remembering(self, seen: Cluster) -> Cluster:
        """As it was read, and with what was told before."""
        status = seen.status
        for places in (status.told if status is not None else {}, self._host.own().told):
            for one, place in places.items():
                self._told[one] = max(place, self._told.get(one, place))
        return replace(seen, status=replace(status, told=dict(self._told))) if status is not None else seen

    def _look_back(self) -> None:
        """Whether our store was put back from an older copy since the coordinator heard of it."""
        facts = self.facts()
        me, seen = facts.own.member, facts.seen
        assert seen is not None
        if self._has_acted or not me.is_whole or why_restored(facts):
            return
        if why := why_hurt(seen, me):
            self._host.act(Doubt(seen.epoch, why))

    def _decide(self) -> Transaction | None:
        """What follows from a seal follows at once."""
        decision = self._decide_once()
        seals = [one.epoch for one in decision.actions if isinstance(one, Seal)]
        if seals and self._host.own().member.sealed >= max(seals):
            decision = self._decide_once()
        return decision.commit

    def _decide_once(self) -> Decided:
        decision = decide(self.facts(), self._host.now_ms())
        self.why, self._change, self._loud = decision.why, decision.change, decision.alarm
        self._has_acted |= any(isinstance(one, Follow | Promote) for one in decision.actions)
        for action in decision.actions:
            self._host.act(action)
        return decision

    def _decide_unread(self) -> None:
        """As far as promises come at once, they count at once."""
        before = dict(self._promises)
        self._decide()
        if self._promises != before:
            for action in decide(self.facts()).actions:
                if isinstance(action, Serve):
                    self._host.act(action)

    def _publish(self) -> Generator[Question, Any, None]:
        """Tells what we are, if that is not what the coordinator says."""
        assert self.seen is not None
        member = self._host.own().member
        key = f"{MEMBERS}{member.replica_id}"
        if self._session is None or not self._is_news(self.seen, member):
            return
        if twin(self.facts()) is not None:
            return  # its key goes with its session; what it says is not ours to change
        put = Transaction(self.seen.expecting(key), {key: encode(member)}, bound=frozenset({key}))
        if (yield from self._write(put)):
            self._member_told_s = self._host.now_s()

    def _write(self, transaction: Transaction) -> Generator[Question, Any, bool]:
        try:
            happened: bool = yield Transact(transaction)
        except CoordinatorError as error:
            self._unwritten = str(error)
            raise
        self._unwritten = ""
        if happened and STATUS in transaction.puts:
            self._status_told_s = self._host.now_s()
        return happened

    def _is_news(self, seen: Cluster, member: MemberState) -> bool:
        """Whether our key is to be written.  Where a log ends decides something only while nobody is the master, or
        while somebody is to become it.
        """
        told = seen.members.get(member.replica_id)
        if told is None or told == member:
            return told is None
        is_further = replace(told, mark=member.mark) == member and told.mark.epoch == member.mark.epoch
        is_calm = seen.master is not None and seen.request is None
        return not (is_further and is_calm) or self._host.now_s() >= self._member_told_s + TELL_SECONDS

    def _look_after(self) -> Generator[Question, Any, None]:
        now_s = self._host.now_s()
        if now_s >= self._upkeep_s + UPKEEP_SECONDS:
            self._upkeep_s = now_s
            self._alarm = yield Upkeep(self.facts().is_last_master)


def _only_tells(commit: Transaction) -> bool:
    """Whether it changes neither the lease nor the voters."""
    return not (commit.puts.keys() | commit.deletes) & {MASTER, VOTERS, REQUEST}


def drive(round_: Round, coordinator: Coordinator) -> float:
    """Does a round with a coordinator; each of its calls ends by its own deadline, and raises CoordinatorError only."""
    try:
        question = next(round_)
        while True:
            try:
                with outside(_DOING[type(question)]):
                    answer = _asked(question, coordinator)
            except CoordinatorError as error:
                question = round_.throw(error)
            else:
                question = round_.send(answer)
    except StopIteration as end:
        return float(end.value)


def _asked(question: Question, coordinator: Coordinator) -> float | bool | str | Snapshot | None:
    if isinstance(question, OpenSession):
        return coordinator.open_session(question.ttl_s)
    if isinstance(question, Renew):
        coordinator.renew()
        return None
    if isinstance(question, Read):
        return coordinator.read()
    if isinstance(question, Upkeep):
        return coordinator.upkeep(cleans=question.cleans)
    if isinstance(question, Prune):
        prune(coordinator)
        return None
    return coordinator.commit(question.transaction)
