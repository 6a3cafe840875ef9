"""LLM proposer: from a request to kernels that language models write."""
