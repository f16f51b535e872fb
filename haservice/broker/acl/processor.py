"""Access control as tools read and change it.

50 UPDATE_AND_CREATE_ACL_CONFIG         an account is created or changed; fields not named stay
51 DELETE_ACL_CONFIG                    an account is deleted
52 GET_BROKER_CLUSTER_ACL_INFO          the files and how often tools have written them
53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG     a file's global white list is replaced
40011 GET_ACCOUNTS, ours               the accounts in force, without their secret keys

A change is in force when the answer is sent.  It is checked first: a list or permission that could not be
read back is refused.  Without access control all are refused; RocketMQ then leaves 52 unanswered.
"""

from __future__ import annotations

import asyncio
import logging

import orjson

from haservice.access.accounts import KEY_CHARACTERS_MIN, PERMISSIONS
from haservice.access.files import AclFiles, FileVersion
from haservice.broker.acl.listing import accounts_page
from haservice.errors import ConfigError, RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.acl import (
    AccountsHeader,
    AclVersionHeader,
    DeleteAclAccountHeader,
    GlobalWhiteAddressesHeader,
    PutAclAccountHeader,
)
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

_Answer = asyncio.Future[RemotingCommand]

_NOT_ENABLED = "access control is off here: aclEnable=false"


class AclProcessor:
    """`files` is None if access control is off.  `offload` runs writes in the pool."""

    def __init__(
        self,
        files: AclFiles | None,
        offload: Offload,
        *,
        cluster_name: str,
        broker_name: str,
        broker_addr: str,
    ) -> None:
        self._files = files
        self._offload = offload
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._broker_addr = broker_addr

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put_account,
            RequestCode.DELETE_ACL_CONFIG: self.delete_account,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.set_white_addresses,
            RequestCode.GET_ACCOUNTS: self.accounts,
        }

    def put_account(self, connection: Connection, request: RemotingCommand) -> _Answer:
        files = self._required(ResponseCode.UPDATE_ACL_CONFIG_FAILED)
        header = PutAclAccountHeader.decode(request.ext)
        fields = _account_fields(header)
        logger.info("account is changed accessKey=%s peer=%s", header.access_key, connection.peer)

        def write() -> RemotingCommand:
            with _Failing(ResponseCode.UPDATE_ACL_CONFIG_FAILED):
                files.put_account(header.access_key, fields)
            return request.answer()

        return self._offload(write)

    def delete_account(self, connection: Connection, request: RemotingCommand) -> _Answer:
        code = ResponseCode.DELETE_ACL_CONFIG_FAILED
        files = self._required(code)
        access_key = DeleteAclAccountHeader.decode(request.ext).access_key
        logger.info("account is deleted accessKey=%s peer=%s", access_key, connection.peer)

        def write() -> RemotingCommand:
            with _Failing(code):
                if not files.delete_account(access_key):
                    raise RequestError(code, f"there is no account with accessKey={access_key}")
            return request.answer()

        return self._offload(write)

    def set_white_addresses(self, connection: Connection, request: RemotingCommand) -> _Answer:
        code = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        files = self._required(code)
        header = GlobalWhiteAddressesHeader.decode(request.ext)
        addresses = _parts(header.global_white_addrs)
        logger.info("global white list is changed addresses=%s peer=%s", addresses, connection.peer)

        def write() -> RemotingCommand:
            with _Failing(code):
                files.set_white_addresses(addresses, header.acl_file_full_path or "")
            return request.answer()

        return self._offload(write)

    def versions(self, _: Connection, request: RemotingCommand) -> _Answer:
        files = self._required(ResponseCode.SYSTEM_ERROR)

        def read() -> RemotingCommand:
            versions = files.versions()
            main = versions.get(str(files.main), FileVersion(0, 0))
            header = AclVersionHeader(
                _json(_fields(main)),
                _json({path: _fields(version) for path, version in versions.items()}),
                self._broker_name,
                self._broker_addr,
                self._cluster_name,
            )
            return request.answer(ext=header.encode())

        return self._offload(read)

    def accounts(self, _: Connection, request: RemotingCommand) -> _Answer:
        files = self._required(ResponseCode.SYSTEM_ERROR)
        after = AccountsHeader.decode(request.ext).after

        def read() -> RemotingCommand:
            page = accounts_page(files.rules, files.owners(), after, files.trouble)
            return request.answer(body=page.encode())

        return self._offload(read)

    def _required(self, code: ResponseCode) -> AclFiles:
        if self._files is None:
            raise RequestError(code, _NOT_ENABLED)
        return self._files


class _Failing:
    """Turns an error of a file or disk into the answer that tools expect."""

    def __init__(self, code: ResponseCode) -> None:
        self._code = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ConfigError | OSError):
            raise RequestError(self._code, str(error)) from error


def _account_fields(header: PutAclAccountHeader) -> dict[str, object]:
    """The fields of an account that the request changes, in the file's words; raises RequestError."""
    for name, text in (("accessKey", header.access_key), ("secretKey", header.secret_key or "")):
        if len(text) < KEY_CHARACTERS_MIN:
            raise _refused(f"{name} has {len(text)} characters, at least {KEY_CHARACTERS_MIN} are needed")
    for perm in (header.default_topic_perm, header.default_group_perm):
        if perm:
            _check_permission(perm)
    fields: dict[str, object] = {"secretKey": header.secret_key}
    if header.white_remote_address is not None:
        fields["whiteRemoteAddress"] = header.white_remote_address
    fields["admin"] = header.admin
    # A permission that is set to nothing is taken away; one that is not named stays.
    if header.default_topic_perm is not None:
        fields["defaultTopicPerm"] = header.default_topic_perm or "DENY"
    if header.default_group_perm is not None:
        fields["defaultGroupPerm"] = header.default_group_perm or "DENY"
    for name, perms in (("topicPerms", header.topic_perms), ("groupPerms", header.group_perms)):
        if perms is not None:
            entries = _parts(perms)
            for entry in entries:
                _check_permission(entry.partition("=")[2])
            fields[name] = entries
    return fields


def _check_permission(text: str) -> None:
    if text.strip() not in PERMISSIONS:
        raise _refused(f"permission {text[:64]!r} is none of {', '.join(PERMISSIONS)}")


def _refused(reason: str) -> RequestError:
    return RequestError(ResponseCode.UPDATE_ACL_CONFIG_FAILED, reason)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _fields(version: FileVersion) -> dict[str, int]:
    return {"counter": version.counter, "timestamp": version.timestamp_ms}


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
