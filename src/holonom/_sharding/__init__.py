"""Parameters that are spread over the ranks of torch.distributed as DTensors.

``shards`` says which part of a parameter lies here, ``collectives`` is the only module that talks to other ranks. Both
serve :class:`holonom.Langevin` and :func:`holonom.constrain`. Letters, spaces and backends work on plain local tensors
and know nothing of meshes.
"""
