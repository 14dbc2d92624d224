"""Slurm's scripts as text: what asks Slurm for what, and what they do when run by hand."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from tests.cli.launcher import Launcher
from tests.export.helpers import as_run, results
from tests.helpers import goes_along


def export(launcher: Launcher) -> Path:
    done = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "out", "--force")
    assert done.status == 0, done.err
    directory = launcher.path / "out"
    for script in directory.glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
    return directory


def options(script: Path) -> list[str]:
    return re.findall("^#SBATCH --(.*)$", script.read_text(), re.MULTILINE)


def submitted(directory: Path) -> list[str]:
    """The arguments of each submission, in order, with the variable that keeps its number."""
    found = re.findall(r"^(\w+=)\$\(submit (.*)\)$", (directory / "submit.sh").read_text(), re.M)
    return [name + rest for name, rest in found]


def test_fields_are_sbatch_options(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 4}
        jobs:
          - name: fold-{{item}}
            foreach: {values: [a, b, c, d, e]}
            uses: [server, server]
            gpus: 2
            cpus: 8
            memory: 64GB
            timeout: 90s
            retries: {times: 1, delay: 5s}
            run: "true"
          - {name: table, gpus: 0, run: "true"}
        """,
    )
    directory = export(launcher)
    assert options(directory / "fold.sh") == [
        "job-name=fold",
        "array=0-4%2",
        "nodes=1",
        "ntasks=1",
        "gpus-per-node=2",
        "cpus-per-task=8",
        "mem=61036M",
        "time=5",  # 2 x (90 + 10) + 5 + 60 seconds
        "open-mode=append",
        "output=slurm/%x-%A_%a.out",
    ]
    assert options(directory / "table.sh") == [
        "job-name=table",
        "nodes=1",
        "ntasks=1",
        "open-mode=append",
        "output=slurm/%x-%j.out",
    ]
    assert "export CUDA_VISIBLE_DEVICES= " in (directory / "table.sh").read_text()
    assert "CUDA_VISIBLE_DEVICES=" not in (directory / "fold.sh").read_text()


def test_what_the_job_file_tells_slurm_is_told(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        engine: {slurm: {partition: gpu, qos: high}}
        jobs:
          - name: fold
            gpus: 2
            engine: {slurm: {gres: a100, qos: null, extra: ["--comment=a b", --mem=8G]}}
            run: "true"
          - {name: table, gpus: 0, memory: 1GiB, run: "true"}
        """,
    )
    directory = export(launcher)
    lines = (directory / "fold.sh").read_text().splitlines()
    told = [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH ")]
    assert "--gpus-per-node=a100:2" in told
    assert [word for word in told if "=gpu" in word or word[:5] in ("--com", "--mem")] == [
        "--partition=gpu",
        "--comment=a b",
        "--mem=8G",
    ]
    assert not any("qos" in word for word in told)
    assert {"partition=gpu", "qos=high", "mem=1024M"} <= {*options(directory / "table.sh")}


def test_memory_that_is_asked_for_twice_is_refused_as_in_a_run(launcher: Launcher) -> None:
    asked = "memory: 8GB, engine: {slurm: {extra: [--mem=4G]}}"
    launcher.file("jobs.yaml", f"jobs: [{{run: x, {asked}}}]")
    told = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "out")
    assert told.status == 2
    assert "jobs[0].memory: --mem=4G in extra: asks Slurm for memory as well" in told.err
    assert launcher("export", "jobs.yaml", "--to", "hyperqueue").status == 0


def test_a_ladder_stands_at_its_first_step(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: embed-{{n}}
            matrix: {n: [1, 2]}
            ladder: {batch: ["3 2", 16]}
            retries: 2
            env: {CHUNK: "c{{batch}}"}
            run: embed {{n}} --batch {{batch}} {{out}}
            outputs: ["{{out}}/{{batch}}"]
        """,
    )
    directory = export(launcher)
    assert "jobs[0].ladder: the first step's values, at every try" in (
        (directory / "submit.sh").read_text()
    )
    script = (directory / "embed.sh").read_text()
    assert 'CHUNK=c"${item_batch}"' in script
    assert 'embed "${item_n}" --batch "${item_batch}"' in script
    assert '[ -s "${GPULAUNCH_OUT}"/"${item_batch}" ]' in script
    tasks = (directory / "embed.tasks").read_text().splitlines()
    assert tasks[0] == "GPULAUNCH_JOB=embed-1 item_n=1 item_batch='3 2'"


def test_a_script_reads_as_the_entry_was_typed(launcher: Launcher) -> None:
    launcher.file("in/a b.fasta", "")
    launcher.file("in/c.fasta", "")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: fold-{{stem}}-{{lr}}
            foreach: in/*.fasta
            matrix: {lr: [1e-3, 2e-3]}
            run: fold {{path}} --name {{job}} --n {{index}} --lr {{lr}} {{out}}
            outputs: ["{{out}}/{{stem}}.pdb"]
        """,
    )
    directory = export(launcher)
    script = (directory / "fold.sh").read_text()
    assert 'fold "${item_path}" --name "${GPULAUNCH_JOB}" --n "${item_index}"' in script
    assert '[ -s "${GPULAUNCH_OUT}"/"${item_stem}".pdb ]' in script
    lines = (directory / "fold.tasks").read_text().splitlines()
    assert len(lines) == 4
    assert lines[1] == (
        f"GPULAUNCH_JOB='fold-a b-2e-3' item_path='{launcher.path}/in/a b.fasta'"
        " item_index=0 item_lr=2e-3 item_stem='a b'"
    )


def test_needs_are_dependencies_as_narrow_as_the_file_says(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: setup, run: "true"}
          - &three
            name: a-{{item}}
            foreach: {values: [x, y, z]}
            needs: [setup]
            run: "true"
          - {<<: *three, name: "b-{{item}}", needs: [setup, "a-{{item}}"]}
          - {<<: *three, name: "c-{{item}}", foreach: {values: [y, z]}, needs: ["a-{{item}}"]}
          - {<<: *three, name: "d-{{item}}", needs: [], first: true}
          - {name: e, needs: [a-x, a-z], after: ["b-*"], run: "true"}
        """,
    )
    assert submitted(export(launcher)) == [
        "id_setup=setup.sh",
        "id_d=--array=0 d.sh",
        'id_a=--dependency="afterok:$id_setup" a.sh',
        'id_d__2=--dependency="afterany:$id_d" --array=1-2 d.sh'.replace('$id_d"', '${id_d}_0"'),
        'id_b=--dependency="afterok:$id_setup,aftercorr:$id_a" b.sh',
        'id_c=--dependency="afterok:${id_a}_1" --array=0 c.sh',
        'id_c__2=--dependency="afterok:${id_a}_2" --array=1 c.sh',
        'id_e=--dependency="afterok:${id_a}_0:${id_a}_2,afterany:$id_b" e.sh',
    ]


def test_jobs_of_an_entry_that_ask_for_different_things_are_arrays_apart(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: n-{{n}}-{{item}}
            foreach: {values: [a, b]}
            matrix: {n: [1, 2]}
            gpus: "{{n}}"
            run: run {{item}} {{n}}
        """,
    )
    directory = export(launcher)
    assert "gpus-per-node=1" in options(directory / "n.sh")
    assert "gpus-per-node=2" in options(directory / "n-2.sh")
    assert (directory / "n.tasks").read_text().count("n-1-") == 2


def test_names_that_come_to_the_same_file_are_told_apart(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a b, run: x}
          - {name: a-b, run: y}
          - {name: submit, run: z}
          - {name: 日本, run: w}
        """,
    )
    names = {path.name for path in export(launcher).iterdir()}
    assert names == {"a-b.sh", "a-b-2.sh", "submit.sh", "submit-2.sh", "jobs.sh"}


def test_run_by_hand_each_task_leaves_what_a_run_leaves(launcher: Launcher) -> None:
    for name in ("a one", "b two", "c three"):
        launcher.file(f"in/{name}", name)
        launcher.file(f"dir {name}/x", name)
    launcher.file("all.fasta", ">one\nAAA\n>two\nCC\nCC\n")
    launcher.file("table.csv", "id,text,PATH\nfirst,it's,x\nsecond,$(touch owned),y\n")
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: "b{{index}}", foreach: in/*, batch: 2, run: "cat {{batch_dir}}/* > {{out}}/x"}
          - {name: "r-{{id}}", foreach: {fasta: all.fasta}, run: "cat {{path}} > {{out}}/x"}
          - {name: "c-{{id}}", foreach: {csv: table.csv}, run: "echo {{text}} {{PATH}} > {{out}}/x"}
          - {name: "d-{{stem}}", foreach: in/*, cwd: "dir {{name}}", run: "cat x > {{out}}/x"}
          - {name: "i-{{id}}", foreach: {csv: table.csv}, run: "echo {{item}} > {{out}}/x"}
        """,
    )
    expected = as_run(launcher, Path("jobs.yaml"))
    directory = export(launcher)
    for script in sorted(directory.glob("*.sh")):
        if script.name == "submit.sh":
            continue
        table = script.with_suffix(".tasks")
        for task in range(table.read_text().count("\n") if table.exists() else 1):
            mine = {"SLURM_SUBMIT_DIR": str(directory), "SLURM_ARRAY_TASK_ID": str(task)}
            subprocess.run(
                ["bash", script],
                env=launcher.environ | mine,
                check=True,
                timeout=60,
                preexec_fn=goes_along(),
            )
    assert results(directory) == expected
    assert not list(launcher.path.glob("**/owned"))


def test_a_token_of_several_arrays_is_named_as_not_limited(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 1, other: 1}
        jobs:
          - {name: "a{{item}}", foreach: {values: [1, 2]}, uses: [server, other], run: "true"}
          - {name: "b{{item}}", foreach: {values: [1, 2]}, uses: [server], run: "true"}
          - name: f{{item}}
            foreach: {values: [1, 2, 3, 4]}
            first: true
            uses: [other]
            run: "true"
        """,
    )
    done = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "out")
    said = [line for line in done.err.splitlines() if "uses" in line]
    assert len(said) == 3
    assert "jobs[0].uses: other, server: jobs of several arrays" in said[0]
    launcher.file(
        "jobs.yaml",
        """
        limits: {server: 1}
        jobs:
          - name: f{{item}}
            foreach: {values: [1, 2, 3, 4]}
            first: true
            uses: [server]
            run: "true"
        """,
    )
    assert submitted(export(launcher))[1].endswith("--array=1-3%1 f.sh")


def test_the_directory_of_a_jobs_attempts_is_kept_and_what_is_not_done_is_told(
    launcher: Launcher,
) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - name: train
            run: 'echo x >> {{keep}}/n; [ "$(wc -l < $GPULAUNCH_KEEP/n)" = 3 ]'
            outputs: ["{{keep}}/n"]
            retries: 2
            timeout: 1h
            warn: {before: 1m}
            spare: true
        """,
    )
    directory = export(launcher)
    subprocess.run(
        ["bash", directory / "train.sh"],
        env=launcher.environ | {"SLURM_SUBMIT_DIR": str(directory)},
        check=True,
        timeout=60,
        preexec_fn=goes_along(),
    )
    assert (directory / "keep/train/n").read_text() == "x\nx\nx\n"
    told = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "out", "--force").err
    assert "jobs[0].warn: no signal before the timeout" in told
    assert "jobs[0].spare: keeps its cards to its end" in told
    assert "jobs[0].outputs" not in told, "kept files may be older there, too"


def test_a_container_is_left_out_with_what_needs_it(launcher: Launcher) -> None:
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: fold, container: fold, run: fold a}
          - {name: sum, needs: [fold], run: echo}
          - {name: other, run: 'true'}
        """,
    )
    told = launcher("export", "jobs.yaml", "--to", "slurm", "-o", "out").err
    assert "jobs[0].container: left out: in slurm, run: starts its container" in told
    assert "jobs[1].needs: left out: it needs fold, which is left out" in told
