"""The shape of the synthetic decode step (`arfloor.workload.decode_step`): what it reads and reduces."""

from __future__ import annotations

from arfloor.core.cases import record


@record
class Shape:
    """A dense decoder, two reduces a layer. `qkv`: columns of the fused query, key and value projection, all
    ranks together."""

    layers: int = 32
    hidden: int = 4096
    ffn: int = 14336
    qkv: int = 6144

    @property
    def reduces(self) -> int:
        """All-reduces of a step: after attention and after the MLP of every layer."""
        return 2 * self.layers

    def message_nbytes(self, batch: int) -> int:
        """Bytes of one reduce."""
        return 2 * batch * self.hidden

    def weight_nbytes(self, world: int) -> int:
        """Bytes of bfloat16 weights that one of `world` ranks reads in a step."""
        per_layer = self.hidden * (self.qkv + self.hidden + 3 * self.ffn)
        return 2 * self.layers * per_layer // world

    def check(self, world: int) -> None:
        """Raise ValueError unless every split over the ranks is whole, in elements of 16 bytes."""
        for name in ("hidden", "ffn", "qkv"):
            columns: int = getattr(self, name)
            if columns % (8 * world):
                raise ValueError(f"expected {name} a multiple of 8 x {world} ranks, found {columns}")
