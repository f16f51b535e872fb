"""Producers and consumers of a simulation, and the operator.

    Producer    sends one message after the other, some again after an answer that was not OK
    Consumer    reads a queue from the master, up to where it may
    Operator    fails over by the tools' own reckoning of who is ahead; switches over; renews; forgets

They reach the brokers over the network of the simulation, where requests and answers may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from commitlog.kernel.records import body_crc, decode
from haservice.admin.commands.ha.ask_brokers import member_of
from haservice.admin.commands.ha.forget import replica_to_forget, who_is_told
from haservice.admin.commands.ha.replicas import only_here, with_listed
from haservice.admin.commands.ha.topology import KnownMaster, Member, Topology
from haservice.configuration.settings import BrokerRole, ReadMark
from haservice.remoting.headers.lineage import (
    FollowHeader,
    ForgetHeader,
    LineageBody,
    PromoteHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from haservice.remoting.json_body import JSONBody
from tests.chaos import history

if TYPE_CHECKING:
    from tests.chaos.sim_node import Node
    from tests.chaos.sim_world import Record, World

TOPIC = "TopicTest"
QUEUES = 3
SEND_TIMEOUT_S = 3.0
BODY_BYTES = (0, 17, 100, 400, 1000, 1000, 3000)
READ_AT_ONCE = 8
LEVEL_S = 2.0
AGAIN_S = 1.0
FOLLOW_S = 0.2


class Producer:
    """One client that sends, one message at a time."""

    def __init__(self, world: World, name: str, pause_s: float) -> None:
        self.world = world
        self.name = name
        self.pause_s = pause_s
        self.stopped = False
        self.last_ok_s = -1.0
        self._master = world.registered
        self._count = 0
        self._sends = 0
        self._open = ""
        world.later(world.source.uniform(0.0, pause_s), self._next)

    def _next(self) -> None:
        if self.stopped:
            return
        self._count += 1
        source = self.world.source
        body = source.randbytes(source.choice(BODY_BYTES) or 1)
        self._send(f"{self.name}-{self._count}", source.randrange(QUEUES), body, tries=1)

    def _send(self, key: str, queue: int, body: bytes, tries: int) -> None:
        world = self.world
        self._sends += 1
        send = f"{self.name}#{self._sends}"
        deadline_s = world.now_s + SEND_TIMEOUT_S
        world.put(
            history.Invoked(
                world.now_s, send, key, TOPIC, queue, body_crc(body), len(body), self.name, deadline_s
            )
        )
        self._open = send
        node = world.nodes.get(self._master)
        self._again = (key, queue, body, tries)
        world.later(SEND_TIMEOUT_S, self._answered, send, self._master, history.UNKNOWN, None, None)
        if node is not None and world.network.reaches(self.name, node.name):
            delay_s = world.network.delay_s(self.name, node.name)
            world.later(delay_s, self._arrived, node, send, queue, body, key)

    def _arrived(self, node: Node, send: str, queue: int, body: bytes, key: str) -> None:
        if not node.up:
            self.world.later(0.001, self._answered, send, node.name, history.UNKNOWN, None, None)
        elif not node.awake:
            node.after(0.0, self._arrived, node, send, queue, body, key)
        else:
            node.guarded(node.send, TOPIC, queue, body, key, lambda *said: self._answering(node, send, *said))

    def _answering(self, node: Node, send: str, status: str, record: Record | None) -> None:
        """The broker has said it; it may be lost on its way, and counts for those who were told only."""
        world = self.world
        held = None
        if record is not None:
            held = (tuple(record.held), (*record.flushed, *record.replaced))
            if status == history.OK:
                world.promise(node, record, told=True)
        if world.network.reaches(node.name, self.name):
            delay_s = world.network.delay_s(node.name, self.name)
            world.later(delay_s, self._answered, send, node.name, status, record, held)

    def _answered(self, send: str, node: str, status: str, record: Record | None, held: Any) -> None:
        world = self.world
        if send != self._open:
            return
        self._open = ""
        where = record.place[2] if record is not None else -1
        world.put(
            history.Answered(
                world.now_s,
                send,
                status,
                node,
                where,
                record.offset if record is not None else -1,
                held[0] if held is not None else None,
                held[1] if held is not None else None,
            )
        )
        if status == history.OK:
            assert record is not None
            self.last_ok_s = world.now_s
            if not record.promised:  # what it stood on went while the answer was under way
                world.put(
                    history.Voided(world.now_s, (record.key,), "gone before it was told", (record.place,))
                )
        else:
            self._master = world.registered
        key, queue, body, tries = self._again
        pause_s = self.pause_s * world.source.uniform(0.2, 1.8)
        if status != history.OK and tries < 3 and world.source.random() < 0.5 and not self.stopped:
            world.later(0.1 + pause_s, self._send, key, queue, body, tries + 1)
        else:
            world.later(pause_s, self._next)


class Consumer:
    """One client that reads all queues, each in order."""

    def __init__(self, world: World, name: str, pause_s: float) -> None:
        self.world = world
        self.name = name
        self.pause_s = pause_s
        self._next = dict.fromkeys(range(QUEUES), 0)
        world.later(pause_s, self._poll)

    def _poll(self) -> None:
        world = self.world
        node = world.nodes.get(world.registered)
        if (
            node is not None
            and node.awake
            and not node.role.is_slave
            and world.network.talk(self.name, node.name)
        ):
            for queue in range(QUEUES):
                node.guarded(self._read, node, queue)
        world.later(self.pause_s * world.source.uniform(0.5, 1.5), self._poll)

    def _read(self, node: Node, queue: int) -> None:
        entries = node.store.queues.get(TOPIC, queue)
        if entries is None:
            return
        # A broker that holds less corrects the consumer, as OFFSET_ILLEGAL does.
        position = min(self._next[queue], entries.max_offset)
        readable_end = node.readable_end()
        for entry in entries.read(position, READ_AT_ONCE):
            if entry.physical_offset + entry.size > readable_end:
                break
            if not entry.blank:
                self._consume(node, queue, position, entry.physical_offset)
            position += 1
        self._next[queue] = position

    def _consume(self, node: Node, queue: int, position: int, offset: int) -> None:
        world = self.world
        message = decode(node.store.log.read_record(offset))
        record = next((one for one in node.records_between(offset, offset + message.size)), None)
        below = ""
        if record is not None:
            world.promise(node, record)
            below = self._below_level(node, record)
        key = history.key_of(message)
        if message.queue_offset != position:
            below = f"at {position}, though it is number {message.queue_offset}"
        world.put(
            history.Consumed(
                world.now_s,
                key,
                message.topic,
                queue,
                position,
                body_crc(message.body),
                node.name,
                self.name,
                below,
            )
        )
        if record is not None and not record.promised:
            world.put(history.Voided(world.now_s, (key,), "two masters", (record.place,)))

    def _below_level(self, node: Node, record: Record) -> str:
        """What a SYNC_MASTER shows while slaves are in sync is on as many nodes as it promises."""
        world = self.world
        if node.role is not BrokerRole.SYNC_MASTER or world.mode.read_mark is ReadMark.OFF:
            return ""
        wanted = world.mode.replicas
        if record.end <= node.alone_end or len(record.held) >= wanted:
            return ""
        return f"held by {len(record.held)} nodes of {wanted}"


class Operator:
    """A person with the tools, who sees what they see."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.failovers = self.switchovers = self.forced = 0
        self.forgotten = self.written_off = 0

    def topology(self) -> Topology:
        """As ask_brokers gathers it."""
        members, world = [], self.world
        for node in world.nodes.values():
            if not node.awake or world.isolated(node):
                members.append(Member(node.name, trouble="does not answer"))
                continue
            members.append(member_of(node.name, 0, node.describe()))
        return Topology("broker-a", tuple(members), KnownMaster(world.registered_epoch, world.registered_by))

    def fail_over(self, *, may_force: bool, to: str = "") -> None:
        """`mqadmin failover`, to the node that loses least."""
        world = self.world
        topology = self.topology()
        candidates = [one for one in topology.members if one.answers and (not to or one.addr == to)]
        if not candidates:
            return
        losses = [(topology.loss(one.addr), one) for one in candidates]
        loss, chosen = min(
            losses, key=lambda one: (one[0].size is None, one[0].size or 0, not one[1].is_master, one[1].addr)
        )
        foreseen = loss.size != 0
        if foreseen and not may_force:
            world.note("operator: {} would lose {} {}", chosen.addr, loss.size, loss.unknown)
            return
        node = world.nodes[chosen.addr]
        world.note("operator fails over to {}, losing {} {}", node, loss.size, loss.unknown)
        epoch = topology.last_epoch + 1
        self._promote(node, epoch, force=foreseen, may_force=may_force)

    def _promote(self, node: Node, epoch: int, *, force: bool, may_force: bool) -> None:
        """What the broker refuses is forced, if it may be."""
        world = self.world

        def answered(said: JSONBody | str) -> None:
            if isinstance(said, LineageBody):
                self.failovers += 1
                self.forced += force
                world.later(FOLLOW_S, self._tell_follow, node, said.epoch)
            elif not force and may_force:
                world.note("operator: {} refuses: {}", node, said)
                world.later(AGAIN_S, self._force, node, epoch)

        header = PromoteHeader(min_epoch=epoch, why="failover by command", force=force)
        if node.awake and not world.isolated(node):
            node.after(0.001, node.requested, header, answered)

    def _force(self, node: Node, epoch: int) -> None:
        """Once it has turned."""
        self._promote(node, max(epoch, self.topology().last_epoch + 1), force=True, may_force=False)

    def _tell_follow(self, master: Node, epoch: int) -> None:
        for other in self.world.nodes.values():
            if other is not master and other.awake and not self.world.isolated(other):
                follow = FollowHeader(master.name, master.name, epoch, "failover by command")
                other.after(0.001, other.requested, follow, lambda _: None)

    def switch_over(self) -> None:
        """`mqadmin switchover`."""
        world = self.world
        master = world.nodes.get(world.registered)
        if master is None or not master.awake or master.role.is_slave or world.isolated(master):
            return
        following = master.following()
        if not following:
            return
        slave = world.source.choice(following).peer
        world.note("operator switches over from {} to {}", master, slave)

        def answered(said: JSONBody | str) -> None:
            self.switchovers += isinstance(said, SwitchoverBody)

        epoch = self.topology().last_epoch + 1
        master.after(0.001, master.requested, SwitchoverHeader(slave, int(LEVEL_S * 1000), epoch), answered)

    def forget(self, gone: Node, *, force: bool) -> None:
        """`mqadmin forget` of a replica that is down, as the command itself judges it."""
        world = self.world
        topology = with_listed(self.topology())
        try:
            replica_id = replica_to_forget(topology, gone.lineage.state.replica_id)
            told = who_is_told(topology, replica_id)
        except click.ClickException as error:
            world.note("operator does not forget {}: {}", gone, error.message)
            return
        if not force and (costs := only_here(topology, replica_id)):
            world.note("operator does not forget {}: {}", gone, costs[0])
            return
        world.note("operator forgets {} at {}", gone, ", ".join(one.addr for one in told))

        def answered(node: Node, was_slave: bool, said: JSONBody | str) -> None:
            if isinstance(said, str):
                world.note("{} does not forget {}: {}", node, gone, said)
                return
            self.forgotten += 1
            if not was_slave:
                world.forgotten(node, gone)
            else:
                self.written_off += 1
                world.written_off.add(gone.name)

        for one in told:
            node, was_slave = world.nodes[one.addr], not one.is_master
            header = ForgetHeader(replica_id)
            node.after(0.001, node.requested, header, lambda said, n=node, s=was_slave: answered(n, s, said))
