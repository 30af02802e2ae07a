"""What a reader should know before trusting a trace."""
