# run: python {name}
import pytorch_lightning as pl
from openmm import Platform
from vllm import LLM

pl.Trainer(accelerator="gpu", devices=4, strategy="ddp")
pl.Trainer(accelerator="gpu", devices=[1])
pl.Trainer(gpus=2)
LLM("facebook/opt-125m", tensor_parallel_size=2)
Platform.getPlatformByName("CUDA").setPropertyDefaultValue("DeviceIndex", "1")
properties = {"CudaDeviceIndex": "0,1"}
