"""What to run: YAML files read, checked and expanded into studies, variants and digests. Never imports torch."""
