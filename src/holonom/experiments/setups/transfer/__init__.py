"""Fine-tuning of pre-trained networks with several time scales."""
