"""Where GNU Parallel, xargs and `| while read` take their items from, as the head of a loop."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.starter.entry import Untranslatable
from gpulaunch.starter.shell import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

_ORDER = frozenset({"sort", "shuf", "uniq", "natsort"})
_GLOB = re.compile(r"[*?\[]")
_FORMAT = re.compile(r"(['\"])%s\\n\1")


class ItemSource(Struct, frozen=True):
    """Either `words`, as `for` takes them, or the lines of a `file`.

    `within`: they are names in that directory, as `ls DIR` prints them.
    """

    words: str = ""
    file: str = ""
    within: bool = False

    def loop(self, variable: str, body: str) -> str:
        """Return a loop in which the variable is each item."""
        if self.file:
            return f"while read -r {variable}; do {body}\ndone < {self.file}"
        variable, body = self._named(variable, body)
        return f"for {variable} in {self.words}; do {body}\ndone"

    def group(self, variable: str, body: str) -> str:
        """Return a loop of which each turn is a process of its own."""
        variable, body = self._named(variable, body)
        return replace(self, within=False).loop(variable, f"( {body}\n)")

    def _named(self, variable: str, body: str) -> tuple[str, str]:
        """Return the variable of the loop and its body, in which names stand for paths."""
        if not self.within:
            return variable, body
        path = f"{variable}_path"
        return path, f"{variable}=${{{path}##*/}}; {body}"


def of_pipe(script: Script, stages: Sequence[Node], lines: bool) -> ItemSource:
    """Return what the stages before the last print, an item a line; a word, too, where not `lines`.

    Raises Untranslatable.
    """
    kept = [stage for stage in stages if _ORDER.isdisjoint(script.words(stage)[:1])]
    if len(kept) != 1 or kept[0].type != "command":
        shown = " | ".join(script.text(stage) for stage in stages)
        raise Untranslatable(
            f"takes its items from {shown}, which only the shell can know: write them to a file,"
            " an item a line, and read that"
        )
    return _of_command(script, kept[0], lines)


def _of_command(script: Script, command: Node, lines: bool) -> ItemSource:
    text, (program, *spelt) = script.text(command), script.words(command) or [""]
    if program == "cat" and len(spelt) == 1 and not spelt[0].startswith("-"):
        return ItemSource(file=spelt[0])
    if program in ("find", "seq"):
        return ItemSource(words=f"$({text})")
    if program == "ls":
        return _of_listing(text, [word for word in spelt if not word.startswith("-")])
    if program == "printf" and spelt and _FORMAT.fullmatch(spelt[0]):
        return ItemSource(words=" ".join(spelt[1:]))
    if program == "echo" and not (spelt and spelt[0].startswith("-")) and not lines:
        return ItemSource(words=" ".join(spelt))
    raise Untranslatable(
        f"takes its items from {text}, which only the shell can know: write them to a file, an"
        " item a line, and read that"
    )


def _of_listing(text: str, paths: Sequence[str]) -> ItemSource:
    if paths and all(_GLOB.search(path) for path in paths):
        return ItemSource(words=" ".join(paths))
    if len(paths) == 1:
        return ItemSource(words=f"{paths[0].rstrip('/')}/*", within=True)
    raise Untranslatable(f"takes its items from {text}: write the directory's pattern, like dir/*")


def of_redirect(script: Script, redirects: Sequence[Node]) -> ItemSource | None:
    """Return the lines of the file that standard input comes from."""
    for redirect in redirects:
        text = script.text(redirect)
        target = redirect.child_by_field_name("destination")
        if text.startswith("<") and not text.startswith(("<<", "<(")) and target is not None:
            if target.type == "process_substitution":
                stages = list(target.named_children)
                if len(stages) == 1 and stages[0].type == "pipeline":
                    stages = list(stages[0].named_children)
                return of_pipe(script, stages, lines=True)
            return ItemSource(file=script.text(target))
        if redirect.type == "heredoc_redirect":
            return ItemSource(words=" ".join(f"'{line}'" for line in _lines_of(script, redirect)))
    return None


def _lines_of(script: Script, redirect: Node) -> list[str]:
    body = next((one for one in redirect.children if one.type == "heredoc_body"), None)
    lines = script.text(body).splitlines() if body is not None else []
    if any("'" in line or "$" in line or "`" in line for line in lines):
        raise Untranslatable("takes its items from a here-document with quotes or expansions in it")
    return [line.strip() for line in lines if line.strip()]
