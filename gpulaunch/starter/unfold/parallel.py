"""GNU Parallel as loops: `parallel 'fold {}' ::: a b` is one over a and b."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gpulaunch.starter.entry import Untranslatable
from gpulaunch.starter.launch import INDEX
from gpulaunch.starter.pieces import Insert, Outer, Piece, handed, inner, script_of, split
from gpulaunch.starter.shell import Script
from gpulaunch.starter.unfold.items import ItemSource

if TYPE_CHECKING:
    from tree_sitter import Node

NAMES = frozenset({"parallel", "env_parallel", "env_parallel.bash"})
SLOT = "PARALLEL_JOBSLOT"
"""The variable in which Parallel has the number of the slot: which card, in nearly every script."""

_SOURCES = frozenset({":::", "::::", ":::+", "::::+"})
_STRING = re.compile(r"\{(?P<number>\d*)(?P<part>\.|//|/\.|/|)\}|\{(?P<count>[#%])\}|\{=")
_PARTS = {
    "": "${}",
    ".": "${{{}%.*}}",
    "/": "${{{}##*/}}",
    "//": '$(dirname "${}")',
    "/.": '$(basename "${{{}%.*}}")',
}
# fmt: off
_VALUED = frozenset({
    "-j", "--jobs", "-P", "--max-procs", "--joblog", "--results", "--delay", "--halt", "--timeout",
    "--retries", "--colsep", "-C", "-a", "--arg-file", "--nice", "--memfree", "--load", "--env",
    "--tmpdir", "--workdir", "--wd", "-I", "--tagstring", "--header", "-n", "--max-args", "-N",
    "--max-replace-args", "-L", "--max-lines", "-S", "--sshlogin", "--sshloginfile", "--slf",
    "-d", "--delimiter", "--halt-on-error", "--compress-program", "--shellquote", "--memsuspend",
})
_DROPPED = frozenset({
    "-j", "--jobs", "-P", "--max-procs", "--bar", "--progress", "--eta", "--lb", "--line-buffer",
    "--linebuffer", "-u", "--ungroup", "--group", "-k", "--keep-order", "--verbose", "-v", "-t",
    "--will-cite", "--no-notice", "--tag", "--tagstring", "--nice", "--memfree", "--load", "--env",
    "--tmpdir", "--compress", "--shuf", "--no-run-if-empty", "-r", "--plain", "--bg", "-0",
    "--null", "--delay", "--silent", "--memsuspend", "--color",
})
_TOLD = {
    "--joblog": "joblog.tsv of the run has the same columns",
    "--results": "each job has a log of its own: logs/JOB.N.log",
    "--resume": "`gpulaunch resume` goes on with a run",
    "--resume-failed": "`gpulaunch retry` runs again what failed",
    "--halt": "`gpulaunch run --fail-fast` stops at the first failure",
    "--halt-on-error": "`gpulaunch run --fail-fast` stops at the first failure",
    "--retries": "say retries: of the job, one less: Parallel counts the first try",
    "--timeout": "say timeout: of the job",
}
_PAIRS = "pairs its sources: write a table, and foreach: {csv: FILE}"
_REFUSED = {
    **dict.fromkeys(("--link", "--xapply"), _PAIRS),
    **dict.fromkeys(
        ("-S", "--sshlogin", "--sshloginfile", "--slf"),
        "runs on other machines; gpulaunch gives cards of this one",
    ),
    **dict.fromkeys(
        ("--colsep", "-C"), "splits its items into columns: write foreach: {csv: FILE}"
    ),
    "--header": "names its columns: write foreach: {csv: FILE}",
}
# fmt: on


class ParallelLine(Struct):
    """A command line of Parallel: what it runs, and its sources, each with its mark (`:::`)."""

    template: list[Node] = field(default_factory=list)
    sources: list[tuple[str, list[Node]]] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    string: str = ""
    file: str = ""


def read_line(script: Script, words: Sequence[Node]) -> ParallelLine:
    """Read the words behind `parallel`. Raises Untranslatable for options we cannot follow."""
    line, at = ParallelLine(), 0
    while at < len(words) and re.match("-.", script.text(words[at])):
        at += _option(script, line, words, at)
    for word in words[at:]:
        text = script.text(word)
        if text in _SOURCES:
            line.sources.append((text, []))
        elif line.sources:
            line.sources[-1][1].append(word)
        else:
            line.template.append(word)
    return line


def _option(script: Script, line: ParallelLine, words: Sequence[Node], at: int) -> int:
    """How many words an option takes."""
    text = script.text(words[at])
    name, equals, value = text.partition("=")
    if not text.startswith("--") and text[:2] in ("-j", "-P", "-n", "-N", "-L", "-I") and text[2:]:
        name, equals, value = text[:2], "=", text[2:]
    taken = 1
    if name in _VALUED and not equals and at + 1 < len(words):
        value, taken = script.text(words[at + 1]), 2
    if name in _REFUSED:
        raise Untranslatable(f"parallel {name} {_REFUSED[name]}")
    if name in _TOLD:
        line.told.append((f"parallel {name}", _TOLD[name]))
    elif name == "-I":
        line.string = value.strip("'\"")
    elif name in ("-a", "--arg-file"):
        line.file = value
    elif name in ("-n", "--max-args", "-N", "--max-replace-args", "-L", "--max-lines"):
        if value != "1":
            raise Untranslatable(f"parallel {name} {value} takes several items at once: see batch:")
    elif name in ("-d", "--delimiter"):
        if value.strip("'\"") != "\\n":
            raise Untranslatable(f"parallel {name} {value} splits its items in its own way")
    elif name not in _DROPPED:
        raise Untranslatable(f"parallel {name} has no counterpart that init knows")
    return taken


def unfolded(script: Script, line: ParallelLine, given: ItemSource | None, variable: str) -> str:
    """Return the loops. `given` are the items of standard input; `variable` a name that is free.

    Raises Untranslatable.
    """
    sources = _sources(script, line, given)
    if not line.template:
        return _commands(script, line)
    names = [f"{variable}{at + 1}" if len(sources) > 1 else variable for at in range(len(sources))]
    body = _body(script, line, names)
    for name, items in reversed(list(zip(names, sources, strict=True))):
        body = items.group(name, body)
    return body


def _sources(script: Script, line: ParallelLine, given: ItemSource | None) -> list[ItemSource]:
    found: list[ItemSource] = []
    for mark, words in line.sources:
        if mark.endswith("+"):
            raise Untranslatable(f"parallel {mark} {_PAIRS}")
        texts = [script.text(word) for word in words]
        if mark == ":::":
            found.append(ItemSource(words=" ".join(texts)))
            continue
        for text in texts:
            found.append(given if text == "-" and given else ItemSource(file=text))
    if line.file:
        found.append(ItemSource(file=line.file))
    if not found and given is not None:
        found.append(given)
    if not found:
        raise Untranslatable("parallel reads its items from the terminal, which a job has not")
    return found


def _commands(script: Script, line: ParallelLine) -> str:
    """Without a command, the items are the commands: side by side."""
    if len(line.sources) != 1 or line.sources[0][0] != ":::":
        raise Untranslatable(
            "parallel runs the lines of a file: write those lines into the script, each with an &"
        )
    texts = [script_of(inner(script, word)) for word in line.sources[0][1]]
    return "{ " + " ".join(f"( {text}\n) &" for text in texts) + " wait\n}"


def _body(script: Script, line: ParallelLine, names: Sequence[str]) -> str:
    pattern = re.compile(re.escape(line.string)) if line.string else _STRING
    found = list(split(handed(script, line.template), pattern))
    made = [_slot(piece, names) if isinstance(piece, re.Match) else piece for piece in found]
    slots = [piece for piece in found if isinstance(piece, re.Match)]
    if all(slot.groupdict().get("count") for slot in slots):
        for name in names:
            made += [" ", Insert(f"${name}")]
    return script_of(made)


def _slot(match: re.Match[str], names: Sequence[str]) -> Piece:
    """Return a replacement string as an expansion."""
    found = match.groupdict()
    if match.group() == "{=":
        raise Untranslatable("parallel {= =} is a program in Perl")
    if found.get("count") == "%":
        return Outer(f"${SLOT}")
    if found.get("count") == "#":
        if len(names) > 1:
            raise Untranslatable("parallel {#} numbers the combinations: name them by their values")
        return Outer(f"$(({INDEX} + 1))")
    number = int(found.get("number") or 1)
    if not found.get("number") and len(names) > 1:
        raise Untranslatable("parallel {} with several sources: write {1}, {2} ...")
    if number > len(names):
        raise Untranslatable(f"parallel {match.group()}: there is no such source")
    return Insert(_PARTS[found.get("part") or ""].format(names[number - 1]))
