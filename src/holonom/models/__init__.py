"""The papers' networks."""

from .mlp import mlp, shlp
from .transformer import TransformerLM

__all__ = ["TransformerLM", "mlp", "shlp"]
