#!/bin/bash
NUM_GPUS=4
idx=0
for f in in/*.fasta; do
    gpu=$((idx % NUM_GPUS))
    echo "[$idx] $f on GPU $gpu"
    CUDA_VISIBLE_DEVICES=$gpu python predict.py --input "$f" &
    idx=$((idx + 1))
    if (( idx % NUM_GPUS == 0 )); then
        wait
    fi
done
wait
echo done
