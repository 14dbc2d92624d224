"""xargs that starts a process per item, as the loop that it stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpulaunch.starter.entry import Untranslatable
from gpulaunch.starter.launch import NO_CARD
from gpulaunch.starter.mask import MASK
from gpulaunch.starter.pieces import Insert, Piece, script_of, split
from gpulaunch.starter.shell import Script, behind_wrappers
from gpulaunch.starter.unfold.items import ItemSource
from gpulaunch.starter.unfold.parallel import SLOT

if TYPE_CHECKING:
    from tree_sitter import Node

_VALUED = ("-I", "-P", "-n", "-L", "-d", "-a", "-s", "-E")
_LONG = {
    "--max-procs": "-P",
    "--max-args": "-n",
    "--max-lines": "-L",
    "--replace": "-I",
    "--arg-file": "-a",
    "--delimiter": "-d",
    "--null": "-0",
    "--no-run-if-empty": "-r",
    "--verbose": "-t",
    "--process-slot-var": "--process-slot-var",
}
_OLD = {"-i": ("-I", "{}"), "-l": ("-L", "1")}
"""Options of which others took the place, and what they mean without a value."""
_KNOWN = frozenset({*_LONG.values(), "-r", "-t", "-0", "-x", "-E"})


class XargsLine(Struct):
    """`string` is what is replaced by the item; empty: the item is the last word."""

    template: list[Node] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    @property
    def string(self) -> str:
        if "-I" not in self.options:
            return ""
        return self.options["-I"].strip("'\"") or "{}"

    def per_item(self) -> bool:
        """Tell whether a process is started for each item, as against one for all."""
        return "-I" in self.options or {self.options.get("-n"), self.options.get("-L")} >= {"1"}


def read_line(script: Script, words: Sequence[Node]) -> XargsLine:
    """Read the words behind `xargs`. Raises Untranslatable for options we cannot follow."""
    line, at = XargsLine(), 0
    while at < len(words) and script.text(words[at]).startswith("-"):
        text = script.text(words[at])
        name, equals, value = text.partition("=")
        if not text.startswith("--"):
            name, value = text[:2], text[2:]
            if name in _OLD:
                name, value = _OLD[name][0], value or _OLD[name][1]
        name = _LONG.get(name, name)
        if name in _VALUED and not value and not equals and at + 1 < len(words):
            at += 1
            value = script.text(words[at])
        if name not in _KNOWN:
            raise Untranslatable(f"xargs {name} has no counterpart that init knows")
        line.options[name] = value
        at += 1
    line.template = list(words[at:])
    return line


def starts_jobs(script: Script, line: XargsLine) -> bool:
    """Tell whether the processes may need a card: not `xargs rm`, nor one process for all.

    Raises Untranslatable where each takes several items.
    """
    words = behind_wrappers([script.text(word) for word in line.template])
    program = words[0].rpartition("/")[2] if words else "echo"
    if program in NO_CARD:
        return False
    several = line.options.get("-n") or line.options.get("-L")
    if several and not line.per_item():
        raise Untranslatable(f"xargs starts a process for every {several} items: see batch:")
    return line.per_item()


def unfolded(script: Script, line: XargsLine, given: ItemSource | None, variable: str) -> str:
    """Return the loop. Raises Untranslatable."""
    if file := line.options.get("-a"):
        given = ItemSource(file=file)
    if given is None:
        raise Untranslatable("xargs reads its items from the terminal, which a job has not")
    if line.options.get("-d", "'\\n'").strip("'\"$") != "\\n":
        raise Untranslatable(f"xargs -d {line.options['-d']} splits its items in its own way")
    slot = re.escape(line.options.get("--process-slot-var", ""))
    text = " ".join(script.text(word) for word in line.template)
    if slot and slot != MASK:
        text = re.sub(rf"\$(?:{slot}\b|\{{{slot}\}})", f"${SLOT}", text)
    chosen = f"export {MASK}=${SLOT}; " if slot == MASK else ""
    item = Insert(f"${variable}")
    made: list[Piece] = [text, " ", item]
    if line.string:
        found = split([text], re.compile(re.escape(line.string)))
        made = [item if isinstance(piece, re.Match) else piece for piece in found]
    return given.group(variable, f"{chosen}{script_of(made)}")
