"""Signatures: the values that are signed, their order, and the text that comes of them."""

from __future__ import annotations

from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import content, sign, signature


def test_the_content_is_the_values_in_the_order_of_their_names_and_the_body() -> None:
    ext = {"b": "topic", "a": "group", "AccessKey": "key", "j": "0"}

    assert content(ext, b"body") == b"keygrouptopic0body"


def test_what_is_added_after_signing_is_not_part_of_the_content() -> None:
    ext = {"topic": "T", "Signature": "old", "_UNIQUE_KEY_QUERY": "true"}

    assert content(ext, b"") == b"T"


def test_a_body_may_be_a_view_and_values_any_text() -> None:
    assert content({"k": "ü→𝄞"}, memoryview(b"\x00\xff")) == "ü→𝄞".encode() + b"\x00\xff"


def test_names_are_ordered_by_their_utf_16_units_as_in_java() -> None:
    # U+1D11E is a surrogate pair from 0xD834 on, below U+FF21 there, above it as a code point.
    assert content({"\uff21": "later", "\U0001d11e": "sooner"}, b"") == b"soonerlater"


def test_the_signature_is_hmac_sha1_in_base64() -> None:
    # RFC 2202, test case 2, whose digest is effcdf6ae5eb2fa2d27416d5f184df9c259a7c79.
    assert signature("Jefe", b"what do ya want for nothing?") == "7/zfauXrL6LSdBbV8YTfnCWafHk="


def test_a_signed_request_carries_key_and_signature_and_may_be_signed_again() -> None:
    command = RemotingCommand.request(38, {"consumerGroup": "g"})

    sign(command, "rocketmq2", "12345678")
    first = dict(command.ext)
    sign(command, "rocketmq2", "12345678")

    assert first["AccessKey"] == "rocketmq2"
    assert first["Signature"] == signature("12345678", b"rocketmq2g")
    assert command.ext == first
    assert "SecurityToken" not in first


def test_a_security_token_is_signed_too() -> None:
    command = RemotingCommand.request(38, {"consumerGroup": "g"})

    sign(command, "rocketmq2", "12345678", "token")

    assert command.ext["Signature"] == signature("12345678", b"rocketmq2tokeng")
