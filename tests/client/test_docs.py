"""The examples of docs/client.md, as they stand there; those of its section Consuming are the consumers' tests'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.client import Admin, Message, Producer
from haservice.devtools.pair import ScratchPair
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SECTIONS = [
    section
    for section in re.split(r"^## ", (ROOT / "docs" / "client.md").read_text(), flags=re.M)
    if not section.startswith("Consuming")
]
EXAMPLES = [example for section in SECTIONS for example in re.findall(r"```python\n(.*?)```", section, re.S)]
README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.fixture
def orders(server: ScratchPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv_addr)
    with Admin() as admin, Producer("tests") as producer:
        admin.create_topic("Orders", 4)
        admin.create_topic("Prices", 1)
        producer.send(Message("Orders", b"the first", keys="order-7"))
        wait_until(lambda: admin.find("Orders", "order-7"), "the topic has an order")
        yield admin


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 8
    assert len(README) == 1


@pytest.mark.parametrize("example", EXAMPLES + README, ids=range(len(EXAMPLES + README)))
def test_an_example_runs(
    example: str,
    orders: Admin,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    there: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/client.md", "exec"), there)
    assert capsys.readouterr().out or "print" not in example
