"""What the words of a script may stand for, as far as that is certain without running it.

A Value is the set of texts that a word may have. In a text, ANY stands for any text, and NATURAL
for a whole number from 0 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.init.script import MASK, Script, Unfit, walk, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

Value: TypeAlias = frozenset[str]
ANY, NATURAL = "\0", "\1"
UNKNOWN: Value = frozenset({ANY})
_SOME: Value = frozenset({NATURAL})
MAX_TEXTS = 100
"""Texts of one Value, and items of a range, beyond which it only counts whether all are numbers."""
_NUMBER = re.compile(r"0|-?[1-9]\d{0,15}")
_UNQUOTED = re.compile(r"(?<!\\)[*?\[{~$`]")
_BRACES = re.compile(r"\{([\w.:/=@%+-]+(?:,[\w.:/=@%+-]+)+)\}")
_RANGE = re.compile(r"\{(0|[1-9]\d{0,5})\.\.(0|[1-9]\d{0,5})\}")
_LENGTH = re.compile(r"\$\{#(\w+)\[[@*]\]\}")
_ITEM = re.compile(r"\$\{(\w+)\[(?![@*]\])[^\n]+\]\}")
_ITEMS = re.compile(r"\"?\$\{(!?)(\w+)\[[@*]\]\}\"?")
_COUNTS = frozenset({"RANDOM", "SECONDS", "LINENO", "PPID", "UID", "#", "$", "!", "?"})
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
EXPANSIONS = ("simple_expansion", "expansion", "arithmetic_expansion", "command_substitution")
_EXACT = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": int.__floordiv__,
    "%": int.__mod__,
}
_CARD = re.compile(r"[\d\1]+|GPU-[0-9a-f-]+")


class Known(Struct):
    """What is known of variables at one place. `arguments` are $1, $2 ...; None if unknown.

    `splits` is False where a script changes IFS: then nobody knows how a list is split.
    """

    script: Script
    texts: dict[str, Value] = field(default_factory=dict)
    lists: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    arguments: tuple[Value, ...] | None = None
    splits: bool = True

    def copy(self) -> Known:
        return replace(self, texts=dict(self.texts), lists=dict(self.lists))

    def get(self, name: str) -> Value:
        if name.isdigit():
            at, given = int(name) - 1, self.arguments
            return given[at] if given is not None and 0 <= at < len(given) else UNKNOWN
        if name in self.lists:
            return self.lists[name][0] if self.lists[name] else UNKNOWN
        return _SOME if name in _COUNTS else self.texts.get(name, UNKNOWN)

    def set(self, name: str, value: Value) -> None:
        self.lists.pop(name, None)
        self.texts[name] = _bounded(value)

    def forget(self, name: str) -> None:
        self.lists.pop(name, None)
        self.texts.pop(name, None)

    def assign(self, node: Node) -> None:
        """Set a variable as an assignment does."""
        name, value = self.script.part(node, "name"), node.child_by_field_name("value")
        if "[" in name or self.script.text(node).startswith(f"{name}+="):
            self.forget(name.partition("[")[0])
        elif value is not None and value.type == "array":
            found = self.items(value.named_children)
            self.forget(name)
            self.lists |= {name: found[0]} if found is not None and found[1] else {}
        else:
            self.set(name, self.value(value))

    def join(self, other: Known, widen: bool = False) -> None:
        """Keep what is true here and there; if asked, only the kind of what differs."""
        for name, value in list(self.texts.items()):
            both = value | other.texts.get(name, UNKNOWN)
            self.texts[name] = _kind(both) if widen and both != other.texts.get(name) else both
        self.lists = {name: v for name, v in self.lists.items() if other.lists.get(name) == v}
        if self.arguments != other.arguments:
            self.arguments = None

    # ── a word ────────────────────────────────────────────────────────────────────────────────────

    def value(self, node: Node | None) -> Value:
        """Return what a word may stand for before it is split into several words."""
        if node is None:
            return frozenset({""})
        kind, text = node.type, self.script.text(node)
        if kind in ("word", "number"):
            bare = re.sub(r"\\(\n?)(.?)", lambda m: m.group(2), text, flags=re.DOTALL)
            return UNKNOWN if _UNQUOTED.search(text) else frozenset({bare})
        if kind == "command_name":
            return self.value(node.children[0])
        if kind == "raw_string":
            return frozenset({text[1:-1]})
        if kind == "string":
            return _combined(self._quoted(node))
        if kind == "concatenation":
            return _combined(self.value(child) for child in node.children)
        if kind == "simple_expansion":
            return self.get(text[1:])
        if kind == "arithmetic_expansion" and len(node.named_children) == 1:
            return self.number(node.named_children[0])
        if kind == "expansion" and re.fullmatch(r"\$\{\w+\}", text):
            return self.get(text[2:-1])
        if kind == "expansion" and (match := _LENGTH.fullmatch(text)):
            items = self.lists.get(match.group(1))
            return _SOME if items is None else frozenset({str(len(items))})
        if kind == "expansion" and (match := _ITEM.fullmatch(text)):
            return self._item(node, match.group(1))
        return UNKNOWN

    def _quoted(self, node: Node) -> Iterable[Value]:
        at = node.start_byte + 1
        for child in [*node.named_children, None]:
            if child is None or child.type != "string_content":
                end = node.end_byte - 1 if child is None else child.start_byte
                text = self.script.slice(at, end)
                yield frozenset({re.sub(r'\\(["\\$`])|\\\n', lambda m: m.group(1) or "", text)})
                if child is not None:
                    yield self.value(child)
                    at = child.end_byte

    def _item(self, node: Node, name: str) -> Value:
        """Return what an item of a list may be: ${GPUS[$i]}. UNKNOWN where there may be none."""
        items = self.lists.get(name)
        subscript = next((one for one in walk(node) if one.type == "subscript"), None)
        index = subscript.child_by_field_name("index") if subscript is not None else None
        numbers = self.number(index) if index is not None else UNKNOWN
        if items is None or not all(n.isdigit() and int(n) < len(items) for n in numbers):
            return UNKNOWN
        return frozenset[str]().union(*(items[int(number)] for number in numbers))

    def mask(self, node: Node, value: Node | None) -> tuple[int, Value]:
        """Return how many cards a mask names, as CUDA counts, and what it may be.

        `node` is the whole assignment. Raises Unfit where that is not certain.
        """
        found = frozenset(text.removeprefix(f"{MASK}=") for text in self.value(value))
        try:
            counts = {_cards(text) for text in found}
            if len(counts) > 1:
                raise Unfit("names now fewer cards, now more")
        except Unfit as unfit:
            raise Unfit(f"{self.script.text(node)} {unfit.why}") from None
        return counts.pop(), found

    # ── a list of words ───────────────────────────────────────────────────────────────────────────

    def items(self, nodes: Sequence[Node]) -> tuple[tuple[Value, ...], bool] | None:
        """Return what a list of words becomes, and whether exactly these items; None: unknown."""
        found: list[Value] = []
        exact = True
        for node in nodes:
            items, same = self._items(node)
            if items is None:
                return None
            found += items
            exact = exact and same
        return tuple(found), exact

    def _items(self, node: Node) -> tuple[Sequence[Value] | None, bool]:
        text = self.script.text(node)
        if match := _RANGE.fullmatch(text):
            return _range(int(match.group(1)), int(match.group(2)))
        if match := _BRACES.fullmatch(text):
            return [frozenset({part}) for part in match.group(1).split(",")], True
        if match := _ITEMS.fullmatch(text):
            items = self.lists.get(match.group(2))
            if items is not None and match.group(1):
                return [frozenset({str(number)}) for number in range(len(items))], True
            stay = items is not None and (text[0] == '"' or all(map(is_word, items)))
            return (items if stay else None), True
        if node.type == "command_substitution":
            return self._seq(node)
        value = self.value(node)
        if node.type in EXPANSIONS:
            whole = plain(value)
            if whole is not None and self.splits and not re.search(r"[*?\[]", whole):
                return [frozenset({part}) for part in whole.split()], True
            return ([value] if is_word(value) else None), True
        return (None if value == UNKNOWN else [value]), True

    def _seq(self, node: Node) -> tuple[Sequence[Value] | None, bool]:
        """Return what `$(seq [FIRST] LAST)` prints."""
        command = node.named_children[0] if len(node.named_children) == 1 else node
        words = words_of(command) if command.type == "command" else []
        if not 2 <= len(words) <= 3 or self.script.text(words[0]) != "seq":
            return None, False
        given = [self.value(word) for word in words[1:]]
        first = given[0] if len(given) == 2 else frozenset({"1"})
        low, high = plain(first) or "", plain(given[-1]) or ""
        if _NUMBER.fullmatch(low) and _NUMBER.fullmatch(high) and low[0] != "-":
            return _range(int(low), int(high)) if int(high) >= int(low) else ([], True)
        return [_kind(first)], False

    # ── a number ──────────────────────────────────────────────────────────────────────────────────

    def number(self, node: Node) -> Value:
        """Return what an arithmetic expression may come to, and set the variables that it sets."""
        kind, text = node.type, self.script.text(node)
        inner, operator = node.named_children, self.script.part(node, "operator")
        if kind == "number" or text.isdigit():
            return _numbers(frozenset({text}))
        if kind in ("variable_name", "word"):
            return _numbers(self.get(text))
        if kind in EXPANSIONS:
            return _numbers(self.value(node))
        if kind == "parenthesized_expression" and len(inner) == 1:
            return self.number(inner[0])
        if kind in ("postfix_expression", "unary_expression") and operator in ("++", "--"):
            before = self.number(inner[0])
            after = _operated(operator[0], before, frozenset({"1"}))
            self.set(self.script.text(inner[0]), after)
            return before if kind == "postfix_expression" else after
        if kind == "variable_assignment" and len(inner) == 2:
            found = self.number(inner[1])
            self.set(self.script.text(inner[0]), found)
            return found
        if kind == "binary_expression" and operator not in ("&&", "||"):
            right, left = self.number(inner[-1]), self.number(inner[0])
            if operator in _COMPARISONS:
                return frozenset({"0", "1"})
            found = right if operator == "=" else _operated(operator.removesuffix("="), left, right)
            if operator.endswith("="):
                self.set(self.script.text(inner[0]), found)
            return found
        if kind == "concatenation":
            return self.number_in(text)
        for name in re.findall(r"[A-Za-z_]\w*", text) if re.search(r"[+-]{2}|=", text) else ():
            self.forget(name)
        return UNKNOWN

    def number_in(self, text: str) -> Value:
        """Return what an arithmetic expression in a word may come to, as in `let "i = i + 1"`."""
        script = Script(f"(({text}))")
        inner = script.root.named_children[0].named_children if script.root.named_children else []
        if not script.root.has_error and len(inner) == 1:
            here = Known(script, self.texts, self.lists, self.arguments, self.splits)
            return here.number(inner[0])
        for name in re.findall(r"[A-Za-z_]\w*", text):
            self.forget(name)
        return UNKNOWN


def plain(value: Value) -> str | None:
    """Return the one text that a value has; None if it has several, or an unknown part."""
    text = next(iter(value)) if len(value) == 1 else ANY
    return None if ANY in text or NATURAL in text else text


def is_word(value: Value) -> bool:
    """Tell whether a value stays one word where it is not quoted."""
    return all(re.fullmatch(r"[\w.:/=@%+,\1-]+", text) for text in value)


def _cards(text: str) -> int:
    if text in ("", "-1"):
        return 0
    if ANY in text:
        raise Unfit("is not known before the script runs: it may name any number of cards, or none")
    cards = text.split(",")
    if not all(map(_CARD.fullmatch, cards)):
        raise Unfit("is no list of cards that gpulaunch knows")
    if NATURAL not in text and len(set(cards)) < len(cards):
        raise Unfit("names a card twice, and CUDA then shows none")
    return len(cards)


def entries_of(value: Value) -> frozenset[str]:
    """Return the cards that a mask of this value may name, one by one."""
    return frozenset(card for text in value for card in text.split(",") if card not in ("", "-1"))


def _kind(value: Value) -> Value:
    return _SOME if all(re.fullmatch(r"[\d\1]+", text) for text in value) else UNKNOWN


def _bounded(value: Value) -> Value:
    return value if len(value) <= MAX_TEXTS else _kind(value)


def _combined(parts: Iterable[Value]) -> Value:
    """Return every text that parts one behind the other may make."""
    found: Value = frozenset({""})
    for part in parts:
        some = part if len(found) * len(part) <= MAX_TEXTS else _kind(part)
        found = frozenset(left + right for left, right in product(found, some))
    return found


def _range(first: int, last: int) -> tuple[Sequence[Value], bool]:
    if abs(last - first) >= MAX_TEXTS:
        return [_SOME], False
    step = 1 if last >= first else -1
    return [frozenset({str(number)}) for number in range(first, last + step, step)], True


def _numbers(value: Value) -> Value:
    """Return what a value is in arithmetic, where no text is 0."""
    whole = all(_NUMBER.fullmatch(text) or text in ("", NATURAL) for text in value)
    return frozenset(text or "0" for text in value) if whole else UNKNOWN


def _operated(operator: str, left: Value, right: Value) -> Value:
    """Return what an operation may come to; UNKNOWN where that may be below 0 for all one knows."""
    found: Value = frozenset()
    for a, b in product(left, right):
        if operator == "%" and b == ANY and a != ANY and "-" not in a:
            found |= _SOME
            continue
        if operator not in _EXACT or ANY in (a, b):
            return UNKNOWN
        if operator in "/%" and (b == "0" or "-" in a + b):
            return UNKNOWN
        if operator == "%" and a == NATURAL and b != NATURAL and int(b) <= MAX_TEXTS:
            found |= frozenset(map(str, range(int(b))))
        elif NATURAL in (a, b):
            if operator == "-" or "-" in a + b:
                return UNKNOWN
            found |= _SOME
        else:
            found |= {str(_EXACT[operator](int(a), int(b)))}
    return _bounded(found)
