"""The layer of power cuts: an OK outlives them, a full disk is lived through, a disk that lies is found."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos import power, power_disk
from tests.chaos.checker import Violation
from tests.chaos.power_disk import Disk, NoDisks
from tests.chaos.power_faults import Machines
from tests.chaos.proc_cluster import Cluster, Shape
from tests.chaos.proc_faults import Fault, Scene
from tests.chaos.proc_round import ALL_FAULTS, Outcome, Play
from tests.chaos.report import HARNESS_FAILED, Report
from tests.docs.machine import Machine, NoMachine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Disk]]:
    made: list[Disk] = []
    with contextlib.ExitStack() as stack:
        for number in range(2):
            try:
                disk = Disk(tmp_path / f"disk{number}")
            except NoDisks as error:
                pytest.skip(str(error))
            stack.callback(disk.close)
            made.append(disk)
        yield made


def play(
    root: Path,
    shape: Shape,
    disks: Sequence[Disk],
    rounds: Sequence[Sequence[tuple[str, ...]]],
    also: dict[str, Fault] | None = None,
) -> list[Outcome]:
    async def all_rounds() -> list[Outcome]:
        cluster = Cluster(root / "cluster", shape)
        machines = Machines(disks)
        machines.give(cluster)
        try:
            await cluster.start()
            rounds_of = Play(cluster, {**ALL_FAULTS, **machines.faults, **(also or {})}, calm_s=0.15)
            return [await rounds_of.round(seed, steps) for seed, steps in enumerate(rounds, 1)]
        finally:
            await cluster.close()

    return asyncio.run(all_rounds())


def test_an_ok_outlives_power_cuts_and_a_full_disk(tmp_path: Path, disks: list[Disk]) -> None:
    outcomes = play(
        tmp_path,
        Shape(flush="SYNC_FLUSH"),
        disks,
        [
            [("power cut of all",), ("power cut of slave",)],
            [("power cut and failover",), ("power cut of all",)],
            [("disk of master full",)],
        ],
    )
    for outcome in outcomes:
        assert [str(one) for one in outcome.findings.verdicts] == []
        assert outcome.findings.acknowledged > 20
    assert outcomes[-1].findings.refused > 0


def test_without_flushes_an_ok_outlives_the_cut_of_one_machine(tmp_path: Path, disks: list[Disk]) -> None:
    outcomes = play(
        tmp_path, Shape(flush="ASYNC_FLUSH"), disks, [[("power cut of slave",), ("power cut of master",)]]
    )
    assert [str(one) for outcome in outcomes for one in outcome.findings.verdicts] == []


def test_a_loss_by_a_power_cut_is_found(tmp_path: Path, disks: list[Disk]) -> None:
    """Machines that do not flush, held to the promise of those that do."""

    async def cut_all_at_once(scene: Scene) -> None:
        await _acknowledged(scene, 200)
        for disk in disks:
            disk.shut_down()
        for node in scene.cluster.nodes:
            node.kill()
        for node, disk in zip(scene.cluster.nodes, disks, strict=True):
            await asyncio.to_thread(disk.power_on)
            await scene.cluster.run(node)

    slow = {"flushIntervalCommitLog": "60000", "flushCommitLogThoroughInterval": "60000"}
    (outcome,) = play_never_flushing(tmp_path, disks, {"cut": cut_all_at_once}, slow)
    assert any(one.violation is Violation.LOST for one in outcome.findings.verdicts)


def test_a_round_that_the_harness_cannot_judge_is_played_again_once_and_then_told(
    disks: list[Disk], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Disks give EIO to the harness: in seed 1 once, in seed 2 always; seed 3 is played all the same."""
    del disks  # they say that there are some
    played: list[int] = []

    async def round_(self: Play, seed: int, steps: Sequence[tuple[str, ...]] | None = None) -> Outcome:
        played.append(seed)
        if seed == 2 or played == [1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "state.json")
        return await whole(self, seed, [])

    whole = Play.round
    monkeypatch.setattr(Play, "round", round_)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what is kept of seed 2, is the test's
    report = Report()
    power.run(3, 1, report)
    assert played == [1, 1, 2, 2, 3]
    assert report.totals["power"]["rounds"] == 2
    assert report.totals["power"]["rounds played again"] == 2
    assert report.totals["power"][HARNESS_FAILED] == 1
    (failure,) = report.failures
    assert failure.seed == 2
    assert (
        "harness failed: OSError: [Errno 5] Input/output error: 'state.json'" in failure.text.splitlines()[0]
    )
    assert not report.violations["power"].total()
    assert report.reached["power"] == (3, 3)


async def _acknowledged(scene: Scene, count: int) -> None:
    wanted = scene.history.acknowledged + count

    async def enough() -> bool:
        return scene.history.acknowledged >= wanted

    await scene.cluster.until(enough, f"{wanted} messages are acknowledged", 20)


def play_never_flushing(
    root: Path, disks: Sequence[Disk], faults: dict[str, Fault], settings: dict[str, str]
) -> list[Outcome]:
    async def one_round() -> list[Outcome]:
        cluster = Cluster(root / "cluster", Shape(flush="ASYNC_FLUSH"))
        Machines(disks).give(cluster)
        for node in cluster.nodes:
            node.extra.update(settings)
        try:
            await cluster.start()
            return [await Play(cluster, faults, calm_s=0.15).round(1, [("cut",)])]
        finally:
            await cluster.close()

    return asyncio.run(one_round())


# -- the disk ----------------------------------------------------------------------------------------


def test_a_disk_keeps_what_was_flushed_and_forgets_the_rest(disks: list[Disk]) -> None:
    disk = disks[0]
    kept, lost = disk.mount / "kept", disk.mount / "lost"
    for path in (kept, lost):
        with path.open("wb") as file:
            file.write(b"some bytes" * 1000)
            file.flush()
            if path is kept:
                os.fsync(file.fileno())
                os.fsync(fd := os.open(disk.mount, os.O_RDONLY))
                os.close(fd)
    disk.shut_down()
    with pytest.raises(OSError, match="Input/output error"):
        (disk.mount / "more").write_bytes(b"x")
    disk.power_on()
    assert kept.read_bytes() == b"some bytes" * 1000
    assert not lost.exists() or lost.read_bytes() != b"some bytes" * 1000


def test_a_disk_is_not_mounted_while_another_mount_namespace_keeps_it_as_the_cut_left_it(
    disks: list[Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 740: a namespace that `ip -n` made had a copy of the mount, and what was mounted gave EIO."""
    disk = disks[0]
    path = disk.mount / "kept"
    path.write_bytes(b"some bytes")
    os.sync()
    disk.shut_down()
    words = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo there; read line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        with monkeypatch.context() as patch:
            patch.setattr(power_disk, "UNMOUNT_S", 0.1)
            with pytest.raises(NoDisks, match="still has"):
                disk.power_on()
        other.communicate(b"end\n")
    disk.power_on()
    assert path.read_bytes() == b"some bytes"


def test_a_page_that_is_tried_out_meanwhile_keeps_no_disk(disks: list[Disk], tmp_path: Path) -> None:
    """Its machine begins with a copy of all mounts: a disk whose power went could not be had again for minutes."""
    try:
        with Machine(tmp_path / "machine"):
            disks[0].power_on()
    except NoMachine as error:
        pytest.skip(str(error))


def test_some_pages_reach_the_disk_before_the_power_goes(disks: list[Disk]) -> None:
    disk = disks[0]
    disk.store.mkdir()
    path, pages = disk.store / "file", 256
    path.write_bytes(b"\0" * 4096 * pages)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        file.write(b"\1" * 4096 * pages)
    written = disk.write_some_pages(random.Random(1), 0.5)
    disk.shut_down()
    disk.power_on()
    data = path.read_bytes()
    survived = sum(data[at] for at in range(0, len(data), 4096))
    assert 0 < written < pages
    assert survived >= written


def test_a_full_disk_has_no_byte_left_until_room_is_made(disks: list[Disk]) -> None:
    disk = disks[0]
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.mount / "more").write_bytes(b"x" * 100_000)
    disk.make_room()
    (disk.mount / "more").write_bytes(b"x" * 100_000)
