"""Brokers whose log a majority agrees on (DLedger), as a cluster; and how their logs are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commitlog.dledger.scan import EntryWalk, holds_record
from commitlog.kernel.records import StoredMessage, decode
from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import KVTable, TopicConfigWrapper
from haservice.remoting.codes import RequestCode
from tests.chaos.netns import Hosts
from tests.chaos.proc_cluster import BROKER, TOPIC, Cluster, Node, Shape

TOLD_S = 30.0


class GroupCluster(Cluster):
    """All brokers are members of one group."""

    disk_mb = 1024
    """A member's index alone takes 160 MiB, and one whose disk is full to 90 % does not lead."""

    def __init__(self, root: Path, shape: Shape, hosts: Hosts | None = None) -> None:
        super().__init__(root, shape, hosts)
        peers = ";".join(f"{node.name}-{node.ip}:{node.port - 1}" for node in self.nodes)
        for node in self.nodes:
            node.log_directory = f"dledger-{node.name}/data"
            node.extra = {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": BROKER,
                "dLegerPeers": peers,
                "dLegerSelfId": node.name,
            }

    @property
    def majority(self) -> int:
        return len(self.nodes) // 2 + 1

    async def start_brokers(self) -> None:
        """All at once, for one alone waits for a majority.  Slaves copy topics when they look next."""
        for node in self.nodes:
            node.launch(self.shape)
        for node in self.nodes:
            await self.booted(node)
        await self.create_topics(await self.the_master())
        await self.until(self._are_told, "every broker has the topic", TOLD_S)

    async def _are_told(self) -> bool:
        try:
            for node in self.nodes:
                said = await self.ask(node.addr, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigWrapper)
                if TOPIC not in said.topic_config_table:
                    return False
        except (RemotingError, ProtocolError):
            return False
        return True

    async def term(self) -> int:
        """The newest that any broker knows."""
        return max(
            (body.group_epoch for body in (await self.lineages()).values() if body is not None), default=0
        )

    async def is_caught_up(self) -> bool:
        """Also that every member has the leader's last entry, and knows it to be committed."""
        return await super().is_caught_up() and len({await self._entries(node) for node in self.nodes}) == 1

    async def _entries(self, node: Node) -> tuple[str, ...]:
        try:
            info = await self.ask(node.addr, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)
        except (RemotingError, ProtocolError):
            return (node.name,)
        committed, end = info.table["dLegerCommittedIndex"], info.table["dLegerEndIndex"]
        return (end,) if committed == end else (node.name,)


def entry_messages(data: bytes, start: int, file_bytes: int) -> Iterator[StoredMessage]:
    """The records in entries of `data`, which begins at `start`, that of an entry.  Raises ValueError where none is."""
    view = memoryview(data)
    walk = EntryWalk(
        lambda offset, size: bytes(view[offset - start : offset - start + size]), file_bytes, start
    )
    end = start + len(data)
    for found in walk.over(end):
        if not holds_record(found.body):
            raise ValueError(f"no record in the entry at {found.head.position}")
        message = decode(bytes(found.body), 0)
        if message.physical_offset != found.record_offset:
            raise ValueError(f"record at {found.record_offset} says that it is at {message.physical_offset}")
        yield message
    if walk.position != end:
        raise ValueError(f"no entry at {walk.position}: {walk.reason or 'zeros'}")
