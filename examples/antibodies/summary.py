"""One line per antibody: how sure IgFold was, how ProteinMPNN's best sequence fared, energies.

summary.py RESULTS     RESULTS is the run's results directory; a table on standard output
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean


def predicted_rmsd(pdb: Path) -> float:
    """IgFold's own error estimate in Angstrom, mean over residues: the B-factor of each CA."""
    lines = pdb.read_text().splitlines()
    return fmean(float(line[60:66]) for line in lines if line[12:16] == " CA ")


def main(results: Path) -> None:
    print("antibody", "residues", "rmsd_A", "recovery", "score", "before_kJ", "after_kJ", sep="\t")
    for fold in sorted(results.glob("fold-*")):
        name = fold.name.removeprefix("fold-")
        energies = results / f"relax-{name}" / "energy.json"
        rmsd = f"{predicted_rmsd(fold / 'structure.pdb'):.2f}"
        if not energies.exists():
            print(name, "-", rmsd, "no energies", sep="	")
            continue
        told = json.loads(energies.read_text())
        columns = [told[key] for key in ("recovery", "score", "before", "after")]
        print(name, told["residues"], rmsd, *columns, sep="\t")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
