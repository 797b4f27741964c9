"""Backends: the same five methods as :class:`holonom._step.integrate.Eager`, which is the reference."""
