"""A console as a process beside a pair, and a browser that looks at it."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from haservice.devtools.pair import Process, ScratchPair, free_port_block

CHROMIUM = shutil.which("chromium")
# Small files: a store is some MiB, and is made at once.
SETTINGS = {
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "maxMessageSize": "65536",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haSendHeartbeatInterval": "500",
    "slaveTimeout": "1000",
}
COOKIE = re.compile(r"(mqconsole-\d+)=([^;]+)")


class Answer(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def cookie(self) -> str:
        """What a browser sends from now on; "" if none was set."""
        found = COOKIE.match(self.headers.get("set-cookie", ""))
        return "" if found is None else f"{found[1]}={found[2]}"


class ConsoleProcess(Process):
    """`mqconsole` on a free port of 127.0.0.1."""

    def __init__(self, root: Path, namesrv: str, *arguments: str, host: str = "127.0.0.1") -> None:
        self.port = free_port_block(1)
        self.address = f"{host}:{self.port}"
        self.url = f"http://{self.address}"
        log = root / f"mqconsole-{self.port}.log"
        words = ["-n", namesrv, "--listen", self.address, *arguments]
        super().__init__("mqconsole", "mqconsole", words, log, "console open", module="haservice.console.cli")

    @staticmethod
    def refused(pair: ScratchPair, host: str, *arguments: str) -> str:
        """Why a console that listens there does not start."""
        words = ["-n", pair.namesrv_addr, "--listen", f"{host}:{free_port_block(1)}", *arguments]
        run = "from haservice.console.cli import mqconsole; mqconsole()"
        done = subprocess.run(
            [sys.executable, "-c", run, *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        return done.stderr

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """As one of its own pages sends a form."""
        own = {"Origin": self.url, "Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, urlencode(fields), {**own, **headers})

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            text = answer.read().decode()
            return Answer(answer.status, text, {name.lower(): value for name, value in answer.getheaders()})
        finally:
            connection.close()


def agreed(page: str, **more: str) -> dict[str, str]:
    """What the form below a dry run sends."""
    form = page.partition('id="begin"')[2].partition("</form>")[0]
    return {**dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)), **more}
