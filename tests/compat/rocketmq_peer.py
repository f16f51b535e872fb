"""A process with PyPI `rocketmq`, the C++ client: `send` or `pull`, told as JSON on standard output.

    rocketmq_peer.py send NAMESRV TOPIC   standard input: one JSON per message → one JSON per answer
    rocketmq_peer.py pull NAMESRV TOPIC   → one JSON per message there is

It lives apart from the test because its native threads may crash or hang when they are ended: once the last
line is out, the process leaves without them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def send(namesrv: str, topic: str) -> None:
    producer = Producer("peer_producer", timeout=10_000)
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for line in sys.stdin:
        wanted = json.loads(line)
        message = Message(topic)
        message.set_keys(wanted["keys"])
        message.set_tags(wanted["tags"])
        message.set_property("color", wanted["color"])
        message.set_body(wanted["body"])
        answer = producer.send_sync(message)
        say({"status": answer.status.name, "id": answer.msg_id, "offset": answer.offset})


def pull(namesrv: str, topic: str) -> None:
    consumer = PullConsumer("peer_consumer")
    consumer.set_namesrv_addr(namesrv)
    consumer.start()
    for message in consumer.pull(topic):
        say(
            {
                "id": message.id,
                "topic": message.topic,
                "queue": message.queue_id,
                "offset": message.queue_offset,
                "keys": message.keys.decode(),
                "tags": message.tags.decode(),
                "color": message.get_property("color").decode(),
                "body": message.body.decode(),
            }
        )


if __name__ == "__main__":
    {"send": send, "pull": pull}[sys.argv[1]](*sys.argv[2:])
    os._exit(0)
