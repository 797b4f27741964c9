"""Residual networks and VGG-11 on CIFAR-10, trained one by one."""
