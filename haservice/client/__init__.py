"""haservice.client: what a Python application talks to brokers with.  docs/client.md shows how."""

from haservice.client.admin import END, Admin, Broker
from haservice.client.async_admin import AsyncAdmin
from haservice.client.errors import (
    ClientClosed,
    ClientError,
    MessageIllegal,
    NameserverUnknown,
    ReplyTimeout,
    RouteUnknown,
    SendFailed,
    Try,
)
from haservice.client.message import Message, Received
from haservice.client.options import ClientOptions, Credentials, tls_context
from haservice.client.producer import AsyncProducer, Producer
from haservice.client.sends import SendLimits, SendResult, SendStatus
from haservice.client.session import Session
from haservice.client.transactions import TransactionListener, TransactionResult, TransactionState
from haservice.remoting.bodies.clients import MessageQueue

__all__ = [
    "END",
    "Admin",
    "AsyncAdmin",
    "AsyncProducer",
    "Broker",
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "Credentials",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "NameserverUnknown",
    "Producer",
    "Received",
    "ReplyTimeout",
    "RouteUnknown",
    "SendFailed",
    "SendLimits",
    "SendResult",
    "SendStatus",
    "Session",
    "TransactionListener",
    "TransactionResult",
    "TransactionState",
    "Try",
    "tls_context",
]
