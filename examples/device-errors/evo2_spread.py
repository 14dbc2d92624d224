"""Evo2 with Vortex (evo2#73): a framework that spreads its layers over every card it sees, by
torch.cuda.device_count(), and a user who sends all of it to cuda:3.

    evo2_spread.py [--device CARD]

The blocks move; the framework's own notes of where they are do not.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.mix = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.scale * x)


class Spread(nn.Module):
    """As many blocks on each card as on the next; an activation moves where the card changes."""

    def __init__(self, blocks: int = 8, width: int = 16) -> None:
        super().__init__()
        cards = torch.cuda.device_count()
        self.card_of = [f"cuda:{n * cards // blocks}" for n in range(blocks)]
        self.embed = nn.Embedding(512, width).to("cuda:0")
        self.blocks = nn.ModuleList(Block(width).to(card) for card in self.card_of)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        card = self.card_of[0]
        for block, its_card in zip(self.blocks, self.card_of, strict=True):
            if its_card != card:
                x = x.to(its_card)
                card = its_card
            x = block(x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:3")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    model = Spread().to(device)
    ids = torch.tensor([list(b"ACGT")]).to(device)
    with torch.inference_mode():
        logits = model(ids)
    print(f"computed on {logits.device}: mean {logits.mean().item():.4f}")


if __name__ == "__main__":
    main()
