"""A small model with what people get wrong, on whatever device, without any computing at its birth.

No gradients: a build of torch for CUDA cannot make autograd nodes of pretend cards.
"""

from __future__ import annotations

from typing import Any

import torch


class Linear(torch.nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        weight = torch.ones(4, 4, device=device)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight)


class Attention(torch.nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.projection = Linear(device)
        self.mask = torch.ones(4)  # stays on the CPU, whatever .to() is called
        self.register_buffer("bias", torch.ones(4, device=device))

    def forward(self, x: Any, how: str) -> Any:
        y = self.projection(x)
        if how == "attribute":
            return y + self.mask
        if how == "factory":
            places = torch.arange(4)
            return y + places
        if how == "attention":
            keys = torch.ones(2, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(y.unsqueeze(1), keys, keys)
        if how == "wrong shape":
            return y + torch.ones(3, device=y.device)
        return y + self.bias


class Net(torch.nn.Module):
    def __init__(self, device: str, layers: int = 2) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention(device) for _ in range(layers))

    def forward(self, x: Any, how: str = "") -> Any:
        for layer in self.layers:
            x = layer(x, how)
        return x
