"""Fixtures for tests with real RocketMQ peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver
from tests.interop.jars import NoStock, classes, jars


@pytest.fixture(scope="session")
def stock_jars() -> Path:
    """The jars of RocketMQ 4.9.8; skips, saying why, where they cannot be had."""
    try:
        classes()
        return jars()
    except NoStock as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def _driver_of_session(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    with JavaDriver(tmp_path_factory.mktemp("java-driver")) as driver:
        yield driver


@pytest.fixture
def java(_driver_of_session: JavaDriver) -> Iterator[JavaDriver]:
    """The one JVM with stock clients; clients that a test leaves behind are shut down."""
    driver = _driver_of_session
    driver.ensure()
    before = driver.clients
    yield driver
    driver.close_clients(but=before)


@pytest.fixture(scope="module")
def java_of_module(_driver_of_session: JavaDriver) -> JavaDriver:
    """The same, for fixtures that live as long as a module; they shut their clients down themselves."""
    _driver_of_session.ensure()
    return _driver_of_session
