"""The LLM proposer: it turns a request into kernels that language models write."""
