"""A Python file: what is suspect in it, what it imports, which commands and options it has.

Text in, values out. A notebook's code cells come here too, as one text (see notebook).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain, islice

from msgspec.structs import replace

from gpulaunch.diagnose.lint import devices, options, shell, spread, wording
from gpulaunch.diagnose.lint.finding import Placed, Suspect, option_name
from gpulaunch.diagnose.lint.masks import Masks
from gpulaunch.diagnose.lint.scan import FileScan, Module
from gpulaunch.diagnose.lint.tree import PythonTree, last_name, parse, words_in

MAX_SUSPECTS = 100
"""Suspects of one file; more would be no help."""

# fmt: off
_WORTH = (
    ast.Call, ast.Assign, ast.AnnAssign, ast.Dict, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.Return, ast.For, ast.Subscript, ast.BinOp, ast.Delete, ast.FormattedValue,
)
# fmt: on
_SPEAKS = re.compile(
    r"cuda|gpu|device|_PORT|tcp://|parallel|VISIBLE|vllm|docker|podman|apptainer|singularity|\.to\(|spawn|\.system\(",
    re.I,
)
"""A file without any of these has nothing to find, whatever its tree."""
_STARTS = re.compile("subprocess|system|popen")
_STARTERS = re.compile(
    r"(?:os\.(?:system|popen)|subprocess\.(?:run|call|check_call|check_output"
    r"|Popen|getoutput|getstatusoutput))"
)
_COUNT_HELP = re.compile(r"number of|how many|num\b|count|whether|use (?:a |the )?gpu|enable", re.I)


def look(text: str, main: bool = True) -> FileScan:
    """Scan a file's code. `main`: it is run, so that `if __name__ == "__main__"` holds."""
    module = parse(text)
    if module is None:
        return FileScan()
    tree = PythonTree(module, main)
    lines = text.splitlines(keepends=True) if "\r" in text or "\f" in text else text.split("\n")
    found: dict[tuple[int, int, Suspect], Placed] = {}
    started = list(_started(tree)) if _STARTS.search(text) else []
    of_started = ((words[one.number], one.suspect) for words, scan in started for one in scan.found)
    for node, suspect in chain(_suspects(tree), of_started) if _SPEAKS.search(text) else ():
        placed = _placed(tree, node, suspect, lines)
        found.setdefault((placed.line, placed.column, suspect), placed)
        if len(found) >= MAX_SUSPECTS:
            break
    return FileScan(
        tuple(sorted(found.values(), key=lambda p: (p.line, p.column))),
        tuple(_imports(tree)),
        frozenset(_indices(tree)),
        tuple(run for _, scan in started for run in scan.runs)[:MAX_SUSPECTS],
    )


def suspects_in(code: str) -> Iterator[Suspect]:
    """Return what is suspect in code that is run, as by `python -c`."""
    return (placed.suspect for placed in look(code).placed)


def _suspects(tree: PythonTree) -> Iterator[tuple[ast.AST, Suspect]]:
    masks = Masks(tree)
    for node in tree.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and _imports_vllm(node):
            yield node, wording.reads_no_uuids("vllm")
        if not isinstance(node, _WORTH):
            continue
        for at, suspect in devices.check(tree, node):
            if not devices.compared(tree, at):
                yield from _reached(tree, node, at, suspect)
        yield from spread.check(tree, node)
        yield from masks.check(node)


def _imports_vllm(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not node.level and (node.module or "").partition(".")[0] == "vllm"
    return any(name.name.partition(".")[0] == "vllm" for name in node.names)


def _reached(
    tree: PythonTree, node: ast.AST, at: ast.AST, suspect: Suspect
) -> Iterator[tuple[ast.AST, Suspect]]:
    """Not behind a look at how many cards there are; behind an option, where that is set."""
    guarded = [one for one in dict.fromkeys((node, at)) if tree.counts_cards(one)]
    only = frozenset[str]().union(*map(tree.switches, guarded))
    if not guarded:
        yield at, suspect
    elif only and all(map(tree.switches, guarded)):
        yield at, replace(suspect, only=only)


def _placed(tree: PythonTree, node: ast.AST, suspect: Suspect, lines: list[str]) -> Placed:
    """`last` is where the statement ends: there the comment stands that silences it."""
    line = getattr(node, "lineno", 1) - 1
    last = (getattr(node, "end_lineno", None) or line + 1) - 1
    for child, _ in tree.above(node):
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            last = (child.end_lineno or last + 1) - 1
            break
    offset = getattr(node, "col_offset", 0)
    text = lines[line] if line < len(lines) else ""
    column = len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "replace"))
    return Placed(suspect, line, column, last)


def _imports(tree: PythonTree) -> Iterator[Module]:
    for node in tree.nodes:
        if isinstance(node, ast.Import):
            yield from (Module(name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(name.name for name in node.names)
            yield Module(node.module or "", node.level, names)


def _indices(tree: PythonTree) -> Iterator[str]:
    """Options that may mean several things, and here, by their declaration, a card's number."""
    for node in tree.nodes:
        if not isinstance(node, ast.Call) or last_name(node.func) not in ("add_argument", "option"):
            continue
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        counted = "help" in keywords and _COUNT_HELP.search(words_in(keywords["help"]))
        if counted or "action" in keywords or last_name(keywords.get("type", node)) == "bool":
            continue
        for argument in node.args:
            name = tree.value(argument)
            if name in options.AMBIGUOUS:
                yield option_name(str(name))


def _started(tree: PythonTree) -> Iterator[tuple[list[ast.expr], shell.ShellScan]]:
    """Yield the words of each command that the file starts, and what is in it.

    `os.system("CUDA_VISIBLE_DEVICES=1 python x.py")`; what is not known is an expansion.
    """
    calls = (node for node in tree.nodes if isinstance(node, ast.Call) and node.args)
    starters = (node for node in calls if _STARTERS.fullmatch(tree.dotted(node.func)))
    for node in islice(starters, MAX_SUSPECTS):
        first = node.args[0]
        if isinstance(first, ast.List | ast.Tuple):
            words = [_known(tree, item) for item in first.elts[:200]]
            yield first.elts, shell.look_words(words, suspects_in)
        elif len(text := _known(tree, first)) < 20_000:
            yield [first], shell.look(text, "sh", suspects_in)


def _known(tree: PythonTree, node: ast.expr) -> str:
    value = tree.value(node)
    if value is not None:
        return str(value)
    if tree.dotted(node) == "sys.executable":
        return "python"
    if isinstance(node, ast.JoinedStr):
        parts = node.values[:200]
        known = (tree.value(part) if isinstance(part, ast.Constant) else None for part in parts)
        return "".join("${_}" if part is None else str(part) for part in known)
    return "${_}"
