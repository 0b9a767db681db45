"""Norms, attention and recurrent cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.derivatives.ways.base import Way, constants


def gru_by_hand(z: Any, p: Any) -> Any:
    h = torch.zeros(len(z), 2, dtype=torch.float64)
    for i in range(3):
        both = torch.cat([z[:, i : i + 1], h], 1)
        r, u = torch.sigmoid(both @ p(3, 4)).chunk(2, 1)
        candidate = torch.tanh(torch.cat([z[:, i : i + 1], r * h], 1) @ p(3, 2))
        h = (1 - u) * h + u * candidate
    return h


def gru_cell(z: Any, p: Any) -> Any:
    cell = p.net("gru_cell", lambda: nn.GRUCell(1, 2))
    h = torch.zeros(len(z), 2, dtype=torch.float64)
    for i in range(3):
        h = cell(z[:, i : i + 1], h)
    return h


def gru(z: Any, p: Any) -> Any:
    return p.net("gru", lambda: nn.GRU(2, 3, batch_first=True))(z)[0]


def lstm(z: Any, p: Any) -> Any:
    return p.net("lstm", lambda: nn.LSTM(2, 3, batch_first=True))(z)[0]


def attention_by_hand(z: Any, p: Any, mask: Any = None) -> Any:
    q, k, v = (z @ p(2, 4, k=i) for i in range(3))
    scores = q @ k.transpose(1, 2) / 2.0
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v


def attention(z: Any, p: Any, **options: Any) -> Any:
    q, k, v = (z @ p(2, 4, k=i) for i in range(3))
    return F.scaled_dot_product_attention(q, k, v, **options)


def causal(length: int) -> Tensor:
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(length, length, dtype=torch.float64).masked_fill(~allowed, float("-inf"))


def attention_in_groups(z: Any, p: Any) -> Any:
    q, k = z @ p(2, 4), z @ p(2, 4, k=1)
    one = torch.softmax(q @ k.mT / 2.0, -1) @ k
    return torch.stack([one, one], 1)


def multihead(z: Any, p: Any, batch_first: bool) -> Any:
    layer = p.net(f"mha{batch_first}", lambda: nn.MultiheadAttention(4, 2, batch_first=batch_first))
    h = z if batch_first else z.transpose(0, 1)
    y, _ = layer(h, h, h, need_weights=False)
    return y if batch_first else y.transpose(0, 1)


def multihead_by_hand(z: Any, p: Any, batch_first: bool) -> Any:
    layer = p.net(f"mha{batch_first}", lambda: nn.MultiheadAttention(4, 2, batch_first=batch_first))
    return heads_by_hand(layer, z)


def heads_by_hand(layer: Any, z: Any, other: Any = None, mask: Any = 0.0) -> Any:
    q, k, v = (z @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, -1)
    if other is not None:
        _, k, v = (other @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in (q, k, v))
    y = torch.softmax(q @ k.transpose(-1, -2) / 2**0.5 + mask, -1) @ v
    return y.transpose(1, 2).flatten(2) @ layer.out_proj.weight.T + layer.out_proj.bias


def multihead_masked(z: Any, p: Any, mask: Tensor) -> Any:
    layer = p.net("mhaTrue", lambda: nn.MultiheadAttention(4, 2, batch_first=True))
    other = torch.sin(z)
    return layer(z, other, other, attn_mask=mask, need_weights=False)[0]


def multihead_masked_by_hand(z: Any, p: Any, mask: Tensor) -> Any:
    layer = p.net("mhaTrue", lambda: nn.MultiheadAttention(4, 2, batch_first=True))
    return heads_by_hand(layer, z, torch.sin(z), mask)


def encoder(p: Any) -> Any:
    return p.net(
        "encoder",
        lambda: nn.TransformerEncoderLayer(
            4, 2, 5, dropout=0.0, activation=F.gelu, batch_first=True
        ),
    )


def encoder_by_hand(z: Any, p: Any) -> Any:
    layer = encoder(p)
    h = norm_by_hand(z + heads_by_hand(layer.self_attn, z), (-1,), *layer.norm1.parameters())
    return norm_by_hand(
        h + layer.linear2(F.gelu(layer.linear1(h))), (-1,), *layer.norm2.parameters()
    )


def norm_by_hand(z: Any, axes: tuple[int, ...], weight: Any = 1.0, bias: Any = 0.0) -> Any:
    centred = z - z.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True) + 1e-5).sqrt() * weight + bias


def groups_by_hand(z: Any, p: Any) -> Any:
    h = norm_by_hand(z.reshape(len(z), 2, -1), (2,)).reshape(z.shape)
    return h * p(4, 1, k=0) + p(4, 1, k=1)


def batch_norm(z: Any, p: Any) -> Any:
    def build() -> nn.Module:
        layer = nn.BatchNorm1d(3).eval()
        layer.running_mean.copy_(constants(3))
        layer.running_var.copy_(constants(3).exp())
        return layer

    return p.net("batch_norm", build)(z)


def sequential(z: Any, p: Any) -> Any:
    return p.net(
        "mlp",
        lambda: nn.Sequential(
            nn.Linear(3, 5), nn.SiLU(inplace=True), nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, 2)
        ),
    )(z)


LAYERS = [
    Way(
        "layer_norm",
        lambda z, p: F.layer_norm(z, (3,), p(3), p(3, k=1)),
        written_out=lambda z, p: norm_by_hand(z, (-1,), p(3), p(3, k=1)),
    ),
    Way(
        "layer_norm of images",
        lambda z, p: F.layer_norm(z, (2, 3)) * p(3),
        event=(2, 3),
        written_out=lambda z, p: norm_by_hand(z, (1, 2)) * p(3),
    ),
    Way(
        "layer_norm module",
        lambda z, p: p.net("ln", lambda: nn.LayerNorm(3))(z),
        written_out=lambda z, p: norm_by_hand(
            z, (-1,), *p.net("ln", lambda: nn.LayerNorm(3)).parameters()
        ),
    ),
    Way(
        "group_norm",
        lambda z, p: F.group_norm(z, 2, p(4, 1)[:, 0], p(4, 1, k=1)[:, 0]),
        event=(4, 2),
        written_out=groups_by_hand,
    ),
    Way(
        "instance_norm",
        lambda z, p: F.instance_norm(z, weight=p(2, 1)[:, 0]),
        event=(2, 3),
        written_out=lambda z, p: norm_by_hand(z, (2,), p(2, 1)),
    ),
    Way("rms_norm", lambda z, p: F.rms_norm(z, (3,), p(3), 1e-5)),
    Way("batch_norm eval", batch_norm),
    Way("normalize", lambda z, p: F.normalize(z * p(3), dim=1), kinked=True),
    Way(
        "cosine_similarity",
        lambda z, p: F.cosine_similarity(z, torch.sin(z) * p(3), dim=1),
        kinked=True,
    ),
    Way(
        "cdist",
        lambda z, p: torch.cdist(z, p(5, 3)),
        written_out=lambda z, p: (z.unsqueeze(1) - p(5, 3)).square().sum(-1).sqrt(),
    ),
    Way(
        "cdist square on the left",
        lambda z, p: torch.cdist(p(3, 3), z).T,
        written_out=lambda z, p: (z.unsqueeze(1) - p(3, 3)).square().sum(-1).sqrt(),
    ),
    Way("glu", lambda z, p: F.glu(z * p(4), 1), event=(4,)),
    Way("glu module", lambda z, p: nn.GLU()(z), event=(4,)),
    Way("dropout eval", lambda z, p: F.dropout(z, 0.5, training=False) * p(3)),
    Way("attention", attention, event=(3, 2), written_out=attention_by_hand),
    Way(
        "attention mask",
        lambda z, p: attention(z, p, attn_mask=constants(3, 3)),
        event=(3, 2),
        written_out=lambda z, p: attention_by_hand(z, p, constants(3, 3)),
    ),
    Way(
        "attention boolean mask",
        lambda z, p: attention(z, p, attn_mask=torch.ones(3, 3, dtype=torch.bool).tril()),
        event=(3, 2),
        written_out=lambda z, p: attention_by_hand(z, p, causal(3)),
    ),
    Way(
        "attention causal",
        lambda z, p: attention(z, p, is_causal=True),
        event=(3, 2),
        written_out=lambda z, p: attention_by_hand(z, p, causal(3)),
    ),
    Way(
        "attention scale",
        lambda z, p: attention(z, p, scale=0.5),
        event=(3, 2),
        written_out=attention_by_hand,
    ),
    Way("attention by hand", attention_by_hand, event=(3, 2)),
    Way(
        "MultiheadAttention batch_first",
        lambda z, p: multihead(z, p, True),
        event=(3, 4),
        written_out=lambda z, p: multihead_by_hand(z, p, True),
    ),
    Way(
        "MultiheadAttention",
        lambda z, p: multihead(z, p, False),
        event=(3, 4),
        written_out=lambda z, p: multihead_by_hand(z, p, False),
    ),
    Way(
        "MultiheadAttention with other keys and a mask",
        lambda z, p: multihead_masked(z, p, constants(3, 3)),
        event=(3, 4),
        written_out=lambda z, p: multihead_masked_by_hand(z, p, constants(3, 3)),
    ),
    Way(
        "MultiheadAttention with a mask of booleans, true where nothing is read",
        lambda z, p: multihead_masked(z, p, ~torch.ones(3, 3, dtype=torch.bool).tril()),
        event=(3, 4),
        written_out=lambda z, p: multihead_masked_by_hand(z, p, causal(3)),
    ),
    Way(
        "TransformerEncoderLayer",
        lambda z, p: encoder(p)(z),
        event=(2, 4),
        written_out=encoder_by_hand,
    ),
    Way(
        "TransformerEncoderLayer eval",
        lambda z, p: encoder(p).eval()(z),
        event=(2, 4),
        written_out=encoder_by_hand,
    ),
    Way("GRU by hand", gru_by_hand),
    Way("GRUCell", gru_cell),
    Way("GRU", gru, event=(3, 2)),
    Way("LSTM", lstm, event=(2, 2)),
    Way("sequential, in place", sequential),
    Way(
        "native_layer_norm",
        lambda z, p: torch.native_layer_norm(z, (3,), p(3), None, 1e-5)[0],
        written_out=lambda z, p: norm_by_hand(z, (-1,), p(3)),
    ),
    Way(
        "instance_norm with statistics",
        lambda z, p: F.instance_norm(
            z, constants(2), constants(2).exp(), p(2), None, use_input_stats=False
        ),
        event=(2, 3),
    ),
    Way("pairwise_distance", lambda z, p: F.pairwise_distance(z, p(1, 3))),
    Way(
        "pairwise_distance of order 1",
        lambda z, p: F.pairwise_distance(z, p(1, 3), 1.0),
        kinked=True,
    ),
    Way("normalize of order 1", lambda z, p: F.normalize(z.exp(), 1.0), kinked=True),
    Way(
        "cosine_embedding_loss",
        lambda z, p: F.cosine_embedding_loss(
            z, p(1, 3).expand_as(z), torch.ones(len(z)).double(), reduction="none"
        ),
        kinked=True,
    ),
    *[
        Way(
            f"{name} eval",
            lambda z, p, name=name: getattr(F, name)(z, 0.5, training=False) * p(3),
            event=event,
        )
        for name, event in (
            ("dropout1d", (2, 3)),
            ("dropout2d", (1, 2, 3)),
            ("dropout3d", (1, 2, 2, 3)),
        )
    ],
    Way("feature_dropout eval", lambda z, p: torch.feature_dropout(z, 0.5, False) * p(3)),
    Way(
        "alpha_dropout eval",
        lambda z, p: F.alpha_dropout(z, 0.5, training=False) * p(3),
        traced=None,
    ),
    Way(
        "RNN", lambda z, p: p.net("rnn", lambda: nn.RNN(2, 3, batch_first=True))(z)[0], event=(3, 2)
    ),
    Way("RNNCell", lambda z, p: p.net("rnn_cell", lambda: nn.RNNCell(3, 4))(z)),
    Way("LSTMCell", lambda z, p: torch.cat(p.net("lstm_cell", lambda: nn.LSTMCell(3, 2))(z), 1)),
    Way("Bilinear", lambda z, p: p.net("bilinear", lambda: nn.Bilinear(3, 3, 2))(z, torch.sin(z))),
    Way(
        "MultiheadAttention with weights",
        lambda z, p: p.net("mha", lambda: nn.MultiheadAttention(4, 2, batch_first=True))(z, z, z)[
            0
        ],
        event=(3, 4),
        written_out=lambda z, p: heads_by_hand(
            p.net("mha", lambda: nn.MultiheadAttention(4, 2, batch_first=True)), z
        ),
    ),
    Way(
        "attention in groups",
        lambda z, p: F.scaled_dot_product_attention(
            *(
                (z @ p(2, 4)).reshape(-1, 1, 3, 4).expand(-1, 2, 3, 4),
                *[z.unsqueeze(1) @ p(2, 4, k=1)] * 2,
            ),
            enable_gqa=True,
        ),
        event=(3, 2),
        written_out=lambda z, p: attention_in_groups(z, p),
    ),
    Way(
        "weight_norm",
        lambda z, p: p.net(
            "weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
        )(z),
    ),
    Way(
        "spectral_norm",
        lambda z, p: p.net(
            "spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)).eval()
        )(z),
    ),
    Way(
        "orthogonal",
        lambda z, p: p.net(
            "orthogonal", lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
        )(z),
    ),
]
