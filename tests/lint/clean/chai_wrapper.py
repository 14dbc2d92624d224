# run: python {name} {{{{out}}}}
"""Fold every record of a FASTA file with Chai-1, one output folder each."""

import sys
from pathlib import Path

import torch
from chai_lab.chai1 import run_inference

out = Path(sys.argv[1])
for fasta in sorted(Path("inputs").glob("*.fasta")):
    candidates = run_inference(
        fasta_file=fasta,
        output_dir=out / fasta.stem,
        num_trunk_recycles=3,
        num_diffn_timesteps=200,
        seed=42,
        device=torch.device("cuda:0"),
        use_esm_embeddings=True,
    )
    print(fasta.name, [score.aggregate_score.item() for score in candidates.ranking_data])
