#!/bin/bash
parallel --link -j2 'CUDA_VISIBLE_DEVICES={1} python x.py {2}' ::: 0 1 ::: a b
