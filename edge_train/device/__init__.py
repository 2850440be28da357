"""Device memory: buffers on the CPU, in a mapped file, in shared memory, on an OpenCL device."""

from edge_train.device.buffer import DeviceBuffer
from edge_train.device.devices import Device, DeviceInfo, open_device
from edge_train.device.shared_weights import SharedWeights

__all__ = ["Device", "DeviceBuffer", "DeviceInfo", "SharedWeights", "open_device"]
