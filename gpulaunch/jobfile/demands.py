"""What a job takes of the machine, from its fields: cards, CPUs, memory and tokens."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from msgspec import Struct

from gpulaunch.core.model import Demand
from gpulaunch.jobfile.convert import AUTO
from gpulaunch.jobfile.mistakes import ErrorCollector, FieldError, converted
from gpulaunch.jobfile.texts import Fields

MPS_VARIABLES = frozenset({"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"})
"""Variables that say which MPS daemon a program is a client of; gpulaunch alone sets them."""

_OUTSIDE = "the service's processes, its directory and its IPC namespace are outside"
_OF_A_KIND = ("name", "run", "worker", "foreach", "matrix", "env")


class DemandRules(Struct, frozen=True):
    """What an entry's demands go by, beside its fields.

    `kind`: of which its jobs are, where their memory is learned; `per_gpu` and `limits` are the
    file's own; `service`: its jobs are services; `wants_idle`: it says `gpu_idle:` itself, not by
    `defaults:`.
    """

    kind: int
    per_gpu: int
    limits: Mapping[str, int]
    service: bool = False
    wants_idle: bool = False


def demand_of(fields: Fields, rules: DemandRules) -> Demand:
    """Return what a job of these fields takes. Raises FieldError."""
    uses = fields.get("uses", ())
    converted(lambda token: _limited(token, rules.limits), uses, "uses")
    gpus, cpus, memory = fields.get("gpus", 1), fields.get("cpus"), fields.get("memory", 0)
    if not gpus:
        if rules.wants_idle:
            why = "a job without cards (gpus: 0) holds none idle: leave it out"
            raise FieldError(why, ("gpu_idle",))
        return Demand(gpus=0, cpus=cpus, uses=uses, memory=memory)
    promise, kind = _card_memory(fields, gpus, rules)
    return Demand(
        gpus,
        promise,
        _per_gpu(fields, rules),
        cpus,
        uses,
        preemptible=fields.get("preemptible", False),
        share=fields.get("share", False),
        kind=kind,
        memory=memory,
        card=fields.get("card", ""),
        compute=fields.get("compute", ()),
        mps=fields.get("mps", False),
    )


def _per_gpu(fields: Fields, rules: DemandRules) -> int:
    """Return how many may be on the card at most; of those that share, 0 for any number."""
    per_gpu: int = fields.get("per_gpu", rules.per_gpu)
    unsaid = "per_gpu" not in fields and per_gpu == 1
    return 0 if fields.get("share") and unsaid else per_gpu


def _card_memory(fields: Fields, gpus: int, rules: DemandRules) -> tuple[int, int | None]:
    """Return the card's memory that is asked for, and the kind of which it is learned."""
    said = fields.get("gpu_memory", AUTO if fields.get("share") else 0)
    if said != AUTO:
        return said, None
    why = ""
    if gpus > 1:
        why = f"what a job with gpus: {gpus} takes is not learned, only that of one card is"
    elif rules.service:
        why = "what a service takes is known only once it is over"
    if why:
        field = "gpu_memory" if "gpu_memory" in fields else "share"
        raise FieldError(f"{why}: give gpu_memory: a size, like 20GB", (field,))
    return 0, rules.kind


def check_mps(fields: Fields, demand: Demand, typed: bool) -> None:
    """Raise FieldError for what does not go with `mps: true`, which these fields have.

    `typed`: the job says it itself. That of `defaults:` passes over a job without cards.
    """
    if not demand.gpus and not typed:
        return
    gather = ErrorCollector()
    if why := _why_no_mps(fields, demand):
        here = why if typed else f"in defaults: {why}; else write mps: false in this job"
        gather.bads.append(FieldError(here, ("mps",)))
    for name in MPS_VARIABLES & (fields.get("env") or {}).keys():
        why = "gpulaunch sets it for a job with mps: true: leave it out"
        gather.bads.append(FieldError(why, ("env", name)))
    gather.done()


def _why_no_mps(fields: Fields, demand: Demand) -> str:
    if not demand.gpus:
        return "a job without cards shares none: leave it out"
    if demand.gpus > 1:
        return "it is for jobs of one card"
    if not demand.shares_card or demand.per_gpu == 1:
        return "for jobs that share a card: say so with share: true, or with per_gpu: how many do"
    if fields.get("isolation") == "strict":
        return f"{_OUTSIDE} of the job's namespaces: leave isolation: out, whose default is env"
    if fields.get("container"):
        return f"{_OUTSIDE} of containers: leave it out, or run the job without container:"
    return ""


def kind_of(fields: Fields) -> int:
    """Return a number for the kind of job that an entry of these fields has.

    It stays the same when others are put before the entry in the file, or its limits change.
    """
    return zlib.crc32(repr([fields.get(key) for key in _OF_A_KIND]).encode())


def _limited(token: str, limits: Mapping[str, int]) -> None:
    if token not in limits:
        raise FieldError(f"no limit is called {token}; add limits: {{{token}: 1}} to the file")
