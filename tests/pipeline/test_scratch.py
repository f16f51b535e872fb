"""What a killed job leaves is removed by the next job, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from haservice.pipeline import scratch
from haservice.pipeline.jobs.rebuild import STAGING
from tests.pipeline.conftest import ROOT
from tests.pipeline.filled import derived_files, fill
from tests.support.quick_java import QUICK_JAVA_OPTIONS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

MQPIPELINE = [sys.executable, "-c", "from haservice.pipeline.cli import main; main()"]
QUICK = ["--master", "local[1]", "--conf", f"spark.driver.extraJavaOptions={QUICK_JAVA_OPTIONS}"]
HOLD = """
import sys
from haservice.pipeline.scratch import scratch
print(scratch(), flush=True)
sys.stdin.read()
"""
# The same, and it builds in a directory elsewhere.
BUILD = """
import sys
from pathlib import Path
from haservice.pipeline.scratch import scratch, staging
with staging(Path(sys.argv[1])):
    print(scratch(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(
    root: Path, program: str = HOLD, *arguments: Path
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a directory below `root`."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "TMPDIR": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_the_directory_of_a_killed_process_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    with holding(tmp_path) as (process, directory), holding(tmp_path) as (_, other):
        (directory / "blocks").mkdir()
        (directory / "blocks" / "one").write_bytes(b"x")
        assert scratch.clean(tmp_path) == []
        process.kill()
        process.wait()
        assert scratch.clean(tmp_path) == [directory]
        assert not directory.exists()
        assert (other / scratch.LOCK).exists()


def test_so_does_the_directory_that_it_built_in_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    built, other, ready = (tmp_path / name for name in ("a store\n/rebuilding", "other", "rebuilding"))
    built.parent.mkdir()
    with holding(tmp_path, BUILD, built) as (process, directory), holding(tmp_path, BUILD, other):
        (built / "consumequeue").mkdir()
        with (directory / scratch.STAGING).open("a") as listed:  # as if it had listed what is not its own
            ready.mkdir()
            listed.write(json.dumps(str(ready)) + "\n" + '"torn')
        with pytest.raises(FileExistsError), scratch.staging(built):
            pass
        assert scratch.clean(tmp_path) == []
        process.kill()
        process.wait()
        assert scratch.clean(tmp_path) == [directory, built]
        assert not built.exists()
        assert (other / scratch.LOCK).exists()
        assert ready.is_dir()


def test_a_directory_to_build_in_goes_at_the_end_and_one_that_a_killed_job_left_is_taken_over(
    tmp_path: Path,
) -> None:
    built = tmp_path / "rebuilding"
    with holding(tmp_path, BUILD, built) as (process, _):
        (built / "half").write_bytes(b"x")
        process.kill()
        process.wait()
        with scratch.staging(built):
            assert [one.name for one in built.iterdir()] == [scratch.LOCK]
        assert not built.exists()


def test_a_process_that_ends_takes_its_directory_along(tmp_path: Path) -> None:
    with holding(tmp_path) as (process, directory):
        assert directory.is_dir()
        process.communicate("")
        assert not directory.exists()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    mine = tmp_path / "elsewhere"
    mine.mkdir()
    os.close(scratch.lock(mine))
    for name, text in (("mqp-empty", None), ("mqp-other", b"of another program\n"), ("mqp-void", b"")):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / scratch.LOCK).write_bytes(text)
    (tmp_path / "mqp-file").write_bytes(scratch.MARK)
    (tmp_path / "mqp-link").symlink_to(mine)
    (tmp_path / "mqp-locklink").mkdir()
    (tmp_path / "mqp-locklink" / scratch.LOCK).symlink_to(mine / scratch.LOCK)
    before = sorted(tmp_path.rglob("*"))
    assert scratch.clean(tmp_path) == []
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "mqp-gone").mkdir()
    os.close(scratch.lock(tmp_path / "mqp-gone"))
    assert scratch.clean(tmp_path) == [tmp_path / "mqp-gone"]


@pytest.mark.spark
def test_a_job_that_is_killed_with_its_java_leaves_nothing_behind_the_next_one(tmp_path: Path) -> None:
    store, scratches = tmp_path / "broker-a", tmp_path / "tmp"
    scratches.mkdir()
    fill(store, 50)
    environment = {**os.environ, "TMPDIR": str(scratches), "PYTHONPATH": str(ROOT)}
    command = [*MQPIPELINE, *QUICK, "-f", "json", "audit-loss", str(store)]
    first = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(
            lambda: first.poll() is not None or list(scratches.glob("mqp-*/java/blockmgr-*")),
            "Java keeps blocks there",
            60,
        )
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert list(scratches.glob("mqp-*/java/blockmgr-*"))
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["ok"]
    assert list(scratches.iterdir()) == []


@pytest.mark.spark
def test_a_rebuild_elsewhere_that_was_killed_shows_no_half_built_files_and_the_next_one_begins_anew(
    tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs.job import Job

    monkeypatch.setattr(Job, "spark", lambda _: spark)
    store, target = tmp_path / "broker-a", tmp_path / "built"
    fill(store, 50)
    staging = target / STAGING
    staging.mkdir(parents=True)
    fd = scratch.lock(staging)
    (staging / "consumequeue").mkdir()
    command = ["rebuild", str(store), "--to", str(target), "--index-slots", "61", "--index-entries", "97"]
    refused = CliRunner().invoke(main, command)
    assert (refused.exit_code, "another rebuild runs here" in refused.stderr) == (3, True), refused.output
    assert staging.is_dir()
    os.close(fd)  # as the system does when a process is killed
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert derived_files(target) == derived_files(store)
    assert not staging.exists()
