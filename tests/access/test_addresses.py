"""Address patterns of plain_acl.yml."""

from __future__ import annotations

import pytest

from haservice.access.addresses import parse_pattern

EVERYWHERE = ("10.1.2.3", "255.255.255.255", "::1", "fe80:1:2:3:4:5:6:7")


@pytest.mark.parametrize("text", ["*", "*.*.*.*", "*:*:*:*:*:*:*:*", " * "])
def test_stars_alone_mean_every_address(text: str) -> None:
    assert all(parse_pattern(text).matches(address) for address in EVERYWHERE)


@pytest.mark.parametrize("text", ["", "  ", ","])
def test_a_blank_text_means_none(text: str) -> None:
    assert not any(parse_pattern(text).matches(address) for address in EVERYWHERE)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2.30", "::1"]),
        ("10.1.2.3, 10.1.2.5", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.{3,5}", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4", "10.1.3.3"]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "10.10.2.1"]),
        ("10.1.*.*", ["10.1.2.0", "10.1.200.255"], ["10.2.2.0"]),
        ("10.*.*.*", ["10.1.2.0"], ["11.1.2.0", "110.1.2.0"]),
        ("10.1.1-20.*", ["10.1.1.9", "10.1.20.9"], ["10.1.0.9", "10.1.21.9"]),
        ("10.1.2.10-20", ["10.1.2.10", "10.1.2.20"], ["10.1.2.9", "10.1.2.21", "10.1.2.100"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "1::"]),
        ("5::7:6:1-200:*", ["5::7:6:1:0", "5::7:6:200:ffff"], ["5::7:6:0:0", "5::7:6:201:0", "5::7:5:1:0"]),
        ("fe80:0:0:0:0:0:0:{1,AB}", ["fe80::1", "FE80::ab"], ["fe80::2"]),
        ("fe80::{1,2}", ["fe80::2"], ["fe80::3"]),
        ("1:2:3:4:5:6:7:1-f", ["1:2:3:4:5:6:7:f"], ["1:2:3:4:5:6:7:10"]),
        ("2001:db8:*", ["2001:db8:0:1::9", "2001:db8:ffff::"], ["2001:db9::1"]),
        ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0", "9.255.255.255", "::1"]),
        ("10.1.16.0/20", ["10.1.16.0", "10.1.31.255"], ["10.1.15.255", "10.1.32.0", "10.2.16.0"]),
        ("10.1.2.3/32, 10.1.3.9/24", ["10.1.2.3", "10.1.3.0"], ["10.1.2.4", "10.1.4.0"]),
        ("0.0.0.0/0", ["1.2.3.4"], ["::1"]),
        ("fe80::/10", ["fe80::1", "febf:ffff::"], ["fec0::", "fe7f::1"]),
        ("fe80::1,10.0.0.1", ["fe80::1", "fe80::1%eth0", "10.0.0.1"], ["fe80::2"]),
    ],
)
def test_a_pattern_means_these_and_not_those(text: str, inside: list[str], outside: list[str]) -> None:
    pattern = parse_pattern(text)
    assert [address for address in inside if not pattern.matches(address)] == []
    assert [address for address in outside if pattern.matches(address)] == []


def test_what_is_no_address_is_never_meant() -> None:
    assert not parse_pattern("10.1.*.*").matches("?")
    assert not parse_pattern("10.1.*.*").matches("10.1.2")


@pytest.mark.parametrize(
    "text",
    [
        "10.1.2",
        "10.1.2.0/33",
        "10.1.*.*/16",
        "/8",
        "10.1.2.256",
        "10.1.*",
        "10.1.2.3.*",
        "10.1.2.-5",
        "10.1.2.5-",
        "10.1.2.20-10",
        "10.1.2.1-2-3",
        "10.1.2{3,4}",
        "{1,2}",
        "10.1.2.{3,400}",
        "10.1.2.+1-5",
        "broker-a.example",
        "1:2:3",
        "1:2:3:4:5:6:7:8:*",
        "1:2:3:4:5:6:7:1-10000",
        "1::2::*",
    ],
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_pattern(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("*.*.*.*", "*"),
        ("10.1.2.{3,5}", "10.1.2.3,10.1.2.5"),
        ("10.1.2.3, 10.1.2-5.*", "10.1.2.3,10.1.2-5.*"),
        ("10.1.16.0/20", "10.1.16-31.*"),
        ("fe80::1", "fe80:0:0:0:0:0:0:1"),
        ("1:2:3:4:5:6:*:a-f", "1:2:3:4:5:6:*:a-f"),
    ],
)
def test_a_pattern_is_shown_as_a_text_that_means_the_same(text: str, shown: str) -> None:
    assert str(parse_pattern(text)) == shown
    assert parse_pattern(shown) == parse_pattern(text)
