"""gpulaunch and the others, each as one call: so many jobs, of one program, on so many slots.

Peers come into a throw-away place: Debian's packages by `apt-get download` and `dpkg -x` (nothing
is installed, no root is needed), PyPI's by pip into a virtual environment. What cannot be had is
absent, with the reason.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

Launch: TypeAlias = Callable[[Path, int, int, Sequence[str]], None]
"""In a fresh directory, on so many slots, so many jobs of this program; back when all are over."""


class Launcher(NamedTuple):
    """`launch` runs jobs that are all there when the first begins; `whole` is all that a user does.

    They differ where jobs are handed over one by one.
    """

    launch: Launch
    whole: Launch


PATIENCE = 120.0
REPOSITORY = Path(__file__).parents[2]


def have(place: Path) -> tuple[dict[str, Launcher], dict[str, str]]:
    """Those that can be measured here, and why the others cannot."""
    found = {"gpulaunch": Launcher(gpulaunch, gpulaunch)}
    absent: dict[str, str] = {}
    makers: dict[str, Callable[[Path], Launch | Launcher]] = {
        "xargs -P": _xargs,
        "GNU Parallel": _parallel,
        "task-spooler": _spooler,
        "simple_gpu_scheduler": _scheduler,
        "HyperQueue": _hyperqueue,
    }
    for name, make in makers.items():
        try:
            made = make(place)
            found[name] = made if isinstance(made, Launcher) else Launcher(made, made)
        except TROUBLE as error:
            absent[name] = f"{error}"[:200]
    return found, absent


def gpulaunch(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
    """Journal, logs, leases and keepers on; pretend cards."""
    run(prepare(work, slots, map(str, range(count)), program), work, environ=environment())


def prepare(work: Path, slots: int, items: Iterable[str], program: Sequence[str]) -> list[str]:
    """Write the job file; the command that runs it."""
    (work / "items.txt").write_text("\n".join(items) + "\n")
    words = ", ".join(f'"{word}"' for word in program)
    (work / "jobs.yaml").write_text(
        "jobs:\n  - name: j-{{index}}\n    foreach: {lines: items.txt}\n    run: [" + words + "]\n"
    )
    base = [sys.executable, "-m", "gpulaunch", "run", "jobs.yaml", "--quiet"]
    return [*base, "--simulate", str(slots), "--run-dir", "run"]


def environment() -> dict[str, str]:
    """Ours, with this repository's package first."""
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environ = {**os.environ, "PYTHONPATH": path}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each command would compile its modules anew
    return environ


class FailedError(Exception):
    """A launcher, or what was to bring it here, failed: its last words."""


TROUBLE = (OSError, subprocess.SubprocessError, FailedError)
"""What a launcher that cannot be measured here raises."""


def run(
    command: Sequence[str],
    work: Path,
    stdin: str = "",
    environ: dict[str, str] | None = None,
) -> None:
    """Raises FailedError."""
    done = subprocess.run(
        command,
        cwd=work,
        input=stdin.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environ,
        check=False,
        timeout=PATIENCE,
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["no word"]
        raise FailedError(f"{Path(command[0]).name}: {words[-1]}")


def _numbers(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


def _xargs(place: Path) -> Launch:
    xargs = _found("xargs")

    def launch(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
        run([xargs, "-P", str(slots), "-n", "1", *program], work, _numbers(count))

    return launch


def _parallel(place: Path) -> Launch:
    parallel = shutil.which("parallel") or _debian("parallel", place) + "/parallel"
    perl = _found("perl")

    def launch(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
        command = [perl, parallel, "--will-cite", "-j", str(slots), *program]
        run(command, work, _numbers(count), {**os.environ, "HOME": str(work)})

    return launch


FILL = 'n=$1; shift; while [ $((n -= 1)) -ge 0 ]; do "$0" -n "$@" > spooled; done'
"""A shell's line that hands task-spooler so many jobs, one by one."""


def _spooler(place: Path) -> Launcher:
    spooler = shutil.which("tsp") or _debian("task-spooler", place) + "/tsp"

    def whole(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
        environ = {**os.environ, "TS_SOCKET": str(work / "s"), "TS_SLOTS": str(slots)}
        run(["sh", "-c", FILL, spooler, str(count), *program], work, environ=environ)
        deadline = time.monotonic() + PATIENCE
        listed = [spooler, "-l"]
        while time.monotonic() < deadline:
            said = subprocess.run(listed, cwd=work, env=environ, capture_output=True, check=True)
            if b" queued " not in said.stdout and b" running " not in said.stdout:
                break
            time.sleep(0.05)
        run([spooler, "-K"], work, environ=environ)

    def launch(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
        """Its slots are held until all jobs are there."""
        environ = {**os.environ, "TS_SOCKET": str(work / "s"), "TS_SLOTS": str(slots)}
        hold = ["sh", "-c", "while [ ! -e go ]; do sleep 0.01; done"]
        run(["sh", "-c", FILL, spooler, str(slots), *hold], work, environ=environ)
        run(["sh", "-c", FILL, spooler, str(count), *program], work, environ=environ)
        (work / "go").touch()
        whole(work, slots, 0, program)

    return Launcher(launch, whole)


def _scheduler(place: Path) -> Launch:
    scheduler = _pypi("simple_gpu_scheduler", place) / "simple_gpu_scheduler"

    def launch(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
        gpus = [str(number) for number in range(slots)]
        run([str(scheduler), "--gpus", *gpus], work, (shlex.join(program) + "\n") * count)

    return launch


HYPERQUEUE = """
import sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
slots, count, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
with LocalCluster(worker_config=WorkerConfig(cores=slots)) as cluster:
    client = cluster.client()
    job = Job()
    for _ in range(count):
        job.program(program)
    client.wait_for_jobs([client.submit(job)])
"""


def _hyperqueue(place: Path) -> Launch:
    """Server and worker through its Python package, which carries no `hq`."""
    python = _pypi("hyperqueue", place) / "python"

    def launch(work: Path, slots: int, count: int, program: Sequence[str]) -> None:
        words = [str(python), "-c", HYPERQUEUE, str(slots), str(count), *program]
        run(words, work, environ={**os.environ, "HOME": str(work)})

    launch(_made(place / "hyperqueue-tried"), 1, 1, ["true"])  # its library may not fit this system
    return launch


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"there is no {name}")
    return path


def _made(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def _debian(package: str, place: Path) -> str:
    """Where the package's programs are, unpacked from the system's own registry."""
    folder = _made(place / package)
    run([_found("apt-get"), "download", "-q", package], folder)
    (archive,) = folder.glob("*.deb")
    run([_found("dpkg"), "-x", str(archive), "tree"], folder)
    return str(folder / "tree/usr/bin")


def _pypi(package: str, place: Path) -> Path:
    folder = place / package
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run([sys.executable, "-m", "venv", str(folder)], place, environ=environ)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", package]
    run(pip, place, environ=environ)
    return folder / "bin"
