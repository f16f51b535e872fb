"""What the guard refuses and adds where browsers come over TLS."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from haservice.console.doors.guard import Guard


def ask(guard: Guard, method: str = "GET", **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/", "headers": named, "query_string": b""}
    asyncio.run(guard(scope, receive, send))
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told


def guarded(*, secure: bool) -> Guard:
    return Guard(PlainTextResponse("page"), ["console.example"], secure=secure)


@pytest.mark.parametrize(
    ("origin", "secure", "status"),
    [
        ("https://console.example:8443", True, 200),
        ("http://console.example:8443", True, 403),
        ("http://console.example:8443", False, 200),
        ("https://other.example:8443", True, 403),
    ],
)
def test_over_tls_a_change_comes_from_a_page_over_tls(origin: str, secure: bool, status: int) -> None:
    assert ask(guarded(secure=secure), "POST", host="console.example:8443", origin=origin)[0] == status


@pytest.mark.parametrize(
    ("host", "secure", "told"),
    [
        ("console.example", True, True),
        ("console.example:8443", True, True),
        ("console.example", False, False),
        ("localhost:8443", True, False),  # it would count for whatever else listens there
        ("127.0.0.1:8443", True, False),
    ],
)
def test_a_browser_is_told_to_come_by_tls_only(host: str, secure: bool, told: bool) -> None:
    status, headers = ask(guarded(secure=secure), host=host)
    assert status == 200
    assert ("strict-transport-security" in headers) == told
