"""Text transfer without a download: a language model of WikiText-2 is fine-tuned to rate film reviews (SST-2).

It stands for the DistilBERT of thesis Fig. 5.6 and Tables 5.1–5.3.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from ...._torch import release
from ....batches import Shuffled
from ....data import Corpus, batches, sst2, wikitext2, windows
from ....ensemble import Ensemble
from ....models import TransformerLM
from ....models.transformer import positions
from ...artifacts import ArtifactCache
from ...run import Array, Run
from ..shared import language_model
from .comparison import Transfer
from .finetuning import Arm, Task, check_split, half_precision, make_optimizer
from .runs import remaining_epochs

CHUNK, END, UNKNOWN = 436, "<eos>", "<unk>"
FOLDER = "phrase-classifiers"
WITHOUT_EFFECT = ("rates", "rounds", "timed_width", "timed_batch")  # settings that do not change an arm's accuracy
WARM_UP = 300  # steps


class PhraseClassifier(nn.Module):
    """A language model's body with a linear head on the mean of its last states.

    Takes (N, T) words that end in padding, which no word attends to since the body is causal.
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


def transfer(run: Run, settings: SimpleNamespace) -> Transfer:
    """Pre-train on WikiText-2; fine-tune on the first ``points`` phrases of SST-2, holding out the last ones, and test
    on its dev set. All runs of an arm are one ensemble. Experiments share the body and the arms they have in common.
    """
    corpus, phrases = with_common_words(wikitext2(run.root), settings.vocabulary), sst2(run.root)
    check_split(settings.points, settings.held_out, len(phrases.train))
    numbers = {word: number for number, word in enumerate(corpus.vocabulary)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = transformer(len(numbers), settings.width, settings.layers)
    identity = identify(run, settings)
    body_state = cache(run, identity).shared("body", lambda: pretrain(run, settings, model, corpus))
    model.load_state_dict(body_state)
    body = model.cpu()
    first, last = slice(settings.points), slice(-settings.held_out, None)

    def encoded(texts: Sequence[str], labels: Tensor) -> Phrases:
        return Phrases(encode(texts, numbers, settings.length).to(run.device), labels.to(run.device))

    examples = encoded(phrases.train[first], phrases.train_labels[first])
    held_out = encoded(phrases.train[last], phrases.train_labels[last])
    dev = encoded(phrases.dev, phrases.dev_labels)

    def train(task: Task, arm: Arm, name: str, search: bool) -> Array:
        lr = task.lr if arm.lr is None else arm.lr
        accuracies = cache(run, {**identity, "arm": replace(arm, lr=lr), "search": search})
        if accuracies.has_per_rank("accuracy"):
            run.note(f"“{name}” was trained by an earlier run of this set; delete {FOLDER}/ to train it again.")
        found: Tensor = accuracies.per_rank("accuracy", lambda: torch.from_numpy(fine_tune(task, arm, name, search)))
        return found.numpy()

    def fine_tune(task: Task, arm: Arm, name: str, search: bool) -> Array:
        def make() -> nn.Module:
            return PhraseClassifier(copy.deepcopy(body), numbers[END])

        ensemble = run.single(make) if search else run.ensemble(make)
        order = Shuffled(examples.words, examples.labels, settings.batch, ensemble.seeds)
        evaluate = (held_out if search else dev).accuracy
        with language_model.tf32_products(run.device):
            fit = run.fit(
                name, ensemble, make_optimizer(ensemble, arm, task), cross_entropy, order,
                settings.epochs * order.per_epoch, evaluate, evaluations=settings.epochs, compiled=False,
            )  # fmt: skip
        return fit.curves["accuracy"]

    return Transfer(timed(run, settings, len(numbers)), train)


def identify(run: Run, settings: SimpleNamespace) -> dict[str, Any]:
    """Everything that accuracies depend on."""
    from .... import __version__

    effective = {name: value for name, value in vars(settings).items() if name not in WITHOUT_EFFECT}
    circumstances = {"device": run.device.type, "torch": release, "holonom": __version__}
    return {**effective, **circumstances, "seed": run.seed, "replicas": run.replicas}


def cache(run: Run, identity: dict[str, Any]) -> ArtifactCache:
    return ArtifactCache(run.folder.parent / FOLDER, identity)


def timed(run: Run, settings: SimpleNamespace, vocabulary: int) -> Task:
    """A classifier of ``timed_width`` and full-length phrases; times do not depend on what it has learnt."""
    words = torch.randint(1, vocabulary, (settings.timed_batch, settings.length), generator=torch.Generator())
    batch = words.to(run.device), torch.arange(settings.timed_batch).to(run.device) % 2
    return Task(
        lambda: PhraseClassifier(transformer(vocabulary, settings.timed_width, settings.layers), padding=0),
        lambda index: batch,
        head="head",
        last=f"layers.{settings.layers - 1}",
        timed_batch=settings.timed_batch,
        lr=settings.rates[0],
        device=run.device,
        autocast=settings.autocast,
    )


def transformer(vocabulary: int, width: int, layers: int) -> TransformerLM:
    """A language model with BERT's proportions: heads of 64, feed-forward nets four times as wide."""
    return TransformerLM(vocabulary, width, max(2, width // 64), 4 * width, layers, dropout=0.0)


def with_common_words(corpus: Corpus, most: int | None) -> Corpus:
    """The corpus with all but the ``most`` most frequent words of its training text unknown."""
    if most is None:
        return corpus
    counts = torch.bincount(corpus.train, minlength=len(corpus.vocabulary))
    counts[[corpus.vocabulary.index(word) for word in (END, UNKNOWN)]] = len(
        corpus.train
    )  # always among the common ones
    common = counts.argsort(descending=True, stable=True)[:most]
    vocabulary = [corpus.vocabulary[number] for number in common.tolist()]
    new = torch.full_like(counts, vocabulary.index(UNKNOWN))
    new[common] = torch.arange(len(common))
    return Corpus(new[corpus.train], new[corpus.valid], new[corpus.test], vocabulary)


def pretrain(run: Run, settings: SimpleNamespace, model: nn.Module, corpus: Corpus) -> dict[str, Tensor]:
    """Next words of WikiText-2 by Adam with a warm-up to ``pretrain_lr``, without dropout.

    In small batches, which take more steps: while a model knows only the words' frequencies, its states hardly depend
    on the words.
    """
    model.to(run.device)
    columns = batches(corpus.train[: settings.pretrain_words], settings.columns).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), settings.pretrain_lr)
    warm_up = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    parts = {"model": model, "optimizer": optimizer, "warm_up": warm_up}
    with run.progress("pre-training", settings.pretrain_epochs, "epoch") as progress:
        for epoch in remaining_epochs(run.checkpoints, "pre-training", parts, settings.pretrain_epochs):
            for x, y in windows(columns, language_model.LENGTH):
                optimizer.zero_grad()
                with half_precision(run.device, settings.autocast):
                    loss = language_model.loss(model(x), y)
                torch.autograd.backward(loss)
                optimizer.step()
                warm_up.step()
            progress(epoch + 1, settings.pretrain_epochs, None)
    return model.state_dict()


@dataclass(frozen=True)
class Phrases:
    """(N, length) words by number, and labels."""

    words: Tensor
    labels: Tensor

    def accuracy(self, ensemble: Ensemble) -> dict[str, Tensor]:
        """(R,) accuracies."""
        parts = list(zip(torch.split(self.words, CHUNK), torch.split(self.labels, CHUNK), strict=True))
        right = [ensemble.losses(_hits, x, y) for x, y in parts]
        return {"accuracy": torch.stack(right).sum(0) / len(self.labels)}


def _hits(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).float().sum()


def encode(phrases: Sequence[str], numbers: dict[str, int], length: int) -> Tensor:
    """(N, length) words by number, cut or padded with the end-of-line token; other words are unknown."""
    rows = torch.full((len(phrases), length), numbers[END])
    for row, phrase in zip(rows, phrases, strict=True):
        words = [numbers.get(word, numbers[UNKNOWN]) for word in phrase.split()[:length]]
        row[: len(words)] = torch.tensor(words)
    return rows


SMOKE = {
    "replicas": 2, "points": 48, "held_out": 16, "length": 8, "batch": 16, "rates": (0.01, 0.03), "epochs": 1,
    "rounds": 3, "width": 8, "layers": 2, "vocabulary": 30, "pretrain_words": 2000, "columns": 8, "pretrain_lr": 1e-3,
    "pretrain_epochs": 1, "timed_width": 8, "timed_batch": 16, "autocast": False,
}  # fmt: skip
CI = {
    "replicas": 3, "points": 5000, "held_out": 1000, "length": 24, "batch": 16, "rates": (0.003, 0.01, 0.03),
    "epochs": 3, "rounds": 15, "width": 32, "layers": 2, "vocabulary": 4000, "pretrain_words": 200_000,
    "columns": 8, "pretrain_lr": 1e-3, "pretrain_epochs": 1, "timed_width": 128, "timed_batch": 32, "autocast": False,
}  # fmt: skip
LARGE = {
    "replicas": 5, "points": 30_000, "held_out": 6000, "length": 40, "batch": 32, "rates": (0.001, 0.003, 0.01, 0.03),
    "epochs": 3, "rounds": 30, "width": 192, "layers": 6, "vocabulary": None, "pretrain_words": None, "columns": 64,
    "pretrain_lr": 5e-4, "pretrain_epochs": 4, "timed_width": 768, "timed_batch": 256, "autocast": True,
}  # fmt: skip
PAPER = {**LARGE, "replicas": 10, "points": 60_000, "batch": 16}  # as published, but for the network
DATA = ("wikitext-2", "sst-2")


def note(run: Run, task: Task, settings: SimpleNamespace) -> None:
    run.note(
        f"In place of DistilBERT: a causal transformer of {settings.layers} layers and width {settings.width}, "
        f"pre-trained on WikiText-2 ({settings.vocabulary or 'all'} words) for {settings.pretrain_epochs} epoch(s), "
        f"then fine-tuned on {settings.points} phrases of SST-2, cut to {settings.length} words, for "
        f"{settings.epochs} epoch(s) in batches of {settings.batch}. h/k = {task.lr:g}, of "
        f"{', '.join(f'{rate:g}' for rate in settings.rates)}: the thesis's 1e-4 belongs to DistilBERT. Held-out "
        "phrases may be parts of sentences whose other parts are trained on, as everywhere in SST-2's training set. "
        f"Times are those of a network of width {settings.timed_width} (DistilBERT's is 768) and batches of "
        f"{settings.timed_batch}, large enough for the device to be busy. Without drift, a slow step takes two "
        "backward passes (Algorithm 5.2)."
    )
