"""The commands of the pretend Slurm, whose words go through the engine's own readers.

`Fault` says what goes wrong with a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gpulaunch.base.text import ranges
from gpulaunch.engines.slurm import commands
from tests.slurm.world import PretendCluster, PretendLoop, Task

CONFIG = "Configuration data\nMaxArraySize = {}\nMaxJobCount = 10000\nMinJobAge = 300 sec\n"
FAILED = "sbatch: error: Batch job submission failed: "
UNKNOWN_NEED = f"{FAILED}Job dependency problem\n"
TOO_LARGE = f"{FAILED}Requested node configuration is not available\n"
FULL = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"


class Fault(Struct, frozen=True):
    """What goes wrong with a call. `acts`: seconds after which it does its work, None: never;
    `answers`: seconds after which its answer comes, `change` made of it."""

    acts: float | None = 0.02
    answers: float = 0.05
    change: Callable[[commands._End], commands._End] = lambda end: end
    stale: float = 0.0


Faults = Callable[[str, Sequence[str]], Fault]


class Programs(commands.Slurm):
    """The engine's calls, on a pretend cluster."""

    def __init__(self, loop: PretendLoop, cluster: PretendCluster, faults: Faults) -> None:
        super().__init__(loop, {"PATH": ""})
        self._cluster = cluster
        self._faults = faults
        self._said: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
        self.calls: list[tuple[float, str, Sequence[str]]] = []

    def _call(
        self,
        program: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        done: Callable[[commands._End], object],
    ) -> None:
        self._count += 1
        loop = self._cluster.loop
        self.calls.append((loop.now, program, arguments))
        if program == "sbatch":
            self._cluster.is_intended(arguments)
        fault = self._faults(program, arguments)
        answers: list[commands._End] = [commands._End(program, 0)]

        def act() -> None:
            answers[0] = self._do(program, arguments, fault.stale)

        if fault.acts is not None:
            loop.call_after(f"act {id(self)} {self._count}", fault.acts, act)
        loop.call_after(
            f"answer {id(self)} {self._count}",
            fault.answers,
            lambda: done(fault.change(answers[0])),
        )

    def _do(self, program: str, arguments: Sequence[str], stale: float) -> commands._End:
        cluster = self._cluster
        match [program, *arguments]:
            case ["sbatch", *_] if cluster.is_full(arguments):
                return commands._End(program, 1, "", FULL)
            case ["sbatch", *_] if cluster.is_too_large(arguments):
                return commands._End(program, 1, "", TOO_LARGE)
            case ["sbatch", *_] if cluster.needs_unknown(arguments):
                return commands._End(program, 1, "", UNKNOWN_NEED)
            case ["sbatch", *_]:
                return commands._End(program, 0, f"{cluster.submit(arguments)}\n")
            case ["squeue", *_] if any("Command:" in word for word in arguments):
                return commands._End(program, 0, scripts(cluster, arguments))
            case ["squeue", *_]:
                (form,) = (w.partition("=")[2] for w in arguments if w.startswith("--Format="))
                array = "--array" in arguments
                return commands._End(program, 0, self._listed(form, array, stale))
            case ["scancel", *words]:
                ids = [word for word in words if not word.startswith("--")]
                cluster.signal(ids) if len(ids) < len(words) else cluster.cancel(ids)
            case ["scontrol", "show", "config"]:
                config = CONFIG.format(cluster.largest)
                return commands._End(program, 0, config + "SLURM_VERSION = 22.05.8\n")
            case ["scontrol", *_, "show", "job", id]:
                return commands._End(program, *show(cluster, id))
            case ["scontrol", ("hold" | "release") as verb, ids]:
                cluster.hold(re.split(r",(?![^\[]*\])", ids), verb == "hold")
        return commands._End(program, 0)

    def _listed(self, form: str, array: bool, stale: float) -> str:
        """What it would say; or what it said so many seconds ago, at least."""
        separator = form.split(",")[0].partition(":")[2]
        now, said = self._cluster.loop.now, self._said[array]
        said.append((now, squeue(self._cluster, form, array).replace(separator, "\0")))
        old = [text for at, text in said if at <= now - stale] or [said[0][1]]
        return old[-1].replace("\0", separator)


# ── What they print ─────────────────────────────────────────────────────────────────────────────


def squeue(cluster: PretendCluster, form: str, array: bool = False) -> str:
    """`array`: a row for each task. Else what waits of an array has one, with all reasons."""
    separator, rows = form.split(",")[0].partition(":")[2], []
    for some in cluster.rows(array):
        task, reasons = some[0], dict.fromkeys(each.reason for each in some)
        id = str(task)
        if len(some) > 1:
            most = f"%{task.at_once}" if task.at_once else ""
            id = f"{task.number}_[{ranges(t.index or 0 for t in some)}{most}]"
        fields = (
            id, task.state, ",".join(reasons), str(task.status), str(task.restarts),
            task.node, "N/A", f"{task.minutes}:00" if task.minutes else "UNLIMITED", task.title,
        )  # fmt: skip
        rows.append("".join(f"{each}{separator}" for each in fields) + "\n")
    return "".join(rows)


def scripts(cluster: PretendCluster, arguments: Sequence[str]) -> str:
    """Each job's name and command, of those that wait or run."""
    separator = next(w for w in arguments if "Command:" in w).rpartition("Command:")[2]
    told = [
        (task.title, f"{cluster.run.batch_script} {task.batch}" if task.ours else "/home/x/job.sh")
        for task in cluster.tasks
        if not task.over
    ]
    return "".join(f"{name}{separator}{command}{separator}\n" for name, command in told)


def show(cluster: PretendCluster, id: str) -> tuple[int, str, str]:
    """The status and both outputs of `scontrol show job`."""
    found = [task for task in cluster.named([id]) if task.node or task.state != "CANCELLED"]
    if not found:
        if any(str(task.number) == id.partition("_")[0] for task in cluster.tasks):
            return 1, f"Job {id} not found\n", ""
        return 1, "", "slurm_load_jobs error: Invalid job id specified\n"
    return 0, "".join(map(_shown, found)), ""


def _shown(task: Task) -> str:
    array = "" if task.index is None else f"ArrayJobId={task.number} ArrayTaskId={task.index} "
    code, number = task.status >> 8, task.status & 0x7F
    limit = f"{task.minutes // 60:02}:{task.minutes % 60:02}:00" if task.minutes else "UNLIMITED"
    return (
        f"JobId={task.number} {array}JobName={task.title}\n"
        f"   UserId=root(0) GroupId=root(0) MCS_label=N/A\n"
        f"   JobState={task.state} Reason={task.reason} Dependency=(null)\n"
        f"   Requeue=1 Restarts={task.restarts} BatchFlag=1 Reboot=0 ExitCode={code}:{number}\n"
        f"   RunTime=00:00:01 TimeLimit={limit} TimeMin=N/A\n"
        f"   NodeList={task.node}\n"
        "   Power=\n   \n\n"
    )
