"""A shell script as a syntax tree, and what a text is that is none. Nothing of the script is run.

The parser is tree-sitter's bash grammar (MIT, wheels for every platform). Its tree keeps the place
of each node in the source, so that a command can be carried over letter by letter. It is imported
only when a script is read. Also says what the directives of a batch system mean in a job file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


MASK = "CUDA_VISIBLE_DEVICES"
_HERE_DOCUMENT = re.compile(rb"(?<!<)<<-?[ \t]*[\"'\\]?[A-Za-z_]")
_LET = re.compile(rb"^([ \t]*)let ([ \t]*\w+=\([^\"';&|\n]*)$", re.M)
_NAME = re.compile(rb"[A-Za-z_]\w*|\d")
_NO_WORDS = ("variable_assignment", "file_redirect", "heredoc_redirect", "herestring_redirect")


class Unfit(Exception):
    """Why a script, or the line of it with this number, cannot be carried over for certain."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


class Script:
    """The source and its tree. Positions are bytes of `source`.

    The grammar takes `$A/$B/c` apart, and `let a=(b+1)`. Where it does, `source` has `${B}` and
    `((a=(b+1)))`, which bash reads as the same; `typed` is the script as it was.
    """

    def __init__(self, source: str) -> None:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        parser = Parser(Language(tree_sitter_bash.language()))
        self.typed = source.encode("utf-8", "replace")
        self.braced: list[int] = []
        counted = _LET.sub(rb"\1((\2))", self.typed)
        while True:
            self.source = counted
            for at in reversed(self.braced):
                name = _NAME.match(counted, at + 1)
                end = name.end() if name else at + 1
                self.source = b"%b${%b}%b" % (
                    self.source[:at], self.source[at + 1 : end], self.source[end:]
                )  # fmt: skip
            self.root = parser.parse(self.source).root_node
            found = {self.place(n.start_byte) for n in walk(self.root) if self._is_torn(n)}
            if found <= set(self.braced):
                return
            self.braced = sorted({*self.braced, *found})

    def place(self, at: int) -> int:
        """Return the place in `typed` of a place in `source`."""
        for start in self.braced:
            name = _NAME.match(self.typed, start + 1)
            end = name.end() if name else start + 1
            at -= (at > start + 1) + (at > end + 1)
        return at

    def _is_torn(self, node: Node) -> bool:
        alone = node.type == "$" and node.parent is not None and "expans" not in node.parent.type
        return alone and _NAME.match(self.source, node.end_byte) is not None

    def line(self, node: Node) -> int:
        return node.start_point.row + 1

    def text(self, node: Node) -> str:
        return self.slice(node.start_byte, node.end_byte)

    def slice(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace")

    def part(self, node: Node, field: str) -> str:
        """Return the text of a part by the grammar's name for it; empty where there is none."""
        found = node.child_by_field_name(field)
        return self.text(found) if found is not None else ""

    def refuse_unread(self) -> None:
        """Raise Unfit at the first place that the grammar could not read."""
        documents: set[int] = set()
        texts: list[tuple[int, int]] = []
        for node in walk(self.root):
            if node.is_missing or node.type == "ERROR":
                raise Unfit("gpulaunch cannot read this line as bash", self.line(node))
            if self._has_gap(node):
                raise Unfit("gpulaunch cannot tell the words of this line apart", self.line(node))
            if node.type == "heredoc_redirect":
                documents.add(node.start_byte)
            elif node.type in ("comment", "heredoc_body", "raw_string", "string_content"):
                texts.append((node.start_byte, node.end_byte))
        for match in _HERE_DOCUMENT.finditer(self.source):
            at = match.start()
            if at not in documents and not any(start <= at < end for start, end in texts):
                line = self.source.count(b"\n", 0, at) + 1
                raise Unfit("gpulaunch cannot read this here-document", line)

    def _has_gap(self, node: Node) -> bool:
        """Tell whether words are not apart that should be, or parts of a word are."""
        if node.type not in ("command", "concatenation"):
            return self._is_torn(node)
        for left, right in pairwise(node.children):
            apart = left.end_byte < right.start_byte or right.type in _NO_WORDS[1:]
            if apart == (node.type == "concatenation"):
                return True
        return False


def words_of(command: Node) -> list[Node]:
    """Return the words of a command, without assignments and redirections."""
    return [child for child in command.named_children if child.type not in _NO_WORDS]


def assignments_of(command: Node) -> list[Node]:
    return [child for child in command.named_children if child.type == "variable_assignment"]


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything in it, in the order of the source."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def above(node: Node) -> Iterator[Node]:
    """Yield the nodes that a node stands in, from the inside out."""
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def statements_of(parent: Node) -> list[tuple[Node, bool]]:
    """Return the statements in a block, and whether an `&` follows each."""
    found: list[tuple[Node, bool]] = []
    for child in parent.children:
        if child.type == "&" and found:
            found[-1] = (found[-1][0], True)
        elif child.is_named:
            found.append((child, False))
    return found


def edited(source: bytes, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the source with other text in some places, which do not overlap."""
    out, at = b"", 0
    for start, end, text in sorted(edits):
        if start < at:
            raise Unfit("two changes of the script meet in one place")
        out += source[at:start] + text.encode()
        at = end
    return (out + source[at:]).decode("utf-8", "replace")


# ── Other texts, and the directives of batch systems ──────────────────────────────────────────────

SHELLS = frozenset({"sh", "bash", "dash"})
_BY_NAME = {
    "YAML": ".yaml .yml",
    "a table (foreach: {csv: FILE} in a job file reads it)": ".csv .tsv",
    "a script of csh": ".csh .tcsh",
    "a script of zsh": ".zsh",
    "a script of fish": ".fish",
    "a script of Windows": ".bat .ps1",
    "a description for HTCondor": ".sub .condor",
    "a Makefile": ".mk makefile gnumakefile",
    "a Python program": ".py",
    "a notebook": ".ipynb",
    "an R program": ".r",
    "a Julia program": ".jl",
    "a Perl program": ".pl",
    "JSON": ".json",
    "TOML": ".toml",
}
_KEYS = re.compile(r"(?:\s*(?:#.*)?\n)*[\w./-]+:(?: .*)?\n")
_DIRECTIVE = re.compile(r"#(SBATCH|PBS|\$|BSUB)\s+(-\S.*)")
_SYSTEMS = {"SBATCH": "Slurm", "PBS": "PBS", "$": "SGE", "BSUB": "LSF"}
_MEANINGS = (
    (r"-(?:J|N|-job-name)[= ](?P<v>[A-Za-z_][\w.-]*)$", "name: {v}"),
    (r"(?:--gres=gpu|--gpus(?:-per-\w+)?[= ])(?::?[a-z][\w.-]*)?:?(?P<v>\d+)", "gpus: {v}"),
    (r".*\b(?:ngpus|gpus?)=(?P<v>\d+)", "gpus: {v}"),
    (r"(?:-c|--cpus-per-task)[= ]?(?P<v>\d+)", "cpus: {v}"),
    (r"(?:.*:)?(?:--)?mem[= ](?P<v>\d+)[gG]", "memory: {v}GiB"),
    (r"(?:.*:)?(?:--)?mem[= ](?P<v>\d+)M?$", "memory: {v}MiB"),
    (r"(?:-t|--time)[= ](?P<v>\d+)$", "timeout: {v}m"),
    (r"(?:-t|--time|-l (?:walltime|h_rt))[= ](?P<d>\d+)-(?P<h>\d+):", "timeout: {d}d{h}h"),
    (r"(?:-t|--time|-l (?:walltime|h_rt))[= ](?P<h>\d+):(?P<m>\d+):\d+", "timeout: {h}h{m}m"),
    (r"(?:-a|--array|-J|-t)[= ](?P<v>\d+-\d+)", "matrix: {{task: [FIRST, ..., LAST]}} of {v}"),
    (r"(?:-o|-e|--output|--error)\b.*", "(each job has a log: gpulaunch logs JOB)"),
    (r"(?:-d|--dependency)[= ].*", "needs: [JOB], or after: [JOB]"),
)


def refuse_other_text(name: str, source: str) -> None:
    """Raise Unfit for a text that is no script of sh or bash, with what it is."""
    path, first = PurePath(name.lower()), source.partition("\n")[0]
    known = (
        what for what, names in _BY_NAME.items() if (path.suffix or path.name) in names.split()
    )
    what = next(known, "")
    if first.startswith("#!"):
        words = [word for word in re.split(r"[\s/]+", first[2:]) if word and word[0] != "-"]
        what = "" if words and words[-1] in SHELLS else f"a script of {' '.join(words[-1:])}"
    elif not what and _KEYS.match(source):
        what = "YAML, or a Makefile"
    if what:
        raise Unfit(f"this is {what}; gpulaunch init reads scripts of sh and bash")


def advice(source: str) -> tuple[str, ...]:
    """Return what the directives of Slurm, PBS or SGE mean in a job file, one a line."""
    found = [match.groups() for match in map(_DIRECTIVE.match, source.split("\n")) if match]
    if not found:
        return ()
    lines = [f"its directives are for {_SYSTEMS[found[0][0]]}; in a job file:"]
    for _, text in found:
        directive = text.partition(" #")[0].strip()
        lines.append(f"    {directive:<40} {', '.join(dict.fromkeys(_meant(directive))) or '-'}")
    if found[0][0] == "SBATCH":
        lines.append("or run a job file on Slurm: gpulaunch run --engine slurm")
    return tuple(lines)


def _meant(directive: str) -> Iterator[str]:
    for pattern, meaning in _MEANINGS:
        if match := re.match(pattern, directive):
            yield meaning.format(**match.groupdict())
