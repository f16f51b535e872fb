"""The states of a slave on its way with its masters, and the events that move it: the whole table.

SlaveSession makes all moves; docs/replication.md shows this table, drawn from here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from haservice.replication.wire.protocol import SlaveState


class State(enum.Enum):
    """Where a slave is with its master; the value says what it waits for."""

    IDLE = "the address of a master"
    DIALLING = "a connection"
    HANDSHAKE = "the TLS handshake, if any"
    GREETING = "the master's hello"
    VERDICT = "the master's verdict on the slave's hello"
    REJOINING = "its log cut or emptied, epochs written"
    TRANSFER = "bytes of the log"
    PAUSE = "the time to connect again"
    SHUTDOWN = "nothing more"


class Event(enum.Enum):
    """What moves it to another state."""

    TOLD = "another master"
    REACHED = "connected"
    CONNECTED = "ready to speak"
    HELLO = "hello"
    NO_HELLO = "no hello"
    ACCEPTED = "accepted"
    REJOINED = "done"
    LOST = "the link ends"
    PAUSED = "time is over"
    STOP = "stop"


_ALWAYS = {Event.TOLD: State.DIALLING, Event.STOP: State.SHUTDOWN}
_LINKED = {Event.LOST: State.PAUSE, **_ALWAYS}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.IDLE: _ALWAYS,
    State.DIALLING: {Event.REACHED: State.HANDSHAKE, **_LINKED},
    State.HANDSHAKE: {Event.CONNECTED: State.GREETING, **_LINKED},
    State.GREETING: {Event.HELLO: State.VERDICT, Event.NO_HELLO: State.TRANSFER, **_LINKED},
    State.VERDICT: {Event.ACCEPTED: State.REJOINING, **_LINKED},
    State.REJOINING: {Event.REJOINED: State.TRANSFER, **_LINKED},
    State.TRANSFER: _LINKED,
    State.PAUSE: {Event.PAUSED: State.DIALLING, **_ALWAYS},
    State.SHUTDOWN: {},
}
# The states as RocketMQ names them, and as status shows them.
SHOWN: Mapping[State, SlaveState] = {
    **dict.fromkeys(State, SlaveState.READY),
    State.TRANSFER: SlaveState.TRANSFER,
    State.SHUTDOWN: SlaveState.SHUTDOWN,
}
# In these states there is a link to close.
LINKED = frozenset({State.HANDSHAKE, State.GREETING, State.VERDICT, State.REJOINING, State.TRANSFER})
