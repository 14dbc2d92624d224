# run: python {name}
"""Numbers and words that are no cards."""

import pandas as pd
import sounddevice
import torch
from PIL import Image

sounddevice.InputStream(device=1)
frame = pd.DataFrame({"gpu": [1, 2], "device": ["phone", "tablet"], "devices": [1, 2]})
image = Image.new("RGB", (4, 4)).convert("L")
x = torch.zeros(3).to(torch.float16).to("cuda").to("cuda:0")
x.index_select(0, torch.tensor([1]))
port = 29500
region = "eu-gpu:1-large"
image_tag = "nvidia/cuda:12.4.1"
lr = {"cuda": 1}
gpus = 2
print(frame.loc[1], image, x, port, region, image_tag, lr, gpus)
