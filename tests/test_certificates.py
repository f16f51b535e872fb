"""Certificates: how long they are valid, by openssl's word, and what takes whose place."""

from __future__ import annotations

import logging
import re
import shutil
import ssl
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from haservice.certificates import (
    CertificateFile,
    Dated,
    RenewedCertificates,
    Validity,
    not_valid_now,
    reason,
)
from haservice.configuration.security_settings import ClientAuth, TlsConfig, TlsMode
from haservice.remoting.tls import ServerTls
from tests.support.certificates import certificates, signed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")


def of_openssl(path: Path) -> Validity:
    command = ["openssl", "x509", "-in", str(path), "-noout", "-startdate", "-enddate"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    dates = [line.partition("=")[2] for line in said.splitlines()]
    parsed = [
        datetime.strptime(one, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp() for one in dates
    ]
    return Validity(*parsed)


@pytest.mark.parametrize("days", [2, -1, 40_000])
def test_dates_are_those_that_openssl_tells(days: int) -> None:
    cert, _ = signed("dated", days)
    assert CertificateFile("key", cert).read().validities == [of_openssl(cert)]


def test_a_chain_is_valid_as_long_as_its_first_and_roots_as_long_as_any(tmp_path: Path) -> None:
    lasting, over = signed("lasting", 30)[0], signed("over", -1)[0]
    both = tmp_path / "both.pem"
    both.write_text("a text before\n" + over.read_text() + lasting.read_text())
    assert CertificateFile("key", both).read().validities == [of_openssl(over)]
    assert CertificateFile("key", both, roots=True).read().validities == [
        of_openssl(over),
        of_openssl(lasting),
    ]
    assert not told(CertificateFile("key", both, roots=True))
    assert re.match(
        r"file: key=.*both.pem: not valid now: since 20.* UTC no more", told(CertificateFile("key", both))
    )


def told(file: CertificateFile) -> str:
    return "".join(map(str, not_valid_now([file], {file.key: file.read()}, "file")))


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_dates(tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.pem"
    path.write_text(text)
    assert CertificateFile("key", path).read().validities == []
    assert CertificateFile("key", tmp_path / "missing.pem").read().validities == []


def test_a_certificate_that_has_expired_takes_no_good_ones_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cert.pem"
    shutil.copy(signed("good", 30)[0], path)
    renewed = RenewedCertificates("certificate", [CertificateFile("key", path)], None, path.read_text, "file")
    good, until = renewed.made, renewed.validities["key"].until
    assert until > time.time() + 29 * 86_400
    shutil.copy(signed("gone", -1)[0], path)
    for _ in range(4):
        renewed.poll()
    assert (renewed.made, renewed.validities["key"].until) == (good, until)
    assert "not valid now" in renewed.trouble
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "certificate not renewed, the one before stays: file: key=" in errors[0]
    shutil.copy(signed("better", 40)[0], path)
    renewed.poll()
    renewed.poll()
    assert renewed.made == path.read_text()
    assert renewed.trouble == ""


def test_a_root_that_begins_later_does_not_spoil_the_one_that_counts_now() -> None:
    now_s = time.time()
    both = [Validity(0, now_s + 60), Validity(now_s + 30, now_s + 900)]
    file = CertificateFile("trust", Path("roots.pem"), roots=True)
    assert not not_valid_now([file], {"trust": Dated(both, "")}, "file")
    (error,) = not_valid_now([file], {"trust": Dated(both[1:], "")}, "file")
    assert re.match(r"file: trust=roots.pem: not valid now: from 20.* UTC on", str(error))


def test_a_start_with_a_certificate_that_has_expired_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And so it is when another such takes its place; a good one ends it."""
    path = tmp_path / "cert.pem"
    shutil.copy(signed("gone", -1)[0], path)
    renewed = RenewedCertificates("certificate", [CertificateFile("key", path)], None, path.read_text, "file")
    assert "certificate is in force all the same, for there is no other: file: key=" in caplog.text
    assert renewed.validities["key"].until < time.time()
    caplog.clear()
    shutil.copy(signed("gone too", -1)[0], path)
    assert renewed.read_again()
    assert caplog.text.count("in force all the same") == 1
    caplog.clear()
    shutil.copy(signed("good", 30)[0], path)
    assert renewed.read_again()
    assert "in force all the same" not in caplog.text


def test_files_that_change_while_they_are_read_do_not_count_yet(tmp_path: Path) -> None:
    """Else the dates of one could stand beside the certificate of the other."""
    path, other = tmp_path / "cert.pem", signed("other", 40)[0]
    shutil.copy(signed("good", 30)[0], path)
    replaced = [False]

    def make() -> str:
        text = path.read_text()
        if not replaced[0]:
            replaced[0] = True
            path.unlink()
            shutil.copy(other, path)
        return text

    renewed = RenewedCertificates("certificate", [CertificateFile("key", path)], None, make, "file")
    assert (renewed.made, renewed.validities["key"]) == (other.read_text(), of_openssl(other))
    shutil.copy(signed("good", 30)[0], path)
    replaced[0] = False
    for _ in range(2):
        renewed.poll()
    assert (renewed.made, renewed.validities["key"]) == (other.read_text(), of_openssl(other))
    path.write_text(signed("better", 50)[0].read_text())
    for _ in range(2):
        renewed.poll()
    assert (renewed.made, renewed.trouble) == (path.read_text(), "")


def test_the_dates_of_roots_reach_until_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    found = [Validity(5, now_s + 60), Validity(now_s + 30, now_s + 900)]
    monkeypatch.setattr(CertificateFile, "read", lambda _: Dated(found, ""))
    file = CertificateFile("trust", Path("roots.pem"), roots=True)
    renewed = RenewedCertificates("roots", [file], None, lambda: None, "file")
    assert renewed.validities == {"trust": Validity(5, now_s + 900)}
    del found[0]
    assert renewed.validities == {"trust": found[0]}


def test_a_file_that_is_over_already_does_not_keep_the_others_from_being_renewed(tmp_path: Path) -> None:
    own, other = tmp_path / "own.pem", tmp_path / "other.pem"
    shutil.copy(signed("good", 30)[0], own)
    shutil.copy(signed("gone", -1)[0], other)
    files = [CertificateFile("own", own), CertificateFile("other", other)]
    renewed = RenewedCertificates("certificate", files, None, own.read_text, "file")
    shutil.copy(signed("better", 40)[0], own)
    renewed.poll()
    renewed.poll()
    assert (renewed.made, renewed.trouble) == (own.read_text(), "")


def test_roots_that_are_not_asked_for_are_not_watched() -> None:
    made = certificates()
    own = {"mode": TlsMode.enforcing, "server_cert": made.server, "server_key": made.server_key}
    unused = ServerTls(TlsConfig(**own, server_trust=signed("gone", -1)[0]))  # type: ignore[arg-type]
    assert list(unused.renewed.validities) == ["tls.server.certPath"]
    asked = TlsConfig(**own, server_trust=made.root, client_auth=ClientAuth.require, auth_client=True)  # type: ignore[arg-type]
    assert "tls.server.trustCertPath" in ServerTls(asked).renewed.validities


def test_a_key_that_all_can_read_is_told_when_it_comes_into_use_and_not_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Path] = []
    monkeypatch.setattr("haservice.watched_files.tell_if_open", told.append)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(signed("good", 30)[0], cert)
    key.write_text("key")
    renewed = RenewedCertificates("certificate", [CertificateFile("key", cert)], key, cert.read_text, "file")
    assert told == [key]
    shutil.copy(signed("gone", -1)[0], cert)
    for _ in range(4):
        renewed.poll()
    assert "not valid now" in renewed.trouble
    assert told == [key]


def test_the_same_roots_have_the_same_digest_in_any_order(tmp_path: Path) -> None:
    made = certificates()

    def digest(*parts: Path) -> str:
        path = tmp_path / "roots.pem"
        path.write_text("".join(part.read_text() for part in parts))
        files = [CertificateFile("trust", path, roots=True)]
        return RenewedCertificates("roots", files, None, lambda: None, "").root_digests["trust"]

    assert digest(made.root, made.stranger) == digest(made.stranger, made.root, made.root)
    assert digest(made.root) != digest(made.root, made.stranger)


def test_why_a_handshake_failed_is_told_without_a_place_in_the_sources() -> None:
    ended = ssl.SSLError(8, "TLS/SSL connection has been closed (EOF) (_ssl.c:1006)")
    assert reason(ended) == "tls/ssl connection has been closed (eof)"
    assert reason(ssl.SSLZeroReturnError(6, "the end (_ssl.c:2427)")) == "the end"
    assert (
        reason(ConnectionResetError(104, "Connection reset by peer"))
        == "[Errno 104] Connection reset by peer"
    )
