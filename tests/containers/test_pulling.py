"""The helper that brings an image here, with pretend engines: what it says, how all of it ends.

Real daemons and a registry on the loopback address are in `test_pulling_for_real.py`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpulaunch.containers import pulling
from gpulaunch.containers.pulling import PAUSES, EngineCalls, PullError, PullRequest
from tests.containers.bench import Bench, image
from tests.helpers import descriptors_left

DAEMONS = ("docker", "podman")
FILES = ("apptainer", "singularity")


def an_id(name: str) -> str:
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


def digest_of(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(params=DAEMONS)
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Bench]:
    return request.param, Bench(tmp_path, request.param)


@pytest.fixture(params=FILES)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Bench]:
    return request.param, Bench(tmp_path, request.param)


# ── docker and podman ───────────────────────────────────────────────────────────────────────────


def test_an_image_that_is_missing_is_pulled_and_told_by_id_and_digest(
    daemon: tuple[str, Bench],
) -> None:
    engine, bench = daemon
    with bench.helper(engine, "docker://lab/tool") as helper:
        *progress, ready = helper.everything()
    assert ready == {
        "said": "ready",
        "id": an_id("lab/tool"),
        "digest": "sha256:" + "d" * 64,
        "pulled": True,
    }
    assert progress == [{"said": "pulling"}]
    # Without docker:// podman would not know the registry.
    assert bench.pulls == [["pull", "docker://lab/tool" if engine == "podman" else "lab/tool"]]


def test_an_image_that_is_here_is_not_pulled(daemon: tuple[str, Bench]) -> None:
    engine, bench = daemon
    bench.answer(engine, "lab/tool")
    assert bench.answer(engine, "lab/tool") == {
        "said": "ready",
        "id": an_id("lab/tool"),
        "digest": "sha256:" + "d" * 64,
        "pulled": False,
    }
    assert bench.answer(engine, "lab/tool", "never")["said"] == "ready"
    assert len(bench.pulls) == 1


def test_always_pulls_anew(daemon: tuple[str, Bench]) -> None:
    engine, bench = daemon
    bench.answer(engine, "lab/tool")
    assert bench.answer(engine, "lab/tool", "always")["pulled"] is True
    assert len(bench.pulls) == 2


def test_never_pulls_nothing_and_says_what_to_do(daemon: tuple[str, Bench]) -> None:
    engine, bench = daemon
    assert bench.why(engine, "lab/tool", "never") == (
        f"`pull: never`, and {engine} does not have lab/tool:"
        f" `{engine} pull lab/tool` once, or leave `pull:` out"
    )
    assert bench.pulls == []


def test_what_a_run_had_before_is_ready_at_once_also_with_always(
    daemon: tuple[str, Bench],
) -> None:
    engine, bench = daemon
    known = bench.answer(engine, "lab/tool")["id"]
    again = bench.answer(engine, "lab/tool", "always", known)
    assert (again["id"], again["pulled"]) == (known, False)
    assert bench.calls[-1] == ["image", "inspect", known]
    assert len(bench.pulls) == 1


def test_what_a_run_had_before_and_is_gone_is_pulled_by_its_name(
    daemon: tuple[str, Bench],
) -> None:
    engine, bench = daemon
    assert bench.answer(engine, "lab/tool", known=an_id("gone"))["id"] == an_id("lab/tool")
    assert bench.pulls == [["pull", "lab/tool"]]


@pytest.mark.parametrize(
    ("image_name", "part"),
    [
        ("registry.example/missing", "manifest unknown"),
        ("registry.example/denied", "denied"),
        ("registry.example/nospace", "no space left on device"),
        ("registry.example/strange", "it is a strange day"),
    ],
)
def test_a_pull_that_fails_says_why_in_the_engines_own_words(
    daemon: tuple[str, Bench], image_name: str, part: str
) -> None:
    engine, bench = daemon
    why = bench.why(engine, image_name)
    assert why.startswith(f"{engine} cannot pull {image_name}: ")
    assert part in why
    assert why.endswith(f"; `{engine} pull {image_name}` shows more")
    assert "\n" not in why
    assert len(bench.pulls) == 1


def test_an_engine_that_is_not_here_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    nowhere = {"PATH": str(tmp_path / "bin")}
    for engine in (*DAEMONS, *FILES):
        assert bench.why(engine, "lab/tool", environ=nowhere) == (
            f"{engine} is not installed here: there is no program `{engine}` in PATH"
        )


def test_a_daemon_that_is_not_there_or_not_for_this_user_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "docker")
    for state, words in {
        "absent": "Is the docker daemon running?",
        "forbidden": "permission denied while trying to connect to the Docker daemon socket",
    }.items():
        why = bench.why("docker", "lab/tool", environ={"FAKE_ENGINE_DAEMON": state})
        assert why.startswith("docker cannot look for lab/tool: ")
        assert words in why
        assert why.endswith("; `docker image inspect lab/tool` shows more")


# ── Archives ────────────────────────────────────────────────────────────────────────────────────


def test_an_archive_is_loaded_and_named_by_its_image_s_id(daemon: tuple[str, Bench]) -> None:
    engine, bench = daemon
    archive = bench.root / "a tool.tar.gz"
    archive.write_text("lab/tool:2")
    for pull in ("missing", "never", "always"):
        answer = bench.answer(engine, str(archive), pull)
        assert (answer["said"], answer["id"]) == ("ready", an_id("lab/tool:2"))
    assert bench.calls[0] == ["load", "-i", str(archive)]
    assert bench.pulls == []


def test_an_archive_whose_image_is_here_from_before_is_not_loaded(
    daemon: tuple[str, Bench],
) -> None:
    engine, bench = daemon
    archive = bench.root / "tool.tar"
    archive.write_text("lab/tool:2")
    known = bench.answer(engine, str(archive))["id"]
    before = len(bench.calls)
    assert bench.answer(engine, str(archive), known=known)["pulled"] is False
    assert bench.calls[before:] == [["image", "inspect", known]]


def test_an_archive_with_several_images_names_them(daemon: tuple[str, Bench]) -> None:
    engine, bench = daemon
    archive = bench.root / "both.tar"
    archive.write_text("lab/tool:2 lab/other:1")
    assert bench.why(engine, str(archive)) == (
        f"{archive} holds 2 images (lab/tool:2, lab/other:1):"
        f" `{engine} load -i {archive}` once, and name one of them"
    )


def test_an_archive_that_is_none_or_is_absent_is_said(daemon: tuple[str, Bench]) -> None:
    engine, bench = daemon
    archive = bench.root / "bad.tar"
    archive.write_text("")
    assert bench.why(engine, str(archive)).startswith(f"{engine} cannot load {archive}: ")
    assert bench.why(engine, f"{archive}.gz") == f"there is no file {archive}.gz"


# ── apptainer, singularity ──────────────────────────────────────────────────────────────────────


def test_a_file_is_ready_at_once_and_its_digest_comes_after(maker: tuple[str, Bench]) -> None:
    engine, bench = maker
    path = image(bench.root / "tool.sif")
    with bench.helper(engine, str(path)) as helper:
        assert helper.everything() == [
            {"said": "ready", "id": str(path), "digest": "", "pulled": False},
            {"said": "digest", "digest": digest_of(path)},
        ]
        assert helper.process.wait() == 0
    assert bench.calls == []


def test_a_directory_is_an_image_without_a_digest(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "apptainer")
    sandbox = tmp_path / "sandbox"
    sandbox.mkdir()
    with bench.helper("apptainer", str(sandbox)) as helper:
        assert [said["said"] for said in helper.everything()] == ["ready"]


def test_a_file_that_is_absent_is_said(maker: tuple[str, Bench]) -> None:
    engine, bench = maker
    assert bench.why(engine, "/nowhere/tool.sif") == "there is no file /nowhere/tool.sif"


@pytest.mark.skipif(not os.geteuid(), reason="root may read everything")
def test_a_file_that_one_may_not_read_is_said(tmp_path: Path) -> None:
    path = image(tmp_path / "tool.sif")
    path.chmod(0)
    assert Bench(tmp_path, "apptainer").why("apptainer", str(path)) == f"you may not read {path}"


@pytest.mark.parametrize(
    ("engine", "name", "uri"),
    [
        ("apptainer", "lab/tool:2", "docker://lab/tool:2"),
        ("apptainer", "oras://registry.example/tool:2", "oras://registry.example/tool:2"),
        ("singularity", "library://lab/tool", "library://lab/tool"),
        ("apptainer", "docker-daemon:lab/tool:2", "docker-daemon:lab/tool:2"),
        ("singularity", "docker-daemon:tool:latest", "docker-daemon:tool:latest"),
    ],
)
def test_an_image_of_a_registry_becomes_a_file_in_the_cache_once(
    tmp_path: Path, engine: str, name: str, uri: str
) -> None:
    bench = Bench(tmp_path, engine)
    with bench.helper(engine, name) as helper:
        *_, ready, digest = helper.everything()
    path = Path(ready["id"])
    assert path.parent == bench.cache
    assert ready == {"said": "ready", "id": str(path), "digest": "", "pulled": True}
    assert digest == {"said": "digest", "digest": digest_of(path)}
    (line,) = bench.pulls
    assert line[-1] == uri
    again = bench.answer(engine, name)
    assert (again["id"], again["pulled"]) == (str(path), False)
    assert bench.answer(engine, name, "never")["id"] == str(path)
    assert len(bench.pulls) == 1
    assert {file.suffix for file in bench.cache.iterdir()} == {path.suffix, ".lock"}


def test_always_makes_the_file_anew_but_not_where_the_run_had_it(maker: tuple[str, Bench]) -> None:
    engine, bench = maker
    path = bench.answer(engine, "lab/tool")["id"]
    assert bench.answer(engine, "lab/tool", "always", path)["pulled"] is False
    before = os.stat(path).st_ino
    assert bench.answer(engine, "lab/tool", "always")["pulled"] is True
    assert os.stat(path).st_ino != before
    assert len(bench.pulls) == 2


def test_never_makes_no_file(maker: tuple[str, Bench]) -> None:
    engine, bench = maker
    why = f"`pull: never`, and {engine} does not have lab/tool: leave `pull:` out"
    assert bench.why(engine, "lab/tool", "never") == why
    assert bench.calls == []
    assert not bench.cache.exists()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("registry.example/missing", "manifest unknown"),
        ("registry.example/denied", "denied"),
        ("registry.example/nospace", "no space left on device"),
    ],
)
def test_a_file_that_cannot_be_made_says_why_and_leaves_nothing(
    maker: tuple[str, Bench], name: str, part: str
) -> None:
    engine, bench = maker
    assert part in bench.why(engine, name)
    assert [file.suffix for file in bench.cache.iterdir()] == [".lock"]
    assert len(bench.pulls) == 1


def test_two_runs_that_want_one_image_pull_it_once(maker: tuple[str, Bench]) -> None:
    engine, bench = maker
    with bench.helper(engine, "lab/tool", environ=bench.holding()) as first:
        bench.pulling()
        with bench.helper(engine, "lab/tool", "always") as second:
            assert second.said() == {"said": "pulling"}
            bench.go_on()
            pulled, found = first.answer(), second.answer()
    assert (pulled["pulled"], found["pulled"]) == (True, False)
    assert pulled["id"] == found["id"]
    assert len(bench.pulls) == 1


def test_what_a_killed_pull_left_is_removed_by_the_next(maker: tuple[str, Bench]) -> None:
    engine, bench = maker
    with bench.helper(engine, "lab/tool", environ=bench.holding()) as helper:
        bench.pulling()
        draft = next(Path(word) for word in bench.pulls[0] if "/.pulling-" in word)
        draft.touch()
        helper.process.kill()
        helper.process.wait()
    assert bench.answer(engine, "lab/tool")["said"] == "ready"
    assert not draft.exists()


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "apptainer")
    bench.cache.write_text("a file")
    why = f"no images can be put into {bench.cache}: File exists"
    assert bench.why("apptainer", "lab/tool") == why


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a full disk needs the right to mount a small one")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_full_leaves_no_half_image(tmp_path: Path, small_disk: Path) -> None:
    bench = Bench(tmp_path, "apptainer")
    bench.cache = small_disk / "images"
    assert "no space left on device" in bench.why("apptainer", "lab/large").lower()
    assert [file.suffix for file in bench.cache.iterdir()] == [".lock"]


# ── Tries, time limits: in this process ─────────────────────────────────────────────────────────


def calls(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    *request: str,
    pause: Callable[[float], object] = time.sleep,
    answer_seconds: float = 60.0,
) -> EngineCalls:
    for name, value in bench.environ.items():
        monkeypatch.setenv(name, value)
    wanted = msgspec.convert(bench.request(*request), PullRequest)
    return EngineCalls(wanted, lambda: None, pause, answer_seconds)


@pytest.mark.parametrize("engine", [*DAEMONS, *FILES])
def test_where_the_network_failed_it_is_tried_again_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    bench, pauses = Bench(tmp_path, engine), list[float]()
    ours = calls(bench, monkeypatch, engine, "registry.example/network", pause=pauses.append)
    with pytest.raises(PullError, match=r"registry.example/network: .*; `"):
        pulling.have(ours)
    assert pauses == [*PAUSES]
    assert len(bench.pulls) == 1 + len(PAUSES)


GET = 'Error response from daemon: Get "https://registry.example/v2/": '
OF_NETWORK = [
    GET + "dial tcp 10.0.0.1:443: connect: connection refused",
    GET + "dial tcp: lookup registry.example: no such host",
    GET + "net/http: TLS handshake timeout",
    GET + "net/http: request canceled while waiting for connection",
    GET + "dial tcp 10.0.0.1:443: i/o timeout",
    "Error response from daemon: received unexpected HTTP status: 500 Internal Server Error",
    "error pulling image configuration: download failed after attempts=6: unexpected EOF",
    "curl: (6) Could not resolve host: registry.example",
    "[ERROR] URL https://x.example/v2/x returned error code: 503 Service Unavailable",
]
OF_NO_NETWORK = [
    "Error response from daemon: manifest unknown",
    GET + "x509: certificate signed by unknown authority",
    "Copying blob sha256:401429403404500\nError: it is a strange day",
    "Error: writing blob: write /x: disk quota exceeded",
    "",
]


@pytest.mark.parametrize("words", OF_NETWORK)
def test_a_failure_of_the_network_is_worth_another_try(words: str) -> None:
    assert pulling.is_of_network(words)


@pytest.mark.parametrize("words", OF_NO_NETWORK)
def test_any_other_failure_is_not(words: str) -> None:
    assert not pulling.is_of_network(words)


def test_a_network_that_is_back_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, "docker")

    def back(_: float) -> None:
        (bench.root / "bin/docker").unlink()
        quiet = '#!/bin/sh\nprintf \'[{"Id": "sha256:1", "RepoDigests": null}]\'\n'
        (bench.root / "bin/docker").write_text(quiet)
        (bench.root / "bin/docker").chmod(0o700)

    ours = calls(bench, monkeypatch, "docker", "registry.example/network", pause=back)
    assert pulling.have(ours).id == "sha256:1"


@pytest.mark.parametrize("engine", ["docker", "apptainer"])
def test_a_machine_without_room_for_another_process_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    bench = Bench(tmp_path, engine)
    ours = calls(bench, monkeypatch, engine, "lab/tool")
    why = f"{engine} cannot be started: Too many open files; `gpulaunch retry` once"
    with descriptors_left(1), pytest.raises(PullError, match=why):  # apptainer: the lock's
        pulling.have(ours)
    assert bench.calls == []


def another_s_draft(bench: Bench) -> Path:
    """A file as a pull of lab/tool by another run makes it; this one's image is not there."""
    made = Path(bench.answer("apptainer", "lab/tool")["id"])
    return made.rename(made.with_name(f".pulling-1-{made.name}"))


def test_without_locks_what_another_run_is_making_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    bench = Bench(tmp_path, "apptainer")
    draft = another_s_draft(bench)
    ours = calls(bench, monkeypatch, "apptainer", "lab/tool")
    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert pulling.have(ours).pulled
    assert draft.exists()


def test_what_was_left_and_vanishes_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "apptainer")
    draft = another_s_draft(bench)
    ours = calls(bench, monkeypatch, "apptainer", "lab/tool")
    monkeypatch.setattr(pulling, "glob", lambda pattern: [f"{draft}.vanished", str(draft)])
    assert pulling.have(ours).pulled
    assert not draft.exists()


@pytest.mark.parametrize("policy", ["missing", "always", "never"])
def test_an_engine_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    bench = Bench(tmp_path, "docker")
    monkeypatch.setenv("FAKE_ENGINE_DAEMON", "stopped")
    ours = calls(bench, monkeypatch, "docker", "lab/tool", policy, answer_seconds=0.3)
    with pytest.raises(PullError, match=r"docker's daemon has not answered for 0 s: `docker ps`"):
        pulling.have(ours)
