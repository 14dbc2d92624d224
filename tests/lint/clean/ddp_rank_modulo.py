# gpus: 2
# run: torchrun --nproc_per_node=2 {name}
import os

import torch
import torch.distributed as dist

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29500")
rank = int(os.environ.get("RANK", 0))
device = rank % torch.cuda.device_count()
torch.cuda.set_device(device)
dist.init_process_group(
    backend="nccl", init_method="env://", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
)
x = torch.ones(1).cuda(device)
dist.all_reduce(x)
print(f"rank {rank} on cuda:{device}: {x.item()}")
