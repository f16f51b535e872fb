"""Which build is in force, and how it is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from commitlog.kernel import native

SAY = "from commitlog.kernel import native; print(native.core is None, native.build, sep='|')"


@pytest.mark.parametrize("value", ["1", "yes"])
def test_a_process_is_told_to_run_the_reference(value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        env={**os.environ, native.PURE: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True|python (HASERVICE_PURE is set)\n"


@pytest.mark.parametrize("environment", [{}, {native.PURE: ""}, {native.PURE: "0"}])
def test_the_native_kernel_is_in_force_where_it_is(environment: dict[str, str]) -> None:
    core, build, lacking = native.load(environment, "zlib")
    assert core is not None
    assert (build, lacking) == ("native", "")


def test_a_kernel_that_is_not_there_is_said_and_stops_nobody() -> None:
    core, build, lacking = native.load({}, "commitlog.kernel._not_built")
    assert core is None
    assert lacking == "No module named 'commitlog.kernel._not_built'"
    assert build == f"python (the native kernel is not there: {lacking})"


def test_forcing_the_reference_is_no_lack() -> None:
    assert native.load({native.PURE: "1"}, "commitlog.kernel._not_built")[2] == ""
