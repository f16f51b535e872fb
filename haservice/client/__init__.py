"""haservice.client: the client library of Python applications for brokers.  docs/client.md shows how."""

from haservice.client.admin import END, Admin
from haservice.client.async_admin import AsyncAdmin
from haservice.client.consumer.callback.handler import ConsumeTimeout, RetryLater
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.pull_consumer import AsyncPullConsumer, NotAssigned, PullConsumer
from haservice.client.consumer.push_consumer import AsyncPushConsumer, PushConsumer
from haservice.client.consumer.queues.allocation import averagely, averagely_by_circle, by_config
from haservice.client.consumer.queues.in_flight import QueueLimits
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.errors import (
    CallOnLoop,
    ClientClosed,
    ClientError,
    ClientForked,
    CloseInCallback,
    GroupUnknown,
    MessageIllegal,
    NameserverUnknown,
    ReplyTimeout,
    RouteUnknown,
    SendFailed,
    TopicKept,
    Try,
)
from haservice.client.message import Message, Received
from haservice.client.options import ClientOptions, Credentials, tls_context
from haservice.client.producer import AsyncProducer, Producer
from haservice.client.routes import Broker
from haservice.client.sends import ProducerLimits, SendResult, SendStatus
from haservice.client.session import Session
from haservice.client.transactions import TransactionListener, TransactionResult, TransactionState
from haservice.ledger import LedgerError
from haservice.remoting.bodies.clients import MessageQueue

__all__ = [
    "END",
    "Admin",
    "AsyncAdmin",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "Broker",
    "CallOnLoop",
    "ClientClosed",
    "ClientError",
    "ClientForked",
    "ClientOptions",
    "CloseInCallback",
    "ConsumeFrom",
    "ConsumeTimeout",
    "ConsumerOptions",
    "Credentials",
    "GroupUnknown",
    "LedgerError",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "NameserverUnknown",
    "NotAssigned",
    "Producer",
    "ProducerLimits",
    "PullConsumer",
    "PushConsumer",
    "QueueLimits",
    "Received",
    "ReplyTimeout",
    "RetryLater",
    "RouteUnknown",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "Session",
    "TopicKept",
    "TransactionListener",
    "TransactionResult",
    "TransactionState",
    "Try",
    "averagely",
    "averagely_by_circle",
    "by_config",
    "tls_context",
]
