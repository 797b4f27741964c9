"""The papers' networks."""

from .cnn import cnn
from .dcgan import Discriminator, Generator, latent_line
from .mlp import mlp, shlp
from .resnet import ResNet, resnet18, resnet34, resnet50, tiny_resnet
from .transformer import TransformerLM
from .vgg import vgg11
from .vit import VisionTransformer

__all__ = [
    "Discriminator",
    "Generator",
    "ResNet",
    "TransformerLM",
    "VisionTransformer",
    "cnn",
    "latent_line",
    "mlp",
    "resnet18",
    "resnet34",
    "resnet50",
    "shlp",
    "tiny_resnet",
    "vgg11",
]
