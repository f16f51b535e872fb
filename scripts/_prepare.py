"""Makes or mends the clone's .venv: called by scripts/_env when its stamp does not match.

    _prepare.py ROOT EXTRA WANTED      EXTRA is a key of EXTRAS; WANTED is the stamp's new text

Standard library only, for nothing is installed yet.  Two scripts started at once meet at the
lock: the second waits, finds the stamp that the first wrote, and has nothing left to do.
pip's own settings (index, proxies, find-links) come from its environment and files, as ever.

pip builds the extension modules of pyproject.toml where a compiler is, and goes on without them where none is.  Then
one notice says what that costs, and .venv/.native-wants names what is missing, so that they are built once it is there.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

# What pip is asked for, and which stamps that is worth.
EXTRAS = {
    "run": ("", ["run"]),
    "spark": ("[spark]", ["spark", "run"]),
    "console": ("[console]", ["console", "run"]),
    "etcd": ("[etcd]", ["etcd", "run"]),
    "part": ("[test]", ["part", "console", "etcd", "run"]),
    "test": ("[test,spark]", ["test", "part", "spark", "console", "etcd", "run"]),
}
# How long it takes on two cores, most of it pip's.
_MINUTE, _WITH_SPARK = "about a minute", "a few minutes, for it gets Spark, which is 400 MB"
LASTS = {name: _WITH_SPARK if name in ("spark", "test") else _MINUTE for name in EXTRAS}


def main(root: Path, extra: str, wanted: str) -> int:
    venv = root / ".venv"
    stamp = venv / f".prepared-{extra}"
    # The clone's own directory is the lock: it is always there, and leaves no file behind.
    lock = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another command, which prepares {venv} …", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    native_wants = venv / ".native-wants"
    pointless = not native_wants.exists() or missing_for_native()
    if stamp.exists() and stamp.read_text().strip() == wanted and pointless and works(venv):
        return 0
    print(f"preparing {venv}, once: {LASTS[extra]} …", file=sys.stderr, flush=True)
    if not make(venv, moved=not belongs_here(venv)):
        return 1
    modules = native_modules(root)
    if not any(one.read_text().strip() == wanted for one in venv.glob(".prepared-*")):
        forget_native(root, modules)  # else a program that starts meanwhile would run without it
    suffix, stamps = EXTRAS[extra]
    target = f"{root}{suffix}"
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--editable", target], check=False).returncode != 0:
        print(
            f"pip could not install {target}: mend what it says above, then run this again", file=sys.stderr
        )
        return 1
    native_wants.unlink(missing_ok=True)
    if not imports(venv, modules):
        missing = missing_for_native()
        print(notice(missing), file=sys.stderr)
        if missing:
            native_wants.write_text(missing + "\n")
    for name in stamps:
        (venv / f".prepared-{name}").write_text(wanted + "\n")
    return 0


def native_modules(root: Path) -> list[str]:
    """The extension modules that pyproject.toml names."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    return [str(module["name"]) for module in settings["tool"]["setuptools"]["ext-modules"]]


def forget_native(root: Path, modules: list[str]) -> None:
    """Removes what was built of sources that are no longer these; a process that runs it keeps it."""
    for module in modules:
        path = root.joinpath(*module.split("."))
        for built in path.parent.glob(f"{path.name}.*.so"):
            built.unlink(missing_ok=True)


def imports(venv: Path, modules: list[str]) -> bool:
    words = [str(venv / "bin" / "python"), "-c", f"import {', '.join(modules)}"]
    return subprocess.run(words, check=False, capture_output=True, cwd=venv).returncode == 0


def missing_for_native() -> str:
    """The command or file without which nothing is compiled here; "" if all is there."""
    compiler = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))[0]
    if shutil.which(compiler) is None:
        return compiler
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else str(header)


def notice(missing: str) -> str:
    costs = "Without its native kernel haservice does all it does, in Python, at about a third of the speed."
    if missing:
        return (
            f"{costs}\nIt was not built, for there is no {missing}.  To have it, on Debian and Ubuntu: "
            "apt install gcc python3-dev, then the same command again."
        )
    return f"{costs}\nIt could not be built; python -m pip install -v -e . in this clone says why."


def belongs_here(venv: Path) -> bool:
    """False when the clone was moved or copied: the commands in a .venv hold its absolute path."""
    try:
        return f"{venv}/bin/python" in (venv / "bin" / "pip").read_text()
    except OSError:
        return False


def works(venv: Path) -> bool:
    """False when there is none, or when the Python it was made with is gone."""
    python = venv / "bin" / "python"
    return python.exists() and subprocess.run([str(python), "-c", ""], check=False).returncode == 0


def make(venv: Path, moved: bool) -> bool:
    """Creates the environment where there is none that works; says what is missing when it cannot."""
    if not moved and works(venv):
        return True
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], check=False, capture_output=True, text=True
    )
    if made.returncode != 0:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(made.stdout + made.stderr, file=sys.stderr)
        print(
            f"could not make {venv}; on Debian and Ubuntu: apt install python{version}-venv", file=sys.stderr
        )
    return made.returncode == 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
