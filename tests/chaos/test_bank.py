"""Some of the bank's bugs, each of which has to be caught.  All of them: scripts/chaos bank."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.chaos.bank import (
    BUGS,
    BUILD_SECONDS_MAX,
    CHECK_SECONDS_MAX,
    ROOT,
    SOUND_SECONDS_MAX,
    Bug,
    Build,
    Verdict,
    apply,
    bugs,
    build_native,
    copy,
    native_modules,
    read_bug,
    sound,
    try_bug,
)

ALL = bugs()
# One of each kind, and quick ones.
CHOSEN = (
    "ack_before_store",
    "any_ack_counts_for_all",
    "config_written_in_place",
    "failed_flush_counts_as_flushed",
    "torn_properties_pass",
    "truncation_only_in_memory",
    "wrong_crc_passes",
)
needs_native = pytest.mark.skipif(not native_modules(ROOT), reason="the native modules are not there")
SOME = [bug for bug in ALL if bug.name in CHOSEN]


def test_there_are_a_dozen_at_least_and_the_chosen_ones_are_among_them() -> None:
    assert len(ALL) >= 12
    assert {bug.name for bug in SOME} == set(CHOSEN)


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_a_patch_applies_and_names_tests_that_exist(bug: Bug, tmp_path: Path) -> None:
    for name in ("commitlog", "haservice"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert apply(bug, tmp_path) is None, f"{bug.name}: renew it, see tests/chaos/bank.py"
    for check in bug.checks:
        path, _, function = check.partition("::")
        assert f"def {function.partition('[')[0]}" in (ROOT / path).read_text(), check


@pytest.mark.timeout(SOUND_SECONDS_MAX + 30)
def test_without_a_bug_the_checks_pass() -> None:
    assert sound(SOME) is None


@pytest.mark.timeout(CHECK_SECONDS_MAX + 30)
@pytest.mark.parametrize("bug", SOME, ids=lambda bug: bug.name)
def test_a_bug_that_is_put_back_is_caught(bug: Bug) -> None:
    result = try_bug(bug)
    if result.verdict is Verdict.LEFT_OUT:
        pytest.skip(result.verdict.value)
    assert result.verdict is Verdict.CAUGHT, f"{result.verdict.value}\n{result.text}"


def test_a_bug_of_native_code_says_so(tmp_path: Path) -> None:
    (bug,) = [bug for bug in ALL if bug.name == "wrong_crc_passes_native"]
    assert (bug.build, bug.builds_anew) == (Build.NATIVE, True)
    path = tmp_path / "silent.patch"
    path.write_text(re.sub("^Build: native\n", "", bug.path.read_text(), flags=re.MULTILINE))
    with pytest.raises(ValueError, match="wants the line Build: native"):
        read_bug(path)


@needs_native
@pytest.mark.timeout(BUILD_SECONDS_MAX + 30)
def test_native_code_that_does_not_compile_is_no_bug_and_not_the_old_module_either() -> None:
    with copy() as root:
        (root / "commitlog/kernel/core/bus.h").write_text("#error planted\n")
        said = build_native(root)
    assert said is not None
    assert "planted" in said


def test_a_patch_that_no_longer_applies_is_named(tmp_path: Path) -> None:
    path = tmp_path / "stale.patch"
    diff = "--- a/commitlog/log/log.py\n+++ b/commitlog/log/log.py\n@@ -1,1 +1,1 @@\n-not there\n+neither\n"
    path.write_text(f"Stale.\nOrigin: none\nCheck: x\n\n{diff}")
    with copy() as root:
        said = apply(Bug("stale", "Stale.", "none", ("x",), path), root)
    assert said is not None
    assert "FAILED" in said


def test_the_bugs_that_a_page_names_are_in_the_bank() -> None:
    known = (ROOT / "docs/dledger.md").read_text().partition("### Its known bugs")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_]+)`", known)
    assert len(named) > 20
    assert {f"dledger_{name}" for name in named} <= {bug.name for bug in ALL}


def test_every_patch_is_in_the_directory_of_bugs() -> None:
    assert {bug.path.parent for bug in ALL} == {BUGS}
