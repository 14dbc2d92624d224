"""A strict pretend Slurm in this process, with a clock of its own: hours in milliseconds.

`PretendLoop` has the time. `PretendCluster` queues and runs: what it runs leaves on the disk what
the node's side leaves there (claim, beat, end), late where the file system shows it late. It fails
on what no launcher may do: a submission without its intent on the disk, a job of somebody else's
cancelled or held, an array too large, an attempt begun twice. `programs` has its commands.
"""

from __future__ import annotations

import binascii
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.agent.node.status import SLURM_ENDED_IT
from gpulaunch.base.loop import Callback, Loop
from gpulaunch.engines.slurm.reading import read_tasks
from gpulaunch.engines.slurm.rundir import SlurmDir

CARDS = 3
"""Tasks that run at once."""
CARDS_OF_A_NODE = 4
"""More than these no submission may ask for."""
REMEMBERED = 300.0
"""Seconds for which a finished job is known (MinJobAge)."""
BEAT = 15.0
HELD_WITHIN = 20.0
"""Seconds of the launcher's to hold what waits, once a run is paused."""
STRANGE_LASTS = 100.0
"""Seconds for which somebody else's job runs."""
SAVED_EVERY = 5.0
"""Seconds between two times at which the controller saves its state."""


class PretendLoop(Loop):
    """Timers alone; a turn goes to the next one at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._at: dict[Hashable, tuple[float, int, Callback]] = {}
        self._count = 0

    def call_at(self, key: Hashable, at: float, callback: Callback) -> None:
        self._count += 1
        self._at[key] = (at, self._count, callback)

    def call_after(self, key: Hashable, seconds: float, callback: Callback) -> None:
        self.call_at(key, self.now + seconds, callback)

    def forget(self, key: Hashable) -> None:
        self._at.pop(key, None)

    def drop(self, *beginnings: str) -> None:
        """Forget all timers whose keys begin so."""
        self._at = {key: at for key, at in self._at.items() if not str(key).startswith(beginnings)}

    def turn(self, block: bool = True) -> None:
        assert self._at, "nothing is going to happen"
        key = min(self._at, key=lambda key: self._at[key][:2])
        at, _, callback = self._at.pop(key)
        self.now = max(self.now, at)
        callback()

    def close(self) -> None:
        self._at.clear()


class Task(Struct):
    """One job, or one task of an array; `needs` are conditions of the form `afterok:12_3`."""

    number: int
    index: int | None
    title: str
    batch: str
    needs: list[str]
    at_once: int
    minutes: int = 0  # its time limit; 0: none was asked for
    ours: bool = True
    shown_at: float | None = None  # first shown to the launcher
    state: str = "PENDING"
    reason: str = "Resources"
    status: int = 0
    restarts: int = 0
    begins_at: float = 0.0  # not before that
    node: str = ""
    over_at: float = 0.0
    attempt: str = ""
    changed: float = 0.0

    def __str__(self) -> str:
        return str(self.number) if self.index is None else f"{self.number}_{self.index}"

    @property
    def over(self) -> bool:
        return self.state not in ("PENDING", "RUNNING")


class Plan(Struct):
    """What a job does: how long it takes, and its exit code."""

    seconds: float
    code: int = 0


class Truth(Struct):
    """What really happened, in order: `(time, "begins" | "ends" | "killed", attempt)`."""

    alive: set[str] = field(default_factory=set)
    history: list[tuple[float, str, str]] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)  # whose end the launcher was told
    useless: list[tuple[float, str]] = field(default_factory=list)  # starts that found a claim

    def begins(self, now: float, attempt: str) -> None:
        job = attempt.rpartition(".")[0]
        assert attempt not in self.closed, f"{attempt} begins after its end was told"
        running = [each for each in self.alive if each.rpartition(".")[0] == job]
        assert not running, f"{attempt} begins while {running} runs"
        assert attempt not in self.began, f"{attempt} begins twice"
        self.alive.add(attempt)
        self.history.append((now, "begins", attempt))

    def over(self, now: float, attempt: str, word: str) -> None:
        self.alive.discard(attempt)  # which may have had no time to begin its job
        self.ends[attempt] = word
        self.history.append((now, word, attempt))

    @property
    def began(self) -> list[str]:
        return [attempt for _, word, attempt in self.history if word == "begins"]

    def gone_at(self, attempt: str) -> float:
        """When nothing of it lived any more."""
        return max(at for at, word, each in self.history if each == attempt)


class PretendCluster:
    """`plans` by the job's name; others take 5 s and exit with 0. Of the attempts `full` no
    record could be laid out, as the run's disk was full. Each has a card, of which the node's
    driver speaks after `driver_takes` seconds; None: never. `shows` says how many seconds after it
    was written a file of a node's can be read here; `remembers` is MinJobAge. `keeps` gives the
    reason for which a task is not begun; `probe_fails` a probe's status and words, where it writes
    no file; `anew_after` seconds what was requeued is begun again."""

    def __init__(self, loop: PretendLoop, run: SlurmDir) -> None:
        self.loop = loop
        self.run = run
        self.tasks: list[Task] = []
        self.truth = Truth()
        self.plans: dict[str, Plan] = {}
        self.oom: set[str] = set()
        self.counted: set[str] = set()
        self.full: set[str] = set()
        self.driver_takes: float | None = 0.0
        self.shows: Callable[[], float] = lambda: 0.0
        self.remembers = REMEMBERED
        self.keeps: Callable[[Task], str] = lambda task: ""
        self.probe_fails: tuple[int, str] | None = None
        self.anew_after = 0.0
        self.prompt = True  # calls act within their time
        self.largest = 1001  # MaxArraySize
        self.room = 10_000  # MaxJobCount
        self.held: set[str] = set()
        self.given: Counter[str] = Counter()
        self.paused_at: float | None = None
        self.kills = 0
        self._saved: tuple[int, list[Task]] = (1000, [])
        self._lives: dict[str, Task] = {}
        self._stopping: set[str] = set()
        self._ever_held: set[tuple[str, str]] = set()
        self._completed: dict[str, bool] = {}
        self._shown_at: dict[Path, float] = {}
        self._numbers = 1000
        self.submissions = 0
        self._schedule()

    # ── The controller ──────────────────────────────────────────────────────────────────────────

    def submit(self, arguments: Sequence[str]) -> int:
        self._numbers += 1
        self.submissions += 1
        told = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--"))
        indices: Sequence[int | None] = [None]
        array, _, most = told.get("array", "").partition("%")
        if array:
            indices = list(read_tasks(array))
        needs = [word for word in told.get("dependency", "").split(",") if word]
        self._is_legal(arguments, told, indices, needs)
        for index in indices:
            task = Task(self._numbers, index, told["job-name"], arguments[-1], list(needs), 0)
            task.at_once = int(most or 0)
            task.minutes = int(told.get("time", 0))
            task.changed = self.loop.now
            self.tasks.append(task)
        return self._numbers

    def _is_legal(
        self,
        arguments: Sequence[str],
        told: Mapping[str, str],
        indices: Sequence[int | None],
        needs: Sequence[str],
    ) -> None:
        """Fail on a submission that no launcher may make."""
        batch = arguments[-1]
        assert {"parsable", "requeue", "export"} <= told.keys() or batch == "probe", arguments
        assert len(told["job-name"]) <= 120
        assert not needs or told.get("kill-on-invalid-dep") == "yes", "it would wait for ever"
        assert all(index is None or index < self.largest for index in indices), "too large an array"
        if batch != "probe":
            path = self.run.batch_list(batch)
            if not self.prompt or not path.exists():
                return  # a call may act so late that the batch was split meanwhile
            listed = json.loads(path.read_bytes())
            assert listed["title"] == told["job-name"]
            assert all(listed["attempts"][index or 0] for index in indices), "a task for nothing"
            self.given.update(listed["attempts"][index or 0] for index in indices)

    def is_intended(self, arguments: Sequence[str]) -> None:
        """Fail on a call that submits a batch whose intent is not on the disk: that comes first."""
        batch = arguments[-1]
        assert batch == "probe" or self.run.batch_list(batch).exists(), f"{batch}: no intent"

    def is_full(self, arguments: Sequence[str]) -> bool:
        """True if there is no room for so many jobs."""
        arrays = [word.partition("=")[2] for word in arguments if word.startswith("--array=")]
        count = len(list(read_tasks(arrays[0]))) if arrays else 1
        return len(self.tasks) + count > self.room

    def is_too_large(self, arguments: Sequence[str]) -> bool:
        """True if the submission asks for more cards than a node has."""
        asked = [word.partition("=")[2] for word in arguments if word.startswith("--gpus-per-node")]
        return any(int(count.rpartition(":")[2]) > CARDS_OF_A_NODE for count in asked)

    def needs_unknown(self, arguments: Sequence[str]) -> bool:
        """True if the submission depends on a job that the controller never heard of."""
        known = {str(task.number) for task in self.tasks}
        known.update(id.partition("_")[0] for id in self._completed)
        told = [word.partition("=")[2] for word in arguments if word.startswith("--dependency=")]
        return not known.issuperset(re.findall(r":(\d+)", ",".join(told)))

    def waiting_for(self, job: str) -> Task:
        """The job or task that is to begin the job's attempt."""
        for task in self.tasks:
            if task.state == "PENDING" and task.batch != "probe":
                names = json.loads(self.run.batch_list(task.batch).read_bytes())["attempts"]
                if names[task.index or 0].rpartition(".")[0] == job:
                    return task
        raise LookupError(job)

    def ends(self, *jobs: str) -> None:
        """Let jobs end, as soon as they run."""
        for job in jobs:
            self.plans[job] = replace(self.plans[job], seconds=0.1)
            for task in [*self._lives.values()]:
                if task.attempt.rpartition(".")[0] == job:
                    self._ends(task, self.plans[job].code)

    def strange(self, count: int = 1) -> list[Task]:
        """Somebody else's jobs, which no launcher may touch."""
        made = []
        for _ in range(count):
            self._numbers += 1
            task = Task(self._numbers, None, "somebody's", "", [], 0, ours=False)
            task.changed = self.loop.now
            self.tasks.append(task)
            made.append(task)
        return made

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs for the launcher, which names its own alone."""
        assert 0 < len(ids) <= 200
        for task in self.named(ids):
            self._may_touch(task, "cancelled")
        self.cancels(ids)

    def cancels(self, ids: Sequence[str]) -> None:
        """Cancel jobs, whoever asks for it."""
        for task in self.named(ids):
            if task.state == "PENDING":
                self._over(task, "CANCELLED")
            elif task.state == "RUNNING":
                self._kill(task, "CANCELLED")

    def signal(self, ids: Sequence[str]) -> None:
        for task in self.named(ids):
            self._may_touch(task, "signalled")
            if task.state == "RUNNING":
                self._look_at_stop(task)

    def reaches_limit(self, task: Task, minutes: int) -> None:
        """Slurm ends what runs, as its time of so many minutes is over."""
        task.minutes = minutes
        self._record(task, 143, "interrupted", SLURM_ENDED_IT)
        self._stops_living(task, "out of time")
        self._over(task, "TIMEOUT", status=15)

    def loses_node(self, task: Task) -> None:
        """The node is gone, with what ran there; Slurm does not start its job again."""
        self._stops_living(task, "killed")
        self._over(task, "NODE_FAIL")

    def hold(self, ids: Sequence[str], on: bool) -> None:
        for task in self.named(ids):
            self._may_touch(task, "held")
            assert on or str(task) not in self.held, f"{task} was held by a person"
            if task.state == "PENDING":
                task.reason = "JobHeldUser" if on else "Resources"

    def holds(self, task: Task) -> None:
        """A person holds a job that waits."""
        if task.state == "PENDING" and task.reason != "JobHeldUser":
            task.reason = "JobHeldUser"
            self.held.add(str(task))
            self._ever_held.add((str(task), task.title))

    def frees(self) -> None:
        """The person lets go whatever she held."""
        for task in self.tasks:  # what she freed before a controller has forgotten, too
            if (str(task), task.title) in self._ever_held and task.reason == "JobHeldUser":
                task.reason = "Resources"
        self.held.clear()

    def _may_touch(self, task: Task, what: str) -> None:
        """Fail where a launcher touches what two looks at the queue have shown to be another's."""
        known = task.shown_at is not None and self.loop.now > task.shown_at + 10.0
        assert task.ours or not known, f"{task} is somebody else's, and is {what}"

    def named(self, ids: Sequence[str]) -> list[Task]:
        found = []
        for id in ids:
            number, _, which = id.partition("_")
            among = read_tasks(which.strip("[]")) if which else None
            found += [
                task
                for task in self.tasks
                if str(task.number) == number and (among is None or task.index in among)
            ]
        return found

    def fail_node(self, task: Task) -> None:
        """The node is gone, with what ran there; Slurm puts its job back into the queue."""
        self._stops_living(task, "killed")
        self._put_back(task)

    def takes_for_dead(self, task: Task) -> None:
        """Slurm puts the job of a node that it does not reach back into the queue; it lives on."""
        again = replace(task, attempt="")
        self.tasks[self.tasks.index(task)] = again
        self._put_back(again)

    def silences(self, job: str) -> None:
        """The node of the job's attempt is gone, with what ran there, and Slurm has not noticed."""
        (task,) = (t for t in self._lives.values() if t.attempt.rpartition(".")[0] == job)
        self._stops_living(task, "killed")

    def requeue(self, task: Task, preempted: bool = False, held: bool = False) -> None:
        """Slurm ends what runs, and puts its job back into the queue; `held`: for ever."""
        why = " DUE TO PREEMPTION" if preempted else ""
        self._says(task, f"slurmstepd: error: *** JOB {task} ON n1 CANCELLED AT 12:00{why} ***\n")
        self._record(task, 143, "interrupted", SLURM_ENDED_IT)
        self._stops_living(task, "killed")
        self._put_back(task)
        task.reason = "JobHeldUser" if held else task.reason

    def _put_back(self, task: Task) -> None:
        task.state, task.node, task.reason = "PENDING", "", "BeginTime"
        task.restarts += 1
        task.changed = self.loop.now
        task.begins_at = self.loop.now + self.anew_after

    def _says(self, task: Task, text: str) -> None:
        """What Slurm or the node's side writes beside the job's log."""
        (self.run.said / (str(task) if "_" in str(task) else f"{task}_0")).write_text(text)

    def kill(self) -> None:
        """The controller dies, and another goes on with what was saved last.

        It gives numbers again and starts once more what it does not know to be started. Its nodes
        tell it how what it takes for running is now, and end what it knows nothing of.
        """
        self.kills += 1
        before = {(str(task), task.title): task for task in self.tasks}
        self._numbers, saved = self._saved
        self.tasks = [replace(task) for task in saved]
        known = {(str(task), task.title): task for task in self.tasks}
        for key, task in before.items():
            again = known.get(key)
            if task.attempt in self._lives and (again is None or again.state != "RUNNING"):
                if again is None or again.over or again.restarts != task.restarts:
                    self._stops_living(task, "killed")  # with its keepers: no record
            elif again is not None and again.state == "RUNNING":
                self.tasks[self.tasks.index(again)] = task
        for task in self.tasks:
            if task.state == "RUNNING" and task.ours and task.attempt not in self._lives:
                self._over(task, "NODE_FAIL")
        held = [task for task in self.tasks if task.reason == "JobHeldUser"]
        self.held &= {str(task) for task in held if (str(task), task.title) in before}

    def save(self) -> None:
        """Write the controller's state to its disk."""
        self._saved = self._numbers, [replace(task) for task in self.tasks]

    def forget(self, task: Task) -> None:
        """The node is gone, with what ran there, and Slurm knows nothing of either any more."""
        self._stops_living(task, "killed")
        self.tasks.remove(task)

    def _schedule(self) -> None:
        self.loop.call_after("cluster", 1.0, self._schedule)
        now = self.loop.now
        for task in self.tasks:
            if task.over and now - task.over_at >= self.remembers:
                self._completed[str(task)] = task.state == "COMPLETED"
        self.tasks = [t for t in self.tasks if not t.over or now - t.over_at < self.remembers]
        if now % SAVED_EVERY < 1.0:
            self.save()
        for task in self.tasks:
            if task.state == "RUNNING" and not task.ours and now - task.changed > STRANGE_LASTS:
                self._over(task, "COMPLETED")
        running = [task for task in self.tasks if task.state == "RUNNING" and task.ours]
        for task in self.tasks:
            if task.state != "PENDING" or task.reason == "JobHeldUser" or now < task.begins_at:
                continue
            met = [self._met(task, need) for need in task.needs]
            if False in met:
                self._over(task, "CANCELLED", "DependencyNeverSatisfied")
            elif None in met:
                task.reason = "Dependency"
            elif task.ours and (reason := self.keeps(task)):
                task.reason = reason
            elif not task.ours:
                task.state, task.node = "RUNNING", "n2"
            elif len(running) < CARDS and not self._too_many(task, running):
                self._start(task)
                running.append(task)
            else:
                task.reason = "Resources"

    def _too_many(self, task: Task, running: Sequence[Task]) -> bool:
        return 0 < task.at_once <= sum(other.number == task.number for other in running)

    def _met(self, task: Task, need: str) -> bool | None:
        kind, *ids = need.split(":")
        if kind == "aftercorr":
            ids = [f"{id}_{task.index}" for id in ids]
        verdicts: list[bool | None] = []
        for id in ids:
            among = self.named([id])
            if not among:  # purged, or forgotten as it ran
                verdicts.append(kind == "afterany" or self._completed.get(id, False))
            for other in among:
                completed = kind == "afterany" or other.state == "COMPLETED"
                verdicts.append(completed if other.over else None)
        return False if False in verdicts else None if None in verdicts else True

    def _over(self, task: Task, state: str, reason: str = "None", status: int = 0) -> None:
        task.state, task.reason, task.status = state, reason, status
        task.over_at = task.changed = self.loop.now

    # ── A node ──────────────────────────────────────────────────────────────────────────────────

    def _start(self, task: Task) -> None:
        late = self.paused_at is not None and self.loop.now > self.paused_at + HELD_WITHIN
        assert not (late and task.ours), f"{task} starts although the run is paused"
        task.state, task.node, task.reason = "RUNNING", "n1", "None"
        task.changed = self.loop.now
        if task.batch == "probe":
            self._probes(task)
            return
        listed = self.run.batch_list(task.batch)
        if not listed.exists():
            self._over(task, "FAILED", status=78 << 8)
            return
        names = json.loads(listed.read_bytes())["attempts"]
        if (task.index or 0) >= len(names):
            self._over(task, "FAILED", status=78 << 8)
            return
        task.attempt = names[task.index or 0]
        if not self._claim(task):
            self.truth.useless.append((self.loop.now, task.attempt))
            task.attempt = ""
            self._over(task, "FAILED", status=75 << 8)
        elif task.attempt in self.full:
            del self._lives[task.attempt]
            self._over(task, "FAILED", status=73 << 8)
        elif self.driver_takes:
            self.loop.call_after(self._key(task), self.driver_takes, lambda: self._goes_on(task))
        elif self.driver_takes is not None:
            self._goes_on(task)

    def _probes(self, task: Task) -> None:
        if self.probe_fails is None:
            self.run.seen.touch()
            self._over(task, "COMPLETED")
            return
        status, said = self.probe_fails
        if said:
            self._says(task, said)
        self._over(task, "FAILED", status=status)

    def _claim(self, task: Task) -> bool:
        start = {
            "attempt": task.attempt, "job": str(task), "node": "n1", "host": "n1", "pid": 7,
            "restart": task.restarts, "mask": None, "boot": "b", "awaits_cards": True,
            "gpus": [{"index": 0, "uuid": "n1/0", "name": ""}],
            "started": (self.loop.now, self.loop.now),
        }  # fmt: skip
        try:
            self._start_file(task).touch(exist_ok=False)  # link(2) sees it everywhere, at once
        except FileExistsError:
            return False
        self._lives[task.attempt] = task
        self._write(self._start_file(task), json.dumps(start).encode() + b"\n")
        return True

    def _goes_on(self, task: Task) -> None:
        """It has heard of its card, and begins the job."""
        cards = [{"index": 0, "uuid": "GPU-5f", "name": "H100"}]
        self._write(self._start_file(task), json.dumps({"gpus": cards}).encode() + b"\n")
        self.truth.begins(self.loop.now, task.attempt)
        plan = self.plans.get(task.attempt.rpartition(".")[0], Plan(5.0))
        self.loop.call_after(self._key(task), plan.seconds, lambda: self._ends(task, plan.code))
        self._beat(task)
        self._look_at_stop(task)

    def _write(self, path: Path, data: bytes) -> None:
        """Append to the file, once it shows here; one write after the other."""

        def append() -> None:
            with path.open("ab") as file:
                file.write(data)

        at = max(self.loop.now + self.shows(), self._shown_at.get(path, 0.0))
        self._shown_at[path] = at
        if at > self.loop.now:
            self.loop.call_at(f"show {path} {len(data)} {at}", at, append)
        else:
            append()

    def _start_file(self, task: Task) -> Path:
        return self.run.starts / task.attempt

    def _beat(self, task: Task) -> None:
        if task.attempt in self.truth.alive and self._start_file(task).exists():
            now = (self.loop.now, self.loop.now)
            os.utime(self._start_file(task), now, follow_symlinks=False)
            self.loop.call_after(f"beat {task.attempt}", BEAT, lambda: self._beat(task))

    def _look_at_stop(self, task: Task) -> None:
        if self._lives.get(task.attempt) is not task or task.attempt in self._stopping:
            return
        try:
            stop = json.loads((self.run.stops / task.attempt).read_bytes())
        except OSError:
            self.loop.call_after(f"stop {task.attempt}", 5.0, lambda: self._look_at_stop(task))
            return
        self._stopping.add(task.attempt)
        self.loop.call_after(
            self._key(task), 0.5, lambda: self._ends(task, 143, stop["reason"], stop["by"])
        )

    def _ends(self, task: Task, code: int, cause: str | None = None, by: str = "") -> None:
        self._record(task, code, cause, by)
        self._stops_living(task, f"{cause or 'exited'} {code}")
        state = "COMPLETED" if code == 0 else "FAILED"
        if task.attempt.rpartition(".")[0] in self.oom:
            state = "OUT_OF_MEMORY"
        if any(task is known for known in self.tasks):  # else the controller waits to start it
            self._over(task, state, status=code << 8)

    def _kill(self, task: Task, state: str) -> None:
        if task.attempt in self._lives:
            self._record(task, 143, "interrupted", SLURM_ENDED_IT)
            self._stops_living(task, "killed")
        self._over(task, state, status=15)

    def _stops_living(self, task: Task, word: str) -> None:
        if self._lives.get(task.attempt) is task:
            del self._lives[task.attempt]
            self.truth.over(self.loop.now, task.attempt, word)
            self.loop.forget(self._key(task))
            self.loop.forget(f"stop {task.attempt}")

    def _record(self, task: Task, code: int, cause: str | None, by: str) -> None:
        now = self.loop.now
        record = {
            "attempt": task.attempt, "pid": 7, "status": code << 8, "cause": cause, "by": by,
            "seconds": None, "missing": [], "error": None, "leftovers": 0,
            "oom_kills": int(task.attempt.rpartition(".")[0] in self.counted),
            "started": (now, now), "ended": (now, now),
        }  # fmt: skip
        line = json.dumps(record).encode()
        self._write(
            self.run.path / "ends" / task.attempt, b"%08x %s\n" % (binascii.crc32(line), line)
        )

    def _key(self, task: Task) -> str:
        return f"task {task.attempt}"

    # ── What it says ────────────────────────────────────────────────────────────────────────────

    def rows(self, array: bool) -> list[list[Task]]:
        """The tasks that the queue shows, those together that have one row."""
        rows: dict[int | str, list[Task]] = {}
        for task in self.tasks:
            task.shown_at = task.shown_at or self.loop.now
            alone = array or task.index is None or task.state != "PENDING"
            # Slurm says nothing of a task that was cancelled while it waited.
            if task.index is None or task.node or task.state != "CANCELLED":
                rows.setdefault(str(task) if alone else task.number, []).append(task)
        return list(rows.values())
