#!/bin/bash
counter=0
for lr in 1e-3 1e-4; do
  for dataset in cora citeseer; do
    CUDA_VISIBLE_DEVICES=$((counter % 2)) python main.py --lr $lr --dataset $dataset --save "out/${dataset}_${lr}.json" &
    ((counter++))
    while [ $(jobs -r | wc -l) -ge 2 ]; do
      sleep 1
    done
  done
done
wait
