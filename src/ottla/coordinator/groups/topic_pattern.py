"""Regular expressions over topic names, matched in time proportional to the names.

The language is RE2's, as in Kafka's brokers: no look-around, no back-references, and in return no
exponential time. A whole name has to match. Topic names consist of 65 characters, so a character
class is the set of those that are in it, whatever it says about the rest of Unicode.

An expression is compiled to a nondeterministic automaton, a graph of nodes. Sets of its nodes are
the states of a deterministic one, made when a name first needs them.
"""

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from string import ascii_letters, digits
from typing import Final

ALPHABET: Final = frozenset(ascii_letters + digits + "._-")
_WORD: Final = ALPHABET - frozenset(".-")
_DIGITS: Final = frozenset(digits)
_NONE: Final[frozenset[str]] = frozenset()
_REPEAT_MAX: Final = 1000  # as in RE2
_DEPTH_MAX: Final = 100  # of parentheses in parentheses
_NODES_MAX: Final = 2000  # of an expression, after x{3} became xxx
_STATES_MAX: Final = 1000  # kept of the deterministic automaton; beyond, it begins anew
_WORK_MAX: Final = 250_000  # nodes visited for one list of names: less than a second

_PERL: Final = {"d": _DIGITS, "w": _WORD, "s": _NONE}
_POSIX: Final[dict[str, frozenset[str]]] = {
    "alnum": frozenset(ascii_letters + digits),
    "alpha": frozenset(ascii_letters),
    "ascii": ALPHABET,
    "blank": _NONE,
    "cntrl": _NONE,
    "digit": _DIGITS,
    "graph": ALPHABET,
    "lower": frozenset(c for c in ascii_letters if c.islower()),
    "print": ALPHABET,
    "punct": frozenset("._-"),
    "space": _NONE,
    "upper": frozenset(c for c in ascii_letters if c.isupper()),
    "word": _WORD,
    "xdigit": frozenset(digits + "abcdefABCDEF"),
}
_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class InvalidPattern(Exception):
    """Not an expression of RE2, or one that costs too much."""


class _Kind(Enum):
    CHARACTER = auto()  # takes one of a set
    EITHER = auto()
    START = auto()
    END = auto()
    BOUNDARY = auto()
    NO_BOUNDARY = auto()
    MATCH = auto()


@dataclass(slots=True)
class _Node:
    """A node of the graph, and its successors."""

    kind: _Kind
    characters: frozenset[str] = _NONE
    then: tuple[int, ...] = ()


@dataclass(slots=True)
class _Graph:
    """Built from the end: a part of an expression is added in front of its successor."""

    nodes: list[_Node] = field(default_factory=lambda: [_Node(_Kind.MATCH)])
    _copies: int = 0

    def add(self, kind: _Kind, *then: int, characters: frozenset[str] = _NONE) -> int:
        if len(self.nodes) >= _NODES_MAX:
            raise InvalidPattern("the expression is too large")
        self.nodes.append(_Node(kind, characters, then))
        return len(self.nodes) - 1

    def note_copy(self) -> None:
        """Copies of an empty part add no nodes, but a thousand times a thousand take minutes."""
        self._copies += 1
        if self._copies > _NODES_MAX:
            raise InvalidPattern("the expression repeats too much")


_Part = Callable[[_Graph, int], int]  # adds itself in front of a node, returns its first node


def _characters(characters: frozenset[str]) -> _Part:
    return lambda graph, after: graph.add(_Kind.CHARACTER, after, characters=characters)


def _assertion(kind: _Kind) -> _Part:
    return lambda graph, after: graph.add(kind, after)


def _sequence(parts: list[_Part]) -> _Part:
    def build(graph: _Graph, after: int) -> int:
        for part in reversed(parts):
            after = part(graph, after)
        return after

    return build


def _alternatives(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return lambda graph, after: graph.add(_Kind.EITHER, *(part(graph, after) for part in parts))


def _repetition(part: _Part, low: int, high: int | None) -> _Part:
    def build(graph: _Graph, after: int) -> int:
        if high is None:
            loop = graph.add(_Kind.EITHER)
            graph.nodes[loop].then = (part(graph, loop), after)
            after = loop
        for _ in range((low if high is None else high) - low):
            graph.note_copy()
            after = graph.add(_Kind.EITHER, part(graph, after), after)
        for _ in range(low):
            graph.note_copy()
            after = part(graph, after)
        return after

    return build


class _Parser:
    """Recursive descent over an expression, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False

    def parse(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise InvalidPattern("a ) without its (")
        return part

    def _alternatives(self) -> _Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidPattern("too many parentheses in parentheses")
        ignored_case = self._ignores_case
        found = [self._sequence()]
        while self._take("|"):
            found.append(self._sequence())
        self._ignores_case = ignored_case  # a flag ends with the group that it stands in
        self._depth -= 1
        return _alternatives(found)

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take("\\Q"):
                parts += [_characters(self._cased(c)) for c in self._quoted()]
                parts[-1:] = [self._repeated(part) for part in parts[-1:]]
                continue
            atom = self._atom()
            if atom is not None:
                parts.append(self._repeated(atom))
        return _sequence(parts)

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at : end if end >= 0 else None]
        self._at += len(quoted) + (2 if end >= 0 else 0)
        return quoted

    def _atom(self) -> _Part | None:
        """The next atom; None for a group that only changes flags."""
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return _characters(self._class())
            case ".":
                return _characters(ALPHABET)
            case "^":
                return _assertion(_Kind.START)
            case "$":
                return _assertion(_Kind.END)
            case "*" | "+" | "?":
                raise InvalidPattern(f"nothing to repeat before {character}")
            case "\\":
                return self._escape()
            case _:
                return _characters(self._cased(character))

    def _group(self) -> _Part | None:
        ignored_case = self._ignores_case
        if self._take("?"):
            if self._take("P<") or (self._peek("<") and not self._peek("<=", "<!")):
                self._name()
            elif not self._flags():
                return None  # they hold for the rest of the group around
        part = self._alternatives()
        if not self._take(")"):
            raise InvalidPattern("a ( without its )")
        self._ignores_case = ignored_case
        return part

    def _name(self) -> None:
        self._take("<")
        end = self._text.find(">", self._at)
        name = self._text[self._at : end]
        if end < 0 or not name.isidentifier():
            raise InvalidPattern("the name of a group is not an identifier")
        self._at = end + 1

    def _flags(self) -> bool:
        """Read flags; True if the content of a group follows them."""
        sets = True
        while True:
            match self._next():
                case "i":
                    self._ignores_case = sets
                case "m" | "s" | "U":
                    pass  # of lines, which names do not have, and of greed, which changes nothing
                case "-" if sets:
                    sets = False
                case ":":
                    return True
                case ")":
                    return False
                case other:
                    raise InvalidPattern(
                        f"(?{other} is not known: no look-around and no conditions"
                    )

    def _repeated(self, part: _Part) -> _Part:
        while True:
            bounds = self._bounds()
            if bounds is None:
                return part
            low, high = bounds
            if max(low, high or 0) > _REPEAT_MAX or (high is not None and high < low):
                raise InvalidPattern(f"repetitions are bounded by {_REPEAT_MAX}, and in order")
            self._take("?")  # as few as possible: the same names match
            if self._peek("*", "+") or self._is_counted():
                raise InvalidPattern("a repetition of a repetition")
            part = _repetition(part, low, high)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if not self._is_counted():
            return None
        end = self._text.index("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        self._at = end + 1
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def _is_counted(self) -> bool:
        """True at {2}, {2,} or {2,3}; any other { is an ordinary character."""
        end = self._text.find("}", self._at)
        if not self._peek("{") or end < 0:
            return False
        low, _, high = self._text[self._at + 1 : end].partition(",")
        return _is_number(low) and (not high or _is_number(high))

    def _escape(self) -> _Part:
        match self._text[self._at : self._at + 1]:
            case "A":
                kind = _Kind.START
            case "z":
                kind = _Kind.END
            case "b":
                kind = _Kind.BOUNDARY
            case "B":
                kind = _Kind.NO_BOUNDARY
            case _:
                return _characters(self._escaped())
        self._at += 1
        return _assertion(kind)

    def _escaped(self) -> frozenset[str]:
        """The characters that an escape stands for."""
        escaped = self._next()
        if escaped.lower() in _PERL:
            found = _PERL[escaped.lower()]
            return found if escaped.islower() else ALPHABET - found
        if escaped in "pP":
            found = self._property()
            return found if escaped == "p" else ALPHABET - found
        return self._cased(self._escaped_character(escaped))

    def _escaped_character(self, escaped: str) -> str:
        if escaped in _CONTROL:
            return _CONTROL[escaped]
        if escaped == "x":
            return self._hexadecimal()
        if escaped == "0" or (escaped in "1234567" and self._peek(*"01234567")):
            octal = escaped
            while len(octal) < 3 and self._peek(*"01234567"):
                octal += self._next()
            return chr(int(octal, 8))
        if escaped.isalnum():
            raise InvalidPattern(f"\\{escaped} is not known: no back-references")
        return escaped

    def _hexadecimal(self) -> str:
        code = self._until("}") if self._take("{") else self._next() + self._next()
        try:
            return chr(int(code, 16))
        except (ValueError, OverflowError):
            raise InvalidPattern(f"\\x{code} is not a character") from None

    def _property(self) -> frozenset[str]:
        name = self._until("}") if self._take("{") else self._next()
        is_negated = name.startswith("^")
        name = name.removeprefix("^")
        if name in {"L", "Lu", "Ll", "N", "Nd", "P", "Pc", "Pd", "Po"}:
            found = frozenset(c for c in ALPHABET if unicodedata.category(c).startswith(name))
        elif name == "Any":
            found = ALPHABET
        elif name == "Latin":
            found = _POSIX["alpha"]
        else:
            raise InvalidPattern(f"\\p{{{name}}} is not known here")
        return ALPHABET - found if is_negated else found

    def _class(self) -> frozenset[str]:
        is_negated = self._take("^")
        found: set[str] = set()
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            found |= self._class_item()
        return ALPHABET - found if is_negated else frozenset(found) & ALPHABET

    def _class_item(self) -> frozenset[str]:
        if self._take("[:"):
            name = self._until(":]")
            kind = _POSIX.get(name.removeprefix("^"))
            if kind is None:
                raise InvalidPattern(f"[:{name}:] is not known")
            return ALPHABET - kind if name.startswith("^") else kind
        low = self._next()
        if low == "\\":
            if self._peek("d", "D", "w", "W", "s", "S", "p", "P"):
                return self._escaped()
            low = self._escaped_character(self._next())
        if not self._peek("-") or self._peek("-]"):
            return self._cased(low)
        self._take("-")
        high = self._next()
        if high == "\\":
            high = self._escaped_character(self._next())
        if high < low:
            raise InvalidPattern(f"the range {low}-{high} is empty")
        return _NONE.union(*(self._cased(c) for c in ALPHABET if low <= c <= high))

    def _cased(self, character: str) -> frozenset[str]:
        if self._ignores_case:
            return frozenset((character.lower(), character.upper()))
        return frozenset(character)

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern("the expression ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        at = self._text.find(end, self._at)
        if at < 0:
            raise InvalidPattern(f"{end} is missing")
        found = self._text[self._at : at]
        self._at = at + len(end)
        return found

    def _peek(self, *prefixes: str) -> bool:
        return self._text.startswith(prefixes, self._at)

    def _take(self, prefix: str) -> bool:
        if not self._peek(prefix):
            return False
        self._at += len(prefix)
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


_State = tuple[frozenset[int], str]  # nodes, and a character of the class of the last one read


class TopicPattern:
    """A compiled expression. States are kept, so the second name is faster than the first."""

    def __init__(self, text: str) -> None:
        graph = _Graph()
        start = _Parser(text).parse()(graph, 0)
        self._nodes = graph.nodes
        self._start: _State = (frozenset((start,)), "")
        self._steps: dict[_State, dict[str, _State]] = {}
        self._work_left = 0

    def find(self, names: Iterable[str]) -> frozenset[str]:
        """The names that match; raises InvalidPattern when that would take too long."""
        self._work_left = _WORK_MAX
        return frozenset(name for name in names if self._matches(name))

    def _matches(self, name: str) -> bool:
        state = self._start
        for character in name:
            known = self._steps.get(state)
            if known is None:
                if len(self._steps) >= _STATES_MAX:
                    self._steps.clear()
                known = self._steps[state] = {}
            following = known.get(character)
            if following is None:
                following = known[character] = self._step(state, character)
            state = following
            if not state[0]:
                return False
        return any(self._nodes[p].kind is _Kind.MATCH for p in self._reach(state, ""))

    def _step(self, state: _State, character: str) -> _State:
        reached = frozenset(
            self._nodes[p].then[0]
            for p in self._reach(state, character)
            if character in self._nodes[p].characters
        )
        return reached, "w" if character in _WORD else "-"

    def _reach(self, state: _State, character: str) -> set[int]:
        """All nodes that can be reached before `character` is read; an empty one is the end."""
        nodes, before = state
        seen = set(nodes)
        left = list(nodes)
        while left:
            node = self._nodes[left.pop()]
            if node.kind is not _Kind.CHARACTER and _holds(node.kind, before, character):
                for following in node.then:
                    if following not in seen:
                        seen.add(following)
                        left.append(following)
        self._work_left -= len(seen)
        if self._work_left < 0:
            raise InvalidPattern("the expression takes too long")
        return seen


def _holds(kind: _Kind, before: str, after: str) -> bool:
    match kind:
        case _Kind.START:
            return not before
        case _Kind.END:
            return not after
        case _Kind.BOUNDARY:
            return (before in _WORD) != (after in _WORD)
        case _Kind.NO_BOUNDARY:
            return (before in _WORD) == (after in _WORD)
        case _:
            return True
