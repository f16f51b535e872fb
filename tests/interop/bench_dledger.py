"""Groups of three brokers on DLedger, stock's and ours, under the same stock Java clients, in turn.

    python -m tests.interop.bench_dledger [--rounds N] [--seconds S] [--warm S] [--ours-only]

As scripts/bench_vs_rocketmq does it with pairs: fresh groups, warm clients, medians; all of it on this machine's cores,
so ratios are what counts.  CPU is that of all three brokers.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click
import psutil

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import free_port_block
from haservice.errors import HAServiceError
from tests.interop.bench import (
    DEFAULT_SIZES,
    PATIENCE_SECONDS,
    TOPIC,
    Clients,
    Load,
    load_text,
    median_load,
    size_text,
)
from tests.interop.jars import java_command
from tests.interop.stock import KINDS, StockBroker, broker, nameserver

CELLS = ((128, 64), (1024, 1), (1024, 16), (1024, 64))
NAMES = ("n0", "n1", "n2")


class Group:
    """A nameserver and three brokers of one kind, fresh; `with` starts and ends them."""

    def __init__(self, kind: str, directory: Path) -> None:
        first = free_port_block(len(NAMES))
        peers = ";".join(f"{name}-127.0.0.1:{first + at}" for at, name in enumerate(NAMES))
        self.nameserver = nameserver(kind, directory)
        self.brokers = [
            broker(
                kind,
                directory,
                broker_id=at,
                namesrv=self.nameserver,
                enableDLegerCommitLog="true",
                dLegerGroup="broker-a",
                dLegerPeers=peers,
                dLegerSelfId=name,
                isEnableBatchPush="true",
                **{**DEFAULT_SIZES, "mappedFileSizeCommitLog": 1 << 30},
            )
            for at, name in enumerate(NAMES)
        ]
        for one in self.brokers:
            if isinstance(one, StockBroker):
                one.flags = ()  # it is to compile with all it has

    def __enter__(self) -> Group:
        self.nameserver.start()
        for one in self.brokers:
            one.launch()
        until_s = time.monotonic() + PATIENCE_SECONDS
        with MQAdmin([self.nameserver.addr]) as admin:
            while time.monotonic() < until_s:
                with contextlib.suppress(HAServiceError, ValueError):
                    (data,) = admin.route(TOPIC).broker_datas
                    if len(data.broker_addrs) == len(NAMES) and 0 in data.broker_addrs:
                        return self
                time.sleep(0.1)
        raise click.ClickException("the group has no leader")

    def __exit__(self, *_: object) -> None:
        for one in (*self.brokers, self.nameserver):
            one.kill()

    def cpu_s(self) -> float:
        times = [psutil.Process(one.pid).cpu_times() for one in self.brokers]
        return sum(one.user + one.system for one in times)


def measured(clients: Clients, group: Group, threads: int, size: int, seconds: float) -> Load:
    before = group.cpu_s()
    sent, not_ok, failed, p50_us, p99_us, nanos = clients.ask(
        "produce", group.nameserver.addr, TOPIC, threads, size, seconds
    )
    cpu_us = (group.cpu_s() - before) / max(1, sent) * 1e6
    return Load(sent / nanos * 1e9, p50_us / 1000, p99_us / 1000, cpu_us, not_ok, failed)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Rounds of each kind; medians are shown.")
@click.option("--seconds", default=5.0, show_default=True, help="How long each cell is measured.")
@click.option("--warm", default=30.0, show_default=True, help="Seconds of load before.")
@click.option("--ours-only", is_flag=True, help="Only our group.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where the stores go.")
def main(rounds: int, seconds: float, warm: float, ours_only: bool, directory: Path | None) -> None:
    """Compares a stock group of three with ours under stock Java clients; needs Java and Maven."""
    root = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    clients = Clients(java_command("Bench", home=root, heap_mb=512, flags=()), root)
    kinds: Sequence[str] = ("ours",) if ours_only else KINDS
    cells: dict[tuple[str, int, int], list[Load]] = defaultdict(list)
    try:
        for number in range(rounds):
            for kind in kinds:
                click.echo(f"round {number + 1} of {rounds}: {kind}", err=True)
                place = root / f"{kind}-{number}"
                place.mkdir()
                with Group(kind, place) as group:
                    measured(clients, group, 16, 1024, warm)
                    for size, threads in CELLS:
                        cells[kind, size, threads].append(measured(clients, group, threads, size, seconds))
                shutil.rmtree(place, ignore_errors=True)
    finally:
        clients.close()
        shutil.rmtree(root, ignore_errors=True)
    for size, threads in CELLS:
        ours = median_load(cells["ours", size, threads])
        name = f"{size_text(size)}, {threads} thread{'s' if threads > 1 else ''}"
        if ours_only:
            click.echo(f"| {name} | {load_text(ours)} |")
            continue
        base = median_load(cells["stock", size, threads])
        click.echo(
            f"| {name} | {load_text(base)} | {load_text(ours)} | {ours.per_second / base.per_second:.2f} |"
            f" {ours.p99_ms / base.p99_ms:.2f} | {ours.cpu_us / base.cpu_us:.2f} |"
        )


if __name__ == "__main__":
    main()
