#!/bin/bash
N_GPUS=4
parallel -j $N_GPUS --delay 1 \
    'CUDA_VISIBLE_DEVICES=$(({%} % 4)) 'python main.py \
        --seed={1} \
        --env="{2}-v2" \
    ::: 0 1 ::: hopper walker
python plot.py
