"""Messages in RocketMQ's frames: a request's code says which message its body is.

    request    frame code 50000 … 51005, body: the message as JSON
    answer     frame code 200 always, body: the message as JSON; what it says is the `code` within

    push of a run   body: size of the JSON in 4 bytes │ the message as JSON, without entries │ entries as stored

A JSON body never begins with a zero, and a push of a run always does.  Only followers that say `takesRuns` get one.
It knows no socket: remoting's codec makes bytes of a RemotingCommand.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from commitlog.dledger.run import EntryRun
from commitlog.errors import CorruptEntry
from haservice.dledger.codes import DLedgerRequestCode, DLedgerResponseCode
from haservice.dledger.log.ledger_run import LedgerRun
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
_JSON_BYTES = struct.Struct(">I")
_CODES = {request: code for code, (request, _) in REQUESTS.items()}
RESPONSES = dict(REQUESTS.values())
"""By the request's type, the answer's."""


def request_command(request: MemberMessage) -> RemotingCommand:
    code = _CODES[type(request)]
    if not isinstance(request, PushEntryRequest) or not isinstance(request.batch_entry, LedgerRun):
        return RemotingCommand.request(code, body=request.encode())
    json = replace(request, batch_entry=()).encode()
    pieces = (_JSON_BYTES.pack(len(json)), json, request.batch_entry.run.data)
    return RemotingCommand.request(code, body=b"".join(pieces))


def read_request(command: RemotingCommand) -> MemberMessage:
    """Raises ProtocolError for a code that no message has or a run that is not sound, and BodyUnreadable."""
    try:
        kind = REQUESTS[DLedgerRequestCode(command.code)][0]
    except ValueError:
        codes = ", ".join(str(int(code)) for code in REQUESTS)
        raise ProtocolError(f"request code {command.code} is none of DLedger's: {codes}") from None
    if kind is PushEntryRequest and command.body[:1] == b"\0":
        return _read_run(command.body)
    return kind.decode(command.body)


def _read_run(body: bytes | memoryview) -> PushEntryRequest:
    size = int.from_bytes(body[: _JSON_BYTES.size], "big")
    begin = _JSON_BYTES.size + size
    if begin > len(body):
        raise ProtocolError(f"a push of {len(body)} bytes says that {size} of them are JSON")
    request = PushEntryRequest.decode(body[_JSON_BYTES.size : begin])
    try:
        run = LedgerRun(EntryRun(bytes(body[begin:])))
    except CorruptEntry as error:
        raise ProtocolError(f"entries of a push: {error}") from None
    return replace(request, entry=None, batch_entry=run)


def answer_command(asked: RemotingCommand, answer: MemberMessage) -> RemotingCommand:
    return asked.answer(int(DLedgerResponseCode.SUCCESS), body=answer.encode())


def read_answer(request: MemberMessage, answered: RemotingCommand) -> MemberMessage:
    """What a peer answered to `request`.  Raises BodyUnreadable."""
    return RESPONSES[type(request)].decode(answered.body)
