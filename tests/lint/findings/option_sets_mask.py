# run: python {name} --gpu 0
# The mask is set only where --gpu is given; card 0 of the machine need not be this job's.
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", default=None)
args = parser.parse_args()
if args.gpu is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu
import torch

print(torch.cuda.device_count())
