# run: python {name}
import torch
from transformers import AutoModelForCausalLM, pipeline

model = AutoModelForCausalLM.from_pretrained("gpt2", device_map={"": 0}, torch_dtype=torch.float16)
other = AutoModelForCausalLM.from_pretrained("gpt2", device_map="cuda:0")
cpu = AutoModelForCausalLM.from_pretrained("gpt2", device_map="cpu")
classify = pipeline("text-classification", device=0)
print(classify("fine"), model.hf_device_map)
