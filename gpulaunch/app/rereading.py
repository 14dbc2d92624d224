"""Reads a job list for a run that has begun: its file once more, or jobs that are added to it.

    Retry, Reload, Add ─▶ a thread reads the list ─▶ `listing`: what changes ─▶ Relisted
                                                     └─ or RefusedError: why nothing does

A long list takes seconds to read, and a dead file server never answers: the loop waits for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from gpulaunch.app.options import RunOptions
from gpulaunch.app.own_cards import cards_in, cards_of
from gpulaunch.app.sources import first_plan
from gpulaunch.app.surroundings import surroundings_later
from gpulaunch.control.protocol import Add
from gpulaunch.diagnose.lint.absent import looking
from gpulaunch.engines.pool import CardPool
from gpulaunch.errors import GpulaunchError, Mistake, UsageError
from gpulaunch.files import read_bytes
from gpulaunch.jobfile import Plan, Surroundings, load, load_text
from gpulaunch.jobfile.cards import CardsOfRun
from gpulaunch.jobfile.plan import EMPTY, as_chosen, empty_plan
from gpulaunch.jobfile.sources import Following
from gpulaunch.jobfile.surroundings import Beside
from gpulaunch.journal.choices import NOTHING_CHOSEN, Choices
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.rundir import LIST, RunDir


class Filed(Struct, frozen=True):
    """A run's job file, the options that were chosen over it, and the cards that it has.

    `cwd`: where the run was begun, and the commands of a list start.
    """

    file: Path
    choices: Choices
    cards: CardsOfRun
    cwd: Path

    def read(self, following: Following | None = None) -> Plan:
        """Return the plan of the file as it is now. Raises UsageError, JobFileError.

        `following`: what counts, where the file's inputs are followed.
        """
        if not self.file.exists():
            own = "--recorded goes on with the run's own copy of it"
            raise UsageError(f"{self.file} is gone; {own}")
        around = surroundings_later(self.choices, self.cards, self.cwd, following)
        plan = load(self.file, around)
        return as_chosen(plan, self.choices.explain, self.choices.preload)


def plan_again(
    run: RunDir, manifest: Manifest, options: RunOptions, recorded: bool, complete: bool = False
) -> Plan:
    """Return the plan of the job file as it is now, under the run's choices.

    Of the run's own copy, if that is asked for or there is no file. `complete`: where its inputs
    are followed, no more of them are to come.
    """
    choices, filed = options.choices, filed_of(manifest, options)
    if filed is not None and not recorded:
        if choices.follow:
            return first_plan(filed.read, choices.settle, not complete)
        return filed.read()
    plan = recorded_plan(run, manifest, cards_of(choices, options.engine), choices)
    return as_chosen(plan, choices.explain, choices.preload)


def filed_of(manifest: Manifest, options: RunOptions) -> Filed | None:
    """Return the file from which a run reads its jobs again; None if there is none."""
    if not manifest.job_file:
        return None
    cards = cards_of(options.choices, options.engine)
    return Filed(Path(manifest.job_file), options.choices, cards, Path(manifest.cwd))


def read_addition(
    asking: Add, text: str, beside: Beside, pool: CardPool, filed: Filed | None
) -> Plan:
    """Return the plan of jobs that are added to a run of these cards. Raises JobFileError."""
    look = looking(asking.environ, cluster=pool.queueing)
    around = Surroundings(asking.environ, cards=cards_in(pool), look=look, beside=beside)
    data, base = text.encode(errors="surrogateescape"), Path(asking.base)
    plan = load_text(data, around, name=asking.label, base=base)
    choices = filed.choices if filed else NOTHING_CHOSEN
    return as_chosen(plan, choices.explain, choices.preload)


def recorded_plan(
    run: RunDir, manifest: Manifest, cards: CardsOfRun, choices: Choices | None = None
) -> Plan:
    """Return the plan of the run's own copy of its job file. Raises UsageError, JobFileError.

    `cards`: those of the run. `choices`: its options, where they are others than those that it was
    begun with.
    """
    choices = manifest.choices if choices is None else choices
    copy = run.newest_jobs_file()
    try:
        text = read_bytes(copy)
    except OSError as error:
        raise UsageError(f"{copy}, the run's own copy, cannot be read: {error.strerror}") from None
    base = Path(manifest.job_file).parent if manifest.job_file else Path(manifest.cwd)
    if text == EMPTY:
        return empty_plan(manifest.name, base)
    around = surroundings_later(choices, cards, Path(manifest.cwd))
    return load_text(text, around, name=manifest.name, base=base, as_list=copy.suffix == LIST)


class RefusedError(GpulaunchError):
    """Nothing was changed; the text says why. `found`: the mistakes of a list, if it has any."""

    def __init__(self, text: str, found: Sequence[Mistake] = ()) -> None:
        super().__init__(text)
        self.found = tuple(found)


def refusing(read: Callable[[], Plan], what: str) -> Callable[[], Plan]:
    """Return `read`, which raises a RefusedError whatever error it meets. `what`: what it reads."""

    def read_on() -> Plan:
        try:
            return read()
        except GpulaunchError as error:
            raise RefusedError(str(error), getattr(error, "found", ())) from None
        except Exception as error:  # a bug there must not leave the client without an answer
            raise RefusedError(f"{what} could not be read: {error!r}") from None

    return read_on
