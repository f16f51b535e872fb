"""The rules: for one request, allowed or refused, in RocketMQ's order and words."""

from __future__ import annotations

import orjson
import pytest

from haservice.access.addresses import parse_pattern
from haservice.access.rules import DENY, GROUP_PREFIX, PUB, SUB, AccessRules, Account, AclRefused
from haservice.broker.acl.listing import accounts_page
from haservice.broker.acl.rights import ADMIN_CODES, CLIENT_CODES, check, needs_of
from haservice.broker.send.retries import retry_topic
from haservice.broker.topics.table import RETRY_PREFIX
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.acl import ACCOUNTS_MAX, AccountBody
from haservice.remoting.signature import sign

HERE, ELSEWHERE = "10.0.0.1", "10.9.9.9"
SECRET = "12345678"


def test_a_group_is_kept_as_its_retry_topic() -> None:
    assert GROUP_PREFIX == RETRY_PREFIX


def rules(*accounts: Account, white: str = "") -> AccessRules:
    return AccessRules([parse_pattern(white)], {account.access_key: account for account in accounts})


def account(
    topic: int = DENY, group: int = DENY, *, admin: bool = False, white: str = "", **perms: int
) -> Account:
    """Entries are named by keyword; those that begin with `group_` are a group's."""
    table = {
        retry_topic(name.removeprefix("group_")) if name.startswith("group_") else name: perm
        for name, perm in perms.items()
    }
    return Account("accounts-key", SECRET, parse_pattern(white), admin, topic, group, table)


def signed(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    request = RemotingCommand.request(code, ext, body)
    sign(request, "accounts-key", SECRET)
    return request


def send(topic: str, code: int = RequestCode.SEND_MESSAGE_V2) -> RemotingCommand:
    name = "topic" if code == RequestCode.SEND_MESSAGE else "b"
    return signed(code, {"a": "producers", name: topic}, b"body")


def pull(topic: str, group: str) -> RemotingCommand:
    return signed(RequestCode.PULL_MESSAGE, {"topic": topic, "consumerGroup": group})


def heartbeat(*consumers: tuple[str, list[str]]) -> RemotingCommand:
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [{"topic": topic} for topic in topics]}
            for group, topics in consumers
        ],
    }
    return signed(RequestCode.HEART_BEAT, {}, orjson.dumps(body))


def refusal(some: AccessRules, request: RemotingCommand, address: str = HERE) -> str:
    with pytest.raises(AclRefused) as refused:
        check(some, address, request)
    assert refused.value.code == 1
    return refused.value.text


# ---- who it is


def test_a_signed_request_of_an_account_with_permission_passes() -> None:
    check(rules(account(T=PUB)), HERE, send("T"))


def test_the_global_white_list_comes_before_everything() -> None:
    some = rules(account(), white="10.0.0.*")
    check(some, HERE, RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG))
    assert refusal(some, RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG), ELSEWHERE)


def test_without_an_access_key_nothing_passes() -> None:
    assert refusal(rules(account()), RemotingCommand.request(1)) == "No accessKey is configured"


def test_an_unknown_access_key_is_named() -> None:
    request = RemotingCommand.request(1, {"AccessKey": "strangers"})
    assert refusal(rules(account()), request) == "No acl config for strangers"


def test_the_accounts_own_white_list_replaces_signature_and_permissions() -> None:
    some = rules(account(white=HERE))
    request = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, {"AccessKey": "accounts-key"})
    check(some, HERE, request)
    assert refusal(some, request, ELSEWHERE) == "Check signature failed for accessKey=accounts-key"


@pytest.mark.parametrize("what", ["field", "body", "signature", "no signature", "key"])
def test_a_signature_holds_for_its_request_alone(what: str) -> None:
    request = send("T")
    if what == "field":
        request.ext["b"] = "U"
    elif what == "body":
        request.body = b"other"
    elif what == "signature":
        request.ext["Signature"] = "ü" + request.ext["Signature"][1:]
    elif what == "no signature":
        del request.ext["Signature"]
    else:
        sign(request, "accounts-key", "87654321")
    assert (
        refusal(rules(account(T=PUB, U=PUB)), request) == "Check signature failed for accessKey=accounts-key"
    )


def test_what_clients_add_after_signing_does_not_count() -> None:
    request = signed(RequestCode.QUERY_MESSAGE, {"topic": "T"})
    request.ext["_UNIQUE_KEY_QUERY"] = "true"
    check(rules(account(T=SUB)), HERE, request)


def test_the_remark_is_as_rocketmqs_clients_and_logs_know_it() -> None:
    with pytest.raises(AclRefused) as refused:
        check(rules(), HERE, RemotingCommand.request(1))
    assert refused.value.remark == (
        "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, "
        "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate"
    )


# ---- what it may


@pytest.mark.parametrize("code", [10, 310, 320])
@pytest.mark.parametrize(("perm", "allowed"), [(PUB, True), (PUB | SUB, True), (SUB, False), (DENY, False)])
def test_a_send_needs_pub_on_its_topic(code: int, perm: int, allowed: bool) -> None:
    some = rules(account(PUB, T=perm))
    if allowed:
        check(some, HERE, send("T", code))
    else:
        assert refusal(some, send("T", code)) == "No default permission for topic:T"


def test_an_entry_of_its_own_comes_before_the_default() -> None:
    some = rules(account(PUB, SUB, T=DENY, group_g=DENY))
    check(some, HERE, send("U"))
    assert refusal(some, send("T")) == "No default permission for topic:T"
    assert refusal(some, signed(38, {"consumerGroup": "g"})) == "No default permission for group:g"
    check(some, HERE, signed(38, {"consumerGroup": "h"}))


@pytest.mark.parametrize("code", [10, 310, 320])
def test_a_send_to_a_retry_topic_needs_sub_on_its_group(code: int) -> None:
    some = rules(account(PUB, group_g=SUB))
    check(some, HERE, send("%RETRY%g", code))
    assert refusal(some, send("%RETRY%h", code)) == "No default permission for group:h"


def test_a_pull_needs_sub_on_topic_and_group() -> None:
    check(rules(account(T=SUB, group_g=SUB)), HERE, pull("T", "g"))
    assert refusal(rules(account(T=SUB)), pull("T", "g")) == "No default permission for group:g"
    assert refusal(rules(account(group_g=SUB)), pull("T", "g")) == "No default permission for topic:T"
    assert refusal(rules(account(T=PUB, group_g=SUB)), pull("T", "g")) == "No default permission for topic:T"


def test_a_heartbeat_needs_sub_on_all_it_names() -> None:
    request = heartbeat(("g", ["T", "%RETRY%g"]), ("h", ["U"]))
    some = {"T": SUB, "U": SUB, "group_g": SUB, "group_h": SUB}
    check(rules(account(**some)), HERE, request)
    for name in some:
        shown = f"group:{name[6:]}" if name.startswith("group_") else f"topic:{name}"
        assert refusal(rules(account(**{**some, name: PUB})), request) == f"No default permission for {shown}"


def test_a_producers_heartbeat_needs_nothing_more() -> None:
    check(rules(account()), HERE, signed(34, {}, b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}'))


def test_a_heartbeat_that_cannot_be_read_is_refused() -> None:
    assert refusal(rules(account()), signed(34, {}, b"[")).startswith("heartbeat cannot be read")


def test_a_group_cannot_be_named_so_that_it_is_another_one() -> None:
    assert refusal(rules(account(group_g=SUB)), signed(38, {"consumerGroup": "%RETRY%g"}))


@pytest.mark.parametrize(
    ("code", "ext", "needed"),
    [
        (12, {"topic": "T"}, [("T", SUB)]),
        (15, {"topic": "T", "consumerGroup": "g"}, [("T", SUB), ("%RETRY%g", SUB)]),
        (35, {"clientID": "c", "consumerGroup": "g"}, [("%RETRY%g", SUB)]),
        (35, {"clientID": "c", "producerGroup": "p"}, []),
        (36, {"group": "g", "offset": "1"}, [("%RETRY%g", SUB)]),
        (38, {"consumerGroup": "g"}, [("%RETRY%g", SUB)]),
        (14, {"topic": "T", "consumerGroup": "g"}, []),
        (37, {"producerGroup": "p"}, []),
        (41, {}, []),
        (310, {}, []),
        (324, {"topic": "C_REPLY_TOPIC"}, []),
        (325, {"b": "C_REPLY_TOPIC"}, []),
        (324, {"topic": "T"}, [("T", PUB)]),
        (325, {"b": "T"}, [("T", PUB)]),
        (325, {"b": "%RETRY%g"}, [("%RETRY%g", SUB)]),
        (21, {}, []),
    ],
)
def test_what_each_request_needs(code: int, ext: dict[str, str], needed: list[tuple[str, int]]) -> None:
    assert list(needs_of(RemotingCommand.request(code, ext))) == needed


def test_traces_of_messages_are_always_taken_with_a_good_signature() -> None:
    check(rules(account()), HERE, send("RMQ_SYS_TRACE_TOPIC"))


# What changes something, or tells of others: tools ask it, and other brokers.
ADMINS = [17, 25, 26, 28, 50, 51, 52, 53, 200, 202, 203, 204, 207, 208, 215, 222, 223, 300, 303, 305]
ADMINS += [306, 307, 308, 309, 314, 315, 316, 317, 321, 322, 323, 328, 329, 907]
BROKERS = [21, 43, 45, 201]


@pytest.mark.parametrize("code", ADMINS + BROKERS)
def test_what_is_no_clients_request_takes_an_admin(code: int) -> None:
    check(rules(account(admin=True)), HERE, signed(code))
    assert refusal(rules(account(PUB | SUB, PUB | SUB)), signed(code)) == (
        f"Need admin permission for request code={code}, but accessKey=accounts-key is not"
    )
    assert refusal(rules(account()), RemotingCommand.request(code)) == "No accessKey is configured"
    check(rules(white=HERE), HERE, RemotingCommand.request(code))


def test_clients_requests_are_those_of_rocketmqs_clients() -> None:
    """A further one has to be decided on here: by default it takes an admin."""
    clients = [10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 46, 310, 320, 324, 325]
    assert sorted(CLIENT_CODES) == clients
    assert not CLIENT_CODES & ADMIN_CODES


def test_a_number_that_nobody_knows_needs_a_good_signature_only() -> None:
    """A newer client asks, is told that it is not served, and goes on without."""
    check(rules(account()), HERE, signed(200050))
    assert refusal(rules(account()), RemotingCommand.request(200050)) == "No accessKey is configured"


def test_an_admin_without_entries_may_everything_and_with_some_what_they_say() -> None:
    check(rules(account(admin=True)), HERE, pull("T", "g"))
    assert refusal(rules(account(admin=True, U=PUB)), send("T")) == "No default permission for topic:T"


def test_the_secret_never_shows() -> None:
    assert SECRET not in repr(account())


def test_accounts_are_listed_page_by_page_with_all_but_their_secrets() -> None:
    many = {f"key-{number:05}": Account(f"key-{number:05}", "a secret") for number in range(ACCOUNTS_MAX + 1)}
    own = {"Orders": PUB, f"{GROUP_PREFIX}billing": PUB | SUB}
    one = Account("a-key", "a secret", parse_pattern("10.1.*.*"), True, PUB | SUB, SUB, own)
    rules = AccessRules([parse_pattern("::1")], {**many, "a-key": one})
    page = accounts_page(rules, {"a-key": "/etc/plain_acl.yml"}, "", "")
    assert b"a secret" not in page.encode()
    assert page.accounts[0] == AccountBody(
        *("a-key", True, "PUB|SUB", "SUB", ["Orders=PUB"], ["billing=PUB|SUB"], "10.1.*.*"),
        "/etc/plain_acl.yml",
    )
    assert (len(page.accounts), page.more, page.global_white_addrs) == (
        ACCOUNTS_MAX,
        True,
        ["0:0:0:0:0:0:0:1"],
    )
    rest = accounts_page(rules, {}, page.accounts[-1].access_key, "the file is blank")
    assert [account.access_key for account in rest.accounts] == [
        f"key-{ACCOUNTS_MAX - 1:05}",
        f"key-{ACCOUNTS_MAX:05}",
    ]
    assert (rest.more, rest.trouble) == (False, "the file is blank")
