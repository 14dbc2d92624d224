#!/bin/bash
#SBATCH -N 1
#SBATCH -n 2
#SBATCH --gpus=2
#SBATCH -t 90
for i in 0 1; do
    srun -n1 --gpus=1 --exclusive python train.py --rank $i &
done
wait
python merge.py
