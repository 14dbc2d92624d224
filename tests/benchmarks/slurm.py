"""On a throw-away Slurm cluster: a list of short tasks against a bare array, and a task's own cost.

The cluster is this machine alone: what its nodes spend is spent beside the launcher and Slurm.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import launchers, machine
from tests.benchmarks.created import Created
from tests.process.onnode import Node
from tests.slurm.cluster import Cluster, missing

NAP = "0.1"
"""Seconds of a task."""
NODES = 8
CPUS = 8
"""Of each of the cluster's nodes: so many tasks run there at once."""
COUNTED = '#!/bin/sh\necho >> "$GPULAUNCH_BENCH_CALLS"\nexec {sbatch} "$@"\n'
BARE = "#!/bin/sh\nexec {command}\n"
PATIENCE = 1200.0


def measure(quick: bool) -> dict[str, object]:
    """`list` is of the whole command, `node` of one task where nothing else runs."""
    if why := missing():
        return {"absent": {"Slurm": why}}
    before = machine.describe()  # its load: afterwards that is the cluster's own
    tasks, rounds, tries = (20, 1, 3) if quick else (2000, 1, 60)
    settings = {"MaxArraySize": "4001", "MaxJobCount": "20000"}
    found: dict[str, list[float]] = {"gpulaunch": [], "array": []}
    with (
        tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name,
        Cluster(NODES, 0, settings) as cluster,
    ):
        place = Path(name)
        for number in range(rounds):
            found["array"].append(_array(place / f"array-{number}", tasks, cluster))
            seconds, seen = _list(place / f"list-{number}", tasks, cluster)
            found["gpulaunch"].append(seconds)
        node = _node(place, tries)
    each = {name: median(values) for name, values in found.items()}
    return {
        "machine": before,
        "tasks": tasks,
        "task_seconds": float(NAP),
        "at_once": NODES * CPUS,
        "gpulaunch_seconds": round(each["gpulaunch"], 1),
        "array_seconds": round(each["array"], 1),
        "over_array_ratio": round(each["gpulaunch"] / each["array"], 2),
        **seen,
        **node,
    }


def _array(work: Path, tasks: int, cluster: Cluster) -> float:
    """Seconds of a bare array, from its submission to its end."""
    work.mkdir()
    script = work / "batch.sh"
    script.write_text(BARE.format(command=f"sleep {NAP}"))
    begun = time.monotonic()
    words = ["--wait", f"--array=0-{tasks - 1}", f"--output={work}/%A_%a", f"--chdir={work}"]
    run = subprocess.run(
        ["sbatch", *words, str(script)],
        env=cluster.environ,
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    assert run.returncode == 0
    return time.monotonic() - begun


def _list(work: Path, tasks: int, cluster: Cluster) -> tuple[float, dict[str, Any]]:
    """Seconds of the same tasks as a job list, and what Slurm and the run directory saw of them."""
    work.mkdir()
    (work / "items.txt").write_text("".join(f"{number}\n" for number in range(tasks)))
    (work / "jobs.yaml").write_text(
        "jobs:\n  - name: j-{{index}}\n    foreach: {lines: items.txt}\n    gpus: 0\n"
        f'    run: [sleep, "{NAP}"]\n'
    )
    calls = _counted(work, cluster)
    command = [sys.executable, "-m", "gpulaunch", "run", "jobs.yaml", "--quiet"]
    command += ["--engine", "slurm", "--run-dir", "run"]
    run = work / "run"
    run.mkdir()
    environ = {**launchers.environment(), **cluster.environ, "GPULAUNCH_BENCH_CALLS": str(calls)}
    environ["PATH"] = f"{work}/bin:{environ['PATH']}"
    with Created(run) as created:
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=work, env=environ, capture_output=True, check=False, timeout=PATIENCE
        )
        seconds = time.monotonic() - begun
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-20:]
        raise launchers.FailedError("\n".join([f"status {done.returncode}", *words]))
    left = [path for path in run.rglob("*") if path.is_file() and not path.is_symlink()]
    return seconds, {
        "sbatch_calls": len(calls.read_text().splitlines()),
        "files_made_per_task": {
            name: round(count / tasks, 2)
            for name, count in sorted(created.names.items())
            if count >= tasks / 2
        },
        "files_left": len(left),
        "empty_files_left": sum(not path.stat().st_size for path in left),
    }


def _counted(work: Path, cluster: Cluster) -> Path:
    """Put an sbatch first on the path that writes a line for each call into the returned file."""
    calls, program = work / "calls", work / "bin/sbatch"
    program.parent.mkdir()
    calls.touch()
    real = subprocess.run(
        ["sh", "-c", "command -v sbatch"], env=cluster.environ, capture_output=True, check=True
    )
    program.write_text(COUNTED.format(sbatch=shlex.quote(real.stdout.decode().strip())))
    program.chmod(0o755)
    return calls


# ── A task's own cost ───────────────────────────────────────────────────────────────────────────


def _node(place: Path, tries: int) -> dict[str, float]:
    """What the batch script adds around a task, on a node where nothing else runs: `_ms`."""
    node = Node(place / "node")
    for number in range(tries):
        node.ticket("true", job=f"job-{number}")
    (place / "slurmstepd").symlink_to("/bin/sh")  # the name of what starts a batch script
    bare = place / "bare.sh"
    bare.write_text(BARE.format(command="true"))
    spent: dict[str, list[tuple[float, float]]] = {"node": [], "bare": []}
    for number in range(tries):
        environ = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "12"}
        environ |= {"SLURM_JOB_ID": str(13 + number), "SLURMD_NODENAME": "n1"}
        environ |= {"PATH": os.environ["PATH"], "SLURM_CPUS_ON_NODE": "1"}
        spent["bare"].append(_spent(place / "slurmstepd", [str(bare)], environ))
        spent["node"].append(_spent(place / "slurmstepd", node.batch_command(), environ))
    wall, cpu = (
        {name: median(one[part] for one in spent[name]) for name in spent} for part in (0, 1)
    )
    return {
        "node_ms": round(1000 * (wall["node"] - wall["bare"]), 1),
        "node_cpu_ms": round(1000 * (cpu["node"] - cpu["bare"]), 1),
    }


def _spent(above: Path, command: list[str], environ: Mapping[str, str]) -> tuple[float, float]:
    """Seconds, and seconds of CPU with all that came of it."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    shell = shlex.split(Path(command[0]).read_text().partition("\n")[0][2:])
    words = [above, "-c", '"$@"; exit $?', "sh", *shell, *command]
    done = subprocess.run(words, env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done
    after, over = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return over - begun, cpu


if __name__ == "__main__":
    print(json.dumps(measure(quick="--quick" in sys.argv), indent=1))
