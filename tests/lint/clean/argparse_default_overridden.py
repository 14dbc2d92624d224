# run: python {name} --device cuda:0 --gpu-id=0
"""Its default is the author's own card; the command line sets another."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:1")
parser.add_argument("--gpu-id", type=int, default=2)
args = parser.parse_args()
torch.zeros(1, device=args.device)
