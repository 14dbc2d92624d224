"""Reads the frames of an error once, and decides which tensors are odd."""

from __future__ import annotations

import ast
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import visible
from .frames import (
    FROM_TEXT,
    INSTALLED,
    LIBRARY,
    TracebackStep,
    installed_program,
    is_torch,
    is_users,
    variables,
)
from .limits import SECONDS
from .messages import MIXED, message
from .objects import is_code, of
from .search import NUMBERED, FrameSearch
from .syntax import NOTHING, SourceFile, chains, resolve
from .tensors import NamedTensor, Torch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

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
