"""The options of one start of a run, what a start comes to, and who hears what becomes of a run.

Nothing here prints: the command line's observer does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.base.hours import Hours, parse_hours
from gpulaunch.base.text import several, shell_word
from gpulaunch.core.ledger import LOCAL, Ledger
from gpulaunch.core.model import Job
from gpulaunch.engines import setup_of
from gpulaunch.journal.choices import NOTHING_CHOSEN, Choices
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.rundir import RunDir
from gpulaunch.observe.terminal.terminal import SilentView, View

if TYPE_CHECKING:
    from gpulaunch.diagnose.lint import Finding
    from gpulaunch.engines.pool import CardPool
    from gpulaunch.jobfile.plan import Plan


# ── Observer ──────────────────────────────────────────────────────────────────────────────────────


class Preview(Struct, frozen=True):
    """What a start would do: these jobs of the plan on these cards.

    `found` are the warnings of the jobs' commands and scripts.
    """

    plan: Plan
    jobs: Sequence[Job]
    pool: CardPool
    found: Sequence[Finding] = ()


class Observer(SilentView):
    """Hears what becomes of a run, in the order of these methods; each does nothing by itself.

    `see(fact, at, ledger)` is called for each fact once it is recorded. An exception of `planned`
    or `created` ends the call there, before anything was started, and reaches the caller.
    """

    quiet = False
    """Notes are not wanted, nor is anything looked for that only they would tell."""
    preview_only = False
    """Only `planned` is wanted, which is to end the call."""

    def note(self, text: str, urgent: bool = False) -> None:
        """Take a line on what happens; an `urgent` one even where notes are not wanted."""

    def warn(self, text: str) -> None:
        """Take a warning of something that may go wrong."""

    def planned(self, preview: Preview) -> None:
        """Take what is about to be started. Nothing was written yet.

        Of a run that is gone on with, only where `preview_only` asks for it.
        """

    def created(self, run: RunDir) -> None:
        """Take the run's directory. No thread, lock or socket of the run exists yet."""

    def opened(self, event: int, earlier: Mapping[str, float]) -> None:
        """Get ready for facts. `event`: the number in the journal of the first one.

        `earlier`: how long jobs took in earlier runs of the same file, in seconds by name.
        """

    @property
    def view(self) -> View:
        """What is shown facts from then on: the observer itself, or a view of its own."""
        return self

    def begun(self) -> None:
        """Learn that the run is being recorded."""

    def listed(self) -> None:
        """Learn that its jobs are recorded too: whoever looks finds all of them."""

    def ended(self, run: RunDir, ledger: Ledger) -> None:
        """Take the run's end, while its report is being written."""

    def reported(self, run: RunDir, why: str) -> None:
        """Learn that the report is written, or `why` it could not be."""


NOBODY = Observer()
"""An observer that takes no heed of anything."""


class RunOptions(Struct, frozen=True):
    """How a run is started, begun or gone on with.

    `choices`, `engine` and `slurm` are kept with the run for later starts; those that are not given
    are as the run was begun. All others apply to this start alone: `wait` is how many seconds to
    wait for a first card (None: for ever), `metrics_port` where metrics are served (0: a free
    port). `watched`: a person sits at a terminal, and can say how a paused run goes on.
    `detached`: the run has no terminal whose end could stop it. `standing`: it waits for more jobs
    when it has none left.
    """

    choices: Choices = NOTHING_CHOSEN
    engine: str | None = None
    slurm: tuple[str, ...] = ()
    wait: float | None = None
    metrics_port: int | None = None
    watched: bool = False
    detached: bool = False
    standing: bool = False

    def words(self) -> str:
        """Return the options that are kept as the end of a command line."""
        words = [*self.choices.words()]
        if self.engine not in (None, LOCAL):
            words += [f"--engine {self.engine}"]
            words += [f"--slurm {shell_word(word)}" for word in self.slurm]
        return "".join(f" {word}" for word in words)


DEFAULTS = RunOptions()


class RunEnd(Struct, frozen=True):
    """What a call came to: the run, its jobs as they are now, and the command's exit status.

    After a call that only asked something of a live run, `ledger` is that run as it stands, and
    `status` 0. `full`: the run is a directory of a queue, which goes on in its next directory.
    """

    run: RunDir
    ledger: Ledger
    status: int
    full: bool = False

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self.run.path


def hours_of(choices: Choices) -> Hours | None:
    """Return the hours in which jobs may start; None: at any time. Raises UsageError."""
    if choices.between is None:
        return None
    try:
        return parse_hours(choices.between)
    except ValueError as error:
        raise UsageError(f"--between: {error}") from None


def with_engine(options: RunOptions, engine: str = LOCAL, slurm: Sequence[str] = ()) -> RunOptions:
    """Return the options with their engine filled in, and each word for sbatch checked.

    `engine` and `slurm` hold where the options are silent: a run goes on as it was begun. Raises
    UsageError for what does not go with the engine.
    """
    from gpulaunch.jobfile import schedulers

    chosen = options.engine or engine
    hours_of(options.choices)
    setup_of(chosen).require_fitting(options.choices, options.slurm, options.wait)
    if chosen == LOCAL:
        return replace(options, engine=chosen)
    words = schedulers.from_line(options.slurm) if options.slurm else slurm
    return replace(options, engine=chosen, slurm=tuple(words))


def as_before(
    options: RunOptions, manifest: Manifest, ledger: Ledger, observer: Observer
) -> RunOptions:
    """Return the options of this start, with those that the run was begun with where none is given.

    Notes what is kept. Raises UsageError if another engine is asked for while the run's engine
    still has attempts.
    """
    changes = options.engine not in (None, manifest.engine)
    if changes and (left := len(ledger.open_attempts())):
        raise UsageError(
            f"--engine {manifest.engine} still has {several(left, 'attempt')} of"
            " this run: resume it without --engine, and change when they have ended"
        )
    local = manifest.engine == LOCAL and not changes
    before = manifest.choices if local else manifest.choices.elsewhere()
    options = replace(options, choices=options.choices.over(before))
    options = with_engine(options, manifest.engine, () if changes else manifest.slurm)
    if kept := [word for word in options.choices.words() if word in before.words()]:
        observer.note(f"as before: {' '.join(kept)}")
    if options.engine == LOCAL and ledger.opening.simulated and options.choices.simulate is None:
        cards = replace(options.choices, simulate=len(ledger.gpus))
        return replace(options, choices=cards)
    return options
