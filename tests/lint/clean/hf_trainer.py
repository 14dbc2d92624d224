# run: python {name} --output_dir {{{{out}}}}
"""Fine-tune a small classifier with the Hugging Face trainer."""

import argparse

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="distilbert-base-uncased")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    data = load_dataset("imdb").map(
        lambda row: tokenizer(row["text"], truncation=True), batched=True
    )
    training = TrainingArguments(
        args.output_dir,
        per_device_train_batch_size=16,
        seed=args.seed,
        fp16=torch.cuda.is_available(),
    )
    Trainer(model=model, args=training, train_dataset=data["train"]).train()


if __name__ == "__main__":
    main()
