#!/bin/bash
if [ -d in ]; then
    CUDA_VISIBLE_DEVICES=0 python a.py &
    CUDA_VISIBLE_DEVICES=1 python b.py &
    wait
fi
python c.py
