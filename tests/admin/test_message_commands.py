"""Looking messages up, printing and tracing them: what the broker answers, and what is shown of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commitlog.kernel import records
from haservice.admin.commands.messages.printing import line_of
from haservice.admin.commands.messages.queries import has_key
from haservice.admin.commands.messages.trace_entries import entries_of, sent_entry
from haservice.admin.commands.messages.tracking import wanted
from haservice.client.raw_sends import RawMessage, SendQueue, Sent
from haservice.client.reading import wanted_tags
from haservice.remoting.bodies.admin import ConsumeQueueBody, ConsumeQueueEntry, ConsumerConnection
from haservice.remoting.bodies.clients import SubscriptionData
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import ResumeHalfMessageHeader
from haservice.remoting.headers.clients import QueryMessageHeader
from tests.admin.asking import STORE_HOST, Serve, body, route, run


def message(number: int, **properties: str) -> bytes:
    made = records.encode(
        records.NewMessage("T", 1, f"body {number}".encode(), records.encode_properties(properties)),
        STORE_HOST,
    )
    records.stamp(made, number, 1000 * number, 1_700_000_000_000 + number)
    return bytes(made)


def index(serve: Serve, *found: bytes) -> tuple[str, list[RemotingCommand]]:
    """A nameserver, and the questions that its one broker got; it answers each with all of `found`."""
    asked: list[RemotingCommand] = []

    def answer(request: RemotingCommand) -> RemotingCommand:
        asked.append(request)
        return request.answer(body=b"".join(found)) if found else request.answer(22, "can not find message")

    broker = serve({RequestCode.QUERY_MESSAGE: answer})
    return serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route(broker).encode())}), asked


def test_hits_of_the_index_that_have_another_key_are_left_out(serve: Serve) -> None:
    namesrv, asked = index(
        serve,
        message(2, KEYS="k1 k2", UNIQ_KEY="U2"),
        message(1, KEYS="k1", UNIQ_KEY="U1"),
        message(3, KEYS="k11"),
    )
    rows = json.loads(run("queryMsgByKey", "-n", namesrv, "-t", "T", "-k", "k1", "-f", "json").stdout)
    assert [row["msgId"] for row in rows] == ["U1", "U2"]
    (request,) = asked
    assert QueryMessageHeader.decode(request.ext).max_num == 64
    assert request.ext["_UNIQUE_KEY_QUERY"] == "false"


def test_a_unique_key_is_asked_for_as_one_and_the_oldest_is_shown(serve: Serve) -> None:
    namesrv, asked = index(serve, message(2, UNIQ_KEY="U"), message(1, UNIQ_KEY="U"), message(3, KEYS="U"))
    arguments = ("queryMsgByUniqueKey", "-n", namesrv, "-t", "T", "-i", "U")
    assert json.loads(run(*arguments, "-f", "json").stdout)["body"] == "body 1"
    assert run(*arguments, "-a").output.count("OffsetID") == 2
    assert asked[0].ext["_UNIQUE_KEY_QUERY"] == "true"


def test_a_message_that_is_not_found_is_an_error_that_says_so(serve: Serve) -> None:
    namesrv, _ = index(serve)
    result = run("queryMsgByUniqueKey", "-n", namesrv, "-t", "T", "-i", "U")
    assert result.exit_code == 1
    assert "CODE: 208  topic T has no message U" in result.stderr
    for arguments in ((), ("-f", "json")):
        result = run("queryMsgByKey", "-n", namesrv, "-t", "T", "-k", "K", *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "CODE: 208  topic T has no message with key K" in result.stderr


@pytest.mark.parametrize("found", [0, 1])
def test_a_query_at_a_broker_whose_index_is_being_mended_says_what_may_be_missing(
    serve: Serve, found: int
) -> None:
    ext = {"indexMending": "true"}
    known = message(1, KEYS="K", UNIQ_KEY="U") if found else b""
    broker = serve(
        {RequestCode.QUERY_MESSAGE: lambda request: request.answer(0 if found else 22, ext=ext, body=known)}
    )
    namesrv = serve({RequestCode.GET_ROUTEINFO_BY_TOPIC: body(route(broker).encode())})
    result = run("queryMsgByKey", "-n", namesrv, "-t", "T", "-k", "K")
    assert f"NOTE: {broker}: its index is damaged and is built again from the log" in result.stderr
    assert ("U" in result.stdout, result.exit_code) == ((True, 0) if found else (False, 1))


def test_a_body_is_saved_to_a_new_file_or_else_the_message_is_shown_without(
    serve: Serve, bodies: Path
) -> None:
    namesrv, _ = index(serve, message(1, UNIQ_KEY="../U"))
    arguments = ("queryMsgByUniqueKey", "-n", namesrv, "-t", "T", "-i", "../U")
    run(*arguments)
    (saved,) = bodies.iterdir()
    saved.unlink()
    saved.symlink_to(bodies.parent / "elsewhere")
    assert f"Message Body Path:   {saved}" in run(*arguments).stdout
    assert not (bodies.parent / "elsewhere").exists()
    assert (saved.is_symlink(), saved.stat().st_mode & 0o777) == (False, 0o600)
    saved.unlink()
    saved.mkdir()
    result = run(*arguments)
    assert result.exit_code == 0
    assert f"Message Body Path:   - (not saved: {saved}: " in result.stdout
    assert "body 1" in result.stdout


def test_a_line_of_a_message_shows_its_properties_as_java_does() -> None:
    line = line_of(records.decode(message(1, a="0", KEYS="k")), "utf-8", True, "table")
    assert "properties={a=0, KEYS=k}] BODY: body 1" in line


@pytest.mark.parametrize(
    ("key", "unique", "found"),
    [("a", False, True), ("b", False, True), ("U", False, True), ("a", True, False), ("U", True, True)],
)
def test_which_key_a_message_has(key: str, unique: bool, found: bool) -> None:
    assert has_key(records.decode(message(0, KEYS="a b", UNIQ_KEY="U")), key, unique) is found


@pytest.mark.parametrize(
    ("tags", "takes"), [((), True), (("*",), True), (("A", "B"), True), (("B",), False), (None, True)]
)
def test_whether_a_group_takes_a_message_follows_its_tags(tags: tuple[str, ...] | None, takes: bool) -> None:
    table = {} if tags is None else {"T": SubscriptionData("T", tags_set=tags)}
    members = ConsumerConnection((), table)
    assert wanted(members, records.decode(message(0, TAGS="A"))) is takes


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", set()), ("", set()), ("A", {"A"}), ("A || B", {"A", "B"}), (" A||B ", {"A", "B"})],
)
def test_tags_of_an_expression(expression: str, tags: set[str]) -> None:
    assert wanted_tags(expression) == tags


def test_a_trace_of_ours_reads_as_it_was_written() -> None:
    sent = Sent(SendQueue("a", "10.0.0.1:10911", 0), "SEND_OK", None, b"x", "7F00", 0, 3)
    text = sent_entry("T", RawMessage(b"x", {"UNIQ_KEY": "U", "KEYS": "k"}), sent, 0.25)
    (entry,) = entries_of(text, "U", "10.0.0.9")
    assert (entry.kind, entry.group, entry.cost_ms, entry.status) == ("Pub", "TOOLS_PRODUCER", 250, "success")
    assert list(entries_of(text, "V", "10.0.0.9")) == []


@pytest.mark.parametrize(
    ("fields", "group", "status"),
    [
        ("SubAfter req U 7 true keys", None, "success"),
        ("SubAfter req U 7 false keys 0 1700000000000 readers", "readers", "failed"),
    ],
)
def test_traces_of_consumers_old_and_new(fields: str, group: str | None, status: str) -> None:
    (entry,) = entries_of("\x01".join(fields.split()) + "\x02", "U", "h")
    assert (entry.kind, entry.group, entry.cost_ms, entry.status) == ("Sub", group, 7, status)


@pytest.mark.parametrize(
    "text", ["", "\x02", "Pub", "Pub\x01x\x01r\x01g\x01T\x01U", "SubAfter\x01r\x01U\x01x\x01true\x02"]
)
def test_traces_that_cannot_be_read_are_passed_over(text: str) -> None:
    assert list(entries_of(text, "U", "h")) == []


def test_entries_of_a_queue_are_numbered_from_the_index(serve: Serve) -> None:
    found = ConsumeQueueBody((ConsumeQueueEntry(100, 50, 9), ConsumeQueueEntry(150, 60)), 0, 20)
    addr = serve({RequestCode.QUERY_CONSUME_QUEUE: body(found.encode())})
    arguments = ("queryCq", "-b", addr, "-t", "T", "-q", "0", "-i", "7")
    shown = json.loads(run(*arguments, "-f", "json").stdout)
    assert [(row["index"], row["physicOffset"]) for row in shown["queueData"]] == [(7, 100), (8, 150)]
    assert "max: 20, min: 0" in run(*arguments).output


def test_an_index_behind_the_queue_is_an_error(serve: Serve) -> None:
    addr = serve({RequestCode.QUERY_CONSUME_QUEUE: lambda r: r.answer(0, "Index 7 is not exist!")})
    result = run("queryCq", "-b", addr, "-t", "T", "-q", "0", "-i", "7")
    assert result.exit_code == 1
    assert "has no entry 7" in result.output


def test_a_half_message_is_put_back_by_the_broker_in_its_id(serve: Serve) -> None:
    asked: list[RemotingCommand] = []

    def answer(request: RemotingCommand) -> RemotingCommand:
        asked.append(request)
        return request.answer()

    host, port = serve({RequestCode.RESUME_CHECK_HALF_MESSAGE: answer}).split(":")
    message_id = records.offset_message_id(records.encode_host(host, int(port)), 4096)
    assert run("resumeCheckHalfMessage", "-i", message_id).exit_code == 0
    assert ResumeHalfMessageHeader.decode(asked[0].ext).msg_id == message_id
