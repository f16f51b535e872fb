"""Fixtures of the broker's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from haservice.broker.node import BrokerNode
from haservice.remoting.client import BlockingClient
from haservice.supervisor import Supervisor
from tests.support.brokers import node_config
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.reading_broker import ReadingBroker


@pytest.fixture
def reading_broker(tmp_path: Path) -> Iterator[Callable[..., ReadingBroker]]:
    """Makes ReadingBrokers, and closes them."""
    from tests.support.reading_broker import ReadingBroker

    brokers: list[ReadingBroker] = []

    def make(**options: Any) -> ReadingBroker:
        brokers.append(ReadingBroker(tmp_path / f"store-{len(brokers)}", **options))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerNode]]:
    """Starts brokers by name, each with its directory; the last started stops first."""
    nodes: list[BrokerNode] = []

    def starter(name: str = "a", *, supervisor: Supervisor | None = None, **options: Any) -> BrokerNode:
        node = BrokerNode(node_config(tmp_path / name, **options), supervisor=supervisor)
        nodes.append(node)
        node.start()
        return node

    before = set(threading.enumerate())
    yield starter
    for node in reversed(nodes):
        node.stop()
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread of a broker is left")


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made
