"""The ResNet network in torch: stem, stages of bottleneck blocks with residual adds, classifier.

Legend: B batch, C channels, H and W rows and columns, K classes.
"""

from __future__ import annotations

import torch
from torch import nn

from hsdag.models.resnet import ResNetSizes

EXPANSION = 4  # output channels of a block per inner channel (He et al. 2016, Fig. 5)
# With fresh random weights a block's branch adds as much variance as its input has. Sixteen blocks in a row
# would multiply activations by hundreds; a branch scaled down by its last norm keeps them near one.
BRANCH_SCALE = 0.3


class Bottleneck(nn.Module):
    """1 x 1 reduction, 3 x 3 with the stride, 1 x 1 expansion, and the input added back."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = EXPANSION * width
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, 4 * width, H / stride, W / stride]."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Bottleneck ResNet of He et al. 2016, Table 1, with the stride in the 3 x 3 convolution."""

    def __init__(self, sizes: ResNetSizes) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, sizes.stem, 7, 2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(sizes.stem)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        stages, channels = nn.Sequential(), sizes.stem
        for stage_idx, (width, depth) in enumerate(zip(sizes.widths, sizes.depths, strict=True)):
            stage = nn.Sequential()
            for block_idx in range(depth):
                stage.append(Bottleneck(channels, width, stride=2 if stage_idx and not block_idx else 1))
                channels = EXPANSION * width
            stages.append(stage)
        self.stages = stages
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> logits [B, K]."""
        x = self.pool(torch.relu(self.norm(self.conv(images))))
        logits: torch.Tensor = self.classifier(torch.flatten(self.mean(self.stages(x)), 1))
        return logits

    def scale_branches(self) -> None:
        """Scale every residual branch by BRANCH_SCALE."""
        with torch.no_grad():
            for part in self.modules():
                if isinstance(part, Bottleneck):
                    part.norm3.weight.mul_(BRANCH_SCALE)
