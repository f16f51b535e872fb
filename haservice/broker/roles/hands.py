"""RoleHands: carries out in a broker what the machine of roles decides, always in the thread `role-keeper`.

A failure comes back as Failed, with what an operator has to know; every question to others has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.log.log import wall_clock_ms
from commitlog.store import Store
from commitlog.upkeep.retention import DISK_HOLDER
from haservice.broker.roles.actions import (
    Answer,
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
    Without,
    WithResult,
    Write,
    ended_by_error,
)
from haservice.broker.roles.peer_repair import (
    SIZE_BYTES,
    compare_logs,
    ends_unfinished,
    is_unfinished,
    pull_back,
    span_to_prove,
)
from haservice.broker.roles.peers import Heard, Peers, lineage_at
from haservice.broker.roles.state import View
from haservice.configuration.settings import NodeConfig
from haservice.coordination.gate import LEASE_HOLDER, clock_s
from haservice.deadline import Deadline
from haservice.errors import AnswerError, ProtocolError, RemotingError, RemotingTimeout
from haservice.log_throttle import LogThrottle
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import LineageBody
from haservice.replication.lineage.epochs import LogSpan
from haservice.replication.lineage.file import LineageFile
from haservice.replication.status import HAStatus
from haservice.replication.wire.protocol import MasterState

logger = logging.getLogger(__name__)

# The holder's name for appends that the machine of roles holds, whatever its reason.
HOLDER = "role"

# A living master hands over what it keeps beside the log within a moment.  A dead one must not keep its
# successor from starting.
COPY_SECONDS = 2.0
COPY_FROM_LOST_SECONDS = 0.5
# A slave may be in a flush, and where its disk is slow the dead master's may be the same.
LINK_STOP_SECONDS = 20.0
# What is not dispatched yet has to be dispatched, to know where the last whole record ends.
DISPATCH_SECONDS = 30.0
DISPATCH_LOOK_SECONDS = 0.05
CONFIRM_SECONDS = 2.0
# A slave that pledges itself writes that down before it answers.
PLEDGE_SECONDS = 2.0
TELL_SECONDS = 1.0
LEVEL_LOOK_SECONDS = 0.002
# So long the master asks after a lost answer, before it goes on refusing writes without one.
DOUBT_SECONDS = 5.0
DOUBT_LOOK_SECONDS = 0.1


class MasterReplication(Protocol):
    """A master's HA service, as far as a change of role concerns it."""

    def status(self) -> HAStatus: ...

    def take_list(self) -> None: ...

    def regreet(self) -> None: ...


class SlaveReplication(Protocol):
    """A slave's HA service, in the same way."""

    def leave_master(self) -> None: ...

    def stop(self, deadline: Deadline) -> bool: ...


@dataclass(frozen=True, slots=True)
class RoleHands:
    """`config` is the one in force."""

    config: NodeConfig
    lineage: LineageFile
    store: Store
    peers: Peers
    # A slave's last copy of what its master keeps beside the log, within so many seconds.
    copy_side_state: Callable[[float], bool]
    # Tells a slave whom to follow: the master's address for clients, and for slaves.
    set_master: Callable[[str, str], None]
    turn: Callable[[str], None]
    # Tells nameservers of a new epoch at once.
    announce: Callable[[], None]
    describe: Callable[..., LineageBody]
    # Replication in the role in force; neither is set in a start, before anything of the broker runs.
    master: MasterReplication | None = None
    slave: SlaveReplication | None = None
    # Called when an epoch has begun on this running master.
    epoch_began: Callable[[], None] = lambda: None
    throttle: LogThrottle = field(default_factory=LogThrottle)

    # -- what is so ---------------------------------------------------------------------------------

    def view(self, *, asked: bool = False) -> View:
        log = self.store.log
        return View(
            kept=self.lineage.state,
            log=LogSpan(log.start, log.end),
            now_ms=wall_clock_ms(),
            now_s=time.monotonic(),
            boot_id=self.lineage.boot,
            followers=self._followers(),
            unwritable=log.writable_but_for(HOLDER, DISK_HOLDER, LEASE_HOLDER) or "",
            asked=asked,
            boottime_s=clock_s(),
        )

    def _followers(self) -> frozenset[str]:
        slaves = self.master.status().slaves if self.master is not None else ()
        following = MasterState.TRANSFER.value
        return frozenset(one.replica_id for one in slaves if one.replica_id and one.state == following)

    def body(self, answer: Answer) -> LineageBody:
        return self.describe(answer.role)

    def hold(self, reason: str) -> None:
        if reason:
            logger.warning("this broker refuses writes reason=%s", reason)
        self.store.log.hold_appends(reason or None, HOLDER)

    # -- without a result ---------------------------------------------------------------------------

    def act(self, action: Without) -> None:
        if isinstance(action, Say):
            if not action.cause or self.throttle.ready(action.cause):
                logger.log(action.level, "%s", action.text)
        elif isinstance(action, TakeList):
            if self.master is not None:
                self.master.take_list()
                if action.regreet:
                    self.epoch_began()
                    self.master.regreet()
                    self.announce()
        elif isinstance(action, LeaveMaster):
            assert self.slave is not None
            self.slave.leave_master()
        elif isinstance(action, SetMaster):
            self.set_master(action.broker_addr, action.ha_addr)
        elif isinstance(action, TellFollow):
            self._tell_follow(action)
        else:
            assert isinstance(action, Turn), action
            self.turn(action.why)

    def _tell_follow(self, action: TellFollow) -> None:
        request = RemotingCommand.request(RequestCode.FOLLOW, action.header.encode())
        try:
            self.peers.call(action.addr, request, TELL_SECONDS)
        except (OSError, RemotingError, ValueError) as error:  # the slave hears of it from a nameserver
            logger.debug("not told to follow addr=%s reason=%s", action.addr, error)

    # -- with a result ------------------------------------------------------------------------------

    def perform(self, action: WithResult) -> Result:
        try:
            return _PERFORM[type(action)](self, action)
        except (CommitLogError, OSError, ProtocolError, RemotingError, ValueError) as error:
            reason = str(error) or type(error).__name__  # a TimeoutError has no words
            return ended_by_error(action, reason, answered=isinstance(error, AnswerError))

    def _ask(self, action: Ask) -> Heard:
        return self.peers.ask(action.also)

    def _ask_one(self, action: AskOne) -> Result:
        addr = action.addr
        try:
            return self.peers.ask_one(addr)
        except AnswerError as error:
            return Failed(error.remark or str(error), answered=True)
        except RemotingTimeout:
            return Failed("it is silent")
        except (RemotingError, ValueError) as error:
            return Failed(str(error).removeprefix(f"{addr}: "))

    def _prove(self, action: Prove) -> Done:
        """A stranger can hear our epochs from anybody; it has our bytes only if it holds our log."""
        peer, log = action.peer, self.store.log
        span = span_to_prove(self.lineage.state.lineage, LogSpan(log.start, log.end), peer)
        with self.peers.reading() as fetch:
            compare_logs(log, fetch, peer.broker_addr, span.start, span.end)
        return Done()

    def _flush(self, action: Flush) -> End:
        self.store.log.flush()
        return End(self.store.log.end)

    def _write(self, action: Write) -> Done:
        self.lineage.update(listed=action.listed, **action.changes)
        return Done()

    def _pull(self, action: Pull) -> Pulled:
        peer = action.peer
        with self.peers.reading() as fetch:
            outcome = pull_back(
                self.store.log,
                fetch,
                peer.broker_addr,
                action.begin,
                action.end,
                peer_start=peer.log_start,
                holder=HOLDER,
            )
        failure = outcome.failure
        if failure and ends_unfinished(self.peers.read_log, peer.broker_addr, outcome.end, action.end):
            failure = ""
        return Pulled(outcome.end, failure, outcome.more)

    def _copy(self, action: Copy) -> Result:
        seconds = COPY_SECONDS if action.from_living else COPY_FROM_LOST_SECONDS
        if self.copy_side_state(seconds):
            return Done()
        return Failed(f"its master did not give it within {seconds:g} s")

    def _stop_link(self, action: StopLink) -> Result:
        assert self.slave is not None
        if not self.slave.stop(Deadline(LINK_STOP_SECONDS)):
            return Failed(f"the link to the master does not end within {LINK_STOP_SECONDS:g} s")
        end = self._whole_end()
        self.store.log.flush()
        return end

    def _whole_end(self) -> End:
        """Where the last whole record ends.  Another record may begin there that its master never finished:
        it is cut when the store is closed.
        """
        log, dispatcher = self.store.log, self.store.dispatcher
        deadline, arrived = Deadline(DISPATCH_SECONDS), threading.Event()
        dispatcher.when_at(log.end, arrived.set)
        while not arrived.wait(DISPATCH_LOOK_SECONDS):
            position, end = dispatcher.position, log.end
            if dispatcher.failed is not None:
                raise ProtocolError(f"the log is damaged: {dispatcher.failed}")
            if is_unfinished(log.read(position, SIZE_BYTES), end - position):
                return End(position)
            if deadline.expired:
                raise ProtocolError(f"{end - position} bytes of the log are not dispatched yet; try again")
        return End(log.end)

    def _confirm(self, action: Confirm) -> Result:
        """The master that hands over may have given up meanwhile, and accept writes again."""
        try:
            master = self.peers.ask_one(action.addr, CONFIRM_SECONDS)
        except (RemotingError, ValueError) as error:
            return Failed(f"the master does not say that it still hands over: {error}")
        if not action.token or master.handing_over != action.token:
            return Failed("the master does not hand over any more")
        return Done()

    def _gather_pledges(self, action: GatherPledges) -> Votes:
        request = RemotingCommand.request(RequestCode.PLEDGE, action.header.encode())

        async def ask(client: RemotingClient, addr: str) -> LineageBody | NoVote:
            try:
                answer = expect(addr, await client.invoke(addr, request, PLEDGE_SECONDS))
                return lineage_at(addr, answer.body)
            except AnswerError as error:
                return NoVote(addr, error.remark or str(error), answered=True)
            except (RemotingError, ValueError) as error:
                return NoVote(addr, str(error).removeprefix(f"{addr}: "))

        async def ask_all(client: RemotingClient) -> list[LineageBody | NoVote]:
            return list(await asyncio.gather(*(ask(client, addr) for addr in action.addrs)))

        said = self.peers.use(ask_all)
        name = self.config.broker.broker_name
        return Votes(
            [one for one in said if isinstance(one, LineageBody) and one.broker_name == name],
            [one for one in said if isinstance(one, NoVote)],
        )

    def _slaves(self, action: LookAtSlaves) -> Slaves:
        assert self.master is not None
        return Slaves(self.master.status().slaves)

    def _await_level(self, action: AwaitLevel) -> Result:
        assert self.master is not None
        log, deadline = self.store.log, Deadline(action.seconds)
        try:
            log.flush()
        except CommitLogError as error:
            return Failed(f"the log cannot be flushed: {error}")
        end = log.end
        while True:
            now = [one for one in self.master.status().slaves if one.replica_id == action.replica_id]
            if any(one.ack >= end for one in now):
                return End(end)
            if deadline.expired or not now:
                acked = max((one.ack for one in now), default=-1)
                why = "in time" if now else "before its connection ended"
                return Failed(f"{action.addr} has acknowledged {acked} of {end} {why}")
            time.sleep(LEVEL_LOOK_SECONDS)

    def _send_promote(self, action: SendPromote) -> Result:
        request = RemotingCommand.request(RequestCode.PROMOTE, action.header.encode())
        try:
            answer = self.peers.call(action.addr, request, action.seconds)
            return LineageBody.decode(answer.body)
        except AnswerError as error:
            return Failed(error.remark or str(error), answered=True)
        except (RemotingError, ValueError) as error:
            return Lost(str(error))

    def _find_out(self, action: FindOut) -> Result:
        patience, trouble = Deadline(DOUBT_SECONDS), "it does not answer"
        while not patience.expired:
            with contextlib.suppress(RemotingError, ValueError):
                now = self.peers.ask_one(action.addr)
                if now.epoch >= action.epoch and now.epoch_master == action.replica_id:
                    return now
                if now.replica_id == action.replica_id and not now.changing:
                    return Failed("it says that it was not", answered=True)
                trouble = "it is changing its role"
            time.sleep(DOUBT_LOOK_SECONDS)
        return Lost(trouble)

    def _empty(self, action: Empty) -> Done:
        kept = self.config.log.root / "cut" / f"reinit-{wall_clock_ms()}" if action.keep else None
        self.store.restart_at(0, kept)
        return Done()


_PERFORM: dict[type, Callable[[RoleHands, Any], Result]] = {
    Ask: RoleHands._ask,
    AskOne: RoleHands._ask_one,
    AwaitLevel: RoleHands._await_level,
    Confirm: RoleHands._confirm,
    Copy: RoleHands._copy,
    Empty: RoleHands._empty,
    FindOut: RoleHands._find_out,
    Flush: RoleHands._flush,
    GatherPledges: RoleHands._gather_pledges,
    LookAtSlaves: RoleHands._slaves,
    Prove: RoleHands._prove,
    Pull: RoleHands._pull,
    SendPromote: RoleHands._send_promote,
    StopLink: RoleHands._stop_link,
    Write: RoleHands._write,
}
