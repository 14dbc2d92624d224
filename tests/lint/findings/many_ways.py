# run: python {name}
import argparse
from dataclasses import dataclass, field

import jax
import tensorflow as tf
import torch
import torch.distributed as dist
from torch import nn

GPU_ID = 2
WHERE = "cuda:1"
dev = torch.device(f"cuda:{GPU_ID}" if torch.cuda.is_available() else "cpu")
x = torch.zeros(1).cuda(1)
x = x.to(1)
x = x.to(WHERE)
x = x.to("cuda:" + str(1))
x = x.to("cuda:%d" % 3)
x = x.to("cuda:{}".format(1))
x = x.to(device=torch.device("cuda", 1))
x = torch.load("weights.pt", map_location="cuda:1")
torch.cuda.set_device("cuda:1")
with torch.cuda.device(1):
    y = torch.zeros(3, device="cuda:1", dtype=torch.float32)
net = nn.DataParallel(nn.Linear(1, 1), device_ids=[0, 1], output_device=1)
net = nn.DataParallel(nn.Linear(1, 1)).cuda()
with tf.device("/GPU:1"):
    z = tf.zeros(3)
w = jax.device_put(1.0, jax.devices("gpu")[1])
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=0, world_size=1)
config = {"device": "cuda:1", "gpu_id": 1, "lr": 1e-3}
for device in ["cuda:0", "cuda:1"]:
    print(device)
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:1")
parser.add_argument("--gpu-id", type=int, default=1)


@dataclass
class Settings:
    device: str = "cuda:1"
    teacher_device: str = field(default="cuda:2")


def load(path, device="cuda:1", *, device_map="auto"):
    return torch.load(path, map_location=device)


def get_device():
    return "cuda:1"
