"""World: the nodes, the network, the clients and what the simulation knows that no node does.

    Record     one message's record: who held it ever, who flushed it, what was promised for it
    World      time, truth, history; every node tells it what it did, and is checked at once

Checked as it happens:
- within an epoch a slave's bytes are its master's, and no two records of one epoch lie at one offset (I2);
- a restart loses no record that was flushed (I4);
- the ack table's invariants hold after every report;
- a consumer is shown nothing below its level while a slave is in sync (I6).
All else is the checker's, from the history.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitlog.errors import CommitLogError
from commitlog.options import FlushDiskType
from haservice.broker.roles.state import Hint, Tick
from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.replication.lineage.epochs import of_one_promotion
from haservice.replication.master.progress import SlaveProgress
from tests.chaos import history
from tests.chaos.checker import Verdict, Violation
from tests.chaos.sim_clock import BEGIN_S, Clock
from tests.chaos.sim_link import Network
from tests.chaos.sim_node import Node

STEPS_KEPT = 400
START_AGAIN_S = 1.0
# The route that clients and slaves know is so old at most.
REGISTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Mode:
    """How the brokers of a run are configured."""

    slaves: int
    master_role: BrokerRole
    master_flush: FlushDiskType
    slave_flush: FlushDiskType
    segment_bytes: int
    in_sync_replicas: int
    read_mark: ReadMark

    @property
    def replicas(self) -> int:
        """How many copies OK means."""
        if self.master_role is not BrokerRole.SYNC_MASTER:
            return 1
        return max(2, self.in_sync_replicas)

    def __str__(self) -> str:
        return (
            f"{self.master_role.value} {self.master_flush.value},"
            f" {self.slaves} slaves {self.slave_flush.value},"
            f" inSyncReplicas {self.in_sync_replicas}, segments {self.segment_bytes},"
            f" haReadMark {self.read_mark.value}"
        ).replace("_FLUSH", "")


@dataclass(frozen=True, slots=True)
class Sight:
    """Whom an operator reaches at a moment, by name, and which life of each that is."""

    at_s: float
    lives: Mapping[str, int]


class Record:
    """One record, wherever it is copied to."""

    __slots__ = (
        *(
            "blamed",
            "data",
            "end",
            "flushed",
            "held",
            "key",
            "offset",
            "place",
            "promised",
            "replaced",
            "epoch",
            "told",
        ),
    )

    def __init__(
        self,
        key: str,
        place: tuple[str, int, int],
        offset: int,
        end: int,
        data: bytes,
        epoch: tuple[int, int, str],
    ) -> None:
        self.place = place
        self.key = key
        self.offset = offset
        self.end = end
        self.data = data
        self.epoch = epoch
        self.held: dict[str, float] = {}
        """Machines that ever held it, and since when."""
        self.flushed: dict[str, None] = {}
        """Machines on whose disk it is, of their own saying."""
        self.replaced: dict[str, None] = {}
        """Machines on whose disk it was when another one took their place: what they had said was true."""
        self.promised = False
        self.told = False
        """A SYNC_MASTER has answered OK for it."""
        self.blamed = False
        """A node has cut it off by itself while it was promised: no later fault excuses its loss."""


class World:
    """Everything of one run."""

    def __init__(self, seed: int, mode: Mode, directory: Path, source: random.Random) -> None:
        self.seed = seed
        self.mode = mode
        self.source = source
        self.clock = Clock()
        self.network = Network(self.clock, source)
        self.events: list[history.Event] = []
        self.verdicts: list[Verdict] = []
        self.registered = ""
        """The master by the nameserver's word."""
        self.registered_epoch = -1
        # Who told of that epoch first.
        self.registered_by = ""
        self.nodes: dict[str, Node] = {}
        self.clients: list[str] = []
        self.bad_records = 0
        self.bad_records_allowed = False
        self._directory = str(directory)
        self._steps: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=STEPS_KEPT)
        self._digest = 0
        self._epochs: dict[tuple[tuple[int, int, str], int], Record] = {}
        self._promises: dict[Record, None] = {}
        self.strikes: list[Callable[[Node], None]] = []
        """Faults that wait for a step of a change of role."""
        self.forced: set[str] = set()
        """Who became the master by force, so that an older one may go on beside it."""
        self.written_off: set[str] = set()
        """Whom an operator has given up at slaves, while no master answered: for the next promotion."""
        self.written_off_before: set[str] = set()
        """The same for the last one: an older master that is back may still ask these, and nobody else."""
        self.rightful = self._rightful_machine = "a"
        """The master by the operator's choice; what another one promises beside it does not count."""
        for number in range(mode.slaves + 1):
            name = "abcde"[number]
            role = BrokerRole.SLAVE if number else mode.master_role
            flush = mode.slave_flush if number else mode.master_flush
            root = directory / name
            root.mkdir(exist_ok=True)
            self.nodes[name] = Node(self, name, root, role, flush)

    # -- telling ------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.clock.now_s - BEGIN_S

    def put(self, event: history.Event) -> None:
        self.events.append(event)

    def note(self, text: str, *values: Any) -> None:
        """One step, for the trace of a run that fails."""
        values = tuple(
            value if isinstance(value, int | float) else str(value).replace(self._directory, "")
            for value in values
        )
        self._steps.append((self.now_s, text, values))
        self._digest = zlib.crc32(repr((self.clock.now_s, text, values)).encode(), self._digest)

    @property
    def digest(self) -> int:
        """Of all steps so far; two runs of one seed have the same."""
        return self._digest

    def last_steps(self, count: int = 60) -> list[str]:
        return [f"{at_s:9.4f}  {text.format(*values)}" for at_s, text, values in list(self._steps)[-count:]]

    def broken(self, violation: Violation, text: str) -> None:
        """A promise is broken now."""
        self.note("BROKEN {}: {}", violation.value, text)
        self.verdicts.append(Verdict(violation, text, self.now_s))

    # -- who is where -------------------------------------------------------------------------------

    def master_of(self, node: Node) -> Node | None:
        """The master as this slave knows it."""
        master = self.nodes.get(self.registered)
        return master if master is not node else None

    def peers_of(self, node: Node) -> list[Node]:
        """Who answers it."""
        return [
            one
            for one in self.nodes.values()
            if one is not node and one.awake and self.network.talk(node.name, one.name)
        ]

    def level_of(self, node: Node) -> history.Promised:
        """What OK of this master means."""
        sync = FlushDiskType.SYNC_FLUSH
        replicas = self.mode.replicas if node.role is BrokerRole.SYNC_MASTER else 1
        others = [one.flush_type for one in self.nodes.values() if one is not node]
        lazy = sum(flush is not sync for flush in others)
        return history.Promised(
            self.now_s,
            replicas,
            int(node.flush_type is sync) + max(0, replicas - 1 - lazy),
            node.name,
        )

    def master_started(self, node: Node) -> None:
        """It registers if it can; the nameserver keeps the newest epoch's master."""
        self.put(self.level_of(node))
        last = node.lineage.state.lineage.last
        epoch = last.number if last is not None else -1
        self.put(
            history.RoleChanged(
                self.now_s, node.name, "master", epoch, last.start if last is not None else -1
            )
        )
        self.note("{} is master, epoch {}, log {}..{}", node, epoch, node.store.log.start, node.store.log.end)
        self._may_give_again(node)
        if not self.isolated(node):
            self.register(node)

    def register(self, node: Node) -> None:
        """As the nameserver takes it: a master of an older epoch is told of the newer one.

        Each epoch is settled at once there, for all are known to it: it counts while its master is away, too.  Of
        two of which neither is the newer one, the first keeps the route while it lives.
        """
        epoch = node.last_epoch
        first = self.nodes.get(self.registered, node)
        lives = first.awake and not first.role.is_slave and not self.isolated(first)
        is_rival = of_one_promotion(epoch, self.registered_epoch)
        if first is not node and (lives if is_rival else epoch < self.registered_epoch):
            node.roles.put(Hint(self.registered))
            node.roles.put(Tick())
            return
        changed = self.registered != node.name
        self.registered = node.name
        if epoch > self.registered_epoch:
            self.registered_epoch, self.registered_by = epoch, node.name
        if changed:
            for one in self.nodes.values():
                if one.up and one.link is not None:
                    one.after(self.source.uniform(0.0, REGISTER_S), one.link.look_up_master)

    def announce(self, node: Node) -> None:
        """A master registers again, if it reaches the nameserver."""
        if node.awake and not node.role.is_slave and not self.isolated(node):
            self.register(node)

    def registrations(self) -> None:
        """Every master registers again, as it does every while."""
        for node in self.nodes.values():
            self.announce(node)
        self.clock.after(REGISTER_S, self.registrations)

    def isolated(self, node: Node) -> bool:
        """From the nameserver and the operator."""
        return not self.network.talk(node.name, "hub")

    def start_again(self, node: Node) -> None:
        """What a supervisor does."""
        if not node.up:
            node.boot()
            if not node.up:
                self.clock.after(START_AGAIN_S, self.start_again, node)

    def went_down(self, node: Node, how: str) -> None:
        self.note("{} is down: {}", node, how)
        self.put(history.RoleChanged(self.now_s, node.name, "down", why=how))

    def fenced(self, node: Node) -> None:
        """A log that takes nothing any more: somebody has to restart it."""
        self.clock.after(self.source.uniform(0.5, 2.0), self._restart_fenced, node, node.life)

    def _restart_fenced(self, node: Node, life: int) -> None:
        if node.up and node.life == life:
            self.note("{} is restarted, its log is fenced", node)
            node.crash()
            node.boot()
            if not node.up:
                self.clock.after(START_AGAIN_S, self.start_again, node)

    # -- the truth about records ----------------------------------------------------------------------

    def appended(self, node: Node, key: str, place: tuple[str, int, int], offset: int, end: int) -> Record:
        """A master has a new record."""
        last = node.lineage.state.lineage.last
        epoch = last.identity if last is not None else (0, 0, "")
        record = Record(key, place, offset, end, node.store.log.read_record(offset), epoch)
        other = self._epochs.get((epoch, offset))
        if other is not None and other.key != key:
            holders = [one.name for one in self.nodes.values() if one is not node and one.holds(other)]
            if holders:
                self.broken(
                    Violation.DIVERGED,
                    f"{node} wrote {key} at {offset} of epoch {epoch[0]}, where {', '.join(holders)}"
                    f" holds {other.key}",
                )
        self._epochs[epoch, offset] = record
        self._hold(node, record)
        return record

    def _hold(self, node: Node, record: Record) -> None:
        node.records.append(record)
        record.held[node.machine] = self.now_s

    def replicated(self, slave: Node, coming: list[Record]) -> None:
        """A slave has appended bytes; those of every whole record are to be its master's."""
        log = slave.store.log
        known = slave.records[-1].end if slave.records else log.start
        while coming and coming[0].end <= log.end:
            record = coming.pop(0)
            if record.end <= known:
                continue
            if log.read(record.offset, record.end - record.offset) != record.data:
                self.broken(Violation.DIVERGED, f"{slave} holds other bytes than its master for {record.key}")
            known = record.end
            self._hold(slave, record)

    def pulled(self, master: Node, slave: Node) -> None:
        """A master has taken back what its slave had."""
        log = master.store.log
        known = master.records[-1].end if master.records else log.start
        for record in slave.records_between(known, log.end):
            if log.read(record.offset, record.end - record.offset) != record.data:
                self.broken(Violation.DIVERGED, f"{master} took back other bytes for {record.key}")
            self._hold(master, record)
        self.note("{} took back from {} up to {}", master, slave, log.end)

    def flushed(self, node: Node) -> None:
        """Of all that a node calls flushed."""
        end = node.store.log.flushed
        for record in reversed(node.records):
            if node.machine in record.flushed:
                break
            if record.end <= end:
                record.flushed[node.machine] = None

    def cut(self, node: Node, end: int) -> None:
        """A node's log ends at `end` now, by its own doing: whatever is lost thereby is on its account."""
        while node.records and node.records[-1].end > end:
            record = node.records.pop()
            record.flushed.pop(node.machine, None)
            if record.promised:
                record.blamed = True
                self.note("{} gives up {}, which is promised", node, record.key)

    def rejoined(self, node: Node) -> None:
        """A slave has done what the greeting came to."""
        log = node.store.log
        self.cut(node, log.end)
        if log.start >= log.end:
            self.cut(node, 0)
        node.records = [one for one in node.records if one.offset >= log.start]

    def recovered(self, node: Node) -> None:
        """A node has started: what it held and holds no more, it lost by what happened to it."""
        log, lost = node.store.log, []
        while node.records and node.records[-1].end > log.end:
            lost.append(node.records.pop())
        if lost:
            self.note("{} lost {} records behind {}", node, len(lost), log.end)
        for record in lost:
            if node.machine in record.flushed:
                self.broken(
                    Violation.LOST,
                    f"{node} had flushed {record.key} up to {record.end}, and ends at {log.end}",
                )
                del record.flushed[node.machine]
        for record in node.records:
            wrong = "" if record.offset < log.start else self._wrong_bytes(node, record)
            if wrong:
                had = "had flushed" if node.machine in record.flushed else "held"
                self.broken(Violation.CORRUPT, f"{node} {had} {record.key} at {record.offset}, and {wrong}")
                break
        self._void_unheld(lost, "power cut")

    def _wrong_bytes(self, node: Node, record: Record) -> str:
        """What a node has of a record, if it is not the record."""
        try:
            same = node.store.log.read(record.offset, len(record.data)) == record.data
        except CommitLogError as error:
            return f"cannot read it: {error}"
        return "" if same else "has other bytes there"

    def wiped(self, node: Node) -> None:
        lost, node.records = node.records, []
        for record in lost:
            if node.machine in record.flushed:
                del record.flushed[node.machine]
                record.replaced[node.machine] = None
        self.note("{} has a new, empty disk", node)
        self._void_unheld(lost, "node gone")

    def has_another_log(self, node: Node, records: list[Record]) -> None:
        """An operator has put another log in a node's place: what it lacks is gone from there, flushed or not."""
        before, node.records = node.records, list(records)
        kept = set(map(id, records))
        lost = [one for one in before if id(one) not in kept]
        for record in lost:
            if node.machine in record.flushed:
                del record.flushed[node.machine]
                record.replaced[node.machine] = None
        for record in records:
            record.held.setdefault(node.machine, self.now_s)
        self.note("{} has another log, and lacks {} records", node, len(lost))
        self._void_unheld(lost, "store put back")
        # A master alone answered OK: what happens to its volume is its own affair.
        self.void([one for one in lost if one.promised and not one.told], "store put back")

    def _may_give_again(self, master: Node) -> None:
        """A master whose volume was put back begins while nobody whom it reaches has what its volume had: it gives the
        queue offsets of that to others, and whoever has it is heard later.  The messages stay promised: nothing of
        them is cut before an operator has said so.
        """
        if master.is_witness:
            return
        reached = [master, *self.peers_of(master)]
        lacked = [one for one in self._promises if master.machine in one.held]
        unknown = [one for one in lacked if not any(node.holds(one) for node in reached)]
        if unknown:
            self.put(history.Voided(self.now_s, (), "store put back", tuple(one.place for one in unknown)))

    def _nobody_knows(self, record: Record) -> bool:
        """Whether a node had it whose volume was put back, and who has not heard a master since."""
        return any(not one.is_witness and one.machine in record.held for one in self.nodes.values())

    def _void_unheld(self, lost: list[Record], why: str) -> None:
        """What nobody holds any more by the faults alone is promised no longer.

        What is flushed somewhere, by somebody's word, has to be there; what a node cut off by itself is its
        own fault.
        """
        nodes = self.nodes.values()
        self.void(
            [
                one
                for one in lost
                if one.promised
                and not one.blamed
                and not one.flushed
                and not any(n.holds(one) for n in nodes)
            ],
            why,
        )

    def void(self, records: list[Record], why: str) -> None:
        """Their promises are over."""
        if not records:
            return
        for record in records:
            record.promised = False
            self._promises.pop(record, None)
        left = {record.key for record in self._promises}
        keys = tuple(dict.fromkeys(record.key for record in records if record.key not in left))
        self.note("{}: no promise holds any more for {}", why, ", ".join(record.key for record in records))
        self.put(history.Voided(self.now_s, keys, why, tuple(record.place for record in records)))

    def promise(self, node: Node, record: Record, *, told: bool = False) -> None:
        """Somebody is told OK, or sees it."""
        record.promised = True
        record.told = record.told or (told and node.role is BrokerRole.SYNC_MASTER)
        self._promises[record] = None
        rightful = self.nodes[self.rightful]
        if node is not rightful and (
            self.rightful in self.forced
            or not record.told
            or self._is_written_off(record, node.name, self.written_off_before)
        ):
            self.void([record], "two masters")
        elif (
            node is not rightful
            and rightful.machine == self._rightful_machine
            and not rightful.holds(record)
            and rightful.up
        ):
            self.broken(
                Violation.WRONG_OK,
                f"{node} answers OK for {record.key}, which {rightful}, the master since, has never had",
            )
        elif not any(one.holds(record) for one in self.nodes.values()):
            self.void([record], "gone before it was told")

    def sight(self) -> Sight:
        """What an operator sees now."""
        seen = (one for one in self.nodes.values() if one.awake and not self.isolated(one))
        return Sight(self.now_s, {one.name: one.life for one in seen})

    def promoted(self, candidate: Node, *, forced: bool, sight: Sight) -> None:
        """It becomes the master.  By force, all that it lacks is given up.  Otherwise nothing is that a
        SYNC_MASTER answered OK for; what was only shown, or is promised by one broker alone, may have been on
        nobody whom the operator saw when he asked for it: a master that was back after all while he was at it
        has shown it, or has sent it on, since.

        One that was held up after it was pledged may begin its epoch below one that has begun meanwhile.  That one
        stays the rightful master, and what the other answers OK for is wrong.
        """
        if not forced and (newer := self._overtaken_by(candidate)):
            self.note("{} begins its epoch too late: {} knows of a newer one", candidate, newer)
            return
        before, self.rightful = self.rightful, candidate.name
        self._rightful_machine = candidate.machine
        (self.forced.add if forced else self.forced.discard)(candidate.name)
        reached = [one for one in self.nodes.values() if sight.lives.get(one.name) == one.life]
        lacked = [record for record in self._promises if not candidate.holds(record)]
        given_up = [
            record
            for record in lacked
            if forced
            or self._nobody_knows(record)
            or self._is_written_off(record, before, self.written_off)
            or (
                not record.told
                and not any(one.holds(record) and record.held[one.machine] < sight.at_s for one in reached)
            )
        ]
        self.written_off_before, self.written_off = self.written_off, set()
        self.void(given_up, "failover forced" if forced else "failover")
        for record in lacked:
            if record.promised and record.told:
                self.broken(Violation.LOST, f"{candidate} is promoted without force and lacks {record.key}")
                break

    def _is_written_off(self, record: Record, master: str, gone: set[str]) -> bool:
        """Whether it is, beside that master, with nobody but slaves that were given up."""
        others = [one for one in self.nodes.values() if one.name not in (master, *gone)]
        had = {machine[0] for machine in record.held}
        return bool(had & gone) and not any(one.holds(record) for one in others)

    def gave_way(self, node: Node, to: str) -> None:
        """A master is a slave from now on: of two of one epoch, the one that goes on is the rightful one."""
        if self.rightful == node.name and to in self.nodes:
            self.rightful, self._rightful_machine = to, self.nodes[to].machine

    def forgotten(self, master: Node, gone: Node) -> None:
        """A master waited for a replica that may have what it lost, and is told to go on without it."""
        lacked = [one for one in self._promises if gone.machine in one.held and not master.holds(one)]
        others = [one for one in self.nodes.values() if one is not gone]
        self.void([one for one in lacked if not any(n.holds(one) for n in others)], "replica forgotten")

    def _overtaken_by(self, candidate: Node) -> Node | None:
        """Who has a newer epoch in its file."""
        began = candidate.last_epoch
        newer = (one for one in self.nodes.values() if one.last_epoch > began)
        return next((one for one in newer if not of_one_promotion(one.last_epoch, began)), None)

    # -- faults at a step of a change of role -----------------------------------------------------------

    def strike(self, node: Node, step: str) -> None:
        """Before a step of a change of role: a fault, if one is due."""
        due, self.strikes = self.strikes[:1], self.strikes[1:]
        for strike in due:
            self.note("a step of a role change is struck: {} of {}", step, node)
            strike(node)

    # -- checks as it happens ---------------------------------------------------------------------------

    def answering(self, node: Node, record: Record, status: str) -> None:
        """A master is about to answer."""
        self.note("{} answers {} at {}: {}", node, record.key, record.offset, status)

    def check_acks(self, node: Node) -> None:
        if not node.up or node.role.is_slave:
            return
        try:
            node.table.check_invariants(node.store.log.end)
        except AssertionError as error:
            self.broken(Violation.WRONG_OK, f"the acks of {node} contradict each other: {error}")

    def acked(self, node: Node, slave: Node, machine: str, progress: SlaveProgress) -> None:
        """A master believes an ack: the machine that was connected has held that much of its log."""
        acked = progress.acked
        if acked is None or not slave.up:
            return
        first = progress.sent_from
        for record in reversed(node.records_between(first, acked)):
            if machine in record.held:
                break
            self.broken(
                Violation.WRONG_OK, f"{node} believes that {slave} holds {record.key} up to {record.end}"
            )
            break

    def bad_record(self, node: Node, text: str) -> None:
        """A slave refuses what its master sent."""
        self.bad_records += 1
        self.note("{} refuses a record: {}", node, text)
        if not self.bad_records_allowed:
            self.broken(Violation.DIVERGED, f"{node} was sent what is no record: {text}")

    def later(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.clock.after(delay_s, call, *args)
