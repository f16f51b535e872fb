"""What pip makes of the sources: with a compiler, without one, as a wheel and as an sdist."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import haservice

pytestmark = pytest.mark.timeout(300)  # compilers run

ROOT = Path(__file__).resolve().parents[2]
BUILT = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.egg-info")
SAY = "from commitlog.kernel import native; print(native.__file__, native.build)"
NATIVE_SOURCES = sorted(
    str(path.relative_to(ROOT))
    for package in ("commitlog", "haservice")
    for suffix in ("pyx", "pxd", "h")
    for path in (ROOT / package).rglob(f"*.{suffix}")
)

OBSERVABILITY = sorted(path.name for path in (ROOT / "conf" / "observability").iterdir())


def extension_modules() -> dict[str, list[str]]:
    """By name, what each extension module is made of."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        module["name"]: [*module["sources"], *module["depends"]]
        for module in settings["tool"]["setuptools"]["ext-modules"]
    }


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources alone: nothing built, nothing prepared."""
    clone = tmp_path_factory.mktemp("clone")
    for name in ("commitlog", "haservice", "conf"):
        shutil.copytree(ROOT / name, clone / name, ignore=BUILT)
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, clone)
    return clone


def pip(*words: str | Path, **environment: str) -> str:
    """pip with what is installed here, so that nothing is fetched."""
    command = [sys.executable, "-m", "pip", *words, "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_of(site: Path) -> str:
    """Where the package that a Python with `site` in front takes is from, and its build."""
    clean = {name: value for name, value in os.environ.items() if name != "HASERVICE_PURE"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SAY],
        env={**clean, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
        cwd=site,
    )
    path, _, build = done.stdout.strip().partition(" ")
    assert Path(path).is_relative_to(site)
    return build


def test_without_a_compiler_it_installs_and_works(clone: Path, tmp_path: Path) -> None:
    pip("install", "-q", "--target", tmp_path, clone, CC="/nonexistent")
    assert build_of(tmp_path).startswith("python (the native kernel is not there")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "haservice.admin.mqbroker", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("module", extension_modules())
def test_where_a_compiler_is_every_module_is_built_here_for_an_optional_one_fails_silently(
    module: str,
) -> None:
    importlib.import_module(module)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_wheel_has_what_was_built_and_runs_where_no_compiler_is(clone: Path, tmp_path: Path) -> None:
    pip("wheel", "-q", "-w", tmp_path, clone)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    others = [name for name in names if not name.endswith(".py") and ".dist-info/" not in name]
    pages = [name for name in others if name.startswith("haservice/console/")]
    assert {name.rpartition(".")[2] for name in pages} == {"css", "html", "js"}
    others = [name for name in others if name not in pages]
    modules = {re.sub(r"\.cpython.*\.so$", "", name) for name in others if name.endswith(".so")}
    assert modules == {name.replace(".", "/") for name in extension_modules()}
    assert sorted(name for name in others if not name.endswith(".so")) == [
        "commitlog/py.typed",
        *(
            f"haservice-{haservice.__version__}.data/data/share/haservice/{name}"
            for name in (
                "logging.yml",
                *(f"observability/{name}" for name in OBSERVABILITY),
                "systemd/mqbroker@.service",
                "systemd/mqnamesrv.service",
            )
        ),
        "haservice/pipeline/jobs/report.html.jinja",
        "haservice/py.typed",
    ]
    assert not [name for name in names if not name.startswith(("commitlog/", "haservice"))]
    site = tmp_path / "site"
    pip("install", "-q", "--target", site, wheel, CC="/nonexistent")
    assert build_of(site) == "native"


def test_an_sdist_has_all_that_is_compiled(clone: Path, tmp_path: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=clone, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = [name.partition("/")[2] for name in file.getnames()]
    assert sorted(name for name in names if name.endswith((".pyx", ".pxd", ".h"))) == NATIVE_SOURCES
    assert not [name for name in names if name.endswith(".so")]


def test_every_native_source_is_named_so_that_a_change_of_it_builds_anew() -> None:
    named = {path for paths in extension_modules().values() for path in paths}
    assert named == set(NATIVE_SOURCES)


# -- scripts/_prepare.py ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "scripts" / "_prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notice_says_what_it_costs_and_how_to_have_it(
    prepare: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/nonexistent -pthread")
    missing = prepare.missing_for_native()
    assert missing == "/nonexistent"
    notice = prepare.notice(missing)
    assert "a third of the speed" in notice
    assert "there is no /nonexistent" in notice
    assert "apt install gcc python3-dev, then the same command again" in notice
    assert "pip install -v" in prepare.notice("")


def test_what_was_built_of_older_sources_is_not_left_to_be_taken_for_theirs(
    prepare: ModuleType, tmp_path: Path
) -> None:
    modules = prepare.native_modules(ROOT)
    assert modules == list(extension_modules())
    built = []
    for module in modules:
        path = tmp_path.joinpath(*module.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        built.append(path.with_name(f"{path.name}.cpython-311-x86_64-linux-gnu.so"))
        built[-1].touch()
        path.with_suffix(".pyx").touch()
    prepare.forget_native(tmp_path, modules)
    assert not [path for path in built if path.exists()]
    assert list(tmp_path.rglob("*.pyx"))
