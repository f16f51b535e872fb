"""The layer of groups: rounds with each kind of fault are clean, and a loss, a torn log and a storm are seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from commitlog.dledger.entries import LogEntry, encode, encode_blank
from commitlog.dledger.layout import BLANK_BYTES, HEAD_BYTES
from commitlog.dledger.log import stamp_place
from commitlog.kernel import records
from tests.chaos import groups
from tests.chaos.checker import Violation
from tests.chaos.group_cluster import GroupCluster, entry_messages
from tests.chaos.group_faults import ONLY_SYNC
from tests.chaos.group_round import TERMS_MAX, GroupPlay, storm
from tests.chaos.libc_shim import LibcShim, NoShim
from tests.chaos.netns import Hosts, NoHosts, run_loop_in
from tests.chaos.power_disk import NoDisks
from tests.chaos.proc_cluster import Shape
from tests.chaos.proc_round import Outcome

OF_3, OF_5, ASYNC_OF_3 = (groups.shape_of(at * groups.ROUNDS_A_CLUSTER) for at in range(3))
Rounds = Sequence[Sequence[tuple[str, ...]]]


def play(root: Path, shape: Shape, rounds: Rounds, held_to: Shape | None = None) -> list[Outcome]:
    """What became of the rounds, all with one group; `held_to` is the shape whose promises are looked at."""

    async def all_rounds() -> list[Outcome]:
        cluster = GroupCluster(root, shape, hosts)
        try:
            await cluster.start()
            rounds_of = GroupPlay(cluster, groups.name_of(shape), lambda fault, risen: None)
            cluster.shape = held_to or shape
            return [await rounds_of.round(seed, steps) for seed, steps in enumerate(rounds, 1)]
        finally:
            await cluster.close()

    try:
        hosts = Hosts(shape.hosts)
    except NoHosts as error:
        pytest.skip(str(error))
    try:
        return run_loop_in(hosts.hub, all_rounds)
    except (NoDisks, NoShim) as error:
        pytest.skip(str(error))
    finally:
        hosts.close()


def assert_clean(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        assert [str(one) for one in outcome.findings.verdicts] == []
        assert outcome.findings.acknowledged > 20
        assert outcome.findings.consumed >= outcome.findings.acknowledged


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_three_keep_the_promises_under_cuts_full_disks_jumps_of_clocks_and_the_end_of_all_power(
    tmp_path: Path,
) -> None:
    rounds = [
        [("minority alone",)],
        [("clock of master jumps", "disk of master full")],
        [("power cut of all", "one way lost")],
    ]
    assert_clean(play(tmp_path, OF_3, rounds))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_five_that_do_not_flush_keep_the_promises_when_two_lose_their_power(tmp_path: Path) -> None:
    assert_clean(play(tmp_path, OF_5._replace(flush="ASYNC_FLUSH"), [[("power cut of minority",)]]))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_loss_by_a_power_cut_is_found(tmp_path: Path) -> None:
    """A group that flushes nothing, held to the promise of one that does."""
    lazy = ASYNC_OF_3._replace(settings=(("flushIntervalCommitLog", "60000"),))
    (outcome,) = play(tmp_path, lazy, [[("power cut of all",)]], held_to=OF_3)
    assert {Violation.LOST, Violation.NOT_SETTLED} & {one.violation for one in outcome.findings.verdicts}


def test_each_fault_has_its_turn_and_none_for_which_nothing_is_promised() -> None:
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for seed in range(2000):
        shape = groups.shape_of(seed)
        steps = groups.steps_of(seed, shape)
        assert steps == groups.steps_of(seed, shape)
        seen[shape.flush == "SYNC_FLUSH"] |= {name for step in steps for name in step}
    assert seen[True] == set(groups.ALL_FAULTS)
    assert seen[False] == set(groups.ALL_FAULTS) - set(ONLY_SYNC)
    assert groups.steps_of(5, OF_3, ["kill all"]) == [("kill all",)]


def test_a_storm_of_elections_is_no_calm() -> None:
    assert storm(2 * TERMS_MAX, ["kill master", "kill slave"]) == []
    (verdict,) = storm(TERMS_MAX + 1, ["kill master"])
    assert verdict.violation is Violation.ELECTION_STORM


# -- the log -----------------------------------------------------------------------------------------

FILE_BYTES = 1000


def a_log(bodies: Sequence[bytes]) -> bytes:
    """Entries of so many messages, in files of FILE_BYTES."""
    log = bytearray()
    for index, body in enumerate(bodies):
        record = bytearray(records.encode(records.NewMessage("Chaos", 0, body), b"\0" * 8))
        room = FILE_BYTES - len(log) % FILE_BYTES
        if HEAD_BYTES + len(record) + BLANK_BYTES > room:
            log += encode_blank(room).ljust(room, b"\0")
        stamp_place(record, len(log) + HEAD_BYTES)
        log += encode(LogEntry(index, 1, len(log), bytes(record), body_crc=records.body_crc(bytes(record))))
    return bytes(log)


def test_records_in_entries_are_read_from_any_entry_on_over_the_ends_of_files() -> None:
    bodies = [bytes([number]) * 200 for number in range(8)]
    log = a_log(bodies)
    read = partial(entry_messages, file_bytes=FILE_BYTES)
    found = list(read(log, 0))
    assert [message.body for message in found] == bodies
    third = found[3].physical_offset - HEAD_BYTES
    assert [message.body for message in read(log[third:], third)] == bodies[3:]


def test_an_entry_that_is_torn_or_elsewhere_is_no_log() -> None:
    log = a_log([b"x" * 200] * 3)
    for damaged in (log[:-1], log[:-50] + bytes([log[-50] ^ 1]) + log[-49:], log + b"\0" * 40):
        with pytest.raises(ValueError, match="no entry at"):
            list(entry_messages(damaged, 0, FILE_BYTES))


# -- the clock ---------------------------------------------------------------------------------------


def test_the_clock_of_the_day_jumps_and_no_other(tmp_path: Path) -> None:
    try:
        shim = LibcShim(tmp_path / "fails")
    except NoShim as error:
        pytest.skip(str(error))
    code = """if True:
        import time
        day, other = time.time(), time.monotonic()
        print(flush=True)
        input()
        print(time.time() - day, time.monotonic() - other, flush=True)
    """
    for seconds in (-86_400.25, 600.75):
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env=shim.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            process.stdout.readline()
            shim.set_clock_ahead(seconds)
            process.stdin.write("\n")
            process.stdin.flush()
            day_s, other_s = map(float, process.stdout.readline().split())
        assert day_s - other_s == pytest.approx(seconds, abs=0.1)
        assert 0 <= other_s < 60
        shim.heal()
