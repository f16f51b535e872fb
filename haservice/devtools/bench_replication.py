"""scripts/bench_replication: what the pair costs on this machine, each row beside a baseline of its run.

    catch-up of a fresh slave      against  a bare sendfile → recv → pwrite of the same bytes, files fresh
                                   and      the native loops of a master and a slave, with nothing around them
    the same over haSecurePort     against  haListenPort
    SYNC_MASTER, 64 in flight      against  ASYNC_MASTER with the same slave and client
    one in flight, p50             against  ASYNC_MASTER again: what a round trip to the slave adds
    our own client, 128 in flight, SYNC_MASTER, messages a second
    a cut connection, a restarted slave, an idle pair, memory under load: seconds and megabytes

Real processes on loopback, as `pair.py` starts them; stores fresh in every round; medians of the rounds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import psutil

from commitlog.kernel import native
from commitlog.kernel.records import NewMessage, encode_host, encode_properties
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.devtools.bare_copy import PAGE_BYTES, bare_copy, checked_copy, touched_memory, written
from haservice.devtools.pair import ScratchPair
from haservice.devtools.relay import Relay
from haservice.remoting.bodies.clients import HARuntimeInfo
from haservice.remoting.client import BlockingClient, RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader
from haservice.remoting.tls import self_signed
from haservice.terminal.options import CONTEXT, version_option

TOPIC = "bench"
STORE_HOST = encode_host("127.0.0.1", 10911)
FILL_GROUP = 64
LOOK_SECONDS = 0.01
# A catch-up takes less than half a second.
WATCH_SECONDS = 0.001
COPIES_PER_ROUND = 4
PATIENCE_SECONDS = 120.0
BASELINES = {"bare": bare_copy} | ({"loops": checked_copy} if native.core is not None else {})
WARM_UP = 2000
IDLE_SECONDS = 20.0


class Load(NamedTuple):
    """What one run of sends measured."""

    per_second: float
    p50_ms: float
    p99_ms: float
    not_ok: int


@click.command(context_settings=CONTEXT)
@version_option
@click.option("--gib", default=1.0, show_default=True, help="Gigabytes of log for the catch-up row.")
@click.option("--count", default=60_000, show_default=True, help="Messages in each row of sends.")
@click.option("--body", "body_bytes", default=1024, show_default=True, help="Bytes of body in each message.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; a row shows the median.")
@click.option(
    "--only",
    multiple=True,
    help="Only rows whose name starts so: catch-up, secure, sends, cut, restart, idle.",
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where the stores go.")
def main(
    gib: float, count: int, body_bytes: int, rounds: int, only: tuple[str, ...], directory: Path | None
) -> None:
    """Measures replication between two real brokers here, against bare system calls and against itself."""
    bench = ReplicationBench(int(gib * (1 << 30)), count, body_bytes, rounds, directory)
    rows = {
        "catch-up": bench.catch_up,
        "secure": bench.secure_catch_up,
        "sends": bench.sends,
        "cut": bench.cut,
        "restart": bench.restart,
        "idle": bench.idle,
    }
    for name, measure in rows.items():
        if not only or name.startswith(only):
            measure()


class ReplicationBench:
    """The rows; each prints itself."""

    def __init__(
        self, log_bytes: int, count: int, body_bytes: int, rounds: int, directory: Path | None
    ) -> None:
        self._log_bytes = log_bytes
        self._count = count
        self._body = os.urandom(body_bytes)
        self._rounds = rounds
        self._directory = directory
        # One segment holds the whole log: the classic wire sends a new slave the last segment only.
        self._segment_bytes = max(1 << 30, -(-log_bytes * 9 // 8 // 4096) * 4096)

    def catch_up(self) -> None:
        """All in turn, each with memory touched right before, after one unmeasured round.

        Each ratio is of one round's two rates: what disturbs the machine for seconds disturbs both.
        """
        rates: dict[str, list[float]] = {"bare": [], "loops": [], "ours": []}
        cpu: list[tuple[float, float]] = []
        with self._pair(mappedFileSizeCommitLog=str(self._segment_bytes)) as pair:
            end = self._fill(pair.store("broker-a"))
            pair.start_master()
            segment = pair.store("broker-a") / "commitlog" / f"{0:020d}"
            for _ in range(COPIES_PER_ROUND * self._rounds + 1):
                for name, copy in BASELINES.items():
                    touched_memory(self._segment_bytes).close()
                    rates[name].append(copy(segment, pair.root / name, end))
                    (pair.root / name).unlink()
                rates["ours"].append(self._catch_up_once(pair, end, pair.ha_port(), cpu))
        del cpu[0]
        measured = {name: column[1:] for name, column in rates.items() if column}
        click.echo(f"catch-up of {self._log_bytes / (1 << 30):g} GiB of {len(self._body)} B messages, MB/s:")
        for name, choose in (("median", statistics.median), ("best", max)):
            shown = "   ".join(f"{who} {choose(column) / 1e6:>7,.0f}" for who, column in measured.items())
            click.echo(f"  {name:<8} {shown}")
        for who, base in (("loops", "bare"), ("ours", "bare"), ("ours", "loops")):
            if who in measured and base in measured:
                pairs = zip(measured[who], measured[base], strict=True)
                low, middle, high = statistics.quantiles(rate / other for rate, other in pairs)
                click.echo(
                    f"  {who}/{base}, round by round: {middle:.2f}, half of them {low:.2f} to {high:.2f}"
                )
        user_s, system_s = (statistics.median(column) for column in zip(*cpu, strict=True))
        click.echo(f"  CPU of the slave, s per GiB: {user_s:.2f} user, {system_s:.2f} in the kernel")

    def secure_catch_up(self) -> None:
        """Plain and TLS in turn, after one unmeasured round."""
        rates: dict[int, list[float]] = {}
        with self._pair(mappedFileSizeCommitLog=str(self._segment_bytes)) as pair:
            end = self._fill(pair.store("broker-a"))
            cert, key = map(str, self_signed(pair.root))
            plain = pair.ha_port()
            secure = plain - 2
            tls = {
                "haSecurePort": str(secure),
                "haSecureCertPath": cert,
                "haSecureKeyPath": key,
                "haSecureTrustCertPath": cert,
            }
            pair.start_master(**tls)
            for _ in range(2 * self._rounds + 1):
                for port, settings in ((plain, {}), (secure, {**tls, "haSecureMaster": "true"})):
                    rates.setdefault(port, []).append(self._catch_up_once(pair, end, port, [], **settings))
        click.echo(f"catch-up of {self._log_bytes / (1 << 30):g} GiB over haSecurePort, MB/s:")
        for name, choose in (("median", statistics.median), ("best", max)):
            base, rate = choose(rates[plain][1:]) / 1e6, choose(rates[secure][1:]) / 1e6
            click.echo(f"  {name:<8} plain {base:>6,.0f}   TLS {rate:>8,.0f}   TLS/plain {rate / base:.2f}")

    def _catch_up_once(
        self,
        pair: ScratchPair,
        end: int,
        port: int,
        cpu: list[tuple[float, float]],
        **settings: str,
    ) -> float:
        """Bytes a second from the first to the last bytes in the log of a fresh slave, which is then removed.

        It watches the slave's file: a slave that answers questions receives less.  `cpu` gets the slave's CPU
        seconds for each GiB, as user and in the kernel.
        """
        memory = touched_memory(self._segment_bytes)
        pair.start_slave(haMasterAddress=f"127.0.0.1:{port}", **settings)
        slave = psutil.Process(pair.processes["broker-a-s"].pid)
        segment = pair.store("broker-a-s") / "commitlog" / f"{0:020d}"
        until(segment.exists, f"catch-up: {segment} is not there")
        memory.close()
        fd = os.open(segment, os.O_RDONLY)
        try:
            until(lambda: written(fd, 0, end) > 0, f"catch-up: {segment} stays empty", WATCH_SECONDS)
            first, began, before = written(fd, 0, end), time.perf_counter(), slave.cpu_times()
            until(
                lambda: written(fd, end - PAGE_BYTES, end) == end,
                f"catch-up: {segment} is not written up to {end}",
                WATCH_SECONDS,
            )
            seconds, after = time.perf_counter() - began, slave.cpu_times()
        finally:
            os.close(fd)
        gib = max(end - first, 1) / (1 << 30)
        cpu.append(((after.user - before.user) / gib, (after.system - before.system) / gib))
        pair.processes["broker-a-s"].kill()
        shutil.rmtree(pair.store("broker-a-s"))
        return (end - first) / seconds

    def sends(self) -> None:
        loads: dict[tuple[str, int], list[Load]] = {}
        megabytes: dict[str, float] = {}
        for _ in range(self._rounds):
            for role in ("ASYNC_MASTER", "SYNC_MASTER"):
                with self._pair(role) as pair:
                    pair.start()
                    for in_flight in (1, 64, 128):
                        count = self._count if in_flight > 1 else min(self._count, 5000)
                        loads.setdefault((role, in_flight), []).append(
                            asyncio.run(drive(pair.master_addr, self._body, in_flight, count))
                        )
                    for name in ("broker-a", "broker-a-s"):
                        megabytes[name] = max(megabytes.get(name, 0.0), private_mb(pair.processes[name].pid))
        middle = {key: median_load(rounds) for key, rounds in loads.items()}
        click.echo(
            f"{f'sends of {len(self._body)} B':<18}{'ASYNC_MASTER':>36}{'SYNC_MASTER':>36}{'SYNC/ASYNC':>12}"
        )
        for in_flight in (1, 64, 128):
            slower, faster = middle["SYNC_MASTER", in_flight], middle["ASYNC_MASTER", in_flight]
            ratio = slower.per_second / faster.per_second
            click.echo(f"{f'{in_flight} in flight':<18}{show(faster):>36}{show(slower):>36}{ratio:>12.2f}")
        added = middle["SYNC_MASTER", 1].p50_ms - middle["ASYNC_MASTER", 1].p50_ms
        click.echo(f"one in flight: SYNC_MASTER adds {added:.3f} ms to the p50")
        click.echo(
            "memory under load, page cache aside: "
            + ", ".join(f"{n} {mb:.0f} MB" for n, mb in megabytes.items())
        )

    def cut(self) -> None:
        """Cuts the link; shows how long a new message takes to reach the slave, and its send's answer."""
        gaps = []
        with self._pair() as pair:
            pair.start_nameserver()
            pair.start_master()
            with Relay(pair.ha_port()) as relay, BlockingClient() as client:
                pair.start_slave(haMasterAddress=f"127.0.0.1:{relay.port}")
                until(
                    lambda: not asyncio.run(drive(pair.master_addr, self._body, 1, 10)).not_ok,
                    f"cut: the slave at {pair.slave_addr} does not follow, sends to {pair.master_addr} are not OK",
                )
                not_ok = 0
                for _ in range(self._rounds * 5):
                    relay.cut()
                    began = time.perf_counter()
                    answer = client.call(pair.master_addr, send_command(self._body), 10.0)
                    gaps.append((time.perf_counter() - began) * 1000)
                    not_ok += answer.code != 0
        click.echo(
            f"cut connection, then one SYNC_MASTER send: median {statistics.median(gaps):.0f} ms, "
            f"worst {max(gaps):.0f} ms, sends not OK {not_ok} of {len(gaps)}"
        )

    def restart(self) -> None:
        times = []
        with self._pair() as pair:
            pair.start()
            asyncio.run(drive(pair.master_addr, self._body, 64, self._count))
            with BlockingClient() as client:
                for _ in range(self._rounds):
                    pair.processes["broker-a-s"].stop()
                    drive_async = asyncio.run(drive(pair.master_addr, self._body, 64, 5000))
                    assert drive_async.not_ok
                    end = log_end(client, pair.master_addr)
                    began = time.perf_counter()
                    pair.start_slave()
                    until(
                        lambda end=end: log_end(client, pair.slave_addr) >= end,  # type: ignore[misc]
                        f"restart: the slave at {pair.slave_addr} does not reach {end}",
                    )
                    times.append(time.perf_counter() - began)
        click.echo(
            f"slave restarted, from start of the process to level: median {statistics.median(times):.2f} s"
        )

    def idle(self) -> None:
        with self._pair() as pair:
            pair.start()
            asyncio.run(drive(pair.master_addr, self._body, 64, 5000))
            processes = {
                name: psutil.Process(pair.processes[name].pid)
                for name in ("broker-a", "broker-a-s", "namesrv")
            }
            before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
            time.sleep(IDLE_SECONDS)
            used = {name: sum(process.cpu_times()[:2]) - before[name] for name, process in processes.items()}
        shares = ", ".join(f"{name} {seconds / IDLE_SECONDS:.2%}" for name, seconds in used.items())
        click.echo(f"idle for {IDLE_SECONDS:g} s, of one core each: {shares}")

    def _fill(self, root: Path) -> int:
        """Writes the master's log without a broker; returns its end."""
        properties = encode_properties({"UNIQ_KEY": "7F0000010A5B18B4AAC20000000A0000", "WAIT": "true"})
        store = Store.open(LogOptions(root=root, segment_bytes=self._segment_bytes), store_host=STORE_HOST)
        group = [NewMessage(TOPIC, 0, self._body, properties, born_host=STORE_HOST)] * FILL_GROUP
        while store.log.end < self._log_bytes:
            store.log.append_many(group)
        end = store.log.end
        store.close(clean=True)
        return end

    @contextmanager
    def _pair(self, role: str = "SYNC_MASTER", **settings: str) -> Iterator[ScratchPair]:
        root = Path(tempfile.mkdtemp(prefix="bench-replication-", dir=self._directory))
        try:
            with ScratchPair(root, role, settings) as pair:
                yield pair
        finally:
            shutil.rmtree(root)


async def drive(addr: str, body: bytes, in_flight: int, count: int) -> Load:
    """Sends `count` messages, `in_flight` of them at any time, after a warm-up."""
    client = RemotingClient()
    try:
        await _drive(client, addr, body, in_flight, min(count, WARM_UP))
        began = time.perf_counter()
        times, not_ok = await _drive(client, addr, body, in_flight, count)
        seconds = time.perf_counter() - began
    finally:
        await client.close()
    times.sort()
    return Load(count / seconds, times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000, not_ok)


async def _drive(
    client: RemotingClient, addr: str, body: bytes, in_flight: int, count: int
) -> tuple[list[float], int]:
    numbers = iter(range(count))
    times: list[float] = []
    not_ok = 0

    async def worker() -> None:
        nonlocal not_ok
        for _ in numbers:
            began = time.perf_counter()
            answer = await client.invoke(addr, send_command(body), 30.0)
            times.append(time.perf_counter() - began)
            not_ok += answer.code != 0

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return times, not_ok


def send_command(body: bytes) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, dict(_EXT), body)


_EXT = SendMessageHeader(
    producer_group="bench",
    topic=TOPIC,
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=0,
    sys_flag=0,
    born_timestamp_ms=1_700_000_000_000,
    flag=0,
    properties="UNIQ_KEY\x017F0000010A5B18B4AAC20000000A0000\x02WAIT\x01true",
).encode(RequestCode.SEND_MESSAGE_V2)


def until(condition: Callable[[], bool], what: str, look_s: float = LOOK_SECONDS) -> None:
    """Polls `condition`.  At the deadline raises click.ClickException, which says that `what` is not so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            raise click.ClickException(f"{what}, for {PATIENCE_SECONDS:g} s now")
        time.sleep(look_s)


def log_end(client: BlockingClient, addr: str) -> int:
    """Where the log of a broker ends; 907 is the cheapest request for that."""
    answer = expect(addr, client.call(addr, RemotingCommand.request(RequestCode.GET_BROKER_HA_STATUS)))
    info = HARuntimeInfo.decode(answer.body)
    slave = info.ha_client_runtime_info
    return info.master_commit_log_max_offset if slave is None else slave.max_offset


def median_load(rounds: list[Load]) -> Load:
    return Load(
        statistics.median(load.per_second for load in rounds),
        statistics.median(load.p50_ms for load in rounds),
        statistics.median(load.p99_ms for load in rounds),
        max(load.not_ok for load in rounds),
    )


def show(load: Load) -> str:
    suffix = f", {load.not_ok} not OK" if load.not_ok else ""
    return f"{load.per_second:,.0f}/s p50 {load.p50_ms:.2f} p99 {load.p99_ms:.1f} ms{suffix}"


def private_mb(pid: int) -> float:
    """Resident memory without mapped files: what the process itself holds."""
    memory = psutil.Process(pid).memory_info()
    return float(memory.rss - memory.shared) / 1e6


if __name__ == "__main__":
    main()
