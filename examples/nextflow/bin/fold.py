#!/usr/bin/env python3
"""Stands for a model that folds: reads a FASTA file, writes a little about it, and on which card.

Put yours in its place. It finds its card as cuda:0, whichever that is.
"""

import json
import os
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
sequence = "".join(source.read_text(encoding="utf-8").split("\n")[1:])
print(f"{source.stem}: {len(sequence)} residues", file=sys.stderr)
card = os.environ["GPULAUNCH_GPU_UUID"]
target.write_text(json.dumps({"name": source.stem, "length": len(sequence), "card": card}))
