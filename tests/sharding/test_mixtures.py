"""Blocks within parameters, and what is sharded beside what is not: the run of one process."""

import re

import pytest
import torch
import torch.distributed as dist

from . import mixtures, ranks

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo"),
]


@pytest.mark.parametrize("world", [2, 4])
def test_heads_packed_matrices_and_stacks_move_as_on_one_process(world):
    alone = mixtures.blocks()
    for found in ranks.run(world, mixtures.blocks):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-13)


def test_copies_and_shards_in_one_optimizer_train_as_on_one_process():
    """DistributedDataParallel beside FSDP2, in Langevin and in the multirate optimizers."""
    alone = mixtures.mixtures()
    for found in ranks.run(2, mixtures.mixtures):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-13)


REFUSED = {
    "tensor parallel forward": "^RuntimeError: a and b must have same reduction dim",  # by torch itself
    "other cuts than torch.chunk's": "^ValueError: .*other cuts are not supported",
}


def test_sizes_that_do_not_divide():
    """FSDP2 of what tensor parallelism has cut works; what does not is refused on all ranks."""
    for found in ranks.run(4, mixtures.uneven):
        for name, pattern in REFUSED.items():
            assert re.search(pattern, found.pop(name)), name
        assert found == dict.fromkeys(found, True)
