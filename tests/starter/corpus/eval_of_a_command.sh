#!/bin/bash
GPU=5
lr=0.001
CMD="CUDA_VISIBLE_DEVICES=$GPU nohup python train.py --lr $lr --dir out > out/run.cout 2>&1 &"
echo $CMD
eval $CMD
