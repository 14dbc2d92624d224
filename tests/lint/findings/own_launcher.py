# run: python {name}
# A launcher inside the launcher.
import os
import subprocess
import sys

import torch
import torch.multiprocessing as mp

os.environ["CUDA_VISIBLE_DEVICES"] = str(len(sys.argv))
for gpu in range(4):
    os.system(f"CUDA_VISIBLE_DEVICES={gpu} python train.py --fold {gpu}")
    subprocess.Popen(["python", "train.py"], env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)})
    subprocess.run(["docker", "run", "--gpus", "all", "image"], check=True)
del os.environ["CUDA_VISIBLE_DEVICES"]
os.environ.update({"CUDA_VISIBLE_DEVICES": "0", "MASTER_PORT": "12355"})
os.environ.update(CUDA_VISIBLE_DEVICES="1")
os.putenv("CUDA_VISIBLE_DEVICES", "2")
