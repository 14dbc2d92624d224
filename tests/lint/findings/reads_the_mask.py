# gpus: 2
# run: python {name}
import os

import torch

card = int(os.environ["CUDA_VISIBLE_DEVICES"])
torch.cuda.set_device(int(os.environ.get("CUDA_VISIBLE_DEVICES", "0")))
device = torch.device(f"cuda:{os.environ['CUDA_VISIBLE_DEVICES']}")
