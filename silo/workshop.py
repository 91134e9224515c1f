"""The one worker thread in which records are read and worked on, so that the stream lives meanwhile (design 10).

torch is imported here only, and only when there is something to train or to predict.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from feddrm.contract.errors import FeddrmError, InputError, MissingExtraError
from feddrm.contract.plan import Plan
from feddrm.features import Dataset
from feddrm.method.evaluation import held_out
from feddrm.method.layout import layout_of
from silo.boundary import INTERNAL, survivable
from silo.data import Records, load_records, with_features
from silo.effects import (
    Contribute,
    Contributed,
    DataLoaded,
    DataRefused,
    LoadData,
    Train,
    Trained,
    TrainingFailed,
    Tune,
    Tuned,
    TuningFailed,
)
from silo.home import Home
from silo.shares import Shares, split

if TYPE_CHECKING:
    from feddrm.method.model import Predictor
    from feddrm.method.shared_head import SharedHead
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


def make_predictor(
    plan: Plan, model: Model, personal: Model, threads: int, shared: SharedHead | None = None
) -> Predictor:
    """The silo's own model, ready to predict, and to answer queries together with the head of all silos.

    Raises:
        MissingExtraError: torch is not installed.
    """
    require_torch(threads)
    from feddrm.method.model import Predictor

    return Predictor(plan, model, personal, shared)


class Workshop:
    """Reads records and works on them, one thing at a time, in one thread; all but `warm_up` block and run there.

    Args:
        home: the silo's directory.
        me: this silo's name.
        threads: of torch.
        entropy: a CSPRNG, for sampling and noise.
        commit: (digest of the records, nonce of 32 bytes) -> keyed hash of both, 32 bytes.
        held_out_key: 32 bytes that draw, for this silo's life, the patients that evaluation keeps from training.
    """

    def __init__(
        self,
        home: Home,
        me: str,
        threads: int,
        entropy: Callable[[int], bytes],
        commit: Callable[[bytes, bytes], bytes],
        held_out_key: bytes,
    ) -> None:
        self._home = home
        self._me = me
        self._threads = threads
        self._entropy = entropy
        self._commit = commit
        self._held_out_key = held_out_key
        self._records: tuple[bytes, Records] | None = None
        self._parts: tuple[bytes, Dataset, Dataset] | None = None
        self._trainer: tuple[bytes, Trainer] | None = None
        self._shares: tuple[bytes, Shares] | None = None

    def warm_up(self) -> None:
        """Import what training needs; whatever is missing is reported when it is needed."""
        with contextlib.suppress(FeddrmError):
            require_torch(self._threads)
            import feddrm.method.trainer  # noqa: F401

    def read(self, effect: LoadData) -> DataLoaded | DataRefused:
        """Read the records with the plan's schema."""
        try:
            records = load_records(self._home, effect.plan.at(self._me).schema_)
            require_torch(self._threads)
            records = replace(records, dataset=with_features(self._home, effect.plan, records.dataset))
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
        self._parts = self._trainer = self._shares = None
        return loaded

    def round(self, effect: Train, stop: threading.Event) -> Trained | TrainingFailed:
        """Train one round; `stop` ends it at its next step."""
        try:
            trainer = self._trainer_of(effect)
            update, personal = trainer.train_round(effect.model, effect.personal, stop, effect.round, effect.kept)
        except FeddrmError as error:
            return TrainingFailed(effect.plan_hash, effect.round, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: a plan must not end the agent
            survivable(error, f"training round {effect.round}")
            return TrainingFailed(effect.plan_hash, effect.round, f"an {INTERNAL}; see the log")
        return Trained(effect.plan_hash, effect.round, update, personal)

    def contribute(self, effect: Contribute) -> Contributed | TrainingFailed:
        """Compute a round's integers, noise included."""
        try:
            words = self._shares_of(effect).contribute(effect)
        except FeddrmError as error:
            return TrainingFailed(effect.plan_hash, effect.round, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: a plan must not end the agent
            survivable(error, f"the contribution to round {effect.round}")
            return TrainingFailed(effect.plan_hash, effect.round, f"an {INTERNAL}; see the log")
        return Contributed(effect.plan_hash, effect.stage, effect.round, words)

    def tune(self, effect: Tune, stop: threading.Event) -> Tuned | TuningFailed:
        """Tune the personal head; `stop` ends it at its next step."""
        plan = effect.plan.at(self._me)
        try:
            training, _ = self._data(effect.plan_hash, plan)
            if plan.personal_head is None:
                raise InputError("The plan has no personal head.")
            from feddrm.method.personal import fine_tune

            personal = fine_tune(
                plan,
                plan.personal_head,
                layout_of(plan),
                effect.model,
                effect.personal,
                training,
                effect.public_size,
                self._entropy,
                stop,
                effect.shared,
            )
        except FeddrmError as error:
            return TuningFailed(effect.plan_hash, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: a plan must not end the agent
            survivable(error, "tuning the personal head")
            return TuningFailed(effect.plan_hash, f"an {INTERNAL}; see the log")
        return Tuned(effect.plan_hash, personal)

    def _data(self, plan_hash: bytes, plan: Plan) -> tuple[Dataset, Dataset]:
        """(records that stages 1 to 3 read, records that only the evaluation reads) of the job in hand."""
        if self._records is None or self._records[0] != plan_hash:
            raise InputError("The records of this job have not been read.")
        if self._parts is None or self._parts[0] != plan_hash:
            data = self._records[1].dataset
            share = 0.0 if plan.evaluation is None else plan.evaluation.held_out
            held = held_out(self._held_out_key, data.patients, share) if share else np.zeros(len(data), np.bool_)
            self._parts = (plan_hash, *split(data, held))
        return self._parts[1:]

    def _shares_of(self, effect: Contribute) -> Shares:
        """One for a job: it keeps patients' features."""
        if self._shares is None or self._shares[0] != effect.plan_hash:
            training, held = self._data(effect.plan_hash, effect.plan)
            index = effect.plan.silos.index(self._me)
            self._shares = (effect.plan_hash, Shares(effect.plan, index, training, held, self._entropy))
        return self._shares[1]

    def _trainer_of(self, effect: Train) -> Trainer:
        """One trainer a job: its hooks are installed once."""
        if self._trainer is not None and self._trainer[0] == effect.plan_hash:
            return self._trainer[1]
        training, _ = self._data(effect.plan_hash, effect.plan)
        from feddrm.method.trainer import Trainer

        plan = effect.plan.at(self._me)
        trainer = Trainer(
            plan,
            layout_of(plan),
            training,
            effect.plan.silos.index(self._me),
            effect.public_size,
            self._entropy,
        )
        self._trainer = (effect.plan_hash, trainer)
        return trainer
