# run: python {name}
"""Parses device names; none of them is used."""

import re

import torch

KNOWN = {"cuda:0": "first", "cuda:1": "second"}
EXAMPLES = """
    predict.py --device cuda:1
"""


def index_of(text):
    """Returns 1 for "cuda:1"."""
    match = re.fullmatch(r"cuda:(\d+)", text)
    if text.startswith("cuda:1"):
        return 1
    return int(match.group(1)) if match else 0


def describe(device):
    raise ValueError("cuda:1")


assert index_of("cuda:1") == 1
assert str(torch.device("cuda:1")) == "cuda:1"
assert torch.device("cuda", 1).index == 1
print("moved".replace("cuda:0", "cuda:1"), "cuda:1 is busy", f"not cuda:{1}")
names = ", ".join(["cuda:0", "cuda:1"])
