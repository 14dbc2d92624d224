"""A made-up but likely night, as a run's directory: journal, samples, logs, manifest.

Four cards fold, redesign and relax sixty antibodies. One card is a colleague's until two, one is
lost at half past four; some jobs run out of memory, one has a card written into it, one takes too
long. Times and figures are invented; the same ones every time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpulaunch.core import facts as f
from gpulaunch.core.causes import Quoted
from gpulaunch.core.model import AttemptId, End, Exited, Failure, Outcome, TimedOut
from gpulaunch.journal import manifest as manifests
from gpulaunch.journal.codec import encode, iso
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.metrics.store import Step, Store
from tests.views.history import START, History

GIB = 1 << 30
NAMES = 60
OOM = (
    "gpu_oom",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.25 GiB. GPU 0 has a total"
    " capacity of 79.20 GiB of which 11.43 GiB is free.",
    "Ask for a card with more memory free (gpu_memory: 40GB), or make the batch or the input"
    " smaller; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against gaps.",
)
MIXED = (
    "device_mismatch",
    "RuntimeError: Expected all tensors to be on the same device, but got src is on cuda:3",
    "A card is written into the program: the job's own card is cuda:0. gpulaunch check finds the"
    " line.",
)
LOST = (
    "gpu_lost",
    "Xid 79 (GPU has fallen off the bus)",
    "A fault of the hardware or the driver: the card is set aside for this run.",
)


@dataclass
class Night:
    """The run as it goes: what is ready, which cards are free, what ends when."""

    run: History = field(default_factory=lambda: History(4).open())
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    cpu: list[str] = field(default_factory=list)
    free: list[int] = field(default_factory=lambda: [0, 1, 2])
    cpus: int = 6
    on: dict[str, tuple[int, ...]] = field(default_factory=dict)
    count: int = 0
    lost: str = ""

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.due, (self.run.mono + seconds, self.count, act))

    def play(self) -> History:
        while self.due:
            moment, _, act = heapq.heappop(self.due)
            self.run.pass_(moment - self.run.mono)
            act()
            self.fill()
        return self.run

    def fill(self) -> None:
        while self.ready and self.free:
            wide = self.run.ledger.jobs[self.ready[0]].definition.gpus
            if len(self.free) < wide:
                break
            name, cards = self.ready.pop(0), tuple(sorted(self.free)[:wide])
            self.free = [card for card in self.free if card not in cards]
            for card in cards:
                self.run.add(f.GpuChanged(f"GPU-{card}", "leased"))
            self.start(name, cards)
        while self.cpu and self.cpus:
            self.cpus -= 1
            self.start(self.cpu.pop(0), ())

    def start(self, name: str, cards: tuple[int, ...]) -> None:
        self.on[name] = cards
        self.run.start(name, *cards)
        number = len(self.run.ledger.jobs[name].attempts)
        self.at(seconds_of(name), lambda: self.end(name, number))

    def end(self, name: str, number: int) -> None:
        if name not in self.on or len(self.run.ledger.jobs[name].attempts) != number:
            return  # the card under it was lost
        cards = self.on.pop(name)
        outcome, why = ending(name, number)
        self.close(name, outcome, why)
        self.give_back(cards)

    def close(self, name: str, outcome: Outcome, why: tuple[str, str, str] | None) -> None:
        attempt = AttemptId(name, len(self.run.ledger.jobs[name].attempts))
        kind, evidence, advice = why or ("", "", "")
        advised = (Quoted(advice),) if advice else ()
        end = End(outcome, Failure(kind, evidence, advised) if kind else None)
        self.run.add(f.AttemptEnded(attempt, end, charged=kind not in ("", "gpu_lost")))
        if kind == "gpu_lost" or (kind == "gpu_oom" and attempt.number == 1):
            self.run.add(f.JobDelayed(name, Quoted("waits for a card")))
            self.ready.insert(0, name)
        elif kind:
            self.run.add(f.JobSettled(name, "failed", Quoted("exited with status 1")))
            self.skip(name)
        else:
            self.run.add(f.JobSettled(name, "succeeded"))
            self.follow(name)

    def give_back(self, cards: tuple[int, ...]) -> None:
        if not cards:
            self.cpus += 1
        for card in cards:
            self.run.add(f.GpuChanged(f"GPU-{card}", "draining"))
            self.at(2.5 + card, lambda card=card: self.drained(card))  # type: ignore[misc]

    def drained(self, card: int) -> None:
        if self.lost != f"GPU-{card}":
            self.run.add(f.GpuChanged(f"GPU-{card}", "free"))
            self.free.append(card)

    def follow(self, name: str) -> None:
        kind, _, number = name.partition("-")
        if kind == "fold":
            self.ready.insert(0, f"design-{number}")
        if kind == "design":
            self.cpu.append(f"relax-{number}")
        if kind in ("relax", "fold") and not self.on and not self.ready and not self.cpu:
            self.cpu.append("summary")

    def skip(self, name: str) -> None:
        _, _, number = name.partition("-")
        for kind in ("design", "relax"):
            if f"{kind}-{number}" in self.run.ledger.jobs and f"{kind}-{number}" != name:
                self.run.skip(f"{kind}-{number}", f"needs {name}, which failed")

    def lose(self, card: int) -> None:
        """It falls off the bus: its job goes on elsewhere."""
        self.lost = f"GPU-{card}"
        name = next(name for name, cards in self.on.items() if card in cards)
        attempt = AttemptId(name, len(self.run.ledger.jobs[name].attempts))
        self.run.add(
            f.GpuReported(self.lost, "Xid 79: the card has fallen off the bus", (attempt,))
        )
        others = [c for c in self.on.pop(name) if c != card]
        self.close(name, Exited(1), LOST)
        self.run.add(f.GpuChanged(self.lost, "aside", Quoted("Xid 79: it has fallen off the bus")))
        self.free = [c for c in self.free if c != card] + others

    def come_free(self, card: int) -> None:
        self.run.add(f.GpuChanged(f"GPU-{card}", "free"))
        self.free.append(card)


def seconds_of(name: str) -> float:
    kind, _, number = name.partition("-")
    n = int(number) if number.isdigit() else 0
    wave = math.sin(2.3 * n) + 0.4 * math.sin(0.7 * n)
    if name == "fold-41":
        return 3600.0
    return {
        "fold": 840 + 280 * wave,
        "design": 260 + 60 * wave,
        "relax": 900 + 240 * wave,
        "train": 5400,
        "summary": 40,
    }[kind]


def ending(name: str, number: int) -> tuple[Outcome, tuple[str, str, str] | None]:
    if name in ("fold-17", "fold-33") or (name == "fold-26" and number == 1):
        return Exited(1), OOM
    if name == "design-08":
        return Exited(1), MIXED
    if name == "fold-41":
        return TimedOut("timeout", 3600), (
            "timeout",
            "",
            "Give it a longer timeout:, or less to do.",
        )
    return Exited(0), None


def night(names: int = NAMES) -> History:
    """The whole of it, from a quarter past eleven to the morning."""
    it = Night()
    run = it.run
    numbers = [f"{n:02}" for n in range(names)]
    run.jobs(*(f"fold-{n}" for n in numbers))
    run.jobs(*(f"design-{n}" for n in numbers), group=1)
    run.jobs(*(f"relax-{n}" for n in numbers), group=2, cards=0)
    run.jobs("train-ranker", group=3, cards=2).jobs("summary", group=4, cards=0)
    run.add(f.GpuChanged("GPU-3", "occupied", Quoted("python (pid 4711) of ann, 40 GiB")))
    it.ready = [f"fold-{n}" for n in numbers]
    it.ready.insert(36, "train-ranker")
    it.at(2 * 3600 + 460, lambda: it.come_free(3))
    it.at(15300, lambda: it.lose(1))
    it.at(1.0, lambda: None)
    it.play()
    if run.ledger.jobs["summary"].state == "waiting":
        run.start("summary").pass_(40).succeed("summary")
    run.add(f.Noted("GPU 3 is in use by ann: python (pid 4711), 40 GiB; taken when it comes free"))
    run.pass_(1)
    return run.add(f.RunClosed("failed", Quoted("4 jobs failed"), 1))


# ── As a directory ──────────────────────────────────────────────────────────────────────────────


def write(path: Path, run: History | None = None, measured: bool = True) -> RunDir:
    """The run's directory, its journal whole."""
    run = run or night()
    where = RunDir(path)
    for directory in (where.path, where.logs):
        directory.mkdir(parents=True, exist_ok=True)
    where.events.write_bytes(b"".join(encode(n, *dated) for n, dated in enumerate(run.facts, 1)))
    for job in run.ledger.jobs.values():
        for attempt in job.attempts:
            where.log(attempt.id).write_text(log_of(attempt.id, attempt.evidence))
    manifests.write(where.manifest, _manifest(run))
    if measured:
        _measure(where, run)
    return where


def log_of(attempt: AttemptId, evidence: str) -> str:
    lines = [f"loading weights for {attempt.job}", "sampling:  25%|##   |", "sampling: 100%|#####|"]
    if evidence.startswith(("torch", "Runtime")):
        lines += [
            "Traceback (most recent call last):",
            '  File "fold.py", line 212, in <module>',
            "    predict(model, batch)",
            '  File "fold.py", line 148, in predict',
            "    out = model(**batch)",
            evidence,
        ]
    elif not evidence:
        lines += ["wrote pred.model_idx_0.cif, confidence 0.87", "done"]
    return "\n".join(lines) + "\n"


def _manifest(run: History) -> manifests.Manifest:
    opened = next(fact for fact, _ in run.facts if isinstance(fact, f.RunOpened))
    command = ("gpulaunch", "run", "jobs.yaml")
    turn = manifests.Epoch(
        1, iso(START), "0.1.0", "gpubox", "boot", 7, "maria", command, commit="9f8e7d6c" * 5
    )
    return manifests.Manifest(
        run=opened.run,
        name=opened.name,
        version="0.1.0",
        host="gpubox",
        boot="boot",
        user="maria",
        command=command,
        cwd="/data/nanobodies",
        job_file="/data/nanobodies/jobs.yaml",
        started=iso(START),
        python="3.11.9",
        kernel="6.8.0",
        driver="570.86",
        gpus=opened.gpus,
        simulated=opened.simulated,
        git=manifests.Git("3b5d9f1c6f0e4c5f9a0a4b6a1f7f6d2c8e9b0a1d", True),
        epochs=(turn,),
    )


MEMORY = {"fold": 22, "design": 9, "train": 61}
LOAD = {"fold": 71, "design": 38, "train": 92}


def _measure(where: RunDir, run: History) -> None:
    """One sample in twenty seconds of each card, and what each attempt came to."""
    store, steps = Store(where.metrics), list[Step]()
    attempts = [a for job in run.ledger.jobs.values() for a in job.attempts if a.ended]
    for gpu in run.pool:
        steps.append(("know_gpu", {"gpu": gpu.uuid}))
    at, end = START, run.now.utc
    by_card = {
        gpu.uuid: sorted(
            (a.launched.utc, a.ended.utc, a.id.job)
            for a in attempts
            if gpu.uuid in a.gpus and a.ended
        )
        for gpu in run.pool
    }
    step = max(20.0, (end - START) / 2000)
    while at < end:
        for gpu in run.pool:
            steps.append(("card", _card(gpu.uuid, at, by_card[gpu.uuid])))
        at += step
    for attempt in attempts:
        steps += _attempt_steps(
            attempt.id, len(attempt.gpus), attempt.seconds, attempt.launched.utc
        )
    assert store.write(steps, START)
    store.close()


def _card(uuid: str, at: float, spans: list[tuple[float, float, str]]) -> dict[str, object]:
    job = next((name for start, end, name in spans if start <= at < end), "")
    kind = job.partition("-")[0]
    since = at - next((start for start, _, name in spans if name == job), at)
    jitter = 14 * hash_of(f"{uuid} {at:.0f}") - 7
    load = LOAD.get(kind, 0) * (0.15 if since < 45 else 1) + jitter
    load += 6 * math.sin(at / 170 + hash_of(job))
    memory = MEMORY.get(kind, 0) * min(1.0, 0.3 + since / 300) + 1.2 * math.sin(at / 400)
    theirs = uuid == "GPU-3" and at < START + 2 * 3600 + 460
    if theirs:
        load, memory = 55 + 9 * math.sin(at / 900) + jitter, 40
    used = bool(job) or theirs
    return {
        "gpu": uuid,
        "at": at,
        "utilization": round(min(100, max(0, load))) if used else 0,
        "memory": int(max(0.5, memory) * GIB) if used else GIB // 2,
        "power": 400.0 if used else 90.0,
        "temperature": 60 if used else 35,
        "throttled": "",
    }


def _attempt_steps(who: AttemptId, gpus: int, seconds: float, at: float) -> list[Step]:
    kind = who.job.partition("-")[0]
    name = {"job": who.job, "number": who.number}
    wave = hash_of(who.job)
    memory = int((MEMORY[kind] + 3 * wave) * GIB) if gpus else None
    if ending(who.job, who.number)[1] == OOM:
        memory = 68 * GIB
    use = {
        "at": at,
        "seconds": seconds,
        "span": seconds,
        "gpu_memory": memory,
        "card_memory": memory,
        "utilization": LOAD[kind] + 6 * wave if gpus else None,
        "cpu_seconds": seconds * 1.4,
        "resident": int((3 + wave) * GIB),
    }
    return [("know_attempt", {**name, "gpus": gpus or None}), ("use", {**name, **use})]


def hash_of(name: str) -> float:
    """Between 0 and 1, of the name, the same everywhere."""
    return sum(ord(c) * (n + 1) for n, c in enumerate(name)) % 97 / 97
