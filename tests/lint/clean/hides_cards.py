# gpus: 0
# run: python {name}
"""Preprocessing that must not touch a card."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import subprocess

import numpy as np
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
workers = max(1, torch.cuda.device_count())
shard = 7 % workers
if torch.cuda.is_available():
    shard = 7 % torch.cuda.device_count()
subprocess.run(
    ["tar", "xf", "data.tar"], env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, check=False
)
np.save("features.npy", torch.ones(3, device=device).cpu().numpy())
