"""What makes a broker come to a place where it is to break, beside restarts, switchovers and deaths.

    in each cluster        a consumer that a broker asks
    in pairs by command    a further epoch, a master that lost its log's end, one whose list lacks its successor
    in each pair           a slave that is emptied, told of a wrong master, greeted by silence, or has a damaged log
    with a coordinator     most of the coordinators are gone
    in a group             a majority is gone, and the member that is left is to lead by force

Each leaves the cluster as it was: with a master, and slaves that are in sync.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import ConsumerData, HARuntimeInfo, HeartbeatData
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import ConsumerRunningInfoHeader
from haservice.remoting.headers.clients import ViewMessageHeader
from haservice.remoting.headers.lineage import FollowHeader, PromoteHeader, ReinitHeader
from haservice.replication.lineage.file import LineageFile
from tests.chaos import auto_faults, proc_faults
from tests.chaos.proc_cluster import SEGMENT_BYTES, Cluster, Node
from tests.chaos.proc_faults import Fault, Scene, Span, a_slave
from tests.chaos.quiet_breaks import CLASSIC, COORDINATED, GROUP, KINDS, Break
from tests.chaos.quiet_still import standing_still

IN_SYNC_S = 40.0
LOST_BYTES = 4096
FORCED_S = 20.0
# A slave that has just started waits for a greeting meanwhile.
SILENT_S = 1.0
ASK_S = 2.0
GROUP_NAME = "CHAOS_ASKED"
# Of a record from an IPv4 address.
BODY_AT = 88
NO_PORT = 1


async def in_sync(cluster: Cluster) -> Node:
    """The master, once every other broker is in sync with it.  Raises NotSoInTime."""
    found: list[Node] = []

    async def all_well() -> bool:
        bodies = [await cluster.lineage(node) for node in cluster.nodes]
        if any(body is None or body.changing for body in bodies):
            return False
        master = await cluster.master()
        if master is None:
            return False
        try:
            status = await cluster.ask(master.addr, RequestCode.GET_BROKER_HA_STATUS, HARuntimeInfo)
        except (RemotingError, ProtocolError):
            return False
        found.append(master)
        return sum(slave.in_sync for slave in status.ha_connection_info) >= len(cluster.nodes) - 1

    await cluster.until(all_well, "there is a master, and each slave is in sync", IN_SYNC_S)
    return found[-1]


# -- of each cluster ---------------------------------------------------------------------------------


async def consumer_asked(scene: Scene) -> None:
    """An operator asks a broker what a consumer does; the broker asks that one."""
    master, client = await in_sync(scene.cluster), RemotingClient(connect_timeout_s=ASK_S)
    beat = HeartbeatData(GROUP_NAME, consumer_data_set=[ConsumerData(GROUP_NAME)]).encode()
    question = ConsumerRunningInfoHeader(GROUP_NAME, GROUP_NAME).encode()
    try:
        known = await client.invoke(
            master.addr, RemotingCommand.request(RequestCode.HEART_BEAT, {}, beat), ASK_S
        )
        expect(master.addr, known)
        await client.invoke(
            master.addr, RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, question), ASK_S
        )
    finally:
        await client.close()


# -- of pairs ----------------------------------------------------------------------------------------


async def slave_emptied(scene: Scene) -> None:
    """It takes everything anew from its master."""
    await in_sync(scene.cluster)
    slave = await a_slave(scene)
    await scene.cluster.call(slave.addr, RequestCode.REINIT, ReinitHeader(keep=False))
    await in_sync(scene.cluster)


async def slave_told_wrong(scene: Scene) -> None:
    """Its master notices, and tells it the truth."""
    cluster, master = scene.cluster, await in_sync(scene.cluster)
    slave, body = await a_slave(scene), await cluster.lineage(master)
    assert body is not None
    wrong = f"{slave.ip}:{NO_PORT}"
    await cluster.call(slave.addr, RequestCode.FOLLOW, FollowHeader(wrong, body.ha_addr, body.epoch, "chaos"))

    async def knows_better() -> bool:
        said = await cluster.lineage(slave)
        return said is not None and said.master_addr == master.addr

    await cluster.until(knows_better, f"{slave.name} follows {master.name} again", IN_SYNC_S)


async def slave_damaged(scene: Scene) -> None:
    """A byte of its log is another one; who reads it finds that, and it is mended from the master's log."""
    cluster, slave = scene.cluster, await a_slave(scene)
    await in_sync(cluster)
    first = min(slave.commitlog.iterdir())
    sound = _swap(first, BODY_AT, 1)
    header = ViewMessageHeader(int(first.name))

    async def is_mended() -> bool:
        """Asks again and again: who comes while it starts finds nothing."""
        try:
            await cluster.call(slave.addr, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except (RemotingError, ProtocolError):
            return False
        return _byte(first, BODY_AT) == sound

    await cluster.until(is_mended, f"the log of {slave.name} is mended", IN_SYNC_S)


async def greeted_by_silence(scene: Scene) -> None:
    """A slave starts, and calls a master that stands still."""
    cluster, master = scene.cluster, await in_sync(scene.cluster)
    slave = await a_slave(scene)
    await cluster.stop(slave)
    async with standing_still(master):
        await cluster.run(slave)
        await asyncio.sleep(SILENT_S)
    await in_sync(cluster)


def _byte(path: os.PathLike[str], at: int) -> int:
    with open(path, "rb") as file:
        file.seek(at)
        return file.read(1)[0]


def _swap(path: os.PathLike[str], at: int, bits: int) -> int:
    """Changes these bits of a byte; which it was."""
    was = _byte(path, at)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([was ^ bits]))
    return was


# -- of pairs by command -----------------------------------------------------------------------------


async def further_epoch(scene: Scene) -> None:
    """A failover to the master itself: its slave pledges, and the master begins another epoch."""
    cluster, master = scene.cluster, await in_sync(scene.cluster)
    body = await cluster.lineage(master)
    assert body is not None
    await proc_faults.promoted(cluster, master, PromoteHeader(min_epoch=body.epoch + 1, why="chaos"))
    await in_sync(cluster)


async def master_lost_its_end(scene: Scene) -> None:
    """It takes back from its slave what it has lost."""
    cluster, master = scene.cluster, await in_sync(scene.cluster)
    body = await cluster.lineage(master)
    assert body is not None
    master.kill()
    await scene.history.pulls_over()
    scene.history.void("the log's end lost")  # what no slave had, was never acknowledged
    await asyncio.to_thread(_cut, master, max(0, body.log_end - LOST_BYTES))
    await cluster.run(master)
    await in_sync(cluster)


def _cut(node: Node, end: int) -> None:
    """Its log has only zeros from there on."""
    for path in node.commitlog.iterdir():
        base = int(path.name)
        if base >= end:
            path.unlink()
        elif base + SEGMENT_BYTES > end:
            with path.open("r+b") as file:
                file.seek(end - base)
                file.write(bytes(path.stat().st_size - (end - base)))


async def list_lacks_successor(scene: Scene) -> None:
    """The old master comes back, and does not know whoever took over: that one has to prove what it says."""
    cluster, master = scene.cluster, await in_sync(scene.cluster)
    span = Span(scene, "failover to a stranger", master.name)
    master.kill()
    await proc_faults.promote_furthest(scene, master, span)
    await asyncio.to_thread(_forget_others, master)
    await cluster.run(master)
    await in_sync(cluster)
    span.healed()


def _forget_others(node: Node) -> None:
    lineage = LineageFile(node.root)
    kept = lineage.state
    last = kept.lineage.last
    assert last is not None
    members = kept.members
    for one in members.replicas.keys() - {kept.replica_id}:
        members = members.forgotten(last.number, kept.lineage.mark(last.start), one)
    lineage.update(members=members, replicas={})


# -- of groups ---------------------------------------------------------------------------------------


async def led_by_force(scene: Scene) -> None:
    """Two of three are gone; the third is told to lead, which it cannot alone."""
    cluster, master = scene.cluster, await scene.cluster.the_master()
    left = await a_slave(scene)
    gone = [node for node in cluster.nodes if node is not left]
    for node in gone:
        node.kill()

    async def is_refused() -> bool:
        """It tells of the old leader for a while."""
        try:
            header = PromoteHeader(why="chaos", force=True)
            await cluster.call(left.addr, RequestCode.PROMOTE, header, FORCED_S)
        except RemotingError as error:
            return "while there is a leader" not in str(error)
        return True

    try:
        await cluster.until(is_refused, f"{left.name} is told to lead without {master.name}", FORCED_S)
    finally:
        for node in gone:
            node.launch(cluster.shape)
    for node in gone:
        await cluster.booted(node)


# -- which one leads where ---------------------------------------------------------------------------

STIMULI: Mapping[str, Fault] = {
    "a consumer that is asked": consumer_asked,
    "a slave that is emptied": slave_emptied,
    "a slave that is told of a wrong master": slave_told_wrong,
    "a slave whose log is damaged": slave_damaged,
    "a slave that is greeted by silence": greeted_by_silence,
    "a further epoch": further_epoch,
    "a master that lost its log's end": master_lost_its_end,
    "a master whose list lacks its successor": list_lacks_successor,
    "most coordinators gone": auto_faults.kill_majority,
    "a member that is to lead by force": led_by_force,
}
LEADS: Mapping[tuple[str, str], str] = {
    (CLASSIC, "AskOne"): "a further epoch",
    (CLASSIC, "GatherPledges"): "a further epoch",
    (CLASSIC, "PLEDGE"): "a further epoch",
    (CLASSIC, "Prove"): "a master whose list lacks its successor",
    (CLASSIC, "Pull"): "a master that lost its log's end",
    (CLASSIC, "READ_LOG"): "a master that lost its log's end",
    (COORDINATED, "READ_LOG"): "a slave whose log is damaged",
    (COORDINATED, "LEAVE_LEASE"): "most coordinators gone",
    (GROUP, "lead_by_force"): "a member that is to lead by force",
    **{(kind, "call"): "a consumer that is asked" for kind in KINDS},
    **{(kind, "Empty"): "a slave that is emptied" for kind in (CLASSIC, COORDINATED)},
    **{(kind, "_no_word"): "a slave that is greeted by silence" for kind in (CLASSIC, COORDINATED)},
    **{(kind, "FOLLOW"): "a slave that is told of a wrong master" for kind in (CLASSIC, COORDINATED)},
}


def leading_to(kind: str, one: Break) -> dict[str, Fault]:
    """What comes first in a round of such a cluster, if the usual changes do not come to the place."""
    name = LEADS.get((kind, one.where))
    return {} if name is None else {name: STIMULI[name]}
