"""Whatever frame the native code takes, the long way would store the same of it; one frame at a time, many of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.send import native
from tests.support.send_frames import odd, plain
from tests.support.send_ways import HOSTS, Judge, Native, agree

pytestmark = pytest.mark.skipif(native.sends is None, reason="the native code is not there")


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_is_what_the_long_way_would_store(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    judge = Judge(tmp_path)
    ways = {store: Native(judge, store) for store in HOSTS}
    taken = 0
    for number in range(4000):
        data = odd(rng, number) if rng.random() < 0.8 else plain(rng, number)
        for _ in range(rng.choice((0, 0, 1, 2))):
            data = changed(data, rng)
        born, store = rng.choice(HOSTS), rng.choice(HOSTS)
        taken += agree(ways[store].says(data, born), judge.says(data, born, store))
    assert taken > 400


def test_what_is_plain_is_taken(tmp_path: Path) -> None:
    rng = random.Random(1)
    way = Native(Judge(tmp_path), HOSTS[0])
    assert all(way.says(plain(rng, number), HOSTS[0]) for number in range(1000))


def changed(data: bytes, rng: random.Random) -> bytes:
    """With another header, of a true length."""
    size = int.from_bytes(data[5:8], "big")
    header, body = bytearray(data[8 : 8 + size]), data[8 + size :]
    at = rng.randrange(size + 1)
    some = rng.choice((1, 1, 2, 8))
    what: Any = rng.randrange(3)
    if what == 0:
        del header[at : at + some]
    elif what == 1:
        header[at:at] = rng.choice(
            (b"WAIT\x01", b'"', b"\\", b"DELAY", b"\x01", b"\\u0001", b",", b"0", bytes(some))
        )
    else:
        header[at:at] = header[at : at + some]
    lengths = (4 + len(header) + len(body)).to_bytes(4, "big") + data[4:5] + len(header).to_bytes(3, "big")
    return lengths + bytes(header) + body
