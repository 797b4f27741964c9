"""Constrained optimizers in the trainers of transformers, Lightning and Accelerate: a resumed run is the run."""

import logging
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import holonom
from holonom import presets
from holonom.constraints import Sphere
from holonom.partitions import role

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore::UserWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning.*"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
PROMISES = {
    "huggingface_trainer.py": ("transformers", "resumed at step 30"),
    "lightning_module.py": ("lightning", "resumed at epoch 10"),
    "accelerate_loop.py": ("accelerate", "resumed at epoch 10"),
}


def example(name):
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


def equal(model, other):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", PROMISES)
def test_the_example_resumes_with_its_norms(name, capsys):
    library, promise = PROMISES[name]
    pytest.importorskip(library)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert promise in printed
    off = float(printed.partition("norms are off by ")[2].split()[0].rstrip(";"))
    assert off < 2e-6


def test_the_trainer_of_transformers_resumes_bit_for_bit(tmp_path):
    pytest.importorskip("transformers")
    trainer = example("huggingface_trainer.py")["trainer"]
    whole, held = trainer(str(tmp_path / "whole"), steps=60)
    whole.train()
    held.check(whole.optimizer)
    start = held.state_dict()["held"]
    trainer(str(tmp_path / "parts"), steps=30)[0].train()
    second, handle = trainer(str(tmp_path / "parts"), steps=60)
    with torch.no_grad():  # radii come from the checkpoint, not from the weights that the process starts with
        for claim in handle._claims:
            claim.sizes.mul_(3)
    second.train(resume_from_checkpoint=True)
    handle.check(second.optimizer)
    assert equal(second.model, whole.model)
    for name, own in handle.state_dict()["held"].items():
        assert torch.equal(own["sizes"], start[name]["sizes"])


@pytest.mark.parametrize("preset", ["adamh", "muonh", "normalised"])
def test_presets_train_in_the_trainer_of_transformers(preset, tmp_path):
    transformers = pytest.importorskip("transformers")
    names = example("huggingface_trainer.py")
    model = names["trainer"](str(tmp_path), steps=5)[0].model
    opt = getattr(presets, preset)(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=5)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=20, report_to=[], use_cpu=True, max_grad_norm=1.0, save_steps=10, disable_tqdm=True
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=names["Counting"](), optimizers=(opt, scheduler))
    first = trainer.evaluate(names["Counting"]())["eval_loss"]
    trainer.train()
    assert trainer.evaluate(names["Counting"]())["eval_loss"] < first - 0.1
    opt.held.check(trainer.optimizer)


def test_heads_of_real_models_keep_a_norm_each():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=30, max_position_embeddings=8, **sizes))
    opt = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    held = holonom.constrain(opt, model, {role("attention"): Sphere("initial", per="head")}, "angular")
    query = model.encoder.layer[0].attention.self.query.weight
    before = query.detach().unflatten(0, (3, 4)).flatten(1).norm(dim=1)
    for _ in range(3):
        opt.zero_grad()
        model(torch.randint(30, (2, 6))).last_hidden_state.square().sum().backward()
        opt.step()
    torch.testing.assert_close(query.detach().unflatten(0, (3, 4)).flatten(1).norm(dim=1), before)
    held.check()


@pytest.mark.parametrize("preset", ["muonh", "normalised"])
def test_lightning_resumes_bit_for_bit(preset, tmp_path, monkeypatch):
    """It loads weights before it builds the optimizer: norms must not be multiplied by a factor again."""
    pytest.importorskip("lightning")
    if preset == "normalised":
        monkeypatch.setattr(presets, "muonh", lambda model, lr: presets.normalised(model, lr, factor=2.0))
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    fit = example("lightning_module.py")["fit"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, whole = fit(str(tmp_path), epochs=6)
        trainer, _ = fit(str(tmp_path), epochs=3)
        trainer.save_checkpoint(tmp_path / "half.ckpt")
        trainer, module = fit(str(tmp_path), epochs=6, resume=str(tmp_path / "half.ckpt"))
    trainer.optimizers[0].held.check(trainer.optimizers[0])
    assert equal(module, whole)


def test_accelerate_resumes_bit_for_bit(tmp_path):
    pytest.importorskip("accelerate")
    names = example("accelerate_loop.py")
    build, train = names["build"], names["train"]
    accelerator, held, *parts = build()
    train(accelerator, *parts, epochs=2)
    accelerator.save_state(str(tmp_path))
    train(accelerator, *parts, epochs=2)
    accelerator, handle, *others = build()
    with torch.no_grad():
        for claim in handle._claims:
            claim.sizes.mul_(3)
    accelerator.load_state(str(tmp_path))
    train(accelerator, *others, epochs=2)
    assert equal(others[0], parts[0])
    handle.check(others[1])
    held.check(parts[1])


def test_accelerate_wants_the_optimizer_inside():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Linear(3, 3)
    wrapped = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="constrain the one inside, before it is wrapped"):
        holonom.constrain(wrapped, model, {"weight": Sphere("initial")})
