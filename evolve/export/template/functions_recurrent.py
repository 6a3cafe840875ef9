"""Recurrent layers and cells with PyTorch's signatures."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.forms import LOW, Call, Form, Lowered, first

ONE_LAYER = "the kernels compute one layer in one direction, with biases and without dropout"
STATES = "tuple[Tensor, Tensor]"


def _lower(op: str, count: int) -> Callable[..., Lowered]:
    """Return the function that lowers a layer with this number of states, the hidden one and perhaps the cell's."""

    def lower(
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Lowered:
        """A recurrent layer over whole sequences; the result ends with the last states."""
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if not has_biases or num_layers != 1 or bidirectional or (dropout and train):
            return ONE_LAYER
        if input.dim() != 3 or len(states) != count or len(params) != 4 or any(len(state) != 1 for state in states):
            return ONE_LAYER
        x = input.transpose(0, 1) if batch_first else input

        def finish(outputs: tuple[Tensor, ...]) -> Any:
            out = outputs[0].transpose(0, 1) if batch_first else outputs[0]
            return (out, *(state.unsqueeze(0) for state in outputs[1:]))

        return Call(op, (x, *(state[0] for state in states), *params), {}, finish)

    return lower


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Lowered:
    """A step of an LSTM: the next hidden state and the next state of the cell."""
    if b_ih is None or b_hh is None or input.dim() != 2:
        return "the kernels take a batch and biases"
    return Call("lstm_cell", (input, hx[0], hx[1], w_ih, w_hh, b_ih, b_hh), {}, tuple)


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Lowered:
    """A step of a GRU: the next hidden state."""
    if b_ih is None or b_hh is None or input.dim() != 2:
        return "the kernels take a batch and biases"
    return Call("gru_cell", (input, hx, w_ih, w_hh, b_ih, b_hh), {}, first)


THREE = "tuple[Tensor, Tensor, Tensor]"
FORMS = (
    Form("lstm", ("lstm",), _lower("lstm", 2), torch.lstm, "", (), THREE),
    Form("gru", ("gru",), _lower("gru", 1), torch.gru, "", (), STATES),
    Form("rnn_tanh", ("rnn_tanh",), _lower("rnn_tanh", 1), torch.rnn_tanh, "", (), STATES),
    Form("lstm_cell", ("lstm_cell",), lstm_cell, torch.lstm_cell, LOW, (), STATES),
    Form("gru_cell", ("gru_cell",), gru_cell, torch.gru_cell, LOW),
)
