"""PyTorch's memory snapshots: read without running code from them, and what is live at the peak by line."""
