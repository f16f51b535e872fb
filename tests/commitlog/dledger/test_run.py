"""EntryRun: what a run is, in both builds, and that no length in it leads anywhere else."""

from __future__ import annotations

import random

import pytest

from commitlog.dledger.entries import LogEntry, encode, encode_unit
from commitlog.dledger.layout import HEAD_BYTES, MAGICS
from commitlog.dledger.run import EntryRun, fill_reference, scan_reference
from commitlog.errors import CorruptEntry
from commitlog.kernel import native
from commitlog.kernel.records import body_crc

CASES = 3000


def entries(chance: random.Random, count: int) -> list[LogEntry]:
    made: list[LogEntry] = []
    index, term, position = chance.randrange(1 << 40), chance.randrange(100), chance.randrange(1 << 50)
    for number in range(count):
        body = chance.randbytes(chance.choice((0, 1, 40, 300)))
        crc = chance.choice((0, body_crc(body)))
        magic = chance.choice(MAGICS)
        made.append(LogEntry(index + number, term, position, body, magic, chance.randrange(9), 0, crc))
        position, term = made[-1].end, term + chance.choice((0, 0, 1))
    return made


def test_a_run_is_its_entries() -> None:
    chance = random.Random(1)
    for _ in range(200):
        made = entries(chance, chance.randrange(1, 9))
        run = EntryRun.of(made)
        assert list(run) == made
        assert (run.count, run.first_index, run.last_index) == (len(made), made[0].index, made[-1].index)
        assert (run.first_term, run.end_term) == (made[0].term, made[-1].term)
        assert (run.position, run.last_position, run.end) == (
            made[0].position,
            made[-1].position,
            made[-1].end,
        )
        assert [run.entry(number) for number in range(len(made))] == made
        assert run.units() == b"".join(map(encode_unit, made))
        first = chance.randrange(len(made))
        count = chance.randrange(1, len(made) - first + 1)
        assert list(run.part(first, count)) == made[first : first + count]
        fitting = run.fitting(sum(entry.size for entry in made[:count]))
        assert fitting >= count
        assert run.fitting(1) == 1


def test_where_entries_do_not_follow_each_other_there_is_no_run() -> None:
    first, second, third = entries(random.Random(3), 3)
    for wrong in (
        [first, third],
        [first, second._replace(term=first.term - 1)],
        [first, second._replace(position=second.position + 1)],
        [first, second._replace(body=b"another", body_crc=5)],
        [first._replace(index=-1)],
        [],
    ):
        with pytest.raises(CorruptEntry):
            EntryRun.of(wrong)
    for cut in (1, HEAD_BYTES - 1, HEAD_BYTES, len(encode(first)) - 1):
        with pytest.raises(CorruptEntry, match=r"cut off|no entries"):
            EntryRun(encode(first)[:cut] if cut < first.size else b"")


@pytest.mark.skipif(native.core is None, reason="the native build is not in force")
def test_both_builds_find_the_same_runs_and_write_the_same_heads() -> None:
    chance = random.Random(7)
    for case in range(CASES):
        data = bytearray(b"".join(map(encode, entries(chance, chance.randrange(1, 5)))))
        for _ in range(chance.choice((0, 0, 1, 2))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        if chance.random() < 0.1:
            data[24:32] = (2**63 - 1 - chance.randrange(2000)).to_bytes(8, "big")
        whole = bytes(data)
        assert native.core.ledger_scan(whole) == scan_reference(whole), f"case {case}: {whole.hex()}"
        assert native.core.ledger_scan(b"") == scan_reference(b"")
        records = [chance.randbytes(chance.randrange(60)) for _ in range(chance.randrange(4))]
        spaced = bytearray()
        for record in records:
            size = 4 + len(record) + chance.choice((0,) * 9 + (1, -1, -5))
            spaced += bytes(HEAD_BYTES) + (size & 0xFFFFFFFF).to_bytes(4, "big") + record
        ours, reference = bytearray(spaced), bytearray(spaced)
        at = chance.choice(((5, 6, 7),) * 9 + ((5, 6, 2**63 - 60), (2**63 - 3, 6, 7), (-1, 6, 7), (5, 6, -1)))
        count = native.core.ledger_heads(ours, *at)
        assert count == fill_reference(reference, *at), f"case {case}: {spaced.hex()}"
        if count:
            assert ours == reference, f"case {case}: {spaced.hex()}"
            assert [entry.body[4:] for entry in EntryRun(bytes(ours))] == records


@pytest.mark.skipif(native.core is None, reason="the native build is not in force")
def test_what_is_no_run_has_no_units_and_no_parts() -> None:
    data = EntryRun.of(entries(random.Random(2), 3)).data
    with pytest.raises(ValueError, match="not all of it is entries"):
        native.core.ledger_units(data + b"x")
    for count in (-1, 4):
        with pytest.raises(ValueError, match="3 entries"):
            native.core.ledger_bytes(data, count)
