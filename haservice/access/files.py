"""AclFiles: reads the files of access control at the start, watches them, and writes them for tools.

    <directory>/acl/**/*.yml, *.yaml    in the order of their paths, but for tools.yml
    <directory>/plain_acl.yml           the main file, whatever its name: new accounts go there

If an access key is in two files, the first counts; the white lists of all files count.  `poll`, called about
once a second, reads files that have changed and come to rest.  If anything in the new files is wrong, a word that a
start only warns of included, or they would let nobody in, all rules stay as they were and one ERROR names file and
line.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from commitlog.log.log import wall_clock_ms
from haservice.access.accounts import (
    ACCOUNTS,
    DATA_VERSION,
    UNKNOWN_NAME,
    WHITE_ADDRESSES,
    AclFile,
    parse_file,
)
from haservice.access.rules import AccessRules, Account
from haservice.configuration.security_settings import AclConfig, NameserverAclConfig
from haservice.configuration.yaml_document import YamlDocument, yaml_text
from haservice.errors import ConfigError
from haservice.persisted_file import replace_file
from haservice.watched_files import FileStates, WatchedFiles, tell_if_open

logger = logging.getLogger(__name__)

FILES_MAX = 1000
SUFFIXES = (".yml", ".yaml")
# mqadmin's own credentials; in many set-ups the file lies beside the rules.
CREDENTIALS = "tools.yml"

# Plain values, as YAML gives them.
_Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileVersion:
    """How often tools wrote a file, and when; mqadmin clusterAclConfigVersion shows it."""

    counter: int
    timestamp_ms: int


class _Whole(NamedTuple):
    """All files together."""

    files: Mapping[str, AclFile]
    owners: dict[str, str]
    rules: AccessRules
    warnings: list[str]


class AclFiles:
    """The rules in force, in `rules`, and their files.  All methods block; any thread may call them."""

    what = "access control"

    def __init__(self, main: Path, key: str = "aclFile", clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.main = main
        self.rules = AccessRules()
        self.digest = ""
        """What the accounts in force come to: the same ones, secrets included, have the same digest."""
        # What is wrong with the present files; the rules in force are then older.
        self.trouble = ""
        self._key = key
        self._clock_ms = clock_ms
        self._read: dict[str, AclFile] = {}
        self._owners: dict[str, str] = {}  # access key → path of the file that it counts in
        self._watched = WatchedFiles(self._paths)
        # Guards reading and writing: a poll and a request never mix.
        self._lock = threading.Lock()

    def load(self) -> None:
        """The first reading.  Raises ConfigError when a file is wrong or nobody would be let in."""
        with self._lock:
            self._load(self._watched.look())

    def poll(self) -> None:
        """Reads the files again when they have changed; never raises."""
        self._read_changed(at_once=False)

    def read_again(self) -> bool:
        """As poll, without waiting for the files to come to rest.  Whether new rules are in force."""
        return self._read_changed(at_once=True)

    def _read_changed(self, at_once: bool) -> bool:
        with self._lock:
            try:
                look = self._watched.changed(at_once)
            except OSError as error:
                self._complain(f"{self.main.parent}: cannot be looked through: {error.strerror or error}")
                return False
            if look is None:
                return False
            try:
                self._load(look)
            except (ConfigError, OSError) as error:
                self._watched.refused()
                self._complain(str(error))
                return False
            logger.info("access control read again accounts=%d", len(self.rules.accounts))
            return True

    def versions(self) -> dict[str, FileVersion]:
        """Path → version of every file that was read."""
        with self._lock:
            return {path: FileVersion(one.counter, one.timestamp_ms) for path, one in self._read.items()}

    def owners(self) -> dict[str, str]:
        """Access key → path of the file that it counts in."""
        with self._lock:
            return dict(self._owners)

    # For tools.  All raise ConfigError when the new rules would be wrong, and OSError when the disk refuses;
    # the file and the rules are then as before.

    def put_account(self, access_key: str, fields: _Fields) -> None:
        """Creates an account in the main file, or changes `fields` of an account in the file that has it."""
        with self._lock:
            path = Path(self._owners.get(access_key, self.main))
            data = _data_of(path)
            accounts = _list_of(data, ACCOUNTS)
            old: _Fields = next((one for one in accounts if _is_account(one, access_key)), {})
            kept = [one for one in accounts if one is not old]
            data[ACCOUNTS] = [*kept, old | {"accessKey": access_key} | fields]
            self._write(path, data)

    def delete_account(self, access_key: str) -> bool:
        """False if there is no such account."""
        with self._lock:
            if access_key not in self._owners:
                return False
            path = Path(self._owners[access_key])
            data = _data_of(path)
            accounts = _list_of(data, ACCOUNTS)
            data[ACCOUNTS] = [one for one in accounts if not _is_account(one, access_key)]
            if len(data[ACCOUNTS]) == len(accounts):
                return False
            self._write(path, data)
            return True

    def set_white_addresses(self, addresses: Sequence[str], path: str = "") -> None:
        """Replaces the global white list of one of our files, the main one when `path` is empty."""
        with self._lock:
            chosen = Path(path) if path else self.main
            if chosen != self.main and str(chosen) not in self._read:
                raise ConfigError(path, 0, "", "is none of the files of access control")
            data = _data_of(chosen)
            data[WHITE_ADDRESSES] = list(addresses)
            self._write(chosen, data)

    # Under the lock

    def _paths(self) -> list[Path]:
        directory = self.main.parent / "acl"
        paths = []
        for root, _, names in os.walk(directory):
            paths += [Path(root, name) for name in names if name.endswith(SUFFIXES) and name != CREDENTIALS]
            if len(paths) > FILES_MAX:
                raise OSError(f"more than {FILES_MAX} files in {directory}")
        return [*sorted(path for path in paths if path != self.main), self.main]

    def _load(self, look: FileStates) -> None:
        found = {path: parse_file(YamlDocument(path)) for path, *_ in look}
        for path, one in found.items():
            _check_words(self._read.get(path), one)
        blank = [path for path, one in found.items() if one.blank]
        for path in blank:
            # Truncated a moment ago, or by mistake: nobody removes accounts this way on purpose.
            if path in self._read and not self._read[path].blank:
                raise ConfigError(path, 0, "", "has become blank")
        if str(self.main) in self._read and str(self.main) not in found:
            raise ConfigError(str(self.main), 0, "", "is gone")
        self._adopt(self._combined(found))
        for path in found:
            tell_if_open(Path(path))
        self._watched.taken(look)

    def _combined(self, found: Mapping[str, AclFile]) -> _Whole:
        accounts: dict[str, Account] = {}
        owners: dict[str, str] = {}
        warnings: list[str] = []
        for path, one in found.items():
            warnings += map(str, one.warnings)
            for account in one.accounts:
                if account.access_key in accounts:
                    first = owners[account.access_key]
                    warnings.append(f"{path}: accessKey {account.access_key} counts as it stands in {first}")
                    continue
                accounts[account.access_key] = account
                owners[account.access_key] = path
        rules = AccessRules([pattern for one in found.values() for pattern in one.white], accounts)
        if rules.empty:
            reason = "no account and no white list there: with aclEnable=true nobody would be let in"
            raise ConfigError(str(self.main), 0, self._key, reason)
        return _Whole(found, owners, rules, warnings)

    def _adopt(self, whole: _Whole) -> None:
        for text in whole.warnings:
            logger.warning("access control %s", text)
        self._read, self._owners, self.rules = dict(whole.files), whole.owners, whole.rules
        self.digest = _digest(whole.rules.accounts)
        self.trouble = ""

    def _write(self, path: Path, data: _Fields) -> None:
        """Writes and uses `data` if all rules together are sound with it."""
        old = self._read.get(str(path), AclFile())
        data[DATA_VERSION] = [{"counter": old.counter + 1, "timestamp": self._clock_ms()}]
        text = yaml_text(data)
        whole = self._combined({**self._read, str(path): parse_file(YamlDocument(path, text))})
        replace_file(path, text.encode())
        self._adopt(whole)
        self._watched.taken(self._watched.look())

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            logger.error("access control is NOT as its files say, the rules before stay: %s", trouble)


def _check_words(before: AclFile | None, now: AclFile) -> None:
    """Raises the first warning that the file did not give before: a word that is wrong takes rights away.

    A name that was ignored before may come more often: new accounts carry it, too.
    """
    if before is None:
        return
    had = Counter(warning.reason for warning in before.warnings)
    found: Counter[str] = Counter()
    for warning in now.warnings:
        reason = warning.reason
        found[reason] += 1
        if found[reason] > had[reason] and not (had[reason] and reason.startswith(UNKNOWN_NAME)):
            raise warning


def _digest(accounts: Mapping[str, Account]) -> str:
    """Slow to make, as it is seen by who may not see the secrets in it.

    Without the global white lists: each broker of a pair may list the other's address.
    """
    rules = [
        (
            *(
                one.access_key,
                one.secret_key,
                str(one.white),
                one.admin,
                one.default_topic,
                one.default_group,
            ),
            sorted(one.perms.items()),
        )
        for _, one in sorted(accounts.items())
    ]
    return hashlib.scrypt(repr(rules).encode(), salt=b"haservice", n=1 << 13, r=8, p=1, dklen=8).hex()


def rules_files(config: AclConfig | NameserverAclConfig, source: str) -> AclFiles | None:
    """The files of a node whose configuration is from `source`, read; None with aclEnable=false.

    Raises ConfigError.
    """
    if not config.enabled:
        return None
    if config.file is None:
        reason = "not known where plain_acl.yml is: set this key, or the environment variable ROCKETMQ_HOME"
        raise ConfigError(source, 0, "aclFile", reason)
    files = AclFiles(config.file.absolute())
    files.load()
    return files


def _data_of(path: Path) -> _Fields:
    if not path.exists():
        return {}
    data = YamlDocument(path).data
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(str(path), 1, "", "is not a mapping of names to values")
    return data


def _list_of(data: _Fields, name: str) -> list[_Fields]:
    value = data.get(name) or []
    if not isinstance(value, list):
        raise ConfigError(name, 0, "", "is not a list")
    return value


def _is_account(fields: object, access_key: str) -> bool:
    return isinstance(fields, dict) and str(fields.get("accessKey")) == access_key
