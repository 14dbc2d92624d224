"""privateGPT (private-gpt#1390): the language model takes every card and changes which one is
current; the embedding model is on the card that was current when it was loaded, its input on the
one that is current now.
"""

from __future__ import annotations

import torch
from torch import nn


class Llama:
    """As llama.cpp: a slice of the model on every card, and afterwards another card is current."""

    def __init__(self) -> None:
        self.slices = []
        for card in range(torch.cuda.device_count()):
            torch.cuda.set_device(card)
            self.slices.append(torch.ones(8, 8, device="cuda"))

    def answer(self) -> None:
        for card in reversed(range(len(self.slices))):
            torch.cuda.set_device(card)


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(256, 8)

    def encode(self, text: str) -> torch.Tensor:
        tokens = torch.tensor(list(text.encode())).to("cuda")
        return self.words(tokens).mean(dim=0)


def main() -> None:
    torch.manual_seed(0)
    llama = Llama()
    embedder = Embedder().to("cuda")
    llama.answer()  # a chat works; the first query of documents does not
    with torch.inference_mode():
        vector = embedder.encode("What is in my documents?")
    print(f"computed on {vector.device}: norm {vector.norm().item():.4f}")


if __name__ == "__main__":
    main()
