"""Text transfer without a download: a language model of WikiText-2 learns to judge film reviews (SST-2).

It stands for the DistilBERT of thesis Fig. 5.6 and Tables 5.1–5.3.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ..data import Corpus, batches, sst2, wikitext2, windows
from ..models import TransformerLM
from ..models.transformer import positions
from . import language
from .multirate_transfer import pretrained
from .run import Run
from .transfer_steps import Task, accuracy_on, check_apart, half_precision

LONGEST, CHUNK, END, UNKNOWN = 60, 218, "<eos>", "<unk>"
WARM_UP = 300  # steps


class Reader(nn.Module):
    """A language model's body; a linear head judges the mean of its last states.

    Takes (N, T) words that end in padding, which a causal body lets no word see.
    """

    def __init__(self, body: TransformerLM, padding: int, classes: int = 2) -> None:
        super().__init__()
        self.embedding, self.layers = body.embedding, body.layers
        self.padding = padding
        self.head = nn.Linear(body.embedding.embedding_dim, classes)

    def forward(self, words: Tensor) -> Tensor:
        tokens = words.t()
        x = self.embedding(tokens)
        width = x.shape[-1]
        x = math.sqrt(width) * x + positions(len(tokens), width, x)[:, None]
        for layer in self.layers:
            x = layer(x)
        real = (tokens != self.padding).to(x.dtype)[..., None]
        logits: Tensor = self.head((x * real).sum(0) / real.sum(0).clamp(min=1))
        return logits


def task(run: Run, settings: SimpleNamespace) -> Task:
    """Pre-train on WikiText-2; fine-tune on the first ``points`` phrases of SST-2, holding out the last ones, and test
    on its dev set.
    """
    corpus, phrases = wikitext2(run.root), sst2(run.root)
    check_apart(settings.points, settings.held_out, len(phrases.train))
    numbers = {word: number for number, word in enumerate(corpus.vocabulary)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        width, heads = settings.width, max(2, settings.width // 64)
        model = TransformerLM(len(numbers), width, heads, 4 * width, settings.layers, dropout=0.0)
    body = pretrained(run, model, lambda model: pretrain(run, settings, model, corpus))
    ours, theirs = settings.points, settings.held_out
    train = Phrases.read(phrases.train[:ours], phrases.train_labels[:ours], numbers, run.device)
    held_out = Phrases.read(phrases.train[-theirs:], phrases.train_labels[-theirs:], numbers, run.device)
    dev = Phrases.read(phrases.dev, phrases.dev_labels, numbers, run.device)
    return Task(
        lambda: Reader(copy.deepcopy(body), numbers[END]),
        train.take,
        len(train.labels),
        accuracy=accuracy_on(dev.chunks, run.device, settings.autocast),
        held_out=accuracy_on(held_out.chunks, run.device, settings.autocast),
        head="head",
        last=f"layers.{settings.layers - 1}",
        batch=settings.batch,
        lr=settings.rates[0],
        device=run.device,
        autocast=settings.autocast,
    )


def pretrain(run: Run, settings: SimpleNamespace, model: nn.Module, corpus: Corpus) -> None:
    """Next words of WikiText-2 by Adam, whose rate rises to ``pretrain_lr`` at first, without dropout.

    In small batches: before it has learnt more than the words' frequencies, its states hardly depend on the words.
    """
    model.to(run.device)
    columns = batches(corpus.train[: settings.pretrain_words], settings.columns).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), settings.pretrain_lr)
    warm_up = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    with run.progress("pre-training", settings.pretrain_epochs, "epoch") as progress:
        for epoch in range(settings.pretrain_epochs):
            for x, y in windows(columns, language.LENGTH):
                optimizer.zero_grad()
                with half_precision(run.device, settings.autocast):
                    loss = language.loss(model(x), y)
                torch.autograd.backward(loss)
                optimizer.step()
                warm_up.step()
            progress(epoch + 1, settings.pretrain_epochs, None)


@dataclass(frozen=True)
class Phrases:
    """(N, LONGEST) words by number on a device, how many of them are words, and what they say."""

    words: Tensor
    lengths: Tensor  # stays on the CPU, so that no batch has to wait for the device to know its own
    labels: Tensor

    @classmethod
    def read(cls, phrases: Sequence[str], labels: Tensor, numbers: dict[str, int], device: torch.device) -> Phrases:
        words = encode(phrases, numbers)
        lengths = torch.tensor([max(1, min(LONGEST, len(phrase.split()))) for phrase in phrases])
        return cls(words.to(device), lengths, labels.to(device))

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Without columns of nothing but padding."""
        where = index.to(self.words.device)
        return self.words[where, : int(self.lengths[index].max())], self.labels[where]

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.split(torch.arange(len(self.lengths)), CHUNK):
            yield self.take(index)


def encode(phrases: Sequence[str], numbers: dict[str, int]) -> Tensor:
    """(N, LONGEST) words by number, cut or padded with the end-of-line token; words never met are unknown."""
    rows = torch.full((len(phrases), LONGEST), numbers[END])
    for row, phrase in zip(rows, phrases, strict=True):
        words = [numbers.get(word, numbers[UNKNOWN]) for word in phrase.split()[:LONGEST]]
        row[: len(words)] = torch.tensor(words)
    return rows


SMOKE = {
    "replicas": 2, "points": 48, "held_out": 16, "batch": 16, "rates": (0.01, 0.03), "width": 8, "layers": 2,
    "pretrain_words": 2000, "columns": 8, "pretrain_lr": 1e-3, "pretrain_epochs": 1, "epochs": 1, "rounds": 3,
    "autocast": False,
}  # fmt: skip
CI = {
    "replicas": 3, "points": 8000, "held_out": 1000, "batch": 16, "rates": (0.01,), "width": 32, "layers": 2,
    "pretrain_words": 60_000, "columns": 4, "pretrain_lr": 1e-3, "pretrain_epochs": 1, "epochs": 3, "rounds": 15,
    "autocast": False,
}  # fmt: skip
PAPER = {
    "replicas": 5, "points": 60_000, "held_out": 6000, "batch": 256, "rates": (0.003, 0.01, 0.03, 0.1), "width": 512,
    "layers": 6, "pretrain_words": None, "columns": 64, "pretrain_lr": 3e-4, "pretrain_epochs": 4, "epochs": 3,
    "rounds": 30, "autocast": True,
}  # fmt: skip
DATA = ("wikitext-2", "sst-2")


def note(run: Run, task: Task, settings: SimpleNamespace) -> None:
    run.note(
        f"In place of DistilBERT: a causal transformer of {settings.layers} layers and width {settings.width}, "
        f"pre-trained on WikiText-2 for {settings.pretrain_epochs} epoch(s), then fine-tuned on {settings.points} "
        f"phrases of SST-2 for {settings.epochs} epoch(s) in batches of {settings.batch}. h/k = {task.lr:g}, of "
        f"{', '.join(f'{rate:g}' for rate in settings.rates)}: the thesis's 1e-4 belongs to DistilBERT. Held-out "
        "phrases may be parts of sentences whose other parts are trained on, as everywhere in SST-2's training set. "
        "Without drift, a slow step takes two backward passes (Algorithm 5.2)."
    )
