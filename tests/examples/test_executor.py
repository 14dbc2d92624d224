"""The example of GpuExecutor does what its first lines say."""

from __future__ import annotations

import re

from tests.examples.helpers import EXAMPLES
from tests.executor import script


def test_every_mutant_is_scored_by_somebody() -> None:
    file = EXAMPLES / "executor/scan.py"
    fasta = EXAMPLES / "antibodies/inputs/caplacizumab.fasta"
    out, err, status = script.executed(file, fasta, "--simulate", "2")
    assert (status, err) == (0, "")
    counts = re.findall(r"card \d: (\d+) mutants", out)
    (total,) = re.findall(r"best of (\d+): [A-Z]\d+[A-Z]", out)
    assert sum(map(int, counts)) == int(total) == 19 * 128
