"""Finds the tensors that a frame's variables lead to, without touching them; and the frames."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from .tensors import (
    DEPTH,
    OBJECTS,
    PER_CONTAINER,
    NamedTensor,
    Torch,
    attributes,
    is_code,
    is_code_type,
    mro,
    of,
    slots,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType


NUMBERED = re.compile(r"(?:cuda|hip|xpu|npu|hpu):(\d+)\Z")

INDEXES = re.compile(
    r"(?i)(?:(?:execution|output|main|target|current|local|global)_)?"
    r"(?:device|gpu|cuda|rank)(?:_?(?:id|idx|index|no))?\Z"
)

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
    "types.SimpleNamespace": "object",
}

ITERATORS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple.__iter__,
    "list": list.__iter__,
    "deque": deque.__iter__,
    "set": set.__iter__,
    "frozenset": frozenset.__iter__,
}


class FrameSearch:
    """One look at a frame's variables, breadth first, so that the shortest path names a tensor.

    `modules` has the path of each module, by its id.
    """

    depth = DEPTH
    entries = PER_CONTAINER

    def __init__(self, torch: Torch, until: float, objects: int = OBJECTS) -> None:
        self.torch = torch
        self.until = until
        self.left = objects
        self.tensors: list[NamedTensor] = []
        self.devices: list[tuple[str, str]] = []
        self.modules: dict[int, str] = {}
        self.cut = False
        self.met: set[int] = set()
        self.queue: deque[tuple[Any, str, str, int, Any, str]] = deque()
        self.sorts: dict[int, str] = {}

    def sort(self, kind: type) -> str:
        """Return what objects of a type are to a look; types are compared by identity alone."""
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
        elif depth < self.depth:
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

        with self.torch.quietly() if self.torch.quietly else contextlib.nullcontext():
            shape, dtype, device = read("shape"), read("dtype"), read("device")
            key = self.torch.key(obj)
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
            key,
            sizes == (),
            size,
            owner,
            where,
        )

    def open(self, obj: Any, path: str, sort: str) -> Iterator[tuple[str, Any]]:
        """Yield what is in an object, by the expression that reaches it."""
        if sort == "dict":
            for n, (k, v) in self.first(dict.items(obj)):
                yield f"{path}[{entry(k, n)}]", v
        elif sort in ITERATORS:
            fields: Any = fields_of(type(obj)) if sort == "tuple" else ()
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

    def first(self, items: Iterable[Any], most: int = 0) -> list[tuple[int, Any]]:
        """Return the first ones, in one step: another thread's change cannot come between."""
        most = max(most, self.entries)
        found = list(enumerate(itertools.islice(items, most + 1)))
        self.cut = self.cut or len(found) > most
        return found[:most]

    def open_module(self, obj: Any, path: str, role: str, depth: int) -> None:
        self.registered(obj, path, role, depth)
        hidden = role in ("attribute", "hidden")
        for at, part in self.children(obj, path):
            self.queue.append((part, at, "hidden" if hidden else "plain", 0, obj, path))
        self.unregistered(obj, path, depth)

    def registered(self, obj: Any, path: str, role: str, depth: int) -> None:
        """Queue a module's own parameters and buffers."""
        self.modules.setdefault(id(obj), path)
        hidden = role in ("attribute", "hidden")
        for group, as_role in (("_parameters", "parameter"), ("_buffers", "buffer")):
            for name, value in self.group(obj, group):
                held = "hidden" if hidden else as_role
                self.queue.append((value, child(path, name, group), held, depth, obj, path))

    def children(self, obj: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield the modules that a module registers, by their paths."""
        for name, part in self.group(obj, "_modules"):
            yield child(path, name), part

    def group(self, obj: Any, name: str) -> list[tuple[str, Any]]:
        """Return what a module registers in one of its dictionaries."""
        held: Any = attributes(obj).get(name)
        return [item for _, item in self.first(dict.items(held), 4096)] if is_dict(held) else []

    def unregistered(self, obj: Any, path: str, depth: int) -> None:
        """Queue what a module holds and does not register, which `.to()` passes by."""
        others = ("_parameters", "_buffers", "_modules", "_hf_hook")
        for _, (name, value) in self.first(attributes(obj).items()):
            if name not in others and "_hooks" not in name:
                self.queue.append((value, f"{path}.{name}", "attribute", depth, obj, path))


def sort_of(kind: type) -> str:
    """Return what objects of a type that is not torch's are to a look."""
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


def entry(value: Any, number: int) -> str:
    """Return a dictionary's key as it is typed; its number where that is not safe to ask for."""
    if type(value) is str:
        return repr(value[:40])
    return repr(value) if type(value) in (int, bool, float) else f"#{number}"


def is_dict(value: Any) -> bool:
    return dict in mro(type(value))


def fields_of(kind: type) -> Any:
    """Return the names of a named tuple's fields, also of a class made from one."""
    return next((f for base in mro(kind) if (f := of(base, "__dict__").get("_fields"))), ())


def child(path: str, name: Any, group: str = "_modules") -> str:
    """Return the expression that reaches what a module registers by a name."""
    name = str(name)
    if name.isdigit():
        return f"{path}[{name}]"
    return f"{path}.{name}" if name.isidentifier() else f"{path}.{group}[{name!r}]"


# ── Frames of a traceback ─────────────────────────────────────────────────────────────────────────


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

    @property
    def at(self) -> str:
        return f"{short(self.file)}:{self.line}"


def steps(tb: TracebackType | None) -> list[TracebackStep]:
    """Return a traceback's frames, outermost first; of very deep ones, both ends."""
    found: list[TracebackStep] = []
    while tb is not None and len(found) < 20_000:
        found.append(TracebackStep(tb.tb_frame, tb.tb_lineno, tb.tb_lasti))
        tb = tb.tb_next
    return found if len(found) <= 200 else found[:50] + found[-150:]


def continued(outer: list[TracebackStep], inner: list[TracebackStep]) -> list[TracebackStep]:
    """Return an inner exception's frames after its callers, which are the outer's.

    Its traceback begins where it was caught. Where both share no frame (torch.compile, another
    thread), the outer's still lead there.
    """
    if inner:
        for at, step in enumerate(outer):
            if step.frame is inner[0].frame:
                return outer[:at] + inner
    return outer + inner


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
    """Return the frames of the installed package that a console entry point started."""
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


def variables(step: TracebackStep) -> list[tuple[str, Any]]:
    """Return a frame's variables: at module level, all but what is code."""
    try:
        names = list(itertools.islice(step.frame.f_locals.items(), 2000))
    except Exception:
        return []
    return [(n, v) for n, v in names if not n.startswith("__") and not is_code(v)]


def short(file: str) -> str:
    """Return a path as people say it: from the working directory, or from site-packages."""
    installed = list(INSTALLED.finditer(file))
    if installed:
        return file[installed[-1].end() :]
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):
        return file
    return file if file.startswith("<") or relative.startswith("..") else relative


FROM_TEXT = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n\s+(\S.*)')
