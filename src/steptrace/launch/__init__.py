"""Any training program, unchanged: started with a probe in it, measured or followed, and ended.

    start      starts a command with the probe in its environment, and follows it to its end
    inject/    what the environment lets in: a `sitecustomize` that waits for PyTorch
    probe      inside the program: what happens from step to step (measure, predict, answer, capture)
    hooks      inside the program: what of PyTorch is wrapped
    steps      inside the program: where a step ends
    result     what a measured program left, made into the files of a run

What runs inside the program needs PyTorch and the standard library only: it works in any environment.
"""
