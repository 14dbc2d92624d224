"""Launch scripts of the kinds that people have, and exactly what comes of each.

Beside each script of corpus/ stands the job file, or the reasons where there is none.
GPULAUNCH_TEST_GOLDEN=1 writes them anew, to be read then. Those that bash alone can run are run, by
bash and as a job list, with programs that only write down how they were called.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.diagnose.lint import report
from gpulaunch.jobfile import Surroundings, load_text
from gpulaunch.starter import translate
from tests.cli.launcher import Launcher
from tests.helpers import wait_until

CORPUS = Path(__file__).parent / "corpus"
SCRIPTS = sorted(CORPUS.glob("*.sh"))
TRANSLATED = [path for path in SCRIPTS if path.with_suffix(".yaml").exists()]
OF_A_CLUSTER = {"sbatch_loop", "slurm_array", "slurm_steps"}
IN_PART = {"several_under_a_condition"}
RUN = [path for path in TRANSLATED if path.stem not in OF_A_CLUSTER | IN_PART]
FILES = {
    "in/a.fasta": "",
    "in/b.fasta": "",
    "in/c.fasta": "",
    "list.txt": "x\ny z\n",
    "table.csv": "small,0.1,0\nlarge one,0.01,1\n",
    "job.sh": "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=08:00:00\npython x.py --lr $1\n",
    "venv/bin/activate": "",
    "out/b.done": "",
    "logs/old.log": "",
}
STUB = """#!{python}
import json, os, sys
record = [sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("GPULAUNCH_JOB")]
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(record) + "\\n")
"""


def short(path: Path) -> str:
    return path.stem


def laid_out(directory: Path) -> Path:
    """A directory with what the scripts mention, and a `python` that writes its calls down."""
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("bin/python", "venv/bin/python"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB.format(python=sys.executable))
        path.chmod(0o755)
    for script in SCRIPTS:
        for name in re.findall(r"\b[\w./]+\.py\b", script.read_text()):
            (directory / Path(name).name).touch()
    return directory


def translated(script: Path) -> tuple[str, str]:
    """The job file, and what was said."""
    made = translate(script.read_text(), script.name, FILES.get)
    said = "".join(f"{line}: {why}\n    {text}\n" for line, text, why in made.untranslated)
    return made.yaml_text, said


def test_the_corpus_is_there() -> None:
    assert len(SCRIPTS) >= 30
    assert len(RUN) >= 20


@pytest.mark.parametrize("script", SCRIPTS, ids=short)
def test_what_comes_of_a_script(script: Path) -> None:
    text, said = translated(script)
    made, told = script.with_suffix(".yaml"), script.with_suffix(".txt")
    if os.environ.get("GPULAUNCH_TEST_GOLDEN"):
        made.unlink(missing_ok=True)
        told.unlink(missing_ok=True)
        (made if text else told).write_text(text or said)
    assert (text or said) == (made if text else told).read_text()
    assert not (made.exists() and told.exists())


@pytest.mark.parametrize("script", TRANSLATED, ids=short)
def test_check_finds_nothing_in_what_comes_of_a_script(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(laid_out(tmp_path))
    text, _ = translated(script)
    plan = load_text(text.encode(), Surroundings({}), name="jobs.yaml", base=tmp_path)
    assert [str(finding) for finding in report(plan).findings] == []


@pytest.mark.parametrize("script", RUN, ids=short)
def test_the_job_list_makes_the_same_calls_as_the_script(script: Path, tmp_path: Path) -> None:
    needed = [name for name in ("parallel", "xargs") if name in script.read_text()]
    if missing := [name for name in needed if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} on PATH")
    by_jobs = calls_of_jobs(script, laid_out(tmp_path / "jobs"))
    by_bash = calls_of_bash(script, laid_out(tmp_path / "script"), len(by_jobs))
    assert sorted(argv for argv, _, _ in by_jobs) == sorted(argv for argv, _, _ in by_bash)
    cards: defaultdict[str, set[str]] = defaultdict(set)
    for _, mask, job in by_jobs:
        cards[job].add(mask)
    assert all(len(masks) == 1 for masks in cards.values()), cards
    assert widths(by_jobs) == widths(by_bash)


def widths(calls: list[Any]) -> list[tuple[list[str], int]]:
    """How many cards each call saw; where the script set no mask, a job has one."""
    counted = [(argv, 1 if mask is None else len(mask.split(","))) for argv, mask, _ in calls]
    return sorted(counted)


def calls_of_bash(script: Path, directory: Path, least: int) -> list[Any]:
    """What bash called; it does not wait for what the script disowns."""
    environ = {key: value for key, value in os.environ.items() if "CUDA" not in key}
    environ |= {"CALLS": str(directory / "calls"), "HOME": str(directory)}
    environ["PATH"] = f"{directory / 'bin'}:{environ['PATH']}"
    (directory / script.name).write_text(f"{script.read_text()}\nwait\n")
    done = subprocess.run(
        ["bash", script.name],
        check=False,
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: len(read_calls(directory)) >= least)
    return read_calls(directory)


def calls_of_jobs(script: Path, directory: Path) -> list[Any]:
    environ = {"CALLS": str(directory / "calls"), "HOME": str(directory)}
    environ["PATH"] = f"{directory / 'bin'}:{os.environ['PATH']}"
    launcher = Launcher(directory, environ)
    launcher.file(script.name, script.read_text())
    made = launcher("init", script.name)
    assert made.status == 0, made.err
    ran = launcher("run", "jobs.yaml", "--simulate", "4", "--quiet")
    assert ran.status == 0, ran.err
    return read_calls(directory)


def read_calls(directory: Path) -> list[Any]:
    path = directory / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
