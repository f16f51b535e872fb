"""The session: what is missing is named with its fix, and what the user says goes before our settings."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from commitlog.kernel import native
from haservice.pipeline import progress as progress_bar
from haservice.pipeline.progress import Tasks, progress, rate_text, tasks_of
from haservice.pipeline.session import (
    SOCKET_DIRECTORY,
    NoSpark,
    check_java,
    check_package,
    is_local,
    say_if_slow,
    session,
    unix_sockets,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java(directory: Path, text: str) -> Path:
    """A java that says what a test wants."""
    path = directory / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return directory


def says(version: str, rest: str = "exit 0") -> str:
    return (
        f'case "$1" in -version) echo \'openjdk version "{version}" 2025-04-15\' >&2; exit 0;; esac\n{rest}'
    )


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoSpark, match=r"no Java.*\n.*apt install openjdk-17-jre-headless"):
        check_java()


def test_a_java_home_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoSpark, match=f"{tmp_path}/bin/java: No such file"):
        check_java()


@pytest.mark.parametrize(("version", "number"), [("11.0.2", 11), ("1.8.0_402", 8), ("16", 16)])
def test_an_old_java_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, number: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, says(version))))
    with pytest.raises(NoSpark, match=f"is Java {number}, Spark needs 17 or newer"):
        check_java()


def test_a_java_of_a_cut_down_image_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacking = "echo 'java.lang.module.FindException: Module jdk.incubator.vector not found' >&2; exit 1"
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, says("21.0.8", lacking))))
    with pytest.raises(NoSpark, match=r"lacks the module jdk\.incubator\.vector"):
        check_java()


def test_a_fitting_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(
        "JAVA_HOME", str(java(tmp_path, says("25", "echo Using incubator modules: jdk.incubator.vector >&2")))
    )
    check_java()


def test_a_package_that_is_missing_or_old_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(NoSpark, match=r"no-such-package is not installed for .*\n  pip install '\.\[spark"):
        check_package("no-such-package", (1, 0))
    with pytest.raises(NoSpark, match=r"pyarrow [0-9.]+ is too old, 999\.0 is the least\n  pip install"):
        check_package("pyarrow", (999, 0))


@pytest.mark.parametrize(("lacking", "said"), [("No module named _native", 1), ("", 0)])
def test_who_reads_logs_slowly_without_having_asked_for_that_is_told_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacking: str, said: int
) -> None:
    monkeypatch.setattr(native, "lacking", lacking)
    say_if_slow()
    assert caplog.text.count("apt install gcc python3-dev") == said


def test_a_rate_is_in_tasks_or_in_the_bytes_that_they_stand_for() -> None:
    assert rate_text(Tasks(5, 10), 2.0, None) == "2.5 tasks/s"
    assert rate_text(Tasks(5, 10), 2.0, 4 * 1024 * 1024) == "1.0 MiB/s"
    assert rate_text(Tasks(0, 0), 0.0, 100) == "0.0 tasks/s"


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_workers_run_this_python_and_know_this_package(spark: SparkSession) -> None:
    def where(_: object) -> str:
        import haservice

        return f"{sys.executable} {haservice.__file__}"

    import haservice

    found = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert found == [f"{sys.executable} {haservice.__file__}"]


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_java_and_python_of_one_machine_talk_over_sockets_of_a_directory_of_their_own(
    spark: SparkSession,
) -> None:
    directory = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir") or "/")
    spark.range(3).rdd.map(lambda row: row.id).collect()
    assert list(directory.glob(".*.sock"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_directory_of_sockets_goes_with_its_process_and_with_no_other() -> None:
    code = """
import os, sys
from haservice.pipeline.session import SOCKET_DIRECTORY, unix_sockets
directory = unix_sockets()[SOCKET_DIRECTORY]
child = os.fork()
if child:
    os.waitpid(child, 0)
    print(directory, os.path.isdir(directory))
else:
    sys.exit()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=True,
    )
    directory, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(directory).exists()


def test_a_directory_too_long_for_the_path_of_a_socket_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    (directory,) = unix_sockets().keys() & {SOCKET_DIRECTORY}
    monkeypatch.setattr(
        "haservice.pipeline.session.SOCKET_DIRECTORY_BYTES_MAX", len(unix_sockets()[directory]) - 1
    )
    assert unix_sockets() == {}


def test_a_cluster_keeps_its_own_way_between_java_and_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_local("local[2]")
    assert is_local(None)
    for master in ("yarn", "spark://there:7077", "k8s://https://there"):
        assert not is_local(master)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    assert not is_local(None)


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_session_that_runs_is_used_again_with_what_is_asked_of_it(spark: SparkSession) -> None:
    again = session(conf={"spark.sql.session.timeZone": "Asia/Shanghai"})
    try:
        assert again is spark
        assert again.conf.get("spark.sql.session.timeZone") == "Asia/Shanghai"
        assert again.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    finally:
        again.conf.set("spark.sql.session.timeZone", "UTC")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_bar_counts_the_tasks_of_the_jobs_inside_and_no_others(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.range(100, numPartitions=7).count()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(spark, "counting"):
        group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
        assert group is not None
        spark.range(100, numPartitions=3).rdd.count()
    assert tasks_of(spark.sparkContext, group) == Tasks(3, 3)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    assert "counting" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


@pytest.mark.timeout(60)
def test_a_bar_that_was_full_shows_what_has_been_planned_since(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, stop = Terminal(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    looks = iter([Tasks(13, 13), Tasks(14, 130)])

    def look(*_: object) -> Tasks:
        tasks = next(looks)
        if tasks.known > tasks.done:
            stop.set()
        return tasks

    monkeypatch.setattr(progress_bar, "tasks_of", look)
    progress_bar._Watch(None, "", "queues", None).run(stop)  # type: ignore[arg-type]
    drawn = [one for one in terminal.getvalue().split("\r") if "14/130" in one]
    assert drawn
    assert "-" * 30 in drawn[-1]


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_no_bar_is_drawn_where_nobody_looks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with progress(spark, "counting"):
        spark.range(10).count()
    assert file.getvalue() == ""
