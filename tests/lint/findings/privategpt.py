# run: CUDA_VISIBLE_DEVICES=0 python {name}
# In the manner of private-gpt#1390: generation on every card, embeddings on one of them.
import os

from langchain_community.embeddings import HuggingFaceEmbeddings
from llama_cpp import Llama

os.environ["CUDA_VISIBLE_DEVICES"] = os.getenv("PGPT_CARDS", "0,1")
llm = Llama(model_path="model.gguf", n_gpu_layers=-1, main_gpu=1)
embeddings = HuggingFaceEmbeddings(model_kwargs={"device": "cuda:1"})
print(embeddings.embed_query("hello"), llm("hello"))
