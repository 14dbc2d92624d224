"""Which engine is chosen by what is installed, and as whom the program runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpulaunch.containers.engines import InstalledEngines, NoEngineError, UserInside
from gpulaunch.core.model import ImageSource

ANY = ImageSource("name:tag")


def machine(tmp_path: Path, *names: str, **environ: str) -> InstalledEngines:
    """Return what a machine with these programs has; docker's socket is there if docker is."""
    bin_ = tmp_path / "bin"
    bin_.mkdir(exist_ok=True)
    for name in names:
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    socket = tmp_path / "docker.sock"
    if "docker" in names:
        socket.touch(0o600)
    given = {"PATH": str(bin_), "HOME": str(tmp_path), **environ}
    return InstalledEngines(given, str(socket))


@pytest.mark.parametrize("names", [("docker", "podman"), ("podman",), ("apptainer", "singularity")])
def test_the_first_that_is_installed_is_chosen(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert machine(tmp_path, *names).engine_for(ANY) == names[0]


def test_none_is_chosen_where_none_is_installed(tmp_path: Path) -> None:
    with pytest.raises(NoEngineError, match="install docker, podman, apptainer or singularity"):
        machine(tmp_path).engine_for(ANY)


def test_docker_without_a_way_to_its_daemon_is_passed_over(tmp_path: Path) -> None:
    here = machine(tmp_path, "docker", "podman")
    (tmp_path / "docker.sock").unlink()
    assert here.engine_for(ANY) == "podman"


def test_a_daemon_that_is_named_elsewhere_is_believed(tmp_path: Path) -> None:
    for environ in ({"DOCKER_HOST": "unix:///x.sock"}, {"DOCKER_CONTEXT": "rootless"}):
        here = machine(tmp_path, "docker", "podman", **environ)
        (tmp_path / "docker.sock").unlink()
        assert here.engine_for(ANY) == "docker"


def test_the_context_that_is_in_use_says_where_the_daemon_is(tmp_path: Path) -> None:
    here = machine(tmp_path, "docker", "podman")
    (tmp_path / "docker.sock").unlink()
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"currentContext": "rootless"}))
    assert here.engine_for(ANY) == "docker"


def test_podman_by_the_name_of_docker_is_podman(tmp_path: Path) -> None:
    here = machine(tmp_path, "docker", "podman")
    (tmp_path / "bin" / "docker").write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')
    assert here.engine_for(ANY) == "podman"
    (tmp_path / "bin" / "docker").unlink()
    (tmp_path / "bin" / "docker").symlink_to("podman")
    assert machine(tmp_path).path("docker") is None


def test_a_cluster_takes_no_engine_with_a_daemon(tmp_path: Path) -> None:
    assert machine(tmp_path, "docker", "podman").engine_for(ANY, cluster=True) == "apptainer"
    assert machine(tmp_path, "docker", "singularity").engine_for(ANY, cluster=True) == "singularity"
    with pytest.raises(NoEngineError, match="a container of docker or podman is not a descendant"):
        machine(tmp_path, "docker").engine_for(ImageSource("/a.tar"), cluster=True)


def test_the_engine_that_a_job_names_is_taken_or_its_absence_is_told(tmp_path: Path) -> None:
    here = machine(tmp_path, "docker", "podman")
    assert here.engine_for(ImageSource("name", "podman")) == "podman"
    with pytest.raises(NoEngineError, match=r"install apptainer$"):
        here.engine_for(ImageSource("name", "apptainer"))
    (tmp_path / "docker.sock").unlink()
    with pytest.raises(NoEngineError, match=r"cannot be reached .*group docker"):
        machine(tmp_path).engine_for(ImageSource("name", "docker"))


def test_the_program_runs_as_the_caller(tmp_path: Path) -> None:
    uid, gid = os.geteuid(), os.getegid()
    others = tuple(group for group in os.getgroups() if group != gid) if uid else ()
    made = machine(tmp_path, "docker").user_inside("podman", "")
    assert made == UserInside(f"{uid}:{gid}", others, keep_id=uid != 0)


def test_the_program_runs_as_whom_the_job_names(tmp_path: Path) -> None:
    here = machine(tmp_path, "docker")
    assert here.user_inside("docker", "image") == UserInside()
    assert here.user_inside("docker", "12:34") == UserInside("12:34")


def test_root_of_a_daemon_of_the_users_own_is_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    here = machine(tmp_path, "docker")
    os.chown(tmp_path / "docker.sock", 1234, -1) if os.getuid() == 0 else pytest.skip("not root")
    assert here.user_inside("docker", "") == UserInside("0:0")
