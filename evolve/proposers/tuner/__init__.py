"""The knob tuner: Bayesian optimisation over the knobs of known kernels."""
