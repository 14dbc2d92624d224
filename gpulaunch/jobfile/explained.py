"""A field of the job file in words, with an example: `gpulaunch schema FIELD`."""

from __future__ import annotations

from textwrap import indent

from gpulaunch.errors import UsageError
from gpulaunch.jobfile.fields import DEFAULT_FIELDS, FIELDS
from gpulaunch.jobfile.schema import DESCRIPTIONS, schema
from gpulaunch.jobfile.suggest import did_you_mean_key, shorten

OF_FILE = {
    "name": "name: nanobodies",
    "gpus": "gpus: [0, 2]",
    "per_gpu": "per_gpu: 2",
    "limits": "limits: {msa_server: 1}",
    "notify": 'notify: {to: "env:LAB_CHANNEL", "on": [finish, first_failure]}',
    "engine": "engine: {slurm: {partition: gpu, account: lab}}",
    "defaults": "defaults: {timeout: 2h, retries: 1}",
    "jobs": "",
}
OF_JOB = {
    "name": "name: fold-{{stem}}\nforeach: inputs/*.fasta",
    "run": "run: [python, predict.py, --device, 'cuda:0']",
    "worker": 'worker: "fold.py:fold"\nforeach: inputs/*.fasta',
    "gpus": "gpus: 2",
    "gpu_memory": "gpu_memory: 16GB",
    "per_gpu": "per_gpu: 2",
    "foreach": "foreach: inputs/*.fasta\nrun: python predict.py {{path}} {{out}}",
    "batch": "foreach: inputs/*.fasta\nbatch: 8\nrun: python predict.py {{batch_dir}}",
    "matrix": "matrix: {lr: [1e-3, 1e-4], seed: [0, 1]}\nrun: python train.py {{lr}} {{seed}}",
    "needs": 'needs: ["fold-*"]',
    "after": 'after: ["fold-*"]',
    "cpus": "cpus: 8",
    "uses": "uses: [msa_server]",
    "cwd": "cwd: work",
    "env": "env: {HF_HOME: /data/hf, WANDB_API_KEY: null}",
    "env_file": "env_file: settings.env",
    "python": "python: /opt/chai/bin/python",
    "venv": "venv: .venv",
    "conda": "conda: chai",
    "shell": "shell: zsh",
    "timeout": "timeout: 2h",
    "idle_timeout": "idle_timeout: 20m",
    "grace": "grace: 30s",
    "retries": 'retries: {times: 2, "on": [gpu_oom, network], delay: 30s}',
    "outputs": 'outputs: ["{{out}}/structure.pdb"]\nrun: python predict.py {{out}}',
    "success_codes": "success_codes: [0, 3]",
    "priority": "priority: 10",
    "cost": 'foreach: {fasta: all.fasta}\ncost: "{{length}}"\nrun: python predict.py {{path}}',
    "first": "foreach: inputs/*.fasta\nfirst: true\nrun: python predict.py {{path}}",
    "service": 'service: {ready: "tcp:{{port}}"}\nrun: python serve.py --port {{port}}',
    "visible": "visible: uuid",
    "isolation": "isolation: strict",
    "explain": "explain: true",
    "preload": "preload: [torch, igfold]",
    "inherit_ranks": "inherit_ranks: true",
    "engine": "engine: {slurm: {gres: a100, extra: [--mem=64G]}}",
}
_COMMAND = "run: python predict.py"


def explained(field: str) -> str:
    """Return what the field means, where it may stand, and an example. Raises UsageError."""
    name = field.removesuffix(":")
    told = []
    if name in OF_FILE:
        words = schema()["properties"][name].get("description") or _OF_ITSELF[name]
        text = "\n".join(filter(None, (OF_FILE[name], "jobs:", f"  - {_COMMAND}")))
        told.append(f"{name}, of the file: {words}\n\n{indent(text, '    ')}\n")
    if name in OF_JOB:
        of = "of a job, or of all in defaults" if name in DEFAULT_FIELDS else "of a job"
        lines = OF_JOB[name]
        if "run:" not in lines and "worker:" not in lines:
            lines += f"\n{_COMMAND}"
        text = f"jobs:\n  - {indent(lines, '    ').strip()}"
        told.append(f"{name}, {of}: {DESCRIPTIONS[name]}\n\n{indent(text, '    ')}\n")
    if not told:
        known = {*OF_FILE, *FIELDS}
        near = did_you_mean_key(name, known) or f"; there are {', '.join(sorted(known))}"
        raise UsageError(f"a job file has no field {shorten(name)!r}{near}")
    return "\n".join(told)


_OF_ITSELF = {
    "defaults": "Fields of jobs that hold for all that do not say otherwise.",
    "jobs": "The jobs; schema run, schema foreach ... tell of what each may have.",
}
