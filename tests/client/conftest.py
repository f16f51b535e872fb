"""Real processes for tests of the client: a nameserver and a master for a whole module, or pairs for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from haservice.client import ClientOptions
from haservice.devtools.pair import ScratchPair
from tests.cluster.conftest import admin, make_pair, pytest_runtest_makereport

__all__ = ["admin", "make_pair", "pytest_runtest_makereport"]

SETTINGS = {"transactionCheckInterval": "300", "transactionTimeOut": "300"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScratchPair]:
    """A nameserver and a master without a slave."""
    with ScratchPair(tmp_path_factory.mktemp("server"), "ASYNC_MASTER", SETTINGS) as pair:
        pair.start_nameserver()
        pair.start_master()
        yield pair


@pytest.fixture
def options(server: ScratchPair) -> ClientOptions:
    return ClientOptions(server.namesrv_addr)
