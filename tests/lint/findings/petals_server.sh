#!/bin/bash
# run: bash {name}
# In the manner of Petals' README and of petals#203: a server a card, each with a mask by hand.
sudo docker run -p 31330:31330 --ipc host --gpus all --rm learningathome/petals:main python -m petals.cli.run_server
for N in 0 1; do
    CUDA_VISIBLE_DEVICES=$N python -m petals.cli.run_server petals-team/StableBeluga2 --port $((31330 + N)) &
done
python -m petals.cli.run_server bigscience/bloom --device cuda:1 --tensor_parallel_devices cuda:0 cuda:1
wait
