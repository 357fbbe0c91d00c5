"""What a call passed, argument by argument, before a rule says which of it counts.

In comes the spec of a call's inputs. Out go the nodes of its arguments with the names of their
parameters. What is left out of them differs: a layout leaves out what equals its default, the tape
as one program what ``torch.onnx.InputObserver`` leaves out.
"""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.observing.signature import Signature
from calltape_schema.tree import Node, ScalarNode, children_of

__all__ = ["PassedArguments"]


class PassedArguments(NamedTuple):
    """The arguments of one call, as (name, node).

    Attributes:
        positional: in the order in which they were passed. A position is counted with the
            parameters that :meth:`Tape.remove_inputs` took out.
        named: passed by keyword, in the order in which they were passed.
    """

    positional: tuple[tuple[str, Node], ...]
    named: tuple[tuple[str, Node], ...]

    def with_defaults(self, signature: Signature, scalars: int) -> PassedArguments:
        """These arguments, and the defaults of ints that vary (:attr:`Signature.varying`) and that
        the call leaves out, as if it passed them by keyword.

        Args:
            signature: of the method that was called.
            scalars: how many scalars the call has. The defaults have the numbers that follow.
        """
        passed = self.by_name()
        lacking = tuple(
            (name, ScalarNode(kind="int", scalar=scalars + i))
            for i, name in enumerate(signature.varying_defaults)
            if name not in passed
        )
        return self._replace(named=(*self.named, *lacking))

    @classmethod
    def of(cls, root: Node, signature: Signature) -> PassedArguments:
        """The arguments of a call.

        Args:
            root: the root of the spec of its inputs: a tuple of args and kwargs.
            signature: of the method that was called.
        """
        args, kwargs = children_of(root)
        name_at = signature.complete.name_at
        positional = tuple((name_at(i), node) for i, node in enumerate(args.children))
        return cls(positional, tuple(zip(kwargs.keys, kwargs.children, strict=True)))

    def by_name(self) -> dict[str, Node]:
        """All of them. Of a parameter that was passed twice, which is an error, the second."""
        return dict((*self.positional, *self.named))
