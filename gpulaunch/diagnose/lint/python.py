"""A Python file: what is suspect in it, what it imports, and which commands it starts.

Text in, values out.

Cards by number: a text that is nothing but `cuda:1` is a device if it is handed to a call, or given
to a name or key that says so; elsewhere (messages, comparisons, choices) it is only a text. Numbers
count only if the call or the keyword leaves no doubt.

The mask: harmless, and so not found, is hiding all cards, passing on what the launcher set,
`setdefault`, and what happens only if the variable is not there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain, islice, takewhile
from typing import TypeAlias

from msgspec.structs import replace

from gpulaunch.diagnose.lint import finding, shell
from gpulaunch.diagnose.lint.commands import PythonTree, last_name, parse, parts_in, words_in
from gpulaunch.diagnose.lint.finding import (
    MASK,
    ORDER,
    PORT,
    FileScan,
    Module,
    Placed,
    Suspect,
    option_name,
)

Found: TypeAlias = Iterator[tuple[ast.AST, Suspect]]

MAX_SUSPECTS = 100
"""Suspects of one file; more would be no help."""

# fmt: off
_WORTH = (
    ast.Call, ast.Assign, ast.Dict, ast.Delete, ast.Constant, ast.JoinedStr, ast.BinOp,
    ast.FormattedValue,
)
# fmt: on
_SPEAKS = re.compile(
    r"cuda|gpu|device|_PORT|tcp://|VISIBLE|docker|podman|apptainer|singularity|\.to\(|\.system\(",
    re.I,
)
"""A file without any of these has nothing to find, whatever its tree."""
_STARTS = re.compile("subprocess|system|popen")
_STARTERS = re.compile(
    r"(?:os\.(?:system|popen)|subprocess\.(?:run|call|check_call|check_output"
    r"|Popen|getoutput|getstatusoutput))"
)


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
        tuple(run for _, scan in started for run in scan.runs)[:MAX_SUSPECTS],
    )


def _suspects(tree: PythonTree) -> Iterator[tuple[ast.AST, Suspect]]:
    masks = _Masks(tree)
    for node in tree.nodes:
        if not isinstance(node, _WORTH):
            continue
        for at, suspect in _devices(tree, node):
            if not tree.counts_cards(at) and not _compared(tree, at):
                yield at, suspect
        yield from masks.check(node)


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
            yield first.elts, shell.look_words(words)
        elif len(text := _known(tree, first)) < 20_000:
            yield [first], shell.look(text, "sh")


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


# ── cards by number ─────────────────────────────────────────────────────────────────────────────

_DEVICE_NAME = re.compile(
    r"(?:.*_)?(?:device|devices|dev|gpu|gpus|cuda|accelerator|map_location|device_map|main_gpu)"
    r"(?:_?(?:ids?|index|idx|str|string|name|map|type|0|1|2|3))?|(?:to_)?(?:cuda|gpu)",
)
_DEFAULTING = frozenset({"get", "getenv", "getattr", "pop", "setdefault"})
NONE = frozenset[str]()
# fmt: off
_OF_CUDA = frozenset({"cuda", "set_device", "select_device"})
_BY_NUMBER = frozenset({"to", "device", "get_device_properties", "mem_get_info", "synchronize"})
_KEYWORDS = frozenset({
    "device", "device_id", "device_ids", "device_index", "output_device", "gpu_id", "gpu_ids",
    "gpu_index", "gpu_device_id", "main_gpu", "cuda_device",
})
_TEXT_CALLS = frozenset({
    "print", "format", "info", "debug", "warning", "warn", "error", "exception", "critical", "log",
    "write", "startswith", "endswith", "replace", "removeprefix", "split", "rsplit", "strip",
    "partition", "index", "find", "count", "join", "match", "search", "sub", "fullmatch", "findall",
    "compile", "isinstance", "skip", "skipif", "fail", "xfail", "raises", "parametrize", "param",
    "add_argument", "option", "Option", "Argument", "argument", "Field", "field", "echo", "secho",
    "len", "lower", "upper", "exit", "pprint", "getenv", "setenv", "get", "getattr", "deprecated",
    "Literal", "repr", "str", "assertEqual", "assertIn", "assertTrue", "assertFalse", "hash",
    "encode", "remove", "discard", "repeat", "set", "frozenset", "sorted", "title", "markdown",
})
_FRAMEWORKS = frozenset({
    "torch", "tensorflow", "jax", "transformers", "cupy", "numba", "xgboost", "lightgbm",
    "catboost", "sentence_transformers", "diffusers", "llama_cpp", "lightning", "pytorch_lightning",
    "accelerate", "ultralytics", "pycuda", "deepspeed", "whisper", "esm", "dgl", "spacy", "vllm",
})
_OTHERS = frozenset({"sounddevice", "sd", "cv2", "pyaudio", "serial", "usb"})
# fmt: on
_NUMBERS = re.compile(r"\d{1,3}(?:[,:]\s*\d{1,3})*")


def _devices(tree: PythonTree, node: ast.AST) -> Found:
    """Yield what this node asks for by number: as a text like `cuda:1`, or a call by numbers."""
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
        text = tree.value(node)
        suspect = finding.device(text) if isinstance(text, str) else None
        if suspect is not None and (options := _options_instead(tree, node)) is not None:
            yield node, replace(suspect, unless=options)
    elif isinstance(node, ast.Call):
        yield from _numbers(tree, node)


def _compared(tree: PythonTree, node: ast.AST) -> bool:
    """Tell whether a value is only compared, or part of a message."""
    parents = takewhile(lambda one: not isinstance(one, ast.stmt), (p for _, p in tree.above(node)))
    statement = next((p for _, p in tree.above(node) if isinstance(p, ast.stmt)), None)
    only_told = isinstance(statement, ast.Assert | ast.Raise)
    return only_told or any(isinstance(parent, ast.Compare) for parent in parents)


def _options_instead(tree: PythonTree, node: ast.AST) -> frozenset[str] | None:
    """Return the options that set another device than this text; None if it is only a text."""
    listed, key = False, None
    for child, parent in tree.above(node):
        match parent:
            case ast.IfExp(test=test) if test is not child:
                continue
            case ast.BoolOp() | ast.Starred():
                continue
            case ast.List() | ast.Tuple() | ast.Set():
                listed = True
            case ast.keyword(arg=arg):
                key = arg or ""
            case ast.Call():
                if not _hands_on(parent, child, key):
                    return _options_of_call(tree, parent, listed, key)
                key = None
            case ast.Dict(keys=keys, values=values):
                named = [key for key, value in zip(keys, values, strict=True) if value is child]
                return NONE if named and _is_device(str(tree.value(named[0]))) else None
            case ast.arguments():
                names = [name for name, default in _defaults_of(parent) if default is child]
                return frozenset(names) if names and _is_device(names[0]) else None
            case ast.AnnAssign(target=target) if isinstance(tree.parents.get(parent), ast.ClassDef):
                return frozenset({last_name(target)})  # an option's default, perhaps
            case (
                ast.Assign(targets=[target, *_])
                | ast.AnnAssign(target=target)
                | ast.For(target=target)
            ):
                return NONE if not listed or _is_device(last_name(target)) else None
            case _:
                return None
    return None


def _is_device(name: str) -> bool:
    return _DEVICE_NAME.fullmatch(name.lower()) is not None


def _hands_on(call: ast.Call, child: ast.AST, key: str | None) -> bool:
    """Tell whether a call gives this argument on: `getenv("D", "cuda:1")`, `field(default=...)`."""
    name = last_name(call.func)
    if name in ("Option", "Argument", "field", "Field"):
        return key == "default" or call.args[:1] == [child]
    return name in _DEFAULTING and len(call.args) > 1 and child is call.args[-1]


def _options_of_call(
    tree: PythonTree, call: ast.Call, listed: bool, key: str | None
) -> frozenset[str] | None:
    """As _options_instead, for the argument `key` of a call; None for one by place."""
    name = last_name(call.func)
    if name in ("add_argument", "option") or name.startswith("DEFINE_"):
        names = [text for one in call.args if isinstance(text := tree.value(one), str)]
        if name.startswith("DEFINE_"):
            return frozenset(map(option_name, names[:1]))
        options = frozenset(option_name(one) for one in names if one.startswith("-"))
        return options if key == "default" else None
    if name in _TEXT_CALLS:
        return NONE if key and _is_device(key) else None
    if key is not None or listed:
        return NONE if _is_device(name if key is None else key) else None
    return NONE


def _defaults_of(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """Parameters that have a default, with it; Fire, Typer and their kin make options of them."""
    named = [*arguments.posonlyargs, *arguments.args]
    named = [*named[len(named) - len(arguments.defaults) :], *arguments.kwonlyargs]
    pairs = zip(named, [*arguments.defaults, *arguments.kw_defaults], strict=True)
    return [(argument.arg, default) for argument, default in pairs if default is not None]


def _numbers(tree: PythonTree, call: ast.Call) -> Found:
    """Yield the numbers of cards in a call: `.cuda(1)`, `set_device(1)`, `device_ids=[0, 1]`."""
    name = last_name(call.func)
    if name not in _OF_CUDA and not _uses_cards(tree, call):
        return
    wanted: list[tuple[str, ast.expr]] = []
    if name in _BY_NUMBER or name in _OF_CUDA:
        dot = "." if name in ("to", "cuda") else ""
        at = 1 if name == "device" and len(call.args) > 1 else 0
        wanted += [(f"{dot}{name}({{}})", one) for one in call.args[at : at + 1]]
    wanted += [(f"{one.arg}={{}}", one.value) for one in call.keywords if one.arg in _KEYWORDS]
    for shown, value in wanted:
        if number := _highest(tree, value):
            yield value, finding.index(number, shown.format(ast.unparse(value)[:40]), "0")


def _highest(tree: PythonTree, value: ast.expr) -> int:
    """Return the largest number in `1`, `[0, 1]` or `"0,1"`; 0 for anything else."""
    parts = value.elts[:100] if isinstance(value, ast.List | ast.Tuple) else [value]
    values = [tree.value(part) for part in parts]
    if len(values) == 1 and isinstance(values[0], str) and _NUMBERS.fullmatch(values[0]):
        values = [*map(int, re.findall(r"\d+", values[0]))]
    numbers = [one for one in values if type(one) is int and 0 < one < 1000]
    return max(numbers, default=0)


def _uses_cards(tree: PythonTree, call: ast.Call) -> bool:
    """Tell whether a number called `device` can be a card at all in this file."""
    roots = {name.partition(".")[0] for name in tree.aliases.values()}
    return bool(roots & _FRAMEWORKS) and tree.dotted(call.func).partition(".")[0] not in _OTHERS


# ── the mask, and the port ──────────────────────────────────────────────────────────────────────

_HIDDEN = frozenset({"", "-1", "NoDevFiles"})
_OWN = ("VISIBLE_DEVICES", "GPULAUNCH_", "SLURM_")
_AS_INDEX = frozenset({"set_device", "device", "cuda"})
_PARTS = frozenset({"split", "strip"})


class _Masks:
    """Checks nodes in the order of the source; knows which names hold what the launcher set."""

    def __init__(self, tree: PythonTree) -> None:
        self.tree = tree
        self.own = _passed_on(tree)

    def check(self, node: ast.AST) -> Found:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    yield from self._set(target, self.tree.value(target.slice), node.value)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and self._is_mask(target.slice):
                    yield target, finding.no_mask()
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None:
                    yield from self._set(key, self.tree.value(key), value)
        elif isinstance(node, ast.FormattedValue):
            yield from self._in_text(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
            yield from self._as_number(node)

    # ── setting ─────────────────────────────────────────────────────────────────────────────────

    def _set(self, at: ast.AST, key: object, value: ast.expr | None) -> Found:
        """`at` is where the key stands, `value` what is set."""
        text = self.tree.value(value)
        known = str(text) if text is not None else None
        if key == MASK:
            yield from self._mask(at, known, value)
        elif key == ORDER and known is not None and (found := finding.order(known)):
            yield at, found
        elif key == PORT and known and known.isdigit() and not self.tree.asks_for(at, PORT):
            yield from [(at, finding.port(f"{PORT}={known}"))] if known != "0" else ()

    def _mask(self, at: ast.AST, known: str | None, value: ast.expr | None) -> Found:
        if known in _HIDDEN or value is None or self.tree.asks_for(at, MASK):
            return
        words = words_in(value)
        passed_on = any(own in words for own in _OWN) or not self.own.isdisjoint(words.split())
        if not passed_on:
            yield at, finding.mask(only=self._option(at, value))

    def _option(self, at: ast.AST, value: ast.expr) -> frozenset[str]:
        """`if args.gpu: environ[...] = args.gpu`: only if the command line sets `--gpu`."""
        inside = list(parts_in(value, 100))
        names = {last_name(inner) for inner in inside} - {""}
        names -= {last_name(inner.value) for inner in inside if isinstance(inner, ast.Attribute)}
        asked = [words_in(test).split() for test in self.tree.tests_around(at)]
        return frozenset(option_name(name) for words in asked for name in names & set(words))

    def _is_mask(self, node: ast.expr) -> bool:
        return self.tree.value(node) == MASK

    def _call(self, node: ast.Call) -> Found:
        name = last_name(node.func)
        whole = self.tree.dotted(node.func)
        first = node.args[0] if node.args else None
        if whole == "os.putenv" and len(node.args) == 2:
            yield from self._set(node, self.tree.value(first), node.args[1])
        elif name in ("unsetenv", "pop") and first is not None and self._is_mask(first):
            if not self.tree.assigned_from(node):
                yield node, finding.no_mask()
        elif name in ("update", "dict"):
            for keyword in node.keywords:
                yield from self._set(keyword.value, keyword.arg, keyword.value)
        elif name == "init_process_group":
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from self._address(value)

    def _address(self, value: ast.expr) -> Found:
        text = self.tree.value(value)
        if isinstance(text, str) and text.startswith("tcp://"):
            port = text.rpartition(":")[2].partition("?")[0]
            if port.isdigit() and port != "0":
                yield value, finding.address(text[:80])

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def _in_text(self, node: ast.FormattedValue) -> Found:
        """`f"cuda:{os.environ[MASK]}"`."""
        parent = self.tree.parents.get(node)
        before = self.tree.value(parent.values[0]) if isinstance(parent, ast.JoinedStr) else None
        if before == "cuda:" and self._reads(node.value) == "mask":
            yield node.value, finding.mask_as_index()

    def _as_number(self, node: ast.Call) -> Found:
        """`int(os.environ[MASK])`, `map(int, mask.split(","))`."""
        name = self.tree.dotted(node.func)
        mapped = name == "map" and len(node.args) == 2 and last_name(node.args[0]) == "int"
        if not mapped and (name != "int" or len(node.args) != 1):
            return
        read = self._reads(node.args[-1])
        outer = self.tree.parents.get(node)
        if read == "part":
            yield node, finding.mask_as_numbers()
        elif read and isinstance(outer, ast.Call) and last_name(outer.func) in _AS_INDEX:
            yield node, finding.mask_as_index()
        elif read and not mapped:
            yield from ((node, suspect) for suspect in finding.mask_as_number())

    def _reads(self, node: ast.expr, depth: int = 0) -> str:
        """Return "mask" for the mask itself, "part" for a part or its parts, else ""."""
        if depth > 5:
            return ""
        if isinstance(node, ast.Name):
            sources = [value for name, value in self.tree.iterated if name == node.id]
            bound = self.tree.bound.get(node.id)
            if bound is not None:
                return self._reads(bound, depth + 1)
            return "part" if sources and all(self._reads(s, depth + 1) for s in sources) else ""
        if isinstance(node, ast.Subscript):
            if self.tree.dotted(node.value) == "os.environ":
                return "mask" if self._is_mask(node.slice) else ""
            return self._reads(node.value, depth + 1)
        if not isinstance(node, ast.Call):
            return ""
        if self.tree.dotted(node.func) in ("os.environ.get", "os.getenv"):
            return "mask" if node.args and self._is_mask(node.args[0]) else ""
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PARTS:
            return "part" if self._reads(node.func.value, depth + 1) else ""
        return ""


def _passed_on(tree: PythonTree) -> frozenset[str]:
    """Return the names whose value comes from what the launcher set, also through other names."""
    own: set[str] = set()
    for _ in range(3):
        before = len(own)
        for name, value in [*tree.assigned[:2000], *tree.iterated[:2000]]:
            words = words_in(value)
            if any(mark in words for mark in _OWN) or not own.isdisjoint(words.split()):
                own.add(name)
        if len(own) == before:
            break
    return frozenset(own)
