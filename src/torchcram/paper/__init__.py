"""The paper, claim by claim: what it prints (`claims`), and the experiments that measure it."""
