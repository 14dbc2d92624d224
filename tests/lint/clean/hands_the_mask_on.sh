#!/bin/bash
# gpus: 2
# run: bash {name}
gpu_list="${CUDA_VISIBLE_DEVICES:-0}"
IFS=',' read -ra GPULIST <<< "$gpu_list"
CHUNKS=${#GPULIST[@]}
for IDX in $(seq 0 $((CHUNKS-1))); do
    CUDA_VISIBLE_DEVICES=${GPULIST[$IDX]} python -m llava.eval.model_vqa --num-chunks $CHUNKS --chunk-idx $IDX &
done
wait  # gpulaunch: ok hidden-status
if [ -z "$MASTER_PORT" ]; then
    export MASTER_PORT=29500
fi
export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
torchrun --nproc-per-node "$CHUNKS" --master_port "$MASTER_PORT" train.py
