"""Timed: what is due for a simulated node.  Nothing of an earlier life, and nothing while it is frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from commitlog.errors import CommitLogError
from tests.chaos.sim_disk import ProcessEnded

if TYPE_CHECKING:
    from tests.chaos.sim_world import World


class Timed:
    """A node's time.  `life` is another one after each start and each end of its process; `up`: it runs."""

    name: str

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = False
        self.life = 0
        self._frozen_until_s = 0.0
        self._due: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Unless this life is over by then; what is due while the node is frozen happens when it thaws."""
        self.world.clock.after(delay_s, self._run, self.life, call, args)

    def _run(self, life: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life != self.life or not self.up:
            return
        if self.frozen_until_s > self.world.clock.now_s:
            if not self._due:
                self.world.clock.after(self.frozen_until_s - self.world.clock.now_s, self._thaw)
            self._due.append((life, call, args))
            return
        self.guarded(call, *args)

    @property
    def frozen_until_s(self) -> float:
        return self._frozen_until_s

    @frozen_until_s.setter
    def frozen_until_s(self, until_s: float) -> None:
        self._frozen_until_s = until_s
        if until_s <= self.world.clock.now_s:
            self._thaw()

    def _thaw(self) -> None:
        """What was due meanwhile happens in its order, unless it froze again."""
        if self.frozen_until_s > self.world.clock.now_s:
            self.world.clock.after(self.frozen_until_s - self.world.clock.now_s, self._thaw)
            return
        due, self._due = self._due, []
        for one in due:
            self._run(*one)

    def guarded(self, call: Callable[..., None], *args: Any) -> None:
        """As a thread of the product would: an error of the disk ends what it did, not the node."""
        try:
            call(*args)
        except ProcessEnded:
            pass
        except (OSError, CommitLogError) as error:
            self.world.note("{}: {}", self.name, error)

    @property
    def awake(self) -> bool:
        return self.up and self.frozen_until_s <= self.world.clock.now_s
