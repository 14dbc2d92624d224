#!/bin/bash
ls in/*.fasta | parallel -j2 --bar 'CUDA_VISIBLE_DEVICES=$(({%}-1)) python fold.py --in {} --out out/{/.} --n {#} > logs/{/.}.log 2>&1'
