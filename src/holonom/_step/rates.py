"""Learning rates of shape (R,), one a replica, as torch's schedulers can write them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Rates(Tensor):
    """An lr of shape (R,). Schedulers write a tensor lr by ``fill_``, which torch defines for one number only.

    It shares the memory of the tensor that was given until a scheduler writes it: groups that were given one tensor may
    have schedules of their own. Arithmetic gives plain tensors, and so does a checkpoint.
    """

    __torch_function__ = nn.Parameter.__torch_function__  # results are plain tensors
    plain: Tensor
    is_own: bool

    @staticmethod
    def of(value: Any) -> Any:
        """One for a tensor of several rates; anything else as it is."""
        if not isinstance(value, Tensor) or value.numel() <= 1 or isinstance(value, Rates):
            return value
        rates = value.detach().as_subclass(Rates)
        rates.plain, rates.is_own = value.detach(), False
        return rates

    def fill_(self, value: Any) -> Rates:
        """Every replica's rate from a tensor of shape (R,), or one number for all of them."""
        if not self.is_own:
            self.data = self.plain = self.plain.clone()
            self.is_own = True
        self.plain.copy_(value) if isinstance(value, Tensor) else self.plain.fill_(value)
        return self

    def __float__(self) -> float:
        raise ValueError(
            f"this lr holds {len(self)} rates, one a replica, where one number is wanted, as by ReduceLROnPlateau: "
            f"give all replicas one lr, or use a scheduler that multiplies (LambdaLR, StepLR, CosineAnnealingLR, …)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Rates:
        if id(self) not in memo:
            memo[id(self)] = Rates.of(self.plain.clone())
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
