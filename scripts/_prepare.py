"""Makes or mends the clone's .venv: called by scripts/_env when its stamp does not match.

    _prepare.py ROOT EXTRA WANTED      EXTRA is run, spark or test; WANTED is the stamp's new text

Standard library only, for nothing is installed yet.  Two scripts started at once meet at the
lock: the second waits, finds the stamp that the first wrote, and has nothing left to do.
pip's own settings (index, proxies, find-links) come from its environment and files, as ever.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

# What pip is asked for, and which stamps that is worth.
EXTRAS = {
    "run": ("", ["run"]),
    "spark": ("[spark]", ["spark", "run"]),
    "test": ("[test,spark]", ["test", "spark", "run"]),
}


def main(root: Path, extra: str, wanted: str) -> int:
    venv = root / ".venv"
    stamp = venv / f".prepared-{extra}"
    # The clone's own directory is the lock: it is always there, and leaves no file behind.
    lock = os.open(root, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if stamp.exists() and stamp.read_text().strip() == wanted and works(venv):
        return 0
    print(f"preparing {venv} …", file=sys.stderr, flush=True)
    if not make(venv, moved=not belongs_here(venv)):
        return 1
    suffix, stamps = EXTRAS[extra]
    target = f"{root}{suffix}"
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--editable", target], check=False).returncode != 0:
        print(
            f"pip could not install {target}: mend what it says above, then run this again", file=sys.stderr
        )
        return 1
    for name in stamps:
        (venv / f".prepared-{name}").write_text(wanted + "\n")
    return 0


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
