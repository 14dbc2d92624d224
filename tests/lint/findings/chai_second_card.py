# run: python {name} {{{{out}}}}
# In the manner of chai-lab#63: the author's script, with the card changed by hand.
import sys
from pathlib import Path

import torch
from chai_lab.chai1 import run_inference

fasta = Path("/tmp/example.fasta")
fasta.write_text(">protein|name=short\nAIQRTPKIQVYSRHPAENG\n")
run_inference(
    fasta_file=fasta,
    output_dir=Path(sys.argv[1]),
    num_trunk_recycles=3,
    seed=42,
    device=torch.device("cuda:1"),
    use_esm_embeddings=True,
)
