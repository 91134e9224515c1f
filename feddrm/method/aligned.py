"""Linear and convolutional layers whose products give a record's gradient the same bits at every place of a block
(docs/privacy.md).
"""

from __future__ import annotations

from typing import Final

import torch
from opacus.grad_sample import register_grad_sampler
from torch import nn
from torch.nn import functional

# Within a block, where the inner dimension is odd, rows start at different alignments, which kernels treat differently
# (seen at 5, 7, 15, 31). All dimensions are padded with zeros to multiples of 16 floats, a cache line.
_ALIGNED: Final = 16


class AlignedLinear(nn.Linear):
    """A linear layer of two-dimensional batches, by products of aligned rows, backwards as well.

    Its parameters get no gradients of their own: what `_factors` keeps says more, and costs no product.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as torch calls it
        """float32[n, outputs] of float32[n, inputs]."""
        more_out, more_in = -self.out_features % _ALIGNED, -self.in_features % _ALIGNED
        rows = functional.pad(input, (0, more_in)) if more_in else input
        weight, bias = self.weight.detach(), None if self.bias is None else self.bias.detach()
        if more_in or more_out:
            weight = functional.pad(weight, (0, more_in, 0, more_out))
        if more_out and bias is not None:
            bias = functional.pad(bias, (0, more_out))
        product = functional.linear(rows, weight, bias)
        if more_out:
            product = product[:, : self.out_features]
        # Features have no gradient: without this, nothing would come back to the first layer.
        return product if product.requires_grad else product.requires_grad_()


@register_grad_sampler(AlignedLinear)  # type: ignore[untyped-decorator]
def _factors(
    layer: AlignedLinear, inputs: list[torch.Tensor], outputs: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """What Opacus keeps of a batch for `exact.Layer`: the layer's inputs with its weights, and its bias' gradients."""
    if layer.bias is None:
        return {layer.weight: torch.cat([outputs, inputs[0]], dim=1)}
    return {layer.weight: inputs[0], layer.bias: outputs}


class AlignedConv2d(nn.Conv2d):
    """A convolution whose weights get no gradients of their own: records' gradients are products of aligned rows."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as torch calls it
        """float32[n, channels out, height, width] of float32[n, channels in, height, width]."""
        bias = None if self.bias is None else self.bias.detach()
        product = functional.conv2d(input, self.weight.detach(), bias, self.stride, self.padding, self.dilation)
        return product if product.requires_grad else product.requires_grad_()


@register_grad_sampler(AlignedConv2d)  # type: ignore[untyped-decorator]
def _patches(
    layer: AlignedConv2d, inputs: list[torch.Tensor], outputs: torch.Tensor
) -> dict[torch.Tensor, torch.Tensor]:
    """Each record's gradient: what the loss tells the outputs times the patches that they saw, over all places."""
    if isinstance(layer.padding, str):
        raise TypeError("align leaves layers with such a padding alone")
    patches = functional.unfold(inputs[0], layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    told = outputs.flatten(2)
    places = patches.shape[2]
    if more := -places % _ALIGNED:
        patches, told = functional.pad(patches, (0, more)), functional.pad(told, (0, more))
    products = torch.bmm(told, patches.transpose(1, 2))
    found = {layer.weight: products.reshape(-1, *layer.weight.shape)}
    if layer.bias is not None:
        found[layer.bias] = outputs.sum(dim=(2, 3))
    return found


def align(module: nn.Module) -> list[AlignedLinear]:
    """Give linear and convolutional layers the aligned forms of their products: the same parameters under the same
    names. Returns the linear ones, whose `exact.Layer` takes factors."""
    linear = []
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = AlignedLinear
        elif type(layer) is nn.Conv2d and layer.groups == 1 and not isinstance(layer.padding, str):
            layer.__class__ = AlignedConv2d
        if isinstance(layer, AlignedLinear):
            linear.append(layer)
    return linear
