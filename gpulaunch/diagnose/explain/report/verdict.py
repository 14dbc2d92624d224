"""Reads the frames of an error once, and decides which tensors are odd.

The failing line is read as syntax, and its names are resolved by look-ups that run nothing.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .messages import MIXED, message, visible
from .search import (
    FROM_TEXT,
    INSTALLED,
    LIBRARY,
    NUMBERED,
    FrameSearch,
    TracebackStep,
    installed_program,
    is_torch,
    is_users,
    sort_of,
    variables,
)
from .tensors import SECONDS, SOURCE_SIZE, NamedTensor, Torch, attributes, is_code, mro, of, slots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


# ── The failing line ──────────────────────────────────────────────────────────────────────────────


class SourceFile:
    """A file's syntax, parsed once; empty where there is no source."""

    def __init__(self) -> None:
        linecache.checkcache()
        self.trees: dict[str, ast.Module | None] = {}

    def text(self, step: TracebackStep) -> str:
        return linecache.getline(step.file, step.line, step.frame.f_globals).strip()

    def tree(self, file: str, names: dict[str, Any] | None = None) -> ast.Module | None:
        if file not in self.trees:
            self.trees[file] = None
            text = "".join(linecache.getlines(file, names))
            if text and len(text) < SOURCE_SIZE:
                with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                    self.trees[file] = parsed(text)
        return self.trees[file]

    def failing(self, step: TracebackStep) -> list[ast.AST]:
        """Return the expression that failed (from Python 3.11 on), else its statement's parts."""
        tree = self.tree(step.file, step.frame.f_globals)
        if tree is None:
            return []
        span = position(step)
        statement: ast.stmt | None = None
        for node in ast.walk(tree):
            if span and span == (
                getattr(node, "lineno", None),
                getattr(node, "end_lineno", None),
                getattr(node, "col_offset", None),
                getattr(node, "end_col_offset", None),
            ) and isinstance(node, ast.expr):  # fmt: skip
                return [node]
            if (
                isinstance(node, ast.stmt)
                and node.lineno <= step.line <= (node.end_lineno or node.lineno)
                and (statement is None or node.lineno >= statement.lineno)
            ):
                statement = node
        return header(statement) if statement is not None else []

    def assignment(self, step: TracebackStep, name: str) -> tuple[int, ast.expr] | None:
        """Return the last plain assignment to a variable before a line of the same function."""
        tree = self.tree(step.file, step.frame.f_globals)
        if tree is None:
            return None
        scope: ast.AST = tree
        for node in ast.walk(tree):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and node.name == step.function
                and node.lineno <= step.line <= (node.end_lineno or 0)
            ):
                scope = node
        found: tuple[int, ast.expr] | None = None
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and node.lineno < step.line:
                named = any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
                if named and (found is None or node.lineno > found[0]):
                    found = (node.lineno, node.value)
        return found

    def attribute(self, owner: Any, name: str) -> tuple[str, int, ast.expr] | None:
        """Where a class of `owner` assigns `self.NAME`: file, line, value.

        A class's file is known from its `__init__`: its module may be gone from sys.modules.
        """
        for kind in mro(type(owner)):
            method = of(kind, "__dict__").get("__init__")
            code: Any = getattr(method, "__code__", None)
            tree = self.tree(code.co_filename, getattr(method, "__globals__", {})) if code else None
            for node in ast.walk(tree) if tree else ():
                if isinstance(node, ast.ClassDef) and node.name == of(kind, "__name__"):
                    for inner in ast.walk(node):
                        if isinstance(inner, ast.Assign) and any(
                            isinstance(target, ast.Attribute)
                            and target.attr == name
                            and isinstance(target.value, ast.Name)
                            for target in inner.targets
                        ):
                            return code.co_filename, inner.lineno, inner.value
        return None


def parsed(text: str) -> ast.Module:
    """Without the warnings that the program's own text gave when it was compiled."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def position(step: TracebackStep) -> tuple[int | None, int | None, int | None, int | None] | None:
    """(line, end line, column, end column) of the failing instruction, from Python 3.11 on."""
    positions = getattr(step.frame.f_code, "co_positions", None)
    if positions is None or step.lasti < 0:
        return None
    found = next(itertools.islice(positions(), step.lasti // 2, None), None)
    return tuple(found) if found and None not in found else None


def header(statement: ast.stmt) -> list[ast.AST]:
    """Return a statement without the statements inside it."""
    return [
        node
        for node in ast.iter_child_nodes(statement)
        if not isinstance(node, (ast.stmt, ast.excepthandler, ast.arguments))
    ]


def chains(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the longest names, attributes and subscripts in an expression, left to right."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        root: ast.expr = node
        inside: list[ast.AST] = []
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            inside += [root.slice] if isinstance(root, ast.Subscript) else []
            root = root.value
        if isinstance(root, ast.Name):
            yield node
        else:
            inside.append(root)
        for part in inside[::-1]:
            yield from chains(part)
    elif isinstance(node, ast.Lambda):
        return
    else:
        for inner in ast.iter_child_nodes(node):
            yield from chains(inner)


def factory(node: ast.expr) -> bool:
    """Tell whether an expression makes a tensor that has a `device` argument and was given none."""
    makers = "ones zeros empty full eye rand randn randint randperm arange linspace tensor"
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in makers.split()
        and not (
            node.func.attr == "tensor" and node.args and isinstance(node.args[0], ast.Constant)
        )
        and not any(word.arg == "device" for word in node.keywords)
    )


def unparse(node: ast.expr) -> str:
    """Return the expression's text, from Python 3.9 on; '' where it is long."""
    write = getattr(ast, "unparse", None)
    text = write(node) if write else ""
    return text if len(text) <= 80 else ""


NOTHING = object()


def resolve(node: ast.expr, step: TracebackStep) -> tuple[str, Any]:
    """Return what a chain stands for, by look-ups that run nothing: (its text, the object).

    A method's name stands for its object (`x.float` for x), except on `self`, whose methods are
    about anything; NOTHING where a look-up would have to run the program.
    """
    if isinstance(node, ast.Name):
        for names in (step.frame.f_locals, step.frame.f_globals):
            if node.id in names:
                return node.id, names[node.id]
        return node.id, NOTHING
    if isinstance(node, ast.Attribute):
        text, base = resolve(node.value, step)
        value = member(base, node.attr)
        if value is not NOTHING:
            return f"{text}.{node.attr}", value
        return (text, NOTHING) if text in ("self", "cls") else (text, base)
    if isinstance(node, ast.Subscript):
        text, base = resolve(node.value, step)
        index = node.slice
        index = getattr(index, "value", index) if type(index).__name__ == "Index" else index
        wanted = constant(index, step)
        held: Any = attributes(base).get("data") if sort_of(type(base)) == "data" else base
        if wanted is not NOTHING and dict in mro(type(held)) and dict.__contains__(held, wanted):
            return f"{text}[{wanted!r}]", dict.__getitem__(held, wanted)
        if type(wanted) is int and type(base) in (list, tuple) and -len(base) <= wanted < len(base):
            return f"{text}[{wanted}]", base[wanted]
        if type(wanted) is int and "_modules" in attributes(base):
            return f"{text}[{wanted}]", member(base, str(wanted))
        return text, base
    return "", NOTHING


def constant(node: ast.AST, step: TracebackStep) -> Any:
    """Return a subscript's value where it is a plain string or number."""
    if isinstance(node, ast.Name):
        value = step.frame.f_locals.get(node.id, NOTHING)
    else:
        value = getattr(node, "value", NOTHING) if isinstance(node, ast.Constant) else NOTHING
    return value if type(value) in (str, int) else NOTHING


def member(base: Any, name: str) -> Any:
    if base is NOTHING:
        return NOTHING
    own = attributes(base)
    for group in (own, *(own.get(part) for part in ("_parameters", "_buffers", "_modules"))):
        if isinstance(group, dict) and name in group:
            return dict.__getitem__(group, name)
    for at, value in slots(base):
        if at == name:
            return value
    fields = of(type(base), "__dict__").get("_fields")
    if isinstance(fields, tuple) and name in fields and tuple in mro(type(base)):
        return tuple.__getitem__(base, fields.index(name))
    return NOTHING


DEVICE = re.compile(r"\b(?:cuda|hip|xpu|npu|mps|hpu|meta|cpu)(?::\d+)?\b")


class FailingLine(NamedTuple):
    """The failing expression of a frame: the tensors and the devices that it names."""

    tensors: list[NamedTensor]
    devices: list[tuple[str, str]]


class DeviceErrorEvidence:
    """What the frames of an error hold, read once: the tensors, and which of them are odd.

    `where` is the user's innermost frame, `inner` the innermost that is not torch's: where it
    differs, a library's called by the user's. `looks` has what each frame's variables lead to.
    `home` is the device where things should be, `odd` are the tensors that are elsewhere.
    `given` has the keys of the tensors that met, if they are known.
    """

    def __init__(
        self,
        kind: str,
        error: BaseException,
        way: list[TracebackStep],
        program: str | None = None,
        whole: str = "",
        torch: Torch | None = None,
        given: Collection[int] = (),
    ) -> None:
        self.kind = kind
        self.error = error
        self.text = message(error)
        self.whole = whole
        self.elsewhere = told_elsewhere(error, whole)
        self.way = way
        self.torch = torch or Torch()
        self.given = given
        self.source = SourceFile()
        self.until = time.monotonic() + SECONDS
        self.cut = False
        self.users = [s for s in way if is_users(s, program)] or installed_program(way)
        outside = [step for step in way if not is_torch(step)]
        self.where = next(iter((self.users or outside or way)[-1:]), None)
        self.inner = outside[-1] if outside else self.where
        self.looks: dict[int, FrameSearch] = {}
        for step in sorted(way, key=lambda s: (s not in self.users, -way.index(s))):
            self.looks[id(step.frame)] = self.look(variables(step))
        self.line = self.read(self.where)
        self.inner_line = self.read(self.inner)
        self.home, self.odd = self.verdict()

    def look(self, roots: Iterable[tuple[str, Any]]) -> FrameSearch:
        look = FrameSearch(self.torch, self.until).at(roots)
        self.cut = self.cut or look.cut
        return look

    def held(self, step: TracebackStep | None) -> list[NamedTensor]:
        """Return the tensors that a frame's variables lead to."""
        return self.looks[id(step.frame)].tensors if step is not None else []

    def module_path(self, module: Any) -> str:
        """Return what the outermost frame that holds a module calls it; else the module's class."""
        for step in self.way:
            path = self.looks[id(step.frame)].modules.get(id(module))
            if path is not None:
                root, dot, rest = path.partition(".")
                owner = type(step.frame.f_locals.get(root))
                own = root == "self" and self.torch.sort(owner) == "module"
                return f"{of(owner, '__name__')}{dot}{rest}" if own else path
        return str(of(type(module), "__name__"))

    def read(self, step: TracebackStep | None) -> FailingLine:
        """Return the tensors and device names that a frame's failing expression mentions."""
        if step is None:
            return FailingLine([], [])
        roots: dict[str, Any] = {}
        literals: list[tuple[str, str]] = []
        for node in self.source.failing(step):
            for chain in chains(node):
                text, value = resolve(chain, step)
                if value is not NOTHING and not is_code(value):
                    roots.setdefault(text, value)
            literals += [
                ("", repr(inner.value))
                for inner in ast.walk(node)
                if isinstance(inner, ast.Constant) and type(inner.value) is str
                if NUMBERED.match(inner.value)
            ]
        look = self.look(roots.items())
        # What holds a tensor is known from the frame's variables, not from the line.
        held = {tensor.key: tensor for tensor in self.held(step) if tensor.role != "plain"}
        tensors = [held.get(tensor.key, tensor) for tensor in look.tensors]
        return FailingLine(tensors, literals + look.devices)

    # ── Which is odd ────────────────────────────────────────────────────────────────────────────

    def verdict(self) -> tuple[str, list[NamedTensor]]:
        """Return the device where things should be, and the tensors that are elsewhere."""
        if self.kind != MIXED:
            return "", []
        candidates = [
            self.of_operation(),
            self.line.tensors,
            self.inner_line.tensors,
            *([] if self.given else map(self.held, reversed(self.way))),
        ]
        for tensors in candidates:
            placed = [t for t in tensors if not t.zero_dim or t.device != "cpu"]
            if len({t.device for t in placed}) > 1:
                home = self.home_of(placed)
                return home, [t for t in placed if t.device != home]
        return self.single(self.line.tensors)

    def of_operation(self) -> list[NamedTensor]:
        """Return the tensors that met, by their names in the innermost frame that has them."""
        found: dict[int, NamedTensor] = {}
        for step in reversed(self.way):
            for tensor in self.held(step):
                if tensor.key in self.given:
                    found.setdefault(tensor.key, tensor)
        return list(found.values())

    def single(self, tensors: list[NamedTensor]) -> tuple[str, list[NamedTensor]]:
        """All of them on one device, and the message wants another one."""
        told = DEVICE.findall(self.text)
        placed = [t for t in tensors if t.device.split(":")[0] in ("cpu", "meta")]
        if placed and any(re.search(p, self.text) for p in (r"Triton", r"CUDA", r"GPU", r"cuda")):
            home = next((d for d in told if d.startswith("cuda:")), "cuda:0")
            return home, placed
        return "", []

    def home_of(self, tensors: list[NamedTensor]) -> str:
        told = re.search(r"different from other tensors on (\w+:?\d*)", self.text)
        devices = [t.device for t in tensors]
        if told and told.group(1) in devices and told.group(1) != "cpu":
            return told.group(1)  # torch names the first one, which is the CPU's now and then
        cards = sorted({d for d in devices if d not in ("cpu", "meta")})
        if len(cards) == 1:
            return cards[0]
        if cards and cards[0].endswith(":0") and visible() == 1:
            return cards[0]
        weight = {d: sum(t.size + 1 for t in tensors if t.device == d) for d in set(devices)}
        real = [d for d in sorted(weight) if d != "meta"]  # a meta tensor has no data to move
        return max(cards or real or ["meta"], key=lambda d: weight[d])


class FailingPlace(NamedTuple):
    """A line of a traceback that came as text, from another process or thread."""

    file: str
    line: int
    function: str
    source: str


def told_elsewhere(error: BaseException, whole: str) -> FailingPlace | None:
    """Return the innermost line of a traceback in an error's text, the user's own if any."""
    texts = [whole, message(error)]
    cause = error.__cause__
    if cause is not None and type(cause).__name__ == "_RemoteTraceback":
        texts.append(str(getattr(cause, "tb", "")))
    found = [match for text in texts for match in FROM_TEXT.findall(text)]
    if not found:
        return None
    own = [
        m
        for m in found
        if not re.search(r"[/\\]torch[/\\]", m[0])
        and not INSTALLED.search(m[0])
        and not m[0].startswith(LIBRARY)
    ]
    file, number, function, source = (own or found)[-1]
    return FailingPlace(file, int(number), function, source)
