"""CUDA's Multi-Process Service (MPS): its daemons, their guards, directories and limits."""
