"""Backends: subclasses of :class:`holonom._step.integrate.Eager`, the reference.

A new one overrides ``stage``, or ``begin``, ``run``, ``kinetic_energy``, ``positions`` and ``end``. Which one runs is
decided in :func:`holonom._step.run.choose_backend`.
"""
