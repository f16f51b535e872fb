"""NodeShell: a member's thread.  Events of one turn of the loop are one step; its actions are carried out in order.

    requests of peers and clients ─┐                                  ┌─▶ SaveTerm: waits for the disk
    answers of peers               ├─▶ events ─▶ member.steps(…) ─▶   ├─▶ AskPeer: a call, with a deadline
    appends, time, the flusher     ┘   (one turn)                     └─▶ answers, ends of appends, the status
    place(), in any thread ─▶ one event ─▶ a step of its own ─▶ the boxes, which their loops empty

A step is taken under the shell's lock.  What it wants sent goes through the box of a PeerCalls, so that it is sent in
the order of the steps, whoever took them.  Pushes go by the loop that the broker above has lent, if it has.

If a step or an action fails, the member ends: what follows must not happen.  Everything that waits is told.  If only
a file could not be written or read it rests, and begins again from what its files have, as a process that is started
again does.
Bounds: appends, pushes and answers that wait are the member's; a turn's events are what its sockets gave it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from commitlog.dledger.small import TermFile
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import (
    AnswerAsked,
    AppendBodies,
    AppendEnded,
    AppendPlaced,
    AskPeer,
    CommittedTo,
    DamageFound,
    EntryMended,
    HandOverEnded,
    HandOverTo,
    LeadByForce,
    LogDamaged,
    LogSynced,
    MemberAction,
    MemberEvent,
    MemberRole,
    RequestCame,
    RoleIs,
    SaveTerm,
    SaveWhole,
    TellOperator,
    TimePassed,
)
from haservice.dledger.log.entry_log import Bodies, LogUnreadable
from haservice.dledger.member import DLedgerMember, PeerProgress
from haservice.dledger.messages import LedgerEntry, PushEntryRequest, Recall
from haservice.dledger.node.peer_calls import PeerCalls
from haservice.dledger.node.whole_file import WholeFile
from haservice.dledger.settings import MemberSettings
from haservice.dledger.wire import read_request
from haservice.errors import ProtocolError, RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Outcome

logger = logging.getLogger(__name__)

# So long a member rests that could not save its vote, or read its log; twice as long each time, as long as it did not
# take part for CALM_S.
REST_S = 2.0
REST_S_MAX = 10.0
CALM_S = 60.0
# How long those wait for the member who only want to see how things are.
GLANCE_S = 0.05
# The member is given the time at least so often.
TURN_S_MAX = 5.0
# A deadline is looked at when it is over, not a moment before.
TURN_S_MIN = 0.001
# The broker's loop is free for a moment at least so often.
LEND_S = 3.0


class Placed(NamedTuple):
    """What became of an append of the broker above.  `entries` are all bodies', none if it was refused."""

    code: DLedgerResponseCode
    last_index: int = -1
    entries: Sequence[LedgerEntry] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(entry.pos for entry in self.entries)


class NodeStatus(NamedTuple):
    """What a member is; one of them replaces the other, so that any thread may read it."""

    role: MemberRole
    term: int
    leader_id: str | None
    committed_index: int


class MemberLook(NamedTuple):
    """What people have to know of a member; "" where all is well."""

    not_whole: str
    """Why it is not whole, and for what it waits."""
    refuses_cut: str
    """What its leader wants cut, and this member holds committed."""
    alone: str
    """How it came to lead though too few members were whole."""
    disk: str
    """Why it cannot write."""
    answers: str
    """What the others have answered to this candidate."""
    patience_s: float
    """For how long members wait for word of the leader."""


class WaitingAppend:
    """An append of the broker above, until the member has ended it."""

    def __init__(self) -> None:
        self.future: Future[Placed] = Future()
        self.future.set_running_or_notify_cancel()  # nobody takes it back
        self.entries: Sequence[LedgerEntry] = ()


class PlacedNow:
    """What place() answers: the entries of all bodies, or why there are none."""

    def __init__(self) -> None:
        self.entries: Sequence[LedgerEntry] = ()
        self.code = DLedgerResponseCode.TERM_CHANGED


class _NotSaved(Exception):
    """A file of the member's is as it was; the text says which, and why."""


class NodeShell:
    """From begin() on used on the loop's thread; place(), `status` and peers() are for all.

    `make_member(committed_index, asked)` makes one from what the files have.  What it calls, `on_…`, is called under
    the lock: it waits for nothing, and does not call the shell.
    """

    def __init__(
        self,
        settings: MemberSettings,
        make_member: Callable[[int, int], DLedgerMember],
        term_file: TermFile,
        whole_file: WholeFile,
        *,
        committed_index: int,
        appended: Callable[[], None],
        on_status: Callable[[NodeStatus], None],
        on_failure: Callable[[BaseException], None],
        on_committed: Callable[[int], None] = lambda index: None,
        on_damage: Callable[[int], None] = lambda index: None,
        on_mended: Callable[[int], None] = lambda index: None,
    ) -> None:
        self._settings = settings
        self._make_member = make_member
        self._member = make_member(committed_index, 0)
        self._term_file, self._whole_file = term_file, whole_file
        self._appended = appended
        self._on_status = on_status
        self._on_failure = on_failure
        self._on_committed = on_committed
        self._on_damage, self._on_mended = on_damage, on_mended
        self._damaged: set[int] = set()  # a member that begins again does not know
        self._calls = PeerCalls(settings, self._step)
        self._lent: PeerCalls | None = None  # on the loop of the broker above
        self._lock = threading.Lock()  # guards the member, and the order of its actions
        self._due_s = 0.0  # when the member has something to do, if nothing else happens
        self._timer_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: set[WaitingAppend | Future[DLedgerResponseCode]] = set()
        self._closed: str | None = "it has not begun"
        self._saves = False
        """Whether the member waits for the disk, about to follow another one, or to let itself be elected."""
        self._rest_s, self._rests_until_s = REST_S, -math.inf
        self._seen_peers: list[PeerProgress] | None = None
        self._seen: MemberLook | None = None
        self.resting = ""
        """Why the member takes no part for a while; "" if it does not rest."""
        self.status = self._status()

    async def begin(self) -> None:
        """Takes part from now on."""
        await self._calls.begin()
        self._closed = None
        self.post(TimePassed())

    def _status(self) -> NodeStatus:
        member = self._member
        return NodeStatus(member.role, member.term, member.leader_id, member.committed_index)

    # -- in -----------------------------------------------------------------------------------------

    def process_batch(self, connection: Connection, requests: list[RemotingCommand]) -> Sequence[Outcome]:
        """Requests of one read.  They are answered by the steps, not here; what cannot be read, at once."""
        outcomes: list[Outcome] = []
        for command in requests:
            outcome: Outcome = None
            try:
                self._check_runs()
                self.post(RequestCame((connection, command), read_request(command)))
            except (ProtocolError, RequestError) as error:
                code = error.code if isinstance(error, RequestError) else ResponseCode.SYSTEM_ERROR
                outcome = command.answer(int(code), str(error))
            outcomes.append(outcome)
        return outcomes

    def _check_runs(self) -> None:
        if self._closed is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"this member takes no part: {self._closed}")

    def post(self, event: MemberEvent) -> None:
        """It is part of the next step, in the loop's next turn; nothing happens after the end."""
        if self._closed is None:
            self._calls.post(event)

    def damaged(self, indexes: Sequence[int]) -> None:
        """Entries of the log; also while the member rests."""
        self._damaged.update(indexes)
        self.post(LogDamaged(tuple(indexes)))

    def synced(self) -> None:
        """More is durable; from any thread."""
        (self._lent or self._calls).post_from_afar(LogSynced())

    def append(self, bodies: Sequence[bytes], append: WaitingAppend) -> None:
        if self._begin_to_wait(append):
            self.post(AppendBodies(append, bodies))

    def hand_over(self, to: str, future: Future[DLedgerResponseCode]) -> None:
        if self._begin_to_wait(future):
            self.post(HandOverTo(future, to))

    def force(self, future: Future[DLedgerResponseCode]) -> None:
        if self._begin_to_wait(future):
            self.post(LeadByForce(future))

    def _begin_to_wait(self, one: WaitingAppend | Future[DLedgerResponseCode]) -> bool:
        if self._closed is not None:
            give_up(one)
            return False
        self._waiting.add(one)
        return True

    # -- steps --------------------------------------------------------------------------------------

    def _step(self, events: list[MemberEvent]) -> None:
        with self._lock:
            if self._closed is None:
                self._take_step(events)
        self._deliver()

    def place(self, bodies: Bodies, term: int) -> PlacedNow:
        """Appends at once, in the caller's thread; nobody is told when a majority has it.  Not for the loop's."""
        append = PlacedNow()
        while not self._lock.acquire(timeout=GLANCE_S):
            if self._saves:  # a disk that stands still does not hold up who asks: he is refused
                return append
        try:
            if self._closed is None:
                self._take_step([AppendBodies(append, bodies, term)])
        finally:
            self._lock.release()
        self._deliver()
        return append

    def _deliver(self) -> None:
        """What the steps until now want sent, and the time of the next one."""
        self._calls.deliver()
        lent = self._lent
        if lent is not None:
            lent.deliver()
        if self._closed is None and (self._timer is None or self._due_s + TURN_S_MIN < self._timer_at_s):
            self._calls.call(self._set_timer)

    # -- the broker's loop --------------------------------------------------------------------------

    def lend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pushes are made there from now on, until take_back().  Not on a loop's thread."""
        lent = PeerCalls(self._settings, self._step, self._calls)
        try:
            asyncio.run_coroutine_threadsafe(lent.begin(), loop).result(LEND_S)
        except TimeoutError:
            logger.warning("pushes stay on the member's loop, the broker's was busy seconds=%g", LEND_S)
            return
        with self._lock:
            self._lent = lent

    def take_back(self) -> None:
        """Pushes are made on the node's own loop again.  Not on a loop's thread; may be called twice."""
        with self._lock:
            lent, self._lent = self._lent, None
        if lent is not None:
            lent.end(LEND_S)

    def peers(self) -> list[PeerProgress]:
        """Of a leader: how far the others are; or were, if it waits for its disk.  Any thread but the loop's."""
        seen = self._seen_peers
        if self._lock.acquire(timeout=-1 if seen is None else GLANCE_S):
            try:
                seen = self._seen_peers = self._member.peers()
            finally:
                self._lock.release()
        return seen or []

    def recalls(self) -> dict[str, Recall]:
        """What the member remembers of the others.  Any thread but the loop's."""
        with self._lock:
            return self._member.recalls()

    def look(self) -> MemberLook:
        """As it is; or was, if it waits for its disk.  Any thread but the loop's."""
        if self._lock.acquire(timeout=-1 if self._seen is None else GLANCE_S):
            try:
                member, state = self._member, self._member.state
                self._seen = MemberLook(
                    member.not_whole,
                    state.refuses_cut,
                    state.record.alone,
                    state.disk_trouble,
                    member.answers,
                    member.patience_s,
                )
            finally:
                self._lock.release()
        assert self._seen is not None
        return self._seen

    def _take_step(self, events: list[MemberEvent]) -> None:
        assert self._lock.locked()
        try:
            for action in self._member.steps(events, time.monotonic()):
                self._act(action)
            self._appended()
            self._due_s = self._member.next_due_s
        except (_NotSaved, LogUnreadable) as error:
            self._rest(str(error))
        except Exception as error:
            logger.exception("member ends id=%s", self._settings.self_id)
            self.end(f"{type(error).__name__}: {error}")
            self._on_failure(error)

    def _set_timer(self) -> None:
        """On the loop's thread.  One that is early does no harm: the step finds nothing to do, and sets the next."""
        now_s = time.monotonic()
        at_s = min(max(self._due_s, now_s), now_s + TURN_S_MAX) + TURN_S_MIN
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = asyncio.get_running_loop().call_later(at_s - now_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.post(TimePassed())

    # -- actions ------------------------------------------------------------------------------------

    def _act(self, action: MemberAction) -> None:
        match action:
            case SaveTerm(term, vote):
                self._save(f"the vote of term {term}", lambda: self._term_file.save(term, vote))
            case SaveWhole(record):
                self._save("whether it is whole", lambda: self._whole_file.save(record))
            case AskPeer(_, _, PushEntryRequest()) if self._lent is not None:
                self._lent.put(action)
            case AskPeer() | AnswerAsked():
                self._calls.put(action)
            case AppendPlaced(PlacedNow() as append, entries):
                append.entries = entries
            case AppendEnded(PlacedNow() as append, code, _):
                append.code = code
            case AppendPlaced(WaitingAppend() as append, entries):
                append.entries = entries
            case AppendEnded(WaitingAppend() as append, code, index):
                self._waiting.discard(append)
                append.future.set_result(Placed(code, index, append.entries))
            case HandOverEnded(Future() as future, code):
                self._waiting.discard(future)
                future.set_result(code)
            case RoleIs(role, term, leader_id):
                # In its place among the actions: what is committed behind it is another leader's.
                self.status = self.status._replace(role=role, term=term, leader_id=leader_id)
                self._on_status(self.status)
                logger.info(
                    "role id=%s role=%s term=%d leader=%s",
                    self._settings.self_id, role.value, term, leader_id,
                )  # fmt: skip
            case TellOperator(text):
                logger.error("member id=%s: %s", self._settings.self_id, text)
            case CommittedTo(index):
                self.status = self.status._replace(committed_index=index)
                self._on_committed(index)
            case DamageFound(index):
                logger.error("entry is damaged, asked for id=%s index=%d", self._settings.self_id, index)
                self._damaged.add(index)
                self._on_damage(index)
            case EntryMended(index):
                self._damaged.discard(index)
                self._on_mended(index)
            case _:
                raise AssertionError(f"no such action: {action}")

    def _save(self, what: str, save: Callable[[], None]) -> None:
        self._saves = True
        try:
            save()
        except OSError as error:
            raise _NotSaved(f"{what} is not saved: {error}") from error
        finally:
            self._saves = False

    # -- rest and end -------------------------------------------------------------------------------

    def _rest(self, reason: str) -> None:
        """Nothing was promised that is not saved, so all that was about to happen may be forgotten."""
        now_s = time.monotonic()
        is_new = now_s >= self._rests_until_s + CALM_S
        self._rest_s = REST_S if is_new else min(2 * self._rest_s, REST_S_MAX)
        self._rests_until_s = now_s + self._rest_s
        logger.error("member rests id=%s again_s=%g reason=%s", self._settings.self_id, self._rest_s, reason)
        self.end(reason)
        self.resting = reason
        self._on_status(self.status)
        self._calls.call(self._wait_for_disk)

    def _wait_for_disk(self) -> None:
        asyncio.get_running_loop().call_later(self._rest_s, self._begin_again)

    def _begin_again(self) -> None:
        with self._lock:
            if not self.resting:
                return
            try:
                # Answers to what the old member has asked still come: the new one asks by other numbers.
                self._member = self._make_member(self.status.committed_index, self._member.asked)
            except Exception as error:
                logger.exception("member does not begin again id=%s", self._settings.self_id)
                self._rest(f"{type(error).__name__}: {error}")
                return
            self.resting, self._closed = "", None
            self.status = self._status()
            self._on_status(self.status)
        self.post(LogDamaged(tuple(self._damaged)))

    def end(self, reason: str) -> None:
        """No step from now on; whoever waits is told.  May be called twice, on the loop or under the lock."""
        self._closed = self._closed or reason
        self._calls.forget()
        waiting, self._waiting = self._waiting, set()
        for one in waiting:
            give_up(one)
        self.status = self.status._replace(role=MemberRole.CANDIDATE, leader_id=None)

    async def close(self) -> None:
        """Ends its calls, and the client's connections."""
        with self._lock:
            self.end("shut down")
            self.resting = ""
        if self._timer is not None:
            self._timer.cancel()
        await self._calls.close()


def give_up(one: WaitingAppend | Future[DLedgerResponseCode]) -> None:
    """No member answers it: an append that was placed may still be committed."""
    if isinstance(one, WaitingAppend):
        one.future.set_result(Placed(DLedgerResponseCode.TERM_CHANGED, entries=one.entries))
    else:
        one.set_result(DLedgerResponseCode.TERM_CHANGED)
