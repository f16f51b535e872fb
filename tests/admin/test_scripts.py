"""The shell around the programs: which Python it takes, when it prepares, and what CI runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("cat", "cksum", "dirname", "find", "readlink", "sh", "sort", "env", "bash")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The scripts and what they look at, in a place of their own with a blank in its name."""
    clone = tmp_path / "a clone"
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    program(clone / "commitlog" / "kernel" / "core" / "some.h", "/* C */")
    (clone / "haservice").mkdir()
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    return clone


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(clone: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [clone / "scripts" / script, *arguments],
        env={"PATH": str(clone.parent / "bin")},
        capture_output=True,
        text=True,
        check=False,
        cwd=clone.parent,
        timeout=30,
    )


# Stands for a Python that is new enough; "prepares" by writing the stamp, and says so.
PREPARES = """case "$1" in
-c) exit 0;;
*_prepare.py) echo prepared "$3" >&2; echo "$4" > "$2/.venv/.prepared-$3";;
esac"""


def test_without_a_fitting_python_it_says_what_to_install(clone: Path) -> None:
    program(clone.parent / "bin" / "python3", "exit 1")  # too old, or a shim that refuses
    done = run(clone, "mqadmin")
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
    assert "apt install" in done.stderr


def test_the_first_use_prepares_and_the_next_does_not(clone: Path) -> None:
    program(clone.parent / "bin" / "python3.12", "exit 127")
    program(clone.parent / "bin" / "python3", PREPARES)
    program(clone / ".venv" / "bin" / "python", "exit 0")
    program(clone / ".venv" / "bin" / "mqadmin", 'echo "ran $*"')
    first = run(clone, "mqadmin", "topicList", "-n", "a b")
    assert (first.returncode, first.stdout, first.stderr) == (0, "ran topicList -n a b\n", "prepared run\n")
    second = run(clone, "mqadmin")
    assert (second.stdout, second.stderr) == ("ran \n", "")


def test_the_pipeline_has_spark_prepared(clone: Path) -> None:
    program(clone.parent / "bin" / "python3", PREPARES)
    program(clone / ".venv" / "bin" / "python", "exit 0")
    program(clone / ".venv" / "bin" / "mqpipeline", 'echo "ran $*"')
    done = run(clone, "mqpipeline", "lag-report", "a b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran lag-report a b\n", "prepared spark\n")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("tests/commitlog -x", "part"),
        ("-q tests/broker/test_node.py tests/test_house.py", "part"),
        ("tests/broker tests/pipeline/test_bulk.py", "test"),
        ("tests", "test"),
        ("-k audit", "test"),
    ],
)
def test_tests_of_parts_without_spark_install_none(clone: Path, arguments: str, extra: str) -> None:
    program(clone.parent / "bin" / "python3", PREPARES)
    program(clone / ".venv" / "bin" / "python", 'echo "ran $*"')
    done = run(clone, "test", *arguments.split())
    assert (done.stdout, done.stderr) == (f"ran -m pytest {arguments}\n", f"prepared {extra}\n")


def test_it_prepares_again_when_what_is_needed_changed_or_the_clone_moved(clone: Path) -> None:
    program(clone.parent / "bin" / "python3", PREPARES)
    program(clone / ".venv" / "bin" / "python", "exit 0")
    program(clone / ".venv" / "bin" / "mqbroker", "exit 0")
    assert "prepared" in run(clone, "mqbroker").stderr
    with (clone / "setup.cfg").open("a") as file:
        file.write("# another line\n")
    assert "prepared" in run(clone, "mqbroker").stderr
    assert "prepared" not in run(clone, "mqbroker").stderr
    with (clone / "commitlog" / "kernel" / "core" / "some.h").open("a") as file:
        file.write("/* more C */\n")
    assert "prepared" in run(clone, "mqbroker").stderr
    assert "prepared" not in run(clone, "mqbroker").stderr
    moved = clone.rename(clone.parent / "moved")
    assert "prepared" in run(moved, "mqbroker").stderr


def test_what_the_native_kernel_lacked_is_looked_for_again(clone: Path) -> None:
    program(clone.parent / "bin" / "python3", PREPARES)
    program(clone / ".venv" / "bin" / "python", "exit 0")
    program(clone / ".venv" / "bin" / "mqbroker", "exit 0")
    header = clone / "include" / "Python.h"
    for wants, comes in (("x86_64-linux-gnu-gcc", clone.parent / "bin" / "cc"), (str(header), header)):
        assert "prepared" in run(clone, "mqbroker").stderr or comes == header
        (clone / ".venv" / ".native-wants").write_text(f"{wants}\n")
        assert "prepared" not in run(clone, "mqbroker").stderr
        program(comes, "exit 0")
        assert "prepared" in run(clone, "mqbroker").stderr


def test_a_script_works_through_a_link(clone: Path, tmp_path: Path) -> None:
    program(clone.parent / "bin" / "python3", PREPARES)
    program(clone / ".venv" / "bin" / "python", "exit 0")
    program(clone / ".venv" / "bin" / "mqadmin", "echo ran")
    link = tmp_path / "elsewhere" / "mqadmin"
    link.parent.mkdir()
    link.symlink_to(clone / "scripts" / "mqadmin")
    assert subprocess.run(
        [link], env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, check=True
    ).stdout == ("ran\n")


def test_a_failed_preparation_ends_the_script(clone: Path) -> None:
    program(clone.parent / "bin" / "python3", 'case "$1" in -c) exit 0;; *) exit 1;; esac')
    program(clone / ".venv" / "bin" / "mqadmin", "echo ran")
    done = run(clone, "mqadmin")
    assert (done.returncode, done.stdout) == (1, "")


def test_every_script_can_be_run_and_stops_at_the_first_failure() -> None:
    for script in (ROOT / "scripts").iterdir():
        if script.name.startswith("_"):
            continue
        assert os.access(script, os.X_OK), script
        text = script.read_text()
        if text.startswith(("#!/bin/sh", "#!/usr/bin/env bash", "#!/bin/bash")):
            assert "\nset -eu" in text, script


def test_ci_runs_what_the_readme_tells_its_reader() -> None:
    """Whole, and then once more what needs optional programs, with these hidden."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert '"$root/scripts/test"' in lines
    assert any(line.startswith('env -u JAVA_HOME PATH="$hidden" "$root/scripts/test" ') for line in lines)
    assert "scripts/test" in (ROOT / "README.md").read_text()
