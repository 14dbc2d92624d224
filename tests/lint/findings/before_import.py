# run: python {name}
import os

os.environ["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"

import torch

print(torch.cuda.device_count())
