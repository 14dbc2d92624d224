"""A job as its entry was typed, with variables for what each item brings: `"${item_stem}"`.

    run: fold {{path}} {{out}}   ─▶   fold "${item_path}" "${GPULAUNCH_OUT}"   item_path=/x/a.fasta

Only where the typed text, with the item's values filled in, is exactly the job's own: a job is
never anything else than what `gpulaunch run` would run. Otherwise it stays as it is.
"""

from __future__ import annotations

import glob
import os.path
import re
from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.core.model import Job
from gpulaunch.core.template import Template, Text, fill, slots
from gpulaunch.export.look import typed
from gpulaunch.export.pieces import values_at_start
from gpulaunch.export.words import Values
from gpulaunch.jobfile.items import path_values
from gpulaunch.jobfile.placeholders import compile_raw
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.shell import compile_script
from gpulaunch.jobfile.values import dialect


class General(Struct, frozen=True):
    """`job` with slots for its item's values; `values` of all slots; `own`: its variables."""

    job: Job
    values: Values
    own: Mapping[str, str]


class ExportedEntry:
    """An entry of the file: what was typed, and the jobs that came of it."""

    def __init__(self, plan: Plan, group: int, jobs: tuple[Job, ...]) -> None:
        self._base = str(plan.base)
        self._typed = typed(plan, group)
        self._jobs = jobs
        self._shared_cwd = len({job.cwd for job in jobs}) == 1

    def general(self, job: Job) -> General:
        """Return the job as far as it is like the others of its entry."""
        known = self._values(job)
        made = replace(
            job,
            run=self._run(job, known),
            env=self._env(job, known),
            outputs=self._outputs(job, known),
            cwd=job.cwd if self._shared_cwd else "",
        )
        texts = [*(made.run if isinstance(made.run, tuple) else (made.run,)), *made.outputs]
        texts += [text for text in made.env.values() if text is not None]
        names = dict.fromkeys(slot.name for text in texts for slot in slots(text))
        values = {**values_at_start(job), "job": "GPULAUNCH_JOB"}
        own = {}
        for name in names:
            if name in known and name not in values:
                values[name] = self._variables[name]
                own[values[name]] = known[name]
        if not self._shared_cwd:
            own["item_cwd"] = job.cwd
        return General(made, values, own)

    @cached_property
    def _variables(self) -> dict[str, str]:
        """A variable for each placeholder; no two the same."""
        made: dict[str, str] = {}
        for name in [name for job in self._jobs for name in self._values(job)]:
            if name not in made:
                variable = "item_" + re.sub(r"\W", "_", name, flags=re.ASCII)
                while variable in made.values():
                    variable += "_"
                made[name] = variable
        return made

    def _values(self, job: Job) -> dict[str, str]:
        """Return what an item's placeholders stand for, as far as the job tells."""
        values = dict(job.params)
        if job.batch is not None:
            values["index"] = job.params.get("batch", "")
        elif (index := self._places.get(self._item(job))) is not None:
            values["index"] = str(index)
        if "item" in values and job.fasta is None:
            values |= path_values(os.path.normpath(os.path.join(self._base, values["item"])))
        return {**values, "job": job.name}

    def _item(self, job: Job) -> tuple[tuple[str, str], ...]:
        axes = self._typed.get("matrix") or {}
        return tuple((name, value) for name, value in job.params.items() if name not in axes)

    @cached_property
    def _places(self) -> dict[tuple[tuple[str, str], ...], int]:
        return {
            item: place for place, item in enumerate(dict.fromkeys(map(self._item, self._jobs)))
        }

    def _run(self, job: Job, known: Mapping[str, str]) -> Text | tuple[Text, ...]:
        script = self._typed.get("run")
        if isinstance(job.run, tuple):
            if not isinstance(script, list) or len(script) != len(job.run):
                return job.run
            pairs = zip(script, job.run, strict=True)
            return tuple(_checked(compile_raw(text), actual, known) for text, actual in pairs)
        kind = dialect(job.shell)
        if not isinstance(script, str) or kind is None:
            return job.run
        text, errors = compile_script(script, kind)
        return job.run if errors else _checked(text, job.run, known)

    def _env(self, job: Job, known: Mapping[str, str]) -> dict[str, Text | None]:
        given = self._typed.get("env") or {}
        return {
            name: _checked(compile_raw(given[name]), actual, known)
            if actual is not None and isinstance(given.get(name), str)
            else actual
            for name, actual in job.env.items()
        }

    def _outputs(self, job: Job, known: Mapping[str, str]) -> tuple[Text, ...]:
        given = self._typed.get("outputs")
        if not isinstance(given, list) or len(given) != len(job.outputs):
            return job.outputs
        plain = {name: glob.escape(value) for name, value in known.items()}
        pairs = zip(given, job.outputs, strict=True)
        return tuple(_checked(compile_raw(text), actual, plain) for text, actual in pairs)


def _checked(text: Text, actual: Text, known: Mapping[str, str]) -> Text:
    """Return what was typed, where it comes to the job's own text."""
    if isinstance(text, Template) and fill(text, known) == actual:
        return text
    return actual
