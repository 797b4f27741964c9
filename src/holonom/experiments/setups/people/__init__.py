"""Networks and people on images between digits."""
