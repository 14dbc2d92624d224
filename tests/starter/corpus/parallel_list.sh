#!/bin/bash
parallel --will-cite -j 2 -a list.txt CUDA_VISIBLE_DEVICES='$(({%}-1))' python x.py --in {}
