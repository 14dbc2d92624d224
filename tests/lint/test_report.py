"""What is found in the job file itself: where it stands, once, and for which cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.diagnose.lint import Finding, report
from gpulaunch.jobfile.plan import Plan
from tests.jobfile.helpers import plan_of
from tests.lint.helpers import report_on, told

FILE = """\
jobs:
  - name: many-{{n}}
    matrix: {n: [1, 2, 3]}
    run: |
      echo docker
      docker run x {{n}}
      CUDA_VISIBLE_DEVICES=1 python x
  - run: [sbatch, "x y"]
  - run: [bash, -ec, "echo sbatch; sbatch x"]
  - run: [env, CUDA_VISIBLE_DEVICES=1, python, docker, run]
  - {run: sbatch x, shell: fish}
  - run: python sbatch
  - &a {name: aliased, run: sbatch x}
"""


def findings(plan: Plan) -> list[Finding]:
    return list(report(plan).findings)


def test_each_entry_is_warned_of_once_with_its_line() -> None:
    found = findings(plan_of(FILE))
    assert [f"{one.line}:{one.column} {one.rule}" for one in found] == [
        "6:7 daemon",
        "7:7 own-mask",
        "8:11 daemon",
        "9:36 daemon",
        "10:16 own-mask",
        "13:29 daemon",
    ]
    assert str(found[0]).endswith("[daemon]\n          docker run x {{n}}\n          ^")


def test_a_file_without_findings_is_not_read_again() -> None:
    plan = plan_of("jobs: [{run: python x}]")
    assert findings(plan) == []
    assert "root" not in vars(plan)


STRICT = """
jobs:
  - isolation: strict
    run: |
      export CUDA_VISIBLE_DEVICES=1
      CUDA_DEVICE_ORDER=FASTEST_FIRST python x
      accelerate launch --num_processes 1 --gpu_ids 1 x.py
      docker run --gpus device=1 image
      unset CUDA_VISIBLE_DEVICES
"""


def test_under_strict_isolation_no_other_jobs_card_is_threatened_with() -> None:
    own, launched, machine = (one for one in findings(plan_of(STRICT)) if one.rule == "own-mask")
    for one in (own, launched):
        assert "isolation: strict keeps it to the job's cards" in one.why
        assert "another job's card" not in one.why
    assert "another job's card" in machine.why, "a daemon starts it, outside of the isolation"
    open_ = findings(plan_of(STRICT.replace("strict", "env")))
    assert len([one for one in open_ if one.rule in ("own-mask", "device-order")]) == 5


def test_only_a_job_that_is_isolated_is_told_so() -> None:
    entry = """
jobs:
  - {name: a, run: CUDA_VISIBLE_DEVICES=1 x, isolation: strict}
  - {name: b, run: CUDA_VISIBLE_DEVICES=1 x}
"""
    one, other = findings(plan_of(entry))
    assert "isolation: strict" in one.why
    assert "another job's card" in other.why


NUMBERS = "import os\nfirst = int(os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0])\n"


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ("visible: uuid", True),
        ("visible: uuid, isolation: strict", True),
        ("visible: uuid, gpus: 0", False),
        ("isolation: strict", False),
        ("gpus: 2", False),
        ("container: vllm.sif", True),
        ("container: {image: vllm, engine: apptainer}", True),
        ("container: docker://vllm/vllm-openai, visible: uuid", False),
    ],
)
def test_a_mask_that_is_read_as_a_number_is_found_where_it_has_uuids(
    job: str, found: bool, tmp_path: Path
) -> None:
    (tmp_path / "vllm.sif").touch()
    (tmp_path / "x.py").write_text(NUMBERS)
    plan = plan_of(f"jobs: [{{name: a, run: python x.py, {job}}}]", base=tmp_path)
    assert [one.rule for one in report(plan).findings] == ["mask-value"] * found


def test_machines_whose_masks_have_uuids_are_told_apart_by_isolation(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(NUMBERS)
    (tmp_path / "b.py").write_text(NUMBERS)
    plan = plan_of(
        """
        jobs:
          - {name: a, run: python a.py}
          - {name: b, run: python b.py, isolation: strict}
        """,
        base=tmp_path,
    )
    files = [
        [Path(one.path).name for one in report(plan, by_uuid=kinds).findings]
        for kinds in ((), ("env",), ("env", "strict"))
    ]
    assert files == [[], ["a.py"], ["a.py", "b.py"]]
    of_mig = plan_of('gpus: ["MIG-1"]\njobs: [{name: a, run: python a.py}]', base=tmp_path)
    assert len(report(of_mig).findings) == 1
    whole = plan_of('gpus: ["GPU-1"]\njobs: [{name: a, run: python a.py}]', base=tmp_path)
    assert report(whole).findings == ()


COMMANDS = {
    "python x --device cuda:1": "device-index",
    "python x --device=cuda:2": "device-index",
    "python x device=cuda:1 lr=1": "device-index",
    "python x -d 'cuda:1'": "device-index",
    "dorado basecaller -x cuda:1 model pod5/": "device-index",
    "python run_alphafold.py --gpu_device=1": "device-index",
    "relion_refine_mpi --gpu 0:1 --o x": "device-index",
    "llama-server -m x -mg 1": "device-index",
    "yolo predict model=x device=1": "device-index",
    "GPU=2; gmx mdrun -gpu_id $GPU": "device-index",
    'D="cuda:1"; python x --device "$D"': "device-index",
    "gmx mdrun -gpu_id 1": "device-index",
    "accelerate launch --num_processes 1 --gpu_ids 0 x.py": "own-mask",
    "deepspeed --include localhost:1 x.py": "own-mask",
    "deepspeed --num_gpus 1 x.py": "own-mask",
    "torchrun --master_port 29500 x.py": "fixed-port",
    "accelerate launch --main_process_port 29500 x.py": "fixed-port",
    "torchrun --rdzv_endpoint localhost:29400 x.py": "fixed-port",
    "python -m torch.distributed.run --master_port=29500 x.py": "fixed-port",
    "export MASTER_PORT=29500": "fixed-port",
    "MASTER_PORT=29500 python x": "fixed-port",
    "docker run --gpus all image python x": "all-gpus",
    "docker run --gpus=all image": "all-gpus",
    "podman run --device nvidia.com/gpu=all image": "all-gpus",
    "podman run --gpus all image": "all-gpus",
    "docker run image": "daemon",
    "nvidia-docker run image python x.py": "daemon",
    "docker compose up": "daemon",
    "apptainer exec --nv --cleanenv a.sif python x.py": "all-gpus",
    "singularity run -C --nv a.sif": "all-gpus",
    "export A=1; apptainer exec --containall --nv docker://a x": "all-gpus",
    "docker run --gpus '\"device=0\"' image": "own-mask",
    "docker run --gpus 1 image": "own-mask",
    "podman run --device nvidia.com/gpu=0,1 image": "own-mask",
    "CUDA_VISIBLE_DEVICES=0，1 python x": "own-mask",
    "CUDA_VISIBLE_DEVICES=1 python x": "own-mask",
    "export CUDA_DEVICE_ORDER=FASTEST_FIRST": "device-order",
    "env CUDA_VISIBLE_DEVICES=1 python x": "own-mask",
}
QUIET = [
    "python x --device cuda:0 --gpu 0 --gpu_id 0 --gpu_ids 0",
    "python x --gpu 1 --gpu_id 1 --gpu_ids 0,1 --devices 2",
    "mmseqs easy-search a b c tmp --gpu 1",
    "python x --gpus 1 --devices 1 --num_processes 8",
    "python x --device $DEVICE --master_port $MASTER_PORT",
    "python x --device cuda:$LOCAL_RANK",
    "python x --name run-cuda:1 --note 'cuda:1 was slow'",
    "echo cuda:1; grep cuda:1 x.log; nvidia-smi -i 1",
    "torchrun --nproc-per-node gpu --master_port {{port}} x.py",
    "torchrun --nproc-per-node $(nvidia-smi -L | wc -l) x.py",
    "torchrun --standalone --nproc_per_node=1 x.py",
    "accelerate launch --gpu_ids all --num_processes 1 x.py",
    "deepspeed x.py --deepspeed ds.json",
    "docker run --gpus device=$GPULAUNCH_GPU_UUID image  # gpulaunch: ok daemon",
    "podman run --rm image python x.py",
    "apptainer exec --nv a.sif python x.py",
    "apptainer exec --cleanenv a.sif python x.py",
    "apptainer exec --nv --cleanenv --env CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES a.sif x",
    "APPTAINERENV_CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES apptainer exec --nv -C a.sif x",
    "export SINGULARITYENV_CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES\n"
    "singularity exec --nv -C a.sif x",
    "export MASTER_PORT=${MASTER_PORT:-29500}",
    ': "${MASTER_PORT:=29500}"',
    '[ -n "$MASTER_PORT" ] || export MASTER_PORT=29500',
    'if [ -z "$CUDA_VISIBLE_DEVICES" ]; then export CUDA_VISIBLE_DEVICES=0; fi',
    'IFS=, read -ra G <<<"$CUDA_VISIBLE_DEVICES"\nCUDA_VISIBLE_DEVICES=${G[0]} python x',
    "for g in ${CUDA_VISIBLE_DEVICES//,/ }; do CUDA_VISIBLE_DEVICES=$g python x; done",
    "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES= python x",
    "cat <<EOF > later.sh\nCUDA_VISIBLE_DEVICES=1 python x\nEOF",
    "bash read.sh <<EOF\nCUDA_VISIBLE_DEVICES=1 python x\nEOF",
    "bash -c 'cat > later.sh' <<EOF\nCUDA_VISIBLE_DEVICES=1 python x\nEOF",
    "bash x.sh; cat <<EOF\nCUDA_VISIBLE_DEVICES=1 python x\nEOF",
    "bash <<EOF\ntrue\nEOF\necho CUDA_VISIBLE_DEVICES=1 python x",
    "python x --port 8000 --seed 1 --batch 2",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_does_not_suit_one_card(tmp_path: Path, command: str) -> None:
    found = report_on(tmp_path, _file(command))
    assert [one.rule for one in found.findings] == [COMMANDS[command]]


@pytest.mark.parametrize("command", QUIET)
def test_a_command_that_does(tmp_path: Path, command: str) -> None:
    assert told(report_on(tmp_path, _file(command)), tmp_path) == []


def _file(command: str, more: str = "") -> str:
    indented = command.replace("\n", "\n    ")
    return f"jobs:\n- {more}run: |\n    {indented}\n"


def test_more_cards_make_it_right(tmp_path: Path) -> None:
    command = "gmx mdrun -gpu_id 1 --device cuda:1"
    assert len(told(report_on(tmp_path, _file(command)), tmp_path)) == 2
    assert told(report_on(tmp_path, _file(command, "gpus: 2\n  ")), tmp_path) == []


def test_a_job_without_cards_has_none_at_all(tmp_path: Path) -> None:
    (found,) = report_on(tmp_path, _file("python x --device cuda:1", "gpus: 0\n  ")).findings
    assert "this job has no card (gpus: 0)" in found.why
    (found,) = report_on(tmp_path, _file("python x --device cuda", "gpus: 0\n  ")).findings
    assert found.mend == "write cpu, or gpus: 1 in the job file"
    code = {"x.py": 'import torch\ndevice = "cuda:0"\n'}
    assert told(report_on(tmp_path, _file("python x.py", "gpus: 0\n  "), code), tmp_path) == []


def test_values_of_the_matrix_are_looked_at_one_by_one(tmp_path: Path) -> None:
    text = """\
    jobs:
      - {matrix: {d: ["cuda:0", "cuda:1"]}, run: 'python x --seed 1 --device {{d}}'}
      - {matrix: {d: [0, 1]}, run: [gmx, mdrun, -gpu_id, "{{d}}"]}
      - {foreach: {values: [a, b]}, run: 'python x {{item}} --device cuda:0'}
    """
    found = report_on(tmp_path, text)
    assert [(one.line, one.column) for one in found.findings] == [(2, 74), (3, 54)]


def test_the_same_command_in_two_entries_is_found_in_both(tmp_path: Path) -> None:
    command = "run: python x --device cuda:1"
    text = f"jobs:\n- {{name: a, {command}}}\n- {{name: b, {command}}}\n"
    assert told(report_on(tmp_path, text), tmp_path) == [
        "jobs.yaml:2 device-index",
        "jobs.yaml:3 device-index",
    ]


def test_run_in_the_defaults_is_found_there(tmp_path: Path) -> None:
    text = "defaults: {env: {A: b}}\njobs:\n- &x {name: a, run: python x --device cuda:1}\n"
    assert told(report_on(tmp_path, text), tmp_path) == ["jobs.yaml:3 device-index"]


def test_a_port_in_the_job_file_s_environment(tmp_path: Path) -> None:
    text = "jobs:\n- {name: a, env: {A: b, MASTER_PORT: 29500}, run: python x}\n"
    (found,) = report_on(tmp_path, text).findings
    assert (found.line, found.column, found.rule) == (2, 38, "fixed-port")
    text = text.replace("29500", "'{{port}}'")
    assert told(report_on(tmp_path, text), tmp_path) == []


def test_each_command_s_findings_are_its_own(tmp_path: Path) -> None:
    command = "sbatch x\npython x --device cuda:1\ndocker run --gpus all i"
    found = report_on(tmp_path, _file(command)).findings
    assert [one.rule for one in found] == ["daemon", "device-index", "all-gpus"]


def test_a_container_with_all_cards_is_told_once(tmp_path: Path) -> None:
    (found,) = report_on(tmp_path, _file("docker run --gpus all x")).findings
    assert "does not end with the job" in found.why


CONTAINERS = {
    "docker run --rm -it -v $PWD:/work --gpus all lab/boltz:1 python x.py": "lab/boltz:1",
    "docker run --shm-size=8g -e A=b lab/boltz:1": "lab/boltz:1",
    "docker run $OPTIONS lab/boltz:1": "IMAGE",
    'docker run --rm "$IMAGE" python x.py': "IMAGE",
    "docker exec c x": "IMAGE",
    "docker compose up": "IMAGE",
    "podman run --gpus all boltz x": "boltz",
    "apptainer -q exec --nv -C -B /a:/b boltz.sif x": "boltz.sif",
}


@pytest.mark.parametrize("command", CONTAINERS)
def test_who_starts_a_container_is_told_of_the_field_for_it(tmp_path: Path, command: str) -> None:
    (found,) = report_on(tmp_path, _file(command)).findings
    mend = f"write container: {CONTAINERS[command]} and run: COMMAND in the job file"
    assert found.mend.startswith(mend)


def test_a_mask_that_the_job_hands_on_to_apptainer_is_enough(tmp_path: Path) -> None:
    job = "run: [apptainer, exec, --nv, -C, a.sif, x]"
    (found,) = report_on(tmp_path, f"jobs: [{{{job}}}]").findings
    assert found.rule == "all-gpus"
    handed = f"{job}, env: {{APPTAINERENV_CUDA_VISIBLE_DEVICES: '{{{{gpu_index}}}}'}}"
    assert told(report_on(tmp_path, f"jobs: [{{{handed}}}]"), tmp_path) == []
    for none in ("gpus: 0", "isolation: strict"):
        assert told(report_on(tmp_path, f"jobs: [{{{job}, {none}}}]"), tmp_path) == []


def test_a_jobs_own_container_is_none_that_its_command_starts(tmp_path: Path) -> None:
    container = "container: {image: a, args: [--label, docker run --gpus all x]}"
    text = f"jobs: [{{run: python x.py --device cuda:0, {container}}}]"
    assert told(report_on(tmp_path, text), tmp_path) == []


def test_of_a_job_in_a_container_only_what_is_mounted_is_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    for directory in (outside, inside):
        directory.mkdir()
        (directory / "x.py").write_text("import torch\ntorch.cuda.set_device(1)\n")
    command = f"run: 'python {outside}/x.py; python x.py'"
    text = f"jobs: [{{{command}, cwd: inside, container: a}}]"
    assert told(report_on(tmp_path, text), tmp_path) == ["inside/x.py:2 device-index"]
    mounted = text.replace("container: a", "container: {image: a, mounts: [outside]}")
    assert len(report_on(tmp_path, mounted).findings) == 2


SCRIPTS = {
    "left.sh": "nohup python x > log &\necho started\n",
    "hidden.sh": "#!/bin/bash\npython x\necho done\n",
    "strict.sh": "#!/bin/bash -e\npython x\necho done\n",
    "outer.sh": "cd .\nbash left.sh\n",
    "first.sh": "set -e\nbash left.sh\npython y\n",
}
ENDINGS = {
    "bash left.sh": ["left.sh:1 left-running"],
    "bash outer.sh": ["left.sh:1 left-running"],
    "bash first.sh": [],
    "bash left.sh; python client": [],
    "bash hidden.sh": ["hidden.sh:2 hidden-status"],
    "bash hidden.sh && echo ok": ["hidden.sh:2 hidden-status"],
    "bash -e hidden.sh": [],
    "source hidden.sh": [],
    "bash strict.sh": [],
    "python a | tee log": [],
    "python a & python b & wait": ["jobs.yaml:3 hidden-status"],
    "python a || true": ["jobs.yaml:3 hidden-status"],
    "python a || true  # gpulaunch: ok hidden-status": [],
}
"""What is told of the end of a command, and of the scripts that end it."""


@pytest.mark.parametrize("command", ENDINGS)
def test_only_a_script_that_ends_its_job_is_told_how_it_ends(tmp_path: Path, command: str) -> None:
    found = report_on(tmp_path, _file(command), SCRIPTS)
    ends = [one for one in told(found, tmp_path) if "not-there" not in one]
    assert ends == ENDINGS[command]


def test_which_shell_ends_at_a_failure_is_known_from_its_words(tmp_path: Path) -> None:
    jobs = """
    jobs:
      - {run: python a | tee log}
      - {run: python b | tee log, shell: sh}
      - {run: python c; echo done, shell: [bash, -c]}
      - {run: [bash, -c, python d; echo done]}
      - {run: [bash, -ec, python e; echo done]}
    """
    found = [one for one in told(report_on(tmp_path, jobs), tmp_path) if "not-there" not in one]
    assert found == [f"jobs.yaml:{line} hidden-status" for line in (4, 5, 6)]


def test_a_name_that_has_only_the_number_of_a_file_is_told(tmp_path: Path) -> None:
    files = {"in/a": "", "in/b": ""}
    jobs = """
    jobs:
      - {name: "a-{{index}}", foreach: in/*, run: "true {{path}}"}
      - {name: "b-{{index}}-{{stem}}", foreach: in/*, run: "true {{path}}"}
      - {name: "c-{{index}}", foreach: {values: [1, 2]}, run: "true {{item}}"}
      - {foreach: in/*, run: "true {{path}}"}
      - {name: "d-{{index}}", foreach: in/*, batch: 1, run: "true {{batch_dir}}"}
      # gpulaunch: ok index-name
      - {name: "e-{{index}}", foreach: in/*, run: "true {{path}}"}
    """
    assert told(report_on(tmp_path, jobs, files), tmp_path) == ["jobs.yaml:3 index-name"]


def test_what_only_a_shell_would_expand_is_told_at_its_place(tmp_path: Path) -> None:
    jobs = """
    defaults:
      env: {PATH: "/x:$PATH"}
    jobs:
      - name: a
        run: "true"
        outputs:
          - "{{out}}/*.{pdb,cif}"
          - "~/fine"
      - {name: "b-{{item}}", run: "true", foreach: {values: ["~/b"]}}
      - {name: c, run: [echo, "$HOME/x", ">", log]}
      - {name: d, run: [bash, -c, 'echo "$HOME" > log']}
    """
    rule = "not-expanded"
    assert told(report_on(tmp_path, jobs), tmp_path) == [
        *(f"jobs.yaml:{line} {rule}" for line in (3, 8, 10, 11, 11)),
    ]


# ── one brace where two are meant ─────────────────────────────────────────────────────────────────

FOLD = "name: 'f-{{stem}}', foreach: {values: [a, b]}"
SWEEP = "name: 's-{{lr}}', matrix: {lr: [1, 2]}"


def braces(at: Path, fields: str, command: str) -> list[tuple[int, str]]:
    """The column in the command, and the name, of each that is pointed out."""
    text = f"jobs:\n- {{{fields}}}\n".replace("}\n", f", run: {command}}}\n")
    found = report_on(at, text).findings
    assert {one.rule for one in found} <= {"single-brace"}
    start = text.splitlines()[1].index(command) + 1
    return [(one.column - start, one.why.partition("}")[0][1:]) for one in found]


@pytest.mark.parametrize(
    ("fields", "command", "expected"),
    [
        (FOLD, "'x {path} --out={out}/y'", [(3, "path"), (16, "out")]),
        (FOLD, """"x '{item}' {item}" """.strip(), [(12, "item")]),
        (FOLD, "'x {{path}} {stem}.pdb'", [(12, "stem")]),
        (FOLD, "'x {lr}'", []),
        (SWEEP, "'x {path} {lr}'", [(10, "lr")]),
        (SWEEP, "[x, '--lr={lr}', 'f(\"{lr}\")']", [(10, "lr")]),
        (SWEEP, "[bash, -c, 'x {lr}']", [(14, "lr")]),
        ("foreach: {csv: t.csv}, name: 'c{{a}}'", "'x {path} {a}'", [(10, "a")]),
        ("name: one", "'x {path} {out}'", [(10, "out")]),
    ],
)
def test_a_name_that_the_job_has_is_pointed_out(
    tmp_path: Path, fields: str, command: str, expected: list[tuple[int, str]]
) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert braces(tmp_path, fields, command) == expected


@pytest.mark.parametrize(
    "script",
    [
        "echo ${path} \\{path} a{path,stem} {1..3}",
        "awk '{print}' x; awk \"{path}\" x",
        """python -c 'print(f"{path}")'""",
        "exec {out}>x; exec {out}<&-",
        "ls | xargs -I {path} cp {path} x",
        "cat <<END\n{path}\nEND",
        "x  # {path}",
        "x {other} {} { path }",
        "x {{path}} \\{{path}}",
        "x {path}  # gpulaunch: ok single-brace",
    ],
)
def test_braces_that_mean_something_else_are_left_alone(tmp_path: Path, script: str) -> None:
    lines = "".join(f"      {line}\n" for line in script.splitlines())
    text = f"jobs:\n  - name: f-{{{{stem}}}}\n    foreach: {{values: [a]}}\n    run: |\n{lines}"
    assert not report_on(tmp_path, text).findings


def test_a_script_of_another_language_is_left_alone(tmp_path: Path) -> None:
    text = "jobs: [{foreach: {values: [a]}, shell: python3 -c, run: 'print({item})'}]"
    assert not report_on(tmp_path, text).findings
