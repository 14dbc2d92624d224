# run: python {name}
# In the manner of evo2#73: input and model moved to cuda:3 by hand.
import torch
from evo2 import Evo2

evo2_model = Evo2(model_name="evo2_7b")
input_ids = (
    torch.tensor(evo2_model.tokenizer.tokenize("ACGT"), dtype=torch.int).unsqueeze(0).to("cuda:3")
)
device = torch.device("cuda:3")
model = evo2_model.model.to(device)
outputs, _ = model(input_ids)
print(outputs[0].shape)
