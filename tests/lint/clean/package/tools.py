import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if __name__ == "__main__":
    # Only when this file itself is run, on the author's own machine.
    torch.cuda.set_device(1)
    print(torch.zeros(1).to("cuda:1"))
