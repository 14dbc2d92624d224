"""Finds the cards and looks at them, by questions to the helper process.

    find(environ) -> Machine                      once, blocking
    ProbeClient: look(gpu, then)                  in a loop, never blocking
    looks(client, gpus) -> {uuid: Look}           a few cards at once, blocking

Never calls into the driver from this process, never judges a card (`free`), prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from gpulaunch.core.model import Gpu
from gpulaunch.gpus import parse
from gpulaunch.gpus.helper import DriverHelper
from gpulaunch.gpus.machine import CardReading, Fault, LookCallback, Machine
from gpulaunch.gpus.names import short
from gpulaunch.loop import Loop

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
