"""Keepers run on every Python from 3.8 on that this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Exited, NotStarted, Signaled, TimedOut
from gpulaunch.process.client import Ended, Nursery, Started
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
    with Nursery(python(version)) as nursery, Slot(nursery, tmp_path) as slot:
        assert slot.run("sh", "-c", "exit 3").outcome == Exited(3)
        assert isinstance(slot.run("/no/program").outcome, NotStarted)
        assert slot.run(nasty, "daemons-exit", mark).leftovers == 3
        ended = slot.run("sh", "-c", "echo x; sleep 100", idle_timeout=0.2, grace=5.0)
        assert ended.outcome == TimedOut("idle_timeout", 0.2, Signaled(15))
        assert slot.run("true", outputs=("/etc/hostname/*",)).outcome != Exited(0)
        slot.launch(nasty, "ignore-term", mark)
        slot.expect(Started)
        slot.pair.stop("stopped", now=True)
        slot.expect(Ended)
        slot.finish()
        assert marked(mark) == []
        assert nursery.said() == ""
