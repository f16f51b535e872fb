"""What brokers run with: their accounts, and their configuration beside what their files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.nodes.acl import file_versions
from haservice.admin.commands.nodes.config import properties_of
from haservice.admin.many import Call
from haservice.console.questions.many import Notes, ask_many, sentence
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.admin import FileConfigBody
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.acl import AccountBody, AccountsBody, AccountsHeader, AclVersionHeader
from haservice.terminal.output import shown_addr

ACL_KEY = "aclEnable"
# Of one broker; the protocol gives a thousand in an answer.
ANSWERS_MAX = 5


class SharedAccount(NamedTuple):
    """An account that these brokers have alike."""

    account: AccountBody
    brokers: tuple[str, ...]


class AclFileAt(NamedTuple):
    """A file of accounts of a broker that does not tell what is in it."""

    broker: str
    path: str
    counter: int
    timestamp_ms: int


@dataclass(slots=True)
class Accounts:
    """`off` are brokers without access control; `untold` have it and tell only of their files."""

    accounts: Sequence[SharedAccount] = ()
    white: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: Sequence[AclFileAt] = ()
    off: Sequence[str] = ()
    notes: Notes = field(default_factory=Notes)


class ConfigRow(NamedTuple):
    """`in_file` is None if the file says the same, or nobody knows what it says."""

    key: str
    value: str
    in_file: str | None
    waits: bool


@dataclass(slots=True)
class Configuration:
    """Of one broker.  `file_known`: it told what its file says, and `path` is that file."""

    broker: Broker
    rows: Sequence[ConfigRow]
    path: str
    file_known: bool
    notes: Notes = field(default_factory=Notes)

    @property
    def differing(self) -> list[ConfigRow]:
        return [row for row in self.rows if row.in_file is not None]


def name_of(broker: Broker) -> str:
    return f"{broker.name} {broker.broker_id}"


# -- accounts --------------------------------------------------------------------------------------


def accounts(admin: MQAdmin, text: str) -> Accounts:
    """Of all brokers, each of which has files of its own; those with `text` in their access key."""
    found = Accounts()
    brokers = admin.brokers()
    configs = ask_many(admin, [Call(one.addr, RequestCode.GET_BROKER_CONFIG) for one in brokers], found.notes)
    # A stock broker without access control answers no question about it at all.
    on: list[Broker] = []
    off: list[Broker] = []
    for broker, answer in zip(brokers, configs, strict=True):
        if answer is not None:
            enabled = properties_of(answer).get(ACL_KEY) == "true"
            (on if enabled else off).append(broker)
    found.off = [name_of(one) for one in off]
    alike: dict[AccountBody, list[str]] = {}
    files: list[AclFileAt] = []
    white: dict[str, Sequence[str]] = {}
    for broker in on:
        try:
            told = _accounts_of(admin, broker.addr)
        except AnswerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                found.notes.failed(error)
                continue
            found.notes.add(
                f"{name_of(broker)} at {shown_addr(broker.addr)}: a stock broker tells which files it has, and not"
                " what accounts are in them"
            )
            files += _files_of(admin, broker, found.notes)
            continue
        except RemotingError as error:
            found.notes.failed(error)
            continue
        white[name_of(broker)] = told.global_white_addrs
        if told.trouble:
            found.notes.add(f"{name_of(broker)}: the rules in force are older than its files: {told.trouble}")
        for account in told.accounts:
            if text.lower() in account.access_key.lower():
                alike.setdefault(_hashable(account), []).append(name_of(broker))
    shared = [SharedAccount(account, tuple(names)) for account, names in alike.items()]
    found.accounts = sorted(shared, key=lambda one: (one.account.access_key, one.brokers))
    found.files, found.white = files, white
    return found


def _accounts_of(admin: MQAdmin, addr: str) -> AccountsBody:
    """All of them, up to a bound."""
    after = ""
    rows: list[AccountBody] = []
    for _ in range(ANSWERS_MAX):
        page = admin.ask(addr, RequestCode.GET_ACCOUNTS, AccountsHeader(after), into=AccountsBody)
        rows += page.accounts
        if not page.more or not page.accounts:
            break
        after = page.accounts[-1].access_key
    return AccountsBody(rows, page.more, page.global_white_addrs, page.trouble)


def _hashable(account: AccountBody) -> AccountBody:
    """Each broker has its files at paths of its own: they do not make accounts differ."""
    return AccountBody(
        account.access_key,
        account.admin,
        account.default_topic_perm,
        account.default_group_perm,
        tuple(account.topic_perms),
        tuple(account.group_perms),
        account.white_remote_address,
    )


def _files_of(admin: MQAdmin, broker: Broker, notes: Notes) -> list[AclFileAt]:
    (answer,) = ask_many(admin, [Call(broker.addr, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)], notes)
    if answer is None:
        return []
    versions = file_versions(AclVersionHeader.decode(answer.ext))
    return [
        AclFileAt(name_of(broker), path, version.counter, version.timestamp)
        for path, version in sorted(versions.items())
    ]


# -- configuration ---------------------------------------------------------------------------------


def brokers(admin: MQAdmin) -> list[Broker]:
    return admin.brokers()


def configuration(admin: MQAdmin, name: str, broker_id: int, text: str) -> Configuration | None:
    """The keys with `text` in their names; None if no such broker is registered."""
    broker = next((one for one in admin.brokers() if (one.name, one.broker_id) == (name, broker_id)), None)
    if broker is None:
        return None
    in_force = admin.broker_config(broker.addr)
    file, notes = None, Notes()
    try:
        file = admin.ask(broker.addr, RequestCode.GET_FILE_CONFIG, into=FileConfigBody)
    except AnswerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            notes.add("What its file says is unknown: a stock broker does not tell it.")
        else:
            notes.add(f"What its file says is unknown: {sentence(error)}")
    if file is not None and file.trouble:
        notes.add(f"Its next start would fail: {file.trouble}")
    rows = config_rows(in_force, file, text)
    known = file is not None and not file.trouble
    return Configuration(broker, rows, "" if file is None else file.path, known, notes)


def config_rows(in_force: Mapping[str, str], file: FileConfigBody | None, text: str) -> list[ConfigRow]:
    """Pure."""
    values = {} if file is None else file.values
    later = () if file is None else file.later
    return [
        ConfigRow(key, value, values.get(key), key in later)
        for key, value in sorted(in_force.items())
        if text.lower() in key.lower()
    ]
