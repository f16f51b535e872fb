"""A machine of its own for a page: its files, ports and processes are gone with it, and nobody else sees them.

It is this machine, in namespaces: an overlay takes what is written anywhere, so that the working tree is a clone that
may be written to, and /etc and /data are free; the network has a loopback and no way out, so that 9876 and 10911 are
free; and no process outlives the first one, a shell.  It takes root.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support.quick_java import QUICK_JAVA_OPTIONS

ROOT = Path(__file__).parents[2]

_ENTER = r"""
set -e
# Copies of mounts: another test's disk (tests/chaos/power_disk.py) could not be mounted anew while they are here.
for place in $(awk '$1 ~ "^/dev/loop" { print $2 }' /proc/mounts); do umount "$place" || true; done
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
ip link set lo up
echo in > "$1/upper/entered"
exec chroot "$1/root" bash --noprofile --norc "$2" "$3"
"""
# Commands come from one pipe, and their exit codes go to another.  Whatever asks is answered with y.
_SHELL = r"""
cd "$1"
. tests/docs/given.sh
exec 5< <(exec yes)
while read -r -u 3 _command; do
    . "$_command" > "$_command.out" 2>&1 <&5
    echo $? >&4
done
"""


class NoMachine(Exception):
    """It cannot be had here; the text says why."""


class Died(AssertionError):
    """The shell ended, or a command took too long."""


class Machine:
    """A shell whose commands share directory, variables and background processes."""

    def __init__(self, scratch: Path) -> None:
        """Raises NoMachine."""
        if os.geteuid() != 0:
            raise NoMachine("namespaces and an overlay over / need root")
        for name in ("unshare", "ip", "chroot"):
            if shutil.which(name) is None:
                raise NoMachine(f"{name} is not installed")
        self._scratch = scratch
        scratch.mkdir(exist_ok=True)
        for name in ("upper", "work", "root", "upper/home/reader"):
            (scratch / name).mkdir(parents=True)
        # Below the overlay's own files: the shell in it sees them where the overlay puts them.
        self._inside = Path("/paste")
        self._outside = scratch / "upper" / "paste"
        self._outside.mkdir()
        (self._outside / "shell").write_text(_SHELL)
        self._count = 0
        orders, self._orders = os.pipe()
        self._codes, codes = os.pipe()
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c",
                 f"exec 3<&{orders} 4>&{codes}\n{_ENTER}", "enter",
                 str(scratch), str(self._inside / "shell"), str(ROOT)]  # fmt: skip
        self._said = (scratch / "said").open("w+b")
        self._popen = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=(orders, codes),
            env=_environment(),
            start_new_session=True,
        )
        os.close(orders)
        os.close(codes)
        try:
            self.run("true", 30)
        except Died as error:
            self.close()
            if not (scratch / "upper" / "entered").exists():
                raise NoMachine(f"no namespaces with an overlay here: {error}") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the first process; all others descend from it."""
        return self._popen.pid

    def run(self, command: str, seconds: float) -> tuple[int, str]:
        """Its exit code, and what it said.  Raises Died."""
        self._count += 1
        name = f"{self._count:03d}"
        (self._outside / name).write_text(command + "\n")
        said = self._outside / f"{name}.out"
        try:
            os.write(self._orders, f"{self._inside / name}\n".encode())
            codes = select.poll()  # a descriptor may be a high one
            codes.register(self._codes, select.POLLIN)
            ready = codes.poll(seconds * 1000)
        except BrokenPipeError:
            ready = [(self._codes, select.POLLIN)]
        code = os.read(self._codes, 16).decode().strip() if ready else ""
        text = said.read_text(errors="replace") if said.exists() else ""
        if not code:
            self._said.seek(0)
            why = "the shell ended" if ready else f"not done within {seconds:g} s"
            raise Died(f"{why}: {command}\n{text}{self._said.read().decode(errors='replace')}")
        return int(code), text

    def close(self) -> None:
        """Ends every process of it, and removes its files.  May be called twice."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for first in psutil.Process(self._popen.pid).children():  # with it, all of its namespace end
                first.kill()
        self._popen.wait(20)
        for fd in (self._orders, self._codes):
            if fd >= 0:
                os.close(fd)
        self._orders = self._codes = -1
        self._said.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _environment() -> dict[str, str]:
    """A reader's: nothing of this test run but where programs are, and the time zone and language."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("LANG", "LC_ALL", "TZ", "JAVA_HOME", "HASERVICE_PURE", "CC")
    }
    path = os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ.get("PATH", os.defpath)])
    own = {"HOME": "/home/reader", "USER": "root", "PATH": path, "SPARK_SUBMIT_OPTS": QUICK_JAVA_OPTIONS}
    return {"LANG": "C.UTF-8", **kept, **own}
