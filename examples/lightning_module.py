"""A LightningModule whose hidden matrices turn by a fixed angle a step: Muon and AdamW as one optimizer.

Needs lightning. The constraint goes into ``configure_optimizers``; checkpoints and schedulers stay Lightning's.
"""

import importlib.util
import tempfile

import torch
from torch import nn

from holonom import presets

if importlib.util.find_spec("lightning"):
    import lightning

    class Spiral(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            hidden = [layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.ReLU())]
            self.model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), *hidden, nn.Linear(64, 1))

        def training_step(self, batch, number):
            x, y = batch
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(x)[:, 0], y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            opt = presets.muonh(self.model, lr=0.02)
            return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)}


def fit(folder: str, epochs: int, resume: str | None = None):
    from holonom.data import spirals

    lightning.seed_everything(0, verbose=False)
    x, y = spirals(500, turns=1, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50)
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=folder, enable_checkpointing=False, **options)
    module = Spiral()
    trainer.fit(module, loader, ckpt_path=resume)
    return trainer, module


if __name__ == "__main__":
    if not importlib.util.find_spec("lightning"):
        print("this example needs lightning: pip install 'holonom[integrations]'")
    else:
        with tempfile.TemporaryDirectory() as folder:
            trainer, _ = fit(folder, epochs=10)
            trainer.save_checkpoint(f"{folder}/half.ckpt")
            trainer, module = fit(folder, epochs=20, resume=f"{folder}/half.ckpt")
            held = trainer.optimizers[0].held
            held.check()
            print(f"resumed at epoch 10, loss {trainer.callback_metrics['loss']:.3f}")
            print(f"norms are off by {max(held.residuals().values()):.0e}; the last step turned by {held.angles()}")
