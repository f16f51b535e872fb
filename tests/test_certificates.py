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
from haservice.errors import ConfigError
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
    assert CertificateFile("key", cert).validity() == of_openssl(cert)


def test_a_chain_is_valid_as_long_as_its_first_and_roots_as_long_as_any(tmp_path: Path) -> None:
    lasting, over = signed("lasting", 30)[0], signed("over", -1)[0]
    both = tmp_path / "both.pem"
    both.write_text("a text before\n" + over.read_text() + lasting.read_text())
    assert CertificateFile("key", both).validity() == of_openssl(over)
    assert CertificateFile("key", both, roots=True).validity() == of_openssl(lasting)
    check_dates([CertificateFile("key", both, roots=True)], "file")
    with pytest.raises(ConfigError, match=r"file: key=.*both.pem: not valid now: since 20.* UTC no more"):
        check_dates([CertificateFile("key", both)], "file")


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_has_no_dates(tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.pem"
    path.write_text(text)
    assert CertificateFile("key", path).validity() is None
    assert CertificateFile("key", tmp_path / "missing.pem").validity() is None


def test_a_certificate_that_has_expired_takes_no_good_ones_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cert.pem"
    shutil.copy(signed("good", 30)[0], path)
    renewed = RenewedCertificates("certificate", [CertificateFile("key", path)], None, path.read_text, "file")
    good, until = renewed.made, renewed.ends["key"]
    assert until > time.time() + 29 * 86_400
    shutil.copy(signed("gone", -1)[0], path)
    for _ in range(4):
        renewed.poll()
    assert (renewed.made, renewed.ends["key"]) == (good, until)
    assert "not valid now" in renewed.trouble
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "certificate not renewed, the one before stays: file: key=" in errors[0]
    shutil.copy(signed("better", 40)[0], path)
    renewed.poll()
    renewed.poll()
    assert renewed.made == path.read_text()
    assert renewed.trouble == ""


def test_the_same_roots_have_the_same_digest_in_any_order(tmp_path: Path) -> None:
    made = certificates()

    def digest(*parts: Path) -> str:
        path = tmp_path / "roots.pem"
        path.write_text("".join(part.read_text() for part in parts))
        files = [CertificateFile("trust", path, roots=True)]
        return RenewedCertificates("roots", files, None, lambda: None, "").root_digests["trust"]

    assert digest(made.root, made.stranger) == digest(made.stranger, made.root, made.root)
    assert digest(made.root) != digest(made.root, made.stranger)
