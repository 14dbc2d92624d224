"""The job file of a sweep: `hydra.launcher` as fields of a job, and its mistakes as options again.

Text in, text out: touches no file.
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import filter_overrides
from hydra.errors import CompactHydraException

from gpulaunch.base.errors import JobFileError
from gpulaunch.jobfile.placeholders import RESERVED
from hydra_plugins.hydra_gpulaunch_launcher import _job

NUMBER = "number"
"""The column of the table that has Hydra's number of the job."""
TABLE = "jobs.csv"
MAX_NAME = 100
OF_RUN = frozenset({"gpus", "per_gpu", "wait", "simulate", "run_dir"})
"""Options that hold for the run, not for each job."""
OF_JOB = {"gpus": "gpus_per_job", "retries": "retries", "timeout": "timeout"}
"""A job's fields that have an option of their own, by their names in a job file."""
OURS = frozenset(
    {"name", "run", "foreach", "matrix", "sample", "batch", "service", "worker", "gpus"}
)
"""Fields of a job that are not for `hydra.launcher.job`: `gpus` is `gpus_per_job` here."""


class LaunchError(CompactHydraException):
    """Nothing was started, or the run could not go on. Hydra prints its text alone."""


def job_file(options: Mapping[str, Any], name: str, job_name: str, place: Path) -> bytes:
    """Return a job file for the jobs of the table beside it; `place` is that directory.

    `name` is the run's, `job_name` a job's with a placeholder. Raises LaunchError for an option
    that is not one.
    """
    refuse_unknown(options)
    own = options["job"]
    outputs = own.get("outputs") or []
    # As in multiprocessing: -W, -X, -O and their like hold for jobs as well.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    program = [sys.executable, *flags, _job.__file__, str(place)]
    job = {
        **{field: options[option] for field, option in OF_JOB.items()},
        "cwd": _literal(os.getcwd()),
        **own,
        "name": job_name,
        "foreach": {"csv": TABLE},
        "run": [*map(_literal, program), f"{{{{{NUMBER}}}}}", "{{out}}"],
        "outputs": [
            *([outputs] if isinstance(outputs, str) else outputs),
            f"{{{{out}}}}/{_job.RETURNED}",
        ],
    }
    job = {field: value for field, value in job.items() if value is not None}
    cards = {"gpus": options["gpus"], "per_gpu": options["per_gpu"]}
    tree = {"name": name, **cards, "jobs": [job]}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode()


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise LaunchError for an option that there is not, and for a job's field that is not free."""
    for name in options.keys() - OF_RUN - {*OF_JOB.values(), "job"}:
        raise LaunchError(
            f"hydra.launcher.{name}: there is no such option; a field that jobs have in a job file"
            f" is set by +hydra.launcher.job.{name}"
        )
    for name in sorted(OURS & options["job"].keys()):
        instead = ": that is hydra.launcher.gpus_per_job" if name == "gpus" else ""
        raise LaunchError(f"hydra.launcher.job.{name} cannot be set{instead}")


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as the text of a table; a row may lack columns that others have."""
    columns = dict.fromkeys(name for row in rows for name in row)
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def row(number: int, overrides: Sequence[str]) -> dict[str, str]:
    """Return a job's row: what its overrides set, as `optimizer_lr` for `+optimizer.lr=1`."""
    parsed = OverridesParser.create().parse_overrides(list(filter_overrides(overrides)))
    values = {NUMBER: str(number)}
    for one in parsed:
        if one.is_delete():
            continue
        name = re.sub(r"[^\w-]", "_", one.key_or_group)[: MAX_NAME - 1].lstrip("0123456789-")
        while not name or name in values or name in RESERVED:
            name = f"{name}_"
        values[name] = one.get_value_element_as_str()
    return values


def clean(name: str) -> str:
    """Return the name with nothing in it that the name of a run or a job may not have."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".-")[:MAX_NAME] or "hydra"


def _literal(text: str) -> str:
    """Return the text as a job file has it, if it is to be nothing but itself."""
    return re.sub(r"\{\{(?=[ \t]*[^\W\d])", r"\\{{", text)


# ── Mistakes, by the options that the user has set ──────────────────────────────────────────────


def as_options(error: JobFileError) -> str:
    """Return the job file's mistakes by what the user has set: `hydra.launcher.timeout: ...`."""
    told = dict.fromkeys(f"{_option(one.field)}{one.message}" for one in error.found)
    return "\n".join(told)


def with_options(text: str) -> str:
    """Return a text of gpulaunch with Hydra's options in the place of its own."""
    for own, option in (("--simulate ", "simulate="), ("--wait", "wait"), ("--gpus", "gpus")):
        text = text.replace(own, f"hydra.launcher.{option}")
    return text


def _option(field: str) -> str:
    name = field.removeprefix("jobs[0].")
    if name == field:
        return f"hydra.launcher.{field}: " if field else "gpulaunch: "
    first = re.split(r"[.\[]", name)[0]
    if first in OF_JOB:
        return f"hydra.launcher.{OF_JOB[first]}{name[len(first) :]}: "
    return f"hydra.launcher.job.{name}: "
