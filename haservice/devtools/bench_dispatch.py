"""scripts/bench_dispatch: what it costs the dispatching thread to enter a message in its queue and the index.

    µs of CPU a message, of the thread alone, over 1, 8 and 1,024 queues, far behind and nearly caught up

Each message has a UNIQ_KEY and one key, so it makes two entries in the index.  The first part of the log,
which makes the files, is not measured.  With HASERVICE_PURE=1 it runs without the native kernel.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import click

from commitlog.kernel import native
from commitlog.kernel.records import NewMessage, encode_host, encode_properties
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.terminal.options import CONTEXT, version_option

STORE_HOST = encode_host("127.0.0.1", 10911)
QUEUES = (1, 8, 1024)
BODY_BYTES = (128, 1024)
GROUP = 512
# The messages in one pass of a broker at some 50,000 messages a second, if nobody waits for them; four times
# that over many queues.
CLOSE_MESSAGES = 2560


@click.command(context_settings=CONTEXT)
@version_option
@click.option("--messages", default=50_000, show_default=True, help="Messages in each measured part.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; a figure is their median.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where the files go (default: the temporary directory).",
)
def main(messages: int, rounds: int, directory: Path | None) -> None:
    """Measures the CPU of dispatch for a message, in µs."""
    click.echo(f"build: {native.build}; {messages:,} messages, median of {rounds}, µs of CPU a message\n")
    click.echo(f"{'queues':>8}{'body':>8}{'far behind':>14}{'nearly there':>14}")
    for queues in QUEUES:
        for body_bytes in BODY_BYTES:
            far = statistics.median(
                measure(queues, body_bytes, messages, messages, directory) for _ in range(rounds)
            )
            close = statistics.median(
                measure(queues, body_bytes, messages, CLOSE_MESSAGES, directory) for _ in range(rounds)
            )
            click.echo(f"{queues:>8,}{body_bytes:>6} B{far:>14.2f}{close:>14.2f}")


def measure(queues: int, body_bytes: int, messages: int, part: int, directory: Path | None) -> float:
    """µs of CPU a message, if the log arrives in parts of `part` messages each."""
    root = Path(tempfile.mkdtemp(prefix="bench-dispatch-", dir=directory))
    try:
        store = Store.open(LogOptions(root=root), store_host=STORE_HOST)
        try:
            _fill(store, queues, body_bytes, 0, max(4 * queues, messages // 4))
            _dispatch(store)
            used_s, done = 0.0, 0
            while done < messages:
                _fill(store, queues, body_bytes, done, part)
                used_s += _dispatch(store)
                done += part
            return used_s / done * 1e6
        finally:
            store.close(clean=False)
    finally:
        shutil.rmtree(root)


def _dispatch(store: Store) -> float:
    """Seconds of CPU until all is dispatched."""
    began_s = time.thread_time()
    while store.dispatcher.step():
        pass
    return time.thread_time() - began_s


def _fill(store: Store, queues: int, body_bytes: int, first: int, count: int) -> None:
    body = os.urandom(body_bytes)
    for begin in range(first, first + count, GROUP):
        store.log.append_many(
            [
                NewMessage("bench", number % queues, body, _properties(number), born_host=STORE_HOST)
                for number in range(begin, min(begin + GROUP, first + count))
            ]
        )


def _properties(number: int) -> bytes:
    unique = f"7F0000010A5B18B4AAC2{number:012X}"
    return encode_properties({"KEYS": f"order-{number}", "UNIQ_KEY": unique, "TAGS": "TagA", "WAIT": "true"})


if __name__ == "__main__":
    main()
