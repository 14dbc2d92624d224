"""The command, each of whose jobs ends only when the supervisor has nothing else to do.

    python -m tests.costs.gated RESULT GATE FIRST LAST run jobs.yaml ...

A job reads one byte from the fifo GATE and ends. The byte comes once the supervisor has heard of
the job's start and is about to wait: so whatever else the machine does, what a turn of the loop
handles is the same. RESULT is how many bytecode instructions the supervisor executed per job
between the FIRST and the LAST byte (LAST 0: they are not counted).

The sampler starts at once, and so does the next launch's preparation: else a quick machine's jobs
would cost less than a slow one's.
Whoever else asks live runs something (`gpulaunch ps`) goes unheard: an answer costs instructions.
Nor does the run import what it may need later, which only one on a slow machine would live to do.
"""

from __future__ import annotations

import os
import selectors
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpulaunch.core.facts import AttemptStarted
from gpulaunch.core.ledger import Ledger
from gpulaunch.engines.local.metering import Metering
from gpulaunch.run import session
from gpulaunch.run.control_server import ControlServer

_TOOL = 3
"""Of the numbers that `sys.monitoring` gives, one that no profiler or debugger takes."""


class Instructions:
    """Counts the bytecode instructions of this process, without this module's own."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        if sys.version_info >= (3, 12):
            events = sys.monitoring.events.INSTRUCTION
            sys.monitoring.use_tool_id(_TOOL, "gpulaunch.costs")
            sys.monitoring.register_callback(_TOOL, events, self._executed)
            sys.monitoring.set_events(_TOOL, events)
            return
        sys.settrace(self._enter)
        frame: FrameType | None = sys._getframe()
        while frame:  # those that go on
            frame.f_trace = self._enter(frame)
            frame = frame.f_back

    def end(self) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
            sys.monitoring.free_tool_id(_TOOL)
        else:
            sys.settrace(None)

    def _executed(self, code: CodeType, offset: int) -> Any:
        if code.co_filename == __file__:
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        self.count += 1
        return None

    def _enter(self, frame: FrameType, event: str = "call", about: object = None) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: FrameType, event: str, about: object) -> Any:
        self.count += event == "opcode"
        return self._step


class Gate:
    """Lets one job after the other end."""

    def __init__(self, fifo: str, first: int, last: int) -> None:
        self._fifo = os.open(fifo, os.O_RDWR)
        self._first, self._last = first, last
        self._started = self._passed = 0
        self._instructions = Instructions()

    def see(self, fact: object) -> None:
        self._started += isinstance(fact, AttemptStarted)

    @property
    def awaited(self) -> bool:
        """Whether a job that has started waits for its byte."""
        return self._passed < self._started

    def one_may_pass(self) -> None:
        self._passed += 1
        if self._passed == self._last:
            self._instructions.end()
        os.write(self._fifo, b"\n")
        if self._passed == self._first and self._last:
            self._instructions.begin()

    @property
    def per_job(self) -> float:
        return self._instructions.count / (self._last - self._first)


def main() -> None:
    result, fifo, first, last = sys.argv[1:5]
    gate = Gate(fifo, int(first), int(last))
    apply = Ledger.apply

    def applied(ledger: Ledger, fact: Any, at: Any) -> None:
        gate.see(fact)
        apply(ledger, fact, at)

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            if gate.awaited and timeout != 0:
                if ready := super().select(0):
                    return ready
                gate.one_may_pass()
            return super().select(timeout)

    Ledger.apply = applied  # type: ignore[assignment,method-assign]
    Metering.__init__.__defaults__ = (0.0,)
    ControlServer.serve = lambda *_: None  # type: ignore[method-assign]
    session.import_the_rest = lambda *_: lambda: None
    selectors.DefaultSelector = Selector  # type: ignore[misc]
    sys.argv[1:] = sys.argv[5:]
    from gpulaunch.__main__ import main as command

    try:
        command()
    finally:
        Path(result).write_text(str(gate.per_job))


if __name__ == "__main__":
    main()
