"""The examples of docs/client.md, as they stand there; those of its section Consuming are the consumers' tests'."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.client import Admin, ClientOptions, Message, Producer
from haservice.devtools.pair import ScratchPair
from tests.client.reading import messages_in
from tests.support.waiting import PATIENCE_S, wait_until

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
    assert len(EXAMPLES) == 7
    assert len(README) == 1


@pytest.mark.parametrize("example", EXAMPLES + README, ids=range(len(EXAMPLES + README)))
def test_an_example_runs(example: str, orders: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    there: dict[str, object] = {"__name__": "example"}
    answering = threading.Thread(target=_answer, args=(there, len(messages_in(orders, "Prices"))))
    if "def answer" in example:
        answering.start()
    exec(compile(example, "docs/client.md", "exec"), there)
    if "def answer" in example:
        answering.join(PATIENCE_S)
        there["replies"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out or "print" not in example


def _answer(there: dict[str, object], seen: int) -> None:
    """Consumes Prices with the example's function: what a consumer does."""
    with Admin(ClientOptions()) as admin:
        wait_until(lambda: len(messages_in(admin, "Prices")) > seen, "somebody asks for a price")
        there["answer"](messages_in(admin, "Prices")[-1])  # type: ignore[operator]
