"""IgFold for `worker:`: the models are loaded once, then one file after the other is folded."""

from __future__ import annotations

from typing import Any

from igfold import IgFoldRunner


def load() -> IgFoldRunner:
    return IgFoldRunner(num_models=1)


def fold(igfold: IgFoldRunner, item: Any) -> None:
    igfold.fold(f"{item.out}/structure.pdb", fasta_file=item.path, do_refine=False, do_renum=False)
