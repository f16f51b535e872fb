"""Certificates: how long they are valid, by openssl's word, and what takes whose place."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from haservice.certificates import CertificateFile, RenewedCertificates, Validity, check_dates
from haservice.configuration.security_settings import ClientAuth, TlsConfig, TlsMode
from haservice.errors import ConfigError
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
    assert CertificateFile("key", cert).validities() == [of_openssl(cert)]


def test_a_chain_is_valid_as_long_as_its_first_and_roots_as_long_as_any(tmp_path: Path) -> None:
    lasting, over = signed("lasting", 30)[0], signed("over", -1)[0]
    both = tmp_path / "both.pem"
    both.write_text("a text before\n" + over.read_text() + lasting.read_text())
    assert CertificateFile("key", both).validities() == [of_openssl(over)]
    assert CertificateFile("key", both, roots=True).validities() == [of_openssl(over), of_openssl(lasting)]
    check_dates([CertificateFile("key", both, roots=True)], "file")
    with pytest.raises(ConfigError, match=r"file: key=.*both.pem: not valid now: since 20.* UTC no more"):
        check_dates([CertificateFile("key", both)], "file")


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_dates(tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.pem"
    path.write_text(text)
    assert CertificateFile("key", path).validities() == []
    assert CertificateFile("key", tmp_path / "missing.pem").validities() == []


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


def test_a_root_that_begins_later_does_not_spoil_the_one_that_counts_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = time.time()
    dates = {"roots.pem": [Validity(0, now_s + 60), Validity(now_s + 30, now_s + 900)]}
    dates["later.pem"] = dates["roots.pem"][1:]
    monkeypatch.setattr(CertificateFile, "validities", lambda file: dates[file.path.name])
    check_dates([CertificateFile("trust", Path("roots.pem"), roots=True)], "file")
    with pytest.raises(ConfigError, match=r"trust=later.pem: not valid now: from 20.* UTC on"):
        check_dates([CertificateFile("trust", Path("later.pem"), roots=True)], "file")


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
