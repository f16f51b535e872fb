"""haservice.client: what a Python application talks to brokers with.  docs/client.md shows how."""

from haservice.client.errors import (
    ClientClosed,
    ClientError,
    MessageIllegal,
    NameserverUnknown,
    ReplyTimeout,
    RouteUnknown,
    SendFailed,
    TransactionFailed,
    Try,
)
from haservice.client.message import Message, Received
from haservice.client.options import ClientOptions, Credentials, tls_context
from haservice.client.session import Session
from haservice.remoting.bodies.clients import MessageQueue

__all__ = [
    "ClientClosed",
    "ClientError",
    "ClientOptions",
    "Credentials",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "NameserverUnknown",
    "Received",
    "ReplyTimeout",
    "RouteUnknown",
    "SendFailed",
    "Session",
    "TransactionFailed",
    "Try",
    "tls_context",
]
