"""`module load` in a job, in each of the ways in which sites give the command to shells.

What a person's own `#!/bin/bash` script finds when it is handed to sbatch, a job finds as well.
"""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpulaunch.engines import programs
from gpulaunch.engines.slurm import script
from gpulaunch.engines.slurm.rundir import SlurmDir
from tests.cli.launcher import Launcher
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster

BODY = 'eval "$(printf \'export LOADEDMODULES=%s\' "$2")"; return 0'
EXPORTED = {
    # Environment Modules, and Lmod by default: `export -f module` in a login shell.
    "BASH_FUNC_module%%": "() {  " + BODY + "\n}",
    "BASH_FUNC_ml%%": '() {  module load "$@"\n}',
}
# As sites' own files are: their last word need not be a success, nor their every command.
STARTUP = f"""\
printf 'read '
false
module() {{
{BODY}
}}
ml() {{ module load $1; }}
[ -n '' ] && echo never
"""
JOB = """\
module load cuda/12.4; ml gcc; printf '%s %s ' "$LOADEDMODULES" "$(type -t module)"
bash -c 'printf inner'
"""


def plain_script(cluster: Cluster, at: Path, environ: Mapping[str, str]) -> str:
    """What the job's commands print in a script of one's own that is handed to sbatch there."""
    (at / "plain.sh").write_text(f"#!/bin/bash\n{JOB}touch {at}/done\n")
    argv = ["sbatch", "--chdir=/", f"--output={at}/plain.out", str(at / "plain.sh")]
    subprocess.run(argv, env=cluster.environ | environ, check=False, capture_output=True)
    wait_until((at / "done").exists, PATIENCE, "the plain script has written")
    return (at / "plain.out").read_text()


def in_a_job(launcher: Launcher) -> tuple[int, str]:
    """The status of a run, and what its job with those commands prints."""
    text = textwrap.indent(JOB, " " * 6)
    launcher.file("jobs.yaml", f"jobs:\n  - name: a\n    gpus: 0\n    run: |\n{text}")
    done = launcher("run", "jobs.yaml", "--engine", "slurm", "--quiet")
    return done.status, launcher.log("a")


WAYS: dict[str, Callable[[str], dict[str, str]]] = {
    "exported": lambda start: EXPORTED,
    "startup": lambda start: {"BASH_ENV": start},
    "both": lambda start: EXPORTED | {"BASH_ENV": start},
}
HARM = {f"BASH_FUNC_{name}%%": "() {  exit 9\n}" for name in ("ls", "echo", "exec", "uname")}
"""Functions of the user's shell that would get in the batch script's way."""


def test_a_job_finds_modules_where_a_plain_script_does(
    cluster: Cluster, on_slurm: Launcher, tmp_path: Path
) -> None:
    start = on_slurm.file("site files/init bash", STARTUP)
    for way, environ_of in WAYS.items():
        at, environ = tmp_path / way, environ_of(str(start))
        at.mkdir()
        expected = plain_script(cluster, at, environ)
        read = "" if way == "exported" else "read "
        assert expected == f"{read}gcc function {read}inner", "a start-up file is read once"
        launcher = Launcher(at, on_slurm.environ | environ | HARM)
        assert in_a_job(launcher) == (0, expected), way


def test_modules_of_a_job_are_loaded_on_its_node(on_slurm: Launcher) -> None:
    """By the module program that is there; the mask that Slurm has set is not theirs to change."""
    init = on_slurm.file("site files/init/bash", STARTUP)
    init.write_text(init.read_text() + "export CUDA_VISIBLE_DEVICES=7\n")
    on_slurm.environ["MODULESHOME"] = str(init.parents[1])
    run = 'echo "$LOADEDMODULES [$CUDA_VISIBLE_DEVICES]"'
    on_slurm.file("jobs.yaml", f"jobs: [{{name: a, gpus: 0, modules: cuda/12.4, run: '{run}'}}]")
    assert on_slurm("run", "jobs.yaml", "--engine", "slurm", "--quiet").status == 0
    assert on_slurm.log("a") == "read cuda/12.4 []\n"


# ── In a job of this machine, and in the batch script alone ─────────────────────────────────────


def test_where_the_login_shell_alone_has_modules_a_start_up_file_helps(launcher: Launcher) -> None:
    """As the advice says: a plain script does not find them either."""
    profile = launcher.file("profile.d/modules.sh", STARTUP)
    file = f"defaults: {{env: {{BASH_ENV: {profile}}}}}\njobs: [{{gpus: 0, run: module load x}}]"
    launcher.file("jobs.yaml", file)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 0


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_is_one_for_any_shell(tmp_path: Path, shell: str) -> None:
    """Where there is no bash to hand variables on, or `sh` is one."""
    (tmp_path / "slurm").mkdir()
    SlurmDir(tmp_path).node_program.write_text("import os; print('FOO' in os.environ)")
    shutil.copy(programs.PROGRAM, SlurmDir(tmp_path).keepers())
    sh = tmp_path / "sh"
    sh.symlink_to(f"/bin/{shell}")
    path = tmp_path / "batch.sh"
    path.write_text(script.text(str(tmp_path), ["python3"], 1))
    environ = {"PATH": "/usr/bin:/bin", "FOO": "1"}
    argv = [sh, path, "1-1"]
    done = subprocess.run(argv, env=environ, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
