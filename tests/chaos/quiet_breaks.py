"""Every place of a broker that can break quietly, read from its sources: new ones are found by themselves.

    wait           a call that waits for so long at most, and raises TimeoutError: it does
    raise          a function that raises TimeoutError by its own words: it does
    effect         an effect of the machine of roles, by its action: it fails
    thread         a thread, or a task of a loop: it dies
    answer         a peer or a nameserver, by request: it answers rubbish
    coordinator    etcd, by path: the same
    names          the resolver of host names: it raises all that it can
    still          a broker stands still at an effect of the machine of roles, or its peer; in a group amid a change
    crawl          brokers have next to no CPU for a while

What a process has that is no broker (clients, tools, the console, the nameserver) is not looked at here.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from haservice.dledger.codes import DLedgerRequestCode
from haservice.remoting.codes import RequestCode
from tests.chaos.quiet_still import SECONDS
from tests.test_house import thread_names

ROOT = Path(__file__).parents[2]
# Rooms that no broker has.
ELSEWHERE = ("admin", "client", "console", "devtools", "nameserver", "pipeline", "terminal")
CLASSIC, COORDINATED, GROUP = KINDS = ("classic", "coordinated", "group")
# What goes on in a group while one of it stands still; names of stimuli.
AMID = ("a restart of a slave", "a switchover", "a restart of the master", "the master's death")
# What only some kinds of clusters have, by where it is.
_ONLY = {
    "haservice/dledger/": (GROUP,),
    "haservice/broker/majority/": (GROUP,),
    "commitlog/dledger/": (GROUP,),
    "haservice/coordination/": (COORDINATED,),
    "haservice/broker/lease/": (COORDINATED,),
    "haservice/broker/roles/": (CLASSIC, COORDINATED),
    "haservice/replication/": (CLASSIC, COORDINATED),
}
# Another coordinator than that of these clusters.
_UNPLAYED = ("haservice/coordination/zookeeper.py",)
_WAITS = ("asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for")
# Where no broker of such a cluster can come, and why.
NEVER = (
    (
        (COORDINATED,),
        # A switchover is asked of the coordinator, and who takes over needs no pledge: the lease is enough.
        ("AskOne", "AwaitLevel", "Confirm", "FindOut", "GatherPledges", "LookAtSlaves", "SendPromote"),
    ),
    ((COORDINATED,), ("PROMOTE", "PLEDGE")),  # for the same reason
    # The lease goes to a voter, which the old master knows, and which has all that anybody has.
    ((COORDINATED,), ("Prove", "Pull")),
    # Only mqadmin reads these; a broker reads and writes by kv/txn.
    ((COORDINATED,), ("kv/range", "lease/timetolive")),
    # Clients of DLedger ask these; PULL is asked by nobody.
    ((GROUP,), ("METADATA", "APPEND", "GET", "PULL")),
    # What lies beside a group's log is copied by and by; only a pair's slave makes a last copy.
    ((GROUP,), ("copy_now",)),
)
# A pool's threads are its own; its jobs hand on what they raise.
_POOLS = ("remoting-work", "remoting-aside", "loop-work")
# What no broker asks a broker or a nameserver; most of it are requests to clients, over connections of theirs.
_NOT_ASKED = {
    RequestCode.SEND_MESSAGE_V2,  # fast sends are made of it
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
}
# Whose first argument, if a literal, names a task of a loop.
_TASK_CALLS = ("task", "LoopTask", "run_on_loop")
_ASKING = ("request", "_fetch", "_ask")


class Break(NamedTuple):
    """One place, and the kinds of clusters that have it."""

    name: str
    place: dict[str, Any]
    kinds: tuple[str, ...] = KINDS

    @property
    def kind(self) -> str:
        return str(self.place["kind"])

    @property
    def where(self) -> str:
        """The action, the function, the request."""
        return str(self.place.get("action") or self.name.rpartition(" ")[2].rpartition(".")[2])


@functools.cache
def all_breaks() -> tuple[Break, ...]:
    """In the order of the kinds above, each name once; of each kind of cluster those where its brokers can come."""
    can_come = [
        one._replace(kinds=tuple(kind for kind in one.kinds if _can_come(kind, one))) for one in found()
    ]
    return tuple(one for one in can_come if one.kinds)


def _can_come(kind: str, one: Break) -> bool:
    return not any(kind in kinds and one.where in places for kinds, places in NEVER)


def found() -> list[Break]:
    """All that the sources have."""
    some = [one for path in sources() for one in (*_waits(path), *_raises(path))]
    some.sort(key=lambda one: (one.kind != "wait", one.name))
    some += _effects()
    some += _threads()
    some += _answers()
    some += _coordinators()
    some += [
        Break(f"names {who}", {"kind": "names", "who": who}) for who in ("getaddrinfo", "create_connection")
    ]
    some += _stills()
    some += [Break(f"crawl {who}", {"kind": "crawl", "who": who}) for who in ("master", "slave", "all")]
    return some


@functools.cache
def sources() -> tuple[Path, ...]:
    """Of what a broker runs."""
    return tuple(
        path
        for package in ("commitlog", "haservice")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.relative_to(ROOT).parts[1] not in ELSEWHERE and _file(path) not in _UNPLAYED
    )


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _file(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _kinds(file: str) -> tuple[str, ...]:
    return next((kinds for where, kinds in _ONLY.items() if file.startswith(where)), KINDS)


def _short(file: str) -> str:
    return file.removeprefix("haservice/").removesuffix(".py")


# -- waits -------------------------------------------------------------------------------------------


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each with its qualified name; one within another is part of it."""

    def below(node: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}{child.name}", child
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{name}{child.name}.")

    return below(tree, "")


def _in_functions(
    path: Path, is_one: Callable[[ast.AST], bool]
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, Any]]:
    for name, function in _functions(_tree(path)):
        for node in ast.walk(function):
            if is_one(node):
                yield name, function, node


def is_timed_wait(node: ast.AST) -> bool:
    """`future.result(seconds)`, `asyncio.timeout(…)` and the like."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "result":
        return bool(node.args or node.keywords)
    return ast.unparse(node.func) in _WAITS


def _waits(path: Path) -> Iterator[Break]:
    file, seen = _file(path), Counter[str]()
    for name, _, node in _in_functions(path, is_timed_wait):
        text = f"wait {_short(file)} {name}"
        seen[text] += 1
        yield Break(
            text if seen[text] == 1 else f"{text} #{seen[text]}",
            {"kind": "wait", "file": file, "first": node.lineno, "last": node.end_lineno},
            _kinds(file),
        )


def _raises(path: Path) -> Iterator[Break]:
    file = _file(path)
    module = file.removesuffix(".py").replace("/", ".")

    def is_one(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and ast.unparse(node.exc.func) == "TimeoutError"
        )

    for name in dict.fromkeys(name for name, _, _ in _in_functions(path, is_one)):
        place = {"kind": "raise", "module": module, "qualname": name}
        yield Break(f"raise {_short(file)} {name}", place, _kinds(file))


# -- standing still ----------------------------------------------------------------------------------


def _stills() -> Iterator[Break]:
    for seconds in SECONDS:
        for effect in _effects():
            for who in ("this one", "the other"):
                place = {**effect.place, "kind": "still", "seconds": seconds, "who": who}
                yield Break(f"still {seconds} s at {effect.place['action']}, {who}", place, effect.kinds)
        for amid in AMID:
            for who in ("master", "slave"):
                place = {"kind": "still", "seconds": seconds, "who": who, "amid": amid}
                yield Break(f"still {seconds} s amid {amid}, {who}", place, (GROUP,))


# -- effects, threads --------------------------------------------------------------------------------


def _effects() -> Iterator[Break]:
    from haservice.broker.roles.hands import _PERFORM

    for action in sorted(kind.__name__ for kind in _PERFORM):
        yield Break(f"effect {action}", {"kind": "effect", "action": action}, (CLASSIC, COORDINATED))


def _threads() -> Iterator[Break]:
    """Of loops the tasks, too."""
    kinds: dict[str, set[str]] = {}
    for path in sources():
        for name, _ in (*thread_names(_tree(path)), *_tasks(_tree(path))):
            if name not in _POOLS:
                kinds.setdefault(name, set()).update(_kinds(_file(path)))
    for name, some in sorted(kinds.items()):
        yield Break(
            f"thread {name}",
            {"kind": "thread", "thread": name},
            tuple(kind for kind in KINDS if kind in some),
        )


def _tasks(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _TASK_CALLS:
            for one in node.args[:1]:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.value, one.lineno


# -- outside sources ---------------------------------------------------------------------------------


def _answers() -> Iterator[Break]:
    found: dict[RequestCode, set[str]] = {}
    for path in sources():
        for node in ast.walk(_tree(path)):
            for code in _asked(node):
                found.setdefault(code, set()).update(_kinds(_file(path)))
    for code, some in sorted(found.items()):
        if code not in _NOT_ASKED:
            kinds = tuple(kind for kind in KINDS if kind in some)
            yield Break(f"answer {code.name}", {"kind": "answer", "code": int(code)}, kinds)
    for member in DLedgerRequestCode:
        yield Break(f"answer DLedger {member.name}", {"kind": "answer", "code": int(member)}, (GROUP,))


def _asked(node: ast.AST) -> Iterator[RequestCode]:
    """The codes of requests that are made here."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _ASKING:
        values: list[ast.expr] = [*node.args]
    elif isinstance(node, ast.Assign):
        values = [node.value]
    else:
        return
    for value in values:
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "RequestCode":
            yield RequestCode[value.attr]


def _coordinators() -> Iterator[Break]:
    paths = {"watch"}
    for node in ast.walk(_tree(ROOT / "haservice/coordination/etcd.py")):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("self._ask", "self._answer"):
            paths |= {
                one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    for path in sorted(paths):
        yield Break(f"coordinator {path}", {"kind": "coordinator", "path": path}, (COORDINATED,))
