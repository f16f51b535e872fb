"""The jars of RocketMQ 4.9.8 and our Java programs, in the user's cache directory.

    ~/.cache/haservice/rocketmq-4.9.8/       the jars, and a stamp: the sum of the pom that named them
    ~/.cache/haservice/interop-SUM/          java/*.java, compiled; SUM is that of the sources

Both are made in a scratch directory and renamed, so that one that was cut short is never taken for whole.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.quick_java import QUICK_JAVA

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SOURCES = HERE / "java"
VERSION = "4.9.8"
STAMP = "pom.sha256"
RESOLVE_SECONDS = 240
COMPILE_SECONDS = 60
ERROR_LINES = 15

# Java 17 closes what 4.9's memory maps, epoll and fastjson reach into.
OPENS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class NoStock(Exception):
    """There is no stock RocketMQ on this machine; the text says what it would take."""


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "haservice"


@functools.cache
def jars() -> Path:
    """The directory of the jars; raises NoStock when they are neither there nor to be had."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise NoStock(f"stock RocketMQ needs {tool}, which is not on the PATH")
    wanted = hashlib.sha256(POM.read_bytes()).hexdigest()
    resolved = cache() / f"rocketmq-{VERSION}"
    stamp = resolved / STAMP
    if not stamp.exists() or stamp.read_text() != wanted:
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            fresh = Path(scratch) / "jars"
            _run(
                ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
                 f"-DoutputDirectory={fresh}"],
                RESOLVE_SECONDS,
            )  # fmt: skip
            (fresh / STAMP).write_text(wanted)
            _replace(fresh, resolved)
    return resolved


@functools.cache
def classes() -> Path:
    """The directory of our compiled Java programs."""
    libraries = jars()
    sources = sorted(SOURCES.glob("*.java"))
    total = hashlib.sha256()
    for source in sources:
        total.update(source.name.encode() + b"\0" + source.read_bytes())
    compiled = cache() / f"interop-{total.hexdigest()[:16]}"
    if not compiled.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            fresh = Path(scratch) / "classes"
            _run(
                ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{libraries}/*", "-d", str(fresh)]
                + [str(source) for source in sources],
                COMPILE_SECONDS,
            )
            _replace(fresh, compiled)
    return compiled


def java_command(
    main: str, *arguments: str, home: Path, heap_mb: int = 256, flags: tuple[str, ...] = QUICK_JAVA
) -> list[str]:
    """Runs `main` of the jars or of our classes; `home` is its user.home, where RocketMQ puts its logs."""
    return [
        "java",
        f"-Xms{min(heap_mb, 128)}m",
        f"-Xmx{heap_mb}m",
        "-XX:MaxDirectMemorySize=512m",
        *flags,
        *OPENS,
        f"-Duser.home={home}",
        "-cp",
        f"{jars()}/*:{classes()}",
        main,
        *arguments,
    ]


def _replace(fresh: Path, wanted: Path) -> None:
    """Renames; another run that was quicker is as good."""
    if wanted.exists():
        shutil.rmtree(wanted)
    try:
        fresh.rename(wanted)
    except OSError:
        if not wanted.exists():
            raise


def _run(command: list[str], seconds: int) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise NoStock(f"{command[0]} took longer than {seconds} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-ERROR_LINES:]
        raise NoStock(f"{command[0]} ended with {done.returncode}:\n" + "\n".join(lines))
