#!/bin/bash
cat list.txt | while read -r line; do
    CUDA_VISIBLE_DEVICES=1 python x.py --in "$line" 2>&1 | tee "logs/run.log"
done
