"""The house, held by reading the code: layers, thread names, sizes, libraries in their places."""

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("commitlog", "haservice")
MODULE_LINES_MAX = 500
# In one directory, its __init__ aside: more are not taken in at a glance.
ROOM_MODULES_MAX = 16

# Imports point down, or stay on their level.  The longest prefix that fits decides.
LAYERS = {
    "commitlog": 1,
    "haservice": 2,
    "haservice.mastership": 2,
    "haservice.remoting": 3,
    "haservice.observability": 3,
    "haservice.access": 3,
    "haservice.replication": 3,
    "haservice.coordination": 3,
    "haservice.dledger": 3,
    "haservice.broker": 4,
    "haservice.nameserver": 4,
    "haservice.client": 4,
    "haservice.terminal": 5,
    "haservice.admin": 5,
    "haservice.console": 5,
    "haservice.pipeline": 5,
    "haservice.devtools": 6,
}
# On one level, yet strangers: they meet on the wire, or in the node that builds both.
STRANGERS = [
    {"haservice.remoting", "haservice.replication"},
    {"haservice.access", "haservice.replication"},
    {"haservice.observability", "haservice.replication"},
    {"haservice.observability", "haservice.access"},
    {"haservice.coordination", "haservice.remoting"},
    {"haservice.coordination", "haservice.access"},
    {"haservice.coordination", "haservice.observability"},
    {"haservice.dledger", "haservice.replication"},
    {"haservice.dledger", "haservice.coordination"},
    {"haservice.dledger", "haservice.access"},
    {"haservice.dledger", "haservice.observability"},
    {"haservice.broker", "haservice.nameserver"},
    {"haservice.client", "haservice.broker"},
    {"haservice.client", "haservice.nameserver"},
    {"haservice.client", "haservice.replication"},
    {"haservice.console", "haservice.pipeline"},
]
# (importer, imported) that are right only inside a function, so that all else runs without Spark.
INSIDE_FUNCTIONS = {("haservice.admin", "haservice.pipeline"), ("haservice.devtools", "haservice.pipeline")}
# Who ends with his process may have threads, and imports inside of functions, as he likes.
COMMANDS = ("haservice.terminal", "haservice.admin", "haservice.devtools")
PIPELINE_MAY_USE = (
    "commitlog",
    "haservice.pipeline",
    "haservice.errors",
    "haservice.typed_json",
    "haservice.configuration.config",  # job files are YAML
    "haservice.configuration.yaml_document",
    "haservice.service",  # the thread of a progress bar
    "haservice.deadline",
    "haservice.client",
    "haservice.remoting",  # brokers are read and written over our own client
    "haservice.access.credentials",  # with the keys of a file such as tools.yml
    "haservice.terminal",  # flags, tables and advice are mqadmin's
    "haservice.broker.topics.table",  # whether a queue may be read
    "haservice.broker.stats.ha_samples",  # the files that lag-report reads
)

LIBRARIES = {
    "yaml": ("haservice.configuration.config", "haservice.configuration.yaml_document"),
    "click": (
        "haservice.terminal",
        "haservice.admin",
        "haservice.console",
        "haservice.devtools",
        "haservice.pipeline",
    ),
    "psutil": ("haservice.admin", "haservice.broker", "haservice.devtools"),
    "pyspark": ("haservice.pipeline",),
    "pyarrow": ("haservice.pipeline",),
    "numpy": ("haservice.pipeline",),
    "matplotlib": ("haservice.pipeline",),
    "jinja2": ("haservice.console", "haservice.pipeline"),
    "markupsafe": ("haservice.console",),
    "starlette": ("haservice.console",),
    "uvicorn": ("haservice.console",),
    "orjson": ("haservice",),
    "msgspec": (
        "haservice.typed_json",
        "haservice.bounds",
        "haservice.coordination.etcd_answers",
        "haservice.coordination.voters",
        "haservice.replication",
        "haservice.broker.roles.rules",
    ),
    "tenacity": ("haservice",),
    "uvloop": ("haservice.remoting",),
    "prometheus_client": ("haservice.observability",),
    "urllib3": ("haservice.coordination.etcd",),
    "kazoo": ("haservice.coordination.zookeeper",),
}

# Methods that Spark calls on a source of ours.
NAMES_OF_SPARK = {
    "pushFilters",
    "streamReader",
    "streamWriter",
    "initialOffset",
    "latestOffset",
    "reportLatestOffset",
    "getDefaultReadLimit",
    "prepareForTriggerAvailableNow",
}

# And those that Python calls on a handler of a log.
NAMES_OF_LOGGING = {"doRollover"}

ECHO_AS_THEY_LIKE = {
    "haservice.terminal.output",
    "haservice.admin.daemons",
    "haservice.admin.mqbroker",
    "haservice.admin.mqnamesrv",
    "haservice.devtools.quickstart",
    "haservice.devtools.bench_append",
    "haservice.devtools.bench_dispatch",
    "haservice.devtools.bench_replication",
    "haservice.devtools.bench_sql",
}

# Calls whose first argument, if a literal, names a thread; and a method that gives pairs of name and task.
NAMING_CALLS = ("Service", "WorkPool", "LoopThread", "_run", "run")
NAMING_METHOD = "tasks"


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A module, read once for all rules."""
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


@functools.cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module or module.name, line, whether at the top level) of every import but those for types only."""
    found = []
    nodes = nodes_of(path)
    typing_only = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {id(inner) for node in functions for inner in ast.walk(node)}
    for node in nodes:
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                known = name if name in MODULES else node.module or ""
                found.append((known, node.lineno, id(node) not in inside))
    return found


def part_of(module: str) -> str:
    """The entry of LAYERS that `module` belongs to."""
    return max((part for part in LAYERS if within(module, part)), key=len)


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def edges() -> Iterator[tuple[str, str, str, bool]]:
    """(importer, imported, place, whether at the top level) between modules of ours."""
    for module, path in MODULES.items():
        for name, line, top in imports(path):
            if name.partition(".")[0] in PACKAGES:
                yield module, name, f"{path.relative_to(ROOT)}:{line}", top


def test_imports_point_down() -> None:
    wrong = []
    for module, name, place, top in edges():
        here, there = part_of(module), part_of(name)
        if LAYERS[there] > LAYERS[here] or {here, there} in STRANGERS:
            wrong.append(f"{place}: {here} imports {name}")
        elif (here, there) in INSIDE_FUNCTIONS and top:
            wrong.append(f"{place}: {name} is imported inside the function that needs it")
        elif here == "haservice.pipeline" and not any(within(name, part) for part in PIPELINE_MAY_USE):
            wrong.append(f"{place}: the pipeline does without {name}")
    assert not wrong, "\n".join(wrong)


def test_no_import_is_hidden_in_a_function_to_break_a_cycle() -> None:
    hidden = [
        f"{place}: {name}"
        for module, name, place, top in edges()
        if not top
        and (part_of(module), part_of(name)) not in INSIDE_FUNCTIONS
        and part_of(module) not in COMMANDS
    ]
    assert not hidden, "\n".join(hidden)


def test_modules_import_each_other_without_a_cycle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, name, _, top in edges():
        if top and name in MODULES and name != module:
            graph[module].add(name)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path[path.index(module) :], module))
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_the_commit_log_needs_the_standard_library_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        if within(module, "commitlog")
        for name, line, _ in imports(path)
        if name.partition(".")[0] not in (*sys.stdlib_module_names, "commitlog")
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_where_they_belong() -> None:
    wrong = []
    for module, path in MODULES.items():
        for name, line, _ in imports(path):
            library = name.partition(".")[0]
            if library in PACKAGES or library in sys.stdlib_module_names:
                continue
            if not any(within(module, part) for part in LIBRARIES.get(library, ())):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {module} imports {library}")
    assert not wrong, "\n".join(wrong)


def thread_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every thread name that a literal in the code gives, or its beginning, with its line.

    Names are given to one of NAMING_CALLS, to Thread(name=…), to a parameter called thread_name, or in the
    pairs of NAMING_METHOD; a name that is handed on in a variable is seen where it is first written.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in NAMING_CALLS and node.args:
                yield from literal(node.args[0])
            for keyword in node.keywords:
                named = keyword.arg == "name" and called in ("Thread", *NAMING_CALLS)
                if named or keyword.arg in ("thread_name_prefix", "thread_name"):
                    yield from literal(keyword.value)
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args]
            arguments = arguments[len(arguments) - len(node.args.defaults) :]
            for argument, default in zip(arguments, node.args.defaults, strict=True):
                if argument.arg == "thread_name":
                    yield from literal(default)
            if node.name == NAMING_METHOD:
                for pair in ast.walk(node):
                    if isinstance(pair, ast.Tuple) and pair.elts:
                        yield from literal(pair.elts[0])


def literal(node: ast.expr) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value, node.lineno
    elif isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
        yield str(node.values[0].value), node.lineno


def documented_threads() -> set[str]:
    """The first column of the table in docs/architecture.md; `ha-read:SLAVE` is given as `ha-read:`."""
    section = (ROOT / "docs" / "architecture.md").read_text().split("\n## Threads\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {re.sub(r"[-_]?[A-Z]+$", "", name) for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_table_of_threads_names_all_there_are_and_no_others() -> None:
    """Of the nodes; a benchmark names its helpers as it likes."""
    found = {
        name: f"{path.relative_to(ROOT)}:{line}: {name!r}"
        for module, path in MODULES.items()
        if part_of(module) not in COMMANDS
        for name, line in thread_names(tree_of(path))
    }
    documented = documented_threads()
    assert found.keys() == documented, "\n".join(
        [place for name, place in found.items() if name not in documented]
        + [f"docs/architecture.md: {name!r} is no thread" for name in documented - found.keys()]
    )


def test_threads_are_services() -> None:
    """Only service.py makes a thread; commands and benchmarks, which end with their process, may too."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for module, path in MODULES.items()
        if module != "haservice.service" and part_of(module) not in COMMANDS
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Thread", "threading.Thread", "threading.Timer")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_holds_and_stays_small(module: str) -> None:
    path = MODULES[module]
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= MODULE_LINES_MAX, (
        f"{path.relative_to(ROOT)} has {lines} lines: which second thing moved in?"
    )
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path.relative_to(ROOT)} opens with a docstring"


# Two capitals at least, and a small letter: RouteTable, HAService; but no ordinary word, and not TLS.
NAMES_A_CLASS = re.compile(r"((?=\w*[a-z])[A-Z]\w*[A-Z]\w*):")


def test_what_opens_a_docstring_by_name_is_in_the_module() -> None:
    """`RouteTable: which brokers there are …`: a class of that name, which a rename has to take along."""
    wrong = []
    for path in MODULES.values():
        opening = NAMES_A_CLASS.match(ast.get_docstring(tree_of(path)) or "")
        classes = {one.name for one in nodes_of(path) if isinstance(one, ast.ClassDef)}
        if opening and opening[1] not in classes:
            wrong.append(f"{path.relative_to(ROOT)}: {opening[1]} is no class of this module")
    assert not wrong, "\n".join(wrong)


def test_a_fact_of_rocketmq_has_the_class_it_comes_from() -> None:
    """Not the section of a page that only its author has."""
    section = chr(0xA7)
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {section}"
        for path in written()
        for line, text in enumerate(path.read_text().splitlines(), 1)
        if section in text
    ]
    assert not wrong, "name RocketMQ's class instead\n" + "\n".join(wrong)


def test_a_room_is_taken_in_at_a_glance() -> None:
    rooms = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    full = [f"{room.relative_to(ROOT)}: {count}" for room, count in rooms.items() if count > ROOM_MODULES_MAX]
    assert not full, f"more than {ROOM_MODULES_MAX} modules: which of them belong together?\n" + "\n".join(
        full
    )


# What only the table of a record's layout may say: its magic numbers, as Java and as bytes have them, and the formats
# of a blank, a stamp, a queue entry and an index entry.
LAYOUT_HOME = "commitlog/kernel/layout.py"
LAYOUT_NUMBERS = {0xDAA320A7, 0xDAA320AB, 0xCBD43194}
LAYOUT_FORMATS = {">qiq", ">qqqqii", ">iqii", ">iqq"}


def test_the_layout_of_a_record_has_one_home() -> None:
    """kernel/core/layout.h is generated from it; tests/commitlog/kernel/test_layout.py compares the two."""
    wrong = []
    for path in MODULES.values():
        name = str(path.relative_to(ROOT))
        constants = (node for node in nodes_of(path) if isinstance(node, ast.Constant))
        for node in constants if name != LAYOUT_HOME else ():
            value = node.value
            number = isinstance(value, int) and (value in LAYOUT_NUMBERS or 2**32 - value in LAYOUT_NUMBERS)
            if number or (isinstance(value, str) and value in LAYOUT_FORMATS):
                wrong.append(f"{name}:{node.lineno}: {value!r} is said by {LAYOUT_HOME}")
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.[hp]*")):
        if path.suffix in (".h", ".pyx") and path.name != "layout.h":
            found = re.findall(r"0[xX]([0-9a-fA-F]{8})", path.read_text())
            wrong += [f"{path.relative_to(ROOT)}: 0x{one}" for one in found if int(one, 16) in LAYOUT_NUMBERS]
    assert not wrong, "\n".join(wrong)


# Words that the glossary has given up, as names in the code, and the word that it has for each.
GIVEN_UP = {
    "Standing": "RoleStartup",
    "News": "LogThrottle",
    "Seldom": "LogThrottle",
    "HandBack": "OffsetReclaim",
    "Gates": "SendLimits",
    "Unfinished": "IntentLog",
    "Positions": "DurableMarks",
    "going_back": "truncation",
    "heed": "on_hello",
    "refill": "peer_repair",
    "live_keys": "reloadable_keys",
    "term": "epoch",
    "terms": "epochs",
    "Term": "Epoch",
    "Terms": "KnownEpochs",
    "NewTerm": "NewEpoch",
    "new_term": "new_epoch",
    "last_term": "last_epoch",
    "ForgetTerms": "ForgetEpochs",
    "TERM_MAX": "EPOCH_MAX",
}
# Raft's word, and what DLedger's files and messages call it.
OF_RAFT = {"term", "terms"}
SPEAK_OF_RAFT = (
    "commitlog.dledger",
    "commitlog.errors",
    "haservice.admin.commands.dledger",
    "haservice.admin.commands.messages.log_dump",
    "haservice.broker.majority",
    "haservice.dledger",
    "haservice.mastership",
)


def test_one_thing_has_one_name() -> None:
    """docs/glossary.md says which; here are the names that it took the place of."""
    names = re.compile(rf"\b(?:{'|'.join(GIVEN_UP)})\b")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {found[0]}, now {GIVEN_UP[found[0]]}"
        for module, path in MODULES.items()
        for line, text in enumerate(path.read_text().splitlines(), 1)
        for found in names.finditer(text)
        if not (found[0] in OF_RAFT and any(within(module, part) for part in SPEAK_OF_RAFT))
    ]
    assert not wrong, "\n".join(wrong)


# In prose, messages and comments it is one word, but for RocketMQ's own lines, which people and scripts look for.
TWO_WORDS = re.compile(r"name\s+(?:#\s+)?server", re.IGNORECASE)
LINES_OF_ROCKETMQ = (
    "No topic route info in name server for the topic",
    "The Name Server boot success",
    " and name server is ",
    "update name server config success!",
    "] in name server[",
    "where it said `name server`",  # the changelog
)


def test_the_nameserver_is_one_word() -> None:
    """docs/glossary.md has it; a line break between the two words counts too."""
    wrong = []
    for path in written():
        if path == Path(__file__):
            continue
        text = path.read_text()
        for line in LINES_OF_ROCKETMQ:
            text = text.replace(line, "-" * len(line))
        wrong += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}, now nameserver"
            for found in TWO_WORDS.finditer(text)
        ]
    assert not wrong, "\n".join(wrong)


# Protocols that many consumers declare beside them, each with the part it uses of one thing: the commit log, its
# consume queues, one of them, the index.
SEAMS = {"Log", "Queues", "Queue", "Index"}


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[tuple[str, bool]]] = {}
    for path in MODULES.values():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                is_seam = any(ast.unparse(base) == "Protocol" for base in node.bases)
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                places.setdefault(node.name, []).append((place, is_seam))
    wrong = [
        f"{name}: {', '.join(place for place, _ in found)}"
        for name, found in sorted(places.items())
        if len(found) > 1 and not (name in SEAMS and all(is_seam for _, is_seam in found))
    ]
    assert not wrong, "\n".join(wrong)


def test_what_the_glossary_names_is_there() -> None:
    code = "\n".join(path.read_text() for path in MODULES.values())
    cells = [
        line.split("|")[3] for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if "|" in line
    ]
    missing = [
        name
        for cell in cells
        for name in re.findall(r"`([^`]+)`", cell)
        if not any((root / name).exists() for root in (ROOT, ROOT / "haservice"))
        and name.removeprefix("mqadmin ") not in code
    ]
    assert not missing, missing


# What people read, and its suffixes; what Cython writes is not read.
PROSE = ("README.md", "CHANGELOG.md", "docs", "conf", "commitlog", "haservice", "tests", "scripts")
SUFFIXES = {".md", ".py", ".pyx", ".pxd", ".h", ".c", ".sh", ".properties", ""}
LINE_MAX = 120
# A row of a table as a command prints it, in a fenced block: columns are two blanks apart.
PRINTED_ROW = re.compile(r"\S {2,}\S.* {2,}\S.* {2,}\S")
PRAGMA = re.compile(r"  # (type: ignore|noqa|pragma).*$")


def written() -> Iterator[Path]:
    for name in PROSE:
        place = ROOT / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if (
                path.is_file()
                and path.suffix in SUFFIXES
                and not (path.suffix == ".c" and path.name.startswith("_"))
            ):
                yield path


def test_no_line_is_wider_than_a_page() -> None:
    wide = []
    for path in written():
        name, fenced = str(path.relative_to(ROOT)), False
        for line, text in enumerate(path.read_text().splitlines(), 1):
            if path.suffix == ".md":
                fenced ^= text.lstrip().startswith("```")
                if fenced and PRINTED_ROW.search(text):
                    continue
            if len(PRAGMA.sub("", text)) > LINE_MAX:
                wide.append(f"{name}:{line}: {len(text)} characters")
    assert not wide, "\n".join(wide)


def test_every_package_is_typed_and_found() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()
    for module, path in MODULES.items():
        assert (path.parent / "__init__.py").exists(), f"{module} lies in a directory without __init__.py"


def test_commands_speak_by_what_escapes() -> None:
    """mqadmin shows other people's names: only what shows a node's own may write as it likes."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for module, path in MODULES.items()
        if part_of(module) in COMMANDS and module not in ECHO_AS_THEY_LIKE
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "print")
    ]
    assert not wrong, "haservice.terminal.output has echo and echo_line\n" + "\n".join(wrong)


def test_nothing_swallows_a_cancellation() -> None:
    """Python 3.11's asyncio.wait_for does, when what it waits for ends at the same time; asyncio.timeout does not.

    A broker's registration did not stop: it was cancelled in the moment in which a new topic was announced.
    """
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES.values()
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait_for"
    ]
    assert not wrong, "\n".join(wrong)


def test_who_stops_a_process_waits_for_its_threads() -> None:
    """One that was busy went on after SIGSTOP: a slave acknowledged what a test had sent to a silent one.

    The chaos harness stops processes at any time, and needs no such moment.
    """
    home = ROOT / "tests" / "support" / "standing_still.py"
    wrong = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path not in (home, Path(__file__)) and "chaos" not in path.parts and "SIGSTOP" in path.read_text()
    ]
    assert not wrong, "tests.support.standing_still has freeze and frozen\n" + "\n".join(wrong)


CONSTRUCTORS = {"__new__", "__init__", "__post_init__"}
# Attributes that may appear later, and why: "module.Class.attribute": the reason.  None has one yet.
APPEARS_LATER: dict[str, str] = {}


def methods(of: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those that have an instance, by whatever name."""
    for one in of.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.args.args:
            decorators = {ast.unparse(decorator) for decorator in one.decorator_list}
            if not decorators & {"classmethod", "staticmethod"}:
                yield one


def set_on_instance(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    """(attribute, line) of each that the method assigns."""
    bare = {
        id(one.target) for one in ast.walk(method) if isinstance(one, ast.AnnAssign) and one.value is None
    }
    for one in ast.walk(method):
        if not isinstance(one, ast.Attribute) or not isinstance(one.ctx, ast.Store) or id(one) in bare:
            continue
        if isinstance(one.value, ast.Name) and one.value.id == method.args.args[0].arg:
            yield one.attr, one.lineno


def named_in(nodes: Iterable[ast.AST]) -> Counter[str]:
    return Counter(one.attr for one in nodes if isinstance(one, ast.Attribute))


def constructing(of: ast.ClassDef, everywhere: Counter[str]) -> set[str]:
    """The constructor, and the private methods that nobody in the module calls but these."""
    inside = {one.name: named_in(ast.walk(one)) for one in methods(of)}
    found = CONSTRUCTORS & inside.keys()
    while more := {
        name
        for name in inside.keys() - found
        if name.startswith("_") and 0 < everywhere[name] == sum(inside[one][name] for one in found)
    }:
        found |= more
    return found


def test_an_object_is_whole_when_its_constructor_returns() -> None:
    """No attribute appears first in a method that is called later, and none is declared without a value."""
    nodes = {module: nodes_of(path) for module, path in MODULES.items()}
    named = {module: named_in(there) for module, there in nodes.items()}
    classes = [
        (module, one) for module, there in nodes.items() for one in there if isinstance(one, ast.ClassDef)
    ]
    # By the name of their class: its own attributes, whatever gives them a value.
    given: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for module, one in classes:
        made_by = constructing(one, named[module])
        own = {
            name for method in methods(one) if method.name in made_by for name, _ in set_on_instance(method)
        }
        own |= {method.name for method in methods(one)}  # a property may have a setter
        has_fields = any("dataclass" in ast.unparse(decorator) for decorator in one.decorator_list)
        for line in one.body:
            if isinstance(line, ast.Assign):
                own |= {name.id for name in ast.walk(line) if isinstance(name, ast.Name)}
            elif isinstance(line, ast.AnnAssign) and (has_fields or line.value is not None):
                own.add(ast.unparse(line.target))
        given.setdefault(one.name, set()).update(own)
        bases.setdefault(one.name, set()).update(
            ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in one.bases
        )

    def known(name: str) -> set[str]:
        return given.get(name, set()).union(*(known(base) for base in bases.get(name, set()) - {name}))

    wrong = [
        f"{module}:{line}: {one.name}.{attribute} appears first in {method.name}"
        for module, one in classes
        for method in methods(one)
        for attribute, line in set_on_instance(method)
        if attribute not in known(one.name) and f"{module}.{one.name}.{attribute}" not in APPEARS_LATER
    ]
    wrong += [
        f"{module}:{one.lineno}: {ast.unparse(one.target)} has no value"
        for module, there in nodes.items()
        for one in there
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Attribute) and one.value is None
    ]
    assert not wrong, "\n".join(wrong)


def test_wire_spelling_stays_at_the_wire() -> None:
    """queueId and its like are written in remoting only: names elsewhere are Python's."""
    wrong = []
    for module, path in MODULES.items():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.arg):
                name = node.name if not isinstance(node, ast.arg) else node.arg
                if within(module, "haservice.pipeline") and name in NAMES_OF_SPARK:
                    continue
                if module == "haservice.logs" and name in NAMES_OF_LOGGING:
                    continue
                if re.match(r"_?[a-z]+[A-Z]", name):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {module}: {name}")
    assert not wrong, "\n".join(wrong)


def test_what_docs_claim_has_the_tests_that_they_name() -> None:
    """`file::test` below tests/; `…::test` is of the file named before; a file alone counts for itself."""
    missing = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        named = ""
        for path, test in re.findall(r"`([\w/…]+(?:\.py)?)(?:::(\w+))?`", page.read_text()):
            if not path.endswith(".py") and path != "…":
                continue
            if path.endswith(".py"):
                if not test and "test_" not in path:
                    continue
                named = path
            file = ROOT / "tests" / named.removeprefix("tests/")
            if not file.is_file() or (test and f"def {test}(" not in file.read_text()):
                missing.append(f"{page.name}: {named}::{test}")
    assert missing == []
