"""Penn Treebank and WikiText-2 by words, WikiText-2 by characters; columns and windows that a language model reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .root import Root, read_text

END, UNKNOWN = "<eos>", "\N{REPLACEMENT CHARACTER}"


class Corpus(NamedTuple):
    """Three texts as int64 tokens, and the words they stand for, in order of appearance in the training text."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: list[str]


def penn_treebank(root: Root = None, *, verify: bool = True) -> Corpus:
    """929,589 + 73,760 + 82,430 tokens of 10,000 words; every line ends with ``<eos>``."""
    return _load("penn-treebank", ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"), root, verify)


def wikitext2(root: Root = None, *, verify: bool = True) -> Corpus:
    """2,088,628 + 217,646 + 245,569 tokens of 33,278 words; every line, empty ones too, ends with ``<eos>``."""
    return _load("wikitext-2", ("train.txt", "valid.txt", "test.txt"), root, verify)


def wikitext2_characters(root: Root = None, *, verify: bool = True) -> Corpus:
    """The same texts character by character, as they are; what the training text lacks is U+FFFD."""
    texts = [read_text("wikitext-2", f"{part}.txt", root, verify=verify) for part in ("train", "valid", "test")]
    codes = [np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) for text in texts]
    known = np.unique(np.append(codes[0], ord(UNKNOWN)).astype(np.uint32))
    unknown = int(np.searchsorted(known, ord(UNKNOWN)))
    places = [np.minimum(np.searchsorted(known, code), len(known) - 1) for code in codes]
    tokens = [np.where(known[place] == code, place, unknown) for place, code in zip(places, codes, strict=True)]
    train, valid, test = map(torch.from_numpy, tokens)
    return Corpus(train, valid, test, [chr(code) for code in known])


def batches(tokens: Tensor, batch_size: int) -> Tensor:
    """A text cut into ``batch_size`` equal columns, (T, B): column j goes on where column j − 1 stops.

    The remainder, fewer than ``batch_size`` tokens, is left out.
    """
    length = len(tokens) // batch_size if batch_size > 0 else 0
    if length < 2:
        raise ValueError(f"{len(tokens)} tokens cannot make {batch_size} columns of at least 2")
    return tokens[: length * batch_size].view(batch_size, length).t().contiguous()


def windows(columns: Tensor, length: int = 35, *, drop_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (the next words), both (length, B), one window after the other.

    Args:
        columns: (T, B) from :func:`batches`.
        length: tokens per window, "bptt"; the last window may be shorter.
        drop_last: leave out a shorter last window.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    steps = len(columns) - 1
    for start in range(0, steps - steps % length if drop_last else steps, length):
        stop = min(start + length, steps)
        yield columns[start:stop], columns[start + 1 : stop + 1]


def _load(name: str, files: tuple[str, str, str], root: Root, verify: bool) -> Corpus:
    texts = [_words(read_text(name, file, root, verify=verify)) for file in files]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(texts[0]))}
    for file, text in zip(files[1:], texts[1:], strict=True):
        unknown = sorted(set(text) - numbers.keys())
        if unknown:
            raise DataError(
                f"{name}'s {file} has {len(unknown)} words that {files[0]} lacks, such as {unknown[0]!r}; "
                "the files do not belong together"
            )
    train, valid, test = (torch.tensor([numbers[word] for word in text]) for text in texts)
    return Corpus(train, valid, test, list(numbers))


def _words(text: str) -> list[str]:
    # Only \n ends a line: str.splitlines would also split at the separators inside WikiText's lines.
    return [word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), END)]
