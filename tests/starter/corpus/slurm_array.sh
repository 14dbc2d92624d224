#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --partition=gpu
#SBATCH --array=0-3%2
#SBATCH --gres=gpu:a100:1
#SBATCH --time=1-12:00:00
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --output=logs/%A_%a.out

cd $SLURM_SUBMIT_DIR
LRS=(0.1 0.01 0.001 0.0001)
srun python train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]} --workers $SLURM_CPUS_PER_TASK
