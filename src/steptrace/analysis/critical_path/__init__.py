"""What each step waited for, part by part."""
