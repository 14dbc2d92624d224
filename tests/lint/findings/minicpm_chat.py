# run: python {name} --multi-gpus
# In the manner of MiniCPM-V's demos (and of #839, where the device was changed by hand).
import argparse

import torch
from accelerate import infer_auto_device_map, load_checkpoint_and_dispatch
from transformers import AutoModel

parser = argparse.ArgumentParser()
parser.add_argument("--multi-gpus", action="store_true")
args = parser.parse_args()


class Server:
    def __init__(self):
        self.device = "cuda:1"
        self.model = AutoModel.from_pretrained("openbmb/MiniCPM-V-2_6", device_map="auto").to(
            self.device
        )


if args.multi_gpus:
    model = AutoModel.from_pretrained("openbmb/MiniCPM-V-2_6")
    device_map = infer_auto_device_map(model, max_memory={0: "10GB", 1: "10GB"})
    model = load_checkpoint_and_dispatch(model, "x", device_map=device_map)
Server()
