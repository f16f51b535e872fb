"""`mqadmin updateAclConfig`, `deleteAclConfig`, `updateGlobalWhiteAddr`, `clusterAclConfigVersion`.

They change who may do what at brokers with aclEnable=true.  Each broker has its own files, so the commands
also tell a cluster's slaves.
"""

from __future__ import annotations

import sys

import click

from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.fanout import addrs_of, ask_each, tell_each
from haservice.remoting.bodies.clients import DataVersion
from haservice.remoting.codes import RequestCode
from haservice.remoting.fastjson import loads
from haservice.remoting.headers.acl import (
    AclVersionHeader,
    DeleteAclAccountHeader,
    GlobalWhiteAddressesHeader,
    PutAclAccountHeader,
)
from haservice.terminal.options import (
    broker_option,
    cluster_option,
    command,
    format_option,
    namesrv_option,
    truth_option,
)
from haservice.terminal.output import Column, Table, local_second, show, shown_addr

# The key of the file that every broker has, if a broker tells of no others.
PLAIN_FILE = "plain_acl.yml"

VERSION_COLUMNS = (
    Column("#Cluster Name", "clusterName"),
    Column("#Broker Name", "brokerName"),
    Column("#Broker Addr", "brokerAddr", shown_addr),
    Column("#AclFilePath", "aclFilePath"),
    Column("#AclConfigVersionNum", "counter", right=True),
    Column("#AclLastUpdateTime", "timestamp", local_second),
)


def _from_input(_: click.Context, __: click.Parameter, key: str) -> str:
    """A key on a command line is seen by every user of the machine, and kept in the shell's history."""
    if key != "-":
        return key
    given = sys.stdin
    said = click.prompt("secretKey", hide_input=True, err=True) if given.isatty() else given.readline()
    return str(said).strip()


_key_option = click.option(
    "-a", "--accessKey", "access_key", metavar="KEY", required=True, help="The account."
)


@command("updateAclConfig")
@namesrv_option
@broker_option
@cluster_option
@_key_option
@click.option(
    "-s",
    "--secretKey",
    "secret_key",
    metavar="KEY",
    required=True,
    callback=_from_input,
    help="More than 6 characters.  With - it is the first line of standard input.",
)
@truth_option("-m", "--admin", "is_admin", default=False, help="The account may administrate.")
@click.option("-i", "--defaultTopicPerm", "topic_perm", metavar="PERM", help="DENY, PUB, SUB or PUB|SUB.")
@click.option("-u", "--defaultGroupPerm", "group_perm", metavar="PERM", help="DENY or SUB.")
@click.option("-t", "--topicPerms", "topic_perms", metavar="LIST", help="topicA=DENY,topicD=SUB")
@click.option("-g", "--groupPerms", "group_perms", metavar="LIST", help="groupD=DENY,groupE=SUB")
@click.option(
    "-w", "--whiteRemoteAddress", "white_addr", metavar="PATTERN", help="Clients that need not sign."
)
@format_option
def update_acl_config(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    access_key: str,
    secret_key: str,
    is_admin: bool,
    topic_perm: str | None,
    group_perm: str | None,
    topic_perms: str | None,
    group_perms: str | None,
    white_addr: str | None,
    output_format: str,
) -> None:
    """Creates or changes an account.

    At one broker (-b), or at every broker of a cluster (-c), slaves included.

    \b
      mqadmin updateAclConfig -c C -a newcomer -s - -t T=PUB < secret.txt     the secret is in no list of processes
    """
    header = PutAclAccountHeader(
        access_key, secret_key, white_addr, is_admin, topic_perm, group_perm, topic_perms, group_perms
    )
    with MQAdmin(namesrv) as admin:
        tell_each(
            addrs_of(admin.targets(broker, cluster, slaves=True)),
            lambda addr: admin.tell(addr, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header),
            "create or update plain access config to {addr} success.",
            output_format,
            accessKey=access_key,
        )


@command("deleteAclConfig")
@namesrv_option
@broker_option
@cluster_option
@_key_option
@format_option
def delete_acl_config(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    access_key: str,
    output_format: str,
) -> None:
    """Deletes an account."""
    with MQAdmin(namesrv) as admin:
        tell_each(
            addrs_of(admin.targets(broker, cluster, slaves=True)),
            lambda addr: admin.tell(addr, RequestCode.DELETE_ACL_CONFIG, DeleteAclAccountHeader(access_key)),
            f"delete plain access config account {access_key} from {{addr}} success.",
            output_format,
            accessKey=access_key,
        )


@command("updateGlobalWhiteAddr")
@namesrv_option
@broker_option
@cluster_option
@click.option(
    "-g",
    "--globalWhiteRemoteAddresses",
    "patterns",
    metavar="LIST",
    required=True,
    help="10.10.103.*,192.168.0.*",
)
@click.option(
    "-p", "--aclFileFullPath", "path", metavar="PATH", help="The broker's file; else plain_acl.yml."
)
@format_option
def update_global_white_addr(
    namesrv: tuple[str, ...],
    broker: str | None,
    cluster: str | None,
    patterns: str,
    path: str | None,
    output_format: str,
) -> None:
    """Sets the addresses that nothing is asked of."""
    header = GlobalWhiteAddressesHeader(patterns, path)
    with MQAdmin(namesrv) as admin:
        tell_each(
            addrs_of(admin.targets(broker, cluster, slaves=True)),
            lambda addr: admin.tell(addr, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header),
            "update global white remote addresses to {addr} success.",
            output_format,
            globalWhiteRemoteAddresses=patterns.split(","),
        )


@command("clusterAclConfigVersion")
@namesrv_option
@broker_option
@cluster_option
@format_option
def cluster_acl_config_version(
    namesrv: tuple[str, ...], broker: str | None, cluster: str | None, output_format: str
) -> None:
    """Shows which account files brokers have.

    A stock broker with aclEnable=false gives no answer at all.
    """
    with MQAdmin(namesrv) as admin:
        targets: list[Broker] = admin.targets(broker, cluster, slaves=True)
        code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
        found, complete = ask_each(
            targets, lambda one: AclVersionHeader.decode(admin.call(one.addr, code).ext)
        )
    table = Table(VERSION_COLUMNS)
    for _, header in found:
        for path, version in sorted(file_versions(header).items()):
            table.add(
                header.cluster_name,
                header.broker_name,
                header.broker_addr,
                path,
                version.counter,
                version.timestamp,
            )
    show(table, output_format)
    if not complete:
        sys.exit(1)


def file_versions(header: AclVersionHeader) -> dict[str, DataVersion]:
    """File → version; brokers before 4.9.3 have one file.  Raises BodyUnreadable."""
    tree = loads(header.all_acl_file_version) if header.all_acl_file_version else None
    if isinstance(tree, dict) and tree:
        return {path: DataVersion.from_tree(version) for path, version in tree.items()}
    return {PLAIN_FILE: DataVersion.decode(header.version)}
