#!/bin/bash
cat list.txt | xargs -P 4 -I{} bash -c 'CUDA_VISIBLE_DEVICES=$((RANDOM % 4)) python x.py --in "{}"'
