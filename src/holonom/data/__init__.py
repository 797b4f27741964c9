"""Data sets, made or read; only :func:`get` downloads anything."""

from .chess import chess
from .cifar import cifar10
from .download import get
from .idx import fashion_mnist, mnist
from .images import ImageSet
from .poker import classify_poker, deal_poker, poker
from .retrograde import solve_chess
from .root import FileStatus, SetStatus, check, find, list_sets
from .shapes import circles, xor
from .spirals import spirals
from .sst2 import Sentences, sst2
from .table import Table
from .text import Corpus, batches, penn_treebank, wikitext2, wikitext2_characters, windows
from .trigonometric import trigonometric

__all__ = [
    "Corpus",
    "FileStatus",
    "ImageSet",
    "Sentences",
    "SetStatus",
    "Table",
    "batches",
    "check",
    "chess",
    "cifar10",
    "circles",
    "classify_poker",
    "deal_poker",
    "fashion_mnist",
    "find",
    "get",
    "list_sets",
    "mnist",
    "penn_treebank",
    "poker",
    "solve_chess",
    "spirals",
    "sst2",
    "trigonometric",
    "wikitext2",
    "wikitext2_characters",
    "windows",
    "xor",
]
