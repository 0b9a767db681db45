"""The library on a device that is not the CPU, without a GPU."""
