"""The one worker thread in which records are read and models trained, so that the stream lives meanwhile (design 10).

torch is imported here only, and only when there is something to train or to predict.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from feddrm.contract.errors import FeddrmError, InputError, MissingExtraError
from feddrm.contract.plan import Plan
from feddrm.method.layout import layout_of
from silo.boundary import INTERNAL, survivable
from silo.data import Records, load_records
from silo.effects import DataLoaded, DataRefused, LoadData, Train, Trained, TrainingFailed
from silo.home import Home

if TYPE_CHECKING:
    from feddrm.method.model import Predictor
    from feddrm.method.trainer import Trainer
    from feddrm.method.update import Model

logger = logging.getLogger("silo")


def require_torch(threads: int) -> None:
    """Import torch and set its threads: with the default, agents on one machine slow each other 20 times down.

    opacus must be there and is not imported: that takes longer than torch itself, and who only predicts needs none.

    Raises:
        MissingExtraError: torch or opacus is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("feddrm-silo", "silo", error.name or "torch") from error
    if find_spec("opacus") is None:
        raise MissingExtraError("feddrm-silo", "silo", "opacus")
    torch.set_num_threads(threads)


def make_predictor(plan: Plan, model: Model, personal: Model, threads: int) -> Predictor:
    """The silo's own model, ready to predict.

    Raises:
        MissingExtraError: torch is not installed.
    """
    require_torch(threads)
    from feddrm.method.model import Predictor

    return Predictor(plan, model, personal)


class Workshop:
    """Reads records and trains rounds, one at a time, in one thread; `read` and `round` block and run there.

    Args:
        home: the silo's directory.
        me: this silo's name.
        threads: of torch.
        entropy: a CSPRNG, for sampling and noise.
        commit: (digest of the records, nonce of 32 bytes) -> keyed hash of both, 32 bytes.
    """

    def __init__(
        self,
        home: Home,
        me: str,
        threads: int,
        entropy: Callable[[int], bytes],
        commit: Callable[[bytes, bytes], bytes],
    ) -> None:
        self._home = home
        self._me = me
        self._threads = threads
        self._entropy = entropy
        self._commit = commit
        self._records: tuple[bytes, Records] | None = None
        self._trainer: tuple[bytes, Trainer] | None = None

    def warm_up(self) -> None:
        """Import what training needs; whatever is missing is reported when it is needed."""
        with contextlib.suppress(FeddrmError):
            require_torch(self._threads)
            import feddrm.method.trainer  # noqa: F401

    def read(self, effect: LoadData) -> DataLoaded | DataRefused:
        """Read the records with the plan's schema."""
        try:
            records = load_records(self._home, effect.plan.schema_)
            require_torch(self._threads)
            nonce = self._entropy(32)
            loaded = DataLoaded(
                effect.plan_hash, self._commit(records.digest, nonce), nonce, records.patient, records.public_size
            )
        except FeddrmError as error:
            return DataRefused(effect.plan_hash, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: a plan must not end the agent
            survivable(error, "reading the records")
            return DataRefused(effect.plan_hash, f"an {INTERNAL}; see the log")
        unusable = records.dataset.unusable
        if unusable.cells or unusable.records:
            logger.warning(
                "Of the records, %d cells count as missing and %d records are left out, as they do not fit the plan."
                " To see which: feddrm-silo data check.",
                unusable.cells,
                unusable.records,
            )
        self._records = (effect.plan_hash, records)
        self._trainer = None
        return loaded

    def round(self, effect: Train, stop: threading.Event) -> Trained | TrainingFailed:
        """Train one round; `stop` ends it at its next step."""
        try:
            trainer = self._trainer_of(effect)
            update, personal = trainer.train_round(effect.model, effect.personal, stop)
        except FeddrmError as error:
            return TrainingFailed(effect.plan_hash, effect.round, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: a plan must not end the agent
            survivable(error, f"training round {effect.round}")
            return TrainingFailed(effect.plan_hash, effect.round, f"an {INTERNAL}; see the log")
        return Trained(effect.plan_hash, effect.round, update, personal)

    def _trainer_of(self, effect: Train) -> Trainer:
        """One trainer a job: its hooks are installed once."""
        if self._trainer is not None and self._trainer[0] == effect.plan_hash:
            return self._trainer[1]
        if self._records is None or self._records[0] != effect.plan_hash:
            raise InputError("The records of this job have not been read.")
        from feddrm.method.trainer import Trainer

        trainer = Trainer(
            effect.plan,
            layout_of(effect.plan),
            self._records[1].dataset,
            effect.plan.silos.index(self._me),
            effect.public_size,
            self._entropy,
        )
        self._trainer = (effect.plan_hash, trainer)
        return trainer
