"""Fine-tune real pre-trained weights in about half the time: python examples/pretrained.py <checkpoint>

<checkpoint> is a torchvision ResNet state_dict (resnet18-….pth, resnet34-….pth; needs torchvision), or a folder that
save_pretrained() wrote for a Hugging Face model (needs transformers). Nothing is downloaded.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

import holonom


def vision(path: Path) -> tuple[nn.Module, nn.Module, dict[str, torch.Tensor]]:
    import torchvision

    model = getattr(torchvision.models, path.name.split("-")[0].split(".")[0])()
    model.load_state_dict(torch.load(path, weights_only=True))
    model.fc = nn.Linear(model.fc.in_features, 10)  # a head for the new task
    return model, model.fc, {"x": torch.randn(16, 3, 224, 224)}


def language(path: Path) -> tuple[nn.Module, nn.Module, dict[str, torch.Tensor]]:
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(path, local_files_only=True, num_labels=2)
    words = torch.randint(model.config.vocab_size, (16, 64))
    head = next(getattr(model, name) for name in ("classifier", "score", "classification_head") if hasattr(model, name))
    return model, head, {"input_ids": words, "attention_mask": torch.ones_like(words)}


def seconds(model: nn.Module, head: nn.Module, sample: dict[str, torch.Tensor], every: int, steps: int = 10) -> float:
    """Put your loader in place of the sample."""
    fast = {id(p) for p in head.parameters()}
    body = [p for p in model.parameters() if id(p) not in fast]
    opt = holonom.Multirate([{"params": head.parameters()}, {"params": body, "every": every}], lr=1e-3, model=model)
    start = time.perf_counter()
    for _ in range(steps):
        with opt.due():
            output = model(**sample)
            logits = output if isinstance(output, torch.Tensor) else output.logits
            nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)).backward()
        opt.step()
    return time.perf_counter() - start


if __name__ == "__main__":
    path = Path((sys.argv[1:] or ["resnet18.pth"])[0])
    if not (path.is_file() and path.suffix == ".pth") and not (path / "config.json").is_file():
        print(f"no checkpoint at {path}: nothing to fine-tune.\n\n{__doc__}")
    else:
        model, head, sample = (language if path.is_dir() else vision)(path)
        model.train()
        holonom.multirate.plan(model, sample, loss=lambda out: getattr(out, "logits", out).square().mean(), repeats=2)
        plain, multirate = (seconds(model, head, sample, every) for every in (1, 5))
        print(f"fast head, body every 5th step: {multirate / plain:.2f} of the time")
