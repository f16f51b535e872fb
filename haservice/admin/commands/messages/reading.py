"""Messages as plain values, as mqadmin shows them; and damage that ends the reading of a queue."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commitlog.kernel import records
from haservice.client.message import host_text
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import body_of
from haservice.errors import AnswerError
from haservice.remoting.codes import ResponseCode
from haservice.terminal.explain import ACL_REFUSAL
from haservice.terminal.output import echo


@contextmanager
def as_far_as_sound(queue: SendQueue, damaged: list[SendQueue]) -> Iterator[None]:
    """If damage keeps the broker from reading on in `queue`, ends the block, says so, and notes `queue`."""
    try:
        yield
    except AnswerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR or ACL_REFUSAL in (error.remark or ""):
            raise
        damaged.append(queue)
        echo(f"queue {queue.queue_id} of {queue.broker_name}: {error}", err=True)


def message_fields(message: records.StoredMessage) -> dict[str, Any]:
    """A message for a program, with the names of stock tools; base64 for a body that is no text."""
    body = body_of(message)
    try:
        shown = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"bodyBase64": base64.b64encode(body).decode()}
    return {
        "msgId": message.message_id,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "properties": records.decode_properties(message.properties),
        **shown,
    }
