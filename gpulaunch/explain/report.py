"""What an uncaught device error was about: which tensors were where, the odd one, what to change.

Owns the words of the report and the look into a traceback's frames. It never raises, never runs
anything on a device, never waits for one (of a tensor it reads shape, dtype and device, never a
value), never calls a method or property of the program's own objects, and never prints a value
other than a device's name. Its work is bounded in objects, depth, time and output.

One file, standard library only, Python 3.8 and newer: `inject/sitecustomize.py` executes it by
path inside people's interpreters, `gpulaunch.torch` imports it. torch is looked up in sys.modules
and never imported.

The messages are torch's own: `aten/src/ATen/TensorUtils.cpp`, `ATen/core/.../check_device`,
`torch/_subclasses/fake_tensor.py`, `torch/serialization.py`, `torch/cuda/__init__.py`, and Triton's
launcher (`python/triton/.../driver.c`), as of torch 1.8 to 2.13.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import os
import re
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

HEAD = "gpulaunch explain:"
SECONDS = 2.0
OBJECTS = 40_000
DEPTH = 7
PER_CONTAINER = 256
PER_FRAME = 10
FRAMES = 12
LINES = 120
WIDTH = 300
SOURCE_SIZE = 4 << 20

# ── The error ───────────────────────────────────────────────────────────────────────────────────

MIXED, ORDINAL, LOADED, NO_GPU, SAME_CARD, MEMORY, KERNEL = (
    "mixed", "ordinal", "loaded", "no_gpu", "same_card", "memory", "kernel",
)  # fmt: skip

# First match wins: what a message is about, from what it says most precisely.
KINDS = [
    (LOADED, r"Attempting to deserialize object on (?:a )?\w+ device"),
    (LOADED, r"We ran into an error when deserializing the saved file"),
    (MIXED, r"[Ee]xpected (?:all tensors|tensors|all input tensors|\w+ and \w+|[\w, ]+) to be on "
            r"(?:the )?same device"),
    (MIXED, r"tensors? (?:must|need to) (?:all )?be on (?:the )?same device"),
    (MIXED, r"(?:must|to) (?:be on|have|be in) (?:the )?same device\b"),
    (MIXED, r"(?:Input|input) and \w+ tensors are not at the same device"),
    (MIXED, r"should be (?:either )?on (?:cpu or on )?the same device"),
    (MIXED, r"on the same device as the indexed tensor"),
    (MIXED, r"but expected (?:it|them) to be on (?:GPU|CPU|CUDA)"),
    (MIXED, r"is on (?:CPU|GPU), but expected"),
    (MIXED, r"Expected a '\w+' device type for generator but found"),
    (MIXED, r"Expected object of (?:device|backend) type \w+ but got (?:device|backend) type"),
    (MIXED, r"found two different devices"),
    (MIXED, r"expected \w+ to be on (?:the )?(?:same device|cpu)"),
    (MIXED, r"Input type \(.*?\) and (?:weight|bias) type \(.*?\) should be the same"),
    (MIXED, r"module must have its parameters and buffers on device"),
    (MIXED, r"input module (?:parameters locate in|must be on the same type of devices)"),
    (MIXED, r"only work with single-device/multiple-device GPU modules"),
    (MIXED, r"No backend type associated with device type"),
    (MIXED, r"Tensors must be CUDA and dense"),
    (MIXED, r"can't convert \S+ device type tensor to numpy"),
    (MIXED, r"storage of a tensor on device .* to a storage on different device"),
    (MIXED, r"Pointer argument \(at \d+\) cannot be accessed from Triton"),
    (MIXED, r"\b\w+ must be (?:on CUDA|a CUDA tensor|on a CUDA device)"),
    (MIXED, r"Cannot copy out of meta tensor"),
    (ORDINAL, r"invalid device ordinal"),
    (ORDINAL, r"Invalid (?:peer )?device id\b"),
    (ORDINAL, r"CUDA out of range|device >= 0 && device < num_gpus"),
    (NO_GPU, r"Torch not compiled with CUDA enabled"),
    (NO_GPU, r"PyTorch (?:is not linked with support for cuda|was compiled without CUDA|"
             r"not compiled with CUDA)"),
    (NO_GPU, r"No CUDA GPUs are available"),
    (NO_GPU, r"Found no NVIDIA driver on your system"),
    (NO_GPU, r"no CUDA-capable device is detected"),
    (NO_GPU, r"CUDA driver initialization failed"),
    (SAME_CARD, r"Duplicate GPU detected"),
    (MEMORY, r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    (KERNEL, r"device-side assert triggered|an illegal memory access was encountered"),
]  # fmt: skip
# Two halves of one message: the same kind of device on both sides is a matter of dtype.
INPUT_AND = re.compile(r"Input type \((.*?)\) and (?:weight|bias) type \((.*?)\)")
DEVICE = re.compile(r"\b(?:cuda|hip|xpu|npu|mps|hpu|meta|cpu)(?::\d+)?\b")
NUMBERED = re.compile(r"(?:cuda|hip|xpu|npu|hpu):(\d+)\Z")
INDEXES = re.compile(
    r"(?i)(?:(?:execution|output|main|target|current|local|global)_)?"
    r"(?:device|gpu|cuda|rank)(?:_?(?:id|idx|index|no))?\Z"
)
FROM_TEXT = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n\s+(\S.*)')


def report(
    exc_type: type[BaseException] | None,
    exc: BaseException | None,
    tb: TracebackType | None,
    *,
    program: str | None = None,
) -> str:
    """The report on an error, ending in a new line; '' when it is no device error.

    `program` is a directory whose files count as the user's own, wherever it lies; otherwise what
    is installed (site-packages, the standard library) does not. Never raises; takes about two
    seconds at the most.
    """
    try:
        found = recognised(exc, tb)
    except BaseException:  # Not even an error: hooks are called with anything.
        return ""
    if found is None:
        return ""
    try:
        words = DeviceErrorReport(
            *found, program=program, whole=message(exc) if exc else ""
        ).lines()
        return "\n".join(bounded(words)) + "\n"
    except BaseException as error:  # Whatever a stranger's objects do, the job ends as it would.
        return f"{HEAD} no report: {type(error).__name__} while it was made\n"


def tell(exc: BaseException, tb: TracebackType | None) -> None:
    """Write the report on an uncaught error to standard error; what the injected file calls.

    Raises whatever that stream raises; without one, as without one for a traceback, says nothing.
    """
    if type(exc).__name__ in ("ProcessRaisedException", "ChildFailedError"):
        return  # torch's words for a child's error, which the child has reported itself.
    text = report(type(exc), exc, tb)
    stream = sys.stderr
    if stream is not None and text:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


def kind_of(text: str) -> str | None:
    """What a message is about; None when it is about no device."""
    for kind, pattern in KINDS:
        if re.search(pattern, text):
            halves = INPUT_AND.search(text)
            if halves and len({accelerated(half) for half in halves.groups()}) < 2:
                continue
            return kind
    return None


def accelerated(type_name: str) -> bool:
    """Whether `torch.cuda.FloatTensor` or `CUDABFloat16Type` is not on the CPU."""
    return bool(re.search(r"(?i)cuda|hip|xpu|npu|mps|hpu", type_name))


def message(exc: BaseException) -> str:
    """What it was raised with, bounded. Not str(): of several arguments that is their repr."""
    return "\n".join(arg for arg in exc.args if str in mro(type(arg)))[:200_000]


def recognised(
    exc: BaseException | None, tb: TracebackType | None
) -> tuple[str, BaseException, list[TracebackStep]] | None:
    """The device error among an exception, its causes, contexts and members, and its frames."""
    if exc is None or type(exc).__module__ == "gpulaunch.torch.errors":
        return None  # the latter say all of it themselves
    # (exception, frames from the outermost one)
    todo: deque[tuple[BaseException, list[TracebackStep]]] = deque([(exc, steps(tb))])
    seen: set[int] = set()
    best: tuple[str, BaseException, list[TracebackStep]] | None = None
    while todo and len(seen) < 200:
        error, way = todo.popleft()
        if id(error) in seen:
            continue
        seen.add(id(error))
        kind = kind_of(message(error))
        if kind == LOADED and "ran into an error" in message(error) and not baked_in(way)[1]:
            kind = None  # torch.export.load says no more; nothing in the file is about a card.
        # The innermost of a chain of wrappers that repeat its text has the frames.
        if kind and (best is None or (best[0] == kind and is_inner(error, best[1]))):
            best = (kind, error, way)
        for inner in (error.__cause__, error.__context__, *members(error)):
            if isinstance(inner, BaseException):
                todo.append((inner, continued(way, steps(inner.__traceback__))))
    return best


# Of a device in torch.export's archives (torch/_export/serde/schema.py).
RECORD = re.compile(r'"type": ?"(cuda|hip|xpu|npu|hpu)", ?"index": ?(\d{1,4})\b')


def baked_in(way: list[TracebackStep]) -> tuple[str, list[str]]:
    """The file that torch.export.load was given, and the cards in it that are not here."""
    for step in way:
        if step.frame.f_globals.get("__name__") == "torch.export" and step.function == "load":
            file = step.frame.f_locals.get("f")
            if type(file) is str:
                return file, absent_cards(file)
    return "", []


def absent_cards(file: str) -> list[str]:
    """Cards that a program's JSON records name and that this process does not see, by the mask."""
    import zipfile

    found: set[tuple[str, int]] = set()
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist()[:PER_CONTAINER]:
                if member.filename.endswith(".json") and member.file_size < SOURCE_SIZE:
                    text = archive.read(member).decode("utf-8", "replace")
                    found.update((kind, int(index)) for kind, index in RECORD.findall(text))
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return []
    return [f"{kind}:{index}" for kind, index in sorted(found) if index >= (visible() or 1)]


def is_inner(error: BaseException, outer: BaseException) -> bool:
    """Whether `error` is where `outer` comes from. A pickled one has lost its frames."""
    return error.__traceback__ is not None and (
        error is outer.__cause__ or error is outer.__context__
    )


def members(exc: BaseException) -> list[BaseException]:
    """Those of an ExceptionGroup (also of the backport)."""
    if not any(of(base, "__name__") == "BaseExceptionGroup" for base in mro(type(exc))):
        return []
    found = getattr(exc, "exceptions", ())
    return list(found)[:50] if isinstance(found, (tuple, list)) else []


class TracebackStep(NamedTuple):
    """A frame of a traceback, at the line where it was."""

    frame: FrameType
    line: int
    lasti: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def function(self) -> str:
        return self.frame.f_code.co_name


def steps(tb: TracebackType | None) -> list[TracebackStep]:
    """A traceback's frames, outermost first; of very deep ones, both ends."""
    found: list[TracebackStep] = []
    while tb is not None and len(found) < 20_000:
        found.append(TracebackStep(tb.tb_frame, tb.tb_lineno, tb.tb_lasti))
        tb = tb.tb_next
    return found if len(found) <= 200 else found[:50] + found[-150:]


def continued(outer: list[TracebackStep], inner: list[TracebackStep]) -> list[TracebackStep]:
    """An inner exception's traceback begins where it was caught: its callers are the outer's.

    Where both share no frame (torch.compile, another thread), the outer's still lead there.
    """
    if inner:
        for at, step in enumerate(outer):
            if step.frame is inner[0].frame:
                return outer[:at] + inner
    return outer + inner


# ── Tensors, found without touching them ────────────────────────────────────────────────────────


class NamedTensor(NamedTuple):
    """A tensor or generator: the expression that reaches it and what may be said of it.

    `role`: parameter, buffer, attribute (of a module, which `.to()` passes by), hidden (in a module
    that its parent does not know of), generator or plain. `owner` is the module that holds it.
    """

    path: str
    device: str
    shape: str
    dtype: str
    role: str
    key: int
    zero_dim: bool
    size: int
    owner: Any
    owner_path: str

    @property
    def name(self) -> str:
        """The attribute's name in its owner."""
        rest = self.path[len(self.owner_path) :].lstrip(".")
        return re.split(r"[.\[]", rest, maxsplit=1)[0]


def mro(kind: type) -> tuple[type, ...]:
    """A type's bases, past any metaclass of the program's."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def of(kind: type, name: str) -> Any:
    """A type's own attribute, past any metaclass of the program's."""
    return type.__getattribute__(kind, name)


def attributes(obj: Any) -> dict[str, Any]:
    """The instance's own attributes, past any `__getattr__` and property of the program's."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except Exception:
        return {}
    return found if type(found) is dict else {}


class Slotted:
    __slots__ = ("slot",)


MEMBER = type(vars(Slotted)["slot"])


def slots(obj: Any) -> Iterator[tuple[str, Any]]:
    for kind in mro(type(obj)):
        for name, member in list(of(kind, "__dict__").items())[:PER_CONTAINER]:
            if type(member) is MEMBER and of(kind, "__module__") != "builtins":
                try:
                    yield name, member.__get__(obj, type(obj))
                except Exception:
                    continue


class Torch:
    """The program's torch, or nothing: its classes, by plain look-up."""

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        names = vars(torch) if torch is not None else {}
        nn = names.get("nn")
        self.there = torch is not None
        self.tensor = names.get("Tensor")
        self.generator = names.get("Generator")
        self.device = names.get("device")
        self.module = getattr(nn, "__dict__", {}).get("Module")
        self.parameter = getattr(nn, "__dict__", {}).get("Parameter")
        self.version = str(names.get("__version__", ""))
        version = names.get("version")
        builds = getattr(version, "__dict__", {})
        self.cuda = builds.get("cuda") or builds.get("hip")
        # Reading `.shape` of a subclass would run its `__torch_function__`, and so the program.
        core = getattr(names.get("_C"), "__dict__", {})
        self.quietly: Callable[[], Any] | None = core.get("DisableTorchFunction")

    def sort(self, kind: type) -> str:
        """What objects of a type are to a look; '' where torch does not say."""
        sorts = {
            "tensor": self.tensor,
            "module": self.module,
            "generator": self.generator,
            "device": self.device,
        }
        for base in mro(kind):
            for sort, other in sorts.items():
                if base is other:
                    return sort
        return ""


# Objects of these are not opened: they hold no tensors, or a great deal beside.
STRANGERS = (
    "numpy jax jaxlib tensorflow cupy pandas scipy polars pyarrow mxnet paddle builtins io os re "
    "threading _thread socket logging asyncio pathlib subprocess multiprocessing concurrent "
    "datetime decimal types typing abc enum weakref ctypes select queue tqdm rich"
)
PLAIN = (type(None), bool, complex, float, bytes, bytearray, type, range, slice)
# What an object is to a look, by the first of its bases that says so.
SORTS: list[tuple[str, type]] = [
    *(("plain", kind) for kind in PLAIN),
    ("text", str), ("number", int), ("dict", dict), ("tuple", tuple), ("list", list),
    ("deque", deque), ("set", set), ("frozenset", frozenset),
]  # fmt: skip
NAMED = {
    "functools.partial": "partial",
    "collections.UserDict": "data",
    "collections.UserList": "data",
}
ITERATORS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple.__iter__,
    "list": list.__iter__,
    "deque": deque.__iter__,
    "set": set.__iter__,
    "frozenset": frozenset.__iter__,
}


class FrameSearch:
    """One look at a frame's variables, breadth first, so that the shortest path names a tensor."""

    def __init__(self, torch: Torch, until: float, objects: int = OBJECTS) -> None:
        self.torch = torch
        self.until = until
        self.left = objects
        self.tensors: list[NamedTensor] = []
        self.devices: list[tuple[str, str]] = []
        self.cut = False
        self.met: set[int] = set()
        self.queue: deque[tuple[Any, str, str, int, Any, str]] = deque()
        self.sorts: dict[int, str] = {}

    def sort(self, kind: type) -> str:
        """What objects of a type are to a look; types are compared by identity alone."""
        known = self.sorts.get(id(kind))
        if known is None:
            known = self.sorts[id(kind)] = self.torch.sort(kind) or sort_of(kind)
        return known

    def at(self, roots: Iterable[tuple[str, Any]]) -> FrameSearch:
        for name, value in roots:
            self.queue.append((value, name, "plain", 0, None, ""))
        while self.queue:
            self.left -= 1
            if self.left < 0 or (self.left % 64 == 0 and time.monotonic() > self.until):
                self.cut = True
                break
            try:
                self.one(*self.queue.popleft())
            except Exception:
                continue  # One strange object hides only itself.
        return self

    def one(self, obj: Any, path: str, role: str, depth: int, owner: Any, where: str) -> None:
        sort = self.sort(type(obj))
        if sort in ("text", "number"):
            self.named(obj, path, sort)
            return
        if sort in ("plain", "stranger") or id(obj) in self.met:
            return
        self.met.add(id(obj))
        if sort == "tensor":
            self.tensors.append(self.seen(obj, path, role, owner, where))
        elif sort == "generator":
            self.tensors.append(
                NamedTensor(path, str(obj.device), "", "", "generator", id(obj), False, 0, None, "")
            )
        elif sort == "device":
            self.devices.append((path, str(obj)))
        elif sort == "module":
            self.open_module(obj, path, role, depth + 1)
        elif depth < DEPTH:
            for name, value in self.open(obj, path, sort):
                self.queue.append((value, name, role, depth + 1, owner, where))

    def named(self, obj: Any, path: str, sort: str) -> None:
        """Devices that are spelt out: 'cuda:3', or 3 under a name like local_rank."""
        if sort == "text":
            if type(obj) is str and NUMBERED.match(obj):
                self.devices.append((path, repr(obj)))
        elif type(obj) is int and INDEXES.match(re.split(r"[.\[]", path)[-1]):
            self.devices.append((path, str(obj)))

    def seen(self, obj: Any, path: str, role: str, owner: Any, where: str) -> NamedTensor:
        def read(attribute: str) -> Any:
            try:
                return getattr(obj, attribute)
            except Exception:
                return None

        guard = self.torch.quietly() if self.torch.quietly else None
        if guard is not None:
            guard.__enter__()
        try:
            shape, dtype, device = read("shape"), read("dtype"), read("device")
        finally:
            if guard is not None:
                guard.__exit__(None, None, None)
        if role == "plain" and any(base is self.torch.parameter for base in mro(type(obj))):
            role = "parameter"
        sizes = tuple(shape) if shape is not None else None
        size = getattr(dtype, "itemsize", 0) or 0
        for side in sizes or ():
            size = size * side if type(side) is int else 0
        return NamedTensor(
            path,
            str(device),
            "(?)" if sizes is None else "(" + ", ".join(map(str, sizes)) + ")",
            str(dtype).replace("torch.", ""),
            role,
            id(obj),
            sizes == (),
            size,
            owner,
            where,
        )

    def open(self, obj: Any, path: str, sort: str) -> Iterator[tuple[str, Any]]:
        """What is in an object, by the expression that reaches it."""
        if sort == "dict":
            for n, (k, v) in self.first(dict.items(obj)):
                yield f"{path}[{key(k, n)}]", v
        elif sort in ITERATORS:
            fields: Any = of(type(obj), "__dict__").get("_fields") if sort == "tuple" else ()
            form = "{{{}}}" if "set" in sort else "[{}]"
            for n, v in self.first(ITERATORS[sort](obj)):
                named = isinstance(fields, tuple) and n < len(fields)
                yield path + (f".{fields[n]}" if named else form.format(n)), v
        elif sort == "partial":
            yield f"{path}.args", obj.args
            yield f"{path}.keywords", obj.keywords
        elif sort == "data":
            yield path, attributes(obj).get("data")  # Also Hugging Face's BatchEncoding.
        else:
            for name, value in itertools.chain(list(attributes(obj).items()), slots(obj)):
                # An optimiser's groups are the model's own parameters once more.
                if name != "param_groups":
                    yield f"{path}.{name}", value

    def first(self, items: Iterable[Any], most: int = PER_CONTAINER) -> list[tuple[int, Any]]:
        """The first ones, taken in one step: another thread's change cannot come between."""
        found = list(enumerate(itertools.islice(items, most + 1)))
        self.cut = self.cut or len(found) > most
        return found[:most]

    def open_module(self, obj: Any, path: str, role: str, depth: int) -> None:
        own = attributes(obj)
        hidden = "hidden" if role in ("attribute", "hidden") else "parameter"
        for group, as_role in (("_parameters", hidden), ("_buffers", "buffer")):
            if isinstance(own.get(group), dict):
                as_role = "hidden" if hidden == "hidden" else as_role
                for _, (name, value) in self.first(dict.items(own[group])):
                    self.queue.append((value, f"{path}.{name}", as_role, depth, obj, path))
        if isinstance(own.get("_modules"), dict):
            below = "hidden" if hidden == "hidden" else "plain"
            for _, (name, value) in self.first(dict.items(own["_modules"]), 4096):
                self.queue.append((value, child(path, name), below, 0, obj, path))
        for name, value in list(own.items())[:PER_CONTAINER]:
            if name not in ("_parameters", "_buffers", "_modules") and "_hooks" not in name:
                self.queue.append((value, f"{path}.{name}", "attribute", depth, obj, path))


def sort_of(kind: type) -> str:
    """What objects of a type that is not torch's are to a look."""
    bases = mro(kind)
    for base in bases:
        for sort, other in SORTS:
            if base is other:
                return sort
        sort = NAMED.get(f"{of(base, '__module__')}.{of(base, '__name__')}", "")
        if sort:
            return sort
    stranger = str(of(kind, "__module__")).split(".", 1)[0] in STRANGERS.split()
    return "stranger" if stranger or is_code_type(kind) else "object"


def key(value: Any, number: int) -> str:
    if type(value) is str:
        return repr(value[:40])
    return repr(value) if type(value) in (int, bool, float) else f"#{number}"


def child(path: str, name: Any) -> str:
    name = str(name)
    if name.isdigit():
        return f"{path}[{name}]"
    return f"{path}.{name}" if name.isidentifier() else f"{path}._modules[{name!r}]"


# ── The line, read as syntax ────────────────────────────────────────────────────────────────────


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
        """The expression that failed (Python 3.11 knows which), else what its statement holds."""
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
        """The last plain assignment to a variable before a line, in the same function."""
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
    """A statement without the statements inside it."""
    return [
        node
        for node in ast.iter_child_nodes(statement)
        if not isinstance(node, (ast.stmt, ast.excepthandler, ast.arguments))
    ]


def chains(node: ast.AST) -> Iterator[ast.expr]:
    """The longest names, attributes and subscripts in an expression, left to right."""
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


NOTHING = object()


def resolve(node: ast.expr, step: TracebackStep) -> tuple[str, Any]:
    """What a chain stands for, by look-ups that run nothing: (its text, the object).

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
    """A subscript's value where it is a plain string or number."""
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


# ── Whose frame it is ───────────────────────────────────────────────────────────────────────────

LIBRARY = os.path.dirname(getattr(os, "__file__", "")) or "<frozen"
INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages)[/\\]")
# What an installed program is started by, rather than what it is.
STARTERS = "click typer fire hydra absl accelerate lightning pytorch_lightning jaxtyping"


def is_users(step: TracebackStep, program: str | None) -> bool:
    file = step.file
    if program and (file + os.sep).startswith(os.path.join(program, "")):
        return True
    if INSTALLED.search(file) or file.startswith((LIBRARY + os.sep, "<frozen")) or is_torch(step):
        return False
    if file.startswith("<"):
        return step.frame.f_globals.get("__name__") == "__main__"
    # A console entry point's wrapper is nobody's program.
    wrapper = os.path.basename(os.path.dirname(file)) == "bin" and not file.endswith(".py")
    return not wrapper


def installed_program(way: list[TracebackStep]) -> list[TracebackStep]:
    """The frames of the installed package that a console entry point started."""
    for step in way:
        found = list(INSTALLED.finditer(step.file))
        if found and not is_torch(step):
            end = found[-1].end()
            package = step.file[:end] + re.split(r"[/\\.]", step.file[end:], maxsplit=1)[0]
            if os.path.basename(package) not in STARTERS.split():
                beneath = re.compile(re.escape(package) + r"[/\\.]")
                return [other for other in way if beneath.match(other.file)]
    return []


def is_torch(step: TracebackStep) -> bool:
    name = str(step.frame.f_globals.get("__name__", ""))
    return name.split(".", 1)[0] in ("torch", "torchgen", "triton", "functorch", "gpulaunch")


# ── The report ──────────────────────────────────────────────────────────────────────────────────


class FailingLine(NamedTuple):
    """The failing expression of a frame: the tensors that it names."""

    step: TracebackStep
    tensors: list[NamedTensor]
    devices: list[tuple[str, str]]


class DeviceErrorReport:
    """Reads the frames once, decides which tensors are odd, and says so."""

    def __init__(
        self,
        kind: str,
        error: BaseException,
        way: list[TracebackStep],
        program: str | None = None,
        whole: str = "",
    ) -> None:
        self.kind = kind
        self.error = error
        self.text = message(error)
        self.whole = whole
        self.elsewhere = False
        self.way = way
        self.torch = Torch()
        self.source = SourceFile()
        self.until = time.monotonic() + SECONDS
        self.cut = False
        self.users = [s for s in way if is_users(s, program)] or installed_program(way)
        outside = [step for step in way if not is_torch(step)]
        self.where = next(iter((self.users or outside or way)[-1:]), None)
        # The innermost line that is not torch's: where it differs, a library called by the user's.
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

    def read(self, step: TracebackStep | None) -> FailingLine | None:
        """The tensors and device names that a frame's failing expression mentions."""
        if step is None:
            return None
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
        known = {tensor.key: tensor for tensor in self.looks[id(step.frame)].tensors}
        held = {key: tensor for key, tensor in known.items() if tensor.role != "plain"}
        tensors = [held.get(tensor.key, tensor) for tensor in look.tensors]
        return FailingLine(step, tensors, literals + look.devices)

    # ── Which is odd ────────────────────────────────────────────────────────────────────────────

    def verdict(self) -> tuple[str, list[NamedTensor]]:
        """(the device where things should be, the tensors that are elsewhere)."""
        if self.kind != MIXED:
            return "", []
        candidates = [
            self.line.tensors if self.line else [],
            self.inner_line.tensors if self.inner_line else [],
            *(self.looks[id(step.frame)].tensors for step in reversed(self.way)),
        ]
        for tensors in candidates:
            placed = [t for t in tensors if not t.zero_dim or t.device != "cpu"]
            if len({t.device for t in placed}) > 1:
                home = self.home_of(placed)
                return home, [t for t in placed if t.device != home]
        return self.single(candidates[0])

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
        return max(cards or sorted(weight), key=lambda d: weight[d])

    # ── Words ───────────────────────────────────────────────────────────────────────────────────

    def lines(self) -> Iterator[str]:
        kind, text = type(self.error).__name__, summary(self.text)
        yield f"{HEAD} {text}" if text.startswith(kind + ":") else f"{HEAD} {kind}: {text}"
        yield from self.told_elsewhere()
        if self.where is not None:
            yield from self.place(self.where, self.line, "where")
            inner = self.inner
            held = self.inner_line and (self.inner_line.tensors or self.inner_line.devices)
            if inner is not None and inner.frame is not self.where.frame and held:
                yield from self.place(inner, self.inner_line, "inside")
        yield from self.advice()
        yield from self.others()
        if self.cut:
            yield (
                f"  not everything was looked at: {PER_CONTAINER} entries of a container, "
                f"{OBJECTS:,} objects of a frame, {SECONDS:g} seconds"
            )
        yield f"{HEAD} end of the report"

    def told_elsewhere(self) -> Iterator[str]:
        """The lines of a traceback that came as text, from another process or thread."""
        texts = [self.whole, self.text]
        cause = self.error.__cause__
        if cause is not None and type(cause).__name__ == "_RemoteTraceback":
            texts.append(str(getattr(cause, "tb", "")))
        found = [match for text in texts for match in FROM_TEXT.findall(text)]
        if not found:
            return
        own = [
            m
            for m in found
            if not re.search(r"[/\\]torch[/\\]", m[0])
            and not INSTALLED.search(m[0])
            and not m[0].startswith(LIBRARY)
        ]
        file, number, function, source = (own or found)[-1]
        self.elsewhere = True
        if "from user code" in self.whole:
            yield "  torch.compile was at:"
        else:
            yield "  it happened in another process or thread, whose variables are gone; there:"
        yield f"    {short(file)}:{number}, in {function}: {source}"

    def place(self, step: TracebackStep, line: FailingLine | None, word: str) -> Iterator[str]:
        yield f"  {word}: {short(step.file)}:{step.line}, in {step.function}"
        text = self.source.text(step)
        if text:
            yield f"      {text}"
        if line and line.tensors:
            yield "    on that line:"
            yield from self.table(line.tensors)
        if line and self.kind in (ORDINAL, LOADED, NO_GPU):
            for path, value in line.devices[:PER_FRAME]:
                yield f"      {path} = {value}" if path else f"      {value}"

    def table(self, tensors: list[NamedTensor]) -> Iterator[str]:
        """Tensors by line; a module of many as a count by device and the odd ones."""
        odd = {t.key for t in self.odd}
        width = min(40, max((len(t.path) for t in tensors), default=0))
        for root, group in grouped(tensors):
            marked = [t for t in group if t.key in odd]
            shown = group
            if len(group) > PER_FRAME:
                yield f"      {root}: {counts(group)}"
                common = most_common(t.device for t in group)
                shown = [t for t in group if t.device != common]
                if self.kind == MEMORY:
                    shown = sorted(group, key=lambda t: -t.size)[:PER_FRAME]
            shown = sorted(shown, key=lambda t: t.key not in odd) if marked else shown
            for tensor in shown[:PER_FRAME]:
                mark = "   <-- odd" if tensor.key in odd else ""
                yield "      " + described(tensor, width) + mark
            if len(shown) > PER_FRAME:
                yield f"      ... and {len(shown) - PER_FRAME:,} more of {root}"

    def others(self) -> Iterator[str]:
        """What every frame held, the user's first; of a library's, what was not shown before."""
        told: list[tuple[TracebackStep, list[NamedTensor]]] = []
        met: set[int] = set()
        for step in self.users[::-1] + [s for s in self.way[::-1] if s not in self.users]:
            tensors = self.looks[id(step.frame)].tensors
            if step not in self.users:
                tensors = [t for t in tensors if t.key not in met]
            met.update(t.key for t in tensors)
            if tensors:
                told.append((step, tensors))
        if told:
            yield "  every frame's tensors, from the innermost out, the libraries' last:"
        for step, tensors in told[:FRAMES]:
            yield f"    {short(step.file)}:{step.line}, in {step.function}"
            yield from self.table(tensors)
        if len(told) > FRAMES:
            yield f"    ... and {len(told) - FRAMES} frames more"

    def advice(self) -> Iterator[str]:
        words = {
            MIXED: self.mend_mixed,
            ORDINAL: self.mend_ordinal,
            LOADED: self.mend_loaded,
            NO_GPU: self.mend_no_gpu,
            SAME_CARD: self.mend_same_card,
            MEMORY: self.mend_memory,
            KERNEL: self.mend_kernel,
        }
        found = list(dict.fromkeys(words[self.kind]()))
        if found:
            yield "  to change:"
        for line in found[: 3 * PER_FRAME]:
            yield f"    {line}"

    def mend_mixed(self) -> Iterator[str]:
        if "device type tensor to numpy" in self.text:
            yield f"{self.here()}: .cpu() before .numpy()"
            return
        inline = list(self.mend_inline())
        yield from inline
        if not self.odd and not inline:
            yield (
                "that line: bring what it names to one device"
                if self.elsewhere
                else "none of the tensors in sight is odd: bring inputs and model to one device, "
                "e.g. x = x.to(next(model.parameters()).device)"
            )
            return
        whole = [g for g in by_owner(self.odd) if self.is_whole(g)]
        told = {t.key for g in whole for t in g}
        for owner, group in self.merged(whole):
            made = self.made(owner)
            yield f"{self.here()}: {owner} is on {group[0].device} with all it has"
            if made:
                yield f"  {made[0]}: {owner} = {made[1] or '(...)'}.to({self.home!r})"
            else:
                yield f"  {owner}.to({self.home!r}), once, where it is made"
        for tensor in [t for t in self.odd if t.key not in told][:PER_FRAME]:
            yield from self.mend(tensor)
        yield from self.mend_next()

    def mend_next(self) -> Iterator[str]:
        """What else in that frame is elsewhere: the next line may meet it."""
        odd = {t.key for t in self.odd}
        look = self.looks[id(self.where.frame)] if self.where else None
        rest = [
            t
            for t in (look.tensors if look else ())
            if t.device != self.home and not t.zero_dim and t.key not in odd
        ]
        if rest:
            names = ", ".join(t.path for t in rest[:5]) + ", ..." * (len(rest) > 5)
            yield f"not on {self.home} either: {names}"

    def mend_inline(self) -> Iterator[str]:
        """Tensors that the line makes on the CPU as it goes, which no variable names."""
        for node in self.source.failing(self.where) if self.where else ():
            for call in ast.walk(node):
                if isinstance(call, ast.expr) and factory(call):
                    text = unparse(call)
                    if text:
                        given = f"{text[:-1]}, device={self.target()})"
                        yield f"{self.here()}: {text} is made on the CPU: {given}"

    def merged(self, whole: list[list[NamedTensor]]) -> list[tuple[str, list[NamedTensor]]]:
        """Odd modules by path; those of one variable that is odd altogether, as that variable."""
        line = dict(grouped(self.line.tensors if self.line else []))
        found: dict[str, list[NamedTensor]] = {}
        for group in whole:
            root = re.split(r"[.\[]", group[0].path, maxsplit=1)[0]
            altogether = all(t in self.odd for t in line.get(root, ()))
            path = root if altogether and root != "self" else group[0].owner_path
            found.setdefault(path, []).extend(group)
        return list(found.items())

    def is_whole(self, group: list[NamedTensor]) -> bool:
        """Whether a module's own tensors are all on the odd side: it is the module that is odd."""
        owner = group[0].owner
        if owner is None or group[0].role in ("attribute", "plain", "hidden"):
            return False
        own = FrameSearch(self.torch, self.until, 2000)
        own.open_module(owner, "", "plain", 0)
        own.queue = deque(item for item in own.queue if item[2] in ("parameter", "buffer"))
        return {t.device for t in own.at(()).tensors} == {group[0].device}

    def made(self, path: str) -> tuple[str, str] | None:
        """Where a variable or an attribute of `self` that the user's line names is assigned."""
        step = self.where
        if step is None or not all(part.isidentifier() for part in path.split(".")):
            return None
        parent, _, name = path.rpartition(".")
        if not parent:
            found = self.source.assignment(step, name)
            return (f"{short(step.file)}:{found[0]}", unparse(found[1])) if found else None
        _, owner = resolve(ast.parse(parent, mode="eval").body, step)
        at = self.source.attribute(owner, name) if owner is not NOTHING else None
        return (f"{short(at[0])}:{at[1]}", unparse(at[2])) if at else None

    def mend(self, tensor: NamedTensor) -> Iterator[str]:
        target = self.target()
        if tensor.role == "generator":
            yield f"{self.here()}: {tensor.path} = torch.Generator(device={target})"
        elif tensor.role == "attribute":
            yield from self.mend_attribute(tensor)
        elif tensor.role == "hidden":
            yield (
                f"{tensor.owner_path} is a module that its parent does not know of (it is in a "
                "plain list or dict): use nn.ModuleList or nn.ModuleDict, so that .to() reaches it"
            )
        elif tensor.role in ("parameter", "buffer") and tensor.owner is not None:
            yield (
                f"{tensor.path} is a {tensor.role} and was made or set after .to(): "
                f"{tensor.owner_path}.to({target}) after it"
            )
        else:
            yield from self.mend_plain(tensor)

    def mend_attribute(self, tensor: NamedTensor) -> Iterator[str]:
        name = tensor.name
        found = self.source.attribute(tensor.owner, name)
        direct = tensor.path == f"{tensor.owner_path}.{name}"
        at = f"{short(found[0])}:{found[1]}: " if found else ""
        yield f"{at}self.{name} is a plain attribute, which .to() passes by:"
        if direct:
            value = (unparse(found[2]) if found else "") or "..."
            yield f"  self.register_buffer({name!r}, {value}, persistent=False)"
        yield f"  or {self.here()}: {tensor.path}.to({self.target()})"

    def mend_plain(self, tensor: NamedTensor) -> Iterator[str]:
        """A variable: where it was made, in the outermost of the user's frames that has it."""
        target = self.target()
        step, path = self.origin(tensor)
        if step is not None and self.users and step not in self.users:
            yield (
                f"{self.here()}: one of the operands has no name there: {tensor.shape} on "
                f"{tensor.device}, {path} in {short(step.file)}:{step.line}"
            )
            return
        root = re.split(r"[.\[]", path, maxsplit=1)[0]
        made = self.source.assignment(step, root) if step is not None and root == path else None
        at = f"{short(step.file)}:{step.line}" if step is not None else self.here()
        if step is not None and made is not None and factory(made[1]):
            call = unparse(made[1])
            given = f"{call[:-1]}, device={self.home!r})" if call else f"device={self.home!r}"
            yield f"{short(step.file)}:{made[0]}: {root} is made on the CPU: {given}"
            at = f"  or {at}"
        elif made is not None and step is not None:
            yield f"{short(step.file)}:{made[0]}: {root} is set here, on {tensor.device}"
        if re.search(r"[{#]", path):
            yield f"{at}: {path} to {self.home}"
        else:
            same = step is None or step.frame is getattr(self.where, "frame", None)
            place = "" if same else f" (in {self.here()}: {tensor.path})"
            yield f"{at}: {path} = {path}.to({target if same else repr(self.home)}){place}"

    def origin(self, tensor: NamedTensor) -> tuple[TracebackStep | None, str]:
        for step in self.users + self.way[::-1]:
            for other in self.looks[id(step.frame)].tensors:
                if other.key == tensor.key:
                    return step, other.path
        return self.where, tensor.path

    def target(self) -> str:
        """The device as an expression of the line: a neighbour's `.device`, else its name."""
        line = self.line.tensors if self.line else []
        frame = self.looks[id(self.where.frame)].tensors if self.where else []
        near = [
            t
            for t in line or [t for t in frame if t.role == "plain"]
            if t.device == self.home and not re.search(r"[{#]", t.path)
        ]
        near.sort(key=lambda t: (t.role != "plain", "weight" not in t.path, len(t.path)))
        return f"{near[0].path}.device" if near else repr(self.home or "cuda:0")

    def here(self) -> str:
        return f"{short(self.where.file)}:{self.where.line}" if self.where else "there"

    def mend_ordinal(self) -> Iterator[str]:
        yield (
            f"{self.here()}: this job sees {seen_cards()}: "
            "ask for 'cuda:0', or 'cuda' for the current one"
        )
        for step in reversed(self.users):
            for path, value in self.looks[id(step.frame)].devices:
                number = re.search(r"(\d+)\D*\Z", value)
                private = "._" in path  # An argument parser's defaults, say.
                if number and not private and int(number.group(1)) >= max(1, visible() or 1):
                    made = self.source.assignment(step, path)
                    at = made[0] if made else step.line
                    yield f"{short(step.file)}:{at}: {path} = {value} is none of them"
        ranks = {n: os.environ[n] for n in ("LOCAL_RANK", "RANK") if n in os.environ}
        if ranks:
            told = ", ".join(f"{name}={value}" for name, value in ranks.items())
            yield f"{told} in the environment: more processes than cards?"

    def mend_loaded(self) -> Iterator[str]:
        names = {step.frame.f_globals.get("__name__") for step in self.way}
        if any(str(name).startswith("torch.export") for name in names):
            file, cards = baked_in(self.way)
            if cards:
                told = ", ".join(cards[:PER_FRAME])
                yield f"{short(file)} was exported on {told}; this job sees {seen_cards()}"
            yield f"{self.here()}: gpulaunch.torch.load_exported(path, device='cuda:0')"
            return
        cpu = "is_available() is False" in self.text
        device = "cpu" if cpu else "cuda:0"
        yield (
            f"{self.here()}: torch.load(..., map_location='{device}'): the file was written on "
            "another card and says so"
        )
        if cpu:
            yield from self.mend_no_gpu()

    def mend_no_gpu(self) -> Iterator[str]:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        if self.torch.there and not self.torch.cuda:
            yield f"torch {self.torch.version} here is a build without CUDA: {sys.prefix}"
            yield "  install a CUDA build there, or point the job at another python, venv or conda"
        if mask == "":
            yield "CUDA_VISIBLE_DEVICES is empty: this job was given no card (gpus: 0)"
        elif mask:
            yield f"CUDA_VISIBLE_DEVICES={mask}: `gpulaunch doctor` says whether the driver is fit"

    def mend_same_card(self) -> Iterator[str]:
        yield (
            f"several ranks are on one card: this job sees {seen_cards()}; start as many processes "
            "as it has cards, and torch.cuda.set_device(LOCAL_RANK) in each"
        )

    def mend_memory(self) -> Iterator[str]:
        held = {
            t.key: t
            for look in self.looks.values()
            for t in look.tensors
            if t.device not in ("cpu", "meta")
        }
        total = sum(t.size for t in held.values())
        if total:
            yield (
                f"the tensors in sight hold {total / 2**30:.2f} GiB; the rest is activations, "
                "caches and other processes"
            )
        for tensor in sorted(held.values(), key=lambda t: -t.size)[:5]:
            yield f"  {tensor.size / 2**30:.2f} GiB  {described(tensor, 0)}"
        yield "less at once (batch, length), torch.inference_mode() where nothing is trained"

    def mend_kernel(self) -> Iterator[str]:
        yield (
            "the line above is where the error was noticed, not where it happened: "
            "CUDA_LAUNCH_BLOCKING=1 in the job's env shows that one"
        )
        yield "an assert is most often an index out of range: a label or token id beyond its table"


def variables(step: TracebackStep) -> list[tuple[str, Any]]:
    """A frame's variables: at module level, all but what is code."""
    try:
        names = list(itertools.islice(step.frame.f_locals.items(), 2000))
    except Exception:
        return []
    return [(n, v) for n, v in names if not n.startswith("__") and not is_code(v)]


def is_code(value: Any) -> bool:
    return is_code_type(type(value)) or any(base is type for base in mro(type(value)))


def is_code_type(kind: type) -> bool:
    return of(kind, "__name__") in ("module", "function", "builtin_function_or_method", "method")


def grouped(tensors: list[NamedTensor]) -> list[tuple[str, list[NamedTensor]]]:
    """Tensors by the variable that they are reached from, in order."""
    groups: dict[str, list[NamedTensor]] = {}
    for tensor in tensors:
        groups.setdefault(re.split(r"[.\[{]", tensor.path, maxsplit=1)[0], []).append(tensor)
    return list(groups.items())


def by_owner(tensors: list[NamedTensor]) -> list[list[NamedTensor]]:
    groups: dict[int, list[NamedTensor]] = {}
    for tensor in tensors:
        groups.setdefault(id(tensor.owner), []).append(tensor)
    return list(groups.values())


def most_common(values: Iterable[str]) -> str:
    numbers = tally(values)
    return max(numbers, key=lambda value: numbers[value])


def tally(values: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for value in values:
        numbers[value] = numbers.get(value, 0) + 1
    return numbers


def counts(tensors: list[NamedTensor]) -> str:
    numbers = tally(tensor.device for tensor in tensors)
    ordered = sorted(numbers.items(), key=lambda item: -item[1])
    return ", ".join(f"{n:,} tensor{'s' * (n > 1)} on {d}" for d, n in ordered)


def described(tensor: NamedTensor, width: int) -> str:
    roles = {"attribute": "plain attribute", "hidden": "in a plain container", "plain": ""}
    what = roles.get(tensor.role, tensor.role)
    place = f"{tensor.path:<{width}}  {tensor.device:<7}"
    return f"{place} {tensor.shape} {tensor.dtype}  {what}".strip()


def factory(node: ast.expr) -> bool:
    """Whether an expression makes a tensor that has a `device` argument and was given none."""
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
    """The expression's text, from Python 3.9 on; '' where it is long."""
    write = getattr(ast, "unparse", None)
    text = write(node) if write else ""
    return text if len(text) <= 80 else ""


def visible() -> int | None:
    """How many cards the mask names; None where there is none."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if mask is None else len([part for part in mask.split(",") if part.strip()])


def seen_cards() -> str:
    number = visible()
    if number is None:
        return "the cards that torch counts from cuda:0"
    if number == 0:
        return "no card"
    return "one card, cuda:0" if number == 1 else f"{number} cards, cuda:0 to cuda:{number - 1}"


def summary(text: str) -> str:
    """The recognised line of a message, which may hold a whole traceback."""
    for line in reversed(text.splitlines()):
        if kind_of(line):
            return line.strip()
    return (text.strip().splitlines() or [""])[0]


def short(file: str) -> str:
    """A path as people would say it: from the working directory, or its end in site-packages."""
    installed = list(INSTALLED.finditer(file))
    if installed:
        return file[installed[-1].end() :]
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if file.startswith("<") or relative.startswith("..") else relative


def bounded(lines: Iterable[str]) -> list[str]:
    """No more than LINES lines of WIDTH characters; says how many were left out."""
    whole = [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines]
    printable = ["".join(c if c.isprintable() else "?" for c in line) for line in whole]
    if len(printable) <= LINES:
        return printable
    left = len(printable) - LINES + 1
    return [*printable[: LINES - 2], f"  ... {left} lines left out", printable[-1]]
