"""Every error that haservice raises on purpose.

    HAServiceError
    ├── ConfigError            a file, line or key that we refuse to start with
    ├── ProtocolError          the peer broke the wire's rules: its connection ends
    ├── RequestError           a request we cannot serve: it is answered, the connection lives
    └── RemotingError          a call of ours that got no good answer
        ├── RemotingUnreachable    no connection, or it ended before the answer
        ├── RemotingTimeout        connected, but no answer in time
        └── AnswerError            answered, with a code other than success

The type says who is to blame; the attributes carry the numbers.
"""

from __future__ import annotations

from haservice.printable import escaped


class HAServiceError(Exception):
    """Root of the tree; catch this to catch whatever haservice itself refuses."""


class ConfigError(HAServiceError):
    """A value that does not parse or contradicts another.  `line` is 0 when the key is not in the file."""

    def __init__(self, source: str, line: int, key: str, reason: str, value: str | None = None) -> None:
        place = f"{source}:{line}" if line else source
        what = key if value is None else f"{key}={value}"
        super().__init__(f"{place}: {what}: {reason}" if what else f"{place}: {reason}")
        self.source = source
        self.line = line
        self.key = key
        self.value = value
        self.reason = reason


class ProtocolError(HAServiceError):
    """Bytes that no honest peer sends; the text says what, where and how much."""


class RequestError(HAServiceError):
    """A request that is answered with `code` (a ResponseCode) and `remark`; nothing else happens."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class RemotingError(HAServiceError):
    """A call to another process that did not succeed."""


class RemotingUnreachable(RemotingError):
    """No connection to `addr`, or it ended before the answer came."""

    def __init__(self, addr: str, reason: str) -> None:
        super().__init__(f"{addr}: {reason}")
        self.addr = addr
        self.reason = reason


class RemotingClosed(RemotingUnreachable):
    """`addr` accepted the connection, and it ended before the answer came."""


class RemotingTimeout(RemotingError):
    """`addr` took request `code` and did not answer within `seconds`."""

    def __init__(self, addr: str, code: int, seconds: float) -> None:
        super().__init__(f"{addr}: no answer to request {code} within {seconds:g} s")
        self.addr = addr
        self.code = code
        self.seconds = seconds


class AnswerError(RemotingError):
    """`addr` answered with `code` and `remark` instead of success; the text is printable, `remark` is raw.

    `request` is the code of the request, 0 if unknown.
    """

    def __init__(self, addr: str, code: int, remark: str | None, request: int = 0) -> None:
        super().__init__(f"{addr}: answered code {code}: {escaped((remark or '').strip() or 'no remark')}")
        self.addr = addr
        self.code = code
        self.remark = remark
        self.request = request
