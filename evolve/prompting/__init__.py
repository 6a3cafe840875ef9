"""What a language model is told: pure text, made from a request."""
