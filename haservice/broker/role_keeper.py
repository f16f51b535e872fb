"""RoleKeeper: what a master does about its role by itself, in the thread `role-keeper`.

    every 5 s, and when a name server knows a newer master    asks the peers; gives way to a newer term
    held, every second                                        hears the replicas that may have what we lost,
                                                              takes it back; then a new term begins
    a slave is ahead of us in our own term                    holds appends, takes it back, goes on
    in doubt whether a slave was promoted, every second       asks it, until it says so or not
    out of numbers for a term                                 takes nothing until an operator decides

A slave runs none: it is told, or its operator decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from haservice.broker.peers import Heard
from haservice.broker.refill import SIZE_BYTES, PulledBack, is_unfinished
from haservice.broker.roles import (
    NewerMaster,
    highest_number,
    lineage_of,
    newer_master,
    rival,
    was_not_promoted,
)
from haservice.errors import ProtocolError, RemotingError, RequestError
from haservice.news import News
from haservice.remoting.lineage_headers import LineageBody
from haservice.replication.greeting import Outcome
from haservice.replication.hello import SlaveHello
from haservice.replication.lineage import LogSpan, Step, plan
from haservice.replication.lineage_file import HandingOver, LineageState, Replica

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
# While nothing is taken, every moment counts.
HELD_PERIOD_S = 1.0
AHEAD_MAX = 16
# Under this name appends are held.
HOLDER = "role-keeper"


class PeersAsked(Protocol):
    """Peers, as far as they are used here."""

    def ask(self, also: Iterable[str] = ()) -> Heard: ...

    def read_log(self, addr: str, offset: int, size: int, /) -> bytes: ...


class Log(Protocol):
    """The master's log."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def hold_appends(self, reason: str | None, holder: str, /) -> None: ...


class PullBack(Protocol):
    """Takes [begin, end) from the broker at `addr`, whose log begins at `peer_start`: refill.pull_back."""

    def __call__(self, addr: str, begin: int, end: int, peer_start: int, /) -> PulledBack: ...


class Acts(Protocol):
    """What the keeper has done; see RoleChanges."""

    def step_down(self, newer: NewerMaster, heard: Heard, why: str, /) -> None: ...

    def begin_term(self, why: str, /) -> None:
        """Releases the hold.  Raises RequestError when the term cannot begin now."""


class _Doubt(NamedTuple):
    """A slave that may have been promoted, and what to do once it is known that it was not."""

    target: HandingOver
    why: str
    undo: Callable[[], None]


class RoleKeeper:
    """Task of the thread `role-keeper`."""

    def __init__(
        self,
        peers: PeersAsked,
        state: Callable[[], LineageState],
        log: Log,
        acts: Acts,
        pull: PullBack,
        *,
        hold: Mapping[str, Replica],
        followers: Callable[[], Iterable[str]],
        undecided: str = "",
        failover: str = "mqadmin failover --force",
        period_s: float = PERIOD_S,
        held_period_s: float = HELD_PERIOD_S,
    ) -> None:
        """`hold`: replicas to hear before anything is taken; `undecided`: why an operator has to decide
        before that, and `failover` the command for it; `followers` gives the ids of the replicas that follow
        this master now, level with it or behind.
        """
        self._peers = peers
        self._state = state
        self._log = log
        self._acts = acts
        self._pull = pull
        self._waiting = dict(hold)
        self._heard_of: set[str] = set()  # those of _waiting that have nothing more for us
        self._undecided = undecided
        self._failover = failover
        self._followers = followers
        self._period_s = period_s
        self._held_period_s = held_period_s
        self._woken = threading.Event()
        # Guards what other threads leave here: _ahead, _told, _suspected, _doubt.
        self._lock = threading.Lock()
        self._ahead: dict[str, SlaveHello] = {}
        self._told: NewerMaster | None = None
        self._suspected = ""
        self._doubt: _Doubt | None = None
        self._trouble = ""
        self._news = News()
        self._heard = -1

    # For other threads

    @property
    def held(self) -> str:
        """Why this master takes nothing; empty when it does."""
        doubt = self._doubt
        if doubt is not None:
            return doubt.why
        if not self._waiting:
            return self._undecided
        waiting = [item for item in self._waiting.items() if item[0] not in self._heard_of]
        if not waiting:
            return f"a new term is to begin: {self._trouble}"
        named = ", ".join(f"{one.broker_addr or 'unknown address'} ({name[:8]})" for name, one in waiting)
        trouble = f"; {self._trouble}" if self._trouble else ""
        return (
            f"the machine went down and messages may be lost here that {named} has: start it, and they are"
            f" taken back; not heard yet{trouble}; if it is lost for good: {self._failover}"
        )

    @property
    def waits(self) -> bool:
        """Whether a new term has to begin before anything is taken."""
        return bool(self._waiting or self._undecided)

    @property
    def heard(self) -> int:
        """The highest number of a term that was heard of; -1 when none was."""
        return self._heard

    def begin_hold(self) -> None:
        """Before the ports open."""
        if self.waits:
            logger.error("appends are held reason=%s", self.held)
            self._log.hold_appends(self.held, HOLDER)

    def note_heard(self, number: int) -> None:
        self._heard = max(self._heard, number)

    def told_of(self, epoch: int, addr: str) -> None:
        """A name server knows a newer master than us."""
        told = NewerMaster(epoch, addr, "")
        with self._lock:
            is_news, self._told = told != self._told, told
        self.note_heard(epoch)
        if is_news:
            self._woken.set()

    def on_ahead(self, hello: SlaveHello) -> None:
        """A slave holds more of our last term than we do."""
        with self._lock:
            if hello.replica_id in self._ahead or len(self._ahead) < AHEAD_MAX:
                self._ahead[hello.replica_id] = hello
        self._woken.set()

    def on_heard(self, hello: SlaveHello, outcome: Outcome) -> None:
        """A slave has greeted; one that knows a newer term is asked about it."""
        if outcome is Outcome.OLD_MASTER:
            with self._lock:
                self._suspected = hello.broker_addr
            self._woken.set()

    def release(self) -> None:
        """A new term has begun: nobody is waited for any more."""
        self._waiting.clear()
        self._undecided = ""
        with self._lock:
            self._ahead.clear()
            self._doubt = None
        self._log.hold_appends(None, HOLDER)

    def doubt(self, target: HandingOver, why: str, undo: Callable[[], None]) -> None:
        """It is not known whether `target` was promoted.  `undo` is called once it says no."""
        with self._lock:
            self._doubt = _Doubt(target, why, undo)
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    # The thread `role-keeper`

    def run(self, stop: threading.Event) -> None:
        while True:
            self._woken.clear()
            if stop.is_set():
                return
            self.look()
            urgent = self._waiting or self._doubt is not None or self._ahead
            self._woken.wait(self._held_period_s if urgent else self._period_s)

    def look(self) -> None:
        """Asks everybody once, and acts on it."""
        with self._lock:
            told, doubt = self._told, self._doubt
            suspected, self._suspected = self._suspected, ""
            ahead = {hello.broker_addr for hello in self._ahead.values()}
        also = {suspected, *ahead, *(one.broker_addr for one in self._waiting.values())}
        if told is not None:
            also.add(told.broker_addr)
        if doubt is not None:
            also.add(doubt.target.broker_addr)
        heard = self._peers.ask(also)
        self.note_heard(highest_number(heard.peers))
        if self._give_way(heard, told):
            return
        if doubt is not None and not self._settle(doubt, heard):
            return
        if self._waiting:
            self._hear(heard)
        elif ahead:
            self._catch_up(heard)

    def _give_way(self, heard: Heard, told: NewerMaster | None) -> bool:
        state = self._state()
        own = state.lineage
        newer = newer_master(state.replica_id, own, heard.peers)
        if newer is None and told is not None:
            if own.last is not None and told.epoch < own.last.number:
                with self._lock:
                    self._told = None  # a further term of ours has begun since
            else:
                newer = told
        if newer is not None:
            why = f"{newer.broker_addr or 'another broker'} is the master of term {newer.epoch}"
            self._acts.step_down(newer, heard, why)
            return True
        other = rival(state.replica_id, own, heard.peers)
        if other is not None and self._news.is_news(("rival", other.replica_id)):
            logger.error(
                "two masters have one term, choose one with mqadmin failover epoch=%d other=%s",
                other.epoch,
                other.broker_addr,
            )
        return False

    def _settle(self, doubt: _Doubt, heard: Heard) -> bool:
        """Whether the slave says that it was not promoted."""
        if not any(was_not_promoted(doubt.target, one) for one in heard.peers):
            return False
        with self._lock:
            self._doubt = None
        logger.warning("the slave was not promoted slave=%s", doubt.target.broker_addr)
        doubt.undo()
        return True

    # What was lost here

    def _hear(self, heard: Heard) -> None:
        """Hears replicas until none has what we lack; then a new term begins, or is tried again."""
        for one in heard.peers:
            if one.replica_id in self._waiting and self._level_with(one):
                self._note_level(one.replica_id)
        for replica_id in self._followers():
            self._note_level(replica_id)
        if self._waiting.keys() <= self._heard_of:
            try:
                self._acts.begin_term("the machine went down; what the replicas have was taken back")
                return
            except RequestError as error:
                self._trouble = str(error)
        if self._waiting:
            self._log.hold_appends(self.held, HOLDER)

    def _note_level(self, replica_id: str) -> None:
        waiting = self._waiting.get(replica_id)
        if waiting is not None and replica_id not in self._heard_of:
            self._heard_of.add(replica_id)
            logger.info("replica heard id=%s addr=%s", replica_id[:8], waiting.broker_addr)

    def _catch_up(self, heard: Heard) -> None:
        """A slave is ahead, though nothing told us that we have lost anything."""
        self._log.hold_appends("a slave holds what this master has lost, it is taken back", HOLDER)
        try:
            for one in heard.peers:
                if one.replica_id in self._ahead:
                    self._level_with(one)
        finally:
            with self._lock:
                self._ahead.clear()
            self._log.hold_appends(None, HOLDER)

    def _level_with(self, peer: LineageBody) -> bool:
        """Takes back what the peer has of our last term; whether nothing is left there that we lack."""
        theirs, ours = LogSpan(peer.log_start, peer.log_end), LogSpan(self._log.start, self._log.end)
        found = plan(lineage_of(peer), theirs, self._state().lineage, ours, peer.replica_id)
        if found.step is not Step.AHEAD:
            return True
        logger.warning(
            "a replica holds what its master lost addr=%s up_to=%d ours=%d",
            peer.broker_addr,
            found.position,
            ours.end,
        )
        outcome = self._pull(peer.broker_addr, ours.end, found.position, peer.log_start)
        if not outcome.failure or self._is_unfinished(peer, outcome.end, found.position):
            self._trouble = ""
            return True
        self._trouble = f"not taken back from {peer.broker_addr}: {outcome.failure}"
        if self._news.is_news(("pull", peer.replica_id)):
            logger.error(
                "what a replica has cannot be taken back addr=%s reason=%s", peer.broker_addr, outcome.failure
            )
        return False

    def _is_unfinished(self, peer: LineageBody, offset: int, end: int) -> bool:
        """Whether the peer has no more than the beginning of a record at `offset`: nobody was told OK."""
        left, head = end - offset, b""
        if left >= SIZE_BYTES:
            try:
                head = self._peers.read_log(peer.broker_addr, offset, SIZE_BYTES)
            except (RemotingError, ProtocolError):
                return False
        return is_unfinished(head, left)
