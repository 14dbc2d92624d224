"""What a batch script asks Slurm for, as lines of the shell: cards, time, CPUs, arrays.

#SBATCH --gres=gpu:2         export CUDA_VISIBLE_DEVICES=0,1   (how many, not which)
#SBATCH --array=0-3          for SLURM_ARRAY_TASK_ID in 0 1 2 3; do ( ... ) & done
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from gpulaunch.jobfile.sbatch import FLAGS, SHORT
from gpulaunch.starter.entry import StarterRemark, Untranslatable
from gpulaunch.starter.mask import MASK
from gpulaunch.starter.memory import CPUS, TIME

TASK = "SLURM_ARRAY_TASK_ID"
_MAX_TASKS = 10_000
_SHORT = {f"-{letter}": f"--{name}" for letter, name in SHORT.items()}
_GPUS = ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task")
_OF_SRUN = ("--overlap", "--exact", "--unbuffered", "-u", "--label", "-l")
_FLAGS = FLAGS | {"--parsable", "--requeue", "--no-requeue", *_OF_SRUN}
_TOLD = {
    **dict.fromkeys(
        ("--mem", "--mem-per-cpu", "--mem-per-gpu"), "gpulaunch reserves no host memory"
    ),
    **dict.fromkeys(("--output", "--error"), "each job has a log of its own: logs/JOB.N.log"),
    **dict.fromkeys(("--mail-type", "--mail-user"), "say notify: in the job file"),
    "--begin": "write not_before: for it",
}
_QUIET = frozenset({*_GPUS, "--array", "--time", "--cpus-per-task", "--job-name", "--ntasks"})
_QUIET |= frozenset({"--nodes", "--ntasks-per-node", "--chdir", "--export", "--wrap"})
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class BatchOptions(Struct):
    """Options by their long names. `told` are (option, why) of what a job file does not say."""

    options: dict[str, str] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)

    def under(self, other: Mapping[str, str]) -> BatchOptions:
        """With others on top, as the command line's are."""
        return BatchOptions({**self.options, **other}, self.told)

    def gpus(self) -> int:
        """Return how many cards. Raises Untranslatable."""
        for name in _GPUS:
            value = self.options.get(name, "")
            if name == "--gres" and not value.startswith("gpu"):
                continue
            if value:
                last = value.split(",")[0].rpartition(":")[2]
                return int(last) if last.isdigit() else 1
        return 0

    def lines(self) -> str:
        """Statements that say it, each ended by `;`. Raises Untranslatable."""
        out = ""
        if self.options.get("--nodes", "1") not in ("1", "1-1"):
            raise Untranslatable("--nodes: a job has the cards of one machine")
        if (tasks := self.options.get("--ntasks", "1")).isdigit() and int(tasks) > 1:
            raise Untranslatable("--ntasks: starts several copies; a job is one process tree")
        if gpus := self.gpus():
            out += f"export {mask_of(gpus)}; "
        if (seconds := seconds_of(self.options.get("--time", ""))) is not None:
            out += f"{TIME}={spelt(seconds)}; "
        if (cpus := self.options.get("--cpus-per-task", "")).isdigit():
            out += f"{CPUS}={cpus}; SLURM_CPUS_PER_TASK={cpus}; "
        if name := self.options.get("--job-name", ""):
            out += f"SLURM_JOB_NAME={shlex.quote(name)}; "
        if directory := self.options.get("--chdir", ""):
            out += f"cd {directory}; "
        return out

    def tasks(self) -> list[str]:
        """Return the array's numbers; none without an array. Raises Untranslatable."""
        return list(_tasks(self.options.get("--array", "").partition("%")[0]))


def mask_of(gpus: int) -> str:
    """Return a mask of so many cards: the translator counts them and cuts it."""
    return f"{MASK}=" + ",".join(map(str, range(gpus)))


def asked(words: list[str]) -> tuple[BatchOptions, list[str]]:
    """Options at the front of the words, and the words behind them."""
    found, at = BatchOptions(), 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        name, equals, value = words[at].partition("=")
        if not name.startswith("--") and len(name) > 2 and name[:2] in _SHORT:
            name, value, equals = name[:2], words[at][2:], "="
        name = _SHORT.get(name, name)
        if not equals and name not in _FLAGS and at + 1 < len(words):
            at += 1
            value = words[at]
        found.options[name] = value
        if name in _TOLD:
            found.told.append((f"{name}={value}", _TOLD[name]))
        elif name in _GPUS:
            found.told += [(f"{name}={value}", why) for why in _unsaid(name, value)]
        elif name not in _QUIET and name not in _FLAGS:
            found.told.append((f"{name}={value}".rstrip("="), "only Slurm knows of it"))
        at += 1
    if "%" in found.options.get("--array", ""):
        most = found.options["--array"].partition("%")[2]
        why = f"as many run as have cards: `gpulaunch run --gpus {most}` for at most so many"
        found.told.append((f"%{most}", why))
    return found, words[at:]


def _unsaid(name: str, value: str) -> Iterator[str]:
    """Yield what of the cards that are asked for a job file does not say."""
    first, *others = value.split(",")
    kind, *parts = first.split(":") if name == "--gres" else ["gpu", *first.split(":")]
    if kind != "gpu":
        others = [first, *others]
    elif parts and not parts[-1].isdigit() and (len(parts) > 1 or "$" in parts[-1]):
        yield f"{parts[-1]} is no plain number of cards: the job file says 1"
    if kind == "gpu" and parts and not parts[0].isdigit() and "$" not in parts[0]:
        yield (
            f"any card will do here; on a cluster, engine: {{slurm: {{gres: {parts[0]}}}}} in the"
            f" job asks for {parts[0]}"
        )
    if others:
        yield f"only Slurm knows of {', '.join(others)}"


def header(source: str) -> tuple[BatchOptions, list[StarterRemark]]:
    """Return the `#SBATCH` lines of a script, and what of them is not taken over."""
    found: dict[str, str] = {}
    told: list[StarterRemark] = []
    for number, line in enumerate(source.splitlines(), 1):
        if re.match(r"#(PBS|\$|BSUB)\s+-", line):
            why = "another batch system's: say it in the job file"
            told.append(StarterRemark(number, line, why))
        if not line.startswith("#SBATCH"):
            if line.strip() and not line.startswith("#"):
                break
            continue
        try:
            one, _ = asked(shlex.split(line[len("#SBATCH") :], comments=True))
        except ValueError:
            told.append(StarterRemark(number, line, "could not be read"))
            continue
        found |= one.options
        told += [StarterRemark(number, line, why) for _, why in one.told]
    return BatchOptions(found), told


def _tasks(spelt: str) -> Iterator[str]:
    count = 0
    for part in spelt.split(",") if spelt else []:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part)
        if match is None:
            raise Untranslatable(f"--array={spelt}: numbers that only the shell can know")
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        for number in range(first, last + 1, int(match.group(3) or 1)):
            count += 1
            if count > _MAX_TASKS:
                raise Untranslatable(f"--array={spelt}: more than {_MAX_TASKS} jobs in a line")
            yield str(number)


def seconds_of(time: str) -> int | None:
    """Seconds of Slurm's time: minutes, minutes:seconds, hours:minutes:seconds, days-hours ..."""
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    days, first, second, third = match.groups()
    if days is not None:
        return 86400 * int(days) + 3600 * int(first) + 60 * int(second or 0) + int(third or 0)
    if third is not None:
        return 3600 * int(first) + 60 * int(second) + int(third)
    return 60 * int(first) + int(second or 0)


def spelt(seconds: int) -> str:
    """Return a time as the job file has it."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
