"""Chai-Lab (chai-lab#63): programs of torch.export, in which a card's name is baked in.

    chai_exported.py PROGRAM.pt2 [--device CARD] [--helper]

`.module().to(device)` moves the weights and not the devices inside the graph; and a program that
was exported on a card which is not here cannot even be loaded. With --helper, it is loaded onto
this card wherever it was exported.
"""

from __future__ import annotations

import argparse

import torch


def load(path: str, device: str) -> torch.nn.Module:
    return torch.export.load(path).module().to(device)


def load_with_helper(path: str, device: str) -> torch.nn.Module:
    from gpulaunch.torch import load_exported  # pip install 'gpulaunch[torch]'

    return load_exported(path, device).module()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--helper", action="store_true")
    args = parser.parse_args()
    trunk = (load_with_helper if args.helper else load)(args.program, args.device)
    with torch.inference_mode():
        out = trunk(torch.arange(5).to(args.device))
    print(f"computed on {out.device}: {[round(number, 4) for number in out.tolist()]}")


if __name__ == "__main__":
    main()
