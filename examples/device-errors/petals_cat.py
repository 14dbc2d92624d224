"""Petals (petals#575): a cache that was made without a device meets keys on the card in torch.cat.

    petals_cat.py [--mended]

No mask mends that: with one card or eight, the cache is on the CPU.
"""

from __future__ import annotations

import sys

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        keys = self.key(hidden)
        return torch.cat([past, keys], dim=1)


def main() -> None:
    torch.manual_seed(0)
    block = Attention().to("cuda:0")
    hidden = torch.ones(1, 1, 8, device="cuda:0")
    if "--mended" in sys.argv:
        past = torch.zeros(1, 4, 8, device=hidden.device)
    else:
        past = torch.zeros(1, 4, 8)
    with torch.inference_mode():
        keys = block(hidden, past)
    print(f"computed on {keys.device}: {keys.shape[1]} keys")


if __name__ == "__main__":
    main()
