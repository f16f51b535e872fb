"""The same rounds with a pair of stock RocketMQ 4.9.8: what the figures of our own are to be compared with.

The faults are those that a stock pair knows: processes and links, no roles by command.  What the checker
finds is counted as a figure and fails nothing: it is a measurement of somebody else's broker.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from haservice.devtools.pair import Process
from haservice.errors import ProtocolError, RemotingError
from haservice.remoting.bodies.clients import KVTable, TopicStatsTable
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader, TopicHeader
from haservice.remoting.headers.lineage import LineageBody
from tests.chaos.proc_cluster import (
    BROKER,
    PROXY_HOST,
    QUEUES,
    SEGMENT_BYTES,
    SETTINGS,
    TOPIC,
    Cluster,
    Node,
    Shape,
)
from tests.chaos.proc_faults import LINK_FAULTS, PROCESS_FAULTS
from tests.chaos.proc_round import FAULTS, Play
from tests.chaos.proxy import LinkProxy
from tests.chaos.report import Report
from tests.interop.jars import NoStock, jars, java_command
from tests.interop.stock import write_home

LAYER = "stock"
ROUNDS_A_CLUSTER = 10
# A stock slave copies topics every 10 s, and dials every 5.
PATIENCE_S = 40.0
# Of ours, and unknown to it.
_OURS = {"bindAddress"}


def run(rounds: int, seed: int, report: Report) -> None:
    """Seeds `seed` … `seed + rounds - 1`; says why not where stock RocketMQ is not to be had."""
    try:
        jars()
    except NoStock as error:
        print(f"{LAYER}: left out, {error}")
        report.absent(LAYER, str(error))
        return
    directory = Path(tempfile.mkdtemp(prefix="chaos-stock-"))
    try:
        seeds, done = list(range(seed, seed + rounds)), 0
        while seeds:
            some = seeds[:ROUNDS_A_CLUSTER]
            played = asyncio.run(_play(directory / str(some[0]), some, report))
            done += played
            seeds = seeds[played:]
            report.progress(LAYER, done, rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def steps_of(seed: int) -> list[tuple[str, ...]]:
    rng = random.Random(f"stock {seed}")
    names = [*PROCESS_FAULTS, *LINK_FAULTS]
    return [(rng.choice(names),) for _ in range(rng.randint(*FAULTS))]


async def _play(root: Path, seeds: list[int], report: Report) -> int:
    """How many were played; a round that broke something leaves its successors a new cluster."""
    cluster = StockCluster(root, Shape())
    try:
        await cluster.start()
        play = Play(cluster)
        for count, seed in enumerate(seeds, 1):
            outcome = await play.round(seed, steps_of(seed))
            findings = outcome.findings
            report.add(LAYER, "rounds")
            report.add(LAYER, "sends", findings.sends)
            report.add(LAYER, "acknowledged messages", findings.acknowledged)
            for name, number in findings.counts.items():
                report.violation(LAYER, name, number)
            for recovery in findings.recoveries:
                report.recovery(LAYER, recovery.what, recovery.seconds)
            if outcome.level_s:
                report.recovery(LAYER, "peace until level", outcome.level_s)
            if not outcome.ok:
                report.figure(LAYER, f"seed {seed}", f"{', '.join(outcome.faults)}: {findings.verdicts[0]}")
                return count
        return len(seeds)
    finally:
        await cluster.close()


class StockProcess(Process):
    """A JVM that runs one of RocketMQ's programs."""

    def __init__(self, name: str, program: str, properties: Path, log: Path, boot_line: str) -> None:
        self.name = name
        self.log = log
        self._boot_line = boot_line
        self._output = log.open("ab")
        self._seen = log.stat().st_size
        home = log.parent / f"{name}-home"
        write_home(home)
        self.popen = subprocess.Popen(
            java_command(program, "-c", str(properties), home=home, heap_mb=512),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=log.parent,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )


class StockNode(Node):
    """A stock broker; its slave dials the proxy."""

    def launch(self, shape: Shape) -> None:
        assert not self.running, f"{self.name} runs"
        lines = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": BROKER,
            "brokerId": str(self.number),
            "brokerRole": shape.role if self.number == 0 else "SLAVE",
            "flushDiskType": shape.flush,
            "namesrvAddr": self._namesrv,
            "brokerIP1": self.ip,
            "brokerIP2": self.ip,
            "listenPort": str(self.port),
            "haListenPort": str(self.port + 1),
            "storePathRootDir": str(self.root),
            "storePathCommitLog": str(self.commitlog),
            "waitTimeMillsInSendQueue": "5000",
            "osPageCacheBusyTimeOutMills": "5000",
            "diskMaxUsedSpaceRatio": "95",
            **{key: value for key, value in SETTINGS.items() if key not in _OURS},
            **self.extra,
        }
        path = self._directory / f"{self.name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.process = StockProcess(
            self.name,
            "org.apache.rocketmq.broker.BrokerStartup",
            path,
            self._directory / f"{self.name}.log",
            "The broker[",
        )
        self.frozen = False


class StockCluster(Cluster):
    """Two stock brokers with a stock nameserver.  Who is the master, their files say."""

    def __init__(self, root: Path, shape: Shape) -> None:
        super().__init__(root, shape)
        self.nodes = [
            StockNode(root, node.number, node.ip, node.port, self.namesrv, None) for node in self.nodes
        ]

    async def start(self) -> None:
        master, slave = self.nodes
        proxy = LinkProxy((master.ip, master.port + 1))
        slave.extra["haMasterAddress"] = f"{PROXY_HOST}:{await proxy.start(PROXY_HOST)}"
        self.proxies = {master.name: proxy, slave.name: LinkProxy((slave.ip, slave.port + 1))}
        path = self.root / "namesrv.properties"
        path.write_text(
            f"listenPort={self.namesrv.rpartition(':')[2]}\nkvConfigPath={self.root}/kvConfig.json\n"
            f"configStorePath={self.root}/stored.properties\n"
        )
        self.namesrvs[0].process = StockProcess(
            "namesrv",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            path,
            self.root / "namesrv.log",
            "The Name Server boot success",
        )
        await self._booted(self.namesrvs[0].process)
        await self.run(master)
        header = CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6)
        await self.call(master.addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await self.run(slave)
        await self.until(self._slave_knows, "the slave has the topic", PATIENCE_S)
        await self.until(self.is_caught_up, "the pair is level at its start", PATIENCE_S)

    async def _slave_knows(self) -> bool:
        try:
            stats = await self.ask(
                self.nodes[1].addr, RequestCode.GET_TOPIC_STATS_INFO, TopicStatsTable, TopicHeader(TOPIC)
            )
        except (RemotingError, ProtocolError):
            return False
        return bool(stats.offset_table)

    async def lineage(self, node: Node) -> LineageBody | None:
        """As far as a stock broker says: its role by its file, and the ends of its log."""
        if not node.running or node.frozen:
            return None
        try:
            info = (await self.ask(node.addr, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)).table
            end = int(info["commitLogMaxOffset"])
        except (RemotingError, ProtocolError, KeyError, ValueError):
            return None
        role = self.shape.role if node.number == 0 else "SLAVE"
        return LineageBody(
            "DefaultCluster",
            BROKER,
            node.addr,
            "",
            node.number,
            node.number,
            role,
            "",
            SEGMENT_BYTES,
            0,
            end,
            end,
        )

    async def namesrvs_agree(self) -> bool:
        return True

    async def is_caught_up(self) -> bool:
        said = await self.lineages()
        ends = {body.log_end if body is not None else -1 for body in said.values()}
        if len(ends) != 1 or -1 in ends:
            return False
        try:
            for node in self.nodes:
                info = await self.ask(node.addr, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)
                if info.table["dispatchBehindBytes"] != "0":
                    return False
        except (RemotingError, ProtocolError):
            return False
        return True
