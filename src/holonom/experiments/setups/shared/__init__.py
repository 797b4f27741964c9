"""What several subjects use."""
