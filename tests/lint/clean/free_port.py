# run: python {name}
import os
import random
import socket

import torch.distributed as dist


def free_port():
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]


os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = str(free_port())
dist.init_process_group("gloo", rank=0, world_size=1)
dist.destroy_process_group()
os.environ["MASTER_PORT"] = str(random.randint(20000, 30000))
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
if not os.environ.get("MASTER_PORT"):
    os.environ["MASTER_PORT"] = "29500"
