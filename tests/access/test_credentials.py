"""A broker's own keys: read again when their file changes, and kept while it is no good."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from haservice.access.credentials import OwnKeys
from haservice.errors import ConfigError
from haservice.remoting.command import RemotingCommand
from haservice.remoting.signature import ACCESS_KEY, SIGNATURE

OLD = "accessKey: old-key\nsecretKey: old-secret\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "tools.yml"
    found.write_text(OLD)
    return found


def signed(keys: OwnKeys) -> tuple[str, str]:
    request = RemotingCommand.request(26, {"a": "b"})
    keys.sign(request)
    return request.ext[ACCESS_KEY], request.ext[SIGNATURE]


def test_new_keys_count_when_their_file_has_come_to_rest(path: Path) -> None:
    keys = OwnKeys(path)
    before = signed(keys)
    path.write_text("accessKey: new-key\nsecretKey: new-secret\n")
    keys.poll()
    assert signed(keys) == before, "it could still be being written"
    keys.poll()
    assert signed(keys)[0] == "new-key"
    assert signed(keys)[1] != before[1]
    assert keys.trouble == ""


@pytest.mark.parametrize(
    ("text", "why"), [("accessKey: new-key\n", "there is no secretKey"), (None, "cannot be read")]
)
def test_a_file_that_is_no_good_leaves_the_keys_and_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture, text: str | None, why: str
) -> None:
    keys = OwnKeys(path)
    before = signed(keys)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    for _ in range(4):
        keys.poll()
    assert signed(keys) == before
    assert why in keys.trouble
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "aclCredentialsFile" in errors[0]
    path.write_text(OLD)
    keys.poll()
    keys.poll()
    assert keys.trouble == ""


def test_a_start_without_good_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        OwnKeys(tmp_path / "none.yml")
