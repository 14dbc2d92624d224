"""The engine of one machine: cards by leases and NVML, attempts by keepers."""
