"""Real processes: a nameserver, a master and a slave, started from properties files in a scratch directory.

Whatever a test does to them, they are gone afterwards; when it fails, the ends of their logs are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from tests.cluster.support import SETTINGS
from tests.support.coordinators import ETCD_MISSING, Server, etcd

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def make_pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ScratchPair]]:
    """`make_pair(role)` builds a pair, of which the test starts what it wants."""
    pairs: list[ScratchPair] = []

    def make(role: str = "SYNC_MASTER", **settings: str) -> ScratchPair:
        root = tmp_path / f"pair-{len(pairs)}"
        root.mkdir()
        pair = ScratchPair(root, role, {**SETTINGS, **settings})
        pairs.append(pair)
        return pair

    yield make
    for pair in pairs:
        logs = sorted(pair.root.glob("*.log"))
        pair.close()
        if request.node.stash.get(FAILED, False):
            for log in logs:
                print(f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-60:]))


@pytest.fixture
def admin(make_pair: Callable[..., ScratchPair]) -> Iterator[Callable[[ScratchPair], MQAdmin]]:
    """`admin(pair)` asks that pair; its connections end before the processes do."""
    opened: list[MQAdmin] = []

    def ask(pair: ScratchPair) -> MQAdmin:
        opened.append(MQAdmin([pair.namesrv_addr]))
        return opened[-1]

    yield ask
    for one in opened:
        one.__exit__(None, None, None)


@pytest.fixture
def etcd_server(tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path) as (server,):
        yield server
