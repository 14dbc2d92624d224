#!/bin/bash
n=0
while IFS=, read -r name lr gpu; do
    echo "starting $name on $gpu"
    CUDA_VISIBLE_DEVICES=$gpu python train.py --name "$name" --lr $lr &
    n=$((n + 1))
done < table.csv
wait
