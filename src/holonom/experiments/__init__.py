"""The papers' figures and tables as programs that end in a verdict."""
