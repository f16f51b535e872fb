"""The ext fields of the requests that read and change access control: 50, 51, 52, 53."""

from __future__ import annotations

from dataclasses import dataclass

from haservice.remoting.headers.clients import ExtHeader


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
