"""What several studies use, by subject: problems, networks, optimizers and measurements."""
