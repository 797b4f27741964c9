"""What a parameter is in its network, and how parameters become groups."""
