#!/bin/bash
parallel ::: \
    "CUDA_VISIBLE_DEVICES=0 python a.py --x 1" \
    "CUDA_VISIBLE_DEVICES=1 python b.py --x 2"
python c.py
