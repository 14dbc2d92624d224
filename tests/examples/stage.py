"""A directory in which the documents' examples run: inputs, and pretend programs of the same names.

stage/inputs/*.fasta ...   what the examples read
stage/bin/                 gpulaunch on pretend cards; chai-lab, torchrun: they write a file
stage/modules/             a module program that loads whatever it is told
stage/torch.py             as much of torch as the Python examples use
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.examples.helpers import ROOT

GPULAUNCH = """#!/bin/sh
# On pretend cards, where a command takes cards.
export PYTHONPATH="{root}"
case "$1" in
run | map | exec | check) word=$1; shift; exec {python} -m gpulaunch "$word" {cards} "$@" ;;
esac
exec {python} -m gpulaunch "$@"
"""
PROGRAM = """#!/bin/sh
for last in "$@"; do :; done
[ ! -d "$last" ] || echo done > "$last/structure.pdb"
"""
TORCH = """
class Tensor(list):
    def to(self, device): return self
    def cpu(self): return self
    def numpy(self): return list(self)

class Model:
    def to(self, device): return self
    def __call__(self, batch): return batch

def load(path): return Model()
def as_tensor(batch): return Tensor(batch)
"""
FILES = {
    "inputs/a.fasta": ">a\nMKV\n",
    "inputs/b.fasta": ">b\nMKL\n",
    "predict.py": "",
    "train.py": "",
    "serve.py": "",
    "ask.py": "",
    "list.txt": "one\ntwo\n",
    "runs.csv": "id,lr\na,1e-3\n",
    "all.fa": ">one\nMKV\n",
    "tell.sh": "#!/bin/sh\n",
    "torch.py": TORCH,
    "boltz.sif": "",
    "modules/init/bash": "module() { :; }\n",
    "models/weights.bin": "",
    "run_all.sh": "CUDA_VISIBLE_DEVICES=0 python predict.py inputs/a.fasta &\nwait\n",
}
PROGRAMS = ("chai-lab", "torchrun", "igfold")


def laid(at: Path) -> Path:
    """The directory with all of that in it."""
    for name, text in FILES.items():
        path = at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (at / "bin").mkdir()
    (at / "bin" / "python").symlink_to(sys.executable)
    own = GPULAUNCH.format(root=ROOT, python=sys.executable, cards="--simulate 2")
    for name, text in {"gpulaunch": own, **dict.fromkeys(PROGRAMS, PROGRAM)}.items():
        (at / "bin" / name).write_text(text)
        (at / "bin" / name).chmod(0o755)
    (at / "tell.sh").chmod(0o755)
    return at


def environ_of(stage: Path) -> Mapping[str, str]:
    """This process's environment, the stage's programs first."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        "PATH": f"{stage / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "MODULESHOME": str(stage / "modules"),
        "NTFY_URL": "json://localhost",
        "XDG_STATE_HOME": str(stage / "state"),
        "XDG_CONFIG_HOME": str(stage / "config"),
    }
