"""Stores as a broker leaves them, for the tests of jobs: filled with all that a log may hold, and closed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from commitlog.dispatch.dispatcher import SCHEDULE_TOPIC
from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK
from commitlog.kernel.records import NewMessage, StoredMessage
from commitlog.options import LogOptions
from commitlog.store import Store
from tests.support.messages import BORN_MS, STORE_HOST, Clock, log_options, message, records_of

SEGMENT_BYTES = 32768
DAY_MS = 86_400_000


def options(root: Path, **fields: Any) -> LogOptions:
    """Small files of every kind, so that a small log fills several."""
    small = {"segment_bytes": SEGMENT_BYTES, "queue_file_bytes": 400, "index_slots": 61, "index_entries": 97}
    return log_options(root, **{**small, **fields})


def fill(root: Path, count: int = 300, *, seed: int = 1, **fields: Any) -> list[StoredMessage]:
    """A store with `count` messages of every kind, stored over three days; what its log holds."""
    rng = random.Random(seed)
    clock = Clock()
    store = Store.open(options(root, **fields), store_host=STORE_HOST, clock_ms=clock)
    for number in range(count):
        store.log.append(any_message(rng, number))
        clock.now_ms += 3 * DAY_MS // count
        store.dispatcher.step()
    return close(store)


def close(store: Store) -> list[StoredMessage]:
    """Ends the store; what its log holds."""
    while store.dispatcher.step():
        pass
    records = records_of(store.log)
    assert store.close()
    return records


def any_message(rng: random.Random, number: int) -> NewMessage:
    """One of all kinds: tags, several keys, other alphabets, delays, transactions."""
    properties = {
        "UNIQ_KEY": f"AC110001000018B4AAC2{number:012X}",
        "TAGS": rng.choice(("TagA", "TagB", "größe")),
    }
    if rng.random() < 0.5:
        properties["KEYS"] = " ".join(f"order-{rng.randrange(100)}" for _ in range(rng.randrange(1, 4)))
    if rng.random() < 0.1:
        properties["KEYS"] = "schlüssel  😀 "
    topic, sys_flag = rng.choice(("Orders", "Payments", "%RETRY%group", "2024")), 0
    kind = rng.random()
    if kind < 0.1:
        topic = SCHEDULE_TOPIC
        properties |= {"DELAY": rng.choice(("1", "3", "99", "0", "x")), "REAL_TOPIC": "Orders"}
    elif kind < 0.2:
        sys_flag = rng.choice((SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK))
    if rng.random() < 0.05:
        properties = {}
    return message(
        rng.randbytes(rng.randrange(200)),
        topic,
        rng.randrange(3),
        properties=properties,
        sys_flag=sys_flag,
        born_timestamp_ms=BORN_MS + number,
    )


def derived_files(root: Path) -> dict[str, bytes]:
    """Consume queue files by name, and index files by their place in order, for their names are times."""
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / "consumequeue").rglob("*"))
        if path.is_file()
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        files[f"index {number}"] = path.read_bytes()
    return files


def copied(root: Path, target: Path) -> Path:
    """The same store once more: a replica whose bytes are its master's."""
    shutil.copytree(root, target)
    return target


def flip(root: Path, offset: int, segment_bytes: int = SEGMENT_BYTES) -> None:
    """One bit of the log turns over."""
    start = offset - offset % segment_bytes
    path = root / "commitlog" / f"{start:020d}"
    with open(path, "r+b") as file:
        file.seek(offset - start)
        byte = file.read(1)[0]
        file.seek(offset - start)
        file.write(bytes([byte ^ 1]))
