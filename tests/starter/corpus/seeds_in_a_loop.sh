#!/usr/bin/env bash
set -e
for seed in 0 1 2 3; do
    CUDA_VISIBLE_DEVICES=$seed nohup python train.py --seed $seed --epochs 10 > logs/seed_${seed}.out 2>&1 &
done
wait
python average.py --runs 4
