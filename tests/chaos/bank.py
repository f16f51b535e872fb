"""The bank of bugs: defects that RocketMQ or we have had, each put back and to be caught.

    bugs/NAME.patch    what the defect is | Origin: | Build: | Check: tests to run, one a line | a unified diff

A patch is applied to a copy of the packages; its check, which passes without it, has to fail there.  One
that no longer applies fails the bank.

`Build: python` runs the check with HASERVICE_PURE=1: the bug is in what native code does elsewhere, and nobody
would meet it.  `Build: native` is for a bug of native code, or on the way to it; without the line the check runs
with the build that is in force.  Where a patch changes native sources, the copy's modules are built anew.

    python -m tests.chaos.bank list                what there is
    python -m tests.chaos.bank run NAME…           some, or all
    python -m tests.chaos.bank open NAME DIR       a copy with the patch, as far as it goes, to edit
    python -m tests.chaos.bank save NAME DIR       the difference becomes the patch; its head stays
"""

from __future__ import annotations

import difflib
import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.kernel.native import PURE
from tests.support.waiting import slowness

if TYPE_CHECKING:
    from tests.chaos.report import Report

LAYER = "bank"
ROOT = Path(__file__).parents[2]
BUGS = Path(__file__).parent / "bugs"
PACKAGES = ("commitlog", "haservice")
_COPIED = (*PACKAGES, "tests", "conf", "scripts")
_FILES = ("setup.cfg", "pyproject.toml", "README.md", "CHANGELOG.md")
_LEFT_OUT = shutil.ignore_patterns("interop", "node_modules", "*.java", ".*")
# A check that hangs is a caught bug, if it hangs without end only with the bug: without any, nothing cuts it short.
CHECK_SECONDS_MAX = 150 * slowness()
TEST_SECONDS_MAX = 40 * slowness()
PATIENCE_S = 8 * slowness()
SOUND_SECONDS_MAX = 1800
BUILD_SECONDS_MAX = 240 * slowness()
_SHOWN_LINES = 12
_SOURCES = (".py", ".pyx", ".pxd", ".h")
_NATIVE_CHANGED = re.compile(r"^\+\+\+ \S+\.(pyx|pxd|h)$", re.MULTILINE)
_BUILD_NATIVE = "from setuptools import setup; setup(script_args=['-q', 'build_ext', '--inplace'])"


class Build(enum.Enum):
    """With what a check runs."""

    ANY = "any"
    PYTHON = "python"
    NATIVE = "native"


class Verdict(enum.Enum):
    """What became of a bug."""

    CAUGHT = "caught"
    MISSED = "MISSED: its check passes with the bug in place"
    STALE = "STALE: its patch no longer applies"
    BROKEN = "BROKEN: its check does not run"
    LEFT_OUT = "left out: the native modules are not there"

    @property
    def well(self) -> bool:
        return self in (Verdict.CAUGHT, Verdict.LEFT_OUT)


@dataclass(frozen=True)
class Bug:
    """One defect, as its patch file tells it."""

    name: str
    what: str
    origin: str
    checks: tuple[str, ...]
    path: Path
    build: Build = Build.ANY
    builds_anew: bool = False


@dataclass(frozen=True)
class Result:
    bug: Bug
    verdict: Verdict
    seconds: float
    text: str = ""


def bugs() -> list[Bug]:
    """All of them, in the order of their names."""
    return [read_bug(path) for path in sorted(BUGS.glob("*.patch"))]


def read_bug(path: Path) -> Bug:
    """Raises ValueError for a patch whose head is not as the module says."""
    head, diff = _split(path.read_text())
    what, origin, checks, build = [], "", [], Build.ANY
    for line in head.splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name == "Origin":
            origin = rest.strip()
        elif colon and name == "Check":
            checks.append(rest.strip())
        elif colon and name == "Build":
            build = Build(rest.strip())
        elif line.strip():
            what.append(line.strip())
    if not what or not origin or not checks:
        raise ValueError(f"{path}: wanted are a sentence, an Origin and a Check before the diff")
    builds_anew = _NATIVE_CHANGED.search(diff) is not None
    if builds_anew and build is not Build.NATIVE:
        raise ValueError(f"{path}: it changes native sources, so it wants the line Build: native")
    return Bug(path.stem, " ".join(what), origin, tuple(checks), path, build, builds_anew)


def _split(text: str) -> tuple[str, str]:
    """Head and diff of a patch file."""
    at = re.search(r"^--- ", text, re.MULTILINE)
    return (text[: at.start()], text[at.start() :]) if at else (text, "")


@contextmanager
def copy() -> Iterator[Path]:
    """A copy of what a check needs, with the compiled modules, which are still those of their sources."""
    with tempfile.TemporaryDirectory(prefix="bank-", dir=_fast_directory()) as directory:
        root = Path(directory)
        copy_to(root)
        yield root


def copy_to(root: Path) -> None:
    for name in _COPIED:
        shutil.copytree(ROOT / name, root / name, ignore=_LEFT_OUT)
    for name in _FILES:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, root / name)


def _fast_directory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def apply(bug: Bug, root: Path) -> str | None:
    """None if the whole patch applies; else what patch(1) said.

    Context counts to the letter: a line that stands twice would else be taken from the wrong place.
    """
    options = ("-p1", "--batch", "--forward", "--no-backup-if-mismatch", "--fuzz=0")
    command = ["patch", *options, "-i", str(bug.path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode == 0 else done.stdout + done.stderr


def native_modules(root: Path) -> list[Path]:
    """The compiled modules, if all of them are there."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [
        str(module["name"]).replace(".", "/") for module in settings["tool"]["setuptools"]["ext-modules"]
    ]
    found = [sorted(root.glob(f"{name}.*.so")) for name in names]
    return [paths[0] for paths in found] if all(found) else []


def build_native(root: Path) -> str | None:
    """Builds the copy's native modules of its own sources; None, or what the compiler said."""
    for path in native_modules(root):
        path.unlink()
    settings = root / "pyproject.toml"
    # Whether a check catches it does not turn on speed; the compiler's time does.
    settings.write_text(settings.read_text().replace('"-O3"', '"-O1"'))
    command = [sys.executable, "-c", _BUILD_NATIVE]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not built within {BUILD_SECONDS_MAX} s"
    # They are optional: of one that does not compile there is but a warning, and no file.
    return None if native_modules(root) else done.stdout + done.stderr


def check(
    checks: Iterable[str], root: Path, build: Build = Build.ANY, *, has_bug: bool = True
) -> tuple[int, str]:
    """pytest's exit code over `checks` in the copy, and its last lines; -1 when it did not end."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    limit_s, environment = float(SOUND_SECONDS_MAX), {"HASERVICE_TEST_SLOWNESS": "10"}
    if has_bug:
        # What has to happen soon, and with a bug never does, is not waited for as long as on a busy machine.
        limit_s = CHECK_SECONDS_MAX
        environment = {"HASERVICE_TEST_SLOWNESS": "1", "HASERVICE_TEST_PATIENCE_S": str(PATIENCE_S)}
        command += ["-o", f"timeout={TEST_SECONDS_MAX}"]
    environment = {
        **os.environ,
        **environment,
        "PYTHONPATH": str(root),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(root / ".hypothesis"),
    }
    if build is not Build.ANY:
        environment[PURE] = "1" if build is Build.PYTHON else ""
    try:
        done = subprocess.run(
            [*command, *checks],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"did not end within {limit_s:g} s"
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:])


def try_bug(bug: Bug) -> Result:
    """Puts the bug into a copy and runs its check there."""
    began_s = time.monotonic()
    if bug.build is Build.NATIVE and not native_modules(ROOT):
        return Result(bug, Verdict.LEFT_OUT, 0.0)
    with copy() as root:
        said = apply(bug, root)
        if said is not None:
            how = f"open {bug.name} DIR, edit, save {bug.name} DIR"
            text = f"{said}renew it: python -m tests.chaos.bank {how}"
            return Result(bug, Verdict.STALE, time.monotonic() - began_s, text)
        said = build_native(root) if bug.builds_anew else None
        if said is not None:
            return Result(bug, Verdict.BROKEN, time.monotonic() - began_s, said)
        code, text = check(bug.checks, root, bug.build)
    verdict = {0: Verdict.MISSED, 1: Verdict.CAUGHT, -1: Verdict.CAUGHT}.get(code, Verdict.BROKEN)
    return Result(bug, verdict, time.monotonic() - began_s, text)


def sound(some: Sequence[Bug]) -> str | None:
    """None if all their checks pass without any bug; else what failed."""
    with copy() as root:
        for build in Build:
            checks = sorted({check for bug in some if bug.build is build for check in bug.checks})
            if not checks or (build is Build.NATIVE and not native_modules(root)):
                continue
            code, text = check(checks, root, build, has_bug=False)
            if code != 0:
                return text
    return None


def run(_rounds: int, seed: int, report: Report) -> None:
    """All bugs, `report.jobs` at a time; there is nothing random in it."""
    some = bugs()
    report.figure(LAYER, "bugs", len(some))
    text = sound(some)
    if text is not None:
        report.failure(
            LAYER, seed, f"the checks fail without any bug\n{text}", "python -m tests.chaos.bank run"
        )
    with ThreadPoolExecutor(report.jobs) as pool:
        for number, result in enumerate(pool.map(try_bug, some), 1):
            report.progress(LAYER, number, len(some))
            report.add(LAYER, result.verdict.name.lower())
            report.figure(LAYER, result.bug.name, f"{result.verdict.name.lower()}, {result.seconds:.1f} s")
            if not result.verdict.well:
                name = result.bug.name
                report.failure(
                    LAYER,
                    seed,
                    f"{name}: {result.verdict.value}\n{result.bug.what}\n{result.text}",
                    f"python -m tests.chaos.bank run {name}",
                )


# -- by hand ---------------------------------------------------------------------------------------


def difference(root: Path) -> str:
    """The diff from the packages here to those of a copy, with one line around each change."""
    pieces: list[str] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix not in _SOURCES:
                continue
            name = path.relative_to(ROOT)
            old, new = path.read_text(), (root / name).read_text()
            if old != new:
                lines = difflib.unified_diff(
                    old.splitlines(keepends=True),
                    new.splitlines(keepends=True),
                    f"a/{name}",
                    f"b/{name}",
                    n=1,
                )
                pieces += lines
    return "".join(pieces)


def main(arguments: list[str]) -> int:
    what, *rest = arguments or ["list"]
    if what == "list":
        for bug in bugs():
            print(f"{bug.name:34} {bug.what} ({bug.origin})")
        return 0
    if what == "run":
        chosen = [bug for bug in bugs() if not rest or bug.name in rest]
        text = sound(chosen)
        if text is not None:
            print(f"the checks fail without any bug\n{text}")
        results = [try_bug(bug) for bug in chosen]
        for result in results:
            print(f"{result.bug.name:34} {result.verdict.value} {result.seconds:.1f} s")
            if not result.verdict.well:
                print(result.text)
        return int(text is not None or any(not result.verdict.well for result in results))
    name, directory = rest
    path, root = BUGS / f"{name}.patch", Path(directory)
    if what == "open":
        copy_to(root)
        if path.exists():
            print(apply(read_bug(path), root) or "the patch applies")
        return 0
    head = _split(path.read_text())[0] if path.exists() else "What it is.\nOrigin: \nCheck: \n\n"
    path.write_text(head + difference(root))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
