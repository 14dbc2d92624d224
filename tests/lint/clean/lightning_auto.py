# run: python {name} trainer.max_epochs=3
import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x.flatten(1)), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


trainer = L.Trainer(accelerator="auto", devices=1, max_epochs=3)
trainer.fit(Net())
L.Trainer(accelerator="gpu", devices="auto")
L.Trainer(accelerator="cpu", devices=4)
L.Trainer(accelerator="gpu", devices=-1, strategy="ddp")
