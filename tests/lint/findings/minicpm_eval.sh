#!/bin/bash
# run: bash {name}
# In the manner of MiniCPM-V's evaluation and fine-tuning scripts.
export PATH=/usr/local/cuda/bin:$PATH
export CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"
GPUS_PER_NODE=8
MASTER_PORT=6001
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes 1 \
    --master_port $MASTER_PORT
"
torchrun $DISTRIBUTED_ARGS finetune.py --bf16 true
torchrun --master_port 29501 --nproc_per_node=8 run.py --mode infer
CUDA_VISIBLE_DEVICES=0，1 swift infer --model_type minicpm-v
