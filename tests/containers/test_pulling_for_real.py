"""Pulling with docker's and podman's real programs, from a registry on the loopback address."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from gpulaunch.containers import pulling
from gpulaunch.containers.pulling import EngineCalls, PullError, PullRequest
from tests.containers.bench import Bench, alive
from tests.containers.registry import Registry, serving
from tests.helpers import goes_along, wait_until

ENGINES = ("docker", "podman")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


@contextmanager
def docker_daemon(root: Path, data: Path) -> Iterator[dict[str, str]]:
    """A daemon of docker's, of the tests' own; gives the variables that lead to it."""
    if os.getuid() or not shutil.which("dockerd") or not shutil.which("docker"):
        pytest.skip("needs dockerd, docker and root")
    root.mkdir(exist_ok=True)
    socket = root / "socket"
    line = ["dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none"]
    line += ["--storage-driver=vfs", f"--host=unix://{socket}", f"--data-root={data}"]
    line += [f"--exec-root={root}/exec", f"--pidfile={root}/pid"]
    with (root / "log").open("w") as log:
        daemon = subprocess.Popen(line, stdout=log, stderr=log, preexec_fn=goes_along())
    environ = {"DOCKER_HOST": f"unix://{socket}", "DOCKER_CONFIG": str(root)}
    asked = ["docker", "version"]
    try:
        wait_until(
            lambda: (
                not subprocess.run(
                    asked, env={**os.environ, **environ}, capture_output=True, check=False
                ).returncode
            ),
            what=str(root / "log"),
        )
        yield environ
    finally:
        daemon.send_signal(signal.SIGCONT)
        daemon.terminate()
        daemon.wait()


@contextmanager
def podman_storage(root: Path, data: Path) -> Iterator[dict[str, str]]:
    """A storage of podman's, of the tests' own; gives the variables that lead to it."""
    if os.getuid() or not shutil.which("podman"):
        pytest.skip("needs podman and root")
    root.mkdir(exist_ok=True)
    storage = f'[storage]\ndriver = "vfs"\ngraphroot = "{data}"\nrunroot = "{root}/run"\n'
    (root / "storage.conf").write_text(storage)
    (root / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    (root / "containers.conf").write_text(
        f'[engine]\ntmp_dir = "{root}/tmp"\nstatic_dir = "{root}/static"\nevents_logger = "file"\n'
        'cgroup_manager = "cgroupfs"\n'
    )
    yield {
        "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(root / "registries.conf"),
        "CONTAINERS_CONF": str(root / "containers.conf"),
    }


def real(engine: str, root: Path, data: Path) -> AbstractContextManager[dict[str, str]]:
    return (docker_daemon if engine == "docker" else podman_storage)(root, data)


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """A socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module", params=ENGINES)
def engine(
    request: pytest.FixtureRequest, short_folder: Path
) -> Iterator[tuple[str, dict[str, str]]]:
    root = short_folder / request.param
    with real(request.param, root, root / "data") as environ:
        yield request.param, environ


class RealBench(Bench):
    """A bench whose program is the real one."""

    def __init__(self, root: Path, engine: str, to_engine: Mapping[str, str]) -> None:
        super().__init__(root)
        self.engine = engine
        self.environ = {**os.environ, **to_engine, "HOME": str(root)}

    def run(self, *arguments: str) -> str:
        line = [self.engine, *arguments]
        done = subprocess.run(line, env=self.environ, check=True, capture_output=True, text=True)
        return done.stdout

    def has(self, image: str) -> bool:
        line = [self.engine, "image", "inspect", image]
        done = subprocess.run(line, env=self.environ, check=False, capture_output=True)
        return not done.returncode


@pytest.fixture
def bench(tmp_path: Path, engine: tuple[str, dict[str, str]]) -> Iterator[RealBench]:
    made = RealBench(tmp_path, *engine)
    yield made
    if images := made.run("images", "--quiet", "--no-trunc").split():
        made.run("rmi", "--force", *set(images))


def test_an_image_is_pulled_once_and_named_by_id_and_digest(
    bench: RealBench, registry: Registry
) -> None:
    name = f"{registry.address}/lab/tool"
    assert bench.why(bench.engine, name, "never").startswith("`pull: never`, and ")
    with bench.helper(bench.engine, f"docker://{name}") as helper:
        *progress, ready = helper.everything()
    assert progress == [{"said": "pulling"}]
    assert (ready["said"], ready["pulled"]) == ("ready", True)
    assert ready["digest"] == registry.digest("tool")
    assert bench.has(ready["id"])
    for pull in ("missing", "never"):
        assert bench.answer(bench.engine, name, pull) == {**ready, "pulled": False}
    assert bench.answer(bench.engine, name, "always", ready["id"]) == {**ready, "pulled": False}
    assert bench.answer(bench.engine, name, "always") == ready


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("absent", "manifest unknown"),
        ("denied", "denied"),
        ("login", "unauthorized"),
        ("arm", "no matching manifest|no image found in manifest list"),
        ("UPPER", "must be lowercase|invalid reference format"),
    ],
)
def test_what_a_registry_refuses_is_said(
    bench: RealBench, registry: Registry, name: str, part: str
) -> None:
    why = bench.why(bench.engine, f"{registry.address}/lab/{name}")
    assert re.search(part, why), why


def test_an_archive_is_loaded(bench: RealBench, registry: Registry) -> None:
    name = f"{registry.address}/lab/tool:latest"
    pulled = bench.answer(bench.engine, name)
    one, both, bad = (bench.root / f"{name}.tar" for name in ("one", "both", "bad"))
    bench.run("save", "-o", str(one), name)
    bench.run("tag", name, "lab/again:1")
    bench.run("save", *_several(bench), "-o", str(both), name, "lab/again:1")
    bad.write_text("no archive")
    bench.run("rmi", "--force", pulled["id"])
    for archive in (one, both):  # two names of one image are one image
        loaded = bench.answer(bench.engine, str(archive))
        assert (loaded["said"], loaded["id"]) == ("ready", pulled["id"])
    assert bench.why(bench.engine, str(bad)).startswith(f"{bench.engine} cannot load {bad}: ")


def _several(bench: RealBench) -> list[str]:
    return ["--multi-image-archive"] if bench.engine == "podman" else []


def test_a_helper_that_is_killed_pulls_no_further(bench: RealBench, registry: Registry) -> None:
    registry.open.clear()
    registry.asked.clear()
    name = f"{registry.address}/lab/tool"
    with bench.helper(bench.engine, name) as helper:
        assert registry.asked.wait(60)
        clients = _clients(bench.engine, name)
        assert clients
        helper.process.kill()
        wait_until(lambda: not any(map(alive, clients)))
    registry.open.set()
    # Had a daemon gone on with the small image, it would be here by the time the large one is.
    assert bench.answer(bench.engine, f"{registry.address}/lab/large")["said"] == "ready"
    assert not bench.has(name)


def _clients(engine: str, name: str) -> list[int]:
    """The PIDs of all that pull this image."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [engine.encode(), b"pull"] and name.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a full disk needs the right to mount a small one")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("engine_name", ENGINES)
def test_a_disk_that_is_full_is_named(
    tmp_path: Path, small_disk: Path, registry: Registry, engine_name: str
) -> None:
    with ExitStack() as undo:
        root = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        environ = undo.enter_context(real(engine_name, root, small_disk / "data"))
        (small_disk / "filler").write_bytes(bytes(16 << 20))
        bench = RealBench(tmp_path, engine_name, {**environ, "TMPDIR": str(small_disk)})
        name = f"{registry.address}/lab/large"
        assert "no space left on device" in bench.why(engine_name, name)


def test_a_daemon_that_hangs_is_given_up_and_one_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    with ExitStack() as undo:
        root = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="gl-")))
        environ = undo.enter_context(docker_daemon(root, root / "data"))
        bench = RealBench(tmp_path, "docker", environ)
        for variable, value in environ.items():
            monkeypatch.setenv(variable, value)
        os.kill(int((root / "pid").read_text()), signal.SIGSTOP)
        request = msgspec.convert(bench.request("docker", "lab/tool"), PullRequest)
        calls = EngineCalls(request, lambda: None, answer_seconds=1.0)
        with pytest.raises(PullError, match="docker's daemon has not answered for 1 s"):
            pulling.have(calls)
    assert f"Docker daemon at {environ['DOCKER_HOST']}" in bench.why("docker", "lab/tool")
