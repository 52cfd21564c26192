"""Our training loop: run configs, optimizer, evaluation."""
