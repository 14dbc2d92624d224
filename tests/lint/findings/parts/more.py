from . import model
from .model import build


def helper(device="cuda:1"):
    return build().cuda(1)
