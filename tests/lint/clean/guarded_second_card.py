# run: python {name}
"""Uses a second card where there is one."""

import sys

import torch
from torch import nn

model = nn.Linear(4, 4)
if torch.cuda.device_count() > 1:
    teacher_device = "cuda:1"
    model = nn.DataParallel(model, device_ids=[0, 1])
else:
    teacher_device = "cuda:0"
n_gpus = torch.cuda.device_count()
student = "cuda:1" if n_gpus > 1 else "cuda:0"


def two_cards():
    if torch.cuda.device_count() < 2:
        return None
    return torch.zeros(1).to("cuda:1")


def needs_two():
    if n_gpus < 2:
        sys.exit("needs two cards")
    torch.cuda.set_device(1)


for i in range(torch.cuda.device_count()):
    print(i, torch.cuda.get_device_name(i), torch.cuda.mem_get_info(i))
two_cards()
