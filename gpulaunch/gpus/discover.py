"""Finds the cards and looks at them, by questions to the helper process.

    find(environ) -> Machine                        once, blocking
    ProbeClient: look(gpu, then)                    in a loop, never blocking
    looks(client, gpus) -> {uuid: CardReading}      a few cards at once, blocking

Never calls into the driver from this process, never judges a card (`machine`), prints nothing.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.agent.proc import suspension
from gpulaunch.base.helper_process import Helper, command, understood
from gpulaunch.base.loop import Loop
from gpulaunch.core.model import Gpu
from gpulaunch.gpus import parse
from gpulaunch.gpus.machine import CardReading, Fault, LookCallback, Machine
from gpulaunch.gpus.socket_locks import short

Request: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = dict[str, Any]
Then: TypeAlias = Callable[[Answer], object]
H = TypeVar("H", bound="DriverHelper")

START_LIMIT = 60.0
"""Seconds that the start of the process may take."""


class _Question(Struct, frozen=True):
    request: Request
    then: Then


class DriverHelper:
    """A helper process (`probe`). An answer is the request with more fields, or with an "error".

    Asks one question at a time. Starts the process at the first question, kills it when a call into
    the driver hangs, and starts another for the questions that are left. Knows nothing of cards.
    `limit` in seconds, per question; the start of the process is not counted in it. Without a loop
    to turn in, it has one of its own, for `run`.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        limit: float = 10.0,
        loop: Loop | None = None,
    ) -> None:
        self.limit = limit
        self._environ = None if environ is None else dict(environ)
        self._loop = Loop() if loop is None else loop
        self._owns_loop = loop is None
        self._helper = Helper(self._loop, self._said, self._died)
        self._queue: deque[_Question] = deque()
        self._current: _Question | None = None
        self._scarce = ""
        self._ready = False

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._helper.pid

    def ask(self, request: Request, then: Then) -> None:
        """Ask; the loop calls `then` with the answer."""
        self._queue.append(_Question(request, then))
        self._go_on()

    def run(self, requests: Iterable[Request]) -> list[Answer]:
        """Ask all of these and return the answers in order. Blocks up to the limit for each."""
        answers: list[Answer] = []
        wanted = 0
        for request in requests:
            self.ask(request, answers.append)
            wanted += 1
        while len(answers) < wanted:
            self._loop.turn()
        return answers

    def close(self) -> None:
        """End the helper. Idempotent."""
        self._current = None
        self._queue.clear()
        self._loop.forget(self)
        self._helper.close()
        if self._owns_loop:
            self._loop.close()

    def _go_on(self) -> None:
        while self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._scarce = ""
            try:
                if self._helper.link is None:
                    self._start()
            except OSError as error:
                self._scarce = error.strerror or str(error)
                self._expect_within(0.0)
                return
            self._expect_within(self.limit if self._ready else max(self.limit, START_LIMIT))
            assert self._helper.link is not None
            # Either the helper died, which its end of file shows next, or it hangs: soon overdue.
            with suppress(OSError):
                self._helper.link.sendall(json.dumps(self._current.request).encode() + b"\n")

    def _start(self) -> None:
        self._ready = False
        self._helper.start(command("gpulaunch.gpus.probe"), self._environ)

    def _expect_within(self, seconds: float) -> None:
        self._loop.call_after(self, seconds, self._overdue)

    def _said(self, line: bytes) -> None:
        if self._ready:
            self._answer(understood(line, dict[str, Any]))  # one question, one line
        else:
            self._ready = True
            if self._current:
                self._expect_within(self.limit)

    def _answer(self, answer: Answer) -> None:
        question, self._current = self._current, None
        self._loop.forget(self)
        self._go_on()
        if question:
            question.then(answer)

    def _overdue(self) -> None:
        """Kill the helper, whose question takes too long; its answer is an error.

        A question that could not be asked, for want of processes or descriptors, is overdue at
        once: its error is "Unasked" and says nothing about a card. Neither does a process that
        somebody has stopped.
        """
        pid = self._helper.pid
        if self._scarce:
            self._give_up("Unasked", f"the driver cannot be asked now: {self._scarce}")
        elif pid is not None and (how := suspension(pid)):
            self._give_up("Unasked", f"the process that asks the driver is {how}")
        elif not self._ready:
            self._give_up("Hung", "the process that asks the driver does not start")
        else:
            self._give_up("Hung", f"the driver did not answer for it within {self.limit:g} s")

    def _died(self, status: int | None) -> None:
        kind, how = "Crashed", ""
        if status is not None:
            how = f" (by signal {-status})" if status < 0 else f" (status {status})"
            if status in (-signal.SIGKILL, -signal.SIGTERM):
                kind = "Unasked"  # somebody, or the kernel for memory, killed it: no card did
        self._give_up(kind, f"the process that asked the driver died{how}")

    def _give_up(self, kind: str, text: str) -> None:
        self._helper.kill()
        if self._current:
            error = {"code": None, "kind": kind, "text": text}
            self._answer({**self._current.request, "error": error})


# ── Cards ─────────────────────────────────────────────────────────────────────────────────────────

POOL_VARIABLE = "GPULAUNCH_SIM_POOL"
MEMORY = 80 * 2**30
TIMEOUT = 10.0


class ProbeClient(DriverHelper):
    """Looks at cards: in a loop without ever waiting for the driver, or with `looks`, blocking.

    A second question about a card before the answer to the first is dropped: both get that answer.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        limit: float = TIMEOUT,
        loop: Loop | None = None,
    ) -> None:
        super().__init__(environ, limit, loop)
        self._waiting: dict[str, list[LookCallback]] = {}

    def look(self, gpu: Gpu, then: LookCallback) -> None:
        """Look at a card; the loop calls `then`. A card whose call hangs is sick, no other."""
        waiting = self._waiting.setdefault(gpu.uuid, [])
        waiting.append(then)
        if len(waiting) == 1:
            self.ask(_look_at(gpu), self._answered)

    def _answered(self, answer: Mapping[str, Any]) -> None:
        reading = parse.look(answer)
        for then in self._waiting.pop(reading.uuid, ()):
            then(reading)


def find(
    environ: Mapping[str, str], timeout: float = TIMEOUT, client: ProbeClient | None = None
) -> Machine:
    """Return the machine's usable cards and MIG instances, and what is wrong with the others.

    `timeout` in seconds for each card. Raises nothing: a machine without a card is a Machine with
    a Fault that says why. A `client` is used, and stays for later looks.
    """
    with ExitStack() as stack:
        helper = client or stack.enter_context(DriverHelper(environ, timeout))
        (answer,) = helper.run([{"ask": "machine"}])
        if fault := parse.machine_fault(answer):
            return Machine(faults=(hinted(fault, environ),))
        answers = helper.run({"ask": "card", "index": n} for n in range(answer["count"]))
    return assembled(answer, answers)


def looks(client: ProbeClient, gpus: Sequence[Gpu]) -> dict[str, CardReading]:
    """Return readings of these cards, by UUID. Blocks up to the client's limit per card."""
    answers = client.run(map(_look_at, gpus))
    return {look.uuid: look for look in map(parse.look, answers)}


def _look_at(gpu: Gpu) -> dict[str, Any]:
    return {"ask": "look", "index": gpu.index, "uuid": gpu.uuid}


def assembled(machine: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Machine:
    parts = [parse.cards(answer) for answer in answers]
    # CUDA skips cards that it cannot open, and cards in MIG mode: NVML's indices are not CUDA's.
    unopened = [
        f"card {answer['index']}"
        for answer, (gpus, _) in zip(answers, parts, strict=True)
        if not any(not gpu.mig for gpu in gpus)
    ]
    # An index says nothing then of a card that has no other name.
    if unopened:
        parts = [parse.without_nameless(*part) for part in parts]
    return Machine(
        gpus=parse.linked([gpus for gpus, _ in parts], answers),
        faults=tuple(
            replace(fault, index=answer["index"])
            for answer, (_, faults) in zip(answers, parts, strict=True)
            for fault in faults
        ),
        driver=machine.get("driver"),
        cuda=parse.cuda_version(machine),
        unopened=tuple(unopened),
    )


def hinted(fault: Fault, environ: Mapping[str, str]) -> Fault:
    """Return the fault with advice if NVIDIA's container runtime was told to hide all cards."""
    value = environ.get("NVIDIA_VISIBLE_DEVICES")
    if value in ("void", "none"):
        return replace(
            fault, advice=f"NVIDIA_VISIBLE_DEVICES={value} hides every card from this container"
        )
    return fault


# ── Pretend cards, for trying a job file, for tests and for work that needs no card ──────────────


def simulated(count: int, pool: str) -> tuple[Gpu, ...]:
    """Return pretend cards SIM-0, SIM-1, ... of 80 GiB; a user's runs of one `pool` share them."""
    return tuple(
        Gpu(
            uuid=f"SIM-{n}",
            index=n,
            key=f"sim/{os.getuid()}/{short(pool).replace('/', '_')}/{n}",
            name="simulated",
            memory=MEMORY,
            simulated=True,
        )
        for n in range(count)
    )


class SimulatedProbe:
    """Looks at simulated cards as `ProbeClient` at real ones: always well, free and drained.

    The answer comes from the loop as a driver's does, never at once: otherwise the order of events
    on pretend cards would be another one than on real cards.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def look(self, gpu: Gpu, then: LookCallback) -> None:
        reading = CardReading(gpu.uuid, total=gpu.memory, free=gpu.memory, used=0)
        self._loop.call_after(object(), 0.0, lambda: then(reading))

    def close(self) -> None:
        """Give back nothing."""


def pool_name(run: str, environ: Mapping[str, str]) -> str:
    """Return the name of the pool of pretend cards: GPULAUNCH_SIM_POOL, else the run's own."""
    return environ.get(POOL_VARIABLE) or run
