"""Speed-ups that ``multirate.plan`` predicts, beside those that are measured.

    python -m benchmarks.planning --device cuda --out results/planning

Full fine-tuning and multirate training with a fast last part (k = 5) take turns, cycle by cycle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holonom import Multirate
from holonom.experiments.reproduce import device_name
from holonom.models import TransformerLM, mlp, resnet18, tiny_resnet
from holonom.multirate import plan

EVERY, LR = 5, 1e-4


def cases(large: bool) -> Iterator[tuple[str, nn.Module, Tensor, Tensor, str]]:
    """Name, network, batch, labels and where the fast part begins; ``large`` ones are for a GPU."""

    def labels(*shape: int, classes: int = 10) -> Tensor:
        return torch.randint(classes, shape)

    yield "tiny residual, 64 images", tiny_resnet(10, 1), torch.randn(64, 1, 28, 28), labels(64), "head"
    yield "784-512-512-512-10, 64 rows", mlp([784, 512, 512, 512, 10]), torch.randn(64, 784), labels(64), "6"
    words = labels(35, 32, classes=1000)
    yield "transformer, 35 × 32 words", TransformerLM(1000, 128, 2, 512, 4), words, words, "layers.3"
    if large:
        yield "ResNet-18, 16 images", resnet18(), torch.randn(16, 3, 32, 32), labels(16), "head"
        yield "ResNet-18, 512 images", resnet18(), torch.randn(512, 3, 32, 32), labels(512), "head"
        wide = mlp([784, 4096, 4096, 4096, 10])
        yield "784-4096-4096-4096-10, 4096 rows", wide, torch.randn(4096, 784), labels(4096), "6"


def measure(model: nn.Module, x: Tensor, y: Tensor, block: str, device: str, rounds: int) -> dict[str, float]:
    model.to(device).train()
    x, y = x.to(device), y.to(device)

    def loss(output: Tensor) -> Tensor:
        return cross_entropy(output.flatten(0, -2), y.flatten())

    predicted = plan(model, x, loss=loss, periods=(EVERY,), verbose=False).speedup(block, EVERY)
    first = [name.startswith(f"{block}.") for name, _ in model.named_parameters()].index(True)
    slow, fast = list(model.parameters())[:first], list(model.parameters())[first:]
    plain = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    multirate = Multirate([{"params": fast}, {"params": slow, "every": EVERY}], LR, model=model)

    def full() -> None:
        for _ in range(EVERY):
            plain.zero_grad()
            loss(model(x)).backward()
            plain.step()

    def cycle() -> None:
        for _ in range(EVERY):
            with multirate.due():
                loss(model(x)).backward()
            multirate.step()

    ratios = [_seconds(full, device) / _seconds(cycle, device) for _ in range(rounds + 2)][2:]
    return {"predicted": predicted, "measured": statistics.median(ratios)}


def _seconds(run: Callable[[], Any], device: str) -> float:
    started = time.perf_counter()
    run()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=2, help="of the whole list")
    parser.add_argument("--out", type=Path, default=Path("results/planning"))
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for _ in range(options.repeats):
        for name, model, x, y, block in cases(large=options.device == "cuda"):
            rows.append({"case": name, **measure(model, x, y, block, options.device, options.rounds)})
            off = rows[-1]["predicted"] / rows[-1]["measured"] - 1
            numbers = f"predicted {rows[-1]['predicted']:.2f} measured {rows[-1]['measured']:.2f} off {off:+.1%}"
            print(f"{name:<34} {numbers}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"device": device_name(torch.device(options.device)), "torch": torch.__version__, "rows": rows}
    (options.out / f"planning-{options.device}.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
