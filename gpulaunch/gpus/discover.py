"""Finds the cards and looks at them, by questions to the helper process.

    find(environ) -> Machine                      once, blocking
    ProbeClient: look(gpu) ... on_readable()      in a loop, never blocking
    looks(client, gpus) -> {uuid: Look}           a few cards at once, blocking

Never calls into the driver from this process, never judges a card (`free`), prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from gpulaunch.core.model import Gpu
from gpulaunch.gpus import parse
from gpulaunch.gpus.helper import DriverHelper
from gpulaunch.gpus.machine import CardReading, Fault, Machine
from gpulaunch.gpus.simulated import simulated

__all__ = ["ProbeClient", "find", "looks", "simulated"]

TIMEOUT = 10.0


class ProbeClient:
    """Looks at cards without ever waiting for the driver. Watch `fileno()`; it never changes.

    A second question about a card before the answer to the first is dropped.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, limit: float = TIMEOUT) -> None:
        self.helper = DriverHelper(environ, limit)
        self._asked: set[str] = set()

    def __enter__(self) -> ProbeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self.helper.fileno()

    @property
    def deadline(self) -> float | None:
        """The monotonic time at which to call `overdue`; None while no question is under way."""
        return self.helper.deadline

    def look(self, gpu: Gpu) -> None:
        if gpu.uuid not in self._asked:
            self._asked.add(gpu.uuid)
            self.helper.ask({"ask": "look", "index": gpu.index, "uuid": gpu.uuid})

    def on_readable(self) -> list[CardReading]:
        return [self._take(answer) for answer in self.helper.on_readable()]

    def overdue(self, now: float) -> CardReading | None:
        """Kill a helper whose call hangs; return its card's reading, as sick, else None.

        Also returns the reading of a card that could not be asked about, for want of processes or
        descriptors. The questions about other cards go on.
        """
        late = self.helper.overdue(now)
        return None if late is None else self._take(late)

    def close(self) -> None:
        self.helper.close()

    def _take(self, answer: Mapping[str, Any]) -> CardReading:
        look = parse.look(answer)
        self._asked.discard(look.uuid)
        return look


def find(
    environ: Mapping[str, str], timeout: float = TIMEOUT, client: ProbeClient | None = None
) -> Machine:
    """Return the machine's usable cards and MIG instances, and what is wrong with the others.

    `timeout` in seconds for each card. Raises nothing: a machine without a card is a Machine with
    a Fault that says why. A `client`'s helper is used, and stays for later looks.
    """
    with ExitStack() as stack:
        helper = client.helper if client else stack.enter_context(DriverHelper(environ, timeout))
        (answer,) = helper.run([{"ask": "machine"}])
        if fault := parse.machine_fault(answer):
            return Machine(faults=(hinted(fault, environ),))
        answers = helper.run({"ask": "card", "index": n} for n in range(answer["count"]))
    return assembled(answer, answers)


def looks(client: ProbeClient, gpus: Sequence[Gpu]) -> dict[str, CardReading]:
    """Return readings of these cards, by UUID. Blocks up to the client's limit per card."""
    requests = [{"ask": "look", "index": gpu.index, "uuid": gpu.uuid} for gpu in gpus]
    return {look.uuid: look for look in map(parse.look, client.helper.run(requests))}


def assembled(machine: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Machine:
    parts = [parse.cards(answer) for answer in answers]
    # CUDA skips cards that it cannot open, and cards in MIG mode: NVML's indices are not CUDA's.
    unopened = [
        f"card {answer['index']}"
        for answer, (gpus, _) in zip(answers, parts, strict=True)
        if not any(not gpu.mig for gpu in gpus)
    ]
    return Machine(
        gpus=tuple(gpu for gpus, _ in parts for gpu in gpus),
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
