"""Starts any training program, unchanged, with a probe inside that measures it or predicts its syncs, and ends it.

    start      starts a command with the probe in its environment, and waits for its end
    inject/    a `sitecustomize` that loads the probe once PyTorch is imported
    probe      inside the program: runs a mode step by step (measure, predict, outputs, capture)
    hooks      inside the program: wraps PyTorch's functions
    result     converts the probe's records to the files of a run

The modules inside the program need PyTorch and the standard library only, so they work in any environment.
"""
