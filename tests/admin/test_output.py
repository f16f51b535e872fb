"""What a command shows: aligned for a person, raw for a program."""

from __future__ import annotations

import json
from datetime import datetime

import click
import pytest

from haservice.terminal import options, output


def table() -> output.Table:
    made = output.Table(
        [
            output.Column("#Broker", "broker"),
            output.Column("#Lag", "lag", output.human_bytes, right=True),
            output.Column("#In Sync", "inSync"),
        ]
    )
    made.add("broker-a", 1536, True)
    made.add("b", None, False)
    return made


def test_a_table_is_aligned_and_has_no_trailing_blanks() -> None:
    assert table().text().splitlines() == [
        "#Broker      #Lag  #In Sync",
        "broker-a  1.5 KiB  yes",
        "b               -  no",
    ]


def test_json_carries_raw_values(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(table(), "json")
    assert json.loads(capsys.readouterr().out) == [
        {"broker": "broker-a", "lag": 1536, "inSync": True},
        {"broker": "b", "lag": None, "inSync": False},
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (-2048, "-2.0 KiB"), (None, "-")],
)
def test_sizes_are_shown_to_people(count: int | None, text: str) -> None:
    assert output.human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (75, "1 min 15 s"), (7300, "2 h 1 min"), (None, "-")],
)
def test_durations_are_shown_to_people(seconds: float | None, text: str) -> None:
    assert output.human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"hello", "hello"),
        (b"", ""),
        (b"two\nlines", "two lines"),
        (b"\x00\x01\xff", "0x0001ff"),
        ("ü".encode() * 300, "ü" * 60 + "…"),
        (b"x" * 241, "x" * 60 + "…"),
        # A character cut by the preview's own limit is no reason to call it binary.
        (b"x" + "€".encode() * 200, "x" + "€" * 59 + "…"),
        (bytes(range(200, 256)) * 8, "0x" + bytes(range(200, 230)).hex() + "…"),
    ],
)
def test_a_body_is_previewed_as_text_or_as_hex(body: bytes, text: str) -> None:
    assert output.preview(body) == text


def test_times_of_broken_clocks_are_still_shown() -> None:
    assert output.local_time(0) == "-"
    for timestamp_ms in (-(1 << 63), -1, (1 << 63) - 1):
        assert output.local_time(timestamp_ms)


@pytest.mark.parametrize(
    "text", ["2026-11-21", "2026-11-21#00:00", "2026-11-21#00:00:00", "2026-11-21#00:00:00:000"]
)
def test_a_time_may_be_a_date_alone(text: str) -> None:
    assert options.timestamp_ms(text) == int(datetime(2026, 11, 21).timestamp() * 1000)


@pytest.mark.parametrize("text", ["2026-13-01", "21.11.2026", "2026-11-21 10:00", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        options.timestamp_ms(text)
    examples = error.value.message.partition("Give one of: ")[2].partition(" (this machine")[0].split("; ")
    assert len(examples) == len(options.TIME_FORMS) + 2
    for example in examples:
        assert options.timestamp_ms(example.partition(" (")[0]) > 0


def test_an_ipv6_address_is_shown_in_brackets_and_taken_so() -> None:
    assert output.shown_addr("::1:10911") == "[::1]:10911"
    assert output.shown_addr("127.0.0.1:10911") == "127.0.0.1:10911"
    assert options.address("[::1]:10911") == options.address("::1:10911") == "::1:10911"


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (29, "V3_0_7"),
        (28, "V3_0_7_SNAPSHOT"),
        (37, "V3_0_11"),
        (47, "V3_1_0"),
        (63, "V3_1_8"),
        (62, "V3_1_8_SNAPSHOT"),
        (85, "V3_2_9"),
        (87, "V3_3_1"),
        (121, "V3_4_9"),
        (211, "V3_9_9"),
        (213, "V4_0_0"),
        (232, "V4_1_0_SNAPSHOT"),
        (317, "V4_5_2"),
        (409, "V4_9_8"),
        (413, "V5_0_0"),
        (433, "V5_1_0"),
    ],
)
def test_versions_are_shown_as_rocketmq_names_them(version: int, text: str) -> None:
    assert output.version_text(version) == text


def test_an_example_has_the_port_of_what_is_asked_for() -> None:
    with pytest.raises(click.BadParameter, match=r"127\.0\.0\.1:9876"):
        options.addresses("127.0.0.1")
    with pytest.raises(click.BadParameter, match=r"127\.0\.0\.1:10911"):
        options.address("127.0.0.1")


def test_names_and_counts_in_a_sentence() -> None:
    assert [output.and_text("ABC"[:size]) for size in range(4)] == ["", "A", "A and B", "A, B and C"]
    assert [output.counted(count, "message") for count in (0, 1, 2)] == [
        "0 messages",
        "1 message",
        "2 messages",
    ]
