"""RocketMQ's own filter and ours on thousands of expressions and properties; its Bloom filter and ours."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.pull.bloom import BITS, CONSUMERS_EXPECTED, ERROR_RATE_PERCENT, bit_positions
from haservice.broker.pull.sql_filter import EvaluationFault, SqlFault, compile_filter
from tests.interop.jars import java_command
from tests.interop.sql_cases import generated
from tests.interop.stock import requires_stock

pytestmark = [pytest.mark.compat, requires_stock, pytest.mark.timeout(120)]

OUTCOMES = {"true", "false", "null", "fault", "refused"}


def asked(questions: Iterable[Any], home: Path) -> list[str]:
    """The lines that java/SqlFilters.java answers."""
    done = subprocess.run(
        java_command("SqlFilters", home=home),
        input="".join(json.dumps(question) + "\n" for question in questions).encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    return [line for line in done.stdout.decode().splitlines() if line in OUTCOMES or line[:1] == "["]


def ours(expression: str, properties: dict[str, str]) -> str:
    try:
        outcome = compile_filter(expression).evaluate(properties.get)
    except SqlFault:
        return "refused"
    except EvaluationFault:
        return "fault"
    return {True: "true", False: "false", None: "null"}[outcome]  # type: ignore[index]


def test_every_expression_decides_as_rocketmqs(stock_jars: Path, tmp_path: Path) -> None:
    cases = generated(4000)
    answers = asked(({"expression": text, "properties": values} for text, values in cases), tmp_path)
    assert len(answers) == len(cases)
    assert min(Counter(answers)[outcome] for outcome in OUTCOMES) > 100  # all kinds were tried
    different = [
        (text, values, theirs, mine)
        for (text, values), theirs in zip(cases, answers, strict=True)
        if theirs != (mine := ours(text, values))
    ]
    assert different == []


def test_bloom_positions_are_rocketmqs(stock_jars: Path, tmp_path: Path) -> None:
    names = ["", "ü漢" * 9, *(f"{'g' * length}#{length}" for length in range(40))]
    answers = asked(
        ({"bloom": name, "rate": ERROR_RATE_PERCENT, "consumers": CONSUMERS_EXPECTED} for name in names),
        tmp_path,
    )
    assert [json.loads(line) for line in answers] == [[BITS, *bit_positions(name)] for name in names]
