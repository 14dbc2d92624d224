"""What is submitted: options from a job's fields, and the batch script in a real shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpulaunch.agent.wire import PROTOCOL
from gpulaunch.base.errors import GpulaunchError
from gpulaunch.core.model import Demand, Job, WarnPolicy
from gpulaunch.engines import programs
from gpulaunch.engines.slurm import script
from gpulaunch.engines.slurm.commands import without_slurm
from gpulaunch.engines.slurm.reading import UNSEEN, read_status
from gpulaunch.engines.slurm.rundir import PROGRAM, SlurmDir
from tests.helpers import wait_until
from tests.slurm.cluster import PATIENCE, Cluster

NODE = "import sys, os; print(sys.argv[2:], sys.flags.isolated, sys.flags.no_site, flush=True)"
AWKWARD = "a 'b' $(exit 3) \"c\" %a\né"


def options(job: Job, run: str = "/run") -> tuple[str, ...]:
    return script.options(job, SlurmDir(Path(run)))


# ── Options ─────────────────────────────────────────────────────────────────────────────────────


def test_cards_are_asked_for_on_one_node() -> None:
    asked = options(Job("a", "true", demand=Demand(gpus=4)))
    assert {"--gpus-per-node=4", "--nodes=1", "--ntasks=1"} <= set(asked)
    typed = Job("a", "true", demand=Demand(gpus=2), engine={"slurm": {"gres": ("a100",)}})
    assert "--gpus-per-node=a100:2" in options(typed)
    none = replace(typed, demand=Demand(gpus=0))
    assert not [word for word in options(none) if "gpus" in word or "a100" in word]


def test_cpus_and_time_are_asked_for_where_the_job_file_says_them() -> None:
    silent = options(Job("a", "true"))
    assert not [word for word in silent if word.startswith(("--cpus", "--time", "--mem"))]
    asked = options(Job("a", "true", demand=Demand(cpus=6), timeout=600.0, grace=10.0))
    assert {"--cpus-per-task=6", "--time=14"} <= set(asked)


@pytest.mark.parametrize("timeout", [0.5, 59.0, 590.0, 600.0, 7200.0, 1e6])
@pytest.mark.parametrize("grace", [0.0, 10.0, 300.0])
def test_slurm_never_warns_before_the_jobs_own_time_is_up(timeout: float, grace: float) -> None:
    asked = options(Job("a", "true", timeout=timeout, grace=grace))
    (minutes,) = (int(word[7:]) for word in asked if word.startswith("--time="))
    earliest = 60 * minutes - script.WARNING - 60
    assert earliest >= timeout + grace


def warned(job: Job, *words: str) -> int:
    """How many seconds before its limit Slurm tells the node's side to end."""
    asked = script.options(job, SlurmDir(Path("/run")), words)
    (seconds,) = (int(word.removeprefix("--signal=B:TERM@")) for word in asked if "signal" in word)
    return seconds


def test_slurms_own_limit_leaves_the_job_the_time_of_its_warning() -> None:
    told = Job("a", "true", warn=WarnPolicy(12, 180.5))
    assert warned(Job("a", "true")) == script.WARNING
    assert warned(told) == script.WARNING + 181
    assert warned(replace(told, timeout=7200.0)) == script.WARNING, "the timeout comes before"
    nearer = replace(told, timeout=7200.0, engine={"slurm": {"extra": ("--time=60",)}})
    assert warned(nearer) == script.WARNING + 181
    assert warned(replace(told, timeout=7200.0), "--time=60") == script.WARNING + 181


def test_what_the_job_file_tells_slurm_is_told_and_its_own_options_come_last() -> None:
    told = {
        "partition": ("long",),
        "account": ("lab x",),
        "qos": ("high",),
        "extra": ("--mem=64G", "--constraint=a&b"),
    }
    asked = options(Job("a", "true", engine={"slurm": told, "other": {"qos": ("no",)}}))
    assert {"--partition=long", "--account=lab x", "--qos=high"} <= set(asked)
    assert asked[-2:] == ("--mem=64G", "--constraint=a&b")


def test_memory_is_asked_for_in_whole_megabytes_and_an_option_of_the_run_goes_before_it() -> None:
    job = Job("a", "true", demand=Demand(memory=64 * 10**9))
    assert "--mem=61036M" in options(job)
    asked = script.options(job, SlurmDir(Path("/run")), ["--mem=8G"])
    assert asked.index("--mem=61036M") < asked.index("--mem=8G")
    assert options(job) != options(replace(job, demand=Demand(memory=1 << 30)))


def test_what_the_configuration_tells_slurm_holds_where_the_job_file_is_silent() -> None:
    said = {"partition": ("gpu",), "gres": ("a100",), "extra": ("--mem=64G",)}
    own = {"partition": ("long",), "extra": ("--mem=8G",)}
    job = Job("a", "true", demand=Demand(gpus=1), engine={"slurm": own})
    asked = script.options(job, SlurmDir(Path("/run")), ("--qos=x",), said)
    assert {"--partition=long", "--gpus-per-node=a100:1", "--mem=8G", "--qos=x"} <= set(asked)
    assert not {"--partition=gpu", "--mem=64G"} & set(asked)
    silent = script.options(replace(job, engine={}), SlurmDir(Path("/run")), (), said)
    assert {"--partition=gpu", "--mem=64G"} <= set(silent)


def test_a_job_s_memory_goes_before_what_the_configuration_says_of_all() -> None:
    said = {"extra": ("--mem=64G", "--exclusive", "--mem-per-cpu=2G")}
    job = Job("a", "true", demand=Demand(memory=1 << 30))
    asked = script.options(job, SlurmDir(Path("/run")), (), said)
    assert [word for word in asked if word.startswith("--mem")] == ["--mem=1024M"]
    assert "--exclusive" in asked
    last = script.options(job, SlurmDir(Path("/run")), ("--mem=8G",), said)
    assert last[-1] == "--mem=8G"


def test_jobs_that_want_the_same_come_to_the_same_options() -> None:
    one, other = Job("a", "true", cwd="/x", group=1), Job("b", "false", priority=3)
    assert options(one) == options(other)
    assert options(one) != options(replace(other, timeout=1.0))


# ── What goes along ─────────────────────────────────────────────────────────────────────────────


def test_the_shells_variables_go_along_but_no_mask_and_no_session() -> None:
    base = {
        "PATH": "/bin", "HF_HOME": "/data/hf", "BASH_FUNC_module%%": "() { :; }",
        "CUDA_VISIBLE_DEVICES": "3", "SSH_TTY": "/dev/pts/1", "SLURM_JOB_ID": "7",
    }  # fmt: skip
    kept = script.environment(base)
    assert without_slurm(kept) == {name: base[name] for name in list(base)[:3]}


# ── The batch script ────────────────────────────────────────────────────────────────────────────


def run(
    at: Path, pythons: list[str], environ: Mapping[str, str] | None = None, patience: int = 1
) -> subprocess.CompletedProcess[str]:
    """The script, on a run directory of that path."""
    path = at.parent / "batch.sh"
    path.write_bytes(os.fsencode(script.text(str(at), pythons, patience)))
    return subprocess.run(
        ["/bin/sh", path, "1-1"], env=environ, capture_output=True, text=True, check=False
    )


KEEPERS = f'#!/bin/sh\n[ "$*" = "--self-test {PROTOCOL}" ] && exit %d\nexit 1\n'
"""Keepers whose test ends with this status."""


@pytest.fixture
def laid(tmp_path: Path) -> Path:
    """A run directory of an awkward name, with a program that tells how it was called."""
    at = tmp_path / AWKWARD
    (at / "slurm").mkdir(parents=True)
    SlurmDir(at).node_program.write_text(NODE)
    SlurmDir(at).keepers().write_text(KEEPERS % 0)
    SlurmDir(at).keepers().chmod(0o700)
    return at


def test_the_script_becomes_the_nodes_program(laid: Path) -> None:
    done = run(laid, [sys.executable])
    assert done.stdout == f"{[str(laid), '1-1']} 1 1\n"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("another machine's", f"is a {os.uname().machine} machine: the gpulaunch that submitted"),
        ("of another version", "does not work on"),
        ("no permission", "does not work on"),
    ],
)
def test_a_node_on_which_the_keepers_do_not_work_starts_nothing(
    laid: Path, why: str, said: str
) -> None:
    keepers = SlurmDir(laid).keepers()
    if why == "another machine's":
        keepers.rename(keepers.with_name(f"{PROGRAM}-vax"))
    elif why == "no permission":
        keepers.chmod(0o600)
    else:
        keepers.write_text(KEEPERS % 64)
    done = run(laid, [sys.executable])
    assert (done.returncode, done.stdout) == (78, "")
    assert said in done.stderr


def test_the_keepers_are_laid_out_for_the_nodes(tmp_path: Path) -> None:
    laid = SlurmDir(tmp_path)
    for _ in range(2):
        script.lay_out_launch_files(laid)
        assert laid.keepers().read_bytes() == programs.PROGRAM.read_bytes()
        assert laid.keepers().stat().st_mode & 0o777 == 0o700


def test_without_keepers_nothing_is_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PROGRAM", tmp_path / "none")
    with pytest.raises(GpulaunchError, match="installed without its program for this machine"):
        script.lay_out_launch_files(SlurmDir(tmp_path))


def test_a_python_that_is_too_old_or_broken_is_passed_over(laid: Path, tmp_path: Path) -> None:
    old, broken = tmp_path / "old python", tmp_path / "broken"
    old.write_text("#!/bin/sh\nexit 1\n")
    broken.write_text("not a program")
    for path in (old, broken):
        path.chmod(0o755)
    done = run(laid, [str(old), str(broken), "/no/such", sys.executable])
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    done = run(laid, [str(old)], {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_without_python_says_so(laid: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("uname", "ls", "sleep"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    done = run(laid, ["/no/such python"], {"PATH": str(tmp_path / "bin")})
    assert done.returncode == 78
    said = r"gpulaunch: no Python 3\.8 or newer on \S+: tried /no/such python python3 python\n"
    assert re.fullmatch(said, done.stderr)


def test_a_node_that_does_not_see_the_run_directory_says_so(tmp_path: Path) -> None:
    at = tmp_path / "elsewhere"
    done = run(at, [sys.executable])
    assert done.returncode == 78
    assert re.fullmatch(
        rf"gpulaunch: {re.escape(str(SlurmDir(at).node_program))} cannot be read on \S+:"
        r" the run directory must be on a file system that the nodes share\n",
        done.stderr,
    )


def test_a_run_directory_that_shows_late_is_waited_for(laid: Path, tmp_path: Path) -> None:
    late, looked = laid.with_name("late"), tmp_path / "looked"
    bin = tmp_path / "bin"
    bin.mkdir()
    # It shows once the script has looked for it in vain.
    (bin / "sleep").write_text(f'#!/bin/sh\nmv "{laid.parent}"/a* "{late}"; : > {looked}\n')
    (bin / "sleep").chmod(0o755)
    done = run(late, [sys.executable], {"PATH": f"{bin}:/usr/bin:/bin"}, patience=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert looked.exists()


def test_the_script_is_laid_out_once(tmp_path: Path) -> None:
    run = SlurmDir(tmp_path)
    run.slurm.mkdir()
    script.lay_out(run)
    first = run.batch_script.stat()
    assert sys.executable in run.batch_script.read_text()
    script.lay_out(run)
    assert run.batch_script.stat().st_ino == first.st_ino
    script.lay_out(run, ["/other/python"])
    assert "/other/python" in run.batch_script.read_text()


# ── On a cluster ────────────────────────────────────────────────────────────────────────────────

Submit = Callable[..., str]


@pytest.fixture
def submit(cluster: Cluster) -> Submit:
    """Submit a run directory's batch script; returns once the job is over."""

    def go(run: SlurmDir, job: Job, *more: str) -> str:
        id = cluster.command(
            "sbatch", *script.options(job, run), *more, str(run.batch_script), "1-1"
        ).strip()
        wait_until(lambda: over(id), PATIENCE, f"{id} is over")
        return id

    def over(id: str) -> bool:
        said = cluster.command("squeue", "-h", "-t", "all", "-j", id, "-o", "%T").split()
        return bool(said) and not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(said)

    return go


def test_what_a_job_says_to_slurm_is_found_again_or_its_end_is_known(
    submit: Submit, cluster: Cluster, tmp_path: Path
) -> None:
    for number, name in enumerate(("plain", "a 'b' %a %% é", "back\\slash %j")):
        at = tmp_path / str(number)
        at.mkdir()
        check_what_is_said(submit, SlurmDir(at / name))

    run = SlurmDir(tmp_path / "unwritable")
    run.slurm.mkdir(parents=True)
    script.lay_out(run)
    (run.path / "file").write_text("no directory")  # a missing one newer versions would make
    id = submit(run, Job("a", "true"), f"--output={run.path}/file/%j")
    (code,) = re.findall(r" ExitCode=(\S+)", cluster.command("scontrol", "-o", "show", "job", id))
    assert read_status(code) in UNSEEN


def check_what_is_said(submit: Submit, run: SlurmDir) -> None:
    run.said.mkdir(parents=True)
    run.node_program.write_text(NODE + "; print('task', os.environ['SLURM_JOB_ID'])")
    script.lay_out(run)
    shutil.copy(programs.PROGRAM, run.keepers())
    lone = submit(run, Job("a", "true", timeout=60.0))
    array = submit(run, Job("a", "true", demand=Demand(gpus=0)), "--array=0-1")
    if "\\" in run.path.name:
        assert script.said(run, lone) == ""
        assert list(run.path.parent.iterdir()) == [run.path], "nor anywhere else"
        return
    assert script.said(run, lone).endswith(f"; task {lone}")
    for task in (0, 1):
        assert "'1-1'] 1 1; task " in script.said(run, f"{array}_{task}")
    assert script.said(run, f"{array}_2") == script.said(run, "4000000") == ""
