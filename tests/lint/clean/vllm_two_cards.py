# gpus: 2
# run: python {name}
from vllm import LLM

llm = LLM(model="meta-llama/Llama-3.1-8B", tensor_parallel_size=2)
print(llm.generate(["Hello"])[0].outputs[0].text)
