"""A shell loop's items, as foreach or matrix has them."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from gpulaunch.jobfile.placeholders import RESERVED
from gpulaunch.starter.entry import ForeachLoop, Untranslatable
from gpulaunch.starter.pieces import literal
from gpulaunch.starter.scope import Scope
from gpulaunch.starter.shell import Script

if TYPE_CHECKING:
    from tree_sitter import Node

_GLOB = re.compile(r"[*?\[]")
_COUNT = re.compile(r"\s*(\w+)=(\d+)\s*;\s*\1\s*(<=?)\s*(\d+)\s*;\s*(?:\1\+\+|\+\+\1|\1\+=1)\s*")
_FILE = re.compile(r"\$\((?:cat |<\s*)([\w./-]+)\)")
_FIND = re.compile(
    r"\$\(find (?P<where>[\w./-]+)(?P<options>(?: -(?:maxdepth 1|type [fdl]|mindepth 1))*)"
    r" -name (?P<quote>['\"])(?P<name>[^'\"$`/]+)(?P=quote)"
    r"(?: -(?:type [fdl]|maxdepth 1|print0?))*(?: \| sort(?: -\w+)*)?\)"
)
_LENGTH = re.compile(r"\$\{#(\w+)\[[@*]\]\}")
_LESS_ONE = re.compile(r"(?:\$\(\()?\s*(\d+)\s*-\s*1\s*\)\)")
_NAMED = re.compile(r"\$\{?(\w+)\}?|(?<![\w$-])([A-Za-z_]\w*)\b(?!=)")
_SEQ = re.compile(r"\$\(seq (-w )?(\d+)(?: (\d+))?(?: (\d+))?\)")
_MAX_ITEMS = 10_000
_RESERVED = RESERVED | {"exclude"}


def for_loop(script: Script, node: Node, scope: Scope) -> ForeachLoop:
    """`for NAME in WORDS`. Raises Untranslatable."""
    name = script.part(node, "variable")
    words = node.children_by_field_name("value")
    if not words:
        raise Untranslatable("loops over the script's own arguments, which a job file has not")
    if len(words) == 1 and (file := _FILE.fullmatch(script.text(words[0]))):
        return ForeachLoop(name, "lines", (_placed(file.group(1), scope),))
    values = [value for word in words for value in _values(script, word, scope)]
    globs = [isinstance(value, _Pattern) for value in values]
    texts = tuple(str(value) for value in values)
    if not texts:
        raise Untranslatable("loops over nothing")
    if any("{{" in text or "\0" in text for text in texts):
        raise Untranslatable("an item holds {{, which the job file would read as a placeholder")
    if all(globs):
        return ForeachLoop(name, "glob", tuple(_placed(text, scope) for text in texts))
    if any(globs):
        raise Untranslatable("mixes patterns and plain words in one list")
    return ForeachLoop(name, "values", texts)


class _Pattern(str):
    __slots__ = ()


def _values(script: Script, word: Node, scope: Scope) -> list[str]:
    text = script.text(word)
    if braces := re.fullmatch(r"\{(\d+)\.\.(\d+)\}", text):
        return _numbers(int(braces.group(1)), int(braces.group(2)))
    if text.startswith("$(seq "):
        known = counted(script, text, scope)
        if match := _SEQ.fullmatch(known):
            return _sequence(*match.groups())
    if text.startswith("$(find "):
        return _found(text)
    if indices := re.fullmatch(r'"?\$\{!(\w+)\[[@*]\]\}"?', text):
        items = _array(script, indices.group(1), scope)
        if any(isinstance(item, _Pattern) for item in items):
            raise Untranslatable(f"counts the files of {indices.group(1)}: loop over those")
        return [str(number) for number in range(len(items))]
    if listed := re.fullmatch(r"\$\(ls (?:-1 )?([^\s$()|;&`]+)\)", text):
        if not _GLOB.search(text):
            raise Untranslatable(f"loops over {text}: write the directory's pattern, like dir/*")
        return [_Pattern(listed.group(1))]
    if array := re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', text):
        return _array(script, array.group(1), scope)
    value = literal(script, word, scope.literals)
    if value is None:
        raise Untranslatable(f"loops over {text}, which only the shell can know")
    if word.type in ("simple_expansion", "expansion"):
        return [_Pattern(part) if _GLOB.search(part) else part for part in value.split()]
    unquoted = word.type == "word" or (
        word.type == "concatenation" and not _quoted_glob(script, word)
    )
    if unquoted and _GLOB.search(value):
        return [_Pattern(value)]
    if unquoted and "{" in value and ("," in value or ".." in value):
        raise Untranslatable(f"loops over {text}, a list only the shell can spell out")
    return [value]


def _sequence(same: str | None, *numbers: str | None) -> list[str]:
    """`seq [-w] [FIRST [STEP]] LAST`."""
    given = [int(number) for number in numbers if number is not None]
    first, last = (1, *given)[-2:] if len(given) < 3 else (given[0], given[2])
    step = given[1] if len(given) == 3 else 1
    if not step or (last - first) // step >= _MAX_ITEMS:
        raise Untranslatable(f"loops over more than {_MAX_ITEMS} numbers: use lines: of a file")
    found = [str(number) for number in range(first, last + 1, step)]
    width = max(map(len, found), default=0) if same else 0
    return [number.zfill(width) for number in found]


def _found(text: str) -> list[str]:
    """`find DIR -name PATTERN` as a pattern of files."""
    match = _FIND.fullmatch(text)
    if match is None:
        raise Untranslatable(f"loops over {text}, which only the shell can know")
    where, options, name = match.group("where"), match.group("options"), match.group("name")
    deep = "" if "maxdepth 1" in options else "**/"
    return [_Pattern(f"{where.rstrip('/')}/{deep}{name}")]


def _quoted_glob(script: Script, word: Node) -> bool:
    quoted = [child for child in word.children if child.type in ("string", "raw_string")]
    return any(_GLOB.search(script.text(child)) for child in quoted)


def _array(script: Script, name: str, scope: Scope) -> list[str]:
    node = scope.arrays.get(name)
    if node is None:
        raise Untranslatable(f"loops over the array {name}, whose items only the shell can know")
    return [value for word in node.named_children for value in _values(script, word, scope)]


def _numbers(first: int, last: int) -> list[str]:
    """Return the numbers from one to the other, both included, up or down."""
    if abs(last - first) >= _MAX_ITEMS:
        raise Untranslatable(f"loops over {abs(last - first) + 1} numbers: use lines: of a file")
    step = 1 if last >= first else -1
    return [str(number) for number in range(first, last + step, step)]


def _placed(pattern: str, scope: Scope) -> str:
    """Return a pattern for the job file's directory, where it is looked up, and not in `cwd`."""
    return posixpath.normpath(posixpath.join(scope.cwd or "", pattern))


def counted(script: Script, text: str, scope: Scope, own: str = "") -> str:
    """Fill in the lengths of known arrays, and known numbers: `${#A[@]}`, `$N`.

    `own` is a variable that the text itself counts with.
    """

    def length(match: re.Match[str]) -> str:
        try:
            items = _array(script, match.group(1), scope)
        except Untranslatable:
            return match.group()
        alone = not any(isinstance(item, _Pattern) for item in items)
        return str(len(items)) if alone else match.group()

    def number(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        value = scope.literals.get(name, "")
        return value if value.isdigit() and name != own else match.group()

    return _LESS_ONE.sub(
        lambda match: str(int(match.group(1)) - 1), _NAMED.sub(number, _LENGTH.sub(length, text))
    )


def counting_loop(script: Script, node: Node, scope: Scope) -> ForeachLoop:
    """`for ((i=0; i<N; i++))`. Raises Untranslatable."""
    text = script.text(node)
    head = text[text.index("((") + 2 : text.index("))")] if "))" in text else ""
    head = counted(script, head, scope, head.partition("=")[0].strip())
    match = _COUNT.fullmatch(head)
    if match is None:
        raise Untranslatable("counts in a way that is not translated: use matrix or foreach")
    name, first, less, bound = match.groups()
    last = int(bound) - (less == "<")
    if last < int(first):
        raise Untranslatable("loops over nothing")
    return ForeachLoop(name, "values", tuple(_numbers(int(first), last)))


def read_loop(script: Script, loop: Node, redirect: Node, scope: Scope) -> ForeachLoop:
    """`while read NAME; do ...; done < FILE`. Raises Untranslatable."""
    head = " ".join(
        script.text(child) for child in loop.children if child.type in ("command", "list")
    )
    match = re.fullmatch(
        r"(?:IFS=\S*\s+)?read\s+(?:-r\s+)?(\w+)(?:\s*\|\|\s*\[+ -n \"?\$\{?\1\}?\"? \]+)?", head
    )
    target = redirect.child_by_field_name("destination")
    file = literal(script, target, scope.literals) if target is not None else None
    if match is None or file is None or not script.text(redirect).startswith("<"):
        raise Untranslatable("a loop that runs until something becomes true has no counterpart")
    if "{{" in file:
        raise Untranslatable("the file's name holds {{")
    return ForeachLoop(match.group(1), "lines", (_placed(file, scope),))


def arranged(loops: tuple[ForeachLoop, ...]) -> tuple[ForeachLoop, ...]:
    """Loops around one command: one alone is a foreach, nested values a matrix, and both multiply.

    Raises Untranslatable.
    """
    files = [loop for loop in loops if loop.kind in ("glob", "lines")]
    if len(files) > 1:
        raise Untranslatable("two loops over files inside each other: foreach takes one")
    if len(loops) < 2:
        return loops
    out: list[ForeachLoop] = []
    for loop in loops:
        if loop.kind == "values":
            name = loop.variable
            while name in _RESERVED or any(name == other.placeholder for other in out):
                name += "_"
            if len(set(loop.values)) < len(loop.values):
                raise Untranslatable(f"the loop over {loop.variable} has a value twice")
            loop = ForeachLoop(loop.variable, "matrix", loop.values, name)
        out.append(loop)
    return tuple(out)


def name_suffix(loops: tuple[ForeachLoop, ...]) -> str:
    """Return what makes the entry's names differ: `-{{stem}}`, `-{{lr}}-{{seed}}`, ..."""
    parts = []
    for loop in loops:
        if loop.kind == "matrix":
            parts.append(loop.placeholder)
        elif loop.kind == "glob":
            folder, name = posixpath.split(loop.values[0])
            ending = posixpath.splitext(name)[1]
            alike = len(loop.values) == 1 and not _GLOB.search(folder + ending)
            parts.append("stem" if alike and ending else "index")
        else:
            short = all(0 < len(value) < 40 and value.isascii() for value in loop.values)
            plain = short and not any(re.search(r"[^\w.=+-]", value) for value in loop.values)
            unique = len(set(loop.values)) == len(loop.values)
            parts.append("item" if loop.kind == "values" and plain and unique else "index")
    return "".join(f"-{{{{{part}}}}}" for part in parts)
