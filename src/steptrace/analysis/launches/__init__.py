"""How work reached the GPU: launches, queues, copies."""
