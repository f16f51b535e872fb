"""Whatever command a text of the program names is there, with these flags; and what prints it is known.

ADVICE has a row for each place that tells an operator of roles, logs or failover what to do: the state in which it
is printed.  tests/cluster/test_advice.py and its neighbours bring brokers into these states, and follow.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from haservice.admin.cli import MODULES, commands_of
from tests.cluster.advised import commands_in, is_whole, next_command, next_steps

ROOT = Path(__file__).parents[2]
# What stands in a text where the program puts a value.
VALUE = "VALUE"
# Where nothing but mqadmin itself is meant: no command stands behind its name.
SAYINGS = {"mqadmin COMMAND", "mqadmin help"}

# A file below haservice/ or commitlog/, what it says to type, and when.  A "hint" is a name without what it needs: the
# text explains, and another one names the command whole.
ADVICE: dict[str, dict[str, str]] = {
    "admin/commands/coordinator/by_request.py": {
        "failover -b VALUE": "a switchover is asked for, and nobody is the master",
        "failover -b VALUE --to VALUE --force": "a failover may lose something",
        "failover -b VALUE --to VALUEVALUE": "a failover of an emptied coordinator stopped halfway",
        "forget -b VALUE --replica VALUE": "a failover needs a voter that is away",
        "haList": "hint: a switchover to a broker that is no voter; a failover that does not come",
        "haList -b VALUE": "a change is asked for; nobody is the master",
        "history -b VALUE": "another broker became the master meanwhile",
        "resume -b VALUE": "a failover to a broker while failover is paused",
        "switchover -b VALUE": "a failover while the master is connected",
        "switchover -b VALUE --withdraw": "a switchover waits for its time",
    },
    "admin/commands/coordinator/ha_list.py": {
        "failover -b VALUE": "nobody believes the coordinator: it was emptied or restored",
        "failover -b VALUE --force": "a replica may go on without a lease",
        "forget -b VALUE --replica VALUE": "a voter is not connected",
        "resume -b VALUE": "failover is paused",
    },
    "admin/commands/coordinator/settings.py": {"pause": "hint: a setting that pause and resume change"},
    "admin/commands/coordinator/voters.py": {
        "failover -b VALUE": "a coordinator without voters",
        "haList -b VALUE": "a rebuild while nobody is the master",
        "haList -b VALUE -w 1": "a rebuild while no other voter is level",
    },
    "admin/commands/dledger/by_force.py": {"switchover": "hint: a failover of a group that has a leader"},
    "admin/commands/dledger/judging.py": {
        "failover -b VALUE --to ADDR": "hint: members that are waited for are lost for good",
        "switchover": "hint: a leader that leads without a majority",
    },
    "admin/commands/dledger/group.py": {"haStatus": "a group's new leader is not registered"},
    "admin/commands/ha/failover.py": {
        "haStatus -b VALUE": "a failover of a group without --to",
        "switchover -b VALUE --to VALUE": "a failover while the master is alive",
    },
    "admin/commands/ha/ha_status.py": {"forget -b VALUE --replica VALUE": "a replica on the list is silent"},
    "admin/commands/ha/history.py": {"haStatus": "the history of a DLedger group"},
    "admin/commands/ha/reinit.py": {
        "failover -b VALUE --to VALUE": "a rebuild while no master answers",
        "haStatus": "a rebuild while the master refuses writes",
        "haStatus -b VALUE -w 2": "a rebuild that takes longer",
        "switchover -b VALUE": "a rebuild of the master",
    },
    "admin/commands/ha/replicas.py": {
        "failover": "hint: what follows when a replica is forgotten",
        "forget -b VALUE --replica VALUE": "a failover while too few slaves answer",
    },
    "admin/commands/ha/role_steps.py": {
        "haStatus": "a change that is not over in time",
        "history -b VALUE": "a change that is not over in time",
    },
    "admin/commands/ha/settings_verdict.py": {
        "switchover -b VALUE --role VALUE": "the role in force is not that of the file",
    },
    "admin/commands/ha/switchover.py": {
        "failover -b VALUE --to ADDR": "hint: a switchover of a stock master",
        "failover -b VALUE --to VALUE": "only a nameserver knows an epoch",
        "haStatus": "hint: a switchover of a stock master",
        "updateBrokerConfig -b VALUE -k brokerRole -v VALUE": "another role of a stock master",
    },
    "admin/commands/ha/topology_text.py": {
        "failover -b VALUE --to VALUE": "a switchover, or a forget of the master, while no master answers",
        "reinit -b VALUE": "a slave lacks the beginning of its master's log",
    },
    "admin/commands/ha/verdict.py": {
        "failover -b VALUE --to VALUE": "no master; two masters of one epoch, or a slave of the other one",
        "forget -b VALUE --replica VALUE": "a slave is away",
        "haList -b VALUE": "no master, and a coordinator",
    },
    "broker/lease/keeper.py": {
        "haStatus": "a switchover by request that is not over in time",
        "switchover": "hint: why a switchover was asked for",
    },
    "broker/lease/requests.py": {"haList -b VALUE": "a command to a broker with a coordinator"},
    "broker/majority/keeper.py": {"brokerStatus": "a leader whose queues are behind"},
    "broker/metadata/registration.py": {
        "failover -b VALUE --to VALUE --force": "a nameserver knows a newer epoch than this master's",
    },
    "broker/offsets/consumer_offsets.py": {"deleteSubGroup -r true": "hint: the table of offsets is full"},
    "broker/roles/executor.py": {"history": "hint: a role is not changed in time"},
    "broker/roles/handover.py": {
        "failover --to VALUE": "hint: a switchover, and a newer epoch may have begun",
        "haStatus": "a switchover while no slave is connected",
    },
    "broker/roles/peer_checks.py": {
        "failover": "hint: two masters have one epoch; a master lost its lineage"
    },
    "broker/roles/promotion.py": {"switchover": "hint: a promotion while a master is alive"},
    "broker/roles/startup.py": {
        "failover -b VALUE --to VALUE --force": "a master refuses writes, and may have lost what a slave has",
    },
    "broker/roles/state.py": {"failover --force": "hint: the same, where no broker is told of"},
    "configuration/live_settings.py": {
        "failover": "hint: brokerRole by updateBrokerConfig",
        "switchover": "hint: brokerRole by updateBrokerConfig",
    },
    "coordination/candidate.py": {"resume -b VALUE": "failover is paused"},
    "coordination/decision.py": {"failover -b VALUE": "the coordinator was emptied or restored"},
    "coordination/desk.py": {
        "check": "a key that cannot be read: cluster/test_strangers_in_coordinators.py deletes it, and all is well",
        "haList -b VALUE": "a change of roles, or a new epoch, came in between",
    },
    "coordination/successor.py": {"resume": "hint: nobody could take over, for failover is paused"},
    "replication/lineage/epochs.py": {"failover": "hint: a slave of another master of the same epoch"},
    "replication/wire/greeting.py": {
        "failover -b VALUE --to VALUE": "two logs of the same epochs differ",
        "forget": "hint: the list of replicas is full",
        "reinit -b VALUE": "two logs of the same epochs differ",
    },
    "replication/lineage/acked_cuts.py": {
        "dumpLog VALUE": "an old master cut what a slave had acknowledged",
        "removeCut VALUE": "the same, once an operator has what he needs of it",
    },
    "replication/slave/rejoin.py": {"check": "hint: an old master cuts what a slave had acknowledged"},
    "recovery/recovery.py": {"reinit": "hint: a log is damaged in too many places"},
}
ROOMS = (
    *(
        "admin/commands/ha/",
        "admin/commands/coordinator/",
        "admin/commands/dledger/",
        "broker/",
        "coordination/",
    ),
    *("replication/", "mastership/", "dledger/", "configuration/", "recovery/", "log/", "upkeep/"),
)
# The build in use is shown there; it advises nothing.
APART = {"broker/send/native/__init__.py", "broker/pull/native/__init__.py"}


class Text(NamedTuple):
    """What a program may say: a string of its source, with VALUE for what is put in."""

    file: str
    line: int
    said: str
    is_help: bool


@functools.cache
def texts() -> list[Text]:
    return [
        one
        for package in ("haservice", "commitlog")
        for path in sorted((ROOT / package).rglob("*.py"))
        if "devtools" not in path.parts
        for one in _texts_of(str(path.relative_to(ROOT / package)), ast.parse(path.read_text()))
    ]


def _texts_of(file: str, tree: ast.Module) -> Iterator[Text]:
    """All but docstrings that nobody is shown."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    silent, helps, parts = set[ast.AST](), set[ast.AST](), set[ast.AST]()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            bare = [
                one.value for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            ]
            silent.update(bare)
            if isinstance(node, documented) and getattr(node, "decorator_list", None):
                helps.update(bare[:1])
        if isinstance(node, ast.JoinedStr):
            parts.update(one for one in ast.walk(node) if one is not node)
    for node in ast.walk(tree):
        if node in parts or (node in silent and node not in helps):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(file, node.lineno, node.value, node in helps)
        elif isinstance(node, ast.JoinedStr):
            said = "".join(
                one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else VALUE
                for one in node.values
            )
            yield Text(file, node.lineno, said, False)


def test_a_command_that_a_text_names_is_there_with_its_flags() -> None:
    """As click itself reads it."""
    count = 0
    for text in texts():
        for match in re.finditer(r"\bmqadmin (\w+)", text.said):
            if not text.said.startswith(("as", "stock"), max(0, match.start() - 6)) and not text.is_help:
                known = match.group(1) in MODULES or match.group() in SAYINGS or match.group(1) == VALUE
                assert known, f"{text.file}:{text.line}: {match.group()!r} is no command"
        for _, words in commands_in(text.said):
            command = commands_of(MODULES[words[0]])[words[0]]
            flags = [one for one in words[1:] if one != "-"]
            try:
                command.make_parser(click.Context(command)).parse_args(flags)
            except click.UsageError as error:
                pytest.fail(f"{text.file}:{text.line}: {' '.join(words)}: {error.format_message()}")
            count += 1
    assert count > 100


def test_for_each_advice_it_is_known_what_prints_it() -> None:
    found: dict[str, dict[str, str]] = {}
    for text in texts():
        if text.file.startswith(ROOMS) and not text.is_help and text.file not in APART:
            for _, words in commands_in(text.said):
                found.setdefault(text.file, {})[" ".join(words)] = ""
    told = {file: dict.fromkeys(rows, "") for file, rows in ADVICE.items()}
    assert found == told, "give each new advice a row in ADVICE, and follow it in a test"


def test_a_command_that_changes_something_is_named_whole_or_is_a_hint() -> None:
    for file, rows in ADVICE.items():
        for words, state in rows.items():
            whole = is_whole(words.replace(VALUE, "value").split())
            assert whole or state.startswith("hint: "), f"{file}: {words} cannot be typed as it stands"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (
            "mqadmin failover -b a --to 10.0.0.2:10911 makes it the master",
            "failover -b a --to 10.0.0.2:10911",
        ),
        ("choose one: mqadmin failover -b a --to 10.0.0.2:10911.", "failover -b a --to 10.0.0.2:10911"),
        ("if it is lost for good: mqadmin forget -b a --replica 5f0c21", "forget -b a --replica 5f0c21"),
        ("mqadmin failover -b a --to ADDR makes a slave the master", None),
        ("mqadmin failover says more; mqadmin haStatus -w 2 watches it", "haStatus -w 2"),
        ("mqadmin removeCut /data/a removes it", "removeCut /data/a"),
        ("nothing is to be done", None),
    ],
)
def test_the_next_command_is_the_first_that_can_be_typed(text: str, command: str | None) -> None:
    assert next_command(text) == (None if command is None else command.split())


def test_starts_and_flags_of_a_refused_command_are_steps_too() -> None:
    text = "refused: may lose\n  start 10.0.0.3:10911, and repeat the command\n  --force does it all the same"
    refused = ("failover", "-b", "a", "--to", "10.0.0.2:10911")
    assert next_steps(text, refused) == [("start", "10.0.0.3:10911"), (*refused, "--force")]
