# run: python {name}
"""Says what it sees; os.environ["CUDA_VISIBLE_DEVICES"] = "1" would be wrong here."""

import logging
import os
import subprocess

import torch

log = logging.getLogger(__name__)
mask = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
print(f"CUDA_VISIBLE_DEVICES={mask}", torch.cuda.device_count())
log.info("running on cuda:1 is not possible here, only on %s", "cuda:0")
print("cuda:1")
assert os.environ["CUDA_VISIBLE_DEVICES"] != "", "no card: set gpus: 1"
number_of_cards = len(mask.split(","))
subprocess.run(["nvidia-smi", "-L"], check=False)
subprocess.run("echo $CUDA_VISIBLE_DEVICES", shell=True, check=False)
info = {"CUDA_VISIBLE_DEVICES": mask, "host": os.uname().nodename}
