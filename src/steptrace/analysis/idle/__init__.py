"""Why the GPU, or a stream of it, had nothing to do."""
