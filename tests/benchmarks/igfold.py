"""A folder of antibodies through IgFold, end to end: a worker for each card, one process for each
file, and what a person writes by hand in two terminals.

    python -m tests.benchmarks.igfold --env examples/antibodies/.env [--copies 4] [--rounds 2]

`--env` is where examples/antibodies/setup has installed IgFold. Each way folds the same files, on
two pretend cards (or two terminals), and the structures of all ways are compared: they must be
the same. Ways:

    worker     worker.yaml's function: the models are loaded once for each card
    process    jobs.yaml's command: `igfold fold` for each file
    terminals  two shell loops, each with a half of the files, `igfold fold` for each file
    scripts    two Python scripts, each with a half of the files, the models loaded once
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "antibodies"
COMMON = """
  - name: fold-{{{{stem}}}}
    foreach: inputs/*.fasta
    venv: {env}
    outputs: ["{{{{out}}}}/structure.pdb"]
    cpus: 1
"""
WAYS = {
    "worker": '    worker: {function: "fold.py:fold", load: "fold.py:load"}\n',
    "process": "    run: igfold fold --fasta {{path}} --output {{out}}/structure.pdb"
    " --num-models 1\n",
}
SCRIPT = """
import sys, fold
class Item: pass
model = fold.load()
for path, out in zip(sys.argv[1::2], sys.argv[2::2]):
    item = Item()
    item.path, item.out = path, out
    fold.fold(model, item)
"""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def measure(
    quick: bool, env: Path | None = None, copies: int = 4, rounds: int = 2
) -> dict[str, object]:
    env = env or EXAMPLE / ".env"
    if not (env / "installed").exists():
        return {"absent": "IgFold is not installed: examples/antibodies/setup does that"}
    rounds, copies = (1, 1) if quick else (rounds, copies)
    times: dict[str, list[float]] = {}
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="gpulaunch-bench-") as name:
        place = Path(name)
        files = _lay_out(place, copies)
        ways: dict[str, Callable[[], Path]] = {
            "worker": lambda: _launched(place, env, "worker"),
            "process": lambda: _launched(place, env, "process"),
            "terminals": lambda: _terminals(place, env, files, _loop),
            "scripts": lambda: _terminals(place, env, files, _script),
        }
        for _ in range(rounds):
            for way, run in ways.items():
                begun = time.monotonic()
                results = run()
                times.setdefault(way, []).append(time.monotonic() - begun)
                found[way] = _digest(results)
    assert len(set(found.values())) == 1, f"the ways differ in their structures: {found}"
    seconds = {way: median(values) for way, values in times.items()}
    told: dict[str, object] = {"files": len(files), "rounds": rounds}
    told |= {f"{way}_seconds": round(value, 1) for way, value in seconds.items()}
    for way in ("process", "terminals", "scripts"):
        told[f"{way}_over_worker_ratio"] = round(seconds[way] / seconds["worker"], 2)
    return told


def _lay_out(place: Path, copies: int) -> list[Path]:
    """The example's inputs, each so many times under another name."""
    (place / "inputs").mkdir()
    shutil.copy(EXAMPLE / "fold.py", place)
    (place / "script.py").write_text(SCRIPT)
    for source in sorted((EXAMPLE / "inputs").glob("*.fasta")):
        for copy in range(copies):
            shutil.copy(source, place / "inputs" / f"{source.stem}-{copy}.fasta")
    return sorted((place / "inputs").glob("*.fasta"))


def _environment(env: Path) -> dict[str, str]:
    weights = str(env / "weights" / "AntiBERTy_md_smooth")
    own = {"ANTIBERTY_WEIGHTS_DIR": weights, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own, **dict.fromkeys(THREADS, "1")}


def _launched(place: Path, env: Path, way: str) -> Path:
    file = place / "jobs.yaml"
    file.write_text("jobs:" + COMMON.format(env=env.resolve()) + WAYS[way])
    command = [sys.executable, "-m", "gpulaunch", "run", str(file), "--simulate", "2"]
    subprocess.run(command, cwd=place, env=_environment(env), capture_output=True, check=True)
    return place / "gpulaunch-runs" / "latest" / "results"


Terminal = Callable[[Path, Path, list[tuple[Path, Path]]], list[str]]


def _terminals(place: Path, env: Path, files: list[Path], terminal: Terminal) -> Path:
    """Two at once, each with every other file."""
    results = Path(tempfile.mkdtemp(dir=place))
    both = []
    for card in range(2):
        pairs = [(file, results / f"fold-{file.stem}") for file in files[card::2]]
        for _, out in pairs:
            out.mkdir()
        environment = {**_environment(env), "CUDA_VISIBLE_DEVICES": str(card)}
        command = terminal(place, env.resolve(), pairs)
        both.append(
            subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.DEVNULL)
        )
    for process in both:
        assert process.wait() == 0
    return results


def _loop(place: Path, env: Path, pairs: list[tuple[Path, Path]]) -> list[str]:
    line = "{} fold --fasta {} --output {}/structure.pdb --num-models 1"
    lines = [line.format(env / "bin" / "igfold", file, out) for file, out in pairs]
    return ["bash", "-ec", "\n".join(lines)]


def _script(place: Path, env: Path, pairs: list[tuple[Path, Path]]) -> list[str]:
    words = [str(path) for pair in pairs for path in pair]
    return [str(env / "bin" / "python"), "script.py", *words]


def _digest(results: Path) -> str:
    found = sorted(results.glob("*/structure.pdb"))
    parts = [f"{path.parent.name} {sha256(path.read_bytes()).hexdigest()}" for path in found]
    return sha256("\n".join(parts).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", type=Path)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print(json.dumps(measure(given.quick, given.env, given.copies, given.rounds), indent=1))


if __name__ == "__main__":
    main()
