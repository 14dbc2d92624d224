#!/bin/bash
for gpu in 0 1 2 3; do
    tmux new-session -d -s "run_$gpu" "CUDA_VISIBLE_DEVICES=$gpu python train.py --fold $gpu"
done
echo launched
