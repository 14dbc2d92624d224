"""Minimises the energy of a protein structure with OpenMM; writes minimised.pdb and energy.json.

minimise.py STRUCTURE.pdb OUT_DIR [--design FOLDER] [--steps N]

Missing side chains and hydrogens are built first (PDBFixer), so a backbone alone will do: what
IgFold predicts. With --design, FOLDER is ProteinMPNN's output; its best sequence is threaded onto
the backbone before. Energies are in kJ/mol, with the Amber ff14SB force field, without solvent: a
clean-up of clashes, not a free energy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BACKBONE = ("N", "CA", "C", "O")
AMINO_ACIDS = (
    "A ALA, R ARG, N ASN, D ASP, C CYS, Q GLN, E GLU, G GLY, H HIS, I ILE, "
    "L LEU, K LYS, M MET, F PHE, P PRO, S SER, T THR, W TRP, Y TYR, V VAL"
)
THREE_LETTERS = {pair[0]: pair[2:] for pair in AMINO_ACIDS.split(", ")}


@dataclass(frozen=True)
class Design:
    """One designed sequence, chains in the order of the structure's chain letters."""

    score: float
    recovery: float
    chains: tuple[str, ...]


def designs(folder: Path) -> Iterator[Design]:
    """The sequences of ProteinMPNN's only FASTA file; its first record is the native sequence."""
    (fasta,) = folder.glob("seqs/*.fa")
    lines = fasta.read_text().splitlines()
    for header, sequence in list(zip(lines[::2], lines[1::2], strict=True))[1:]:
        said = dict(re.findall(r"(\w+)=([\d.]+)", header))
        yield Design(float(said["score"]), float(said["seq_recovery"]), tuple(sequence.split("/")))


def thread(structure: str, design: Design) -> str:
    """PDB text of the backbone, its residues renamed to the designed sequence."""
    chains = sorted({line[21] for line in structure.splitlines() if line.startswith("ATOM")})
    wanted = {chain: iter(letters) for chain, letters in zip(chains, design.chains, strict=True)}
    lines, last, name = [], "", ""
    for line in structure.splitlines():
        if not line.startswith("ATOM"):
            continue
        if (residue := line[21:27]) != last:
            last, name = residue, THREE_LETTERS[next(wanted[line[21]])]
        if line[12:16].strip() in BACKBONE:
            lines.append(f"{line[:17]}{name}{line[20:]}")
    if any(next(rest, None) for rest in wanted.values()):
        raise SystemExit("the design is longer than the structure")
    return "\n".join([*lines, "END", ""])


def minimise(pdb: Path, to: Path, steps: int) -> dict[str, float | int | str]:
    from openmm import VerletIntegrator, app, unit
    from pdbfixer import PDBFixer

    fixer = PDBFixer(filename=str(pdb))
    fixer.missingResidues = {}  # gaps in a crystal structure stay gaps
    fixer.findNonstandardResidues()
    fixer.replaceNonstandardResidues()
    fixer.removeHeterogens(keepWater=False)
    fixer.findMissingAtoms()
    fixer.addMissingAtoms(seed=1)
    fixer.addMissingHydrogens(7.0)
    field = app.ForceField("amber14/protein.ff14SB.xml")
    system = field.createSystem(fixer.topology, nonbondedMethod=app.CutoffNonPeriodic)
    simulation = app.Simulation(fixer.topology, system, VerletIntegrator(0.001))
    simulation.context.setPositions(fixer.positions)

    def energy() -> float:
        state = simulation.context.getState(getEnergy=True)
        return round(state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole), 1)

    before = energy()
    simulation.minimizeEnergy(maxIterations=steps)
    state = simulation.context.getState(getPositions=True)
    with to.open("w") as file:
        app.PDBFile.writeFile(fixer.topology, state.getPositions(), file, keepIds=True)
    return {
        "atoms": fixer.topology.getNumAtoms(),
        "residues": fixer.topology.getNumResidues(),
        "before": before,
        "after": energy(),
        "platform": simulation.context.getPlatform().getName(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("structure", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--design", type=Path)
    parser.add_argument("--steps", type=int, default=200, help="most iterations (200)")
    args = parser.parse_args()

    started = time.monotonic()
    result: dict[str, float | int | str | None] = {"structure": args.structure.stem}
    structure = args.structure
    if args.design:
        best = min(designs(args.design), key=lambda design: design.score)
        result |= {"sequence": "/".join(best.chains)}
        result |= {"score": best.score, "recovery": best.recovery}
        structure = args.out / "threaded.pdb"
        structure.write_text(thread(args.structure.read_text(), best))
    result |= minimise(structure, args.out / "minimised.pdb", args.steps)
    result["seconds"] = round(time.monotonic() - started, 1)
    result["card"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    (args.out / "energy.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['before']} -> {result['after']} kJ/mol, {result['atoms']} atoms", flush=True)


if __name__ == "__main__":
    main()
