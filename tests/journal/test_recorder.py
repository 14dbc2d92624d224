"""What is derived from a run's facts, beside the journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.core.facts import ImageKnown
from gpulaunch.core.ledger import Ledger
from gpulaunch.core.model import ImageSource
from gpulaunch.journal import manifest
from gpulaunch.journal.append import Journal
from gpulaunch.journal.codec import now
from gpulaunch.journal.joblog import JobLog
from gpulaunch.journal.manifest import NamedImage
from gpulaunch.journal.recorder import Recorder
from gpulaunch.journal.rundir import RunDir
from tests.journal.facts import opened

IMG = ImageSource("img:latest", "docker")


class Recorded:
    """A run's directory with a recorder, and the ledger of what was recorded."""

    def __init__(self, run: RunDir) -> None:
        self.run, self.ledger = run, Ledger()
        self.journal = Journal.create(run)
        self.joblog = JobLog(run.joblog, lambda name: name)
        self.recorder = Recorder(run, self.journal, self.joblog, self.ledger)
        self.ledger.apply(opened(), now())

    def add(self, *facts: ImageKnown) -> None:
        for fact in facts:
            at = now()
            self.ledger.apply(fact, at)
            self.recorder.append([(fact, at)])
        self.recorder.derive()

    def close(self) -> None:
        self.joblog.close()
        self.journal.close()


@pytest.fixture
def recorded(rundir: RunDir) -> Iterator[Recorded]:
    made = Recorded(rundir)
    yield made
    made.close()


def begin(run: RunDir) -> None:
    made = manifest.collect("r", "fold", started="", command=(), job_file=None)
    manifest.write(run.manifest, made)


def test_the_manifest_names_images_as_they_become_known(recorded: Recorded) -> None:
    begin(recorded.run)
    recorded.add(ImageKnown(IMG, "sha256:1", "sha256:a", "docker"))
    sif = ImageSource("/data/b.sif", "apptainer")
    again = ImageSource("img:latest", "docker", "always")  # the same image, once more
    recorded.add(
        ImageKnown(sif, "/data/b.sif", "", "apptainer"),
        ImageKnown(again, "sha256:1", "sha256:a", "docker"),
    )
    assert recorded.run.read_manifest().images == (
        NamedImage("img:latest", "docker", "sha256:1", "sha256:a"),
        NamedImage("/data/b.sif", "apptainer", "/data/b.sif", ""),
    )


def test_an_image_that_has_changed_is_named_as_it_is_now(recorded: Recorded) -> None:
    begin(recorded.run)
    recorded.add(ImageKnown(IMG, "sha256:1", "sha256:a", "docker"))
    recorded.add(ImageKnown(IMG, "sha256:2", "sha256:b", "docker", pulled=True))
    assert recorded.run.read_manifest().images == (
        NamedImage("img:latest", "docker", "sha256:2", "sha256:b"),
    )


@pytest.mark.parametrize("there", [None, "{"])
def test_a_run_goes_on_without_a_manifest_that_can_be_read(
    recorded: Recorded, there: str | None
) -> None:
    path: Path = recorded.run.manifest
    if there is not None:
        path.write_text(there)
    recorded.add(ImageKnown(IMG, "sha256:1", "sha256:a", "docker"))
    assert (path.read_text() if path.exists() else None) == there
