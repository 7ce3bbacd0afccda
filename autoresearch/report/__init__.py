"""What a search found, told to a person."""
