"""A push consumer at a broker with access control: with its account, and without."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from haservice.broker.node import BrokerNode
from haservice.client import (
    AsyncProducer,
    AsyncPushConsumer,
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    Credentials,
    Message,
)
from haservice.configuration.security_settings import AclConfig
from tests.client.consumer.consuming import Seen, run, until
from tests.pipeline.brokers import Cluster
from tests.support.brokers import node_config

RULES = """
accounts:
  - {accessKey: writers-key, secretKey: secret-key, topicPerms: [Orders=PUB]}
  - {accessKey: readers-key, secretKey: secret-key, topicPerms: [Orders=SUB, "%RETRY%g=SUB"], groupPerms: [g=SUB]}
"""


def test_it_signs_all_that_it_asks(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    config = node_config(tmp_path / "acl", broker={"namesrv_addrs": (cluster.namesrv,)})
    node = BrokerNode(dataclasses.replace(config, acl=AclConfig(enabled=True, file=rules)))
    cluster.nodes.append(node)
    node.start()

    def member(key: str | None, group: str, seen: Seen, *, orderly: bool = False) -> AsyncPushConsumer:
        credentials = None if key is None else Credentials(key, "secret-key")
        consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST, orderly=orderly)
        options = ClientOptions(cluster.namesrv, credentials=credentials)
        return AsyncPushConsumer(group, seen, options, consuming=consuming).subscribe("Orders")

    async def main() -> None:
        options = ClientOptions(cluster.namesrv, credentials=Credentials("writers-key", "secret-key"))
        async with AsyncProducer("p", options) as producer:
            for number in range(8):
                await producer.send(Message("Orders", b"%d" % number))
        seen, none = Seen(), Seen()
        async with member(None, "g", none), member("writers-key", "g", none):
            await until(lambda: caplog.text.count("AclException") >= 2, "both are refused")
        async with member("readers-key", "g", seen, orderly=True) as consumer:
            await until(lambda: len(seen.messages) == 8, "all have come")
            assert await consumer.commit()
        assert none.messages == []

    run(main())
