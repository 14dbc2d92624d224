"""Whole runs of jobs in containers, with each engine in turns: what holds without one, holds here.

docker and podman are real, in the tests' own directories; apptainer is a pretend one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.launcher import COMMAND, Launcher
from tests.containers.daemons import BOX, PATIENCE, RealEngine
from tests.helpers import wait_until
from tests.process.support import marked

KILLS = int(os.environ.get("GPULAUNCH_TEST_KILLS", "6"))
FAKES = Path(__file__).with_name("fakes")
SEED = int(os.environ.get("GPULAUNCH_TEST_SEED", str(time.time_ns() % 10**6)))


@dataclass
class Kit:
    """An engine, the name of an image with a shell in it, and a launcher that finds it."""

    name: str
    image: str
    launcher: Launcher
    engine: RealEngine | None = None

    def jobs(self, *entries: str, more: str = "") -> None:
        """Write a job file whose jobs are in containers, with busybox's shell."""
        told = f"container: {{image: {self.image}, engine: {self.name}}}"
        lines = [f"defaults: {{{told}, shell: [sh, -ec]}}", more, "jobs:"]
        lines += [f"  - {{{entry}}}" for entry in entries]
        self.launcher.file("jobs.yaml", "\n".join(filter(None, lines)) + "\n")

    def run(self, *options: str) -> int:
        return self.launcher("run", "jobs.yaml", "--simulate", "2", *options).status

    def owned(self) -> None:
        """Give the files that a test made to the user of the engine."""
        if self.engine:
            self.engine.own(self.launcher.path)

    def containers(self) -> list[str]:
        return self.engine.containers() if self.engine else []

    def left(self) -> list[str]:
        """What is left in the run's directory of containers."""
        home = self.launcher.run / "containers"
        return os.listdir(home) if home.exists() else []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with an odd name."""
    made = tmp_path / 'it\'s, a "lab" of 2'
    made.mkdir()
    return made


def real(engine: RealEngine, path: Path) -> Kit:
    return Kit(engine.name, BOX, Launcher(path, engine.environ, [*COMMAND]), engine)


def rootless(engine: RealEngine, keeper: Path) -> Kit:
    """gpulaunch as the engine's user, who may read everything: its Python may be below /root."""
    account = engine.account
    if account is None:
        pytest.skip("the tests are not run as root: podman_root has their own podman")
    if not keeper.stat().st_mode & 0o5 or not _open_to_all(keeper):
        pytest.skip(f"{keeper} is not to be read by other users")
    path = engine.folder / f'it\'s, a "lab" {os.urandom(2).hex()}'
    path.mkdir()
    engine.own(path)
    rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    user = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    launcher = Launcher(path, engine.environ, ["setpriv", *user, *rights, *COMMAND])
    return Kit(engine.name, BOX, launcher, engine)


def _open_to_all(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o1 for folder in path.parents)


def pretend(name: str, suffix: str, path: Path) -> Kit:
    image = path / f"box{suffix}"
    image.write_bytes(b"gpulaunch fake image\n")
    environ = {"PATH": f"{FAKES}:{os.environ['PATH']}", "HOME": str(path)}
    return Kit(name, f"box{suffix}", Launcher(path, environ, [*COMMAND]))


@pytest.fixture(params=["docker", "podman_root", "podman_rootless", "apptainer"])
def kit(request: pytest.FixtureRequest, path: Path) -> Iterator[Kit]:
    """Each engine in turns. No container is left of a test."""
    if request.param == "apptainer":
        yield pretend("apptainer", ".sif", path)
        return
    keeper = request.getfixturevalue("keeper_program")
    engine = request.getfixturevalue(request.param)
    made = rootless(engine, keeper) if "rootless" in request.param else real(engine, path)
    yield made
    assert made.containers() == []


@pytest.fixture(params=["docker", "podman_root"])
def daemon(request: pytest.FixtureRequest, path: Path) -> Iterator[Kit]:
    """The engines whose containers need not be descendants. No container is left of a test."""
    request.getfixturevalue("keeper_program")
    made = real(request.getfixturevalue(request.param), path)
    yield made
    assert made.containers() == []


def test_paths_and_files_are_those_of_outside(kit: Kit) -> None:
    (kit.launcher.path / "in").mkdir()
    for name in ("a", "b c", "d'e"):
        (kit.launcher.path / "in" / f"{name}.txt").write_text(name)
    kit.owned()
    kit.jobs(
        "name: '{{stem}}', foreach: in/*.txt, outputs: ['{{out}}/o'],"
        " run: 'cat {{path}} > {{out}}/o; pwd > {{keep}}/pwd; echo $GPULAUNCH_JOB'"
    )
    assert kit.run() == 0
    run = kit.launcher.run
    for name in ("a", "b c", "d'e"):
        out = run / "results" / name / "o"
        assert out.read_text() == name
        assert out.stat().st_uid == (kit.engine.uid if kit.engine else os.geteuid())
        assert (run / "keep" / name / "pwd").read_text() == f"{kit.launcher.path}\n"
        assert kit.launcher.log(name) == f"{name}\n"
    assert kit.left() == []


@pytest.mark.parametrize("kit", ["docker", "podman_root", "podman_rootless"], indirect=True)
def test_a_strict_job_is_the_engine_s_to_isolate(kit: Kit) -> None:
    kit.owned()
    kit.jobs("name: a, isolation: strict, run: echo inside")
    assert kit.run() == 0
    assert kit.launcher.log("a") == "inside\n"


def test_a_job_sees_its_cards_and_one_without_sees_none(kit: Kit) -> None:
    kit.jobs(
        "name: card, run: 'echo [$CUDA_VISIBLE_DEVICES] $GPULAUNCH_GPU_INDEX'",
        "name: none, gpus: 0, run: 'echo [${CUDA_VISIBLE_DEVICES-unset}]'",
    )
    assert kit.run() == 0
    assert kit.launcher.log("card").split()[0] in ("[0]", "[1]")
    assert kit.launcher.log("none") == "[]\n"


def test_variables_are_those_of_the_job_and_not_the_callers(kit: Kit) -> None:
    kit.launcher.environ |= {"SECRET": "callers", "OMP_NUM_THREADS": "3"}
    kit.jobs(
        "name: a, run: env, gpus: 0,"
        ' env: {PLAIN: "it\'s $HOME", JSON: \'{"a": 1}\', PATH: /bin:/opt/x}'
    )
    assert kit.run() == 0
    said = kit.launcher.log("a").splitlines()
    assert {"PLAIN=it's $HOME", 'JSON={"a": 1}', "OMP_NUM_THREADS=3"} <= set(said)
    assert "PATH=/bin:/opt/x" in said
    assert not any("callers" in line for line in said)


def test_exit_codes_signals_and_a_missing_program_are_told_as_ever(kit: Kit) -> None:
    kit.jobs(
        "name: three, gpus: 0, run: exit 3",
        "name: killed, gpus: 0, run: 'kill -9 $$'",
        "name: absent, gpus: 0, run: [no-such-program]",
        "name: ready, gpus: 0, success_codes: [7], run: exit 7",
    )
    assert kit.run() == 1
    jobs = kit.launcher.jobs()
    assert jobs["three"]["exit_code"] == 3
    assert jobs["killed"]["signal"] == 9
    assert jobs["absent"]["exit_code"] in (127, 255)
    assert jobs["ready"]["state"] == "succeeded"
    assert kit.left() == []


def test_time_limits_end_the_container(kit: Kit) -> None:
    forever = "while true; do sleep 1; done"
    kit.jobs(
        f"name: late, gpus: 0, timeout: 1s, grace: 5s, run: 'trap \"exit 0\" TERM; {forever}'",
        f"name: deaf, gpus: 0, timeout: 1s, grace: 1s, run: \"trap '' TERM; {forever}\"",
        f"name: silent, gpus: 0, idle_timeout: 1s, grace: 1s, run: 'echo one; {forever}'",
    )
    done = kit.launcher("run", "jobs.yaml", "--simulate", "2")
    assert done.status == 1
    assert "what was left" not in done.out + done.err
    failures = {name: job["failure"] for name, job in kit.launcher.jobs().items()}
    assert failures == {"late": "timeout", "deaf": "timeout", "silent": "idle_timeout"}
    wait_until(lambda: kit.left() == [], PATIENCE, "the records are gone")


def test_a_missing_output_is_a_failure(kit: Kit) -> None:
    kit.jobs("name: a, gpus: 0, outputs: ['{{out}}/o'], run: 'true'")
    assert kit.run() == 1
    assert kit.launcher.jobs()["a"]["failure"] == "missing_output"


def test_a_cancelled_job_is_over_in_its_container_too(kit: Kit) -> None:
    kit.jobs("name: a, run: 'echo up; while true; do sleep 1; done'", "name: b, run: 'true'")
    with kit.launcher.begun("run", "jobs.yaml", "--simulate", "2") as run:
        wait_until(lambda: _says(kit, "a", "up"), PATIENCE, "the job runs")
        assert kit.launcher("cancel", "-r", kit.launcher.run, "a").status == 0
        assert run.wait(PATIENCE) == 1
    assert kit.launcher.states() == {"a": "cancelled", "b": "succeeded"}


def _says(kit: Kit, job: str, text: str, attempt: int = 1) -> bool:
    with suppress(OSError):
        return text in kit.launcher.log(job, attempt)
    return False


def test_a_worker_in_a_container_takes_one_job_after_the_other(kit: Kit) -> None:
    kit.launcher.file(
        "loop.sh", "echo up\nwhile read -r item; do echo got $item; echo '{}' >&3; done\n"
    )
    kit.jobs(
        "name: 'w-{{item}}', shell: null, foreach: {values: [1, 2, 3]},"
        " worker: {run: [sh, loop.sh]}"
    )
    assert kit.launcher("run", "jobs.yaml", "--simulate", "1").status == 0
    logs = [kit.launcher.log(f"w-{number}") for number in (1, 2, 3)]
    assert [log.count("up\n") for log in logs] == [1, 0, 0], "it was started once"
    assert all(log.count("got") == 1 for log in logs)
    wait_until(lambda: kit.left() == [], PATIENCE, "the records are gone")


def test_a_service_in_a_container_answers_those_that_need_it(daemon: Kit) -> None:
    daemon.launcher.file("hello.txt", "hello\n")
    daemon.jobs(
        "name: web, gpus: 0, run: 'httpd -f -p 127.0.0.1:{{port}} -h .',"
        " service: {ready: 'tcp:{{port}}'}",
        "name: ask, gpus: 0, needs: [web], run: 'wget -q -O - http://$GPULAUNCH_ADDR_WEB/hello.txt'",
    )
    assert daemon.run() == 0
    assert daemon.launcher.log("ask") == "hello\n"


def test_twenty_containers_at_once_share_four_cards(daemon: Kit) -> None:
    daemon.jobs(
        "name: 'j-{{item}}', per_gpu: 5, foreach: {values: ["
        + ", ".join(map(str, range(20)))
        + "]}, run: 'echo {{item}}'"
    )
    assert daemon.launcher("run", "jobs.yaml", "--simulate", "4").status == 0
    assert [daemon.launcher.log(f"j-{number}") for number in range(20)] == [
        f"{number}\n" for number in range(20)
    ]


def test_a_kill_of_the_launcher_and_all_keepers_at_any_moment_leaves_nothing(kit: Kit) -> None:
    chance = random.Random(SEED)
    kit.jobs("name: a, run: 'echo $GPULAUNCH_ATTEMPT >> {{keep}}/begun; sleep 2'")
    for number in range(KILLS):
        where = f"seed {SEED}, kill {number}"
        options = ("run", "jobs.yaml", "--simulate", "2", "--new", "--quiet")
        with kit.launcher.begun(*options) as run:
            wait_until(lambda: kit.launcher.events("run_opened"), PATIENCE, "it began")
            time.sleep(chance.uniform(0, 1.5))  # the moment is the test's subject
            id = kit.launcher.events("run_opened")[-1]["run"]
            _kill_all_of(run.pid)
        wait_until(lambda id=id: not _alive(id), PATIENCE, f"nothing of it lives ({where})")
        resumed = kit.launcher("resume", "--quiet")
        assert resumed.status == 0, (resumed.err, where)
        begun = (kit.launcher.run / "keep" / "a" / "begun").read_text().split()
        assert len(begun) == len(set(begun)), f"an attempt began twice ({where})"
        assert kit.left() == [], (resumed.out, resumed.err, where)
        wait_until(lambda: kit.containers() == [], PATIENCE, f"no container ({where})")


def _kill_all_of(pid: int) -> None:
    """Kill the launcher and all that descends from it, keepers and carriers too."""
    import psutil

    with suppress(psutil.Error):
        launcher = psutil.Process(pid)
        for process in [launcher, *launcher.children(recursive=True)]:
            with suppress(psutil.Error):
                process.kill()


def _alive(id: str) -> list[int]:
    return list(marked(f"GPULAUNCH_RUN_ID={id}", "environ"))


def test_an_image_that_is_not_there_fails_its_jobs_alone_until_it_comes(daemon: Kit) -> None:
    assert daemon.engine is not None
    name = f"later:{os.getpid()}"
    daemon.jobs(
        f"name: a, gpus: 0, container: {{image: '{name}', pull: never}}, run: 'true'",
        "name: b, gpus: 0, needs: [a], run: 'true'",
        "name: c, gpus: 0, run: 'true'",
    )
    assert daemon.run() == 1
    assert daemon.launcher.states() == {"a": "failed", "b": "skipped", "c": "succeeded"}
    reason = daemon.launcher.jobs()["a"]["reason"]
    assert f"its image {name} cannot be had" in reason
    daemon.engine.import_image(name)
    assert daemon.launcher("retry").status == 0
    assert set(daemon.launcher.states().values()) == {"succeeded"}


def test_the_manifest_and_the_status_name_the_image_by_what_it_is(daemon: Kit) -> None:
    assert daemon.engine is not None
    daemon.jobs("name: a, gpus: 0, run: 'true'")
    assert daemon.run() == 0
    (image,) = json.loads((daemon.launcher.run / "manifest.json").read_text())["images"]
    id = daemon.engine.command("image", "inspect", "--format", "{{.Id}}", BOX).strip()
    assert (image["image"], image["engine"]) == (BOX, daemon.name)
    assert image["id"].removeprefix("sha256:") == id.removeprefix("sha256:")
    assert daemon.launcher.status()["run"]["images"] == [image]


def test_a_daemon_that_stops_answering_does_not_keep_the_run(
    docker: RealEngine, path: Path, keeper_program: Path
) -> None:
    kit = real(docker, path)
    kit.jobs("name: a, run: 'echo up; while true; do sleep 1; done', grace: 2s")
    with kit.launcher.begun("run", "jobs.yaml", "--simulate", "2") as run:
        wait_until(lambda: _says(kit, "a", "up"), PATIENCE, "the job runs")
        os.kill(docker.daemon, signal.SIGSTOP)
        try:
            run.send_signal(signal.SIGINT)
            assert run.wait(90) == 130
        finally:
            os.kill(docker.daemon, signal.SIGCONT)
    assert kit.launcher.states() == {"a": "waiting"}
    wait_until(lambda: kit.containers() == [], PATIENCE, "the daemon removes it")


def test_exec_becomes_a_command_in_a_container(kit: Kit) -> None:
    spelled = {"docker": f"docker://{BOX}", "podman": f"podman://{BOX}"}.get(kit.name, kit.image)
    (kit.launcher.path / "more").mkdir()
    done = kit.launcher(
        "exec", "--simulate", "1", "--container", spelled, "--",
        "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]; pwd; ls -d more; exit 5",
    )  # fmt: skip
    assert done.status == 5, done.err
    assert done.out.splitlines() == ["[0]", str(kit.launcher.path), "more"]


def test_an_image_is_looked_for_before_the_line_and_not_again_in_it(path: Path) -> None:
    kit = pretend("apptainer", ".sif", path)
    kit.launcher.environ["GPULAUNCH_SIM_POOL"] = uuid.uuid4().hex[:12]
    words = ("exec", "--simulate", "1", "--container", kit.image, "--", "sh", "-c")
    holds = "touch has; until [ -e go ]; do sleep 0.02; done"
    begun = []
    with ExitStack() as stack:
        for said in ("in the container", "waits for a card", "waits its turn", "2 launchers"):
            begun.append(stack.enter_context(kit.launcher.begun(*words, holds)))
            assert begun[-1].stderr is not None
            next(line for line in begun[-1].stderr if said in line)
            wait_until((path / "has").exists, PATIENCE, "the first has the card")
        kit.launcher.file("go", "")
        ends = [process.communicate(timeout=PATIENCE)[1] for process in begun]
    assert [process.returncode for process in begun] == [0] * 4, ends
    assert not any("in the container" in end for end in ends)


def test_device_errors_are_explained_inside(path: Path) -> None:
    kit = pretend("apptainer", ".sif", path)
    kit.launcher.file(
        "job.py",
        """
        import torch
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices,"
            " cuda:0 and cpu!"
        )
        """,
    )
    torch = Path(__file__).parent.parent / "explain" / "faketorch"
    kit.jobs(
        f"name: a, gpus: 0, explain: true, env: {{PYTHONPATH: '{torch}'}},"
        f" run: [{sys.executable}, job.py]"
    )
    assert kit.run() == 1
    assert "gpulaunch explain: end of the report" in kit.launcher.log("a")


def test_map_runs_each_item_in_a_container(kit: Kit) -> None:
    spelled = {"docker": f"docker://{BOX}", "podman": f"podman://{BOX}"}.get(kit.name, kit.image)
    (kit.launcher.path / "a b.txt").write_text("hello")
    options = ("--simulate", "1", "--quiet", "--container", spelled)
    done = kit.launcher("map", *options, "cat", "{{path}}", ":::", "a b.txt")
    assert done.status == 0, done.err
    assert kit.launcher.log("a b") == "hello"


def test_what_a_killed_run_left_is_removed_by_what_comes_next(daemon: Kit) -> None:
    engine = daemon.engine
    assert engine is not None
    mine = [f"--label=gpulaunch.user={os.geteuid()}", "--label=gpulaunch.folder=/nowhere"]
    engine.command("create", "--name", "stray-1", *mine, BOX, "true")
    daemon.jobs("name: a, gpus: 0, run: 'true'")
    assert daemon.run() == 0
    wait_until(lambda: engine.containers() == [], PATIENCE, "the stray is removed")
    engine.command("create", "--name", "stray-2", *mine, BOX, "true")
    told = daemon.launcher("doctor", "--json").out
    found = [one["what"] for one in json.loads(told)["findings"] if "stray-2" in one["what"]]
    assert found == ["removed containers that killed runs had left: stray-2"]


def test_what_runs_and_has_a_record_that_is_not_seen_here_is_left_alone(daemon: Kit) -> None:
    """Somebody tidied, or it is in another container: its carrier lives all the same."""
    assert daemon.engine is not None
    mine = [f"--label=gpulaunch.user={os.geteuid()}", "--label=gpulaunch.folder=/nowhere"]
    daemon.engine.command("run", "--detach", "--name=unseen", "--network=none", *mine, BOX,
                          "sh", "-c", "while true; do sleep 1; done")  # fmt: skip
    try:
        assert "unseen" not in daemon.launcher("doctor", "--json").out
        assert daemon.containers() == ["unseen"]
    finally:
        daemon.engine.command("rm", "--force", "unseen")


@pytest.fixture
def altered(daemon: Kit, tmp_path: Path) -> Callable[[str], Launcher]:
    """A launcher whose engine is a script around the real one, `$REAL`."""
    found = shutil.which(daemon.name)

    def made(script: str) -> Launcher:
        program = tmp_path / "altered" / daemon.name
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nREAL={found}\n{script}\n")
        program.chmod(0o755)
        path = f"{program.parent}:{daemon.launcher.environ['PATH']}"
        return Launcher(daemon.launcher.path, {**daemon.launcher.environ, "PATH": path})

    return made


def test_what_goes_while_doctor_looks_hides_nothing_else(
    daemon: Kit, altered: Callable[[str], Launcher]
) -> None:
    assert daemon.engine is not None
    mine = [f"--label=gpulaunch.user={os.geteuid()}", "--label=gpulaunch.folder=/nowhere"]
    daemon.engine.command("create", "--name", "stray", *mine, BOX, "true")
    doctor = altered('$REAL "$@"; status=$?; [ "$1" = ps ] && echo gone; exit $status')
    told = doctor("doctor", "--json").out
    assert 'removed containers that killed runs had left: stray"' in told
    assert daemon.containers() == []


def test_an_engine_that_does_not_say_what_it_has_is_named_by_doctor(
    daemon: Kit, altered: Callable[[str], Launcher]
) -> None:
    doctor = altered('[ "$1" = ps ] && { echo "no answer today" >&2; exit 1; }; exec $REAL "$@"')
    told = json.loads(doctor("doctor", "--json").out)["findings"]
    what = f"whether killed runs left containers is not known: {daemon.name}: no answer today"
    assert [one["level"] for one in told if what in one["what"]] == ["warning"]


def test_the_record_of_exec_is_in_a_directory_of_the_users_alone(
    daemon: Kit, tmp_path: Path
) -> None:
    home = tmp_path / f"gpulaunch-{os.geteuid()}"
    for name in ("killed", "begins"):
        (home / name).mkdir(parents=True)
        (home / name / "record.json").write_text("{}")
    home.chmod(0o700)
    (home / "killed" / "pid").write_text("0 0")
    daemon.launcher.environ["XDG_RUNTIME_DIR"] = str(tmp_path)
    image = {"docker": f"docker://{BOX}", "podman": f"podman://{BOX}"}[daemon.name]
    done = daemon.launcher("exec", "--simulate=1", "--container", image, "--", "sh", "-c", "exit 4")
    assert (done.status, os.listdir(home)) == (4, ["begins"]), done.err
    home.chmod(0o755)
    daemon.launcher.environ["TMPDIR"] = str(tmp_path)
    done = daemon.launcher("exec", "--simulate=1", "--container", image, "--", "sh", "-c", "exit 4")
    assert (done.status, os.listdir(home)) == (4, ["begins"]), done.err


def test_containers_of_others_and_of_living_runs_are_left_alone(daemon: Kit) -> None:
    engine = daemon.engine
    assert engine is not None
    engine.command("create", "--name", "theirs", "--label=gpulaunch.user=99999",
                   "--label=gpulaunch.folder=/nowhere", BOX, "true")  # fmt: skip
    daemon.jobs("name: a, run: 'echo up; while true; do sleep 1; done'")
    with daemon.launcher.begun("run", "jobs.yaml", "--simulate", "2") as run:
        wait_until(lambda: _says(daemon, "a", "up"), PATIENCE, "the job runs")
        assert daemon.launcher("doctor").status in (0, 1)
        assert len(engine.containers()) == 2
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE) == 130
    engine.command("rm", "theirs")
