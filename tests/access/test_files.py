"""The files of access control: what they say, when they are read again, and how tools change them."""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from haservice.access import files as acl_files
from haservice.access.files import AclFiles
from haservice.access.rules import DENY, PUB, SUB, AclRefused
from haservice.errors import ConfigError
from haservice.remoting.command import RemotingCommand

# As RocketMQ's own example has it: numbers where text is meant, blank values, a comment.
EXAMPLE = """\
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the name of the group
      - groupA=DENY
      - groupB=PUB|SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""
ONE = "accounts:\n  - {accessKey: accounts-key, secretKey: secret-key}\n"


def changed(path: Path, text: str) -> None:
    """Written so that a look at it always tells, however coarse the clock of the file system."""
    path.parent.mkdir(exist_ok=True)
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return tmp_path / "plain_acl.yml"


def loaded(main: Path, text: str = ONE) -> AclFiles:
    main.write_text(text)
    files = AclFiles(main, clock_ms=lambda: 1700000000000)
    files.load()
    return files


def keys(files: AclFiles) -> set[str]:
    return set(files.rules.accounts)


def refusal(main: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(main, text)
    return str(refused.value).removeprefix(str(main))


# ---- what a file says


def test_rocketmqs_example_is_read(main: Path) -> None:
    files = loaded(main, EXAMPLE)
    first = files.rules.accounts["RocketMQ"]
    assert (first.secret_key, first.admin, first.default_topic, first.default_group) == (
        "12345678",
        False,
        DENY,
        SUB,
    )
    assert first.perms == {
        "topicA": DENY,
        "topicB": PUB | SUB,
        "topicC": SUB,
        "%RETRY%groupA": DENY,
        "%RETRY%groupB": PUB | SUB,
    }
    second = files.rules.accounts["rocketmq2"]
    assert second.admin
    assert second.white.matches("192.168.1.7")
    files.rules.who("10.10.103.200", RemotingCommand.request(25))
    with pytest.raises(AclRefused):
        files.rules.who("10.10.104.200", RemotingCommand.request(25))


@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("defaultTopicPerm: PUB", "defaultTopicPerm: PUBB", "permission 'PUBB' is none of"),
        ("topicPerms:", "topicPrems:", "unknown name 'topicPrems'"),
        ("T=PUB", "T=pub", "permission 'pub' is none of"),
    ],
)
def test_one_wrong_word_while_it_runs_takes_nobodys_rights_away(
    main: Path, right: str, wrong: str, why: str
) -> None:
    text = (
        "accounts:\n  - accessKey: accounts-key\n    secretKey: secret-key\n"
        "    defaultTopicPerm: PUB\n    topicPerms: [T=PUB, U=NONSENSE]\n"
    )
    files = loaded(main, text)  # a start takes U's as DENY, with a warning, as RocketMQ does
    before = files.rules
    changed(main, text.replace(right, wrong))
    files.poll()
    files.poll()
    assert files.rules is before
    assert why in files.trouble
    changed(main, text.replace("T=PUB", "T=SUB"))
    files.poll()
    files.poll()
    assert files.rules.accounts["accounts-key"].perms["T"] == 8
    assert files.trouble == ""


def test_a_name_that_is_ignored_already_may_come_with_new_accounts(main: Path) -> None:
    text = "accounts:\n- {accessKey: key-number-1, secretKey: secret-key, owner: team}\n"
    files = loaded(main, text)
    for number in (2, 3):
        text += f"- {{accessKey: key-number-{number}, secretKey: secret-key, owner: team}}\n"
        changed(main, text)
        files.poll()
        files.poll()
        assert (f"key-number-{number}" in keys(files), files.trouble) == (True, "")
    changed(main, text.replace("owner: team", "onwer: team", 1))
    files.poll()
    files.poll()
    assert "unknown name 'onwer'" in files.trouble


def test_the_digest_is_of_the_accounts_and_not_of_the_white_lists(main: Path) -> None:
    first = loaded(main, ONE).digest
    assert loaded(main, ONE + "globalWhiteRemoteAddresses: [10.0.0.2]\n").digest == first
    assert loaded(main, ONE.replace("secret-key", "another-key")).digest != first


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accounts: [\n", ":2: "),
        ("- a\n", ":1: a list where names with values are expected"),
        ("accounts: {accessKey: k}\n", ":1: accounts is a dict, not a list of lines that begin with -"),
        ("accounts:\n  - justtext\n", ":2: a str where names with values are expected"),
        ("accounts:\n  - secretKey: secret-key\n", ":2: the account has no accessKey"),
        (
            "accounts:\n  - accessKey: k\n    secretKey: secret-key\n",
            ":2: accessKey has 1 characters, at least 7 are needed",
        ),
        (
            "accounts:\n  - accessKey: accounts-key\n    secretKey: 123456\n",
            ":3: secretKey has 6 characters, at least 7 are needed",
        ),
        (ONE + "    admin: perhaps\n", ":3: "),
        (
            "accounts:\n  - accessKey: accounts-key\n    secretKey: secret-key\n    admin: perhaps\n",
            ":4: admin is 'perhaps', neither true nor false",
        ),
        (
            "accounts:\n  - accessKey: accounts-key\n    secretKey: 1234567.5\n",
            ":3: a float where text is expected: quote it",
        ),
        (
            ONE.replace("}", ", topicPerms: [T]}"),
            ":2: 'T' is not of the form name=PUB|SUB",
        ),
        (ONE.replace("}", ", topicPerms: [T=PUB=SUB]}"), ":2: 'T=PUB=SUB' is not of the form name=PUB|SUB"),
        (
            ONE + "globalWhiteRemoteAddresses:\n- 10.0.0.1\n- 10.0.0.300\n",
            ":5: '10.0.0.300' is not an address",
        ),
        (
            "",
            ": aclFile: no account and no white list there: with aclEnable=true nobody would be let in",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(main: Path, text: str, reason: str) -> None:
    assert refusal(main, text).startswith(reason)


def test_a_missing_file_is_no_reason_to_let_everybody_or_nobody_in(main: Path) -> None:
    with pytest.raises(ConfigError, match="nobody would be let in"):
        AclFiles(main).load()


def test_an_unknown_permission_is_deny_and_told(main: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = loaded(main, ONE.replace("}", ", defaultTopicPerm: pub, other: 1}"))
    assert files.rules.accounts["accounts-key"].default_topic == DENY
    assert f"{main}:2: permission 'pub' is none of" in caplog.text
    assert f"{main}:2: unknown name 'other', ignored" in caplog.text


def test_the_files_below_acl_count_too_and_the_first_of_two_accounts(
    main: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("acl/b.yml", "acl/deep/c.yaml", "acl/notes.txt", "acl/tools.yml"):
        path = main.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ONE.replace("accounts-key", f"key-of-{path.stem}"))
    (main.parent / "acl" / "d.yml").write_text(ONE.replace("secret-key", "other-secret"))
    files = loaded(main)
    assert keys(files) == {"key-of-b", "key-of-c", "accounts-key"}
    assert files.rules.accounts["accounts-key"].secret_key == "other-secret"
    assert "counts as it stands in" in caplog.text


def test_the_file_in_conf_is_good_once_its_signs_are_taken_away(main: Path) -> None:
    conf = Path(__file__).parents[2] / "conf" / "plain_acl.yml"
    assert "nobody would be let in" in refusal(main, conf.read_text())
    files = loaded(
        main,
        re.sub(r"(?m)^#(?=\S| {2})", "", conf.read_text().partition("\n\n")[2].replace("# Addr", "## Addr")),
    )
    assert keys(files) == {"admins-key", "orders-service"}


# ---- read again


def test_a_change_is_in_force_after_two_looks(main: Path) -> None:
    files = loaded(main)
    changed(main, ONE.replace("accounts-key", "another-key"))
    files.poll()
    assert keys(files) == {"accounts-key"}, "it could still be being written"
    files.poll()
    assert keys(files) == {"another-key"}


def test_a_file_that_keeps_changing_is_left_alone_until_it_rests(main: Path) -> None:
    files = loaded(main)
    for number in range(3):
        changed(main, ONE.replace("accounts-key", f"another-key-{number}"))
        files.poll()
        assert keys(files) == {"accounts-key"}
    files.poll()
    assert keys(files) == {"another-key-2"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accounts: [\n", "plain_acl.yml:2: "),
        (ONE.replace("secret-key", "short"), "plain_acl.yml:2: secretKey has 5 characters"),
        ("", "plain_acl.yml: has become blank"),
        ("accounts: []\n", "nobody would be let in"),
        (None, "plain_acl.yml: is gone"),
    ],
)
def test_a_broken_new_file_leaves_the_rules_as_they_were_and_says_so_once(
    main: Path, caplog: pytest.LogCaptureFixture, text: str | None, reason: str
) -> None:
    files = loaded(main)
    if text is None:
        main.unlink()
    else:
        changed(main, text)
    for _ in range(4):
        files.poll()
    assert keys(files) == {"accounts-key"}
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert reason in errors[0].getMessage()
    assert reason in files.trouble
    changed(main, ONE.replace("accounts-key", "another-key"))
    files.poll()
    files.poll()
    assert keys(files) == {"another-key"}
    assert files.trouble == ""


def test_a_change_that_could_not_be_read_for_a_moment_is_not_missed(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = loaded(main)
    changed(main, ONE.replace("accounts-key", "another-key"))
    with monkeypatch.context() as shortage:
        error = ConfigError(str(main), 0, "", "cannot be read: Too many open files")
        shortage.setattr(acl_files, "YamlDocument", Mock(side_effect=error))
        files.poll()
        files.poll()
    assert "Too many open files" in files.trouble
    files.poll()
    assert keys(files) == {"another-key"}
    assert files.trouble == ""


def test_files_come_and_go(main: Path) -> None:
    files = loaded(main)
    other = main.parent / "acl" / "b.yml"
    changed(other, ONE.replace("accounts-key", "another-key"))
    files.poll()
    files.poll()
    assert keys(files) == {"accounts-key", "another-key"}
    other.unlink()
    files.poll()
    files.poll()
    assert keys(files) == {"accounts-key"}


# ---- changed by tools


def content(path: Path) -> dict[str, Any]:
    data = yaml.safe_load(path.read_text())
    assert isinstance(data, dict)
    return data


def test_a_new_account_goes_to_the_main_file_and_counts_at_once(main: Path) -> None:
    files = loaded(main)
    files.put_account("another-key", {"secretKey": "12345678", "topicPerms": ["T=PUB|SUB"], "admin": False})
    assert files.rules.accounts["another-key"].perms == {"T": PUB | SUB}
    assert content(main)["accounts"][1] == {
        "accessKey": "another-key",
        "secretKey": "12345678",
        "topicPerms": ["T=PUB|SUB"],
        "admin": False,
    }
    assert "secretKey: '12345678'" in main.read_text(), "quoted, or it would come back as a number"
    assert content(main)["dataVersion"] == [{"counter": 1, "timestamp": 1700000000000}]
    again = AclFiles(main)
    again.load()
    assert again.rules.accounts == files.rules.accounts


def test_an_account_is_changed_where_it_stands_and_keeps_what_is_not_named(main: Path) -> None:
    other = main.parent / "acl" / "b.yml"
    changed(other, ONE.replace("accounts-key", "another-key").replace("}", ", defaultTopicPerm: SUB}"))
    files = loaded(main)
    before = main.read_text()
    files.put_account("another-key", {"admin": True})
    assert content(other)["accounts"] == [
        {"accessKey": "another-key", "secretKey": "secret-key", "defaultTopicPerm": "SUB", "admin": True}
    ]
    assert main.read_text() == before
    assert files.rules.accounts["another-key"].admin


def test_an_account_goes(main: Path) -> None:
    files = loaded(main, EXAMPLE)
    assert files.delete_account("RocketMQ")
    assert keys(files) == {"rocketmq2"}
    assert [one["accessKey"] for one in content(main)["accounts"]] == ["rocketmq2"]
    assert not files.delete_account("RocketMQ")


def test_the_last_way_in_cannot_be_deleted(main: Path) -> None:
    files = loaded(main)
    with pytest.raises(ConfigError, match="nobody would be let in"):
        files.delete_account("accounts-key")
    assert keys(files) == {"accounts-key"}
    assert content(main)["accounts"]


def test_white_addresses_are_replaced_in_one_of_our_files_only(main: Path, tmp_path: Path) -> None:
    files = loaded(main, EXAMPLE)
    files.set_white_addresses(["10.0.0.1", "10.1.*.*"])
    assert content(main)["globalWhiteRemoteAddresses"] == ["10.0.0.1", "10.1.*.*"]
    files.rules.who("10.1.7.7", RemotingCommand.request(25))
    stranger = tmp_path / "stranger.yml"
    stranger.write_text("a: 1\n")
    with pytest.raises(ConfigError, match="none of the files"):
        files.set_white_addresses(["*"], str(stranger))
    with pytest.raises(ConfigError, match="not an address"):
        files.set_white_addresses(["10.0.0"], str(main))
    assert content(main)["globalWhiteRemoteAddresses"] == ["10.0.0.1", "10.1.*.*"]


def test_every_write_counts_up_and_is_not_read_again(main: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = loaded(main)
    caplog.set_level(logging.INFO)
    for number in (1, 2, 3):
        files.put_account("another-key", {"secretKey": "secret-key", "admin": number % 2 == 0})
        assert files.versions()[str(main)].counter == number
    for _ in range(3):
        files.poll()
    assert "read again" not in caplog.text


def test_a_write_keeps_mode_and_link_of_the_file(main: Path, tmp_path: Path) -> None:
    real = tmp_path / "real" / "acl.yml"
    changed(real, ONE)
    real.chmod(0o640)
    main.symlink_to(real)
    files = AclFiles(main)
    files.load()
    files.put_account("accounts-key", {"admin": True})
    assert main.is_symlink()
    assert content(real)["accounts"][0]["admin"] is True
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in real.parent.iterdir()) == ["acl.yml"]


def test_a_disk_that_refuses_leaves_file_and_rules(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = loaded(main)
    before = main.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space"):
        files.put_account("another-key", {"secretKey": "secret-key"})
    assert main.read_text() == before
    assert [path.name for path in main.parent.iterdir()] == [main.name]
    assert keys(files) == {"accounts-key"}


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that every user can pass through, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        if not all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(name).resolve().parents):
            pytest.skip("no user but this one gets to the directory for temporary files")
        yield Path(name)


@pytest.mark.parametrize(
    ("mode", "of_directory", "told"),
    [
        (0o644, 0o755, True),
        (0o644, 0o711, True),
        (0o640, 0o755, False),
        (0o600, 0o755, False),
        (0o644, 0o700, False),
        (0o644, 0o750, False),
    ],
)
def test_a_file_with_secrets_that_everybody_can_read_is_told(
    passable: Path, caplog: pytest.LogCaptureFixture, mode: int, of_directory: int, told: bool
) -> None:
    main = passable / "plain_acl.yml"
    main.touch()
    main.chmod(mode)
    passable.chmod(of_directory)
    loaded(main)
    assert (
        f"every user of this machine can read a file with secrets: chmod o-rwx {main}" in caplog.text
    ) == told
