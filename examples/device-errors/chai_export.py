"""Writes a program as Chai-Lab's are distributed: exported, with a card's name baked in.

    chai_export.py PROGRAM.pt2 CARD

It is exported on the CPU, and the device records of the file are rewritten to CARD, since this
machine need not have that card.
"""

from __future__ import annotations

import io
import sys
import zipfile

import torch


class Trunk(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        position = torch.arange(tokens.shape[0], device=tokens.device)  # the device is baked in
        return (self.embed(tokens) * position[:, None]).mean(dim=0)


def main(path: str, card: str) -> None:
    kind, index = card.split(":")
    torch.manual_seed(0)
    exported = io.BytesIO()
    torch.export.save(torch.export.export(Trunk(), (torch.arange(5),)), exported)
    with zipfile.ZipFile(exported) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith(".json"):
                there = f'{{"type": "{kind}", "index": {index}}}'.encode()
                content = content.replace(b'{"type": "cpu", "index": null}', there)
            target.writestr(name, content)
    print(f"{path}: exported for {card}")


if __name__ == "__main__":
    main(*sys.argv[1:])
