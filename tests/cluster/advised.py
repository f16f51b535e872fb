"""An operator who does what the program advises: the commands and the starts that a text names, in its order.

    check ──▶ a text ──▶ what it advises ──▶ done, or refused with a text ──▶ what that advises ──▶ … ──▶ check is OK

`follow` goes that way, and fails if a text leads nowhere, or back to what was done already.  Nothing here decides
about a loss: where only --force or --lose is left, it stops and says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from haservice.admin.cli import MODULES, commands_of
from tests.support.waiting import PATIENCE_S

LOOK_S = 0.1
STEPS_MAX = 3
_ENDS = ",;:.)`"
LOSSES = ("--force", "--lose")
_COMMAND = re.compile(r"\bmqadmin\s+(\w+)")
_SAME_WITH = re.compile(r"^\s*(?:or )?(--force|--lose)\b", re.MULTILINE)
_ADDR = r"\d+\.\d+\.\d+\.\d+:\d+"
_START = re.compile(rf"\bstart ({_ADDR})")
# What stands for something that the reader has to know.
_BLANK = re.compile(r"^[A-Z]+$")

Mqadmin = Callable[[Sequence[str]], tuple[int, str]]
"""Runs one command; gives its exit code and all that it says."""


class Step(NamedTuple):
    """What the operator did, and what came of it."""

    words: tuple[str, ...]
    exit_code: int
    text: str


class Outcome(NamedTuple):
    """How it ended: all is well, or `decision` is the command that only the operator may give."""

    steps: list[Step]
    decision: tuple[str, ...] | None


class NoWayOut(AssertionError):
    """The advice leads nowhere."""


def options_of(command: str) -> dict[str, click.Option]:
    """By each way to write it."""
    found = commands_of(MODULES[command])[command]
    return {
        name: one
        for one in found.params
        if isinstance(one, click.Option)
        for name in (*one.opts, *one.secondary_opts)
    }


def commands_in(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each command that a text names, with where: its words as they are typed, without what comes behind its flags."""
    for match in _COMMAND.finditer(text):
        if match.group(1) in MODULES:
            yield match.start(), _words_of(match.group(1), text[match.end() :])


def _words_of(name: str, rest: str) -> list[str]:
    """`rest` is what stands behind the name: flags, values, and then the sentence goes on."""
    command, options, words = commands_of(MODULES[name])[name], options_of(name), [name]
    wanted = sum(isinstance(one, click.Argument) and one.required for one in command.params)
    takes_many = any(isinstance(one, click.Argument) and one.nargs == -1 for one in command.params)
    for word in rest.split() if rest[:1].isspace() else ():
        bare = word.rstrip(_ENDS)
        last = options.get(words[-1])
        is_value = last is not None and not last.is_flag
        wanted -= not is_value and not bare.startswith("-")
        if not is_value and not bare.startswith("-") and wanted < 0 and (bare.isalpha() or not takes_many):
            break
        words.append(bare)
        if bare != word:
            break
    return words


def next_command(text: str) -> list[str] | None:
    """The first command that the text names with nothing left to fill in; None if there is none."""
    return next((words for _, words in commands_in(text) if is_whole(words)), None)


def is_whole(words: Sequence[str]) -> bool:
    """Whether it can be typed as it stands."""
    required = [one for one in options_of(words[0]).values() if one.required]
    return not any(_BLANK.match(one) for one in words[1:]) and all(
        set(one.opts) & set(words) for one in required
    )


def next_steps(text: str, refused: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """All that it advises, in its order: commands, and ("start", address); the `refused` one with a flag more."""
    found: list[tuple[int, tuple[str, ...]]] = [
        (at, tuple(words)) for at, words in commands_in(text) if is_whole(words)
    ]
    found += [(match.start(), ("start", match.group(1))) for match in _START.finditer(text)]
    if refused:
        found += [(match.start(), (*refused, match.group(1))) for match in _SAME_WITH.finditer(text)]
    return list(dict.fromkeys(words for _, words in sorted(found)))


def follow(
    mqadmin: Mqadmin,
    start: Mapping[str, Callable[[], object]],
    refusal: str = "",
    *,
    most: int = STEPS_MAX,
    patience_s: float = PATIENCE_S,
) -> Outcome:
    """Follows what `check` advises, and what comes of that, until check says OK.

    `start` starts the broker of an address; one that is not among them is gone for good.  `refusal` is what a command
    said before.  Raises NoWayOut.
    """
    steps: list[Step] = []
    while True:
        done = {one.words for one in steps}
        deadline_s = time.monotonic() + patience_s
        while True:
            exit_code, said = mqadmin(["check"])
            if not exit_code:
                return Outcome(steps, None)
            refused = steps[-1].words if steps and refusal else ()
            advised = [one for one in next_steps(f"{refusal}\n{said}", refused) if one not in done]
            able = [one for one in advised if one[0] != "start" or one[1] in start]
            safe = [one for one in able if not set(one) & set(LOSSES)]
            if safe:
                break
            if able:
                return Outcome(steps, able[0])
            if time.monotonic() > deadline_s:
                raise NoWayOut(_story(steps, said))
            time.sleep(LOOK_S)
        if len(steps) == most:
            raise NoWayOut(f"more than {most} steps\n{_story(steps, said)}")
        words = safe[0]
        if words[0] == "start":
            start[words[1]]()
            steps.append(Step(words, 0, ""))
        else:
            steps.append(Step(words, *mqadmin(words)))
        refusal = steps[-1].text if steps[-1].exit_code else ""


def _story(steps: Sequence[Step], said: str) -> str:
    lines = [f"$ {' '.join(one.words)}: {one.exit_code}\n{one.text}" for one in steps]
    return "\n".join([*lines, f"$ check\n{said}"])
