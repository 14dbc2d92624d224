"""The program of each job's process: runs one Hydra job, and writes what it returned.

    python _job.py CALLS NUMBER OUT

Exits with 0 once the job has returned and its return value is written, else not.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn
    from omegaconf import DictConfig

JOBS = "jobs.json"
RETURNED = "return.pickle"


def main() -> int:
    """Run the job that the command line names; return the exit status."""
    calls, number, out = sys.argv[1:]
    with open(os.path.join(calls, JOBS), encoding="utf-8") as file:
        job = json.load(file)[number]
    with open(os.path.join(calls, job["call"]), "rb") as file:
        # The directory of this file, which stands first, is nobody's to import from.
        sys.path[:], sys.argv[:] = pickle.load(file)
        # What the program defines is put into this module, as GpuExecutor's workers do.
        own, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        call = file.read()
    status = _run_and_write(call, int(number), job["overrides"], out)
    del own  # until here, as its end would clear what this function uses
    return status


def _run_and_write(call: bytes, number: int, overrides: Sequence[str], out: str) -> int:
    from hydra.core.utils import JobReturn, JobStatus

    from gpulaunch.executor import transfer

    try:
        returned = _run(transfer.unpacked(call), number, overrides)
    except BaseException as error:
        returned = JobReturn(overrides=overrides, status=JobStatus.FAILED)
        returned.return_value = _of_the_job(error)
    failed = returned.status != JobStatus.COMPLETED
    if failed:
        traceback.print_exception(returned._return_value)
    written = _write(returned, out)
    return 0 if written and not failed else 1


def _run(call: Mapping[str, Any], number: int, overrides: Sequence[str]) -> JobReturn:
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.singleton import Singleton
    from hydra.core.utils import run_job, setup_globals
    from omegaconf import open_dict

    _offer_by_name(*call["by_name"])
    setup_globals()
    Singleton.set_state(call["singletons"])
    context = call["context"]
    config = context.config_loader.load_sweep_config(call["config"], list(overrides))
    with open_dict(config):
        config.hydra.job.id = f"{config.hydra.job.name}_{number}"
        config.hydra.job.num = number
    refuse_masks(config)
    HydraConfig.instance().set_config(config)
    returned: JobReturn = run_job(
        hydra_context=context,
        task_function=call["function"],
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    return returned


def _offer_by_name(names: frozenset[str], packed: bytes) -> None:
    """Have the program's own functions and classes found by their names in `__main__`.

    Those that the task function uses are there already; the others come when one is looked up.
    `packed` lacks those that cannot be pickled.
    """
    from gpulaunch.executor import transfer

    main = sys.modules["__main__"]

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        vars(main).update(transfer.unpacked(packed) | vars(main))
        if name not in vars(main):
            raise TypeError(f"__main__.{name} cannot be pickled for jobs: put it into a module")
        return vars(main)[name]

    vars(main)["__getattr__"] = found


def refuse_masks(config: DictConfig) -> None:
    """Raise an error where Hydra would put another mask over the job's own card."""
    from hydra.errors import CompactHydraException

    from gpulaunch.gpus.mask import MASK, ORDER

    for name in (MASK, ORDER):
        if name in config.hydra.job.env_set:
            raise CompactHydraException(
                f"hydra.job.env_set.{name} would take the job's own card from it, which is what"
                " hydra/launcher=gpulaunch gives each job: remove it, and choose cards by"
                " hydra.launcher.gpus"
            )


def _write(returned: JobReturn, out: str) -> bool:
    """Write what the job returned; False where that cannot be pickled: then why not is written."""
    from hydra.core.utils import JobStatus

    from gpulaunch.executor import transfer

    written = True
    try:
        packed = transfer.packed((returned, _traced(returned)), to_worker=False)
    except Exception as error:
        traceback.print_exception(error)
        what = "raised" if returned.status == JobStatus.FAILED else "returned"
        text = f"what the job {what} cannot be pickled: {error!r}"
        returned.status, returned.return_value = JobStatus.FAILED, TypeError(text)
        packed = transfer.packed((returned, ""), to_worker=False)
        written = False
    draft = os.path.join(out, f".{RETURNED}")
    with open(draft, "wb") as file:
        file.write(packed)
    os.replace(draft, os.path.join(out, RETURNED))
    return written


def _traced(returned: JobReturn) -> str:
    """Return the traceback of what the job raised, as text: a pickle has none. Else ""."""
    error = returned._return_value
    if not isinstance(error, BaseException):
        return ""
    return "".join(traceback.format_exception(error))


def _of_the_job(error: BaseException) -> Exception:
    """Return what failed. Raised by the sweeper, a job's `sys.exit()` or Ctrl-C would end it."""
    if isinstance(error, Exception):
        return error
    what = f"raised {error!r}"
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
    made = RuntimeError(f"the job {what} instead of returning")
    return made.with_traceback(error.__traceback__)


if __name__ == "__main__":
    sys.exit(main())
