# gpus: 2
# run: python {name}
"""One child per card of the job, each with its own part of the job's mask."""

import os
import subprocess
import sys

import torch

cards = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
children = []
for number, card in enumerate(cards):
    env = os.environ.copy()
    env["CUDA_VISIBLE_DEVICES"] = card
    children.append(subprocess.Popen([sys.executable, "child.py", str(number)], env=env))
for child in children:
    child.wait()
saved = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
if saved is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = saved
if "CUDA_VISIBLE_DEVICES" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
print(torch.cuda.device_count())
