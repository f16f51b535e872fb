"""The examples of docs/client.md, section Consuming, as they stand there."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from commitlog.kernel.records import encode_properties
from tests.pipeline.brokers import Cluster
from tests.support.brokers import addr_of, send
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
SECTION = PAGE.read_text().split("\n## Consuming\n")[1].split("\n## ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


def test_the_section_has_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.partition("Consumer(")[0].split()[-1])
def test_an_example_runs_and_says_what_it_should(
    example: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = cluster.start()
    for number in range(8):
        tags = encode_properties(
            {"TAGS": "paid", "KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}"}
        ).decode()
        assert send(cluster.client, addr_of(node), "Orders", b"an order", tags, queue_id=number % 4).code == 0
    cluster.level(node)
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    said: list[str] = []

    def note(*words: object) -> None:
        said.append(" ".join(map(str, words)))

    def enter(prompt: str) -> str:
        wait_until(lambda: said, "the example has said something")
        return ""

    before = threading.enumerate()
    example_globals = {"__name__": "example", "print": note, "input": enter}
    exec(compile(example, str(PAGE), "exec"), example_globals)
    assert said
    more = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in more if thread.name.startswith(("client-", "consume_"))]
