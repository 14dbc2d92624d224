# gpus: 0
# run: python {name}
# In the manner of vortex: layers shared out over as many cards as are seen.
import torch
from torch import nn

num_gpus = torch.cuda.device_count()
layers = 32
per_gpu = layers // num_gpus
blocks = nn.ModuleList(nn.Linear(4, 4).to(f"cuda:{layer // per_gpu}") for layer in range(layers))
