"""The Go client rocketmq-client-go v2, built once into the user's cache, and driven by JSON lines."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.jars import cache

SOURCES = Path(__file__).parent / "go"
# With an empty build cache on two busy cores.
BUILD_SECONDS = 240
END_SECONDS = 20.0
ERROR_LINES = 10


class NoGo(Exception):
    """There is no Go client on this machine; the text says what it would take."""


class GoError(Exception):
    """What the client answered instead of a result."""


def program() -> Path:
    """The built program; raises NoGo when it is neither there nor can be built."""
    total = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        total.update(source.name.encode() + b"\0" + source.read_bytes())
    built = cache() / f"go-client-{total.hexdigest()[:16]}"
    if built.exists():
        return built
    if shutil.which("go") is None:
        raise NoGo("the Go client needs go, which is not on the PATH")
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        fresh = Path(scratch) / "client"
        try:
            done = subprocess.run(
                ["go", "build", "-o", str(fresh), "."], cwd=SOURCES, capture_output=True, text=True,
                timeout=BUILD_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NoGo(f"go build took longer than {BUILD_SECONDS} s") from None
        if done.returncode:
            raise NoGo("go build failed:\n" + "\n".join(done.stderr.splitlines()[-ERROR_LINES:]))
        fresh.rename(built)
    return built


class GoClient:
    """One process with a producer and any number of push consumers."""

    def __init__(self, namesrv_addr: str, directory: Path) -> None:
        self.log = directory / "go-client.log"
        with self.log.open("ab") as errors:
            self._popen = subprocess.Popen(
                [str(program()), namesrv_addr], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                cwd=directory, env={**os.environ, "HOME": str(directory)},
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(END_SECONDS)

    def call(self, op: str, **request: Any) -> Any:
        """One request and its answer; raises GoError for what the client did not do."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps({"op": op, **request}).encode() + b"\n")
        self._popen.stdin.flush()
        line = self._popen.stdout.readline()
        if not line:
            raise GoError(f"it ended: {self.log.read_text()[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise GoError(answer["error"])
        return answer["ok"]

    def bodies(self, group: str) -> list[str]:
        """What the consumer of `group` was given, in no order."""
        return sorted(one["body"] for one in self.call("received", group=group))
