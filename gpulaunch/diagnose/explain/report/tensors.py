"""What may be said of a tensor, and of many: by types, attributes and slots, within bounds.

Looks at a stranger's objects without running any of their code.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# ── Bounds of a report's work and length ──────────────────────────────────────────────────────────

SECONDS = 2.0
"""Seconds for the look into all frames."""
OBJECTS = 40_000
"""Objects looked at from one frame."""
DEPTH = 7
"""Containers and attributes from a variable, or from a module, to a tensor."""
PER_CONTAINER = 256
"""Entries looked at of a container."""
PER_FRAME = 10
"""Tensors shown of a frame's variable."""
FRAMES = 12
"""Frames whose tensors are shown."""
LINES = 120
"""Lines of a report."""
WIDTH = 300
"""Characters of a line."""
SOURCE_SIZE = 4 << 20
"""Characters of a source file that is parsed, and bytes of a record in an archive."""


# ── Objects ───────────────────────────────────────────────────────────────────────────────────────


def mro(kind: type) -> tuple[type, ...]:
    """Return a type's bases, past any metaclass of the program's."""
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def of(kind: type, name: str) -> Any:
    """Return a type's own attribute, past any metaclass of the program's."""
    return type.__getattribute__(kind, name)


def attributes(obj: Any) -> dict[str, Any]:
    """Return the instance's own attributes, past the program's `__getattr__` and properties."""
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


def is_code(value: Any) -> bool:
    return is_code_type(type(value)) or any(base is type for base in mro(type(value)))


def is_code_type(kind: type) -> bool:
    return of(kind, "__name__") in ("module", "function", "builtin_function_or_method", "method")


# ── Tensors ───────────────────────────────────────────────────────────────────────────────────────


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


class Torch:
    """The program's torch, or nothing: its classes, by plain look-up."""

    def __init__(self) -> None:
        torch = sys.modules.get("torch")
        names = vars(torch) if torch is not None else {}
        nn = names.get("nn")
        self.there = torch is not None
        self.sorts = {
            "tensor": names.get("Tensor"),
            "module": getattr(nn, "__dict__", {}).get("Module"),
            "generator": names.get("Generator"),
            "device": names.get("device"),
        }
        self.parameter = getattr(nn, "__dict__", {}).get("Parameter")
        self.version = str(names.get("__version__", ""))
        version = names.get("version")
        builds = getattr(version, "__dict__", {})
        self.cuda = builds.get("cuda") or builds.get("hip")
        # Reading `.shape` of a subclass would run its `__torch_function__`, and so the program.
        core = getattr(names.get("_C"), "__dict__", {})
        self.quietly: Callable[[], Any] | None = core.get("DisableTorchFunction")

    def key(self, tensor: Any) -> int:
        """Return what tells a tensor from others. gpulaunch.torch also knows a view's original."""
        return id(tensor)

    def sort(self, kind: type) -> str:
        """Return what objects of a type are to a look; '' where torch does not say."""
        for base in mro(kind):
            for sort, other in self.sorts.items():
                if base is other:
                    return sort
        return ""


def grouped(tensors: list[NamedTensor]) -> dict[str, list[NamedTensor]]:
    """Tensors by the variable that they are reached from, in order."""
    groups: dict[str, list[NamedTensor]] = {}
    for tensor in tensors:
        groups.setdefault(re.split(r"[.\[{]", tensor.path, maxsplit=1)[0], []).append(tensor)
    return groups


def by_owner(tensors: list[NamedTensor]) -> list[list[NamedTensor]]:
    groups: dict[int, list[NamedTensor]] = {}
    for tensor in tensors:
        groups.setdefault(id(tensor.owner), []).append(tensor)
    return list(groups.values())


def by_device(tensors: list[NamedTensor]) -> list[tuple[str, int]]:
    """How many tensors are on each device, the most first."""
    return Counter(tensor.device for tensor in tensors).most_common()


def counts(tensors: list[NamedTensor]) -> str:
    return ", ".join(f"{n:,} tensor{'s' * (n > 1)} on {d}" for d, n in by_device(tensors))


def described(tensor: NamedTensor, width: int) -> str:
    roles = {"attribute": "plain attribute", "hidden": "in a plain container", "plain": ""}
    what = roles.get(tensor.role, tensor.role)
    place = f"{tensor.path:<{width}}  {tensor.device:<7}"
    return f"{place} {tensor.shape} {tensor.dtype}  {what}".strip()
