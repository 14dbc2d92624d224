#!/bin/bash
GPUS=(0 1 2 3)
NAMES=(small base large)
for i in "${!NAMES[@]}"; do
    CUDA_VISIBLE_DEVICES=${GPUS[$i]} python evaluate.py --model "${NAMES[$i]}" --index $i &
done
wait
