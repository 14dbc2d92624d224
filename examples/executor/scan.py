"""Scores every single mutant of a protein, on all cards, with a model that each card loads once.

    python examples/executor/scan.py examples/antibodies/inputs/caplacizumab.fasta --simulate 2

The model is a table of hydropathies (Kyte and Doolittle, 1982), so that this runs anywhere: put
the loading of yours into `load`, onto `cuda:0`, and its call into `score`. There is no
`if __name__ == "__main__"`, and none is needed; in a notebook it is the same.
"""

import argparse
import os
from collections import Counter
from pathlib import Path

from gpulaunch import GpuExecutor

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
HYDROPATHY = (1.8, 2.5, -3.5, -3.5, 2.8, -0.4, -3.2, 4.5, -3.9, 3.8,
              1.9, -3.5, -1.6, -3.5, -4.5, -0.8, -0.7, 4.2, -0.9, -1.3)  # fmt: skip

model = None


def load():
    """Once in each worker. What is global here stays there for every call."""
    global model  # noqa: PLW0603
    model = dict(zip(AMINO_ACIDS, HYDROPATHY, strict=True))


def score(position, letter):
    """One mutant: its mean hydropathy, and the card that it was scored on."""
    mutant = sequence[:position] + letter + sequence[position + 1 :]
    return sum(model[acid] for acid in mutant) / len(mutant), os.environ["GPULAUNCH_GPU_INDEX"]


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("fasta", type=Path)
parser.add_argument("--gpus", default="all")
parser.add_argument("--simulate", type=int, metavar="N", help="N pretend cards")
arguments = parser.parse_args()
first = arguments.fasta.read_text(encoding="utf-8").split(">")[1]
sequence = "".join(first.split("\n")[1:])
places, letters = zip(
    *((n, x) for n in range(len(sequence)) for x in AMINO_ACIDS if x != sequence[n]), strict=True
)

with GpuExecutor(arguments.gpus, simulate=arguments.simulate, initializer=load) as executor:
    scores = list(executor.map(score, places, letters, chunksize=100))

best = max(range(len(scores)), key=scores.__getitem__)
for card, count in sorted(Counter(card for _, card in scores).items()):
    print(f"card {card}: {count} mutants")
print(f"best of {len(scores)}: {sequence[places[best]]}{places[best] + 1}{letters[best]}")
