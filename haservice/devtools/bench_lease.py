"""What failover by a coordinator costs a pair that idles: CPU of both brokers with etcd, and without, at one time.

pair without haCoordinator ─┐
pair with etcd on loopback ─┴─ both idle for so many seconds ── CPU by /proc, requests by etcd's own count
"""

from __future__ import annotations

import re
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import click
import psutil

from haservice.devtools.auto_story import AutoStoryFailed, etcd_running
from haservice.devtools.pair import ScratchPair
from haservice.terminal.output import echo

SETTLE_S = 8.0
_HANDLED = re.compile(r"^grpc_server_handled_total\{[^}]*\} (\S+)$", re.MULTILINE)


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long both idle.")
def main(seconds: float) -> None:
    """CPU of the brokers of a pair that idles, with etcd as its coordinator and without."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-lease-")))
        try:
            place = stack.enter_context(etcd_running(root))
        except AutoStoryFailed as error:
            raise click.ClickException(str(error)) from None
        pairs = {}
        for what, settings in (("without", {}), ("with etcd", {"haCoordinator": place})):
            directory = root / what.partition(" ")[0]
            directory.mkdir()
            pair = stack.enter_context(ScratchPair(directory))
            pair.start_nameserver()
            pair.start_master(**settings)
            pair.start_slave(**settings)
            pairs[what] = pair
        time.sleep(SETTLE_S)
        asked, used = _requests(place), _cpu_s(pairs)
        time.sleep(seconds)
        now, rate = _cpu_s(pairs), (_requests(place) - asked) / seconds
        for (what, name), before in used.items():
            share = (now[what, name] - before) / seconds
            echo(f"{name:<11} {what:<10} {share:7.2%} of a core")
        echo(f"etcd is asked {rate:.1f} times a second by both brokers together")


def _cpu_s(pairs: dict[str, ScratchPair]) -> dict[tuple[str, str], float]:
    found = {}
    for what, pair in pairs.items():
        for name in ("broker-a", "broker-a-s"):
            times = psutil.Process(pair.processes[name].pid).cpu_times()
            found[what, name] = times.user + times.system
    return found


def _requests(place: str) -> float:
    with urllib.request.urlopen(f"http://{place.partition('://')[2]}/metrics", timeout=5) as answer:
        return sum(map(float, _HANDLED.findall(answer.read().decode())))


if __name__ == "__main__":
    main()
