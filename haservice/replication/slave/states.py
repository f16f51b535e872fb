"""The states of a slave's way with its masters, and what moves it from one to another: the whole table.

All moves are SlaveSession's; docs/replication.md shows this table, drawn from here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from haservice.replication.wire.protocol import SlaveState


class State(enum.Enum):
    """Where a slave is with its master; the value says what it waits for."""

    IDLE = "to be told of a master"
    DIALLING = "a connection"
    HANDSHAKE = "keys to be agreed on, where there is TLS"
    GREETING = "a master of ours to answer our call; it is a stock one if none does"
    VERDICT = "the master's verdict on our hello"
    REJOINING = "our log to be cut or begun anew as the greeting came to, and the master's epochs written"
    TRANSFER = "bytes of the log"
    PAUSE = "the time to dial again"
    SHUTDOWN = "nothing more"


class Event(enum.Enum):
    """What moves it."""

    TOLD = "told of another master"
    REACHED = "connected"
    CONNECTED = "ready to speak"
    HELLO = "hello"
    NO_HELLO = "no hello"
    ACCEPTED = "accepted"
    REJOINED = "done"
    LOST = "silence, cut, refusal, error"
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
# As RocketMQ names them, and as status shows them.
SHOWN: Mapping[State, SlaveState] = {
    **dict.fromkeys(State, SlaveState.READY),
    State.TRANSFER: SlaveState.TRANSFER,
    State.SHUTDOWN: SlaveState.SHUTDOWN,
}
# In these there is a link to close.
LINKED = frozenset({State.HANDSHAKE, State.GREETING, State.VERDICT, State.REJOINING, State.TRANSFER})
