"""The options of one start of a run, and what a start comes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.app.observer import Observer
from gpulaunch.core.ledger import LOCAL, Ledger
from gpulaunch.engines import setup_of
from gpulaunch.errors import UsageError
from gpulaunch.hours import Hours, parse_hours
from gpulaunch.journal.choices import NOTHING_CHOSEN, Choices
from gpulaunch.journal.manifest import Manifest
from gpulaunch.journal.rundir import RunDir
from gpulaunch.text import several, shell_word


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
    from gpulaunch.jobfile import sbatch

    chosen = options.engine or engine
    hours_of(options.choices)
    setup_of(chosen).require_fitting(options.choices, options.slurm, options.wait)
    if chosen == LOCAL:
        return replace(options, engine=chosen)
    words = sbatch.from_line(options.slurm) if options.slurm else slurm
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
