# run: python {name}
import torch

DEBUG = False
if False:
    torch.cuda.set_device(1)
if 0:
    device = "cuda:1"
# model.to("cuda:1")
# os.environ["CUDA_VISIBLE_DEVICES"] = "1"
if not True:
    torch.zeros(1).cuda(1)
"""
model.cuda(1)
"""
while True:
    break
x = torch.zeros(1, device="cuda")
