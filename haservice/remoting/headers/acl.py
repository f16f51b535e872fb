"""The ext fields of the requests that read and change access control: 50 to 53, and our own 40011 with its body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.json_body import JSONBody

# The most accounts of one answer.
ACCOUNTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class PutAclAccountHeader(ExtHeader):
    """50.  `topic_perms` and `group_perms` are lists of name=perm, separated by commas."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteAclAccountHeader(ExtHeader):
    """51."""

    access_key: str


@dataclass(frozen=True, slots=True)
class AclVersionHeader(ExtHeader):
    """The answer to 52.  `version` is the main file's as JSON, `all_acl_file_version` path → version."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


@dataclass(frozen=True, slots=True)
class GlobalWhiteAddressesHeader(ExtHeader):
    """53.  `global_white_addrs` is separated by commas; without a path it is the main file's list."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


@dataclass(frozen=True, slots=True)
class AccountsHeader(ExtHeader):
    """40011: the accounts behind this access key, in the order of their characters."""

    after: str = ""


@dataclass(frozen=True, slots=True)
class AccountBody(JSONBody):
    """One account as it is in force.  Permissions are RocketMQ's words; `file` is the file that it counts in."""

    access_key: str
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: Sequence[str] = ()
    group_perms: Sequence[str] = ()
    white_remote_address: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class AccountsBody(JSONBody):
    """40011's answer.  With `more` there are accounts behind the last one.

    `trouble` says what is wrong with the present files: the rules in force are then older.
    """

    accounts: Sequence[AccountBody] = ()
    more: bool = False
    global_white_addrs: Sequence[str] = ()
    trouble: str = ""
