"""MiniCPM-V (MiniCPM-V#100, #424): device_map="auto" puts the parts of a model on every card that
it sees, and the model's own code then joins what two of them made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Chat(nn.Module):
    """A language model that is given an image's features in place of some of its tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.llm = nn.Linear(width, width)
        self.vision = nn.Linear(12, width)
        self.resampler = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        embeds = self.embed(tokens)
        features = self.resampler(self.vision(image))
        places = torch.arange(len(features), device=embeds.device)[:, None]
        embeds.scatter_(0, places.expand_as(features), features)
        return self.llm(embeds)


def dispatch(model: nn.Module, device_map: str) -> None:
    """As Accelerate does: each part on a card, and hooks that bring its inputs there."""
    if device_map != "auto":
        model.to(device_map)
        return
    parts = list(model.children())
    for n, part in enumerate(parts):
        card = f"cuda:{n * torch.cuda.device_count() // len(parts)}"
        part.to(card).register_forward_pre_hook(bringing(card))
        print(f"{type(part).__name__} -> {card}")


def bringing(card: str) -> Any:
    return lambda module, inputs: tuple(given.to(card) for given in inputs)


def main() -> None:
    torch.manual_seed(0)
    model = Chat()
    dispatch(model, device_map="auto")
    with torch.inference_mode():
        out = model(torch.arange(6), torch.ones(2, 12))
    print(f"computed on {out.device}: mean {out.mean().item():.4f}")


if __name__ == "__main__":
    main()
