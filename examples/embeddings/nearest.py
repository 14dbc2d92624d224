"""For every sentence the one most like it, over the results of all batches.

nearest.py RESULTS OUT.tsv       also prints how often that one is of the same file
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(results: Path, out: Path) -> None:
    sentences: list[tuple[str, str]] = []
    vectors = []
    for file in sorted(results.glob("embed-*/*.npy"), key=lambda path: path.stem):
        vectors.append(np.load(file))
        lines = file.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
        sentences += [(file.stem, line) for line in lines]
    likeness = np.concatenate(vectors) @ np.concatenate(vectors).T
    np.fill_diagonal(likeness, -1)
    nearest = likeness.argmax(axis=1)
    with out.open("w", encoding="utf-8") as table:
        for i, (topic, sentence) in enumerate(sentences):
            other, said = sentences[nearest[i]]
            print(
                topic, sentence, other, said, f"{likeness[i, nearest[i]]:.2f}", sep="\t", file=table
            )
    same = sum(sentences[i][0] == sentences[j][0] for i, j in enumerate(nearest))
    print(f"{same} of {len(sentences)} sentences are nearest to one of their own file")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
