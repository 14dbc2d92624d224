# run: python {name}
import os

import torch

torch.cuda.set_device(1)  # gpulaunch: ok
# gpulaunch: ok device-index
model = torch.nn.Linear(1, 1).to("cuda:1")
os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # gpulaunch: ok late-mask, own-mask
torch.nn.DataParallel(
    model,
    dim=0,
)  # gpulaunch: ok spread
