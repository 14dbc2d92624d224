"""From the job's command to the files behind it: which are read, which never."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.diagnose.lint.commands import run_of
from gpulaunch.diagnose.lint.files import ReadBudget
from gpulaunch.diagnose.lint.finding import ProgramRun, SetOptions
from tests.lint.helpers import report_on, told

BAD = "import torch\ntorch.cuda.set_device(1)\n"
FOUND = "device-index"


def one(command: str, more: str = "") -> str:
    return f"jobs:\n- name: x\n  {more}run: {command}\n"


RUNS = {
    "python x.py a b": ("python", "x.py"),
    "python3.11 -u -W ignore x.py": ("python", "x.py"),
    "/opt/env/bin/python x.py": ("python", "x.py"),
    "python -m pkg.train --a b": ("module", "pkg.train"),
    "torchrun --nproc-per-node 1 x.py --lr 1": ("python", "x.py"),
    "torchrun --nproc-per-node 1 -m pkg.train": ("module", "pkg.train"),
    "python -m torch.distributed.run --nproc-per-node 1 x.py": ("python", "x.py"),
    "accelerate launch --num_processes 1 x.py": ("python", "x.py"),
    "deepspeed x.py --deepspeed c.json": ("python", "x.py"),
    "bash -e x.sh a": ("shell", "x.sh"),
    "bash -o pipefail x.sh": ("shell", "x.sh"),
    "source x.sh": ("shell", "x.sh"),
    "./x.sh": ("file", "./x.sh"),
    "./x.py": ("python", "./x.py"),
    "tools/predict --a": ("file", "tools/predict"),
    "conda run -n env python x.py": ("python", "x.py"),
    "uv run x.py": ("python", "x.py"),
    "apptainer exec --nv i.sif python x.py": ("python", "x.py"),
    "nsys profile -o r python x.py": ("python", "x.py"),
    "mpirun -np 2 python x.py": ("python", "x.py"),
    "python -m cProfile -o p x.py": ("python", "x.py"),
}


@pytest.mark.parametrize("command", RUNS)
def test_which_file_a_command_runs(command: str) -> None:
    run = run_of(command.split(), ".")
    assert run is not None
    assert (run.kind, run.what) == RUNS[command]


@pytest.mark.parametrize(
    "command",
    [
        "rm x.py",
        "black x.py",
        "python -c x.py",
        "chai-lab fold a b",
        "cat x.sh",
        "docker run i x.py",
        "env",
    ],
)
def test_a_file_that_is_only_named_is_not_run(command: str) -> None:
    assert run_of(command.split(), ".") is None


def test_options_are_those_behind_the_script() -> None:
    run = run_of(["python", "-u", "x.py", "--gpu-id", "1", "model.device=a", "--flag"], ".")
    assert run == ProgramRun(
        "python", "x.py", SetOptions(frozenset({"gpu_id", "device", "flag"})), ".", 2, True
    )


def test_modules_beside_the_script_in_its_package_and_in_src(tmp_path: Path) -> None:
    files = {
        "tools/x.py": "import beside\nimport pkg.deep.low\nfrom pkg import other\nimport srcmod\n",
        "tools/beside.py": BAD,
        "pkg/__init__.py": "",
        "pkg/deep/__init__.py": "from . import up\nfrom ..other import y\n",
        "pkg/deep/low.py": BAD,
        "pkg/deep/up.py": BAD,
        "pkg/other.py": BAD,
        "src/srcmod.py": BAD,
        "not_imported.py": BAD,
    }
    found = report_on(tmp_path, one("python tools/x.py"), files)
    assert sorted(told(found, tmp_path)) == [
        f"{name}:2 {FOUND}"
        for name in ("pkg/deep/low.py", "pkg/deep/up.py", "pkg/other.py", "src/srcmod.py")
    ] + [f"tools/beside.py:2 {FOUND}"]


def test_modules_in_pythonpath_and_run_by_name(tmp_path: Path) -> None:
    files = {"lib/more.py": BAD, "pkg/__main__.py": "import more\n", "pkg/__init__.py": ""}
    jobs = one("python -m pkg", f"env: {{PYTHONPATH: {tmp_path}/lib}}\n  ")
    assert told(report_on(tmp_path, jobs, files), tmp_path) == [f"lib/more.py:2 {FOUND}"]


def test_what_is_installed_is_not_read(tmp_path: Path) -> None:
    files = {
        "x.py": "import torch\nimport numpy\nimport vendored\n",
        "env/lib/python3.11/site-packages/vendored.py": BAD,
        "env/lib/python3.11/site-packages/tool.py": BAD,
    }
    site = f"{tmp_path}/env/lib/python3.11/site-packages"
    jobs = one(f"python x.py && python {site}/tool.py", f"env: {{PYTHONPATH: {site}}}\n  ")
    assert told(report_on(tmp_path, jobs, files), tmp_path) == []


def test_the_directory_is_followed(tmp_path: Path) -> None:
    files = {
        "sub/x.py": BAD,
        "sub/go.sh": 'cd "$(dirname "$0")"\npython y.py\n',
        "sub/y.py": BAD,
        "other/z.py": BAD,
    }
    jobs = one("cd sub && python x.py; cd ..; bash sub/go.sh; cd $SOMEWHERE; python other/z.py")
    assert sorted(told(report_on(tmp_path, jobs, files), tmp_path)) == [
        f"sub/x.py:2 {FOUND}",
        f"sub/y.py:2 {FOUND}",
    ]


def test_a_job_s_own_directory(tmp_path: Path) -> None:
    found = report_on(tmp_path, one("python x.py", "cwd: sub\n  "), {"sub/x.py": BAD})
    assert told(found, tmp_path) == [f"sub/x.py:2 {FOUND}"]


def test_programs_that_a_program_starts(tmp_path: Path) -> None:
    files = {
        "x.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'y.py'])\n",
        "y.py": "import os\nos.system('bash z.sh')\n",
        "z.sh": "python q --device cuda:1\n",
    }
    assert told(report_on(tmp_path, one("python x.py"), files), tmp_path) == [f"z.sh:1 {FOUND}"]


def test_a_script_is_known_by_its_first_line(tmp_path: Path) -> None:
    files = {
        "fold": "#!/usr/bin/env python3\n" + BAD,
        "go": "#!/bin/bash\npython a --device cuda:1\n",
        "binary": "\x7fELF --device cuda:1\n",
    }
    found = report_on(tmp_path, one("./fold && ./go && ./binary"), files)
    assert sorted(told(found, tmp_path)) == [f"fold:3 {FOUND}", f"go:2 {FOUND}"]


def test_every_item_s_own_script_is_read(tmp_path: Path) -> None:
    files = {f"s/{n}.py": BAD if n == 2 else "" for n in range(4)}
    jobs = "jobs:\n- {name: x, foreach: s/*.py, run: 'python {{path}} --seed 1'}\n"
    assert told(report_on(tmp_path, jobs, files), tmp_path) == [f"s/2.py:2 {FOUND}"]


def test_a_place_is_told_once_however_many_jobs_lead_there(tmp_path: Path) -> None:
    jobs = "jobs:\n" + "".join(
        f"- {{name: a{n}, gpus: {n % 2}, run: python x.py --n {n}}}\n" for n in range(50)
    )
    assert told(report_on(tmp_path, jobs, {"x.py": BAD}), tmp_path) == [f"x.py:2 {FOUND}"]


def test_a_script_is_judged_by_the_cards_of_each_of_its_jobs(tmp_path: Path) -> None:
    two = one("python x.py", "gpus: 2\n  ")
    assert told(report_on(tmp_path, two, {"x.py": BAD}), tmp_path) == []
    both = two + "- {name: y, run: python x.py}\n"
    (found,) = report_on(tmp_path, both).findings
    assert "gpus: 1" in found.why


def test_a_default_is_found_where_no_option_overrides_it(tmp_path: Path) -> None:
    files = {
        "x.py": "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--device', '-d', default='cuda:1')\n",
        "go.sh": 'python x.py "$@"\n',
    }
    for command, wanted in {
        "python x.py": 1,
        "python x.py --lr 1": 1,
        "python x.py --device cuda:0": 0,
        "python x.py -d cpu": 0,
        "python x.py --device=$D": 0,
        "python x.py $OPTIONS": 0,
        "bash go.sh --device cuda:0": 0,
        "[python, x.py, --device, 'cuda:0']": 0,
        "[python, x.py]": 1,
    }.items():
        assert len(report_on(tmp_path, one(command), files).findings) == wanted, command


def test_masks_by_uuid_are_no_numbers(tmp_path: Path) -> None:
    files = {"x.py": 'import os\nn = int(os.environ["CUDA_VISIBLE_DEVICES"])\n'}
    for more, wanted in {"": 0, "visible: uuid\n  ": 1, "gpus: 2\n  ": 1}.items():
        found = report_on(tmp_path, one("python x.py", more), files).findings
        assert [one.rule for one in found] == ["mask-value"] * wanted
    jobs = "gpus: [MIG-8a1b]\n" + one("python x.py")
    assert len(report_on(tmp_path, jobs, files).findings) == 1


def test_the_job_file_s_comment_speaks_for_all_that_the_job_runs(tmp_path: Path) -> None:
    files = {"x.py": BAD}
    assert told(report_on(tmp_path, one("python x.py  # gpulaunch: ok"), files), tmp_path) == []
    jobs = one("python x.py --device cuda:1  # gpulaunch: ok own-mask")
    assert len(told(report_on(tmp_path, jobs, files), tmp_path)) == 2
    jobs = "jobs:\n- run: |  # gpulaunch: ok device-index\n    python x.py --device cuda:1\n"
    assert told(report_on(tmp_path, jobs, files), tmp_path) == []
    command = "python q --device cuda:1"
    jobs = f"jobs:\n- run: |\n    {command}  # gpulaunch: ok\n    {command}\n"
    assert told(report_on(tmp_path, jobs, files), tmp_path) == [f"jobs.yaml:4 {FOUND}"]


def test_another_job_s_comment_does_not(tmp_path: Path) -> None:
    jobs = one("python x.py  # gpulaunch: ok") + "- {name: y, run: python x.py}\n"
    assert told(report_on(tmp_path, jobs, {"x.py": BAD}), tmp_path) == [f"x.py:2 {FOUND}"]


def test_a_budget_ends_it_and_says_so(tmp_path: Path) -> None:
    files = {f"s/{n}.py": BAD for n in range(30)}
    jobs = "jobs:\n- {name: x, foreach: s/*.py, run: 'python {{path}}'}\n"
    found = report_on(tmp_path, jobs, files, ReadBudget(files=5))
    assert 0 < len(found.findings) <= 5
    assert "not every script was looked at: there are too many" in found.note
    ticks = iter(range(1000))
    late = ReadBudget(clock=lambda: float(next(ticks)), seconds=3)
    found = report_on(tmp_path, jobs, files, late)
    assert "3 s were over" in found.note
    assert report_on(tmp_path, jobs, files).note == ""
