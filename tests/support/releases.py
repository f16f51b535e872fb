"""The release before this one: found in the history, unpacked, and run beside this one.

CHANGELOG.md names the version.  Its tag `vX.Y.Z` names the commit; without one it is the commit that gave the
code that version number.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]
HEADING = re.compile(r"^## (\d+\.\d+\.\d+)$", re.MULTILINE)
INSTALL_SECONDS = 120


class NoRelease(Exception):
    """There is none to be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of haservice, and how its commands are run by this Python."""

    version: str
    path: tuple[Path, ...] = ()
    """Directories that go before those of this version; none for this version itself."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """mqbroker → module:function"""

    def command(self, name: str, *arguments: str) -> list[str]:
        module, _, function = self.commands[name].partition(":")
        return [sys.executable, "-c", f"from {module} import {function}; {function}()", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(map(str, self.path))} if self.path else {}


def this_release() -> Release:
    return Release(HEADING.findall((HERE / "CHANGELOG.md").read_text())[0], (), _commands(HERE))


def previous_release(directory: Path) -> Release:
    """Unpacked below `directory`, with what it needs and this one does not.  Skips if it is not to be had."""
    try:
        version, commit = find_previous(HERE)
        source = unpack(HERE, commit, directory / "source")
        site = install_missing(source, directory / "site")
    except NoRelease as why:
        pytest.skip(f"the release before this one: {why}")
    return Release(version, (source, site), _commands(source))


def find_previous(clone: Path) -> tuple[str, str]:
    """Its version, and the commit.  Raises NoRelease."""
    if not (clone / ".git").exists():
        raise NoRelease(f"{clone} is no clone, it has no history")
    _, before, *_ = [*HEADING.findall((clone / "CHANGELOG.md").read_text()), "", ""]
    if not before:
        raise NoRelease("CHANGELOG.md has no version but this one")
    if tagged := _git(clone, "rev-parse", "-q", "--verify", f"refs/tags/v{before}^{{commit}}", fails=True):
        return before, tagged
    if _git(clone, "rev-parse", "--is-shallow-repository") == "true":
        raise NoRelease("the history is shallow: git fetch --unshallow")
    said = f"^(version = |__version__ = .){re.escape(before)}"
    places = ("setup.cfg", "haservice/__init__.py")
    found = _git(clone, "log", "--reverse", "--format=%H", "-E", f"-G{said}", "--", *places).split()
    if not found:
        raise NoRelease(
            f"no commit gave {' or '.join(places)} the version {before}, and there is no tag v{before}"
        )
    return before, found[0]


def unpack(clone: Path, commit: str, into: Path) -> Path:
    """The commit's packages, without history."""
    archive = into.with_suffix(".tar")
    _git(clone, "archive", "-o", str(archive), commit, "setup.cfg", "commitlog", "haservice")
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    archive.unlink()
    return into


def install_missing(source: Path, into: Path) -> Path:
    """What the release requires and this environment lacks, by pip.  Raises NoRelease."""
    required = _setup(source)["options"]["install_requires"].split("\n")
    if missing := [one for one in required if one and not _is_installed(one)]:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(into), *missing]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode:
            raise NoRelease(f"pip cannot install {' '.join(missing)}: {done.stderr.strip()[-300:]}")
    return into


def _is_installed(requirement: str) -> bool:
    try:
        importlib.metadata.distribution(re.split(r"[^\w.-]", requirement)[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _commands(source: Path) -> dict[str, str]:
    lines = _setup(source)["options.entry_points"]["console_scripts"].split("\n")
    return {name.strip(): where.strip() for name, _, where in (line.partition("=") for line in lines) if name}


def _setup(source: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(source / "setup.cfg")
    return parser


def _git(clone: Path, *arguments: str, fails: bool = False) -> str:
    """What it prints; with `fails`, "" if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(clone), *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        raise NoRelease(f"git does not run: {error}") from None
    if done.returncode and not fails:
        raise NoRelease(f"git {arguments[0]}: {done.stderr.strip()}")
    return "" if done.returncode else done.stdout.strip()
