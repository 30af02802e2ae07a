"""What the workflow's rules and scripts ask, and what is done before the first job."""
