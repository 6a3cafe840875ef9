"""Whatever offers kernels: a language model, the offline mutator, a person with files."""
