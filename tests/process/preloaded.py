"""Commands run twice by the same keepers, cold and forked from a preload server."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpulaunch.core.model import Outcome
from gpulaunch.engines.client import AttemptOver, Spawner, StartedCold
from gpulaunch.engines.local.preload_client import News, Preload, PreloadReady, PreloadServer
from gpulaunch.engines.local.preloads import EARLY, PLAIN_SHELL, Forkable, forkable
from gpulaunch.engines.programs import find_keepers
from tests.process.support import Slot

_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True)
class Done:
    """How a command ended, and its log."""

    outcome: Outcome
    leftovers: int
    log: str


def news_of(server: PreloadServer, seconds: float = 120.0) -> News:
    assert select.select([server], [], [], seconds)[0], "no word of the server"
    return server.on_readable()


@dataclass
class Twice:
    """One environment; a server for each way to start an interpreter, kept until the end."""

    folder: Path
    env: Mapping[str, str]
    modules: Sequence[str] | None
    stack: ExitStack
    slots: dict[object, Slot] = field(default_factory=dict)

    def cold(self, argv: Sequence[str], cwd: Path) -> Done:
        return self.run(self.cold_slot, argv, cwd, None)

    def forked(self, argv: Sequence[str], cwd: Path, by_shell: bool = False) -> Done:
        found = forkable(argv, str(cwd), self.env, by_shell)
        return self.run(self.slot(found, cwd), argv, cwd, found)

    def run(self, slot: Slot, argv: Sequence[str], cwd: Path, found: Forkable | None) -> Done:
        slot.launch(*argv, cwd=str(cwd), main=found.main if found else None)
        # The first of the two that comes: a forked job that started cold would be no comparison.
        ended = slot.expect((AttemptOver, StartedCold), 120)  # type: ignore[arg-type]
        assert isinstance(ended, AttemptOver), ended
        return Done(
            ended.end.outcome,
            ended.end.leftovers,
            _ADDRESS.sub("0x", slot.log.read_text(errors="surrogateescape")),
        )

    @property
    def cold_slot(self) -> Slot:
        if None not in self.slots:
            self.slots[None] = self._slot(
                self.stack.enter_context(Spawner(find_keepers(), self.env))
            )
        return self.slots[None]

    def slot(self, found: Forkable, cwd: Path) -> Slot:
        key = (found.python, found.start, found.target, cwd)
        if key not in self.slots:
            server = self.stack.enter_context(self.server(found, cwd))
            news = news_of(server)
            assert isinstance(news, PreloadReady), news
            self.slots[key] = self._slot(server)
        return self.slots[key]

    def server(self, found: Forkable, cwd: Path) -> PreloadServer:
        preload = Preload(
            found.python,
            found.start,
            found.target,
            str(cwd),
            {**self.env, **found.main.env},
            None if self.modules is None else tuple(self.modules),
            EARLY,
        )
        return PreloadServer(preload, str(self.folder / f"imports.{len(self.slots)}"), self.env)

    def _slot(self, spawner: Spawner) -> Slot:
        folder = self.folder / f"slot.{len(self.slots)}"
        folder.mkdir()
        return self.stack.enter_context(Slot(spawner, folder))


@contextmanager
def twice(
    folder: Path, modules: Sequence[str] | None, environ: Mapping[str, str] | None = None
) -> Iterator[Twice]:
    folder.mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "MINE": "mine"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", **(environ or {})}
    with ExitStack() as stack:
        yield Twice(folder, env, modules, stack)


def in_shell(script: str) -> tuple[str, ...]:
    return (*PLAIN_SHELL, script)


__all__ = ["AttemptOver", "Done", "Twice", "in_shell", "news_of", "twice"]
