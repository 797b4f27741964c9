"""Text transfer without a download: a language model of WikiText-2 learns to judge film reviews (SST-2).

It stands for the DistilBERT of thesis Fig. 5.6 and Tables 5.1–5.3.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ..data import Corpus, batches, sst2, wikitext2, windows
from ..models import TransformerLM
from ..models.transformer import positions
from . import language
from .multirate_transfer import Task, accuracy_on
from .run import Run

LONGEST, CHUNK, END, UNKNOWN = 60, 218, "<eos>", "<unk>"
WARM_UP = 100  # steps


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
    """Pre-train on WikiText-2; fine-tune on the first ``points`` phrases of SST-2 and test on its dev set."""
    corpus, phrases = wikitext2(run.root), sst2(run.root)
    body = pretrain(run, settings, corpus)
    numbers = {word: number for number, word in enumerate(corpus.vocabulary)}
    words = encode(phrases.train[: settings.points], numbers).to(run.device)
    labels = phrases.train_labels[: settings.points].to(run.device)
    dev, dev_labels = encode(phrases.dev, numbers).to(run.device), phrases.dev_labels.to(run.device)
    end = numbers[END]

    def test() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(dev_labels), CHUNK):
            yield trimmed(dev[start : start + CHUNK], end), dev_labels[start : start + CHUNK]

    def take(index: Tensor) -> tuple[Tensor, Tensor]:
        where = index.to(run.device)
        return trimmed(words[where], end), labels[where]

    last = f"layers.{settings.layers - 1}"
    make = lambda: Reader(copy.deepcopy(body), end)  # noqa: E731
    return Task(make, take, len(labels), accuracy_on(test), "head", last, settings.batch, settings.lr)


def pretrain(run: Run, settings: SimpleNamespace, corpus: Corpus) -> TransformerLM:
    """Next words of WikiText-2 by Adam, whose rate rises to 1e-3 at first, without dropout.

    In small batches: before it has learnt more than the words' frequencies, its states hardly depend on the words.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = TransformerLM(
            len(corpus.vocabulary), settings.width, feedforward=settings.width, layers=settings.layers, dropout=0.0
        ).to(run.device)
    columns = batches(corpus.train[: settings.pretrain_words], settings.columns).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    warm_up = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    with run.progress("pre-training", settings.pretrain_epochs, "epoch") as progress:
        for epoch in range(settings.pretrain_epochs):
            for x, y in windows(columns, language.LENGTH):
                optimizer.zero_grad()
                torch.autograd.backward(language.loss(model(x), y))
                optimizer.step()
                warm_up.step()
            progress(epoch + 1, settings.pretrain_epochs, None)
    return model.cpu()


def encode(phrases: Sequence[str], numbers: dict[str, int]) -> Tensor:
    """(N, LONGEST) words by number, cut or padded with the end-of-line token; words never met are unknown."""
    rows = torch.full((len(phrases), LONGEST), numbers[END])
    for row, phrase in zip(rows, phrases, strict=True):
        words = [numbers.get(word, numbers[UNKNOWN]) for word in phrase.split()[:LONGEST]]
        row[: len(words)] = torch.tensor(words)
    return rows


def trimmed(words: Tensor, padding: int) -> Tensor:
    """Without columns of nothing but padding."""
    longest = int((words != padding).sum(1).max())
    return words[:, :longest]


SMOKE = {
    "replicas": 2, "points": 64, "batch": 16, "lr": 0.01, "width": 8, "layers": 2, "pretrain_words": 2000,
    "columns": 8, "pretrain_epochs": 1, "epochs": 1, "rounds": 3,
}  # fmt: skip
CI = {
    "replicas": 3, "points": 8000, "batch": 16, "lr": 0.01, "width": 32, "layers": 2, "pretrain_words": 60_000,
    "columns": 4, "pretrain_epochs": 1, "epochs": 3, "rounds": 15,
}  # fmt: skip
PAPER = {
    "replicas": 10, "points": 67_349, "batch": 16, "lr": 0.01, "width": 200, "layers": 4, "pretrain_words": None,
    "columns": 32, "pretrain_epochs": 5, "epochs": 3, "rounds": 100,
}  # fmt: skip
DATA = ("wikitext-2", "sst-2")


def note(run: Run, settings: SimpleNamespace) -> None:
    run.note(
        f"In place of DistilBERT: a causal transformer of {settings.layers} layers and width {settings.width}, "
        f"pre-trained on WikiText-2 for {settings.pretrain_epochs} epoch(s), then fine-tuned on {settings.points} "
        f"phrases of SST-2 for {settings.epochs} epoch(s). h/k = {settings.lr:g}: the thesis's 1e-4 belongs to "
        "DistilBERT. A step takes one backward pass: without drift both gradients are taken at the same place."
    )
