#!/bin/bash
# run: bash {name}
export ACCELERATE_MIXED_PRECISION=bf16
accelerate launch --num_processes 1 --num_machines 1 --mixed_precision bf16 hf_trainer.py --output_dir out
accelerate launch --config_file single.yaml hf_trainer.py --output_dir out
torchrun --standalone --nproc-per-node=1 hf_trainer.py --output_dir out
torchrun --nproc_per_node=gpu hf_trainer.py --output_dir out
deepspeed hf_trainer.py --deepspeed ds_config.json --output_dir out
CUDA_LAUNCH_BLOCKING=1 python hf_trainer.py --output_dir out --dataloader_num_workers 4
