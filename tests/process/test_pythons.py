"""Keepers run on every Python from 3.8 on that this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Exited, NotStarted, Signaled, TimedOut
from gpulaunch.farside.client import PROGRAM
from gpulaunch.process.client import AttemptOver, ProgramStarted, Spawner
from gpulaunch.process.command import Task
from tests.process.support import Slot, marked, token

VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


def python(version: str) -> str:
    places = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        Path(f"/usr/bin/python{version}"),
    ]
    for place in places:
        if place.exists():
            return str(place)
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("version", VERSIONS)
def test_keepers_run_on(version: str, tmp_path: Path, nasty: str) -> None:
    mark = token()
    with Spawner(python(version)) as spawner, Slot(spawner, tmp_path) as slot:
        assert slot.run("sh", "-c", "exit 3").end.outcome == Exited(3)
        assert isinstance(slot.run("/no/program").end.outcome, NotStarted)
        assert slot.run(nasty, "daemons-exit", mark).end.leftovers == 3
        ended = slot.run("sh", "-c", "echo x; sleep 100", idle_timeout=0.2, grace=5.0)
        assert ended.end.outcome == TimedOut("idle_timeout", 0.2, Signaled(15))
        assert slot.run("true", outputs=("/etc/hostname/*",)).end.outcome != Exited(0)
        slot.launch(nasty, "ignore-term", mark)
        slot.expect(ProgramStarted)
        slot.pair.stop("stopped", now=True)
        slot.expect(AttemptOver)
        slot.finish()
        assert marked(mark) == []
        assert spawner.said() == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_workers_run_on(version: str, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        "import os\ndef load(): return []\n"
        "def act(seen, item):\n    seen.append(item.n)\n    print(seen)\n"
        "    if item.n == '2': raise ValueError(item.n)\n"
    )
    (tmp_path / "loop.sh").write_text('while read -r line; do echo "$line"; echo 0 >&3; done\n')
    interpreter = python(version)
    call = (
        interpreter,
        PROGRAM,
        "serve",
        "call",
        f"{tmp_path}/made.py:act",
        f"{tmp_path}/made.py:load",
    )
    lines = (interpreter, "-I", "-S", PROGRAM, "serve", "lines", "sh", "loop.sh")
    with Spawner(interpreter) as spawner, Slot(spawner, tmp_path) as slot:
        for argv in (call, lines):
            codes = []
            for n in "123":
                slot.launch(*argv, task=Task(argv[-1], {"n": n}), cwd=str(tmp_path))
                ended = slot.expect(AttemptOver)
                assert ended.kept
                codes.append(ended.end.outcome)
            assert codes == [Exited(0), Exited(1 if argv is call else 0), Exited(0)]
        assert (tmp_path / "3.log").read_text() == "['1', '2', '3']\n"
        assert (tmp_path / "6.log").read_text() == '{"n": "3"}\n'
        slot.finish()
        assert spawner.said() == ""
