"""Perceptrons on planar data: spirals and waves."""
