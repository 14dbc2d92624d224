# gpus: 2
# run: torchrun --nproc-per-node 2 {name}
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
device = torch.device(f"cuda:{local_rank}")
model = torch.nn.Linear(10, 10).to(device)
model = DistributedDataParallel(model, device_ids=[local_rank], output_device=local_rank)
for step in range(10):
    loss = model(torch.randn(4, 10, device=device)).sum()
    loss.backward()
dist.destroy_process_group()
