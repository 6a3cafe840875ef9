"""Recurrent layers and cells with PyTorch's signatures."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.forms import LOW, Call, Form, Lowered, Parts, first

ONE_LAYER = "the kernels compute one layer in one direction, with biases and without dropout"
STATES = "tuple[Tensor, Tensor]"


def _lower(op: str, count: int) -> Callable[..., Lowered]:
    """Return the function that lowers a layer with this number of states: two for an LSTM, one for others."""

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


def _parts(
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Parts | None:
    """Return the calls for single layers and directions that compose a call for several."""
    count = num_layers * (1 + bidirectional)
    if not has_biases or count == 1 or (dropout and train) or input.dim() != 3 or len(params) != 4 * count:
        return None
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    x = input.transpose(0, 1) if batch_first else input
    return _layer_by_layer(x, states, params, 1 + bidirectional, batch_first)


def _layer_by_layer(
    x: Tensor, states: tuple[Tensor, ...], params: Sequence[Tensor], directions: int, batch_first: bool
) -> Parts:
    last: list[list[Tensor]] = [[] for _ in states]
    for layer in range(len(params) // (4 * directions)):
        outputs = []
        for backwards in range(directions):
            at = layer * directions + backwards
            given = tuple(state[at : at + 1] for state in states)
            given_x, weights = x.flip(0) if backwards else x, params[4 * at : 4 * at + 4]
            hx = given if len(given) > 1 else given[0]
            out, *ends = yield (given_x, hx, weights, True, 1, 0.0, False, False, False)
            outputs.append(out.flip(0) if backwards else out)
            for kept, end in zip(last, ends, strict=True):
                kept.append(end)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return (x.transpose(0, 1) if batch_first else x, *(torch.cat(kept) for kept in last))


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Lowered:
    """A step of an LSTM: the next hidden state and the next state of the cell."""
    if b_ih is None or b_hh is None or input.dim() != 2 or len(hx) != 2:
        return "the kernels accept a batch, two states and biases"
    return Call("lstm_cell", (input, hx[0], hx[1], w_ih, w_hh, b_ih, b_hh), {}, tuple)


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Lowered:
    """A step of a GRU: the next hidden state."""
    if b_ih is None or b_hh is None or input.dim() != 2:
        return "the kernels accept a batch and biases"
    return Call("gru_cell", (input, hx, w_ih, w_hh, b_ih, b_hh), {}, first)


THREE = "tuple[Tensor, Tensor, Tensor]"
FORMS = (
    Form("lstm", ("lstm",), _lower("lstm", 2), torch.lstm, "", (), THREE, parts=_parts),
    Form("gru", ("gru",), _lower("gru", 1), torch.gru, "", (), STATES, parts=_parts),
    Form("rnn_tanh", ("rnn_tanh",), _lower("rnn_tanh", 1), torch.rnn_tanh, "", (), STATES, parts=_parts),
    Form("lstm_cell", ("lstm_cell",), lstm_cell, torch.lstm_cell, LOW, (), STATES),
    Form("gru_cell", ("gru_cell",), gru_cell, torch.gru_cell, LOW),
)
