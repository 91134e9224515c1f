"""Flower's side of the comparison, run by the interpreter of the virtual environment that has `flwr`.

Flower's own `SecAggPlusWorkflow` and `secaggplus_mod`, unmodified, over a grid that hands each message to the client
in the same process. A client's work begins with its update as an array and ends with the last aggregate as an array, by
the functions that a `NumPyClient` gets and gives them with. What is not secure aggregation is left out, in Flower's
favour: no transport, no training, and a strategy that takes the sum as it is.

Reads one JSON request a line on stdin, {"n", "cohort", "threshold", "dropouts"}, and answers each with one line on
stdout, {"client_s": [CPU seconds of every survivor], "server_s": CPU seconds}, or ends with a traceback.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitins
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from bench.inputs import CLIP, update

# One example each, of at most one: every client has the whole weight, as every silo has.
_WEIGHT = 1


class Proxy(ClientProxy):  # type: ignore[misc]
    """A client as the strategy names it. The workflow needs its number and calls nothing."""

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError("SecAgg+ speaks through the grid")

    get_properties = get_parameters = fit = evaluate = reconnect = _unused


class Sum(Strategy):  # type: ignore[misc]
    """Samples everybody, sends the aggregate of a round before, and keeps this one as the workflow computed it.

    A round hands every client one aggregate, which has the form of what the workflow ends with: float64[n].
    """

    def __init__(self, nodes: Iterable[int], length: int) -> None:
        self.proxies = [Proxy(node) for node in nodes]
        self.before = ndarrays_to_parameters([np.ones(length)])
        self.aggregate: Parameters | None = None

    def initialize_parameters(self, *_: Any) -> None:
        """The workflow is given the round alone."""

    def configure_fit(self, *_: Any) -> list[tuple[Proxy, FitIns]]:
        """Everybody, with what the round before gave."""
        return [(proxy, FitIns(self.before, {})) for proxy in self.proxies]

    def aggregate_fit(self, _: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        """The workflow gave every result the same parameters: the aggregate."""
        if failures:
            raise RuntimeError(f"clients failed: {failures}")
        self.aggregate = results[0][1].parameters
        return None, {}

    def configure_evaluate(self, *_: Any) -> list[Any]:
        """Nothing is evaluated."""
        return []

    def aggregate_evaluate(self, *_: Any) -> tuple[None, dict[str, Any]]:
        """Nothing is evaluated."""
        return None, {}

    def evaluate(self, *_: Any) -> None:
        """Nothing is evaluated."""


class Loopback(Grid):  # type: ignore[misc]
    """Every client in this process. `away` is the CPU time that was theirs and not the server's."""

    def __init__(self, cohort: int, length: int, dropouts: int) -> None:
        self.nodes = range(1, cohort + 1)
        self.dropped = frozenset(range(1, dropouts + 1))
        self.length = length
        self.spent = dict.fromkeys(self.nodes, 0.0)
        self.away = 0.0
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in self.nodes}

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> list[Message]:
        """Deliver, and collect the replies of all who have not dropped out."""
        arrived = time.process_time()
        replies = []
        for message in messages:
            stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
            if stage == Stage.COLLECT_MASKED_VECTORS and message.metadata.dst_node_id in self.dropped:
                continue
            replies.append(self._client(message))
        self.away += time.process_time() - arrived
        return replies

    def _client(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        training = 0.0

        def train(order: Message, _: Context) -> Message:
            """As Flower's message handler and NumPyClient do, around a training that takes no time."""
            nonlocal training
            (received,) = parameters_to_ndarrays(recorddict_to_fitins(order.content, keep_input=True).parameters)
            if received.shape != (self.length,):
                raise RuntimeError("a client got another aggregate than was sent")
            start = time.process_time()
            trained = update(node, self.length)
            training = time.process_time() - start
            result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([trained]), _WEIGHT, {})
            return Message(fitres_to_recorddict(result, keep_input=False), reply_to=order)

        # The server sends one object to everybody and the mod takes the stage out of what it got: a wire would copy.
        configs = message.content.config_records[RECORD_KEY_CONFIGS]
        content = RecordDict(dict(message.content.items()))
        content[RECORD_KEY_CONFIGS] = ConfigRecord(dict(configs))
        message.content = content
        start = time.process_time()
        reply = secaggplus_mod(message, self._contexts[node], train)
        self.spent[node] += time.process_time() - start - training
        return reply

    def get_node_ids(self) -> Sequence[int]:
        """All clients."""
        return self.nodes

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("SecAgg+ sends and receives")

    set_run = create_message = push_messages = pull_messages = _unused
    run = property(_unused)


def session(n: int, cohort: int, threshold: int, dropouts: int) -> dict[str, Any]:
    """One sum. Fails unless it is the mean of the survivors' updates."""
    grid = Loopback(cohort, n, dropouts)
    strategy = Sum(grid.nodes, n)
    state = RecordDict()
    state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    state[MAIN_PARAMS_RECORD] = ArrayRecord()
    context = LegacyContext(Context(1, 0, {}, state, {}), strategy=strategy, client_manager=SimpleClientManager())
    # A share for everybody, which makes the graph complete; modulus and ranges are the defaults.
    workflow = SecAggPlusWorkflow(1.0, threshold, max_weight=_WEIGHT, clipping_range=CLIP)
    start = time.process_time()
    workflow(grid, context)
    server = time.process_time() - start - grid.away
    survivors = [node for node in grid.nodes if node not in grid.dropped]
    if strategy.aggregate is None:
        raise RuntimeError("Flower's workflow halted without a sum")
    (mean,) = parameters_to_ndarrays(strategy.aggregate)
    expected = np.zeros(n)
    for node in survivors:
        expected += update(node, n)
    # Each entry was rounded to a multiple of 2 CLIP / 2^22, up or down by chance.
    if not np.allclose(mean, expected / len(survivors), rtol=0, atol=2 * CLIP / (1 << 22)):
        raise RuntimeError("Flower's sum is not the sum of the survivors' updates")
    return {"client_s": [grid.spent[node] for node in survivors], "server_s": server}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer until the end of the requests."""
    for line in requests:
        answers.write(json.dumps(session(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    serve(sys.stdin, answers)
