"""Options of a run that were given on a command line, and hold until others are given.

    run --gpus 0,1 ─▶ Choices ─▶ manifest ─▶ resume --pin warn: Choices.over(those) ─▶ manifest

These say which jobs run, where and how. Options that hold for one start are not among them (how
long it waits for a first card, what it prints and where, whether it detaches). The engine and the
options for sbatch are the manifest's own members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpulaunch.base.text import shell_word
from gpulaunch.core.model import parse_selection


class Choices(Struct, frozen=True):
    """A run's options. None, or an empty `only`: not given, the default or the job file holds.

    `simulate` 0 means the real cards, `max_failures` and `breaker` 0 mean no such limit; `only`
    are patterns of job names. `follow`: the inputs of `foreach` are looked at again as they change,
    files once they have been still for `settle` seconds. `default`: fields of jobs that do not say
    otherwise, `timeout=2h`, each named once. `between`: hours as `gpulaunch.base.hours`
    reads them, `always`: all. `free_below`: memory as `gpulaunch.base.free_below` reads it.
    """

    gpus: str | None = None
    only: tuple[str, ...] = ()
    per_gpu: int | None = None
    default: tuple[str, ...] = ()
    simulate: int | None = None
    share_busy: bool | None = None
    free_below: str | None = None
    fail_fast: bool | None = None
    max_failures: int | None = None
    breaker: int | None = None
    pin: str | None = None
    explain: bool | None = None
    preload: bool | None = None
    follow: bool | None = None
    settle: float | None = None
    between: str | None = None

    def over(self, before: Choices) -> Choices:
        """Return these choices, with those of `before` where these were not given."""
        if self.max_failures is not None and self.fail_fast is None:
            before = replace(before, fail_fast=None)  # fail_fast would end the run too early
        fields = {word.partition("=")[0]: word for word in (*before.default, *self.default)}
        return replace(before, **{**dict(self._given()), "default": tuple(fields.values())})

    def words(self) -> tuple[str, ...]:
        """Return the options as a person would type them: `--gpus 0,1`, `--no-preload`."""
        return tuple(word for name, value in self._given() for word in _typed(name, value))

    def elsewhere(self) -> Choices:
        """Return the choices that hold where another engine than `local` has the cards."""
        local = replace(self, simulate=None, share_busy=None, free_below=None)
        named = self.gpus is not None and parse_selection(self.gpus).which is not None
        return replace(local, gpus=None) if named else local

    def _given(self) -> Iterator[tuple[str, Any]]:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value not in (None, ()):
                yield name, value


NOTHING_CHOSEN = Choices()


def _typed(name: str, value: Any) -> Iterator[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{option}" if value else f"--no-{option}"
        return
    for one in value if isinstance(value, tuple) else (value,):
        yield f"--{option} {shell_word(str(one))}"
