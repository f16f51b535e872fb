"""Roles of a simulated node: the product's machine of roles, carried out on virtual time.

    RoleDriver   what RoleExecutor and RoleHands are in a broker: one event at a time, actions in their order

Every action with a result takes a while, and other things happen meanwhile: requests come over the network, and
may be lost on their way there or back.  A step of a change is where faults strike, too: see `strike`.
"""

from __future__ import annotations

import itertools
import math
import threading
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.errors import CommitLogError
from commitlog.log.log import wall_clock_ms
from commitlog.upkeep.retention import DISK_HOLDER
from haservice.broker.roles import peer_repair
from haservice.broker.roles.actions import (
    Action,
    Answer,
    AnswerWith,
    Ask,
    AskOne,
    AwaitLevel,
    Confirm,
    Copy,
    Done,
    Empty,
    End,
    Failed,
    FindOut,
    Flush,
    GatherPledges,
    LeaveMaster,
    LookAtSlaves,
    Lost,
    NoVote,
    Prove,
    Pull,
    Pulled,
    Refuse,
    Result,
    Say,
    SendPromote,
    SetMaster,
    Slaves,
    StopLink,
    TakeList,
    TellFollow,
    Turn,
    Votes,
    WithResult,
    Write,
)
from haservice.broker.roles.hands import DOUBT_SECONDS, HOLDER, PLEDGE_SECONDS
from haservice.broker.roles.machine import step, why_busy
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.state import Asked, Begin, Event, RoleState, View
from haservice.errors import AnswerError, HAServiceError, RemotingUnreachable
from haservice.persisted_file import PersistedFile
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from haservice.remoting.json_body import JSONBody
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import LineageFile, LineageState, decode_state
from haservice.replication.status import SlaveStatus
from tests.chaos.sim_disk import ProcessEnded, SimFiles

if TYPE_CHECKING:
    from tests.chaos.sim_node import Node

NAME = "broker-a"
# What a request takes at the most before its answer is there.
STEP_S = (0.0005, 0.01)
LEVEL_LOOK_S = 0.01
FIND_OUT_LOOK_S = 0.1
TURN_S = 0.02
# Small, so that a repair takes several.
PIECE_BYTES = 3000
_LAST_WORDS = (Answer, AnswerWith, Refuse, Turn)

Answered = Callable[[JSONBody | str], None]
"""Gets the answer to a request, or why it is refused."""


class SimLineageFile(LineageFile):
    """The lineage file on the simulated disk; the machine's boot is what the simulation says."""

    def __init__(self, root: Path, files: SimFiles, boot: str) -> None:
        self.root = root
        self.boot = boot
        self._file = PersistedFile(root / "lineage" / "state.json", files)
        self._lock = threading.Lock()
        self._clock_s = lambda: math.inf  # nobody sets the simulated clock ahead
        state = self._file.load(decode_state)
        self.is_new = state is None
        self.state = state if state is not None else LineageState(uuid.uuid4().hex)
        self.booted_anew = self.state.boot_id != boot
        if self.is_new:
            self._write(self.state)

    def started(self) -> None:
        self.update(boot_id=self.boot)


class RoleDriver:
    """The machine of one life of a node."""

    def __init__(self, node: Node, state: RoleState) -> None:
        self.node = node
        self.state = state
        self._life = node.life
        self._events: deque[Event] = deque()
        self._waits = False  # for the result of an action
        self._held = ""
        self._tickets = itertools.count(1)
        self._answers: dict[int, Answered] = {}
        self._forced, self._sight = False, node.world.sight()

    @property
    def changing(self) -> bool:
        return self.state.changing or bool(self._answers)

    # -- events -------------------------------------------------------------------------------------

    def begin(self, event: Begin) -> None:
        """A master starts: all of it at once, for nothing else runs yet."""
        following: Event | None = event
        while following is not None:
            action = self._step(following)
            following = self._perform(action) if action is not None else None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._go()

    def ask(self, header: ExtHeader, answered: Answered = lambda _: None) -> None:
        """A request."""
        busy = why_busy(self.state) or ("another change of its role is under way" if self._answers else "")
        if busy:
            answered(busy)
            return
        ticket = next(self._tickets)
        self._answers[ticket] = answered
        if isinstance(header, PromoteHeader):
            self._forced, self._sight = header.force, self.node.world.sight()
        self.put(Asked(ticket, header))

    def _go(self) -> None:
        while self._events and not self._waits and self._lives:
            action = self._step(self._events.popleft())
            if action is not None:
                self._start(action)

    @property
    def _lives(self) -> bool:
        return self.node.up and self.node.life == self._life

    def _step(self, event: Event) -> WithResult | None:
        """One step, and what has no result; returns what has."""
        self.state, actions = step(self.state, event, self._view())
        held, found = self.state.held, None
        if held:
            self._hold(held)
        for action in actions:
            if isinstance(action, WithResult):
                found = action
            elif not isinstance(action, _LAST_WORDS):
                self._act(action)
        if not held:
            self._hold("")
        for action in actions:
            if isinstance(action, _LAST_WORDS):
                self._say(action)
        return found

    def _view(self) -> View:
        node = self.node
        log = node.store.log
        return View(
            kept=node.lineage.state,
            log=LogSpan(log.start, log.end),
            now_ms=wall_clock_ms(),
            now_s=node.world.clock.now_s,
            boot_id=node.lineage.boot,
            followers=frozenset(node.followers()),
            unwritable=log.writable_but_for(HOLDER, DISK_HOLDER) or "",
            asked=any(isinstance(one, Asked) for one in self._events),
        )

    def _hold(self, reason: str) -> None:
        if reason != self._held:
            self._held = reason
            self.node.store.log.hold_appends(reason or None, HOLDER)
            self.node.world.note(
                "{} {}", self.node, f"refuses writes: {reason}" if reason else "accepts writes"
            )

    # -- without a result ---------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        node = self.node
        if isinstance(action, Say):
            node.world.note("{} says: {}", node, action.text)
        elif isinstance(action, TakeList):
            node.take_list(regreet=action.regreet)
            if action.regreet:  # nameservers are told of a new epoch at once
                node.after(0.0, node.world.announce, node)
        elif isinstance(action, SetMaster | LeaveMaster):
            if node.link is not None:
                node.link.greet_again()
        elif isinstance(action, TellFollow):
            self._call(action.addr, action.header, 1.0, lambda _: None)

    def _say(self, word: Answer | AnswerWith | Refuse | Turn) -> None:
        if isinstance(word, Turn):
            self.node.after(TURN_S, self.node.turn, word.why)
            return
        answered = self._answers.pop(word.ticket, None)
        if answered is None:
            return
        if isinstance(word, Refuse):
            self.node.world.note("{} refuses: {}", self.node, word.reason)
            answered(word.reason)
        else:
            answered(word.body if isinstance(word, AnswerWith) else self.node.describe(word.role))

    # -- with a result ------------------------------------------------------------------------------

    def _start(self, action: WithResult) -> None:
        self._waits = True
        source = self.node.world.source
        self.node.after(source.uniform(*STEP_S), self._begin_action, action)

    def _begin_action(self, action: WithResult) -> None:
        """A fault may strike just here."""
        if not self._lives:
            return
        if self.state.changing and not isinstance(action, Ask | AskOne | Prove):
            self.node.world.strike(self.node, type(action).__name__)
            if not self._lives:
                return
        if isinstance(action, SendPromote):
            self._call(action.addr, action.header, action.seconds, self._promote_answered)
        elif isinstance(action, GatherPledges):
            self._gather(action)
        elif isinstance(action, AwaitLevel):
            self._await_level(action, self.node.world.clock.now_s + action.seconds)
        elif isinstance(action, FindOut):
            self._find_out(action, self.node.world.clock.now_s + DOUBT_SECONDS)
        else:
            self._finish(self._perform(action))

    def _finish(self, result: Result) -> None:
        """The result gets to the machine, after a while."""
        self.node.after(self.node.world.source.uniform(*STEP_S), self._finished, result)

    def _finished(self, result: Result) -> None:
        if not self._lives:
            return
        self._waits = False
        action = self._step(result)
        if action is not None:
            self._start(action)
        else:
            self._go()

    def _perform(self, action: WithResult) -> Result:
        try:
            return _PERFORM[type(action)](self, action)
        except ProcessEnded:
            raise
        except (CommitLogError, OSError, HAServiceError, ValueError) as error:
            return Failed(str(error))

    def _ask(self, action: Ask) -> Heard:
        return self.node.ask_peers()

    def _ask_one(self, action: AskOne) -> Result:
        peer = self._peer(action.addr)
        return peer.describe() if peer is not None else Failed("it is silent")

    def _peer(self, addr: str) -> Node | None:
        return next((one for one in self.node.world.peers_of(self.node) if one.name == addr), None)

    def _prove(self, action: Prove) -> Done:
        peer, log = action.peer, self.node.store.log
        span = peer_repair.span_to_prove(self.node.lineage.state.lineage, LogSpan(log.start, log.end), peer)
        peer_repair.compare_logs(log, self.read_log, peer.broker_addr, span.start, span.end)
        return Done()

    def _flush(self, action: Flush) -> End:
        log = self.node.store.log
        log.flush()
        self.node.world.flushed(self.node)
        return End(log.end)

    def _write(self, action: Write) -> Done:
        node, changes = self.node, action.changes
        node.lineage.update(listed=action.listed, **changes)
        if "lineage" in changes and (last := changes["lineage"].last) is not None:
            node.world.note("{} begins epoch {} at {}: {}", node, last.number, last.start, last.why)
            if last.number % 1000 == 0 and last.master == node.lineage.state.replica_id:
                node.world.promoted(node, forced=self._forced, sight=self._sight)
        return Done()

    def _pull(self, action: Pull) -> Pulled:
        node, peer = self.node, action.peer
        outcome = peer_repair.pull_back(
            node.store.log,
            self.read_log,
            peer.broker_addr,
            action.begin,
            action.end,
            peer_start=peer.log_start,
            holder=HOLDER,
            piece_bytes=PIECE_BYTES,
        )
        node.pulled_back(node.world.nodes[peer.broker_addr])
        failure = outcome.failure
        if failure and peer_repair.ends_unfinished(self.read_log, peer.broker_addr, outcome.end, action.end):
            failure = ""
        return Pulled(outcome.end, failure, outcome.more)

    def read_log(self, addr: str, offset: int, size: int) -> bytes:
        """40002, of another node.  Raises RemotingError."""
        peer = self._peer(addr)
        if peer is None:
            raise RemotingUnreachable(addr, "does not answer")
        try:
            return peer.store.log.read(offset, size)
        except CommitLogError as error:
            raise AnswerError(addr, 1, str(error)) from error

    def _copy(self, action: Copy) -> Done:
        return Done()

    def _stop_link(self, action: StopLink) -> End:
        node, log = self.node, self.node.store.log
        assert node.link is not None
        end = node.link.whole_end()
        node.link.abandon()
        if end < log.end:
            node.store.rewind(end)
            node.world.cut(node, end)
        log.flush()
        node.world.flushed(node)
        return End(end)

    def _confirm(self, action: Confirm) -> Result:
        peer = self._peer(action.addr)
        if peer is None:
            return Failed("the master does not say that it still hands over: it is silent")
        if not action.token or peer.describe().handing_over != action.token:
            return Failed("the master does not hand over any more")
        return Done()

    def _slaves(self, action: LookAtSlaves) -> Slaves:
        return Slaves(
            [_status(one.replica_id, one.peer, one.progress.reported) for one in self.node.following()]
        )

    def _await_level(self, action: AwaitLevel, until_s: float) -> None:
        node, log = self.node, self.node.store.log
        try:
            log.flush()
            node.world.flushed(node)
        except CommitLogError as error:
            self._finish(Failed(str(error)))
            return
        acked = [one.progress.reported for one in node.following() if one.replica_id == action.replica_id]
        if any(one >= log.end for one in acked):
            self._finish(End(log.end))
        elif not acked or node.world.clock.now_s > until_s:
            self._finish(Failed(f"{action.addr} has acknowledged {acked} of {log.end}"))
        else:
            node.after(LEVEL_LOOK_S, self._await_level, action, until_s)

    def _find_out(self, action: FindOut, until_s: float) -> None:
        node, peer = self.node, self._peer(action.addr)
        if peer is not None:
            now = peer.describe()
            if now.epoch >= action.epoch and now.epoch_master == action.replica_id:
                self._finish(now)
                return
            if now.replica_id == action.replica_id and not now.changing:
                self._finish(Failed("it says that it was not"))
                return
        if node.world.clock.now_s > until_s:
            self._finish(Lost("it does not answer"))
        else:
            node.after(FIND_OUT_LOOK_S, self._find_out, action, until_s)

    def _empty(self, action: Empty) -> Done:
        node = self.node
        node.store.restart_at(0, node.root / "cut" / f"reinit-{wall_clock_ms()}" if action.keep else None)
        node.world.rejoined(node)
        return Done()

    # -- over the network ---------------------------------------------------------------------------

    def _call(self, addr: str, header: ExtHeader, seconds: float, answered: Callable[[Any], None]) -> None:
        """A request to another node: `answered` gets the body, a refusal, or None when no answer comes."""
        node, world = self.node, self.node.world
        open_ = [True]

        def once(said: JSONBody | str | None) -> None:
            if open_ and self._lives:
                open_.clear()
                answered(said)

        def answer(said: JSONBody | str) -> None:
            if world.network.reaches(addr, node.name):
                node.after(world.network.delay_s(addr, node.name), once, said)

        peer = world.nodes.get(addr)
        if peer is not None and world.network.reaches(node.name, addr) and not peer.up:
            node.after(world.network.delay_s(node.name, addr), once, None)  # nobody listens there
        elif peer is not None and world.network.reaches(node.name, addr):
            peer.after(world.network.delay_s(node.name, addr), peer.requested, header, answer)
        node.after(seconds, once, None)

    def _promote_answered(self, said: JSONBody | str | None) -> None:
        if said is None:
            self._finish(Lost("no answer in time"))
        elif isinstance(said, str):
            self._finish(Failed(said, answered=True))
        else:
            assert isinstance(said, LineageBody), said
            self._finish(said)

    def _gather(self, action: GatherPledges) -> None:
        said: list[tuple[str, JSONBody | str | None]] = []

        def answered(addr: str, one: JSONBody | str | None) -> None:
            said.append((addr, one))
            if len(said) == len(action.addrs):
                bodies = [body for _, body in said if isinstance(body, LineageBody)]
                nos = [
                    NoVote(at, "silent" if why is None else str(why), answered=why is not None)
                    for at, why in said
                    if not isinstance(why, LineageBody)
                ]
                self._finish(Votes(bodies, nos))

        if not action.addrs:
            self._finish(Votes(()))
        for addr in action.addrs:
            self._call(addr, action.header, PLEDGE_SECONDS, lambda one, addr=addr: answered(addr, one))  # type: ignore[misc]


def _status(replica_id: str, addr: str, ack: int) -> SlaveStatus:
    return SlaveStatus(addr, "transfer", ack, ack, ack, 0, 0, 0.0, 0.0, None, replica_id, addr)


_PERFORM: dict[type, Callable[[RoleDriver, Any], Result]] = {
    Ask: RoleDriver._ask,
    AskOne: RoleDriver._ask_one,
    Confirm: RoleDriver._confirm,
    Copy: RoleDriver._copy,
    Empty: RoleDriver._empty,
    Flush: RoleDriver._flush,
    LookAtSlaves: RoleDriver._slaves,
    Prove: RoleDriver._prove,
    Pull: RoleDriver._pull,
    StopLink: RoleDriver._stop_link,
    Write: RoleDriver._write,
}
