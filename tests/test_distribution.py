"""What is published: an sdist that holds all a build needs, and a wheel that installs from a directory of files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import haservice

ROOT = Path(__file__).parents[1]
# Of the text at apache.org/licenses/LICENSE-2.0.txt, and of Debian's copy.
APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
DIRECTORIES = ("commitlog", "haservice", "conf", "docs", "scripts", "tests")
# Without a compiler a build leaves the native kernel out, and takes seconds.
NO_COMPILER = {"CC": "false", "PIP_NO_INDEX": "1"}

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy of this tree, so that nothing is left in it."""
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_native.c", "_sends.c")
    for name in DIRECTORIES:
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, root)
    build = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    run(sys.executable, "-c", build, cwd=root, env=NO_COMPILER)
    (found,) = (root / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of nothing but the sdist."""
    into = tmp_path_factory.mktemp("wheel")
    words = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", into, sdist)
    run(sys.executable, *words, cwd=into, env=NO_COMPILER)
    (found,) = into.iterdir()
    return found


def members(sdist: Path) -> Iterator[str]:
    with tarfile.open(sdist) as archive:
        for name in archive.getnames():
            yield name.partition("/")[2]


def tracked(*patterns: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for directory in DIRECTORIES
        for pattern in patterns
        for path in (ROOT / directory).rglob(pattern)
        if path.is_file() and path.name not in ("_native.c", "_sends.c")
    }


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_the_licence_is_the_standard_text() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == APACHE_2_0


def test_the_version_is_that_of_the_changelog() -> None:
    (first, *_) = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert haservice.__version__ == first


def test_the_sdist_has_all_that_a_build_needs(sdist: Path) -> None:
    needed = tracked("commitlog/**", "haservice/**", "conf/systemd/**")
    needed |= {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "conf/logging.yml"}
    assert needed - set(members(sdist)) == set()


def test_the_wheel_has_every_module_and_file_of_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = tracked("*.py", "*.jinja", "*.typed", "*.html", "*.css", "*.js")
    packages = {one for one in data if one.startswith(("commit", "haserv"))}
    assert packages - names == set()
    assert not [one for one in names if one.startswith(("tests/", "docs/", "conf/", "scripts/"))]


def test_the_wheel_says_what_an_index_shows(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Version"] == haservice.__version__
    assert said["License-Expression"] == "Apache-2.0"
    assert said["License-File"] == "LICENSE"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload() == (ROOT / "README.md").read_text()
    assert "Operating System :: POSIX :: Linux" in said.get_all("Classifier", [])


def test_it_installs_from_a_directory_of_files_and_its_commands_run(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    words = ("-m", "pip", "install", "-q", "--no-deps", "--find-links", wheel.parent, "--prefix", target)
    run(sys.executable, *words, "--ignore-installed", "haservice", cwd=tmp_path, env=NO_COMPILER)
    (library,) = target.glob("lib/python*/site-packages")
    env = {"PYTHONPATH": str(library)}
    where = run(sys.executable, "-c", "import haservice; print(haservice.__file__)", cwd=tmp_path, env=env)
    assert Path(where.strip()).is_relative_to(target)
    shared = {path.name for path in (target / "share" / "haservice").rglob("*") if path.is_file()}
    boards = {path.name for path in (ROOT / "conf" / "observability").iterdir()}
    assert shared == {"logging.yml", "mqbroker@.service", "mqnamesrv.service"} | boards
    for command, words in {"mqbroker": ("--example", "master"), "mqnamesrv": ("--example",)}.items():
        text = run(target / "bin" / command, *words, cwd=tmp_path, env=env)
        assert "listenPort=" in text
