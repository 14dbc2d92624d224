"""The pretend engines are as strict as the real ones: what they refuse, and what is seen inside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.containers.bench import FAKES, image, install
from tests.helpers import wait_until

EMPTY: Mapping[str, str] = MappingProxyType({})


class Engine:
    """One pretend engine, run in a directory of its own."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.program = str(install(root / "bin", name) / name)
        self.image = str(image(root / "tool.sif", env={"OF_IMAGE": "1", "SHELL_OPTION": "image"}))
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(root), "SHELL_OPTION": "mine"}

    def run(
        self, *words: str, fds: Sequence[int] = (), environ: Mapping[str, str] = EMPTY
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words],
            env={**self.environ, **environ},
            pass_fds=fds,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def inside(self, *words: str, options: Sequence[str] = (), **environ: str) -> str:
        done = self.run("exec", *options, self.image, *words, environ=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def variables(self, *options: str, **environ: str) -> dict[str, str]:
        text = self.inside("env", "-0", options=options, **environ)
        return dict(entry.partition("=")[::2] for entry in text.strip("\0").split("\0"))


@pytest.fixture
def apptainer(tmp_path: Path) -> Engine:
    return Engine(tmp_path, "apptainer")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("apptainer", ["exec", "--nvidia", "IMAGE", "true"]),
        ("apptainer", ["exec", "--nv", "IMAGE"]),
        ("apptainer", ["exec", "--nv=yes", "IMAGE", "true"]),
        ("apptainer", ["exec", "--mount", "source=/tmp,destination=/tmp", "IMAGE", "true"]),
        ("apptainer", ["exec", "--mount", "type=bind,source=/tmp,target=/tmp", "IMAGE", "true"]),
        ("apptainer", ["exec", "--bind", "relative", "IMAGE", "true"]),
        ("apptainer", ["exec", "--env", "A=1,B", "IMAGE", "true"]),
        ("apptainer", ["exec", "--env", "A=$HOME", "IMAGE", "true"]),
        ("apptainer", ["pull", "--force", "a.sif", "docker://a"]),
        ("apptainer", ["run", "IMAGE"]),
        ("singularity", ["exec", "--pwd"]),
        ("docker", ["run", "a"]),
        ("podman", ["pull", "--quiet", "a"]),
    ],
)
def test_every_other_command_line_is_refused(tmp_path: Path, engine: str, words: list[str]) -> None:
    made = Engine(tmp_path, engine)
    done = made.run(*(made.image if word == "IMAGE" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{engine} (pretend): ")


def test_calls_are_recorded_as_they_were(apptainer: Engine, tmp_path: Path) -> None:
    record = tmp_path / "record"
    for word in ("a b", "ü"):
        apptainer.inside("true", word, FAKE_ENGINE_RECORD=str(record))
    assert [json.loads(line) for line in record.read_text().splitlines()] == [
        ["apptainer", "exec", apptainer.image, "true", "a b"],
        ["apptainer", "exec", apptainer.image, "true", "ü"],
    ]


def test_apptainer_hands_on_the_caller_s_variables_but_for_its_own(apptainer: Engine) -> None:
    found = apptainer.variables(A="1", APPTAINER_BIND="/x", LD_LIBRARY_PATH="/lib")
    assert (found["A"], found["SHELL_OPTION"], found["OF_IMAGE"]) == ("1", "mine", "1")
    assert found["PATH"].startswith("/usr/local/sbin:")
    assert not {"APPTAINER_BIND", "LD_LIBRARY_PATH"} & set(found)


def test_apptainer_with_a_clean_environment_hands_on_what_is_meant_for_inside(
    apptainer: Engine,
) -> None:
    found = apptainer.variables(
        "--cleanenv",
        "--no-eval",
        "--env",
        '"C=one,two"',
        A="1",
        TERM="xterm",
        APPTAINERENV_B="$b",
        SINGULARITYENV_B="old",
        APPTAINERENV_HOME="/elsewhere",
    )
    assert found == {
        "LANG": "C",
        "TERM": "xterm",
        "HOME": apptainer.environ["HOME"],
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "OF_IMAGE": "1",
        "SHELL_OPTION": "image",
        "B": "$b",
        "C": "one,two",
        "APPTAINER_CONTAINER": "pretend.sif",
    }


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_inside_there_is_what_was_mounted_and_nothing_else(tmp_path: Path, name: str) -> None:
    made = Engine(tmp_path, name)
    for folder in ("seen", "read only", "hidden"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    seen, fixed = tmp_path / "seen", tmp_path / "read only"
    mount = f"type=bind,source={fixed},destination={fixed},ro"
    options = ["--no-home", "--bind", str(seen), "--mount", mount]
    script = f"cd '{tmp_path}'; ls -R; touch seen/new; touch 'read only/new' || echo refused"
    done = made.run(
        "exec",
        *options,
        made.image,
        "sh",
        "-c",
        script,
        environ={"FAKE_ENGINE_HIDES": str(tmp_path)},
    )
    if "needs mount namespaces" in done.stderr:
        pytest.skip("this machine gives nobody a mount namespace")
    found = [".:", "read only", "seen", "./read only:", "file", "./seen:", "file", "refused"]
    assert [line for line in done.stdout.splitlines() if line] == found
    assert (seen / "new").exists()


def test_a_mount_of_nothing_is_an_error(apptainer: Engine) -> None:
    done = apptainer.run("exec", "--bind", "/nowhere", apptainer.image, "true")
    why = "FATAL:   container creation failed: mount source /nowhere doesn't exist\n"
    assert (done.returncode, done.stderr) == (255, why)


def test_an_image_is_needed_and_may_fail(apptainer: Engine, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("no image")
    for path, why in ((other, "image format not recognized"), (tmp_path / "no", "no such file")):
        done = apptainer.run("exec", str(path), "true")
        assert done.returncode == 255
        assert why in done.stderr
    broken = image(tmp_path / "broken.sif", fails="while mounting image: it is broken")
    done = apptainer.run("exec", str(broken), "true")
    assert (done.returncode, done.stderr) == (255, "FATAL:   while mounting image: it is broken\n")


def test_apptainer_begins_where_it_is_told(apptainer: Engine, tmp_path: Path) -> None:
    assert apptainer.inside("pwd", options=["--pwd", "/usr"]) == "/usr\n"
    done = apptainer.run("exec", "--pwd", "/nowhere", apptainer.image, "true")
    assert done.returncode == 255
    assert "failed to set working directory" in done.stderr


def test_apptainer_keeps_descriptors(apptainer: Engine, tmp_path: Path) -> None:
    with (tmp_path / "lease").open("w") as lease:
        fd = lease.fileno()
        ask = ["sh", "-c", f"test -e /proc/self/fd/{fd} && echo held"]
        assert apptainer.run("exec", apptainer.image, *ask, fds=[fd]).stdout == "held\n"


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -TERM $$", -15), ("kill -KILL $$", -9)]
)
def test_an_engine_ends_as_its_command_did(apptainer: Engine, script: str, status: int) -> None:
    assert apptainer.run("exec", apptainer.image, "sh", "-c", script).returncode == status


def test_a_command_that_is_not_inside_has_the_engine_s_status(apptainer: Engine) -> None:
    assert apptainer.run("exec", apptainer.image, "nowhere").returncode == 255


def test_apptainer_passes_a_signal_on(apptainer: Engine, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 5' TERM; touch {ready}; while :; do read line; done"
    line = [apptainer.program, "exec", apptainer.image, "sh", "-c", script]
    with subprocess.Popen(line, env=apptainer.environ, stdin=subprocess.PIPE) as process:
        wait_until(ready.exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 5


def test_the_pretend_programs_need_nothing_of_the_caller_s_python() -> None:
    for program in ("apptainer", "docker", "podman"):
        assert (FAKES / program).read_text().startswith("#!/usr/bin/env -S python3 -I\n")
