"""Losses over classes: cross-entropy with indices, binary cross-entropy with logits."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.onnxblock import blocks, graphs
from edge_train.onnxblock.loss.base import Loss, finite_array


class CrossEntropyLoss(Loss):
    """-log softmax(scores)[label] with the classes on axis 1, as in PyTorch.

    ``weight``: a factor per class; the mean divides by the sum of the factors used.
    ``ignore_index``: labels that count for nothing. ``label_smoothing``: that share of each label
    is spread over all classes. Scores (N, C, d...) take INT64 labels (N, d...).
    """

    def __init__(
        self,
        weight: Any = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing lies in [0, 1], got {label_smoothing}")
        self._weight = None if weight is None else finite_array("weight", weight).reshape(-1)
        self._ignore_index = ignore_index
        self._smoothing = label_smoothing

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Returns the loss; the labels are an INT64 input unless they exist."""
        version = graphs.opset_of(self.base)
        if version < 12:
            raise ArtifactError(
                f"cross-entropy needs opset 12, the model has {version}: convert it first "
                "(onnx.version_converter), or export it at 17"
            )
        weight = self._weights(scores_input_name)
        self._labels(scores_input_name, labels_name)
        loss = graphs.generate_graph_name("loss")
        inputs = [scores_input_name, labels_name, *weight]
        self._sce(inputs, loss)
        if not self._smoothing:
            return loss
        return self._smoothed(loss, scores_input_name, labels_name, weight)

    def _sce(self, inputs: list[str], loss: str) -> None:
        outputs = [loss, graphs.generate_graph_name("log_prob")]
        ignore: dict[str, Any] = (
            {} if self._ignore_index is None else {"ignore_index": self._ignore_index}
        )
        name = graphs.generate_graph_name("SoftmaxCrossEntropyLoss")
        node = helper.make_node(
            "SoftmaxCrossEntropyLoss",
            inputs,
            outputs,
            name=name,
            reduction=self._reduction,
            **ignore,
        )
        self.base.graph.node.append(node)

    def _weights(self, scores: str) -> list[str]:
        if self._weight is None:
            return []
        _, dims = graphs.type_of(self.base, scores)
        classes = dims[1] if dims is not None and len(dims) > 1 else None
        if isinstance(classes, int) and classes != self._weight.size:
            raise ValueError(f"weight has {self._weight.size} factors for {classes} classes")
        return [self._constant("celoss.weight", self._weight, scores)]

    def _labels(self, scores: str, labels: str) -> None:
        _, dims = graphs.type_of(self.base, scores)
        if dims is not None and len(dims) < 2:
            raise ArtifactError(
                f"CrossEntropyLoss: '{scores}' has shape {dims}; expected (N, C) or (N, C, d...)"
            )
        expected = None if dims is None else (dims[0], *dims[2:])
        if graphs.node_arg_exists(self.base, labels):
            self._check_dims(
                labels, expected, f"one label per row of '{scores}', classes on axis 1,"
            )
        else:
            self.base.graph.input.append(graphs.value_info(labels, dtypes.INT64, expected))

    def _smoothed(self, loss: str, scores: str, labels: str, weight: list[str]) -> str:
        """(1 - e) loss + e times the mean over the classes of -w log p, reduced as the loss."""
        log_prob = self._log_softmax(scores)
        if weight:
            log_prob = blocks.Mul()(log_prob, self._over_classes(weight[0], scores))
        spread = blocks.Neg()(self._reduce("ReduceMean", log_prob, [1], keepdims=False))
        used = self._used(labels, scores)
        if used:
            spread = blocks.Mul()(spread, used)
        if self._reduction != "none":
            spread = blocks.ReduceSum(keepdims=False)(spread)
        if self._reduction == "mean":
            spread = blocks.Div()(spread, self._divisor(spread, labels, weight, used, scores))
        rest, share = (
            self._constant("celoss.smoothing", value, scores)
            for value in (1.0 - self._smoothing, self._smoothing)
        )
        return str(blocks.Add()(blocks.Mul()(loss, rest), blocks.Mul()(spread, share)))

    def _log_softmax(self, scores: str) -> str:
        _, dims = graphs.type_of(self.base, scores)
        if graphs.opset_of(self.base) < 13 and (dims is None or len(dims) != 2):
            raise ArtifactError(
                f"label smoothing of '{scores}' with shape {dims} needs opset 13: convert the "
                "model first"
            )
        return self._add_node("LogSoftmax", [scores], axis=1)

    def _over_classes(self, weight: str, scores: str) -> str:
        """The class weights in a shape that broadcasts over (N, C, d...)."""
        _, dims = graphs.type_of(self.base, scores)
        if dims is None:
            raise ArtifactError(f"label smoothing with weights needs the rank of '{scores}'")
        assert self._weight is not None
        shape = (self._weight.size, *[1] * (len(dims) - 2))
        return self._constant("celoss.weight", self._weight.reshape(shape), scores)

    def _used(self, labels: str, scores: str) -> str | None:
        """1 where the label counts, 0 where it is ignored."""
        if self._ignore_index is None:
            return None
        ignored = self._ignored(labels)
        counts = self._add_node("Not", [ignored])
        return str(blocks.Cast(graphs.float_type_of(self.base, scores))(counts))

    def _ignored(self, labels: str) -> str:
        kind = graphs.type_of(self.base, labels)[0] or dtypes.INT64
        index = self._add_initializer("celoss.ignore_index", self._ignore_index, kind)
        return self._add_node("Equal", [labels, index])

    def _divisor(
        self, total: str, labels: str, weight: list[str], used: str | None, scores: str
    ) -> str:
        if not weight and not used:
            count = self._add_node("Size", [labels])
            return str(blocks.Cast(graphs.float_type_of(self.base, scores))(count))
        factors = used
        if weight:
            if used:  # an ignored label may be no index
                kind = graphs.type_of(self.base, labels)[0] or dtypes.INT64
                zero = self._add_initializer("celoss.zero", 0, kind)
                labels = self._add_node("Where", [self._ignored(labels), zero, labels])
            factors = self._add_node("Gather", [weight[0], labels])
            if used:
                factors = str(blocks.Mul()(factors, used))
        return str(blocks.ReduceSum(keepdims=False)(factors))


class BCEWithLogitsLoss(Loss):
    """Binary cross-entropy of sigmoid(x), finite for every finite x.

    weight (pos_weight target softplus(-x) + (1 - target) softplus(x)), reduced; ``weight`` and
    ``pos_weight`` broadcast over x.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._weight = None if weight is None else finite_array("weight", weight)
        self._pos_weight = None if pos_weight is None else finite_array("pos_weight", pos_weight)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Returns the loss; the target is an input like the prediction unless it exists."""
        target = self._target(loss_input_name, target_name)
        one = self._constant("bceloss.sub_ones", [1.0], loss_input_name)
        positive = blocks.Mul()(target, self._softplus(blocks.Neg()(loss_input_name)))
        if self._pos_weight is not None:
            factor = self._constant("bceloss.pos_weight", self._pos_weight, loss_input_name)
            positive = blocks.Mul()(positive, factor)
        rest = blocks.Sub()(one, target)
        loss = blocks.Add()(positive, blocks.Mul()(rest, self._softplus(loss_input_name)))
        if self._weight is not None:
            factor = self._constant("bceloss.weight", self._weight, loss_input_name)
            loss = blocks.Mul()(factor, loss)
        return self._reduced(loss)

    def _softplus(self, x: str) -> str:
        kind = graphs.float_type_of(self.base, x)
        if kind != dtypes.DOUBLE:
            return self._add_node("Softplus", [x])
        # onnxruntime has no Softplus in double
        narrow = blocks.Cast(TensorProto.FLOAT)(x)
        return str(blocks.Cast(TensorProto.DOUBLE)(self._add_node("Softplus", [narrow])))
