"""A group of brokers whose log a majority agrees on, as real processes on loopback; ScratchPair's counterpart."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import BOOT_SECONDS, POLL_SECONDS, Process, ProcessDied, ScratchPair
from haservice.errors import HAServiceError

MEMBERS = ("n0", "n1", "n2")


class ScratchGroup(ScratchPair):
    """Nameserver and members `names` under `root`.  `settings` go into all properties files."""

    def __init__(
        self, root: Path, settings: Mapping[str, str] | None = None, names: tuple[str, ...] = MEMBERS
    ) -> None:
        super().__init__(root, settings=settings, brokers=names)
        self.names = names

    def member_addr(self, name: str) -> str:
        """Where the other members reach it."""
        return f"127.0.0.1:{self._ports[name] - 1}"

    @property
    def peers(self) -> str:
        """dLegerPeers."""
        return ";".join(f"{name}-{self.member_addr(name)}" for name in self.names)

    def member_settings(self, name: str) -> dict[str, str]:
        return {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "broker-a",
            "dLegerPeers": self.peers,
            "dLegerSelfId": name,
        }

    def start_members(self, *names: str, **settings: str) -> None:
        """Starts them at once, for one alone waits for a majority.  Returns when all serve."""
        started = [self.begin_member(name, **settings) for name in names or self.names]
        for process in started:
            process.wait_booted(4 * BOOT_SECONDS)

    def begin_member(self, name: str, **settings: str) -> Process:
        """Starts it, and does not wait."""
        lines = {**self.broker_lines(name), **self.member_settings(name), **settings}
        return self._begin(name, "mqbroker", self._write(name, lines), "The broker[")

    def leader(self, admin: MQAdmin, *, but: str = "", seconds: float = BOOT_SECONDS) -> str:
        """The name of the member that leads and serves as master; waits until there is one.

        `but` is not asked: it may stand still.
        """
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for name, process in self.processes.items():
                runs = name in self.names and name != but and process.popen.poll() is None
                if runs and self._leads(admin, name):
                    return name
            time.sleep(POLL_SECONDS)
        raise ProcessDied(f"nobody leads after {seconds:g} s")

    def _leads(self, admin: MQAdmin, name: str) -> bool:
        try:
            info = admin.runtime_info(self.addr(name))
        except HAServiceError:
            return False
        return info.get("brokerRole") == "SYNC_MASTER" and not info.get("refusesSends")
