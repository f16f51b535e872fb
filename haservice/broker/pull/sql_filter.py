"""SQL92 expressions: which messages of a queue a subscription takes, judged by their properties.

    selector    or; what follows it is not read
    or          and (OR and)*
    and         equality (AND equality)*
    equality    comparison (= comparison | <> comparison | IS [NOT] NULL)*
    comparison  unary (> unary | >= unary | < unary | <= unary
                      | [NOT] BETWEEN unary AND unary | [NOT] IN ( text , text … ))*
    unary       + unary | - unary | NOT unary | primary
    primary     'text' | 12 | 12L | 1.5e3 | TRUE | FALSE | NULL | property | ( or )

The grammar is that of RocketMQ 4.9.8's SelectorParser, with its oddities: NOT binds before `=`; behind a
whole expression only the first token is read; `--` begins a comment only if its line ends; 0.0 is no
literal.  The parser is written by hand, because no generated one stops where RocketMQ's stops.

An expression becomes closures over a getter of properties.  Its values are True, False and None (unknown).
This is the reference: `native/core/sql.h` does the same where it was built, rule for rule.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from haservice.broker.pull.sql_values import (
    INT_MAX,
    LONG_MAX,
    EvaluationFault,
    Long,
    Value,
    equal,
    order,
)

# RocketMQ has neither limit.  An expression is evaluated for every message.
EXPRESSION_CHARS_MAX = 8192
NESTING_MAX = 50
# A fault shows so much of a token.
FOUND_CHARS_MAX = 64

Properties = Callable[[str], str | None]
_Evaluate = Callable[[Properties], Value]

_TOKEN = re.compile(
    r"""(?P<skip> [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*[^*]*\*(?:\*|[^*/][^*]*\*)*/ )
      | (?P<float> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<integer> 0 | [1-9][0-9]*[lL]? )
      | (?P<text> '(?:''|[^'])*' )
      | (?P<word> [a-zA-Z_$][a-zA-Z0-9_$]* )
      | (?P<sign> <> | <= | >= | [=<>(),+-] )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})
_LITERALS = {"TRUE": True, "FALSE": False, "NULL": None}
_COMPARES: dict[str, Callable[[int], bool]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}


class SqlFault(ValueError):
    """An expression that cannot be compiled; the text says where and why."""


class SqlFilter:
    """A compiled expression.  `unread` is the text behind its end, which decides nothing."""

    __slots__ = ("_evaluate", "expression", "unread")

    def __init__(self, expression: str, evaluate: _Evaluate, unread: str) -> None:
        self.expression = expression
        self.unread = unread
        self._evaluate = evaluate

    def evaluate(self, properties: Properties) -> Value:
        """True, False, or None for unknown.  Raises EvaluationFault if values cannot be compared."""
        return self._evaluate(properties)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties passes; unknown and incomparable values do not."""
        try:
            return self._evaluate(properties) is True
        except EvaluationFault:
            return False


def compile_filter(expression: str) -> SqlFilter:
    """Raises SqlFault."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SqlFault(f"{len(expression)} characters, at most {EXPRESSION_CHARS_MAX} are read")
    parser = _Parser(expression)
    evaluate = parser.boolean(parser.disjunction()).evaluate
    return SqlFilter(expression, evaluate, expression[parser.position :].strip())


class _Token(NamedTuple):
    """`kind` is a keyword, a sign, "float", "integer", "text", "property" or "end"."""

    kind: str
    image: str
    start: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the expression: what it computes, and what the grammar's rules need to know of it."""

    evaluate: _Evaluate
    is_boolean: bool = False
    is_constant: bool = False
    value: Value = None
    name: str | None = None
    depth: int = 1


class _Parser:
    """Reads tokens one ahead, as needed: text that the parser never reaches cannot be a fault."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._token: _Token | None = None
        self._depth = 0
        # Where the last taken token ends.
        self.position = 0

    # Rules

    def disjunction(self) -> _Node:
        return self._joined("OR", self._conjunction, _any)

    def _conjunction(self) -> _Node:
        return self._joined("AND", self._equality, _all)

    def _joined(
        self, word: str, rule: Callable[[], _Node], join: Callable[[tuple[_Evaluate, ...]], _Evaluate]
    ) -> _Node:
        """One node for a whole chain, so that a long chain is not deep."""
        first = rule()
        if self._peek() != word:
            return first
        parts = [self.boolean(first)]
        while self._accept(word):
            parts.append(self.boolean(rule()))
        return self._node(join(tuple(part.evaluate for part in parts)), *parts)

    def _equality(self) -> _Node:
        left = self._comparison()
        while True:
            if self._accept("="):
                left = self._equal(left, self._comparison())
            elif self._accept("<>"):
                left = self._negated(self._equal(left, self._comparison()))
            elif self._accept("IS"):
                negated = self._accept("NOT")
                self._take("NULL")
                left = self._node(_is_null(left.evaluate), left)
                left = self._negated(left) if negated else left
            else:
                return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            kind = self._peek()
            if kind in _COMPARES:
                self._take(kind)
                left = self._compared(kind, left, self._unary())
            elif kind in ("NOT", "BETWEEN", "IN"):
                negated = self._accept("NOT")
                if self._accept("IN"):
                    left = self._contained(left, self._texts(), negated)
                else:
                    self._take("BETWEEN")
                    low = self._unary()
                    self._take("AND")
                    left = self._between(left, low, self._unary(), negated)
            else:
                return left

    def _texts(self) -> frozenset[str]:
        self._take("(")
        texts = {_text(self._take("text"))}
        while self._accept(","):
            texts.add(_text(self._take("text")))
        self._take(")")
        return frozenset(texts)

    def _unary(self) -> _Node:
        if self._peek() not in ("+", "-", "NOT"):
            return self._primary()
        self._depth += 1
        self._check_depth(self._depth)
        kind = self._take(self._peek()).kind
        operand = self._unary()
        self._depth -= 1
        if kind == "+":
            return operand
        if kind == "-":
            return _Node(_minus(operand.evaluate), depth=operand.depth + 1)
        return self._negated(self.boolean(operand))

    def _primary(self) -> _Node:
        token = self._take_any()
        kind = token.kind
        if kind == "text":
            return _constant(_text(token))
        if kind == "integer":
            return _constant(self._integer(token))
        if kind == "float":
            return _constant(self._float(token))
        if kind in _LITERALS:
            return _constant(_LITERALS[kind], is_boolean=True)
        if kind == "property":
            return _property(token.image)
        if kind != "(":
            raise self._unexpected(token, "a value")
        self._depth += 1
        self._check_depth(self._depth)
        inside = self.disjunction()
        self._take(")")
        self._depth -= 1
        return inside

    # What the rules make, and refuse

    def boolean(self, node: _Node) -> _Node:
        """`node` as a condition: a property alone is one, but is true for no text."""
        if node.is_boolean:
            return node
        if node.name is None:
            raise self._fault("this is no condition")
        return self._node(_is_truth(node.evaluate), node)

    def _equal(self, left: _Node, right: _Node) -> _Node:
        for side in (left, right):
            if side.is_constant and side.value is None:
                raise self._fault("NULL is not compared; IS NULL asks for it")
        if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
            raise self._fault("TRUE and FALSE are not compared with another kind of literal")
        return self._node(_equals(left.evaluate, right.evaluate), left, right)

    def _compared(self, sign: str, left: _Node, right: _Node) -> _Node:
        for side in (left, right):
            if side.is_boolean or (side.is_constant and not isinstance(side.value, int | float)):
                raise self._fault(f"{sign} takes numbers and properties only")
        return self._node(_ordered(left.evaluate, right.evaluate, _COMPARES[sign]), left, right)

    def _between(self, value: _Node, low: _Node, high: _Node, negated: bool) -> _Node:
        if negated:
            outside = (self._compared("<", value, low), self._compared(">", value, high))
            return self._node(_any(tuple(side.evaluate for side in outside)), *outside)
        inside = (self._compared(">=", value, low), self._compared("<=", value, high))
        if low.is_constant and high.is_constant:
            assert isinstance(low.value, int | float)
            assert isinstance(high.value, int | float)
            if order(high.value, low.value) < 0:
                raise self._fault(f"BETWEEN goes from {low.value} down to {high.value}")
        return self._node(_all(tuple(side.evaluate for side in inside)), *inside)

    def _contained(self, left: _Node, texts: frozenset[str], negated: bool) -> _Node:
        if left.name is None:
            raise self._fault("IN takes a property on its left")
        return self._node(_is_in(left.name, texts, negated), left)

    def _negated(self, node: _Node) -> _Node:
        return self._node(_not(node.evaluate), node)

    def _node(self, evaluate: _Evaluate, *parts: _Node) -> _Node:
        """A condition made of `parts`."""
        depth = 1 + max(part.depth for part in parts)
        self._check_depth(depth)
        return _Node(evaluate, is_boolean=True, depth=depth)

    def _integer(self, token: _Token) -> int:
        digits = token.image.rstrip("lL")
        value = int(digits) if len(digits) < 20 else LONG_MAX + 1
        if value > LONG_MAX:
            raise self._fault(f"{digits} is above {LONG_MAX}")
        return value if value <= INT_MAX else Long(value)

    def _float(self, token: _Token) -> float:
        value = float(token.image)
        if value == 0 or value == float("inf"):
            raise self._fault(f"{token.image} is no positive double")
        return value

    # Tokens

    def _peek(self) -> str:
        if self._token is None:
            self._token = self._read(self.position)
        return self._token.kind

    def _read(self, position: int) -> _Token:
        while position < len(self._expression):
            found = _TOKEN.match(self._expression, position)
            if found is None:
                raise SqlFault(f"character {position + 1}: {self._expression[position]!r} means nothing here")
            kind, image = found.lastgroup or "", found[0]
            if kind == "word":
                upper = image.upper()
                return _Token(upper if upper in _KEYWORDS else "property", image, position)
            if kind != "skip":
                return _Token(image if kind == "sign" else kind, image, position)
            position = found.end()
        return _Token("end", "", position)

    def _take_any(self) -> _Token:
        self._peek()
        token = self._token
        assert token is not None
        self._token = None
        self.position = token.start + len(token.image)
        return token

    def _take(self, kind: str) -> _Token:
        token = self._take_any()
        if token.kind != kind:
            raise self._unexpected(token, kind)
        return token

    def _accept(self, kind: str) -> bool:
        if self._peek() != kind:
            return False
        self._take_any()
        return True

    def _unexpected(self, token: _Token, wanted: str) -> SqlFault:
        found = token.image[:FOUND_CHARS_MAX] or "the end"
        return SqlFault(f"character {token.start + 1}: expected {wanted}, found {found}")

    def _fault(self, reason: str) -> SqlFault:
        return SqlFault(f"up to character {self.position}: {reason}")

    def _check_depth(self, depth: int) -> None:
        if depth > NESTING_MAX:
            raise self._fault(f"nested more than {NESTING_MAX} deep")


def _text(token: _Token) -> str:
    return token.image[1:-1].replace("''", "'")


# -- closures --------------------------------------------------------------------------------------


def _constant(value: Value, *, is_boolean: bool = False) -> _Node:
    return _Node(lambda get: value, is_boolean=is_boolean, is_constant=True, value=value)


def _property(name: str) -> _Node:
    return _Node(lambda get: get(name), name=name)


def _any(parts: tuple[_Evaluate, ...]) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        outcome: bool | None = False
        for part in parts:
            value = part(get)
            if value:
                return True
            if value is None:
                outcome = None
        return outcome

    return evaluate


def _all(parts: tuple[_Evaluate, ...]) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        outcome: bool | None = True
        for part in parts:
            value = part(get)
            if value is None:
                outcome = None
            elif not value:
                return False
        return outcome

    return evaluate


def _not(part: _Evaluate) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        value = part(get)
        return None if value is None else not value

    return evaluate


def _is_null(part: _Evaluate) -> _Evaluate:
    return lambda get: part(get) is None


def _is_truth(part: _Evaluate) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        value = part(get)
        return None if value is None else value is True

    return evaluate


def _minus(part: _Evaluate) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        value = part(get)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return evaluate


def _equals(left: _Evaluate, right: _Evaluate) -> _Evaluate:
    return lambda get: equal(left(get), right(get))


def _ordered(left: _Evaluate, right: _Evaluate, wanted: Callable[[int], bool]) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        first = left(get)
        if first is None:
            return None
        second = right(get)
        if second is None:
            return None
        return wanted(order(first, second))

    return evaluate


def _is_in(name: str, texts: frozenset[str], negated: bool) -> _Evaluate:
    def evaluate(get: Properties) -> Value:
        value = get(name)
        return None if value is None else (value in texts) is not negated

    return evaluate
