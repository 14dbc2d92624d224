"""Real programs on two pretend cards: IgFold, ProteinMPNN and OpenMM, item by item, end to end.

Runs when GPULAUNCH_TEST_REAL=1. The examples' first job installs what they need (a minute, 1.6 GB)
unless it is there; nothing else asks the network.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.examples.helpers import EXAMPLES, gpulaunch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        os.environ.get("GPULAUNCH_TEST_REAL") != "1", reason="GPULAUNCH_TEST_REAL is not 1"
    ),
]
ANTIBODIES = EXAMPLES / "antibodies"
NAMES = sorted(path.stem for path in (ANTIBODIES / "inputs").glob("*.fasta"))
AMINO_ACIDS = (
    "A ALA, R ARG, N ASN, D ASP, C CYS, Q GLN, E GLU, G GLY, H HIS, I ILE, "
    "L LEU, K LYS, M MET, F PHE, P PRO, S SER, T THR, W TRP, Y TYR, V VAL"
)
LETTERS = {pair[2:]: pair[0] for pair in AMINO_ACIDS.split(", ")}


def run(jobs: Path, tmp: Path) -> Path:
    """The run's directory, once it has succeeded."""
    done = gpulaunch("run", jobs, "--simulate", "2", "--quiet", cwd=tmp, timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    return tmp / "gpulaunch-runs/latest"


def status(run: Path) -> dict[str, Any]:
    done = gpulaunch("status", run, "--json", cwd=run)
    assert done.returncode == 0, done.stderr
    return {job["name"]: job for job in json.loads(done.stdout)["jobs"]}


@pytest.fixture(scope="module")
def antibodies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(ANTIBODIES / "jobs.yaml", tmp_path_factory.mktemp("antibodies"))


def sequences(name: str) -> dict[str, str]:
    """The input's chains: {"H": ..., "L": ...}."""
    lines = (ANTIBODIES / "inputs" / f"{name}.fasta").read_text().splitlines()
    return {head.split(":")[1]: text for head, text in zip(lines[::2], lines[1::2], strict=True)}


def residues(pdb: Path) -> Iterator[tuple[str, str, dict[str, tuple[float, float, float]]]]:
    """Chain, one-letter name and atoms of each residue, in the file's order."""
    atoms = [line for line in pdb.read_text().splitlines() if line.startswith("ATOM")]
    for _, lines in groupby(atoms, lambda line: line[17:27]):
        found = list(lines)
        places = {
            line[12:16].strip(): (float(line[30:38]), float(line[38:46]), float(line[46:54]))
            for line in found
        }
        yield found[0][21], LETTERS[found[0][17:20]], places


@pytest.mark.parametrize("name", NAMES)
def test_each_fold_has_the_backbone_of_every_residue_of_its_sequence(
    antibodies: Path, name: str
) -> None:
    found = list(residues(antibodies / f"results/fold-{name}/structure.pdb"))
    for chain, sequence in sequences(name).items():
        assert "".join(letter for at, letter, _ in found if at == chain) == sequence
    for _, _, atoms in found:
        assert {"N", "CA", "C", "O"} <= set(atoms)
    for (chain, _, left), (other, _, right) in pairwise(found):
        if chain == other:
            # 3.8 Angstrom, 2.9 across a cis bond
            assert 2.7 < math.dist(left["CA"], right["CA"]) < 4.5


@pytest.mark.parametrize("name", NAMES)
def test_each_design_has_the_length_of_its_antibody_and_another_sequence(
    antibodies: Path, name: str
) -> None:
    lines = (antibodies / f"results/design-{name}/seqs/structure.fa").read_text().splitlines()
    native, *designs = [line.split("/") for line in lines[1::2]]
    assert native == list(sequences(name).values())
    assert len(designs) == 4
    for design in designs:
        assert [len(chain) for chain in design] == [len(chain) for chain in native]
        assert design != native


@pytest.mark.parametrize("name", NAMES)
def test_each_relaxed_design_is_the_best_one_with_all_its_atoms_and_less_energy(
    antibodies: Path, name: str
) -> None:
    told = json.loads((antibodies / f"results/relax-{name}/energy.json").read_text())
    assert told["after"] < 0.5 * told["before"]
    found = list(residues(antibodies / f"results/relax-{name}/minimised.pdb"))
    assert "".join(letter for _, letter, _ in found) == told["sequence"].replace("/", "")
    assert sum(len(atoms) for _, _, atoms in found) == told["atoms"]
    lines = (antibodies / f"results/design-{name}/seqs/structure.fa").read_text().splitlines()
    scores = [float(head.split("score=")[1].split(",")[0]) for head in lines[2::2]]
    assert told["score"] == min(scores)


def test_every_attempt_had_exactly_the_card_that_the_run_recorded(antibodies: Path) -> None:
    jobs = status(antibodies)
    assert {job["state"] for job in jobs.values()} == {"succeeded"}
    used = set()
    for name in NAMES:
        for step in ("fold", "design", "relax"):
            (attempt,) = jobs[f"{step}-{name}"]["attempts"]
            (card,) = attempt["gpus"]
            used.add(card["index"])
        told = json.loads((antibodies / f"results/relax-{name}/energy.json").read_text())
        assert told["card"] == str(card["index"])
    assert used == {0, 1}
    assert jobs["summary"]["attempts"][0]["gpus"] == []


def test_the_summary_has_a_line_for_each_antibody(antibodies: Path) -> None:
    head, *lines = (antibodies / "results/summary/summary.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == NAMES
    for line in lines:
        row = dict(zip(head.split("\t"), line.split("\t"), strict=True))
        assert 0 < float(row["rmsd_A"]) < 2
        assert 0.2 < float(row["recovery"]) < 0.9


def test_the_crystals_lose_energy_and_keep_their_residues(tmp_path: Path) -> None:
    done = run(ANTIBODIES / "crystals.yaml", tmp_path)
    for name, length in (("1ejg", 46), ("1ubi", 76)):
        told = json.loads((done / f"results/minimise-{name}/energy.json").read_text())
        assert told["after"] < told["before"]
        assert told["residues"] == length
        assert told["card"] in ("0", "1")
        assert len(list(residues(done / f"results/minimise-{name}/minimised.pdb"))) == length
