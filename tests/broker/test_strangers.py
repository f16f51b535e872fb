"""What a stranger cannot do to a broker without access control."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.bounds import EPOCH_MAX
from haservice.broker.node import BrokerNode
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import LineageBody
from tests.support.brokers import addr_of, node_config


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerNode]:
    made = BrokerNode(node_config(tmp_path / "store"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as made:
        yield made


@pytest.mark.parametrize("number", [EPOCH_MAX + 1, 2**63 - 1, -1])
@pytest.mark.parametrize(
    ("code", "field", "ext"),
    [
        (RequestCode.PROMOTE, "minEpoch", {}),
        (RequestCode.FOLLOW, "epoch", {"masterAddr": "10.6.6.6:10911", "haAddr": "10.6.6.6:10912"}),
        (RequestCode.SWITCHOVER, "minEpoch", {}),
    ],
)
def test_no_command_brings_a_number_beyond_belief(
    node: BrokerNode, client: BlockingClient, code: int, field: str, ext: dict[str, str], number: int
) -> None:
    def lineage() -> LineageBody:
        asked = RemotingCommand.request(RequestCode.GET_LINEAGE)
        return LineageBody.decode(client.call(addr_of(node), asked).body)

    before = lineage()
    refused = client.call(addr_of(node), RemotingCommand.request(code, {**ext, field: str(number)}))
    assert (refused.code, f"field {field} of the request header is '{number}'" in str(refused.remark)) == (
        1,
        True,
    )
    assert (lineage().role, lineage().epochs) == (before.role, before.epochs)
