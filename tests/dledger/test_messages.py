"""Messages as stock members write and read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.run import EntryRun
from commitlog.kernel.records import body_crc
from haservice.bounds import OFFSET_MAX
from haservice.configuration.dledger_settings import parse_peers
from haservice.dledger.codes import DLedgerRequestCode, DLedgerResponseCode, PushType, VoteResult
from haservice.dledger.log.ledger_run import LedgerRun
from haservice.dledger.messages import (
    AppendEntryRequest,
    GetEntriesResponse,
    HeartBeatRequest,
    LeadershipTransferRequest,
    LedgerEntry,
    MemberMessage,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    VoteRequest,
    VoteResponse,
)
from haservice.dledger.wire import (
    REQUESTS,
    answer_command,
    read_answer,
    read_request,
    request_command,
)
from haservice.errors import ConfigError, ProtocolError
from haservice.remoting.command import RemotingCommand, decode, encode
from haservice.remoting.fastjson import BodyUnreadable
from haservice.remoting.frame import FrameReader

ENTRY = LedgerEntry.of(7, 3, 4096, b"body \x00\xff")
STOCK_PUSH = (
    b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":6,"count":1,"entry":{"body":"aGk=","bodyCrc":0,'
    b'"chainCrc":0,"channel":0,"index":7,"magic":1,"pos":350,"size":50,"term":3},"firstEntryIndex":7,"group":"g",'
    b'"lastEntryIndex":7,"leaderId":"n1","localId":"n1","remoteId":"n0","term":3,"totalSize":0,"type":"APPEND"}'
)
ALL: list[MemberMessage] = [
    VoteRequest(group="g", leader_id="n1", term=4, ledger_end_index=7, ledger_end_term=3),
    VoteRequest(group="g", leader_id="n1", term=4, pre_vote=True),
    HeartBeatRequest(group="g", leader_id="n1", term=4, interval_ms=500),
    PushEntryRequest(group="g", type="COMPARE", entry=ENTRY, commit_index=6),
    PushEntryRequest(group="g", batch_entry=(ENTRY, LedgerEntry.of(8, 3, 5000, b"")), total_size=103),
    PushEntryRequest(group="g", type="COMMIT", commit_index=6),
    AppendEntryRequest(group="g", body=b"one"),
    AppendEntryRequest(group="g", batch_msgs=(b"one", b"")),
    LeadershipTransferRequest(
        group="g", transfer_id="n1", transferee_id="n2", take_leadership_ledger_index=7
    ),
]


def through_frame(command: RemotingCommand) -> RemotingCommand:
    ((kind, header, body),) = FrameReader().feed(encode(command))
    return decode(kind, header, body)


@pytest.mark.parametrize("message", ALL, ids=lambda one: type(one).__name__)
def test_a_request_comes_out_of_its_frame_as_it_went_in(message: MemberMessage) -> None:
    assert read_request(through_frame(request_command(message))) == message


def test_an_answers_frame_says_200_whatever_the_answer_says() -> None:
    asked = through_frame(request_command(ALL[0]))
    answer = VoteResponse(term=5, vote_result=VoteResult.REJECT_EXPIRED_VOTE_TERM.value, code=403)
    command = through_frame(answer_command(asked, answer))
    assert (command.code, command.opaque, command.is_response) == (200, asked.opaque, True)
    assert read_answer(ALL[0], command) == answer


def test_a_stock_members_push_is_read() -> None:
    push = PushEntryRequest.decode(STOCK_PUSH)
    assert (push.push_type, push.commit_index, push.term, push.leader_id) == (PushType.APPEND, 6, 3, "n1")
    assert push.entries == (LedgerEntry.of(7, 3, 350, b"hi"),)


def test_a_push_is_written_as_stock_writes_it() -> None:
    push = PushEntryRequest.decode(STOCK_PUSH)
    assert json.loads(push.encode()) == json.loads(STOCK_PUSH)


def test_what_stock_does_not_know_is_left_out_where_it_is_not_said() -> None:
    tree = json.loads(VoteRequest(group="g", leader_id="n1", term=0).encode())
    assert tree == {
        "code": 200,
        "group": "g",
        "leaderId": "n1",
        "ledgerEndIndex": -1,
        "ledgerEndTerm": -1,
        "term": 0,
    }
    # A Java peer takes an empty text for an id.
    assert "leaderId" not in json.loads(MetadataResponse(group="g", peers={"n0": "h:1"}).encode())


def test_unknown_members_and_unknown_words_are_no_errors() -> None:
    read = VoteResponse.decode(b'{"voteResult":"REJECT_FOR_A_NEW_REASON","code":9999,"later":[1]}')
    assert (read.vote, read.result) == (VoteResult.UNKNOWN, DLedgerResponseCode.UNKNOWN)
    assert PushEntryRequest.decode(b'{"type":"INSTALL"}').push_type is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"entry":{"index":1,"term":1,"body":"not base64!"}}',
        b'{"entry":{"index":1,"term":1,"body":7}}',
        b'{"entry":{"term":1}}',
        b'{"commitIndex":%d}' % (OFFSET_MAX + 1),
        b'{"term":-2}',
        b"[]",
        b'{"batchEntry":{}}',
    ],
    ids=bytes.decode,
)
def test_a_body_that_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        PushEntryRequest.decode(text)


def test_a_code_that_is_none_of_dledgers_is_refused() -> None:
    with pytest.raises(ProtocolError, match="request code 51006 is none of DLedger's: 50000"):
        read_request(RemotingCommand(51006))


def test_every_request_code_has_its_messages() -> None:
    assert set(REQUESTS) == set(DLedgerRequestCode)
    assert len({request for request, _ in REQUESTS.values()}) == len(DLedgerRequestCode)


def test_entries_are_the_same_whatever_their_checksums_are() -> None:
    """Stock fills none, and compares none."""
    other = LedgerEntry(7, 3, 4096, ENTRY.body, ENTRY.size, body_crc=5, chain_crc=6)
    assert ENTRY.same_as(other)
    for wrong in (
        LedgerEntry.of(8, 3, 4096, ENTRY.body),
        LedgerEntry.of(7, 4, 4096, ENTRY.body),
        LedgerEntry.of(7, 3, 4097, ENTRY.body),
        LedgerEntry.of(7, 3, 4096, b"other"),
        LedgerEntry(7, 3, 4096, ENTRY.body, ENTRY.size, magic=2),
        LedgerEntry(7, 3, 4096, ENTRY.body, ENTRY.size, channel=1),
    ):
        assert not ENTRY.same_as(wrong)


def test_a_push_answer_of_a_peer_from_before_batches_has_no_count() -> None:
    assert PushEntryResponse.decode(b'{"index":3,"code":200}').count == 0


def test_entries_of_an_answer_are_read() -> None:
    answer = GetEntriesResponse(entries=(ENTRY,))
    assert GetEntriesResponse.decode(answer.encode()) == answer


def test_peers_are_read_as_stock_writes_them() -> None:
    assert parse_peers("n0-10.0.0.1:40911;n1-my-host:40912;") == {
        "n0": "10.0.0.1:40911",
        "n1": "my-host:40912",
    }


@pytest.mark.parametrize("text", ["n0", "n0-host", "n0-host:port", "-host:1", "n0-a:1;n0-b:2"])
def test_peers_that_cannot_be_read_say_which_one(text: str) -> None:
    with pytest.raises(ConfigError, match="dLegerPeers"):
        parse_peers(text)


# -- a push of a run --------------------------------------------------------------------------------


def run_of(*bodies: bytes) -> LedgerRun:
    entries, position = list[LogEntry](), 4096
    for number, body in enumerate(bodies):
        entries.append(LogEntry(7 + number, 3, position, body, body_crc=body_crc(body)))
        position = entries[-1].end
    return LedgerRun(EntryRun.of(entries))


def push_of(entries: Sequence[LedgerEntry]) -> PushEntryRequest:
    return PushEntryRequest(
        group="g", remote_id="n1", local_id="n0", term=3, batch_entry=entries, commit_index=6
    )


def test_a_run_is_pushed_as_it_is_stored_and_says_what_its_json_would() -> None:
    run = run_of(b"body \x00\xff", b"", b"x" * 3000)
    command = request_command(push_of(run))
    assert run.run.data in command.body
    read = read_request(command)
    assert isinstance(read, PushEntryRequest)
    assert isinstance(read.batch_entry, LedgerRun)
    plain = read_request(request_command(push_of(tuple(run))))
    assert isinstance(plain, PushEntryRequest)
    assert replace(read, batch_entry=tuple(read.batch_entry)) == plain
    assert list(read.entries[1:]) == list(plain.entries[1:])
    assert read.entries[3:] == ()


def test_a_run_that_is_not_whole_and_sound_is_refused() -> None:
    body = bytearray(request_command(push_of(run_of(b"first", b"second"))).body)
    body[-1] ^= 1
    for wrong, why in (
        (bytes(body), "body crc"),
        (bytes(body[:-1]), "cut off"),
        (b"\x00\x00\x00\x02{}", "no entries"),
        (b"\x00\x7f\x00\x00{}", "says that 8323072 of them are JSON"),
        (b"\x00", "of them are JSON"),
        (b"\x00\x00\x00\x02[]" + run_of(b"x").run.data, "not an object"),
    ):
        with pytest.raises((ProtocolError, BodyUnreadable), match=why):
            read_request(RemotingCommand.request(DLedgerRequestCode.PUSH, body=wrong))
