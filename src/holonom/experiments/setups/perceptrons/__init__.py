"""Perceptrons on other data: tasks for loss landscapes, Fashion-MNIST, tables of categories."""
