#!/bin/bash
mkdir -p out
screen -dmS one bash -c 'CUDA_VISIBLE_DEVICES=0 python a.py'
echo "CUDA_VISIBLE_DEVICES=1 python b.py" | at now
