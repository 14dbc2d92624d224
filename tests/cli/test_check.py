"""`check`, `schema`, `init`, `doctor` and `gpus`: what they print and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import yaml

from tests.cli.launcher import Launcher


def test_check_prints_the_plan_and_starts_nothing(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: 'a-{{n}}', matrix: {n: [1, 2, 3]}, run: 'echo {{n}} > {{out}}/x', timeout: 2h}
        """,
    )
    result = launcher("check", "jobs.yaml", "--simulate", "2")
    assert result.status == 0
    assert "3 jobs" in result.out
    assert "simulated" in result.out
    assert "{{out}}" in result.out
    plan = json.loads(launcher("check", "jobs.yaml", "--simulate", "2", "--json").out)
    assert [job["name"] for job in plan["jobs"]] == ["a-1", "a-2", "a-3"]
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_check_warns_of_what_is_no_descendant_of_the_job(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: docker run --gpus all image}]")
    result = launcher("check", "jobs.yaml", "--simulate", "1")
    assert result.status == 0
    assert "docker" in result.err
    assert "jobs.yaml:1:" in result.err


def test_a_wrong_card_in_the_file_is_shown_at_its_line(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "gpus: [0, 5]\njobs: [{name: a, run: 'true'}]\n")
    for command in ("check", "run"):
        result = launcher(command, "jobs.yaml", "--simulate", "2")
        assert result.status == 2
        assert "jobs.yaml:1:7: gpus:" in result.err


def test_schema_explains_a_field(launcher: Launcher) -> None:
    told = launcher("schema", "gpus")
    assert told.status == 0
    assert "gpus, of the file: Which cards" in told.out
    assert "gpus, of a job, or of all in defaults: Cards this job needs at once (1)." in told.out
    other = launcher("schema", "walltime")
    assert (other.status, other.err) == (
        2,
        "gpulaunch: a job file has no field 'walltime'; did you mean timeout?\n",
    )


def test_the_schema_accepts_what_check_accepts(launcher: Launcher) -> None:
    schema = json.loads(launcher("schema").out)
    good = {"jobs": [{"name": "a", "run": "true", "gpus": 2, "timeout": "2h"}]}
    jsonschema.validate(good, schema)
    launcher.file("jobs.yaml", yaml.safe_dump(good))
    assert launcher("check", "jobs.yaml", "--simulate", "2").status == 0


def test_init_writes_a_file_that_check_accepts_and_overwrites_none(launcher: Launcher) -> None:
    assert launcher("init").status == 0
    result = launcher("init")
    assert result.status == 2
    assert "exists already" in result.err


def test_what_init_makes_of_a_script_runs(launcher: Launcher) -> None:
    for stem in "ab":
        launcher.file(f"{stem}.fasta", ">x\n")
    launcher.file(
        "all.sh",
        """
        CUDA_VISIBLE_DEVICES=0 cat a.fasta > a.log 2>&1 &
        CUDA_VISIBLE_DEVICES=1 cat b.fasta &
        wait
        CUDA_VISIBLE_DEVICES=0,1 sort a.fasta b.fasta
        """,
    )
    result = launcher("init", "all.sh", "-o", "jobs.yaml")
    assert result.status == 0, result.err
    assert launcher("run", "jobs.yaml", "--simulate", "2").status == 0
    gpus = sorted(job["attempts"][0]["gpus"].__len__() for job in launcher.jobs().values())
    assert gpus == [1, 1, 2]


def test_doctor_and_gpus_say_what_is_wrong_without_a_card(launcher: Launcher) -> None:
    result = launcher("doctor")
    assert "NVML" in result.out or "driver" in result.out
    told = launcher("doctor", "--json")
    wrong = any(finding["level"] == "error" for finding in json.loads(told.out)["findings"])
    assert (result.status, told.status) == (int(wrong), int(wrong))
    assert json.loads(launcher("gpus", "--json").out)["gpus"] == [] or "GPU" in launcher("gpus").out


def test_a_warning_that_would_never_come_is_refused(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, run: 'true', warn: {}}
          - {name: b, run: 'true', warn: {}, preemptible: true}
          - {name: c, run: 'true', warn: {signal: usr1, before: 90s}, timeout: 2m}
        """,
    )
    result = launcher("check", "jobs.yaml", "--simulate", "1")
    assert result.status == 2
    (line,) = [line for line in result.err.splitlines() if line.startswith("jobs.yaml:")]
    assert line.endswith(
        "jobs[0].warn: the job has no timeout to be warned of:"
        " give it timeout:, or preemptible: true"
        " (job a)"
    )
    on_slurm = launcher("check", "jobs.yaml", "--engine", "slurm", "--json")
    assert on_slurm.status == 0, "a partition may have a limit"
    first, preemptible, last = json.loads(on_slurm.out)["jobs"]
    assert (first["warn"], first["preemptible"]) == ({"signal": "USR2", "before": 180.0}, False)
    assert preemptible["preemptible"]
    assert last["warn"] == {"signal": "USR1", "before": 90.0}
    assert "preemptible: Slurm decides what it preempts by partition and QOS" in on_slurm.err


def test_the_plan_says_in_which_image_a_job_runs_and_which_engine_has_it(
    launcher: Launcher,
) -> None:
    fakes = Path(__file__).parent.parent / "containers" / "fakes"
    launcher.environ["PATH"] = f"{fakes}:{launcher.environ['PATH']}"
    launcher.file("box.sif", "")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, container: {image: box.sif, mounts: ['.:/more:ro']}, run: 'true'}
          - {name: b, run: 'true'}
        """,
    )
    found = launcher("check", "jobs.yaml", "--simulate", "1")
    box = launcher.path / "box.sif"
    assert f"in {box}" in found.out
    assert f"container {box}: apptainer runs it ({fakes / 'apptainer'})" in found.err
    first, second = json.loads(launcher("check", "jobs.yaml", "--json").out)["jobs"]
    assert second["container"] is None
    assert first["container"] == {
        "image": str(box),
        "engine": None,
        "mounts": [{"source": str(launcher.path), "target": "/more", "read_only": True}],
        "args": [],
        "user": "",
        "pull": "missing",
    }


def test_an_image_that_no_engine_here_runs_is_told_by_check_and_refused_by_run(
    launcher: Launcher,
) -> None:
    launcher.file("box.sif", "")
    launcher.file("jobs.yaml", "jobs: [{name: a, container: box.sif, run: 'true'}]")
    why = "no program in PATH runs this image: install apptainer or singularity"
    found = launcher("check", "jobs.yaml", "--simulate", "1")
    assert found.status == 0
    assert why in found.err
    refused = launcher("run", "jobs.yaml", "--simulate", "1")
    assert refused.status == 2
    assert f"jobs[0].container: {why}" in refused.err
