# gpus: 2
# run: python {name}
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "mistralai/Mixtral-8x7B-v0.1"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(
    name, device_map="auto", torch_dtype=torch.bfloat16, max_memory={0: "70GiB", 1: "70GiB"}
)
inputs = tokenizer("Hello", return_tensors="pt").to(model.device)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))
second = torch.zeros(4, device="cuda:1")
