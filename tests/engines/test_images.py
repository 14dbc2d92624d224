"""Images of containers: each is pulled by a process of its own, whose word is passed on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpulaunch.base.loop import Loop
from gpulaunch.core.events import Event, ImageDigest, ImageFailed, ImageReady, PullImage
from gpulaunch.core.facts import PullBegun
from gpulaunch.core.model import ContainerEngine, ImageSource
from gpulaunch.engines.context import ImageHere
from gpulaunch.engines.images import Images
from tests.engines.fakes import lone_context

ENVIRON = {"XDG_CACHE_HOME": "/caches", "DOCKER_HOST": "unix:///docker.sock"}


class Bench:
    """An Images in a loop that turns until something is so."""

    def __init__(self, path: Path) -> None:
        self.loop = Loop()
        self.events: list[Event] = []
        (path / "bin").mkdir()
        (path / "bin" / "docker").touch(0o755)
        self.context = lone_context(path, self.loop, {**ENVIRON, "PATH": str(path / "bin")})
        self.context.post = self.events.append
        self.images = Images(self.context, False, "tests.engines.standin")

    def pull(
        self, image: str, known: str = "", engine: ContainerEngine | None = "docker"
    ) -> ImageSource:
        source = ImageSource(image, engine)
        self.images.pull(PullImage(source, known))
        return source

    def until(self, events: int) -> list[Event]:
        while len(self.events) < events:
            self.loop.turn()
        return self.events

    def close(self) -> None:
        self.images.close()
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def pulling() -> list[psutil.Process]:
    """The processes below this one that pull."""
    below = psutil.Process().children()
    return [one for one in below if "tests.engines.standin" in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_an_image_that_is_there_is_ready_and_its_id_is_known(bench: Bench) -> None:
    source = bench.pull("here")
    assert bench.until(1) == [ImageReady(source, "sha256:1", "sha256:10", "docker", False)]
    assert bench.context.images == {source: ImageHere("docker", "sha256:1")}


def test_an_engine_that_is_left_open_is_one_that_is_here(bench: Bench) -> None:
    source = bench.pull("here", engine=None)
    assert bench.until(1) == [ImageReady(source, "sha256:1", "sha256:10", "docker", False)]
    assert bench.context.images == {source: ImageHere("docker", "sha256:1")}


def test_the_digest_of_a_file_follows(bench: Bench) -> None:
    source = bench.pull("file")
    assert bench.until(2) == [
        ImageReady(source, "/a.sif", "", "docker", False),
        ImageDigest(source, "sha256:40"),
    ]


def test_without_an_engine_for_it_the_image_is_not_to_be_had(bench: Bench) -> None:
    source = bench.pull("here", engine="podman")
    why = "no program in PATH runs this image: install podman"
    assert bench.until(1) == [ImageFailed(source, why)]


def test_what_pulls_is_told_all_that_is_known_of_the_image(bench: Bench) -> None:
    source = bench.pull("echo", known="sha256:9")
    bench.until(1)
    assert json.loads(bench.context.images[source].id) == {
        "engine": "docker",
        "image": "echo",
        "pull": "missing",
        "known": "sha256:9",
        "cache": "/caches/gpulaunch/images",
    }


def test_a_pull_is_told_once_and_how_long_it_takes_can_be_asked(bench: Bench) -> None:
    source = bench.pull("slow")
    assert bench.images.pulls() == {}
    while not bench.events:
        bench.loop.turn()
    time.sleep(0.05)
    assert bench.images.pulls()[source] >= 0.05
    assert bench.events == [PullBegun(source, "docker")]
    assert source not in bench.context.images
    _let_it_end(bench, source)
    assert bench.until(2)[1:] == [ImageReady(source, "sha256:3", "sha256:30", "docker", True)]
    assert bench.images.pulls() == {}


def _let_it_end(bench: Bench, source: ImageSource) -> None:
    link = bench.images._helpers[source].link
    assert link is not None
    link.send(b"x")


def test_one_pull_does_not_wait_for_another(bench: Bench) -> None:
    slow, here = bench.pull("slow"), bench.pull("here")
    ready = ImageReady(here, "sha256:1", "sha256:10", "docker", False)
    while ready not in bench.events:
        bench.loop.turn()
    _let_it_end(bench, slow)
    while len(bench.events) < 3:
        bench.loop.turn()
    assert bench.context.images[slow].id == "sha256:3"


def test_an_image_that_cannot_be_had_is_failed_and_may_be_asked_for_again(bench: Bench) -> None:
    source = bench.pull("none")
    failed = ImageFailed(source, "no such image; look at its name")
    assert bench.until(1) == [failed]
    bench.pull("none")
    assert bench.until(2) == [failed, failed]


@pytest.mark.parametrize(
    ("image", "how"), [("silent", "ended with status 3"), ("killed", "was killed by signal 9")]
)
def test_what_dies_without_a_word_is_a_failure_that_says_how(
    bench: Bench, image: str, how: str
) -> None:
    source = bench.pull(image)
    why = f"what was to pull it {how}, and did not say why"
    assert bench.until(1) == [ImageFailed(source, why)]


def test_words_that_are_no_answer_are_passed_over(bench: Bench) -> None:
    source = bench.pull("noise")
    assert bench.until(1) == [ImageReady(source, "sha256:2", "", "docker", True)]


def test_a_process_that_cannot_be_started_is_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    source = bench.pull("here")
    assert bench.events == [ImageFailed(source, "no process to pull it: No such file or directory")]


def test_the_answer_comes_once_though_the_process_still_ends(bench: Bench) -> None:
    bench.pull("here")
    while bench.images._helpers:
        bench.loop.turn()
    assert len(bench.events) == 1


def test_nothing_is_left_of_pulls_when_the_run_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.pull("slow")
    bench.until(1)
    assert len(pulling()) == 1
    bench.close()
    assert not pulling()
