"""`module load` in a job, in each of the ways in which sites give the command to shells.

What a person's own `#!/bin/bash` script finds when it is handed to sbatch, a job finds as well.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpulaunch.engines.slurm import script
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
STARTUP = "false\nmodule() {\n" + BODY + "\n}\nml() { module load $1; }\n[ -n '' ] && echo never\n"
JOB = 'module load cuda/12.4; ml gcc; printf \'%s %s\' "$LOADEDMODULES" "$(type -t module)"'


def plain_script(cluster: Cluster, at: Path, environ: Mapping[str, str]) -> str:
    """What the job's commands print in a script of one's own that is handed to sbatch there."""
    (at / "plain.sh").write_text(f"#!/bin/bash\n{JOB}\n")
    argv = ["sbatch", "--wait", "--chdir=/", f"--output={at}/plain.out", str(at / "plain.sh")]
    subprocess.run(argv, env=cluster.environ | environ, check=False, capture_output=True)
    wait_until((at / "plain.out").exists, PATIENCE, "the plain script has written")
    return (at / "plain.out").read_text()


def in_a_job(launcher: Launcher, environ: Mapping[str, str], text: str = JOB) -> tuple[int, str]:
    """Its status and what it prints, of a job with those commands."""
    launcher.environ |= environ
    launcher.file("jobs.yaml", "jobs:\n  - name: a\n    gpus: 0\n    run: |\n      " + text + "\n")
    done = launcher("run", "jobs.yaml", "--engine", "slurm", "--quiet")
    return done.status, launcher.log("a")


@pytest.mark.parametrize("way", ["exported", "startup", "both"])
def test_a_job_finds_modules_where_a_plain_script_does(
    cluster: Cluster, on_slurm: Launcher, tmp_path: Path, way: str
) -> None:
    start = on_slurm.file("site files/init bash", STARTUP)
    environ = {"BASH_ENV": str(start)} if way != "exported" else {}
    environ |= EXPORTED if way != "startup" else {}
    expected = plain_script(cluster, tmp_path, environ)
    assert expected == "gcc function"
    assert in_a_job(on_slurm, environ) == (0, expected)


def test_a_start_up_file_is_read_once_and_programs_of_the_job_find_it_as_well(
    on_slurm: Launcher,
) -> None:
    start = on_slurm.file("init", "echo read\n")
    status, said = in_a_job(on_slurm, {"BASH_ENV": str(start)}, "echo job; bash -c 'echo inner'")
    assert (status, said) == (0, "read\njob\nread\ninner\n")


def test_functions_of_the_users_shell_do_not_get_in_the_batch_scripts_way(
    on_slurm: Launcher,
) -> None:
    harm = {f"BASH_FUNC_{name}%%": "() {  exit 9\n}" for name in ("ls", "echo", "exec", "uname")}
    assert in_a_job(on_slurm, harm, "printf fine") == (0, "fine")


def test_without_modules_the_advice_is_one_that_helps(on_slurm: Launcher, tmp_path: Path) -> None:
    """Where the login shell alone defines them: a plain script does not find them either."""
    on_slurm.file("jobs.yaml", "jobs: [{name: a, gpus: 0, run: module load x}]")
    told = on_slurm("run", "jobs.yaml", "--engine", "slurm")
    assert on_slurm.log("a").endswith("module: command not found\n")
    words = " ".join((told.out + told.err).split())
    assert "defaults: {env: {BASH_ENV: /etc/profile.d/modules.sh}}" in words
    assert "python:, venv: or conda:" not in words
    profile = on_slurm.file("profile.d/modules.sh", STARTUP)
    file = f"defaults: {{env: {{BASH_ENV: {profile}}}}}\njobs: [{{gpus: 0, run: module load x}}]"
    on_slurm.file("jobs.yaml", file)
    assert on_slurm("run", "jobs.yaml", "--engine", "slurm", "--new").status == 0
    assert on_slurm("run", "jobs.yaml", "--simulate", "1", "--new").status == 0


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_is_one_for_any_shell(tmp_path: Path, shell: str) -> None:
    """Where there is no bash to hand variables on, or `sh` is one."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/farside.zip").write_text("import os; print('FOO' in os.environ)")
    sh = tmp_path / "sh"
    sh.symlink_to(f"/bin/{shell}")
    path = tmp_path / "batch.sh"
    path.write_text(script.text(str(tmp_path), ["python3"], 1))
    environ = {"PATH": "/usr/bin:/bin", "FOO": "1"}
    argv = [sh, path, "1-1"]
    done = subprocess.run(argv, env=environ, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
