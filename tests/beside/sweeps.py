"""Hydra's programs, begun as people begin them, with cards that are pretend ones."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers import goes_along

PROGRAMS = Path(__file__).parent / "programs"


class HydraSweeps:
    """Sweeps of `programs/train.py` by one Hydra, in one directory."""

    def __init__(self, python: Path, place: Path, cards: int | None = 2) -> None:
        self.python, self.place, self.cards = python, place, cards
        self.env: dict[str, str] = {}
        self.before: tuple[str, ...] = ()

    def start(self, *words: str, program: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [
            *self.before,
            str(self.python),
            *(program or [str(PROGRAMS / "train.py")]),
            "--multirun",
        ]
        command += ["hydra/launcher=gpulaunch", f"place='{self.place}'", "hydra.sweep.dir=sweep"]
        if self.cards is not None:
            command += [f"hydra.launcher.simulate={self.cards}"]
        return subprocess.Popen(
            [*command, *words],
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": str(PROGRAMS), **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=goes_along(),
        )

    def run(self, *words: str, status: int = 0, program: Sequence[str] = ()) -> tuple[str, str]:
        """Run a sweep to its end; return what it printed on standard output and error."""
        with self.start(*words, program=program) as process:
            out, err = process.communicate(timeout=240)
        assert process.returncode == status, out + err
        return out, err

    def in_order(self, *batches: Sequence[Sequence[str]], words: Sequence[str] = ()) -> list[Any]:
        """Launch these overrides by batches; return what each job returned, or raised."""
        (self.place / "batches.json").write_text(json.dumps(batches))
        self.run("hydra/sweeper=in_order", "hydra.sweeper.file=batches.json", *words)
        returned: list[Any] = json.loads((self.place / "sweep" / "returned.json").read_text())
        return returned

    def gpulaunch(self, *words: str) -> str:
        done = subprocess.run(
            [self.python, "-m", "gpulaunch", *words],
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self, run: str = "sweep/gpulaunch") -> dict[str, Any]:
        """What `gpulaunch status --json` says of the run."""
        told: dict[str, Any] = json.loads(self.gpulaunch("status", run, "--json"))
        return told

    def notes(self) -> list[dict[str, Any]]:
        """What each job that worked has noted, in the order of their numbers."""
        found = sorted(self.place.glob("note-*.json"), key=lambda one: int(one.stem[5:]))
        return [json.loads(one.read_text()) for one in found]
