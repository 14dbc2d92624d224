#!/bin/bash
# run: bash {name}
set -e
deepspeed --include localhost:1 train.py
deepspeed --num_gpus=1 train.py
accelerate launch --num_processes=1 --gpu_ids='7' --main_process_port 29601 train.py
accelerate launch --multi_gpu --num_processes 4 train.py
python -m torch.distributed.launch --nproc_per_node=4 --master_port 2022 train.py
torchrun --nnodes=1 --rdzv_endpoint=localhost:29400 train.py
python train.py --gpu 3 trainer.devices=4 model.device=cuda:2
unset CUDA_VISIBLE_DEVICES
sbatch job.sh
gmx mdrun -gpu_id 1
