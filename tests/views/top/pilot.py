"""A run on a screen without a terminal: a history in memory, keys pressed, the screen as text."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from datetime import timezone
from pathlib import Path

from rich.console import Console
from textual.app import App
from textual.pilot import Pilot

from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.causes import Quoted
from gpulaunch.core.events import Request
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import AttemptId, Instant, RunState
from gpulaunch.observe.metrics.model import AttemptUse, CardSample
from gpulaunch.observe.top.app import Top
from gpulaunch.observe.top.board import Dated, Why
from tests.views.history import History


class FakeSamples:
    """Samples in memory."""

    def __init__(self) -> None:
        self.all: list[CardSample] = []
        self.used: dict[AttemptId, AttemptUse] = {}
        self.seen: float | None = None

    def cards(self, uuid: str, since: float = 0.0, most: int = 240) -> list[CardSample]:
        return [s for s in self.all if s.gpu == uuid and s.at >= since][-most:]

    def use(self, attempt: AttemptId) -> AttemptUse | None:
        return self.used.get(attempt)

    def last_seen(self) -> float | None:
        return self.seen

    def close(self) -> None: ...


class FakeLink:
    """A link to a History: what it holds is read at the next look. `asked` is what was asked."""

    root = "gpulaunch-runs/nanobodies-20261120-074215"

    def __init__(self, run: History, logs: Path = Path("/nonexistent")) -> None:
        self.run = run
        self.logs = logs
        self.alive = True
        self.times: dict[str, float] = {}
        self.lost = False
        self.asked: list[Request] = []
        self.added: list[str] = []
        self.refusal = ""
        self.why: dict[str, str] = {}
        self.boot = run.boot
        self.measured: FakeSamples | None = None
        self.damage: GpulaunchError | None = None
        self._at = 0

    def read(self) -> list[Dated]:
        new = self.run.facts[self._at :]
        self._at = len(self.run.facts)
        if self.damage and not new:
            raise self.damage
        return new

    def share(self) -> float:
        return self._at / max(1, len(self.run.facts))

    def past(self) -> Iterator[Dated]:
        return iter(list(self.run.facts))

    def state(self, ledger: Ledger) -> RunState:
        if ledger.closed:
            return ledger.state
        return "running" if self.alive else "interrupted"

    def gone(self) -> bool:
        return self.lost

    def now(self, ledger: Ledger) -> Instant:
        if self.boot == self.run.boot:
            return self.run.now
        return ledger.here(Instant(0.0, self.run.now.utc), self.boot)

    def samples(self) -> FakeSamples | None:
        return self.measured

    def log(self, attempt: AttemptId) -> Path:
        return self.logs / f"{attempt}.log"

    def earlier(self) -> dict[str, float]:
        return self.times

    def reasons(self) -> Why:
        return lambda name: Quoted(self.why[name]) if name in self.why else None

    def ask(self, request: Request) -> None:
        if self.refusal:
            raise GpulaunchError(self.refusal)
        self.asked.append(request)

    def add(self, command: str) -> str:
        if self.refusal:
            raise GpulaunchError(self.refusal)
        self.added.append(command)
        return f"added-{len(self.added)}"


class Seat:
    """Before the screen: press keys, see lines."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> list[str]:
        """The screen after these keys and all that came of them."""
        await self.pilot.press(*keys)
        await self.settle()
        return self.lines

    async def type(self, text: str) -> list[str]:
        return await self.press(*text)

    async def look(self) -> list[str]:
        """The screen after the next look at the run, with its clocks."""
        self.app._drawn_at = self.app._not_before = float("-inf")
        self.app.look()
        await self.settle()
        return self.lines

    async def resize(self, columns: int, rows: int) -> list[str]:
        await self.pilot.resize_terminal(columns, rows)
        return await self.look()

    async def settle(self) -> None:
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()

    @property
    def lines(self) -> list[str]:
        return screen(self.app)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def screen(app: App[None]) -> list[str]:
    """What is on the screen, without blanks at the ends of lines."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    width, height = app.size
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(update)
    return [line.rstrip() for line in console.export_text().split("\n")][:height]


def watch(
    link: FakeLink,
    act: Callable[[Seat], Awaitable[None]],
    columns: int = 80,
    rows: int = 24,
) -> Top:
    """Open the screen on a run and `act` before it; the app, after it was closed."""

    async def sit() -> Top:
        app = Top(link, timezone.utc)
        async with app.run_test(size=(columns, rows)) as pilot:
            seat = Seat(app, pilot)
            await seat.look()
            await act(seat)
        return app

    return asyncio.run(sit())
