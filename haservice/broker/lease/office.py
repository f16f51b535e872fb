"""Office: a running broker, as the coordinator's rounds see it: what it is, and what can be done to it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from commitlog.log.log import wall_clock_ms
from commitlog.store import Store
from commitlog.upkeep.retention import DISK_HOLDER
from haservice import __version__
from haservice.broker.health import Health
from haservice.broker.roles.executor import RoleExecutor
from haservice.broker.roles.hands import HOLDER
from haservice.broker.roles.peers import Peers
from haservice.broker.roles.rules import role_wanted
from haservice.broker.roles.state import BeginEpoch, Order, SealLog
from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.coordination.cluster import FOLLOWS, Leaseholder, MemberState
from haservice.coordination.facts import Own
from haservice.coordination.gate import LEASE_HOLDER
from haservice.coordination.voters import Follower, Voters
from haservice.errors import RemotingError, RequestError
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import FollowHeader, LeaveLeaseHeader
from haservice.remoting.json_body import JSONBody
from haservice.replication.lineage.epochs import Mark
from haservice.replication.lineage.file import LineageFile, LineageState, without_its_log
from haservice.replication.master.progress import slaves_needed
from haservice.replication.master.service import MasterHAService
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.status import NotInSync, SlaveStatus
from haservice.replication.wire.protocol import MasterState

# A seal is a small file; the machine of roles may be asking peers just now.
SEAL_SECONDS = 1.5
# An epoch begins with a flush.  A disk that takes longer leaves the lease to another broker.
ORDER_SECONDS = 5.0
# A master that does not answer is named to its slave again after so long.
TELL_AGAIN_SECONDS = 5.0
# A slave that follows answers within a moment, and the lease does not last long.
PROMISE_SECONDS = 0.7


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """The parts of a broker that the rounds need.  `config` is the one in force."""

    config: NodeConfig
    store: Store
    lineage: LineageFile
    executor: RoleExecutor
    peers: Peers
    ha: MasterHAService[Any] | SlaveHAService
    may_be_first: bool
    health: Health
    unfit_tables: Callable[[], str] = lambda: ""
    """Why a slave's tables are no master's."""


class Office:
    """For one life of a BrokerNode.  Used by the thread of the rounds."""

    def __init__(self, broker: RunningBroker, wake: Callable[[], None] = lambda: None) -> None:
        """`wake` brings a round soon; any thread may call it."""
        self.broker = broker
        self._wake = wake
        self.counts: Voters | None = None
        self._is_held = False
        self.served_epoch = -1
        # All that a predecessor in this process may have acknowledged, perhaps as another kind of master.
        self._since = broker.store.log.end
        self._change: Future[JSONBody] | None = None
        self._ordered_s = -math.inf
        self._told: tuple[str, int, float] = ("", -1, 0.0)

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def is_slave(self) -> bool:
        return self.broker.config.broker.role.is_slave

    @property
    def kept(self) -> LineageState:
        return self.broker.lineage.state

    @property
    def needed(self) -> int:
        """How many acks an OK takes here, or would take if this broker became the master."""
        config, role = self.broker.config, self.broker.config.broker.role
        if role.is_slave:
            wanted = role_wanted("", self.kept, self.broker.executor.state.who.role)
            role = wanted if isinstance(wanted, BrokerRole) else BrokerRole.SYNC_MASTER
        is_sync = role is BrokerRole.SYNC_MASTER
        return slaves_needed(config.replication.in_sync_replicas) if is_sync else 0

    @property
    def opened(self) -> int:
        """The epoch whose master it is; -1 if it is none."""
        kept, state = self.kept, self.broker.executor.state
        last = kept.lineage.last
        if self.is_slave or last is None or last.master != kept.replica_id or kept.seals_out(last.number):
            return -1
        return -1 if state.turning or state.must_begin_anew else last.number

    @property
    def follows(self) -> int:
        ha, last = self.broker.ha, self.kept.lineage.last
        is_followed = isinstance(ha, SlaveHAService) and ha.greeted_by and last is not None
        return last.number if is_followed and last is not None else -1

    def own(self, life: str) -> Own:
        broker, kept, opened = self.broker, self.kept, self.opened
        status = broker.ha.status()
        last = kept.lineage.last
        epoch = last.number if last is not None else -1
        pledged = kept.pledge.epoch if kept.pledge is not None else -1
        is_held = self._is_held  # before the log's end is read
        end = broker.store.log.end
        follows = self.follows
        member = MemberState(
            replica_id=kept.replica_id,
            life=life,
            mark=kept.lineage.mark(end),
            epoch=epoch,
            knows=max(epoch, pledged, kept.sealed, kept.joined, broker.executor.state.heard),
            joined=kept.joined,
            sealed=kept.sealed,
            is_whole=end >= kept.whole_from,
            lost_power=kept.lost_power and end < kept.whole_from,
            reached=_reached(kept, end),
            unfit=self._unfit(),
            broker_addr=broker.config.broker_addr,
            ha_addr=broker.config.ha_server_addr,
            role=broker.config.broker.role.value,
            state="master" if opened >= 0 else FOLLOWS if follows >= 0 else "waits",
            version=__version__,
        )
        link = status.master
        return Own(
            member,
            opened,
            follows,
            link.master_end if link is not None and follows >= 0 else kept.master_end,
            broker.may_be_first,
            self.needed,
            self.counts,
            self._base(end),
            {one.replica_id: _follower(one) for one in status.slaves if _follows(one)},
            is_held,
            _told(kept, status.slaves) if opened >= 0 else {},
        )

    def _base(self, end: int) -> int:
        """Up to where messages may have been acknowledged."""
        ha, last = self.broker.ha, self.kept.lineage.last
        if not isinstance(ha, MasterHAService) or last is None:
            return end
        if self.broker.config.broker.role is BrokerRole.ASYNC_MASTER:
            return end
        return max(last.start, ha.acknowledged, self._since)

    @property
    def _is_ordered(self) -> bool:
        """Whether an order of ours is being carried out, in good time: what holds appends then is no trouble."""
        is_late, change = time.monotonic() >= self._ordered_s + ORDER_SECONDS, self._change
        return change is not None and not change.done() and not is_late

    def _unfit(self) -> str:
        store, state = self.broker.store, self.broker.executor.state
        if why := self.broker.health.why_vital:
            return why
        if store.dispatcher.failed is not None:
            return f"its log is damaged: {store.dispatcher.failed}"
        if self.is_slave:
            return self.broker.unfit_tables()
        if self._is_ordered:
            return ""
        return state.held or store.log.writable_but_for(HOLDER, DISK_HOLDER, LEASE_HOLDER) or ""

    # -- what is done to it -------------------------------------------------------------------------

    def joined(self, epoch: int) -> None:
        """A coordinator says that this is the newest epoch.  Raises OSError."""
        if epoch > self.kept.joined:
            self.broker.lineage.update(joined=epoch)

    def count_by(self, voters: Voters) -> None:
        self.counts = voters
        if isinstance(self.broker.ha, MasterHAService):
            self.broker.ha.count_by(voters.ids - {self.kept.replica_id}, max(1, voters.needed))

    def hold(self, why: str) -> None:
        self.broker.store.log.hold_appends(why or None, LEASE_HOLDER)
        self._is_held = bool(why)

    def seal(self, epoch: int) -> str:
        """Why the log is not sealed yet; "" if it is, durably."""
        return self._ordered(SealLog(epoch), SEAL_SECONDS)

    def doubt(self, epoch: int) -> str:
        """Writes down that our log is an older copy of itself, while `epoch` is the newest; why it cannot."""
        try:
            self.broker.lineage.update(**without_its_log(self.kept, epoch))
        except OSError as error:
            return f"it cannot be written down that the log is an older copy: {error}"
        if isinstance(self.broker.ha, SlaveHAService):
            # The link may have been greeted a moment before; only a greeting says where the log is whole again.
            self.broker.ha.leave_master()
        return ""

    def begin_epoch(self, epoch: int, until_s: float, why: str) -> str:
        """Begins an epoch, which may take a while; why it cannot."""
        trouble = self._ordered(BeginEpoch(epoch, until_s, why))
        if not trouble and self._change is not None:
            self._change.add_done_callback(self._epoch_begun)
        return trouble

    def _epoch_begun(self, change: Future[JSONBody]) -> None:
        """In the thread of the machine of roles: messages may be taken."""
        if not change.cancelled() and change.exception() is None:
            self._wake()

    def follow(self, master: Leaseholder) -> str:
        now_s = time.monotonic()
        told = (master.broker_addr, master.epoch)
        if self.is_slave and self._told[:2] == told and now_s < self._told[2] + TELL_AGAIN_SECONDS:
            return ""
        self._told = (*told, now_s)
        why = f"the coordinator says that {master.broker_addr} is the master of epoch {master.epoch}"
        return self._ordered(FollowHeader(master.broker_addr, master.ha_addr, master.epoch, why))

    def ask_promises(
        self, addrs: Mapping[str, str], epoch: int, ttl_s: float
    ) -> tuple[list[str], dict[str, str]]:
        """Which of these replicas promise to leave us the lease; by address why others do not."""
        header = LeaveLeaseHeader(epoch, int(ttl_s * 1000))
        request = RemotingCommand.request(RequestCode.LEAVE_LEASE, header.encode())

        async def ask(client: RemotingClient, addr: str) -> str:
            try:
                expect(addr, await client.invoke(addr, request, PROMISE_SECONDS))
            except (RemotingError, OSError, ValueError) as error:  # of an address that the coordinator has
                return str(error) or type(error).__name__
            return ""

        async def ask_all(client: RemotingClient) -> list[str]:
            return list(await asyncio.gather(*(ask(client, addr) for addr in addrs.values())))

        try:
            said = self.broker.peers.use(ask_all)
        except (RemotingError, OSError, ValueError) as error:  # of a client that was late to close, too
            return [], {"": str(error) or type(error).__name__}
        answers = dict(zip(addrs, said, strict=True))
        return [one for one, why in answers.items() if not why], {
            addrs[one]: why for one, why in answers.items() if why
        }

    def _ordered(self, order: ExtHeader | Order, patience_s: float = 0.0) -> str:
        """One order at a time; what became of an earlier one is told by the next."""
        before, self._change = self._change, None
        if before is not None and not before.done():
            self._change = before
            return "another change of its role is under way"
        try:
            if before is not None and (error := before.exception()) is not None:
                raise error
            self._ordered_s = time.monotonic()
            self._change = self.broker.executor.order(order)
            if patience_s:
                self._change.result(patience_s)
        except RequestError as error:
            return str(error.remark)
        except (FutureTimeout, CancelledError):
            return "no answer yet"
        except Exception as error:  # whatever ended role-keeper; its own owner logs it
            return f"the machine of roles has failed: {type(error).__name__}: {error}"
        return ""


def _reached(kept: LineageState, end: int) -> int:
    """The newest epoch whose start a log that ends at `end` has reached."""
    last = kept.lineage.up_to(end).last
    return last.number if last is not None else -1


def _told(kept: LineageState, slaves: Iterable[SlaveStatus]) -> dict[str, Mark]:
    """How far the replicas' logs have been in our epoch: of those that follow, and of those that are gone."""
    last = kept.lineage.last
    began_ms = last.began_ms if last is not None else 0
    ends = {name: one.offset for name, one in kept.replicas.items() if one.seen_ms >= began_ms}
    for one in filter(_follows, slaves):
        ends[one.replica_id] = max(one.ack, ends.get(one.replica_id, -1))
    return {name: Mark(_reached(kept, end), end) for name, end in ends.items() if end >= 0}


def _follows(slave: SlaveStatus) -> bool:
    return bool(slave.replica_id) and slave.state == MasterState.TRANSFER.value


def _follower(slave: SlaveStatus) -> Follower:
    is_level = slave.lack is None or slave.lack.why is NotInSync.NOT_COUNTED
    return Follower(slave.ack, max(0.0, (wall_clock_ms() - slave.heard_ms) / 1000), is_level)
