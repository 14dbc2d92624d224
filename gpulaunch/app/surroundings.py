"""Makes what surrounds a run's job file when it is read, of the run's options and this process."""

from __future__ import annotations

import os
from pathlib import Path

from gpulaunch.app.checks import looking_for
from gpulaunch.app.options import RunOptions
from gpulaunch.app.own_cards import cards_of
from gpulaunch.jobfile import Surroundings
from gpulaunch.jobfile.cards import CardsOfRun
from gpulaunch.jobfile.sources import Following
from gpulaunch.journal.choices import Choices


def surroundings_at_start(options: RunOptions, cwd: Path | None = None) -> Surroundings:
    """Return what surrounds the file of a run that starts, where missing programs are mistakes.

    `cwd`: where the commands of a list start, the working directory where it is None.
    """
    return Surroundings(
        os.environ,
        per_gpu=options.choices.per_gpu,
        defaults=options.choices.default,
        cards=cards_of(options.choices, options.engine),
        cwd=cwd,
        look=looking_for(options.engine),
    )


def surroundings_later(
    choices: Choices, cards: CardsOfRun, cwd: Path | None = None, following: Following | None = None
) -> Surroundings:
    """Return what surrounds the file of a run that has begun, in the directory `cwd`.

    `following`: what counts, where the file's inputs are followed.
    """
    return Surroundings(
        os.environ,
        per_gpu=choices.per_gpu,
        defaults=choices.default,
        cards=cards,
        cwd=cwd,
        following=following,
    )
