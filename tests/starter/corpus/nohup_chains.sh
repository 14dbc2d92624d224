#!/bin/bash
nohup bash -c "CUDA_VISIBLE_DEVICES=0 python a.py --x 1; CUDA_VISIBLE_DEVICES=0 python b.py" > gpu0.log 2>&1 &
nohup sh -c 'export CUDA_VISIBLE_DEVICES=1 && python c.py && python d.py "x y"' > gpu1.log 2>&1 &
timeout 2h bash -c 'CUDA_VISIBLE_DEVICES=2,3 python e.py' &
disown -a
