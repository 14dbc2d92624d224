"""Jobs that load environment modules, with the real programs that people have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.launcher import Launcher
from tests.cli.test_shells import shell_here, with_home
from tests.modules.programs import ModuleProgram

RUN = ("run", "jobs.yaml", "--simulate", "1", "--quiet")


def ran(launcher: Launcher, jobs: str) -> dict[str, str]:
    """The last line of each job's log, once all have succeeded."""
    launcher.file("jobs.yaml", jobs)
    result = launcher(*RUN)
    told = {name: launcher.log(name) for name in launcher.states()} if result.status < 2 else {}
    assert result.status == 0, (result.err, told)
    return {name: text.splitlines()[-1] for name, text in told.items()}


def test_every_kind_of_job_finds_its_modules_loaded(launcher: Launcher) -> None:
    launcher.file("work.py", "import os\ndef call(item):\n    print(os.environ['TOOL'])\n")
    launcher.file("loop.sh", 'while read -r _; do echo "$TOOL"; echo 0 >&3; done\n')
    found = ran(
        launcher,
        """
        defaults: {modules: tool/1.0}
        jobs:
          - {name: text, run: "tool a | cat"}
          - {name: list, run: [tool, "a  b"]}
          - {name: sh, shell: sh, run: tool c}
          - {name: other, modules: [tool/2.0], run: tool}
          - {name: none, modules: null, run: 'echo "${TOOL-none}"'}
          - {name: "swept-{{v}}", matrix: {v: ["1.0", "2.0"]}, modules: ["tool/{{v}}"], run: tool}
          - {name: called, worker: "work.py:call"}
          - {name: read, worker: {run: [bash, loop.sh]}}
        """,
    )
    assert found == {
        "text": "of the module: one a",
        "list": "of the module: one a  b",
        "sh": "of the module: one c",
        "other": "of the module: two ",
        "none": "none",
        "swept-1.0": "of the module: one ",
        "swept-2.0": "of the module: two ",
        "called": "one",
        "read": "one",
    }


def test_what_gpulaunch_and_the_job_say_wins_over_modules(launcher: Launcher) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = ""
    venv = launcher.path / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text('#!/bin/sh\necho "of the venv: $VIRTUAL_ENV ${PYTHONHOME-unset}"')
    (venv / "python").chmod(0o755)
    names = "$GPULAUNCH_JOB $OMP_NUM_THREADS $TOOL $LD_LIBRARY_PATH"
    found = ran(
        launcher,
        f"""
        defaults: {{modules: [tool/1.0, mask/1, python/9]}}
        jobs:
          - {{name: card, run: 'echo "$CUDA_DEVICE_ORDER"; echo "$CUDA_VISIBLE_DEVICES"'}}
          - {{name: none, gpus: 0, run: 'echo "[$CUDA_VISIBLE_DEVICES]"'}}
          - name: own
            env: {{TOOL: mine, LD_LIBRARY_PATH: /mine, OMP_NUM_THREADS: 3}}
            run: echo "{names}"
          - {{name: threads, run: echo $OMP_NUM_THREADS}}
          - {{name: venv, venv: venv, run: [python]}}
          - {{name: plain, run: [python]}}
        """,
    )
    assert launcher.log("card").splitlines()[-2] == "PCI_BUS_ID"
    assert found["card"] != "7"
    assert found["none"] == "[]"
    assert found["own"] == f"own 3 mine {launcher.path}/tool/lib:/mine"
    assert found["threads"] == "99", "what gpulaunch only chooses is for modules to say"
    assert found["venv"] == f"of the venv: {launcher.path}/venv unset"
    assert found["plain"] == "of the module: one "


def test_a_job_s_own_module_load_works_as_at_the_terminal(
    launcher: Launcher, program: ModuleProgram
) -> None:
    """By what a login bash hands on, by its start-up file alone, and below another login shell."""
    login = program.login(launcher.environ, "module load tool/1.0")
    exported = {k: v for k, v in login.items() if k != "BASH_ENV"}
    start_up = {k: v for k, v in login.items() if not k.startswith("BASH_FUNC_")}
    start_up["BASH_ENV"] = f"{program.home}/init/bash"
    for environ, loaded in ((exported, "one"), (start_up, "one"), (launcher.environ, "none")):
        launcher.environ = dict(environ)
        job = 'echo "${TOOL-none}"; module load tool/2.0; echo "$TOOL"'
        assert ran(launcher, f"jobs: [{{name: a, run: '{job}'}}]") == {"a": "two"}
        assert launcher.log("a").splitlines()[0] == loaded


def test_a_person_s_own_start_up_file_is_not_read(launcher: Launcher) -> None:
    mine = launcher.file("bashrc", "echo read; exit 3\n")
    launcher.environ["BASH_ENV"] = str(mine)
    found = ran(
        launcher,
        """
        jobs:
          - {name: a, run: echo fine}
          - {name: b, modules: tool/1.0, run: echo $TOOL}
          - {name: c, run: "module load tool/1.0; echo $TOOL"}
        """,
    )
    assert found == {"a": "fine", "b": "one", "c": "one"}
    assert all("read" not in launcher.log(name) for name in "abc")


def test_a_module_that_is_not_there_is_a_mistake_of_the_file(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        defaults: {modules: [tool/1.0, nowhere/3]}
        jobs:
          - {name: a, run: tool}
          - {name: b, modules: [broken/1], run: tool}
          - {name: c, modules: [tool/1.0], run: tool}
          - {name: d, env: {MODULEPATH: /elsewhere}, modules: [tool/1.0], run: tool}
        """,
    )
    result = launcher("check", "jobs.yaml", "--simulate", "1")
    assert result.status == 2
    assert "module load nowhere/3: there is none on " in result.err
    assert "`module avail nowhere` lists what there is" in result.err
    assert "jobs[1].modules: module load broken/1 failed on " in result.err
    assert "jobs[3].modules: module load tool/1.0: there is none on " in result.err
    assert "jobs[2]" not in result.err
    assert launcher(*RUN).status == 2


def test_a_command_line_names_modules_by_a_default(launcher: Launcher) -> None:
    for command, item in (("map", (":::", "0")), ("each", ())):
        line = (command, "--simulate", "1", "--quiet", "--default")
        assert launcher(*line, "modules=tool/1.0", 'tool "{{item}}"', *item).status == 0
        (log,) = launcher.run.glob("logs/*.log")
        assert log.read_text() == "of the module: one 0\n"
        wrong = launcher(*line, "modules=[tool/1.0, nowhere/3]", "tool", *item)
        told = "--default modules=[tool/1.0, nowhere/3]: module load nowhere/3: there is none on "
        assert (wrong.status, told in wrong.err) == (2, True), wrong.err


def test_what_a_shell_loaded_goes_with_exec(launcher: Launcher, program: ModuleProgram) -> None:
    launcher.environ = program.login(launcher.environ, "module load tool/1.0")
    done = launcher("exec", "-g", "0", "--", "tool", "x")
    assert (done.status, done.out) == (0, "of the module: one x\n")


def test_a_module_that_is_gone_when_the_job_starts_fails_it_as_not_started(
    launcher: Launcher, program: ModuleProgram
) -> None:
    launcher.file(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: a, run: "rm {program.files}/tool/2.0"}}
          - {{name: b, needs: [a], modules: tool/2.0, run: touch ran}}
        """,
    )
    assert launcher(*RUN).status == 1
    job = launcher.jobs()["b"]
    assert job["failure"] == "not_started"
    assert "module load tool/2.0: there is none on " in job["evidence"]
    assert not (launcher.path / "ran").exists()


LOAD = "source $MODULESHOME/init/{shell}; eval module load tool/2.0; {command}"
OTHER_SHELLS = {
    "zsh": ["zsh", "-f", "-c", LOAD.format(shell="zsh", command='"$@"'), "-"],
    "fish": ["fish", "-N", "-c", LOAD.format(shell="fish", command="$argv")],
    "tcsh": ["tcsh", "-f", "-c", LOAD.format(shell="tcsh", command="$argv:q")],
}


@pytest.mark.parametrize("shell", OTHER_SHELLS)
def test_below_another_login_shell_modules_are_loaded_as_below_bash(
    launcher: Launcher, shell: str
) -> None:
    with_home(launcher)
    shell_here(shell)
    command = [*OTHER_SHELLS[shell], *launcher.command]
    inside = Launcher(launcher.path, launcher.environ, command)
    inside.environ = launcher.environ
    found = ran(
        inside,
        """
        jobs:
          - {name: had, run: tool}
          - {name: field, modules: tool/1.0, run: tool}
          - {name: calls, run: "module load tool/1.0; tool"}
        """,
    )
    assert found == {
        "had": "of the module: two ",
        "field": "of the module: one ",
        "calls": "of the module: one ",
    }


def test_modules_that_a_terminal_had_loaded_stay_so(
    launcher: Launcher, program: ModuleProgram
) -> None:
    launcher.environ = program.login(launcher.environ, "module load tool/1.0")
    found = ran(
        launcher,
        """
        jobs:
          - {name: a, run: tool}
          - {name: b, modules: tool/2.0, run: tool}
        """,
    )
    assert found["a"] == "of the module: one "
    assert found["b"] == "of the module: two ", "module load takes the other version's place"


def test_a_place_with_odd_characters_is_found(launcher: Launcher, program: ModuleProgram) -> None:
    odd = launcher.path / "a b'c" / "init"
    odd.mkdir(parents=True)
    (odd / "bash").symlink_to(Path(program.home, "init", "bash"))
    launcher.environ["MODULESHOME"] = str(odd.parent)
    assert ran(launcher, "jobs: [{name: a, modules: tool/1.0, run: tool}]")
