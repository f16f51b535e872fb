"""Loads certificates, keys and roots into an ssl.SSLContext, and tells how long they are valid.

Errors name the key and the path.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from haservice.errors import ConfigError
from haservice.watched_files import Renewed

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

# Where in the sources of Python an error came up.
_PLACE = re.compile(r" *\(_ssl\.c:\d+\)$")

# ASN.1: what a certificate's fields begin with.
_VERSION, _UTC_TIME = 0xA0, 0x17


# OpenSSL's numbers for why a certificate is not trusted, in plain words.
_WHY = {
    9: "its time has not come",
    10: "its time is over",
    18: "no root here has signed it",
    19: "no root here has signed it",
    20: "no root here has signed it",
    21: "no root here has signed it",
    26: "it is made for another purpose",
    62: "it names another host",
    64: "it names another host",
}


class Validity(NamedTuple):
    """When a certificate is valid, in seconds since 1970; `until` is its last second."""

    since: float
    until: float

    def holds(self, now_s: float) -> bool:
        return self.since <= now_s <= self.until


class CertificateFile(NamedTuple):
    """A file that is in use.  `key` sets its path; of `roots` any may be valid, else the first has to be."""

    key: str
    path: Path
    roots: bool = False

    def read(self) -> Dated:
        """Empty if it cannot be read or holds no certificate."""
        try:
            pems = _PEM.findall(self.path.read_text(errors="replace"))
        except OSError:
            return Dated([], "")
        found = list(_validities(pems))
        return Dated(found if self.roots else found[:1], _digest(pems) if self.roots else "")


class Dated(NamedTuple):
    """What is told of a file's certificates, from one reading."""

    validities: list[Validity]
    """Of those that count."""
    digest: str
    """Of a file of roots: the same certificates, in any order, have the same.  Else "", as if it cannot be told."""


def files_of(*named: tuple[str, Path | None]) -> list[CertificateFile]:
    """Those of the keys whose paths are set; a key that ends with trustCertPath names roots."""
    return [
        CertificateFile(key, path, roots=key.lower().endswith("trustcertpath"))
        for key, path in named
        if path is not None
    ]


def check_pair(names: tuple[str, str], cert: Path | None, key: Path | None, source: str) -> None:
    """`names` are the keys that set the two paths.  Raises ConfigError if only one of them is set."""
    if (cert is None) is not (key is None):
        missing = names[0] if cert is None else names[1]
        raise ConfigError(source, 0, missing, "certificate and key go together, this one is missing")


def not_valid_now(
    files: Iterable[CertificateFile], found: Mapping[str, Dated], source: str
) -> list[ConfigError]:
    """An error for each file of which no certificate is valid now; `found` is by keys."""
    now_s = time.time()
    errors = []
    for file in files:
        dates = found[file.key].validities
        if dates and not any(one.holds(now_s) for one in dates):
            last = _last(dates)
            when = (
                f"since {_day(last.until)} no more" if last.until < now_s else f"from {_day(last.since)} on"
            )
            errors.append(ConfigError(source, 0, file.key, f"not valid now: {when}", str(file.path)))
    return errors


def _last(found: Sequence[Validity]) -> Validity:
    return max(found, key=lambda one: one.until)


def _together(found: Sequence[Validity]) -> Validity:
    """A root that begins later is no reason to say that there is none."""
    now_s, last = time.time(), _last(found)
    since = min((one.since for one in found if one.holds(now_s)), default=last.since)
    return Validity(since, last.until)


class RenewedCertificates(Generic[T]):
    """What is made from certificates, and made anew when their files change.

    One that is not valid now takes no good one's place.  At the start, or in the place of another such, it counts
    all the same, with an ERROR: peers that do not ask for dates, as RocketMQ's clients, go on being served.
    """

    def __init__(
        self,
        what: str,
        files: Sequence[CertificateFile],
        key: Path | None,
        make: Callable[[], T],
        source: str,
    ) -> None:
        """`key` is the private key's file.  Raises ConfigError as `make` does."""

        def make_all() -> tuple[T, dict[str, Dated]]:
            return make(), {file.key: file.read() for file in files}

        self.what = what
        self._files, self._source = files, source
        paths = [*(file.path for file in files), key]
        self._renewed = Renewed(what, paths, make_all, self._check, secret=key)
        self.poll = self._renewed.poll
        self.read_again = self._renewed.read_again

    def _check(self, made: tuple[T, dict[str, Dated]], in_force: tuple[T, dict[str, Dated]] | None) -> None:
        worse = not_valid_now(self._files, made[1], self._source)
        if in_force is not None:
            as_bad = {error.key for error in not_valid_now(self._files, in_force[1], self._source)}
            for error in worse:
                if error.key not in as_bad:
                    raise error
        for error in worse:
            logger.error("%s is in force all the same, for there is no other: %s", self.what, error)

    @property
    def made(self) -> T:
        return self._renewed.value[0]

    @property
    def validities(self) -> dict[str, Validity]:
        """When those in force are valid, by their files' keys; of roots until the last of them ends."""
        return {
            key: _together(one.validities) for key, one in self._renewed.value[1].items() if one.validities
        }

    @property
    def root_digests(self) -> Mapping[str, str]:
        """What the files of roots in force come to, by their keys."""
        return {key: one.digest for key, one in self._renewed.value[1].items() if one.digest}

    @property
    def trouble(self) -> str:
        """Why the files are not in force as they are; "" if they are."""
        return self._renewed.trouble


def _digest(pems: Iterable[str]) -> str:
    with suppress(ValueError):
        ders = sorted({ssl.PEM_cert_to_DER_cert(pem) for pem in pems})
        return hashlib.sha256(b"".join(ders)).hexdigest()[:16]
    return ""


def reason(error: OSError) -> str:
    """Why a TLS connection did not come about: OpenSSL's words, without the names of its source files."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _WHY.get(error.verify_code, "")
        return f"the peer's certificate is not trusted: {error.verify_message}" + (f" ({why})" if why else "")
    if not isinstance(error, ssl.SSLError):
        return str(error) or "the peer hung up"
    text = (getattr(error, "reason", None) or _PLACE.sub("", str(error.args[-1]))).replace("_", " ").lower()
    _, alert, said = text.partition(" alert ")
    return f"the peer says: {said}" if alert else text


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _validities(pems: Iterable[str]) -> Iterator[Validity]:
    for pem in pems:
        try:
            yield _validity(ssl.PEM_cert_to_DER_cert(pem))
        except (ValueError, IndexError, StopIteration):
            continue


def _validity(der: bytes) -> Validity:
    """Certificate ::= { tbs { [version], serial, algorithm, issuer, validity { since, until }, … }, … }"""
    fields = _fields(next(_fields(next(_fields(der))[1]))[1])
    first = next(fields)
    for _ in range(3 if first[0] == _VERSION else 2):
        next(fields)
    since, until = _fields(next(fields)[1])
    return Validity(_seconds(*since), _seconds(*until))


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each field."""
    at = 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            width = size & 0x7F
            size, at = int.from_bytes(der[at : at + width]), at + width
        yield tag, der[at : at + size]
        at += size


def _seconds(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def load_chain(
    context: ssl.SSLContext,
    names: tuple[str, str],
    cert: Path,
    key: Path,
    password: str | None,
    source: str,
) -> None:
    """`names` are the keys that set the two paths.  Never asks for a locked key's password at the terminal.

    Raises ConfigError.
    """
    unlock: Callable[[], str] = lambda: password or ""  # noqa: E731 - with its type
    try:
        context.load_cert_chain(cert, key, unlock)
    except ssl.SSLError as error:
        reason = f"no certificate with the key in {key}: {error.reason or error}"
        raise ConfigError(source, 0, names[0], reason, str(cert)) from None
    except (OSError, ValueError) as error:
        name, path = (names[0], cert) if not _readable(cert) or _readable(key) else (names[1], key)
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(source, 0, name, reason, str(path)) from None


def load_roots(
    context: ssl.SSLContext, purpose: ssl.Purpose, name: str, path: Path | None, source: str
) -> None:
    """`name` is the key that sets `path`; None means the system's own roots.  Raises ConfigError."""
    try:
        if path is None:
            context.load_default_certs(purpose)
        else:
            context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = f"no certificates in it: {error.reason or error}"
        raise ConfigError(source, 0, name, reason, str(path)) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigError(source, 0, name, reason, str(path)) from None


def _readable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)
