"""Messages in RocketMQ's frames: a request's code says which message its body is.

    request    frame code 50000 … 51005, body: the message as JSON
    answer     frame code 200 always, body: the message as JSON; what it says is the `code` within

It knows no socket: remoting's codec makes bytes of a RemotingCommand.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from haservice.dledger.codes import DLedgerRequestCode, DLedgerResponseCode
from haservice.dledger.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MemberMessage,
    MetadataRequest,
    MetadataResponse,
    PullEntriesRequest,
    PullEntriesResponse,
    PushEntryRequest,
    PushEntryResponse,
    VoteRequest,
    VoteResponse,
)
from haservice.errors import ProtocolError
from haservice.remoting.command import RemotingCommand

REQUESTS: Mapping[DLedgerRequestCode, tuple[type[MemberMessage], type[MemberMessage]]] = MappingProxyType(
    {
        DLedgerRequestCode.METADATA: (MetadataRequest, MetadataResponse),
        DLedgerRequestCode.APPEND: (AppendEntryRequest, AppendEntryResponse),
        DLedgerRequestCode.GET: (GetEntriesRequest, GetEntriesResponse),
        DLedgerRequestCode.VOTE: (VoteRequest, VoteResponse),
        DLedgerRequestCode.HEART_BEAT: (HeartBeatRequest, HeartBeatResponse),
        DLedgerRequestCode.PULL: (PullEntriesRequest, PullEntriesResponse),
        DLedgerRequestCode.PUSH: (PushEntryRequest, PushEntryResponse),
        DLedgerRequestCode.LEADERSHIP_TRANSFER: (LeadershipTransferRequest, LeadershipTransferResponse),
    }
)
_CODES = {request: code for code, (request, _) in REQUESTS.items()}
RESPONSES = dict(REQUESTS.values())
"""By the request's type, the answer's."""


def request_command(request: MemberMessage) -> RemotingCommand:
    return RemotingCommand.request(_CODES[type(request)], body=request.encode())


def read_request(command: RemotingCommand) -> MemberMessage:
    """Raises ProtocolError for a code that no message has, and BodyUnreadable."""
    try:
        kind = REQUESTS[DLedgerRequestCode(command.code)][0]
    except ValueError:
        codes = ", ".join(str(int(code)) for code in REQUESTS)
        raise ProtocolError(f"request code {command.code} is none of DLedger's: {codes}") from None
    return kind.decode(command.body)


def answer_command(asked: RemotingCommand, answer: MemberMessage) -> RemotingCommand:
    return asked.answer(int(DLedgerResponseCode.SUCCESS), body=answer.encode())


def read_answer(request: MemberMessage, answered: RemotingCommand) -> MemberMessage:
    """What a peer answered to `request`.  Raises BodyUnreadable."""
    return RESPONSES[type(request)].decode(answered.body)
