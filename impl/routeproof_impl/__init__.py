"""The production capturer for torch."""

from routeproof_impl.capturer import RoutedExpertsCapturer
from routeproof_impl.communicator import TorchCommunicator
from routeproof_impl.snapshot import Snapshot

__all__ = ["RoutedExpertsCapturer", "Snapshot", "TorchCommunicator"]
