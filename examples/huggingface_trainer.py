"""A Hugging Face Trainer whose GPT-2 keeps the norms of its matrices, also when it resumes.

Needs transformers and accelerate. The optimizer's checkpoint holds the norms: the Trainer's own files are enough.
"""

import importlib.util
import tempfile

import torch

import holonom
from holonom.constraints import Sphere
from holonom.partitions import embeddings, role


class Counting(torch.utils.data.Dataset):
    """Sequences that count upwards from some number in steps of some size, modulo 30."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens = (i + (1 + i // 30) * torch.arange(16)) % 30
        return {"input_ids": tokens, "labels": tokens}


def trainer(folder: str, steps: int):
    import transformers

    transformers.set_seed(0)
    sizes = {"vocab_size": 30, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    matrices = Sphere("initial", per="block", factor=2.0)  # queries, keys and values are a block each
    rules = {role("attention") | role("feed-forward"): matrices, embeddings: Sphere("initial")}
    held = holonom.constrain(opt, model, rules, update="tangent")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 60)
    arguments = transformers.TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=16, save_steps=30, report_to=[], disable_tqdm=True,
        logging_strategy="no", use_cpu=True,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=Counting(), optimizers=(opt, scheduler)), held


if __name__ == "__main__":
    if not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate")):
        print("this example needs transformers and accelerate: pip install 'holonom[integrations]'")
    else:
        with tempfile.TemporaryDirectory() as folder:
            first, _ = trainer(folder, steps=30)
            first.train()
            second, held = trainer(folder, steps=60)
            result = second.train(resume_from_checkpoint=True)
            held.check(second.optimizer)
            print(f"resumed at step 30, loss {result.training_loss:.2f}")
            print(f"norms are off by {max(held.residuals().values()):.0e}")
