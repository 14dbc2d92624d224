# run: python {name} prompts.txt
import sys

from vllm import LLM, SamplingParams

llm = LLM(model="facebook/opt-125m", tensor_parallel_size=1, gpu_memory_utilization=0.9)
with open(sys.argv[1]) as file:
    prompts = [line.strip() for line in file]
for output in llm.generate(prompts, SamplingParams(temperature=0.8, max_tokens=64)):
    print(output.prompt, "->", output.outputs[0].text)
