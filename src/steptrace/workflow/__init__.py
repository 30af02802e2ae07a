"""What the workflow's rules and scripts ask, and what is done before its first job and after its last."""
