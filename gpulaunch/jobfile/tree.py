"""Parses YAML text into a compact tree of nodes with their places. Scalars stay text as typed.

The C parser's events are folded here, not PyYAML's composer: that one recurses, keeps two marks
per node and resolves nothing we want. Only plain `null`, `~` and nothing at all are null. Limits
on depth, on the number of values and on what aliases expand to keep hostile files cheap.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import yaml
from msgspec import Struct, field

from gpulaunch.base.errors import JobFileError, Mistake
from gpulaunch.jobfile.source import JobFileText, decode

MAX_DEPTH = 50
TOO_DEEP = f"nested more than {MAX_DEPTH} deep"
MAX_VALUES = 3_000_000
MAX_TYPED_VALUES = 10_000
"""Values of one field that was typed on a command line."""

Plain: TypeAlias = "str | list[Plain] | dict[str, Plain] | None"
Path: TypeAlias = tuple["str | int", ...]

_NULLS = frozenset({"", "~", "null"})
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")
) | {"!", None}
_LINE = 1 << 32
_MAX_MISTAKES = 1000


class YamlNode:
    """A value, and the places (line and column in one number) of it and of its key.

    `size` counts the values in it with aliases expanded, long scalars for more than one.
    """

    __slots__ = ("at", "key_at", "size", "value")

    def __init__(
        self, at: int, value: str | list[YamlNode] | dict[str, YamlNode] | None, size: int = 1
    ) -> None:
        self.at = at
        self.key_at = at
        self.size = size
        self.value = value

    def plain(self) -> Plain:
        """Return the value without places."""
        value = self.value
        if isinstance(value, dict):
            return {key: child.plain() for key, child in value.items()}
        if isinstance(value, list):
            return [child.plain() for child in value]
        return value

    def find(self, path: Path, key: bool = False) -> int:
        """Return the place to which `path` leads, or that of the deepest node on its way."""
        node = self
        for step in self.within(path):
            child = node.child(step)
            if child is None:
                return node.at
            node = child
        return node.key_at if key else node.at

    def child(self, step: str | int) -> YamlNode | None:
        """Return the value of a key, or the item of a number."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            return self.value[step]
        return None

    def within(self, path: Path) -> Path:
        """Return `path` without steps into a scalar.

        It may stand for a list of one, or for the part of a mapping that is always given.
        """
        node, kept = self, list[str | int]()
        for step in path:
            if isinstance(node.value, str):
                continue
            kept.append(step)
            node = node.child(step) or _NOTHING
        return tuple(kept)


_NOTHING = YamlNode(0, None)


def place(at: int) -> tuple[int, int]:
    """Return line and column, counted from 0."""
    return divmod(at, _LINE)


def place_at(line: int, column: int) -> int:
    """Return line and column as one number."""
    return line * _LINE + column


def parse(source: JobFileText, most: int = MAX_VALUES) -> tuple[YamlNode, list[tuple[int, str]]]:
    """Return the document's tree, and mistakes that did not prevent it (duplicate keys).

    `most`: values, aliases expanded. Raises JobFileError with the one mistake at which reading had
    to stop.
    """
    builder = _Builder(source, most)
    return builder.document(), builder.mistakes


def plain_value(field: str, typed: str) -> Plain:
    """Return the value of a field that was typed as YAML. Raises JobFileError with one mistake."""
    try:
        data = typed.encode()
    except UnicodeEncodeError:
        raise JobFileError([f"{field}: expected UTF-8"]) from None
    source = JobFileText(field, pathlib.Path("/"), data, decode(data, field))
    return parse(source, MAX_TYPED_VALUES)[0].plain()


def node_at(root: YamlNode, steps: Path) -> YamlNode | None:
    """Return the node to which these steps lead; None if there is none."""
    node: YamlNode | None = root
    for step in steps:
        node = node.child(step) if node is not None else None
    return node


class _Open(Struct):
    """A container that has not ended yet; of a mapping also the key that awaits its value."""

    node: YamlNode
    anchor: str | None
    flow: bool
    key: str | None = None
    key_at: int = 0
    merges: list[YamlNode] = field(default_factory=list)
    twice: set[str] = field(default_factory=set)


class _Builder:
    def __init__(self, source: JobFileText, most: int) -> None:
        self.source = source
        self.most = most
        self.mistakes: list[tuple[int, str]] = []
        self.anchors: dict[str, YamlNode | None] = {}
        self.keys: dict[str, str] = {}
        self.open: list[_Open] = []
        self.root: YamlNode | None = None
        self.values = 0

    def document(self) -> YamlNode:
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(self.source.text)
        try:
            self._events(loader)
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from None
        except yaml.YAMLError as error:
            raise self._nowhere(f"not YAML: {error}".split("\n")[0]) from None
        finally:
            loader.dispose()
        if self.root is None:
            raise self._nowhere(f"the file is empty; expected {self.source.what}")
        return self.root

    def _events(self, loader: yaml.BaseLoader) -> None:
        steps: dict[type[yaml.Event], Callable[[Any, int], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: self._start,
            yaml.SequenceStartEvent: self._start,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.DocumentStartEvent: self._document,
        }
        while True:
            event: yaml.Event = loader.get_event()  # type: ignore[no-untyped-call]
            mark: Any = event.start_mark
            step = steps.get(type(event))
            if step is not None:
                step(event, place_at(mark.line, mark.column))
            elif isinstance(event, yaml.StreamEndEvent):
                return

    def _document(self, _: yaml.DocumentStartEvent, at: int) -> None:
        if self.root is not None:
            raise self._stop(at, f"a second document; {self.source.what} is one document")

    def _awaiting_key(self) -> _Open | None:
        """Return the mapping in which the next value is a key."""
        top = self.open[-1] if self.open else None
        return top if top and isinstance(top.node.value, dict) and top.key is None else None

    def _scalar(self, event: yaml.ScalarEvent, at: int) -> None:
        text: str = event.value
        if event.tag is not None:
            self._check_tag(event.tag, at)
        if "\0" in text:
            raise self._stop(at, "a NUL character; no argument or file name can hold one")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise self._stop(at, "half a surrogate pair, which no text can hold") from None
        top = self._awaiting_key()
        if top is not None:
            top.key = self.keys.setdefault(text, text)
            top.key_at = at
            if event.anchor is not None:
                self.anchors[event.anchor] = YamlNode(at, text)
            return
        plain = not event.style and event.tag is None
        node = YamlNode(at, None if plain and text in _NULLS else text, 1 + len(text) // 64)
        self._add(node, event.anchor)

    def _start(self, event: yaml.CollectionStartEvent, at: int) -> None:
        if event.tag is not None:
            self._check_tag(event.tag, at)
        if len(self.open) >= MAX_DEPTH:
            raise self._stop(at, TOO_DEEP)
        if self._awaiting_key():
            raise self._stop(at, self._bad_key(at))
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        mapping = isinstance(event, yaml.MappingStartEvent)
        node = YamlNode(at, {} if mapping else [])
        self.open.append(_Open(node, event.anchor, bool(event.flow_style)))

    def _end(self, _: yaml.CollectionEndEvent, __: int) -> None:
        done = self.open.pop()
        if done.merges:
            self._merge(done)
        self._add(done.node, done.anchor)

    def _alias(self, event: yaml.AliasEvent, at: int) -> None:
        anchor = str(event.anchor)
        if anchor not in self.anchors:
            raise self._stop(at, f"*{anchor} is not defined above")
        target = self.anchors[anchor]
        if target is None:
            raise self._stop(at, f"*{anchor} contains itself")
        if self._awaiting_key():
            raise self._stop(at, "an alias cannot be a key")
        self._add(YamlNode(at, target.value, target.size), None)

    def _add(self, node: YamlNode, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = node
        self.values += 1
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        container = top.node
        container.size += node.size
        if self.values > self.most or container.size > self.most:
            raise self._stop(node.at, f"more than {self.most:,} values, aliases expanded")
        if isinstance(container.value, list):
            container.value.append(node)
        elif isinstance(container.value, dict):
            self._put(top, container.value, node)

    def _put(self, top: _Open, mapping: dict[str, YamlNode], node: YamlNode) -> None:
        key, top.key = top.key, None
        assert key is not None
        node.key_at = top.key_at
        if key == "<<":
            top.merges.append(node)
        elif key in mapping:
            if key not in top.twice and len(self.mistakes) < _MAX_MISTAKES:
                top.twice.add(key)
                first = place(mapping[key].key_at)[0] + 1
                message = f"key {key!r} twice; the first is in line {first}"
                self.mistakes.append((top.key_at, message))
        else:
            mapping[key] = node

    def _merge(self, done: _Open) -> None:
        """Merge `<<`: keys of the mapping itself win, then those of earlier merged mappings."""
        mapping = done.node.value
        assert isinstance(mapping, dict)
        for merge in done.merges:
            sources = merge.value if isinstance(merge.value, list) else [merge]
            for source in sources:
                if not isinstance(source.value, dict):
                    raise self._stop(merge.at, "<< expects a mapping, or a list of mappings")
                self.values += len(source.value)
                if self.values > self.most:
                    raise self._stop(merge.at, f"more than {self.most:,} values, merges expanded")
                for key, node in source.value.items():
                    if mapping.setdefault(key, node) is node:
                        done.node.size += node.size

    def _bad_key(self, at: int) -> str:
        line, column = place(at)
        if self.source.lines[line].startswith("{{", max(0, column - 1)):
            return 'text that starts with {{ must be quoted, like "{{path}} ..."'
        return "a list or mapping cannot be a key"

    def _check_tag(self, tag: str, at: int) -> None:
        if tag not in _TAGS:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._stop(at, f"tag {shown[:80]} is not supported; values are plain text")

    def _stop(self, at: int, message: str) -> JobFileError:
        return JobFileError([self.source.mistake(*place(at), message)])

    def _nowhere(self, message: str) -> JobFileError:
        name = self.source.name
        return JobFileError([Mistake(f"{name}: {message}", message, name)])

    def _syntax(self, error: yaml.MarkedYAMLError) -> JobFileError:
        mark, problem = error.problem_mark, str(error.problem or error.context)
        if mark is not None and "maximum nesting" in problem:
            # libyaml has its own limit from 0.2.6 on, and reads ahead of the events.
            return JobFileError([self.source.mistake(mark.line, mark.column, TOO_DEEP)])
        end = len(self.source.lines) - (not self.source.lines[-1])
        flow = [opened.node.at for opened in self.open if opened.flow]
        if mark is not None and mark.line >= end and flow and "quoted" not in str(error.context):
            message = "not YAML: the bracket opened here is never closed"
            return JobFileError([self.source.mistake(*place(flow[-1]), message)])
        # The end of the text has no line to show: point at what was left open.
        if error.context_mark and (mark is None or mark.line >= len(self.source.lines) - 1):
            mark, problem = error.context_mark, f"{problem} {error.context}"
        if mark is None:
            return self._nowhere(f"not YAML: {problem}")
        message = f"not YAML: {problem}{_hint(self.source, mark.line, problem)}"
        return JobFileError([self.source.mistake(mark.line, mark.column, message)])


def _hint(source: JobFileText, line: int, problem: str) -> str:
    text = source.line(line)
    indent = text[: len(text) - len(text.lstrip())]
    if "\t" in indent:
        return "; a tab cannot indent, use spaces"
    if "{{" in text and "did not find" in problem:
        return '; quote text that starts with {{, like "{{path}} ..."'
    if "mapping values" in problem:
        return "; quote text that holds a colon and a space"
    return ""
