"""LeaseKeeper: the rounds with a coordinator, for one process; the task of the thread `lease-keeper`.

It outlives the node: a broker that restarts in another role keeps its session, and with it its lease.

    BrokerNode          attaches itself once it serves, and detaches before it stops
    lease-keeper        a round, a wait, a round; between two nodes it only keeps the session
    the coordinator     wakes it when the master or the settings change
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

from commitlog.log.log import wall_clock_ms
from haservice.broker.lease.figures import LeaseFigures
from haservice.broker.lease.office import Office, RunningBroker
from haservice.broker.lease.wanted import WantedSwitchover
from haservice.broker.roles.state import refused
from haservice.configuration.settings import NodeConfig
from haservice.coordination.addresses import Keys, place_of, root_of
from haservice.coordination.cluster import REQUEST, MasterRequest, Settings
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Coordinator, CoordinatorError, Transaction, outside
from haservice.coordination.decision import (
    Action,
    Alarm,
    AskPromises,
    Block,
    CountBy,
    Doubt,
    Follow,
    Promote,
    Seal,
    Serve,
)
from haservice.coordination.facts import LeaseFacts, Own
from haservice.coordination.gate import Gate, clock_s
from haservice.coordination.rounds import WATCHED, Rounds, drive
from haservice.coordination.successor import why_no_successor
from haservice.deadline import Deadline
from haservice.log_throttle import LogThrottle
from haservice.remoting.headers.lineage import SwitchoverBody, SwitchoverHeader
from haservice.service import Service
from haservice.supervisor import Supervisor
from haservice.typed_json import encode

logger = logging.getLogger(__name__)

_NUMBERS = re.compile(r"[0-9.]+")
# How long a clean stop waits for slaves that follow to have everything.
LEVEL_SECONDS = 2.0
LEVEL_LOOK_SECONDS = 0.01
# Between two nodes; then another broker may have the lease.
COMES_UP_SECONDS = 30.0
# What is asked of a coordinator at the end.
FAREWELL_SECONDS = 2.0
# How long the process waits for the thread at its end.
END_SECONDS = 5.0
# A master that goes on in a pause has no end of its lease.
LEFT_SECONDS_MAX = 1e6
# So many keys of others are named.
STRANGE_MAX = 10


class LeaseKeeper:
    """Implements Host for the rounds.  `gate` is for whoever answers OK."""

    def __init__(
        self,
        coordinator: Coordinator,
        defaults: Settings,
        where: str,
        keys: str = "",
        supervisor: Supervisor | None = None,
    ) -> None:
        self.gate = Gate()
        self.where = where
        """As haCoordinator names the coordinator."""
        self._keys = keys
        """Below what our keys lie there."""
        self._coordinator = coordinator
        self._defaults = defaults
        self._supervisor = supervisor or Supervisor()
        self._life = uuid.uuid4().hex[:12]
        self._acting = threading.Lock()  # held while an action is carried out on the office, so that it stays
        self._lock = threading.Lock()  # guards _office; taken after _acting, for a moment
        self._office: Office | None = None
        self._last: Own | None = None
        self._detached_s = math.inf
        self._rounds: Rounds | None = None
        self._woken = threading.Event()
        self._counted_s = clock_s()
        self._leaves = threading.Event()
        self._left = threading.Event()
        self._cause = ""
        self._alarm = ""
        """What an operator has to know of how this process became the master."""
        self._could_not: str | None = None
        """Of a slave, after each round: why it would not take over if its master died now."""
        self.figures = LeaseFigures()
        self._wanted = WantedSwitchover()
        self._strange: frozenset[str] = frozenset()  # keys that are none of ours, as they were told
        self._throttle = LogThrottle()
        self._failure = ""
        """Why its thread does not run."""

    def failed(self, name: str, error: BaseException) -> float | None:
        """Its thread has failed: a master answers no OK before the thread has taken the lease again."""
        self._failure = why = f"thread {name} has failed: {error!r}"
        self.gate.block(why)
        self._wanted.give_up(why)
        return self._supervisor.again(name, error)

    # -- the broker ---------------------------------------------------------------------------------

    def attach(self, broker: RunningBroker) -> None:
        """A node serves from now on.  It takes no message before a round has said so."""
        office = Office(broker, self.wake)
        office.hold("the coordinator was not asked yet")
        self.gate.block("the coordinator was not asked yet")
        with self._lock:
            self._office = office
            self._last = office.own(self._life)
        self._woken.set()

    def detach(self) -> None:
        """The node stops."""
        self.gate.block("this broker restarts")
        with self._acting, self._lock:
            self.gate.block("this broker restarts")  # what was under way may have opened it
            self._office = None
            self._detached_s = clock_s()

    def leave(self, deadline: Deadline) -> bool:
        """The node stops for good, and appends nothing more: gives the lease back, once slaves are level."""
        office = self._office
        if office is None:
            return True
        office.hold("this broker is shutting down")
        patience = Deadline(min(LEVEL_SECONDS, deadline.remaining))
        end = office.broker.store.log.end
        while office.opened >= 0 and not patience.expired:
            followers = office.own(self._life).followers.values()
            if all(one.ack >= end for one in followers):
                break
            self._leaves.wait(LEVEL_LOOK_SECONDS)
        self._leaves.set()
        self._woken.set()
        self._left.wait(min(FAREWELL_SECONDS, deadline.remaining))
        self.detach()
        return True

    # -- requests of others, in work threads ----------------------------------------------------------

    def promise(self, epoch: int, ttl_s: float) -> str:
        """Failsafe: promises our master to take no lease for so long; why not, or "" if it is promised."""
        rounds = self._rounds
        return rounds.promise(epoch, ttl_s) if rounds is not None else "this broker has just started"

    def switch_over(self, header: SwitchoverHeader) -> SwitchoverBody:
        """Asks the coordinator for a switchover, and waits for it.  Raises RequestError."""
        if self._failure:
            raise refused(self._failure)
        to = self._target(header.target)
        deadline, trouble = Deadline(header.timeout_millis / 1000), ""
        asked = self._wanted.ask(MasterRequest(to, "mqadmin switchover", wall_clock_ms()))
        self._woken.set()
        try:
            if not asked.result(max(deadline.remaining, 0.01)):
                raise refused(
                    "the coordinator has another request already, or was changed just now: try again"
                )
        except TimeoutError:
            if asked.cancel():
                raise refused(
                    f"the coordinator was not asked within {header.timeout_millis} ms: nothing was asked for"
                ) from None
            trouble = "it does not answer"
        except CoordinatorError as error:
            trouble = str(error)
        while not deadline.expired:
            seen = self._rounds.seen if self._rounds is not None else None
            if seen is not None and seen.master is not None and seen.master.replica_id == to:
                end = seen.status.end if seen.status is not None else 0
                return SwitchoverBody(seen.master.broker_addr, seen.master.epoch, end)
            time.sleep(LEVEL_LOOK_SECONDS)
        doubt = f"; the coordinator may have the request or not ({trouble})" if trouble else ""
        raise refused(
            f"not within {header.timeout_millis} ms{doubt}; mqadmin haStatus shows what comes of it"
        )

    def _target(self, addr: str) -> str:
        """The replica id of the slave to hand over to."""
        rounds, office = self._rounds, self._office
        facts = rounds.facts() if rounds is not None and office is not None else None
        if facts is None or facts.seen is None or facts.holds is None:
            raise refused("this broker does not hold the lease: ask the master")
        fits = {
            one: facts.seen.members[one].broker_addr
            for one in facts.own.followers
            if one in facts.seen.voters.ids and one in facts.seen.members
        }
        named = {one: at for one, at in fits.items() if addr in ("", at)}
        if not named:
            whom = f"{addr} is no voter" if addr else "no slave is a voter"
            raise refused(
                f"{whom} that follows this master; voters that do: {', '.join(fits.values()) or 'none'}"
            )
        return max(named, key=lambda one: facts.own.followers[one].ack)

    # -- what rounds ask ----------------------------------------------------------------------------

    def now_s(self) -> float:
        return clock_s()

    def now_ms(self) -> int:
        return wall_clock_ms()

    def own(self) -> Own:
        with self._lock:
            if self._office is not None:
                seen = self._rounds.seen if self._rounds is not None else None
                try:
                    self._office.joined(seen.epoch if seen is not None else -1)
                except OSError as error:
                    self._tell("joined", "the coordinator's epoch cannot be written down reason=%s", error)
                self._last = self._office.own(self._life)
                return self._last
        assert self._last is not None, "the rounds begin with the first node"
        # Between two nodes: nothing is served, and nobody followed.
        is_late = clock_s() > self._detached_s + COMES_UP_SECONDS
        unfit = "its broker does not come up" if is_late else self._last.member.unfit
        member = replace(self._last.member, state="restarts", unfit=unfit)
        return replace(self._last, member=member, opened=-1, follows=-1, counts=None, followers={})

    def act(self, action: Action) -> None:
        if isinstance(action, AskPromises):
            self._ask_promises(action)
            return
        with self._acting:
            office = self._office
            if isinstance(action, Block):
                self._block(office, action.why)
            elif isinstance(action, Alarm):
                self._alarm = action.text
                logger.error("this broker becomes the master, and messages may be lost why=%s", action.text)
            elif office is None:
                return
            elif isinstance(action, Serve):
                self._serve(office, action)
            elif isinstance(action, CountBy):
                office.count_by(action.voters)
            elif isinstance(action, Seal):
                self._say_trouble("seal", office.seal(action.epoch))
            elif isinstance(action, Doubt):
                logger.error(
                    "the store is an older copy of itself, it counts for no failover why=%s", action.why
                )
                self._say_trouble("doubt", office.doubt(action.epoch))
            elif isinstance(action, Follow):
                self._say_trouble("follow", office.follow(action.master))
            elif isinstance(action, Promote):
                why = "it holds the coordinator's lease"
                self._say_trouble("promote", office.begin_epoch(action.epoch, action.until_s, why))

    def _ask_promises(self, action: AskPromises) -> None:
        """With no lock: whoever is asked may be asking us."""
        rounds, office, sent_s = self._rounds, self._office, self.now_s()
        assert rounds is not None
        if office is None:
            return
        members = rounds.seen.members if rounds.seen is not None else {}
        addrs = {one: members[one].broker_addr for one in action.ids if one in members}
        promised, refusals = office.ask_promises(addrs, action.epoch, action.ttl_s)
        for one in promised:
            rounds.promised(one, sent_s)
        for one, why in refusals.items():
            self._tell(
                f"promise {one}", "no promise to leave the lease to this master addr=%s reason=%s", one, why
            )

    def _serve(self, office: Office, action: Serve) -> None:
        if office.opened != action.epoch:
            return
        if office.needed == 0 and office.counts is not None and office.counts.needed > 0:
            self._block(office, "an OK took acks of slaves until now, and the voters are about to be changed")
            return
        if office.served_epoch != action.epoch:
            office.served_epoch = action.epoch
            self.figures.promotions += 1
        if self.gate.why_shut:
            logger.warning("this master takes messages by=%s epoch=%d", self.where, action.epoch)
        self.gate.open_until(action.until_s)
        office.hold("")

    def _block(self, office: Office | None, why: str) -> None:
        if office is not None:
            if not self.gate.why_shut:
                logger.warning("this master takes no messages reason=%s", why)
            office.hold(why)
        self.gate.block(why)

    # -- the thread ---------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        while self._last is None and not stop.is_set():  # for the first node
            self._woken.wait()
            self._woken.clear()
        if stop.is_set():
            return
        # If the thread runs again its sessions have other names: one of before may not be over.
        self._life = uuid.uuid4().hex[:12]
        self._rounds = rounds = Rounds(self, self._life, self._defaults)
        self._left.clear()
        self._failure = ""
        try:
            with outside("a watch is set"):
                self._coordinator.watch(WATCHED, self._woken.set, self._supervisor.always)
            self._go_round(rounds, stop)
            if self._leaves.is_set():
                self.gate.block("this broker is shutting down")
                with contextlib.suppress(CoordinatorError, ValueError):
                    drive(rounds.farewell(), self._coordinator)
        finally:
            self.gate.block("thread lease-keeper does not run")  # before the lease is given back
            try:
                with contextlib.suppress(CoordinatorError), outside("it is left"):
                    self._coordinator.close()
            finally:
                self._left.set()
        stop.wait()  # a broker that has left takes its time to stop

    def _go_round(self, rounds: Rounds, stop: threading.Event) -> None:
        while not stop.is_set() and not self._leaves.is_set():
            self._woken.clear()
            began_s = clock_s()
            pause_s = drive(rounds.round(), self._coordinator)
            self._count(clock_s() - began_s)
            self._look_ahead(rounds)
            self._say_why()
            self._say_strange(rounds)
            self._pass_on_request()
            if not self._leaves.is_set():
                self._woken.wait(pause_s)

    def wake(self) -> None:
        """A round comes soon.  Any thread may call it."""
        self._woken.set()

    def _pass_on_request(self) -> None:
        """Writes the switchover that was asked for to the coordinator; the next round reads it there."""
        if (wanted := self._wanted.take()) is None:
            return
        request, asked = wanted
        seen = self._rounds.seen if self._rounds is not None else None
        is_free = seen is not None and seen.request is None
        try:
            with outside("a switchover is asked for"):
                put = Transaction({REQUEST: 0}, {REQUEST: encode(request)})
                asked.set_result(is_free and self._coordinator.commit(put))
        except CoordinatorError as error:
            asked.set_exception(error)
        self._woken.set()

    def _count(self, round_s: float) -> None:
        figures, now_s, rounds = self.figures, clock_s(), self._rounds
        figures.round_s = round_s
        figures.failed_rounds += rounds is not None and not rounds.is_fresh
        since_s, self._counted_s = self._counted_s, now_s
        if self._last is not None and self._last.opened >= 0 and self.gate.why_shut:
            figures.blocked_s += now_s - since_s

    def _look_ahead(self, rounds: Rounds) -> None:
        facts = rounds.facts()
        self._could_not = why_no_successor(facts, rounds.trouble) if facts.own.opened < 0 else None

    def shown(self) -> LeaseFigures:
        """The figures, with what is so now."""
        rounds, until_s = self._rounds, self.gate.until_s
        seen = rounds.seen if rounds is not None else None
        return replace(
            self.figures,
            left_s=min(max(until_s - clock_s(), 0.0), LEFT_SECONDS_MAX),
            voters=len(seen.voters.ids) if seen is not None else 0,
            has_trouble=rounds is not None and bool(rounds.trouble),
            could_take_over=None if self._could_not is None else not self._could_not,
        )

    def gauges(self) -> dict[str, str]:
        """Entries for request 28."""
        rounds = self._rounds
        if rounds is None or self._last is None:
            return {"leaseCoordinator": self.where, "leaseState": "not asked yet", "leaseWhyNot": ""}
        facts, figures = rounds.facts(), self.figures
        seen = facts.seen
        master = seen.master if seen is not None else None
        voters = sorted(seen.voters.ids) if seen is not None else []
        members = seen.members if seen is not None else {}
        state = self.gate.why_shut if facts.own.opened >= 0 else facts.own.member.state
        paused = ", failover is paused" if facts.settings.paused else ""
        return {
            "leaseCoordinator": self.where,
            "leaseKeys": self._keys,
            "leaseIsRead": str(rounds.is_read).lower(),
            "leaseTrouble": rounds.trouble,
            "leaseCouldNot": self._could_not or "",
            "leaseServesBy": self._serves_by(facts),
            "leaseState": f"{state or 'takes messages'}{paused}",
            "leaseWhyNot": rounds.why,
            "leaseAlarm": self._alarm if facts.own.opened >= 0 else "",
            "leaseMaster": f"{master.broker_addr} epoch {master.epoch}" if master is not None else "",
            "leaseSecondsLeft": f"{self.shown().left_s:.1f}",
            "leaseTakenNotBefore": f"{max(facts.promised_until_s - facts.now_s, 0.0):.1f}",
            "leaseVoters": ", ".join(
                members[one].broker_addr if one in members else one[:8] for one in voters
            ),
            "leaseAcksNeeded": str(seen.voters.needed) if seen is not None else "",
            "leasePromotions": str(figures.promotions),
            "leaseBlockedSeconds": f"{figures.blocked_s:.1f}",
            "leaseRoundMillis": f"{figures.round_s * 1000:.1f}",
            "leaseFailedRounds": str(figures.failed_rounds),
        }

    def _serves_by(self, facts: LeaseFacts) -> str:
        """Of a master that takes messages: what lets it."""
        if facts.own.opened < 0 or self.gate.why_shut:
            return ""
        if facts.goes_on:
            return "pause"
        return "lease" if facts.now_s < facts.lease_until_s else "failsafe"

    # -- what is said -------------------------------------------------------------------------------

    def _say_why(self) -> None:
        """Why this broker is not the master, whenever that changes."""
        assert self._rounds is not None
        why = self._rounds.why
        cause = _NUMBERS.sub("", why)  # seconds that are left are no news
        if cause != self._cause and self._throttle.ready(("why", cause)):
            logger.info(
                "by=%s this broker is %s",
                self.where,
                f"not the master reason={why}" if why else "the master",
            )
        self._cause = cause

    def _say_strange(self, rounds: Rounds) -> None:
        """Keys that are none of ours, once."""
        strange = frozenset(rounds.seen.strange if rounds.seen is not None else ())
        if new := sorted(strange - self._strange):
            some = ", ".join(new[:STRANGE_MAX])
            self._tell(
                "strange", "keys are left alone, they are none of ours below=%s keys=%s", self._keys, some
            )
        self._strange = strange

    def _say_trouble(self, what: str, why: str) -> None:
        if why:
            self._tell(what, "%s reason=%s", f"{what}: not done yet", why)

    def _tell(self, cause: str, text: str, *values: object) -> None:
        if self._throttle.ready(cause):
            logger.warning(text, *values)


def keeper_of(config: NodeConfig, supervisor: Supervisor) -> LeaseKeeper | None:
    """None without haCoordinator.  The coordinator is not asked anything yet.  Raises CoordinatorMissing."""
    said, broker = config.coordinator, config.broker
    if said.address is None or not said.is_set:
        return None
    keys = Keys(said.user, said.password or "", said.trust, said.certificate, said.key)
    place = place_of(said.address)
    coordinator = coordinator_at(place, broker.cluster_name, broker.broker_name, keys)
    root = root_of(place, broker.cluster_name, broker.broker_name)
    settings = Settings(said.lease_ttl_s, said.loop_wait_s, said.max_loss_bytes, said.failsafe)
    return LeaseKeeper(coordinator, settings, said.address, root, supervisor)


@contextlib.contextmanager
def lease_of(node_config: NodeConfig, supervisor: Supervisor) -> Iterator[LeaseKeeper | None]:
    """The process's part in failover by a coordinator; it outlives the nodes, which have one role each."""
    keeper = keeper_of(node_config, supervisor)
    if keeper is None:
        yield None
        return
    service = Service("lease-keeper", keeper, on_failure=keeper.failed)
    service.start()
    try:
        yield keeper
    finally:
        service.stop(Deadline(END_SECONDS))
