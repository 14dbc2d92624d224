"""What a shell knows at one place of the script, and which commands have ended by then.

Scope   directory, environment, variables, loops around: copied where the shell forks
Order   what has surely ended here (a foreground command, a `wait`), what may still run

`StatementPlace` is both, for one statement, and whether what follows waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.starter.entry import ForeachLoop, StarterRemark
from gpulaunch.starter.shell import Script

if TYPE_CHECKING:
    from tree_sitter import Node


class Scope(Struct):
    """`literals` are values known for certain; `preamble` are lines that every job (name None) or
    every job that reads the variable must run first, because only a shell can know their value.
    """

    mask: str | None = None
    exported: dict[str, str] = field(default_factory=dict)
    literals: dict[str, str] = field(default_factory=dict)
    preamble: list[tuple[str | None, Node]] = field(default_factory=list)
    arrays: dict[str, Node] = field(default_factory=dict)
    cwd: str | None = None
    venv: str | None = None
    conda: str | None = None
    modules: tuple[str, ...] = ()
    timeout: str | None = None
    cpus: str | None = None
    errexit: bool = False
    loops: tuple[ForeachLoop, ...] = ()

    def copy(self) -> Scope:
        return replace(
            self,
            exported=dict(self.exported),
            literals=dict(self.literals),
            preamble=list(self.preamble),
            arrays=dict(self.arrays),
        )

    def forget(self, variable: str) -> None:
        """Before a new value: whatever was known of the old one."""
        self.exported.pop(variable, None)
        self.literals.pop(variable, None)
        self.arrays.pop(variable, None)
        self.preamble = [pair for pair in self.preamble if pair[0] != variable]


class Made(Struct, frozen=True):
    """An entry, as others refer to it. `before` are the bases of all that ends before it starts."""

    base: str
    name: str
    loops: tuple[ForeachLoop, ...]
    before: frozenset[str]

    def seen_from(self, loops: tuple[ForeachLoop, ...]) -> str:
        """Item by item inside the same loops; the whole group from elsewhere."""
        if self.loops and self.loops != loops:
            return f"{self.base}-*"
        return self.name


class BackgroundEnd(Struct, frozen=True):
    """`must` is true where the script went on only if it succeeded; `waited`: by a `wait`."""

    made: Made
    must: bool = False
    waited: bool = False


class Order(Struct):
    ended: list[BackgroundEnd] = field(default_factory=list)
    running: list[Made] = field(default_factory=list)
    pids: dict[str, Made] = field(default_factory=dict)
    last: Made | None = None

    def copy(self) -> Order:
        return Order(list(self.ended), [], dict(self.pids), self.last)

    def started(self, made: Made, background: bool, must: bool) -> None:
        if background:
            self.running.append(made)
            self.last = made
        else:
            self.ended = self._latest([*self.ended, BackgroundEnd(made, must)])

    def waited(self, which: Iterable[Made]) -> None:
        chosen = list(which)
        self.running = [made for made in self.running if made not in chosen]
        self.ended = self._latest(
            [*self.ended, *(BackgroundEnd(made, False, True) for made in chosen)]
        )

    def joined(self, inner: Order) -> None:
        """Take in a background group: all it started may still run."""
        fresh = [ended.made for ended in inner.ended if ended not in self.ended]
        self.running += [*fresh, *inner.running]
        self.last = self.running[-1] if self.running else self.last

    @staticmethod
    def _latest(ended: list[BackgroundEnd]) -> list[BackgroundEnd]:
        """Without those that another one already comes after."""
        covered: frozenset[str] = frozenset().union(*(one.made.before for one in ended))
        return [one for one in ended if one.made.base not in covered]


class StatementPlace(Struct, frozen=True):
    """Where a statement stands. `background`: it runs beside what follows. `must`: what follows is
    reached only if it succeeds.
    """

    scope: Scope
    order: Order
    background: bool = False
    must: bool = False

    def beside(self, forks: bool) -> StatementPlace:
        """Return the place of a statement; one with an & behind it (`forks`) has its own scope."""
        scope = self.scope.copy() if forks else self.scope
        return replace(self, scope=scope, background=forks)

    @contextmanager
    def group(self) -> Iterator[StatementPlace]:
        """Yield the place of statements in turn, which all run beside what follows, or none."""
        order = self.order.copy() if self.background else self.order
        yield replace(self, order=order, background=False)
        if self.background:
            self.order.joined(order)


class Notes:
    """What the job file does not say, gathered while the script is walked.

    `assigned` are the script's own variables, `read` the names that some job reads.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.remarks: list[StarterRemark] = []
        self.assigned: list[tuple[str, Node]] = []
        self.read: set[str] = set()

    def remark(self, node: Node, why: str, text: str | None = None) -> None:
        line = self.script.line(node)
        if text is None:
            compound = not node.type.endswith(("command", "assignment", "redirect"))
            text = self.script.typed.get(line) if compound else None
        shown = self.script.text(node) if text is None else text
        self.remarks.append(StarterRemark(line, shown, why))

    def all(self) -> tuple[StarterRemark, ...]:
        """Return each note once, in order; asked at the end, when unread variables are known."""
        for name, node in self.assigned:
            if name not in self.read and self.script.line(node) not in self.script.typed:
                self.remark(node, "read by no command that is left")
        return tuple(sorted(dict.fromkeys(self.remarks), key=lambda remark: remark.line))
