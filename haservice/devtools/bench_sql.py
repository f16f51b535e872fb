"""scripts/bench_sql: what a SQL92 expression costs, natively and by the Python reference.

ms of CPU to compile the longest expressions of several kinds; bytes of memory a character
µs of CPU to try a message with many different expressions, for each of them
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import click

from commitlog.kernel.records import decode_properties
from haservice.broker.pull import native
from haservice.broker.pull.sql_filter import EXPRESSION_CHARS_MAX, SqlFault, compile_filter
from haservice.terminal.options import CONTEXT, version_option

PROPERTIES = b"a\x015\x02price\x017.5\x02region\x01us"
BEST_OF = 5


def _long(piece: str, joint: str = " OR ") -> str:
    """As many pieces as an expression may have."""
    return joint.join([piece] * ((EXPRESSION_CHARS_MAX + len(joint)) // (len(piece) + len(joint))))


EXPRESSIONS = {
    "a = 5 OR …": _long("a = 5"),
    "region = 'eu' AND price > 10.5 OR …": _long("region = 'eu' AND price > 10.5"),
    "50 brackets": _long("(" * 49 + "a" + ")" * 49),
    "a IN ('', …)": "a IN (" + ",".join(["''"] * 2720) + ")",
    "a BETWEEN 1 AND 5 OR …": _long("a BETWEEN 1 AND 5"),
    "one long text": "a = '" + "''" * 4090 + "'",
    "a fault at the end": _long("a = 5")[: EXPRESSION_CHARS_MAX - 8] + " OR a = ",
}


@click.command(context_settings=CONTEXT)
@version_option
@click.option(
    "--expressions", default=10_000, show_default=True, help="Different ones that a message is tried with."
)
def main(expressions: int) -> None:
    """Measures the CPU of SQL92 expressions beside the Python reference."""
    if native.sql is None:
        raise click.ClickException("the native build is not in force, so there is nothing to compare")
    click.echo(f"{'to compile, ms of CPU':<40}{'native':>10}{'Python':>10}{'bytes a character':>20}")
    for name, text in EXPRESSIONS.items():
        made = native.compile_expression(text) if "fault" not in name else None
        size = getattr(made and made.selects, "size_bytes", None)
        took = [_cpu_s(partial(_tried, compiled, text)) * 1e3 for compiled in _COMPILERS]
        room = f"{size / len(text):.1f}" if size is not None else "-"
        click.echo(f"{name:<40}{took[0]:>10.2f}{took[1]:>10.2f}{room:>20}")
    texts = [
        f"a = {number + 10} OR region = 'eu{number}' AND price > {number}.5" for number in range(expressions)
    ]
    programs = [native.compile_expression(text).selects for text in texts]
    filters = [compile_filter(text) for text in texts]
    get = decode_properties(PROPERTIES).get
    sql = native.sql
    fast = _cpu_s(lambda: sql.matching(programs, PROPERTIES))
    slow = _cpu_s(lambda: [one.evaluate(get) for one in filters])
    each = 1e6 / expressions
    click.echo(
        f"\n{f'a message, µs for each of {expressions:,}':<40}{fast * each:>10.3f}{slow * each:>10.3f}"
    )


_COMPILERS: tuple[Callable[[str], object], ...] = (native.compile_expression, compile_filter)


def _tried(compiled: Callable[[str], object], text: str) -> None:
    with suppress(SqlFault):
        compiled(text)


def _cpu_s(work: Callable[[], object]) -> float:
    """The best of some."""
    best_s = float("inf")
    for _ in range(BEST_OF):
        began_s = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - began_s)
    return best_s


if __name__ == "__main__":
    main()
