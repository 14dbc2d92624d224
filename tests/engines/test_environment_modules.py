"""What tells of Lmod and Environment Modules, and what a shell does that loads modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpulaunch.base import environment_modules
from gpulaunch.base.environment_modules import (
    NOT_LOADED,
    calls_module,
    file_for_calls,
    loading,
    start_up_file,
    why_not,
)
from gpulaunch.core.model import Job
from gpulaunch.diagnose.lint.absent import looking
from gpulaunch.engines.environment import EnvironmentMaker
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from tests.engines.test_environment import MACHINE, PLACE, environment
from tests.helpers import goes_along, wait_until

FUNCTION = {"BASH_FUNC_module%%": "() {  :\n}"}


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("/usr/share/lmod/lmod/init/bash", {}),
        ("/usr/share/lmod/8.6.19/init/bash", {"LMOD_PKG": "/usr/share/lmod/lmod"}),
        ("/opt/ohpc/admin/lmod/lmod/init/bash", {}),
        ("/opt/apps/lmod/lmod/init/profile", {}),
        ("/usr/share/Modules/init/bash", {}),
        ("/usr/share/modules/init/bash", {"MODULESHOME": "/usr/share/modules"}),
        ("/opt/cray/pe/modules/3.2.11.7/init/bash", {}),
        ("/sw/tools/mm/init/bash", {"MODULESHOME": "/sw/tools/mm/"}),
        ("/sw//tools/mm/init/bash", {"LMOD_PKG": "/sw/tools/mm"}),
        ("/sw/tools/mm/init/sh", {"LMOD_DIR": "/sw/tools/mm/libexec"}),
        ("/etc/profile.d/lmod.sh", {}),
        ("/etc/profile.d/z00_lmod.sh", {}),
        ("/etc/profile.d/modules.sh", {}),
    ],
)
def test_the_module_program_s_own_start_up_file_is_kept(file: str, named: dict[str, str]) -> None:
    environ = {"PATH": "/bin", "BASH_ENV": file, **named}
    assert start_up_file(environ) == file
    assert environment(base=environ)["BASH_ENV"] == file


@pytest.mark.parametrize(
    "file",
    [
        "",
        "/home/ann/.bashrc",
        "/home/ann/lmod.sh",
        "/etc/profile",
        "/etc/profile.d/conda.sh",
        "/home/ann/init/bash",
        "/home/ann/modules.bash",
        "/home/ann/lmod/bashrc",
        "/sw/tools/mm/bashrc",
        "init/bash",
        "$HOME/lmod/init/bash",
    ],
)
def test_another_start_up_file_is_a_person_s_and_is_not_read(file: str) -> None:
    environ = {"PATH": "/bin", "BASH_ENV": file, "MODULESHOME": "/sw/tools/mm"}
    assert start_up_file(environ) is None
    assert "BASH_ENV" not in environment(base=environ)


def test_where_bash_has_no_module_a_script_that_calls_it_gets_one() -> None:
    """Below zsh, fish or tcsh; not in scripts that do without it: reading the file takes time."""
    base = {"PATH": "/bin", "MODULESHOME": "/sw/modules", "BASH_ENV": "/home/ann/.bashrc"}
    calls = Job("a", "module load cuda\npython a.py")
    assert environment(calls, base=base)["BASH_ENV"] == "/sw/modules/init/bash"
    assert "BASH_ENV" not in environment(Job("a", "python a.py"), base=base)
    assert "BASH_ENV" not in environment(calls, base=base | FUNCTION), "bash has it from its parent"
    assert environment(Job("a", ("module",)), base=base)["BASH_ENV"] == "/home/ann/.bashrc"
    maker = EnvironmentMaker(MACHINE, base)
    for job, file in ((calls, "/sw/modules/init/bash"), (Job("a", "true"), None)) * 2:
        assert maker.delta(job, PLACE, {}).over(base).get("BASH_ENV") == file
    assert file_for_calls({"LMOD_DIR": "/sw/lmod/libexec"}) == "/sw/lmod/init/bash"
    assert file_for_calls({"MODULESHOME": "relative"}) is None


def test_a_job_s_own_start_up_file_is_read_whatever_it_is() -> None:
    base = {"PATH": "/bin", "BASH_ENV": "/usr/share/lmod/lmod/init/bash"}
    assert environment(base=base, own={"BASH_ENV": "/mine"})["BASH_ENV"] == "/mine"
    assert "BASH_ENV" not in environment(base=base, own={"BASH_ENV": None})


def test_a_launcher_inside_a_job_keeps_the_start_up_file_too() -> None:
    base = {"PATH": "/bin", "BASH_ENV": "/usr/share/lmod/lmod/init/bash"}
    assert environment(base=environment(base=base))["BASH_ENV"] == base["BASH_ENV"]


@pytest.mark.parametrize(
    ("script", "calls"),
    [
        ("module load cuda", True),
        ("set -x\n  ml cuda", True),
        ("x && module load cuda;", True),
        ("if module is-loaded a; then b; fi", True),
        ("$(module -t list)", True),
        ("echo module x", True),  # a word in another's place: it costs little
        ("python module.py", False),
        ("html --xml", False),
        ("modules", False),
    ],
)
def test_a_script_that_calls_module_is_known_by_the_word(script: str, calls: bool) -> None:
    assert calls_module(script) is calls


# ── Loading, by a module program of the test's own ──────────────────────────────────────────────

INIT = """\
module() {
    case "$1" in
    load) shift; for name in "$@"; do . "$MODULESHOME/files/$name" || return; done ;;
    is-avail) [ -e "$MODULESHOME/files/$2" ] ;;
    esac
}
echo "init says something"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home of modules"
    (made / "init").mkdir(parents=True)
    (made / "files").mkdir()
    (made / "init" / "bash").write_text(INIT)
    return made


def loaded(home: Path, argv: tuple[str, ...], **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "MODULESHOME": str(home), **environ}
    return subprocess.run(
        argv, env=environ, capture_output=True, text=True, check=False, input="in"
    )


def test_the_program_gets_its_arguments_its_input_and_its_status(home: Path) -> None:
    (home / "files" / "a").write_text("cat; export A=1")
    script = 'printf "%s|" "$A" "$@"; cat; exit 7'
    words = ("", "a  b", "-n", "$HOME", "*", "new\nline", "ü")
    done = loaded(home, loading(("a",), ("bash", "-c", script, "--", *words)))
    assert (done.stdout, done.returncode) == ("1|" + "|".join(words) + "|in", 7)
    assert done.stderr == "init says something\n"
    odd = loaded(home, loading(("a",), ("-x",)))
    assert odd.returncode == 127, "a program may be called -x"


def test_only_what_is_said_stays_as_it_is_and_nothing_of_the_loading_is_left(home: Path) -> None:
    (home / "files" / "a").write_text(
        "export KEPT=no NEW=new OWN=no MORE=/bin:/mine:/more PART=/mine/x GONE=back CLEAN=y\n"
        "export GPULAUNCH_JOB=no GPULAUNCH_NEW=no count=9 PATH=/a:$PATH"
    )
    argv = loading(
        ("a",),
        ("env", "-0"),
        kept=("KEPT", "CLEAN", "odd-name"),
        own=("OWN", "MORE", "PART", "GONE", "also odd"),
        first="/first:/second",
    )
    before = {"KEPT": "k\n ü", "OWN": "o", "MORE": "/mine", "PART": "/mine", "GPULAUNCH_JOB": "j"}
    done = loaded(home, argv, **before, **{"odd-name": "x", "count": "1"})
    found = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    assert {name: found.get(name) for name in (*before, "NEW", "GONE", "CLEAN", "odd-name")} == {
        **before,
        "MORE": "/bin:/mine:/more",
        "NEW": "new",
        "GONE": None,
        "CLEAN": None,
        "odd-name": "x",
    }
    assert found["count"] == "9"
    assert found["PATH"].startswith("/first:/second:/a:")
    assert not [name for name in found if name.startswith("_gpulaunch")]


def test_functions_and_start_up_files_of_a_person_do_not_get_in_the_way(
    home: Path, tmp_path: Path
) -> None:
    (home / "files" / "a").write_text("export A=1")
    harm = {
        f"BASH_FUNC_{name}%%": "() {  exit 9\n}" for name in ("echo", "exec", "export", "unset")
    }
    start = tmp_path / "start"
    start.write_text("exit 8")
    argv = loading(("a",), ("env",))
    done = loaded(home, argv, BASH_ENV=str(start), **harm)
    assert done.returncode == 0, done.stderr
    assert f"BASH_ENV={start}\n" in done.stdout
    assert "BASH_FUNC_echo%%=() {  exit 9\n}" in done.stdout, "the job's own shell gets them"


def test_why_modules_cannot_be_loaded_is_one_line(home: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "MODULESHOME": str(home)}
    (home / "files" / "a").write_text("true")
    (home / "files" / "bad").write_text("echo; echo this is; echo why; echo; echo more; false")
    assert why_not(("a",), environ) == ""
    host = os.uname().nodename
    none = f"module load no/1: there is none on {host}; `module avail no` lists what there is"
    assert why_not(("a", "no/1"), environ) == none
    assert why_not(("bad", "a"), environ).startswith(
        f"module load bad a failed on {host}: init says"
    )
    (home / "init" / "bash").write_text("true")
    assert why_not(("a",), environ) == f"{home}/init/bash defines no module command on {host}"


def test_a_module_program_that_does_not_answer_is_no_mistake(home: Path) -> None:
    (home / "init" / "bash").write_text("sleep 1000")
    environ = {"PATH": os.environ["PATH"], "MODULESHOME": str(home)}
    assert why_not(("a",), environ, timeout=0.1) is None


def test_after_a_look_without_an_answer_nobody_is_kept_waiting_for_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "init" / "bash").write_text(f"echo look >>{str(home / 'looks')!r}; sleep 1000")
    monkeypatch.setattr(environment_modules, "LOOK_TIMEOUT", 0.5)
    environ = {"PATH": os.environ["PATH"], "MODULESHOME": str(home)}
    text = "".join(f"  - {{name: j{n}, run: 'true', modules: [m/{n}]}}\n" for n in range(5))
    look = looking(environ, cluster=False)
    load_text(f"jobs:\n{text}".encode(), Surroundings(environ, look=look), name="a", base=home)
    assert (home / "looks").read_text() == "look\n"


def test_a_look_that_is_interrupted_leaves_no_process(home: Path) -> None:
    pid, waits = home / "pid", home / "waits"
    (home / "init" / "bash").write_text(f"echo $$ >{str(pid)!r}; sleep 1000")
    script = f"""if True:
        import os, pathlib, subprocess
        from gpulaunch.base.environment_modules import why_not
        class Told(subprocess.Popen):
            def communicate(self, *args, **given):
                pathlib.Path({str(waits)!r}).touch()
                return super().communicate(*args, **given)
        subprocess.Popen = Told
        why_not(("a",), os.environ, 1000)
    """
    environ = {**os.environ, "MODULESHOME": str(home)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, env=environ, stderr=subprocess.DEVNULL, preexec_fn=goes_along()
    ) as process:
        look = wait_until(lambda: waits.exists() and pid.exists() and pid.read_text().strip())
        process.send_signal(signal.SIGINT)
    wait_until(lambda: not Path(f"/proc/{look}").exists())


def test_modules_that_leave_no_path_are_said_to(home: Path) -> None:
    (home / "files" / "a").write_text("unset PATH")
    done = loaded(home, loading(("a",), ("true",)))
    assert done.returncode == NOT_LOADED
    assert done.stderr.splitlines()[-1] == "gpulaunch: module load a leaves no PATH"


def test_where_there_is_no_bash_nothing_is_said(home: Path) -> None:
    assert why_not(("a",), {"PATH": "/nowhere", "MODULESHOME": str(home)}) == ""
