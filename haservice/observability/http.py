"""The little of HTTP that monitoring needs: one request on each connection, and its answer.  Pure.

GET, HEAD, OPTIONS     of a path that the node serves; load balancers ask by each of the three
Connection: close      always, so that no idle connection takes the place of another one
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A request line and its headers.  Prometheus and HAProxy send a few hundred bytes.
HEAD_BYTES_MAX = 8 * 1024
METHODS = ("GET", "HEAD", "OPTIONS")
PLAIN = "text/plain; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2047}) HTTP/1\.[01]\r\n")


class Request(NamedTuple):
    """`path` is without its query."""

    method: str
    path: str


class Page(NamedTuple):
    status: int
    body: bytes
    content_type: str = PLAIN


def line(status: int, text: str) -> Page:
    """An answer of one line."""
    return Page(status, f"{' '.join(text.split())}\n".encode())


def parse(head: bytes) -> Request | Page:
    """The request that these bytes begin with, up to its empty line; or what to answer instead."""
    found = _REQUEST.match(head)
    if found is None:
        return line(400, "this port speaks HTTP/1.1: GET /metrics")
    method, target = found[1].decode(), found[2].decode()
    if method not in METHODS:
        return line(405, f"{method} is not served, only {', '.join(METHODS)}")
    return Request(method, target.partition("?")[0])


def encode(answer: Page, *, body: bool = True) -> bytes:
    """All bytes of the answer; those of an answer to HEAD without `body`."""
    allow = f"Allow: {', '.join(METHODS)}\r\n" if answer.status == 405 else ""
    head = (
        f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        f"{allow}"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if body else b"")
