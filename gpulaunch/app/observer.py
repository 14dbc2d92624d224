"""Who hears what becomes of a run. Nothing here prints: the command line's observer does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import Job
from gpulaunch.journal.rundir import RunDir
from gpulaunch.views.terminal import SilentView, View

if TYPE_CHECKING:
    from gpulaunch.diagnose.lint import Finding
    from gpulaunch.engines.pool import CardPool
    from gpulaunch.jobfile import Plan


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
