"""Bits that flip in files of a store other than the log: of a running broker, or of one that is down.

    flip in a queue        an entry that was written, of a queue of the topic
    flip in an index       within what is written
    flip in a small file   config/, lineage/, checkpoint

A flip changes one bit of one byte that is not zero, so that it hits what was written.  It costs no
acknowledged message: every one is served through its queue, on every broker, when all has settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.chaos.proc_cluster import TOPIC, Node
from tests.chaos.proc_faults import Fault, Scene, Span

ENTRY_BYTES = 20
FLIPS = (1, 3)
DOWN = 0.4


def queue_files(node: Node) -> list[Path]:
    return sorted((node.root / "consumequeue" / TOPIC).glob("*/*"))


def index_files(node: Node) -> list[Path]:
    return sorted((node.root / "index").glob("*"))


def small_files(node: Node) -> list[Path]:
    some = [*(node.root / "config").glob("*.json"), *(node.root / "lineage").glob("*")]
    return sorted(path for path in [*some, node.root / "checkpoint"] if path.is_file())


def _begin(path: Path, scene: Scene) -> int:
    """Where in a queue's file the entries of this round begin; 0 for other files."""
    if path.parent.parent.name != TOPIC:
        return 0
    return max(0, scene.history.base.queues[int(path.parent.name)] * ENTRY_BYTES - int(path.name))


def flip(path: Path, scene: Scene) -> int:
    """Changes a bit of it; where, -1 for a file without any."""
    data, begin = path.read_bytes(), _begin(path, scene)
    written = [at for at, byte in enumerate(data) if byte]
    if not written:
        return -1
    # Only what this round has sent is read in its end.
    at = scene.rng.choice([at for at in written if at >= begin] or written)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1 << scene.rng.randrange(8)]))
    return at


def _apart(files: list[Path], scene: Scene) -> list[Path]:
    """Some of them; of a file and its .bak only one: two flips at once in both are not one fault."""
    some = scene.rng.sample(files, len(files))
    apart = {path.with_name(path.name.removesuffix(".bak")): path for path in some}
    return list(apart.values())[: scene.rng.randint(*FLIPS)]


def _flips(what: str, files: Callable[[Node], list[Path]]) -> Fault:
    async def fault(scene: Scene) -> None:
        node = scene.rng.choice(scene.cluster.nodes)
        down = scene.rng.random() < DOWN
        if down:
            node.kill()
        some = files(node)
        places = []
        for path in _apart(some, scene):
            places.append(f"{path.relative_to(node.root)}:{flip(path, scene)}")
        where = f"{node.name}{' down' if down else ''}: {', '.join(places)}"
        span = Span(scene, f"{what}, broker down" if down else what, where)
        if down:
            await scene.cluster.run(node)
        await asyncio.sleep(scene.seconds)
        span.healed()

    return fault


FLIP_FAULTS: dict[str, Fault] = {
    "flip in a queue": _flips("flip in a queue", queue_files),
    "flip in an index": _flips("flip in an index", index_files),
    "flip in a small file": _flips("flip in a small file", small_files),
}
