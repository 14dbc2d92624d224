#!/bin/bash
parallel -j4 'python train.py --gpu $(({%} - 1)) --fold {}' ::: 0 1 2 3
