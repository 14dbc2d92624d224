# run: python {name} --device cuda:0 --gpu 0 input.pdb
import argparse

import torch

parser = argparse.ArgumentParser(description="Score a structure. Example: --device cuda:1")
parser.add_argument("input")
parser.add_argument(
    "--device",
    default="cuda:0" if torch.cuda.is_available() else "cpu",
    help="cpu, cuda, cuda:1 ...",
)
parser.add_argument("--gpu", type=int, default=0, choices=[0, 1, 2, 3], help="which card")
parser.add_argument("--backend", choices=["cpu", "cuda:0", "cuda:1"], default="cpu")
args = parser.parse_args()
device = torch.device(args.device)
if args.device == "cuda:1":
    print("the second card was asked for")
model = torch.nn.Linear(3, 3).to(device)
torch.cuda.set_device(args.gpu)
