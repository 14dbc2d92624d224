"""The environment variables of an attempt.

Pure: variables in, variables out. The keeper's own environment is the base; a `Delta` says what
is set and what is removed there, so that the caller's values are written nowhere.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.agent.proc import own_environment
from gpulaunch.base.environment_modules import calls_module, file_for_calls, start_up_file
from gpulaunch.core.model import Gpu, Job, LadderStep, address_variable
from gpulaunch.core.template import Text, shown
from gpulaunch.diagnose import explain
from gpulaunch.engines.affinity import CpuPlacement, NearCpus
from gpulaunch.engines.programs import INSTALLED, Programs
from gpulaunch.gpus.mask import Style, visible

if TYPE_CHECKING:
    from gpulaunch.engines.command import NodeSlots

RANKS = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID", "SLURM_LOCALID",
)  # fmt: skip
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENMM_CPU_THREADS")
MASTER = ("MASTER_ADDR", "MASTER_PORT")
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
}
MEMORY_AS_NEEDED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""For jobs that share a card: JAX and TensorFlow take most or all of a card's memory when they
start, unless told not to (docs.jax.dev, GPU memory allocation; tensorflow.org/guide/gpu)."""
# Names the variables that were gpulaunch's own choice: for a launcher inside the job they are not
# "what the user set", and must not win there.
CHOSEN = "GPULAUNCH_CHOSEN"
KEEP = "GPULAUNCH_KEEP"
"""Names the directory that a job's attempts share, for the jobs that use one."""
KINDS_KEPT = 64
"""Kinds of attempts at most of which `EnvironmentMaker` remembers what they share."""
_PORT = "\0"
"""Stands for an attempt's port among what is shared; no variable's value can be this."""


class MachineLimits(Struct, frozen=True):
    """The machine's part in the choice of variables. `cpus`: how many are allowed; `pool`: how
    many cards the run may have at once; `cache`: the directory of compiler caches; `placement`:
    which CPUs are near which cards."""

    cpus: int
    pool: int
    cache: str
    placement: CpuPlacement = CpuPlacement()


class MpsVariables(Struct, frozen=True):
    """The variables of a client of MPS: `fixed` ones, and `offered` ones that a user may set."""

    fixed: tuple[tuple[str, str], ...]
    offered: tuple[tuple[str, str], ...] = ()


class AttemptPlace(Struct, frozen=True):
    """Where one attempt runs: its cards, ports and directories.

    `style` is how the mask is spelt; `scope` names the cards' leases for launchers inside the job;
    `addresses` are those of the services that the job needs, by name. `run` is empty for a command
    outside of any run (`gpulaunch exec`). `step`: the number of its step of the job's ladder.
    `sharers`: how many jobs like it the card may have at once; 0: as `per_gpu` says.
    `near`: the CPUs on which it runs, None for all that are allowed. `mps`: the daemon whose client
    it is; None for none.

    `slots`: placeholders, where an engine is still to choose the node. There are no `gpus` then,
    and the ports are placeholders too; the mask of a job with cards is what that engine sets.
    """

    gpus: tuple[Gpu, ...]
    style: Style
    scope: str
    master_port: int | str
    run: str = ""
    run_dir: str = ""
    attempt: int = 1
    out: str = ""
    keep: str = ""
    port: int | str | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None
    sharers: int = 0
    slots: NodeSlots | None = None
    near: NearCpus | None = None
    mps: MpsVariables | None = None

    @property
    def gpu_index(self) -> str:
        """The cards' indices, comma-separated, or their placeholder; empty without cards."""
        return self.slots.gpu_index if self.slots else ",".join(str(g.index) for g in self.gpus)

    @property
    def gpu_uuid(self) -> str:
        """The cards' UUIDs, comma-separated, or their placeholder; empty without cards."""
        return self.slots.gpu_uuid if self.slots else ",".join(gpu.uuid for gpu in self.gpus)

    @property
    def card(self) -> str:
        """The cards' UUIDs as part of a file's name, or their placeholder; empty without cards."""
        if self.slots:
            return self.slots.card
        return "+".join(gpu.uuid for gpu in self.gpus).replace("/", "_")

    @property
    def mask(self) -> Mapping[str, str]:
        """The variables that let a program see these cards and no others."""
        return {} if self.slots and self.slots.gpus else visible(self.gpus, self.style)


class Delta(Struct, frozen=True):
    """Changes to an environment: `set` wins over what is there, `unset` is removed."""

    set: Mapping[str, str]
    unset: frozenset[str]

    def over(self, base: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in base.items() if k not in self.unset}
        return {**kept, **self.set}


def delta(
    job: Job,
    place: AttemptPlace,
    machine: MachineLimits,
    base: Mapping[str, str],
    own: Mapping[str, str | None],
    programs: Programs = INSTALLED,
) -> Delta:
    """Return the changes to `base` for this attempt.

    `own`: the job's env_file and env with placeholders filled; None removes a variable.
    """
    chosen_above = frozenset(base.get(CHOSEN, "").split(",")) - {""}
    unset = set(chosen_above)
    if not job.keep:
        unset.add(KEEP)  # of a job of gpulaunch around this one
    if not job.inherit_ranks:
        unset.update(RANKS)
    choices = _choices(job, place, machine)
    if not isinstance(job.run, tuple) and place.slots is None:
        # A start-up file, which even `bash -c` reads: that of environment modules alone. On a
        # cluster sites have their own, and a job finds what a script of one's own would.
        unset.add("BASH_ENV")
        choices |= _start_up(job.run, base)
    unset.update(name for name, value in own.items() if value is None)
    wishes = {name: value for name, value in own.items() if value is not None}
    chosen = {
        name: value
        for name, value in choices.items()
        if name not in own and (name in unset or name not in base)
    }
    stays = {name: base[name] for name in MASTER if name in base and name not in unset}
    known = {**chosen, **stays, **wishes}
    for name in MASTER:
        # torchrun reads the PET_ variables: a user's MASTER_ADDR or MASTER_PORT holds there too.
        if f"PET_{name}" in chosen and name in known:
            chosen[f"PET_{name}"] = known[name]
    set_ = {
        **chosen,
        **wishes,
        **(explain.environment(base, own, programs.at(explain.INJECT)) if job.explain else {}),
        **_interpreter(job, wishes.get("PATH", base.get("PATH", os.path.defpath)), place.run_dir),
        **_facts(job, place),
        **place.mask,
        CHOSEN: ",".join(sorted(chosen)),
    }
    if job.python or job.venv or job.conda:
        unset.add("PYTHONHOME")
    return Delta(set_, frozenset(unset - set_.keys()))


def _start_up(script: Text, base: Mapping[str, str]) -> dict[str, str]:
    """Return the start-up file with which a script's bash has `module`, if there is one."""
    file = start_up_file(base)
    if file is None and calls_module(shown(script)):
        file = file_for_calls(base)
    return {} if file is None else {"BASH_ENV": file}


class LentEnvironment(Struct, frozen=True, eq=False, weakref=True):
    """An environment that jobs were added with. `number` tells it from others, from 1."""

    number: int
    environ: Mapping[str, str]


class EnvironmentMaker:
    """Makes the changes for the attempts of a run. What those of one kind share is made once.

    `base` is the keepers' own environment; jobs that others added have what those lent them.
    `programs`: where gpulaunch's own programs are, for jobs that use some.
    """

    def __init__(
        self,
        machine: MachineLimits,
        base: Mapping[str, str],
        programs: Programs = INSTALLED,
    ) -> None:
        self.machine = machine
        self.base = base
        self.programs = programs
        self._lent: dict[str, LentEnvironment] = {}
        # What no job has any more is forgotten.
        self._alike: WeakValueDictionary[int, LentEnvironment] = WeakValueDictionary()
        self._by_number: WeakValueDictionary[int, LentEnvironment] = WeakValueDictionary()
        self._count = 0
        self._asks = file_for_calls(base) is not None
        self._shared: dict[tuple[object, ...], tuple[Delta, tuple[str, ...]]] = {}

    def lend(self, names: Iterable[str], environ: Mapping[str, str]) -> None:
        """Let these jobs have this environment instead of `base`. It is kept in memory alone."""
        alike = hash(frozenset(environ.items()))
        lent = self._alike.get(alike)
        if lent is None or lent.environ != environ:
            self._count += 1
            lent = LentEnvironment(self._count, environ)
            self._alike[alike] = self._by_number[lent.number] = lent
        self._lent.update(dict.fromkeys(names, lent))

    def forget(self, names: Iterable[str]) -> None:
        """Forget what was lent to jobs that are not run again."""
        for name in names:
            self._lent.pop(name, None)

    def lent_to(self, job: str) -> int:
        """Return the number of the environment that was lent to a job, 0 for none."""
        lent = self._lent.get(job)
        return 0 if lent is None else lent.number

    def environ(self, number: int) -> Mapping[str, str]:
        """Return the environment of that number; for 0, or a forgotten one, the keepers' own."""
        lent = self._by_number.get(number)
        return self.base if lent is None else lent.environ

    def delta(self, job: Job, place: AttemptPlace, own: Mapping[str, str | None]) -> Delta:
        """Return what the function `delta` returns.

        For a job with an environment of its own: the changes that make it of `base`, or, where an
        engine hands that environment over itself (`place.slots`), the changes to it.
        """
        number = self.lent_to(job.name)
        environ = self.environ(number)
        if place.slots is not None:  # which are each attempt's own
            return delta(job, place, self.machine, environ, own, self.programs)
        if number:
            changes = delta(job, place, self.machine, environ, own, self.programs)
            whole = changes.over(environ)
            return _between(self.base, whole)
        facts = _facts(job, place)
        kind = (*_kind(job, place, own), tuple(facts), self._asks and _calls_module(job))
        if kind not in self._shared:
            if len(self._shared) >= KINDS_KEPT:
                self._shared.clear()
            like = replace(place, master_port=_PORT)
            marked = delta(job, like, self.machine, self.base, own, self.programs)
            ports = tuple(name for name, value in marked.set.items() if value == _PORT)
            self._shared[kind] = marked, ports
        shared, ports = self._shared[kind]
        port = dict.fromkeys(ports, str(place.master_port))
        return Delta({**shared.set, **facts, **port}, shared.unset)

    def inside(
        self, job: Job, place: AttemptPlace, own: Mapping[str, str | None], caches: str
    ) -> dict[str, str]:
        """Return the variables that the job's program gets in a container, beside its image's own.

        Of the environment around it those alone that stand for a choice of gpulaunch's, and ranks
        where they are inherited: the others may name what the image does not have. `caches`: the
        directory of compiler caches.
        """
        environ = self.environ(self.lent_to(job.name))
        names = {"PYTHONUNBUFFERED", *THREADS, *MASTER, *(f"PET_{name}" for name in MASTER)}
        names -= set(environ.get(CHOSEN, "").split(","))
        names |= set(RANKS) if job.inherit_ranks else set()
        base = {name: environ[name] for name in names if name in environ}
        machine = replace(self.machine, cache=caches)
        return delta(job, place, machine, base, own, self.programs).over(base)


def _between(base: Mapping[str, str], whole: Mapping[str, str]) -> Delta:
    """Return the changes that make `whole` of `base`."""
    changed = {name: value for name, value in whole.items() if base.get(name) != value}
    return Delta(changed, frozenset(base.keys() - whole.keys()))


def _calls_module(job: Job) -> bool:
    return not isinstance(job.run, tuple) and calls_module(shown(job.run))


def _kind(job: Job, place: AttemptPlace, own: Mapping[str, str | None]) -> tuple[object, ...]:
    """Return all that `delta` goes by, but for the attempt's own port and the values of `_facts`.

    The names of those come beside it: what one attempt has and another has not is not shared.
    """
    needs, interpreter = job.demand, (job.python, job.venv, job.conda)
    flags = job.inherit_ranks, job.explain, isinstance(job.run, tuple), job.keep
    cards = place.gpus, place.style, place.sharers, place.near, place.mps and place.mps.offered
    return needs, interpreter, flags, cards, tuple(own.items())


def _choices(job: Job, place: AttemptPlace, machine: MachineLimits) -> dict[str, str]:
    """Return the variables that gpulaunch chooses where the user did not set them."""
    chosen = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(place.master_port),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(place.master_port),
    }
    count = str(threads(job, machine, place.sharers, place.near))
    if place.slots and job.demand.gpus and job.demand.cpus is None:
        count = place.slots.threads  # what this job is granted, not this machine's share
    chosen.update(dict.fromkeys(THREADS, count))
    if job.demand.gpus and job.demand.shares_card:
        chosen.update(MEMORY_AS_NEEDED)
    if place.mps:
        chosen.update(place.mps.offered)
    if card := place.card:
        for name, kind in CACHES.items():
            chosen[name] = f"{machine.cache}/{kind}/{card}"
    return chosen


def threads(
    job: Job, machine: MachineLimits, sharers: int = 0, near: NearCpus | None = None
) -> int:
    """Return how many threads a numerical library should start in this job.

    `sharers`: how many jobs like it the card may have at once; 0: as `per_gpu` says.
    """
    if job.demand.cpus is not None:
        return max(1, job.demand.cpus)
    if not job.demand.gpus:
        return 1
    if near is not None:
        return near.threads
    beside = sharers or job.demand.per_gpu
    return max(1, machine.cpus // max(1, machine.pool) // max(1, beside))


def _facts(job: Job, place: AttemptPlace) -> dict[str, str]:
    facts = {
        "GPULAUNCH_GPU_INDEX": place.gpu_index,
        "GPULAUNCH_GPU_UUID": place.gpu_uuid,
        "GPULAUNCH_LEASED": place.scope,
        **{address_variable(name): address for name, address in place.addresses.items()},
    }
    if place.run:
        facts |= {
            "GPULAUNCH_RUN_DIR": place.run_dir,
            "GPULAUNCH_RUN_ID": place.run,
            "GPULAUNCH_JOB": job.name,
            "GPULAUNCH_ATTEMPT": str(place.attempt),
            "GPULAUNCH_OUT": place.out,
        }
        if job.keep:
            facts[KEEP] = place.keep
    if place.step is not None:
        facts["GPULAUNCH_STEP"] = str(place.step)
    if place.mps is not None:
        facts.update(place.mps.fixed)
    return facts


def _interpreter(job: Job, path: str, run_dir: str) -> dict[str, str]:
    """PATH and friends for `python`, `venv` or `conda`, as activation would set them."""
    first = first_on_path(job, run_dir)
    if not first:
        return {}
    others = (part for part in path.split(os.pathsep) if part not in first)
    found = {"PATH": os.pathsep.join([*first, *others])}
    if job.venv:
        return {"VIRTUAL_ENV": job.venv, **found}
    if job.conda:
        name = os.path.basename(job.conda)
        return {"CONDA_PREFIX": job.conda, "CONDA_DEFAULT_ENV": name, **found}
    return found


def first_on_path(job: Job, run_dir: str) -> tuple[str, ...]:
    """Return the directories of the job's own Python, which come first on its PATH."""
    if home := job.venv or job.conda:
        return (os.path.join(home, "bin"),)
    if job.python:
        return shims(run_dir, job.python), os.path.dirname(job.python)
    return ()


def shims(run_dir: str, python: str) -> str:
    """Return the directory whose `python` and `python3` start that interpreter."""
    return os.path.join(run_dir, "shims", python.strip("/").replace("/", "+"))


def placeholders(
    place: AttemptPlace, log: str, inputs: Mapping[str, str], step: LadderStep | None = None
) -> dict[str, str]:
    """Return the values of start-time placeholders. `inputs`: `path` or `batch_dir`, if made.

    `step`: that of the job's ladder.
    """
    return {
        **(step.values if step is not None else {}),
        "run_dir": place.run_dir,
        "out": place.out,
        "keep": place.keep,
        "log": log,
        "gpu": "0" if place.card else "",
        "gpu_index": place.gpu_index,
        "gpu_uuid": place.gpu_uuid,
        "attempt": str(place.attempt),
        **({} if place.port is None else {"port": str(place.port)}),
        **inputs,
    }


def as_given(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what Python itself adds to it in a C locale (PEP 538)."""
    given = {name: value for name, value in environ.items() if name}  # "=x" names nothing
    if b"LC_CTYPE" not in own_environment():
        given.pop("LC_CTYPE", None)
    return given
