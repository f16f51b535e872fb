"""Stock RocketMQ and this project under the same stock Java clients, on the same machine, in turn.

    scripts/bench_vs_rocketmq [--rounds N] [--seconds S] [--warm S] [--only sends|consume|catch-up] [--floor]

A round starts a fresh pair of one kind, warms it and the clients up, measures every cell, and stops it; then
the other kind has its turn.  One Java process holds the clients throughout, so both kinds meet the same warm
clients.  Everything shares this machine's cores, the clients too: ratios are what counts.  A cell's figure is
the median of its rounds.  With --floor the least that any pair has to do has its turn as well (bare_broker.c):
its rate is the ceiling that client, kernel and machine set, its CPU the floor.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import psutil

from commitlog.kernel.records import NewMessage, encode_host
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.devtools.bench_replication import private_mb
from haservice.remoting.bodies.clients import KVTable
from haservice.remoting.client import BlockingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.terminal.options import version_option
from tests.interop.bare import BarePair, compiled
from tests.interop.jars import java_command
from tests.interop.stock import KINDS, StockBroker, broker, nameserver

MODES = ("ASYNC_MASTER", "SYNC_MASTER")
SIZES = (128, 1024, 16 * 1024)
THREADS = (1, 16, 64)
TOPIC, TOPIC_QUEUES = "BenchmarkTest", 1024
BARE = "bare"
CONSUMED = 200_000
SEGMENT_BYTES = (1 << 31) - 4096  # the largest file that Java maps
FILL_BATCH = 512
PATIENCE_SECONDS = 180.0
LOOK_SECONDS = 0.005
INSIDE_LAST_BODY = 512

# RocketMQ's own, where the tests' brokers have small ones.
DEFAULT_SIZES = {
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "haSendHeartbeatInterval": 5000,
}

Cell = tuple[str, int, int]


class Load(NamedTuple):
    """One measurement of sends; CPU in microseconds per message, memory without mapped files."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    not_ok: int
    failed: int


class Clients:
    """The Java process with the clients: see java/Bench.java for what it is asked."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._log = (directory / "clients.log").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def ask(self, *words: object) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        # Libraries of the clients may print to stdout, too.
        for line in self._process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "ok":
                return [int(word) for word in rest.split()]
            if kind == "error":
                raise click.ClickException(f"{' '.join(map(str, words))}: {rest}")
        raise click.ClickException(f"the clients' process ended, see {self._log.name}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Pair:
    """A nameserver, a master and a slave of one kind, fresh; `with` starts and ends them."""

    def __init__(self, kind: str, mode: str, directory: Path, segment_bytes: int = 1 << 30) -> None:
        sizes = {**DEFAULT_SIZES, "mappedFileSizeCommitLog": segment_bytes}
        self.nameserver = nameserver(kind, directory)
        self.master = broker(kind, directory, namesrv=self.nameserver, role=mode, **sizes)
        self.slave = broker(kind, directory, namesrv=self.nameserver, role="SLAVE", broker_id=1, **sizes)
        for one in (self.master, self.slave):
            if isinstance(one, StockBroker):
                one.flags = ()  # it is to compile with all it has

    def __enter__(self) -> Pair:
        for one in (self.nameserver, self.master, self.slave):
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self.slave, self.master, self.nameserver):
            one.kill()

    def cpu_s(self) -> float:
        times = [psutil.Process(one.pid).cpu_times() for one in (self.master, self.slave)]
        return sum(one.user + one.system for one in times)

    def memory_mb(self) -> float:
        """Of the larger of the two brokers."""
        return max(private_mb(one.pid) for one in (self.master, self.slave))


class Bench:
    def __init__(
        self,
        clients: Clients,
        directory: Path,
        rounds: int,
        seconds: float,
        warm_seconds: float,
        floor: Path | None,
    ) -> None:
        """`floor` is the compiled bare broker, if that is to be measured, too."""
        self._clients = clients
        self._floor = floor
        self._directory = directory
        self._rounds = rounds
        self._seconds = seconds
        self._warm_seconds = warm_seconds

    # Sends

    def sends(self) -> None:
        cells: dict[tuple[str, Cell], list[Load]] = defaultdict(list)
        memory: dict[tuple[str, str], list[float]] = defaultdict(list)
        kinds = KINDS if self._floor is None else (*KINDS, BARE)
        for mode in MODES:
            for kind in self._turns(kinds):
                with self._bare(mode) if kind == BARE else self._pair(kind, mode) as pair:
                    for size in SIZES:
                        for threads in THREADS:
                            load = self._load(pair, threads, size)
                            cells[kind, (mode, size, threads)].append(load)
                    if isinstance(pair, Pair):
                        memory[kind, mode].append(pair.memory_mb())
            for size in SIZES:
                for threads in THREADS:
                    cell = (mode, size, threads)
                    self._show_cell(cell, *(median_load(cells[kind, cell]) for kind in kinds))
            ours, base = (statistics.median(memory[kind, mode]) for kind in KINDS)
            click.echo(f"| {mode}, memory of a broker | {base:.0f} MB | {ours:.0f} MB | {ours / base:.2f} |")

    def _load(self, pair: Pair | BarePair, threads: int, size: int) -> Load:
        if isinstance(pair, BarePair):
            pair.register()
        before = pair.cpu_s()
        sent, not_ok, failed, p50_us, p99_us, nanos = self._produce(pair, threads, size, self._seconds)
        cpu_us = (pair.cpu_s() - before) / max(1, sent) * 1e6
        return Load(sent / nanos * 1e9, p50_us / 1000, p99_us / 1000, cpu_us, not_ok, failed)

    def _show_cell(self, cell: Cell, ours: Load, base: Load, floor: Load | None = None) -> None:
        mode, size, threads = cell
        name = f"{mode}, {size_text(size)}, {threads} thread{'s' if threads > 1 else ''}"
        click.echo(
            f"| {name} | {load_text(base)} | {load_text(ours)} | {ours.per_second / base.per_second:.2f} |"
            f" {ours.p99_ms / base.p99_ms:.2f} | {ours.cpu_us / base.cpu_us:.2f} |"
        )
        if floor is not None:
            click.echo(
                f"| {name}, floor | | {load_text(floor)} | {floor.per_second / base.per_second:.2f} |"
                f" {floor.p99_ms / base.p99_ms:.2f} | {floor.cpu_us / base.cpu_us:.2f} |"
            )

    # Consuming

    def consume(self) -> None:
        rates: dict[str, list[float]] = defaultdict(list)
        for kind in self._turns():
            with self._pair(kind, "ASYNC_MASTER") as pair:
                sent = 0
                while sent < CONSUMED:
                    sent += self._produce(pair, 64, 1024, 2.0)[0]
                for turn in range(2):  # the first warms the consumer's side up
                    group = f"bench_{kind}_{turn}"
                    received, nanos = self._clients.ask(
                        "consume", pair.nameserver.addr, TOPIC, group, CONSUMED, PATIENCE_SECONDS
                    )
                if received < CONSUMED:
                    raise click.ClickException(f"{kind}: {received} of {CONSUMED} messages consumed")
                rates[kind].append(received / nanos * 1e9)
        ours, base = (statistics.median(rates[kind]) for kind in KINDS)
        click.echo(f"| push consumer, 1 KiB | {base:,.0f} /s | {ours:,.0f} /s | {ours / base:.2f} |")

    # Catching up

    def catch_up(self) -> None:
        rates: dict[str, list[float]] = defaultdict(list)
        filled = self._directory / "filled"
        end = fill(filled)
        for kind in self._turns():
            rates[kind].append(self._catch_up_once(kind, filled, end))
        shutil.rmtree(filled)
        ours, base = (statistics.median(rates[kind]) / 1e6 for kind in KINDS)
        click.echo(
            f"| catch-up of a fresh slave, {end / (1 << 30):.2f} GiB of 1 KiB messages |"
            f" {base:,.0f} MB/s | {ours:,.0f} MB/s | {ours / base:.1f} |"
        )

    def _catch_up_once(self, kind: str, filled: Path, end: int) -> float:
        with self._directory_of(kind) as directory, ExitStack() as running:
            pair = Pair(kind, "ASYNC_MASTER", directory, SEGMENT_BYTES)
            running.push(pair)
            pair.master.root.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "--reflink=never", filled, pair.master.root], check=True)
            pair.nameserver.start()
            pair.master.start()
            os.sync()  # what the disk still has to take would slow both down, at random
            touch_memory(directory, end)
            pair.slave.launch()
            return catch_up_rate(pair.slave.root, end)

    # Pairs

    def _turns(self, kinds: Sequence[str] = KINDS) -> Iterator[str]:
        for number in range(self._rounds):
            for kind in kinds:
                click.echo(f"round {number + 1} of {self._rounds}: {kind}", err=True)
                yield kind

    @contextmanager
    def _directory_of(self, kind: str) -> Iterator[Path]:
        directory = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self._directory))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def _pair(self, kind: str, mode: str) -> Iterator[Pair]:
        with self._directory_of(kind) as directory, Pair(kind, mode, directory) as pair:
            self._warm(pair)
            yield pair

    @contextmanager
    def _bare(self, mode: str) -> Iterator[BarePair]:
        assert self._floor is not None
        with (
            self._directory_of(BARE) as directory,
            BarePair(self._floor, mode, directory, TOPIC, TOPIC_QUEUES) as pair,
        ):
            pair.register()
            self._produce(pair, 16, 1024, 2.0)
            yield pair

    def _warm(self, pair: Pair) -> None:
        """Brokers and clients; the slave follows when this returns."""
        self._produce(pair, 16, 1024, self._warm_seconds)
        self._produce(pair, 1, 1024, 2.0)
        wait_for_slave(pair)

    def _produce(self, pair: Pair | BarePair, threads: int, size: int, seconds: float) -> list[int]:
        return self._clients.ask("produce", pair.nameserver.addr, TOPIC, threads, size, seconds)


def fill(root: Path) -> int:
    """A store of nearly 2 GiB of 1 KiB messages in one file; where its log ends."""
    options = LogOptions(root=root, segment_bytes=SEGMENT_BYTES)
    store = Store.open(options, store_host=encode_host("127.0.0.1", 10911))
    message = NewMessage(TOPIC, 0, b"x" * 1024, b"")
    limit = SEGMENT_BYTES - (8 << 20)
    with click.progressbar(length=limit, label="filling a log", width=30) as bar:
        while store.log.end < limit:
            before = store.log.end
            store.log.append_many([message] * FILL_BATCH)
            store.dispatcher.step()
            bar.update(store.log.end - before)
    end = store.log.end
    store.close()
    return end


def touch_memory(directory: Path, size: int) -> None:
    """Has `size` bytes of free memory that this machine has used before.

    A virtual machine gets its memory page by page from its host when it first touches it, at 0.3 to 0.4 GB/s
    where this was measured: a slave's new file would show that figure, whatever wrote it.  Some give free
    memory back within seconds, so what is measured has to begin at once.
    """
    block = bytes(1 << 20)
    path = directory / "touched"
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(block) + 1):
            file.write(block)
    path.unlink()


def catch_up_rate(root: Path, end: int) -> float:
    """Bytes a second between the first and the last that appear in the log of a slave.

    Looked at in its file: a stock broker that has just started does not answer request 28.
    """
    segment = root / "commitlog" / f"{0:020d}"
    began = 0.0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if not began and is_written(segment, 0):
            began = time.perf_counter()
        if began and is_written(segment, end - INSIDE_LAST_BODY):
            return end / max(time.perf_counter() - began, 1e-6)
        time.sleep(LOOK_SECONDS)
    raise click.ClickException(f"{root} has not caught up after {PATIENCE_SECONDS:g} s")


def is_written(segment: Path, position: int) -> bool:
    try:
        with segment.open("rb") as file:
            return any(os.pread(file.fileno(), 16, position))
    except FileNotFoundError:
        return False


def log_end(client: BlockingClient, addr: str) -> int:
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    answer = expect(addr, client.call(addr, request, 20.0))
    return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])


def wait_for_slave(pair: Pair) -> None:
    """Until what was sent to the master is on the slave."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with BlockingClient() as client:
        end = log_end(client, pair.master.addr)
        while time.monotonic() < deadline:
            if log_end(client, pair.slave.addr) >= end:
                return
            time.sleep(0.2)
    raise click.ClickException("the slave does not follow its master")


def median_load(rounds: Sequence[Load]) -> Load:
    return Load(
        *(statistics.median(values) for values in list(zip(*rounds, strict=True))[:4]),
        not_ok=max(load.not_ok for load in rounds),
        failed=max(load.failed for load in rounds),
    )


def load_text(load: Load) -> str:
    trouble = f", {load.not_ok} not OK" if load.not_ok else ""
    trouble += f", {load.failed} failed" if load.failed else ""
    return (
        f"{load.per_second:,.0f}/s p50 {load.p50_ms:.2f} p99 {load.p99_ms:.1f} ms,"
        f" {load.cpu_us:.0f} µs{trouble}"
    )


def size_text(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


@click.command()
@version_option
@click.option("--rounds", default=3, show_default=True, help="Rounds of each kind; medians are shown.")
@click.option("--seconds", default=5.0, show_default=True, help="How long each cell is measured.")
@click.option(
    "--warm",
    default=60.0,
    show_default=True,
    help="Seconds of load before: Java compiles what it runs often.",
)
@click.option("--only", multiple=True, help="Only these: sends, consume, catch-up.")
@click.option(
    "--floor", is_flag=True, help="Sends beside the least that any broker has to do, too; needs a C compiler."
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where the stores go.")
def main(
    rounds: int, seconds: float, warm: float, only: tuple[str, ...], floor: bool, directory: Path | None
) -> None:
    """Compares a stock pair with ours under stock Java clients; needs Java and Maven."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    program = compiled(root) if floor else None
    clients = Clients(java_command("Bench", home=root, heap_mb=512, flags=()), root)
    bench = Bench(clients, root, rounds, seconds, warm, program)
    rows = {"catch-up": bench.catch_up, "consume": bench.consume, "sends": bench.sends}
    try:
        for name, measure in rows.items():
            if not only or name in only:
                measure()
    finally:
        clients.close()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
